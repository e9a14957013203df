/* postproc.c - what stands before and after the ids of a text, and around two texts.
 *
 * Every supported post-processor is two lists of ids for a single text, and three for two texts. In a Sequence a later one wraps what
 * the earlier ones made. Every text gets all of them, so they are few.
 */
#include "text/tokenizer/part.h"
#include <stdlib.h>
#include <string.h>

struct id_list {
    int32_t *id;
    size_t count, cap;
};

/* Two texts: ids between them, of which the first `second` belong to the first text's segment (-1: there is one segment). */
struct pair_form {
    bool known;
    struct id_list before, between, after;
    int64_t second;
};

struct postproc {
    struct id_list before, after;
    struct pair_form pair;
    bool trims, prefix; /* see postproc_trims */
};

enum { IDS_MOST = 256 }; /* before a text, and after it */

static enum plim_status list_add(struct id_list *list, int64_t id, const char *name, struct plim_error *err)
{
    if (list->count == IDS_MOST)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: post_processor: more than %d ids before or after a text, the most that are read", name,
            IDS_MOST);
    if (list->count == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 4;
        int32_t *ids = realloc(list->id, cap * sizeof *ids);
        if (!ids) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the post-processor", name);
        list->id = ids;
        list->cap = cap;
    }
    list->id[list->count++] = (int32_t)id;
    return PLIM_OK;
}

static enum plim_status add_node(struct id_list *list, const struct node *node, int line, const char *name,
                                 struct plim_error *err)
{
    int64_t id;
    if (!node || !node_is_whole(node, &id) || id < 0 || id > INT32_MAX)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: expected a token id", name,
                         node ? node->line : line);
    return list_add(list, id, name, err);
}

/* {"SpecialToken": {"id": "[CLS]"}} -> the ids special_tokens gives for it. */
static enum plim_status add_special(struct id_list *list, const struct node *spec, const struct node *piece,
                                    const char *name, struct plim_error *err)
{
    const struct node *id = node_get(piece, "id");
    const struct node *entry =
        id && id->kind == NODE_STRING
            ? node_get_n(node_get(spec, "special_tokens"), id->as.string.text, id->as.string.len)
            : NULL;
    const struct node *ids = node_get(entry, "ids");
    enum plim_status status = PLIM_OK;
    if (!ids || ids->kind != NODE_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: special token '%s' has no ids", name,
                         piece->line, node_string(id, "?"));
    for (size_t i = 0; i < node_count(ids) && status == PLIM_OK; i++)
        status = add_node(list, node_item(ids, i), ids->line, name, err);
    return status;
}

static bool is_sequence(const struct node *item, const char *id)
{
    return strcmp(node_string(node_path(item, "Sequence.id"), ""), id) == 0;
}

/* "pair": what stands around and between A and B. A form that is not A, then B, each once, is left unknown. */
static enum plim_status pair_template_build(struct postproc *p, const struct node *spec, const char *name,
                                            struct plim_error *err)
{
    const struct node *list = node_get(spec, "pair");
    struct pair_form *f = &p->pair;
    struct id_list *parts[] = {&f->before, &f->between, &f->after};
    enum plim_status status = PLIM_OK;
    size_t texts = 0;
    bool good = list && list->kind == NODE_LIST;
    f->second = -1;
    for (size_t i = 0; good && i < node_count(list) && status == PLIM_OK; i++) {
        const struct node *item = node_item(list, i), *special = node_get(item, "SpecialToken");
        int64_t type = node_int(node_get(special ? special : node_get(item, "Sequence"), "type_id"), 0);
        if (texts && type == 1 && f->second < 0) f->second = (int64_t)f->between.count;
        if (special)
            status = add_special(parts[texts], spec, special, name, err);
        else
            good = texts < 2 && is_sequence(item, texts++ ? "B" : "A");
    }
    f->known = good && texts == 2;
    return status;
}

static enum plim_status template_build(struct postproc *p, const struct node *spec, const char *name,
                                       struct plim_error *err)
{
    const struct node *single = node_get(spec, "single");
    enum plim_status status = PLIM_OK;
    int texts = 0;
    if (!single || single->kind != NODE_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: 'single': expected a list", name,
                         single ? single->line : spec->line);
    for (size_t i = 0; i < node_count(single) && status == PLIM_OK; i++) {
        const struct node *item = node_item(single, i), *special = node_get(item, "SpecialToken");
        if (special)
            status = add_special(texts ? &p->after : &p->before, spec, special, name, err);
        else if (is_sequence(item, "A"))
            texts++;
        else
            status =
                plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: expected a SpecialToken or Sequence A",
                          name, item->line);
    }
    if (status == PLIM_OK && texts != 1)
        status = plim_fail(err, PLIM_UNSUPPORTED,
                           "%s:%d: post_processor TemplateProcessing with the text %d times is not supported",
                           name, single->line, texts);
    return status == PLIM_OK ? pair_template_build(p, spec, name, err) : status;
}

/* ByteLevel adds no ids. */
static enum plim_status byte_level_build(struct postproc *p, const struct node *spec, const char *,
                                         struct plim_error *)
{
    p->trims = node_bool(node_get(spec, "trim_offsets"), true);
    p->prefix = node_bool(node_get(spec, "add_prefix_space"), true);
    return PLIM_OK;
}

/* BertProcessing and RobertaProcessing: "cls": [text, id], "sep": [text, id]. */
static enum plim_status pair_build(struct postproc *p, const struct node *spec, const char *name,
                                   struct plim_error *err)
{
    enum plim_status status =
        add_node(&p->before, node_item(node_get(spec, "cls"), 1), spec->line, name, err);
    if (status != PLIM_OK) return status;
    status = add_node(&p->after, node_item(node_get(spec, "sep"), 1), spec->line, name, err);
    if (status != PLIM_OK) return status;
    bool two = !strcmp(node_string(node_get(spec, "type"), ""), "RobertaProcessing");
    struct pair_form *f = &p->pair;
    f->known = true, f->second = two ? -1 : 1;
    status = list_add(&f->before, p->before.id[0], name, err);
    for (int i = 0; i < 1 + two && status == PLIM_OK; i++)
        status = list_add(&f->between, p->after.id[0], name, err);
    if (two) byte_level_build(p, spec, name, err);
    return status == PLIM_OK ? list_add(&f->after, p->after.id[0], name, err) : status;
}

/* inner's ids go inside outer's: before = outer + inner, after = inner + outer. The result is in `inner`. */
static enum plim_status wrap(struct postproc *inner, struct postproc *outer, const char *name,
                             struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < inner->before.count && status == PLIM_OK; i++)
        status = list_add(&outer->before, inner->before.id[i], name, err);
    for (size_t i = 0; i < outer->after.count && status == PLIM_OK; i++)
        status = list_add(&inner->after, outer->after.id[i], name, err);
    struct id_list before = inner->before;
    inner->before = outer->before;
    outer->before = before;
    if (outer->trims) inner->trims = true, inner->prefix = outer->prefix;
    if (!outer->pair.known) return status;
    struct pair_form pair = inner->pair;
    inner->pair = outer->pair, outer->pair = pair;
    inner->pair.known = !pair.known; /* of several that add ids to two texts none is taken */
    return status;
}

static enum plim_status sequence_build(struct postproc *p, const struct node *spec, const char *name,
                                       struct plim_error *err)
{
    const struct node *list = node_get(spec, "processors");
    enum plim_status status = PLIM_OK;
    if (!list || list->kind != NODE_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: 'processors': expected a list", name,
                         list ? list->line : spec->line);
    for (size_t i = 0; i < node_count(list) && status == PLIM_OK; i++) {
        struct postproc *next = NULL;
        status = postproc_build(node_item(list, i), name, &next, err);
        if (status == PLIM_OK && next) status = wrap(p, next, name, err);
        postproc_free(next);
    }
    return status;
}

static const struct {
    const char *type;
    enum plim_status (*build)(struct postproc *, const struct node *, const char *, struct plim_error *);
} types[] = {
    {"TemplateProcessing", template_build}, {"ByteLevel", byte_level_build}, {"BertProcessing", pair_build},
    {"RobertaProcessing", pair_build},      {"Sequence", sequence_build},
};

enum plim_status postproc_build(const struct node *spec, const char *name, struct postproc **out,
                                struct plim_error *err)
{
    *out = NULL;
    if (!spec || spec->kind == NODE_NULL) return PLIM_OK;
    const struct node *type = node_get(spec, "type");
    const char *text = node_string(type, NULL);
    if (!text)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: 'type': expected a text", name,
                         spec->line);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].type, text) != 0) continue;
        struct postproc *p = calloc(1, sizeof *p);
        if (!p) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the post-processor", name);
        enum plim_status status = types[i].build(p, spec, name, err);
        if (status == PLIM_OK)
            *out = p;
        else
            postproc_free(p);
        return status;
    }
    return plim_fail(err, PLIM_UNSUPPORTED, "%s:%d: post_processor type '%s' is not supported", name,
                     type->line, text);
}

void postproc_free(struct postproc *p)
{
    if (!p) return;
    free(p->before.id);
    free(p->after.id);
    free(p->pair.before.id);
    free(p->pair.between.id);
    free(p->pair.after.id);
    free(p);
}

void postproc_single(const struct postproc *p, const int32_t **before, size_t *nbefore, const int32_t **after,
                     size_t *nafter)
{
    *before = p ? p->before.id : NULL;
    *nbefore = p ? p->before.count : 0;
    *after = p ? p->after.id : NULL;
    *nafter = p ? p->after.count : 0;
}

bool postproc_pair(const struct postproc *p, struct pair_marks *out)
{
    if (!p || !p->pair.known) return false;
    const struct pair_form *f = &p->pair;
    *out = (struct pair_marks){f->before.id,     f->between.id,  f->after.id, f->before.count,
                               f->between.count, f->after.count, f->second};
    return true;
}

bool postproc_trims(const struct postproc *p, bool *prefix)
{
    *prefix = p && p->prefix;
    return p && p->trims;
}
