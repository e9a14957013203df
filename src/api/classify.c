/* classify.c - plim_classify of plimsoll/text.h. */
#include "api/embedder_part.h"
#include "data/record.h"

#include <string.h>

/* The answers of one call, written while they come. */
struct labels_out {
    const struct classifier *classifier;
    enum aggregation aggregation;
    int64_t top;
    struct json_writer json;
};

static enum plim_status write_entities(void *arg, const struct entity_list *list, struct plim_error *err)
{
    struct labels_out *out = arg;
    json_begin_array(&out->json, NULL);
    for (size_t i = 0; i < list->count; i++) classifier_write_entity(list, i, out->aggregation, &out->json);
    json_end_array(&out->json);
    return strbuf_status(out->json.out, err);
}

static enum plim_status write_scores(void *arg, const float *scores, struct plim_error *err)
{
    struct labels_out *out = arg;
    classifier_write_labels(out->classifier, scores, out->top, NULL, &out->json);
    return strbuf_status(out->json.out, err);
}

/* The place of a name in a list; NULL is the first. -1: it is not there. */
static int index_of(const char *const *names, const char *name)
{
    for (int i = 0; name && names[i]; i++)
        if (!strcmp(names[i], name)) return i;
    return name ? -1 : 0;
}

static enum plim_status read_options(const struct plim_classify_options *o, const struct classifier *c,
                                     struct labelling_how *how, struct plim_error *err)
{
    const struct caller me = {NULL, "plim_classify", true};
    int aggregation = index_of(aggregation_names, o->aggregation);
    int function = index_of(label_function_names, o->function);
    bool tokens = classifier_of_tokens(c);
    if (aggregation < 0)
        return caller_refuse(&me, "aggregation", err, "'%s'; write none, simple, first, average or max",
                             o->aggregation);
    if (function < 0)
        return caller_refuse(&me, "function", err, "'%s'; write default, sigmoid, softmax or none",
                             o->function);
    if (o->top < 0 || o->stride < 0)
        return caller_refuse(&me, o->top < 0 ? "top" : "stride", err, "write 0 or more");
    const char *wrong = tokens ? (o->top     ? "top"
                                  : function ? "function"
                                             : NULL)
                               : (aggregation ? "aggregation"
                                  : o->stride ? "stride"
                                              : NULL);
    if (wrong)
        return caller_refuse(&me, wrong, err, "for labels of %s; this model labels %s",
                             tokens ? "whole texts" : "tokens", tokens ? "tokens" : "whole texts");
    if (o->stride && !aggregation)
        return caller_refuse(&me, "stride", err, "needs an aggregation: simple, first, average or max");
    how->aggregation = (enum aggregation)aggregation, how->function = (enum label_function)function;
    how->stride = o->stride ? o->stride : -1, how->truncate = !o->stride;
    return PLIM_OK;
}

/* A text that loses its end need not be read beyond what memory is planned for. */
static size_t length_of(const char *text, bool truncate)
{
    size_t len = text ? strlen(text) : 0;
    return truncate && len > CLASSIFY_LONGEST ? text_cut(text, CLASSIFY_LONGEST) : len;
}

static enum plim_status add_texts(struct labelling *l, const struct labelling_how *how,
                                  const char *const *texts, const char *const *pairs, size_t count,
                                  struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    labelling_begin(l, how);
    for (size_t i = 0; i < count && status == PLIM_OK; i++) {
        const char *pair = pairs ? pairs[i] : NULL;
        if (!texts[i]) return plim_fail(err, PLIM_BAD_INPUT, "text %zu is NULL", i + 1);
        struct label_input in = {texts[i], pair, length_of(texts[i], how->truncate),
                                 length_of(pair, how->truncate)};
        status = labelling_add(l, &in, err);
        if (status == PLIM_BAD_INPUT || status == PLIM_NO_FIT) plim_error_prefix(err, "text %zu", i + 1);
    }
    return status == PLIM_OK ? labelling_end(l, err) : status;
}

enum plim_status plim_classify(struct plim_embedder *e, const char *const *texts, const char *const *pairs,
                               size_t count, const struct plim_classify_options *options, char **json,
                               struct plim_error *err)
{
    static const char me[] = "plim_classify";
    struct plim_error unheard;
    struct plim_classify_options o;
    struct strbuf text = STRBUF_INIT;
    if (!err) err = &unheard;
    if (!handle_is(e, HANDLE_EMBEDDER, me, err)) return PLIM_BAD_INPUT;
    if (!e->labelling) return plim_fail(err, PLIM_BAD_INPUT, "%s: open the model with options.labels", me);
    if ((count && !texts) || !json) return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    *json = NULL;
    struct labels_out out = {.classifier = labelling_classifier(e->labelling)};
    struct labelling_how how = {.entities = write_entities, .scores = write_scores, .arg = &out};
    enum plim_status status = options_take(&o, sizeof o, options, me, err);
    if (status == PLIM_OK) status = read_options(&o, out.classifier, &how, err);
    if (status != PLIM_OK) return status;
    out.aggregation = how.aggregation, out.top = o.top;
    json_writer_init(&out.json, &text, 0);
    json_begin_array(&out.json, NULL);
    status = add_texts(e->labelling, &how, texts, pairs, count, err);
    json_end_array(&out.json);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", me);
    if (status == PLIM_OK && !(*json = text_give(&text)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", me);
    strbuf_release(&text);
    return status;
}
