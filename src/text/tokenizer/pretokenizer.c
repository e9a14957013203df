/* pretokenizer.c - building the steps from tokenizer.json. */
#include "text/tokenizer/pretokenizer.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

struct pretok_read {
    struct pretokenizer *p;
    const char *name;
    struct plim_error *err;
    int depth;
};

static enum plim_status no_memory(const struct pretok_read *r)
{
    return plim_fail(r->err, PLIM_NO_MEMORY, "%s: no memory for the pre-tokenizer", r->name);
}

static enum plim_status bad(const struct pretok_read *r, const struct node *where, const char *what)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: pre_tokenizer: %s", r->name, where->line, what);
}

static enum plim_status keep_string(struct pretok_read *r, struct pretok_step *s, const char *text,
                                    size_t len)
{
    s->string = malloc(len + 1);
    if (!s->string) return no_memory(r);
    memcpy(s->string, text, len);
    s->string[len] = '\0';
    s->string_len = len;
    return PLIM_OK;
}

static enum plim_status read_behavior(struct pretok_read *r, const struct node *spec, struct pretok_step *s)
{
    static const char *const names[] = {
        [PRETOK_REMOVED] = "Removed",
        [PRETOK_ISOLATED] = "Isolated",
        [PRETOK_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [PRETOK_MERGED_WITH_NEXT] = "MergedWithNext",
        [PRETOK_CONTIGUOUS] = "Contiguous",
    };
    const struct node *node = node_get(spec, "behavior");
    const char *text = node_string(node, NULL);
    if (!text) return bad(r, node ? node : spec, "expected a behavior");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], text) == 0) {
            s->behavior = (enum pretok_behavior)i;
            return PLIM_OK;
        }
    return plim_fail(r->err, PLIM_UNSUPPORTED, "%s:%d: pre_tokenizer behavior '%s' is not supported", r->name,
                     node->line, text);
}

/* One character in `text`, which is kept. */
static enum plim_status read_character(struct pretok_read *r, const struct node *spec, const char *key,
                                       const char *fallback, struct pretok_step *s)
{
    const struct node *node = node_get(spec, key);
    const char *text = node && node->kind == NODE_STRING ? node->as.string.text : fallback;
    size_t len = node && node->kind == NODE_STRING ? node->as.string.len : strlen(fallback);
    uint32_t point;
    if (len == 0 || utf8_decode(text, len, &point) != len)
        return bad(r, node ? node : spec, "expected one character");
    return keep_string(r, s, text, len);
}

#define SPACE       .run = pretok_split, .is_cut = unicode_is_space, .behavior = PRETOK_REMOVED
#define PUNCTUATION .run = pretok_split, .is_cut = unicode_is_bert_punctuation, .behavior = PRETOK_ISOLATED

/* --- the types --------------------------------------------------------------------------------------------- */

static enum plim_status read_byte_level(struct pretok_read *, const struct node *spec, struct pretok_step *s)
{
    s->prefix = node_bool(node_get(spec, "add_prefix_space"), true) ? PRETOK_ALWAYS : PRETOK_NEVER;
    s->split = node_bool(node_get(spec, "use_regex"), true);
    return PLIM_OK;
}

static enum plim_status read_regex(struct pretok_read *r, const struct node *node, struct pretok_step *s)
{
    s->scan = scan_of(node->as.string.text, node->as.string.len);
    if (s->scan) return PLIM_OK;
    enum plim_status status = regex_compile(node->as.string.text, node->as.string.len, &s->regex, r->err);
    if (status != PLIM_OK) plim_error_prefix(r->err, "%s:%d: pre_tokenizer Split", r->name, node->line);
    return status;
}

static enum plim_status read_split(struct pretok_read *r, const struct node *spec, struct pretok_step *s)
{
    const struct node *pattern = node_get(spec, "pattern");
    const struct node *string = node_get(pattern, "String"), *regex = node_get(pattern, "Regex");
    s->invert = node_bool(node_get(spec, "invert"), false);
    enum plim_status status = read_behavior(r, spec, s);
    if (status != PLIM_OK) return status;
    if (string && string->kind == NODE_STRING && string->as.string.len)
        status = keep_string(r, s, string->as.string.text, string->as.string.len);
    else if (string && string->kind == NODE_STRING)
        status = read_regex(r, string, s);
    else if (regex && regex->kind == NODE_STRING)
        status = read_regex(r, regex, s);
    else
        status = bad(r, spec, "expected a pattern with String or Regex");
    bool all = s->behavior == PRETOK_REMOVED ? s->invert : s->behavior == PRETOK_ISOLATED;
    s->run = s->scan && all ? pretok_tiles : pretok_split;
    return status;
}

static enum plim_status read_digits(struct pretok_read *, const struct node *spec, struct pretok_step *s)
{
    s->behavior = node_bool(node_get(spec, "individual_digits"), false) ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS;
    return PLIM_OK;
}

static enum plim_status read_metaspace(struct pretok_read *r, const struct node *spec, struct pretok_step *s)
{
    static const char *const names[] = {"always", "first", "never"};
    const struct node *scheme = node_get(spec, "prepend_scheme"),
                      *prefix = node_get(spec, "add_prefix_space");
    const char *text = node_string(scheme, "always");
    size_t i = 0;
    while (i < 3 && strcmp(names[i], text) != 0) i++;
    if (i == 3) return bad(r, scheme, "prepend_scheme: write always, first or never");
    s->prefix = (enum pretok_prefix)i;
    s->split = node_bool(node_get(spec, "split"), true);
    if (s->prefix != PRETOK_NEVER && !node_bool(prefix, true))
        return bad(r, prefix, "add_prefix_space is false but prepend_scheme is not never");
    return read_character(r, spec, "replacement", "\xe2\x96\x81", s);
}

static enum plim_status read_punctuation(struct pretok_read *r, const struct node *spec,
                                         struct pretok_step *s)
{
    return node_get(spec, "behavior") ? read_behavior(r, spec, s) : PLIM_OK;
}

/* White space is removed by one step, punctuation set apart by the next. */
static enum plim_status read_bert(struct pretok_read *r, const struct node *spec, struct pretok_step *)
{
    if (r->p->count == PRETOK_STEPS_MOST) return bad(r, spec, "more than 16 steps");
    r->p->step[r->p->count++] = (struct pretok_step){PUNCTUATION};
    return PLIM_OK;
}

static enum plim_status read_delimiter(struct pretok_read *r, const struct node *spec, struct pretok_step *s)
{
    return read_character(r, spec, "delimiter", "", s);
}

static enum plim_status read_fixed(struct pretok_read *r, const struct node *spec, struct pretok_step *s)
{
    int64_t length = node_int(node_get(spec, "length"), 5);
    if (length < 1) return bad(r, spec, "length: expected a number from 1");
    s->length = (size_t)length;
    return PLIM_OK;
}

/* A blank before, or behind, each text between special tokens; "first": only where the input begins. */
static enum plim_status read_dummy_prefix(struct pretok_read *r, const struct node *spec,
                                          struct pretok_step *s)
{
    s->prefix = node_bool(node_get(spec, "first"), false) ? PRETOK_FIRST : PRETOK_ALWAYS;
    s->behind = node_bool(node_get(spec, "behind"), false);
    return read_character(r, spec, "content", "\xe2\x96\x81", s);
}

static const struct {
    const char *type;
    struct pretok_step step; /* as it is before its part of tokenizer.json is read */
    enum plim_status (*read)(struct pretok_read *, const struct node *,
                             struct pretok_step *); /* may be NULL */
} types[] = {
    {"ByteLevel", {.run = pretok_byte_level}, read_byte_level},
    {"Split", {.run = pretok_split}, read_split},
    {"Digits", {.run = pretok_split, .is_cut = unicode_is_numeric}, read_digits},
    {"Metaspace", {.run = pretok_metaspace}, read_metaspace},
    {"Whitespace", {.run = pretok_words}, NULL},
    {"WhitespaceSplit", {SPACE}, NULL},
    {"Punctuation", {PUNCTUATION}, read_punctuation},
    {"BertPreTokenizer", {SPACE}, read_bert},
    {"CharDelimiterSplit", {.run = pretok_split, .behavior = PRETOK_REMOVED}, read_delimiter},
    {"FixedLength", {.run = pretok_fixed}, read_fixed},
    {"SentencePiece", {.run = pretok_dummy_prefix}, read_dummy_prefix}, /* our own: sentencepiece.h */
};

static enum plim_status read_any(struct pretok_read *r, const struct node *spec);

static enum plim_status read_sequence(struct pretok_read *r, const struct node *spec)
{
    const struct node *list = node_get(spec, "pretokenizers");
    if (!list || list->kind != NODE_LIST) return bad(r, spec, "expected a list of pretokenizers");
    if (r->depth == 8) return bad(r, spec, "more than 8 sequences in one another");
    enum plim_status status = PLIM_OK;
    r->depth++;
    for (size_t i = 0; i < node_count(list) && status == PLIM_OK; i++)
        status = read_any(r, node_item(list, i));
    r->depth--;
    return status;
}

static enum plim_status read_any(struct pretok_read *r, const struct node *spec)
{
    const char *type = node_string(node_get(spec, "type"), NULL);
    if (!type) return bad(r, spec, "expected a map with a type");
    if (strcmp(type, "Sequence") == 0) return read_sequence(r, spec);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(type, types[i].type) != 0) continue;
        if (r->p->count == PRETOK_STEPS_MOST) return bad(r, spec, "more than 16 steps");
        struct pretok_step *s = &r->p->step[r->p->count++];
        *s = types[i].step;
        return types[i].read ? types[i].read(r, spec, s) : PLIM_OK;
    }
    return plim_fail(r->err, PLIM_UNSUPPORTED, "%s:%d: pre_tokenizer type '%s' is not supported", r->name,
                     spec->line, type);
}

enum plim_status pretokenizer_build(const struct node *spec, const char *name, struct pretokenizer **out,
                                    struct plim_error *err)
{
    *out = NULL;
    if (!spec || spec->kind == NODE_NULL) return PLIM_OK;
    struct pretok_read r = {.p = calloc(1, sizeof *r.p), .name = name, .err = err};
    if (!r.p) return no_memory(&r);
    enum plim_status status = read_any(&r, spec);
    if (status == PLIM_OK)
        *out = r.p;
    else
        pretokenizer_free(r.p);
    return status;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->count; i++) {
        regex_free(p->step[i].regex);
        free(p->step[i].string);
    }
    free(p);
}

size_t pretokenizer_bytes(const struct pretokenizer *p)
{
    if (!p) return 0;
    size_t bytes = sizeof *p;
    for (size_t i = 0; i < p->count; i++)
        bytes += (p->step[i].regex ? regex_bytes(p->step[i].regex) : 0) + p->step[i].string_len;
    return bytes;
}

bool pretokenizer_ends_in_bytes(const struct pretokenizer *p)
{
    return p && p->count && p->step[p->count - 1].run == pretok_byte_level;
}

void pretokenizer_pass_raw(struct pretokenizer *p)
{
    struct pretok_step *last = &p->step[p->count - 1];
    last->raw = true;
    if (last->prefix == PRETOK_NEVER && last->split) { /* nothing is left but GPT-2's pattern */
        last->scan = scan_gpt2;
        last->run = pretok_tiles;
    }
    if (last->prefix == PRETOK_NEVER && !last->split) p->count--; /* nothing at all */
}

bool pretokenizer_keeps_all(const struct pretokenizer *p)
{
    for (size_t i = 0; p && i < p->count; i++) {
        const struct pretok_step *s = &p->step[i];
        if (s->run == pretok_words || (s->run == pretok_split && s->behavior == PRETOK_REMOVED)) return false;
    }
    return true;
}

bool pretokenizer_asks_start(const struct pretokenizer *p)
{
    for (size_t i = 0; p && i < p->count; i++)
        if (p->step[i].run == pretok_metaspace && p->step[i].prefix == PRETOK_FIRST) return true;
    return false;
}

void pretok_run_init(struct pretok_run *run, struct scratch_limit *limit)
{
    memset(run, 0, sizeof *run);
    run->limit = limit;
}

void pretok_run_release(struct pretok_run *run)
{
    for (size_t i = 0; i < PRETOK_STEPS_MOST; i++) {
        strbuf_release(&run->step[i].text);
        strbuf_release(&run->step[i].piece);
        regex_run_release(&run->step[i].regex);
    }
}

void pretok_run_trim(struct pretok_run *run, size_t keep)
{
    for (size_t i = 0; i < PRETOK_STEPS_MOST; i++) {
        if (run->step[i].text.cap > keep) strbuf_release(&run->step[i].text);
        if (run->step[i].piece.cap > keep) strbuf_release(&run->step[i].piece);
        const struct regex_run *regex = &run->step[i].regex;
        if (regex->cap > keep / 32 || regex->seen_cap > keep / 8) regex_run_release(&run->step[i].regex);
    }
}

bool pretokenizer_run(const struct pretokenizer *p, struct pretok_run *run, const char *text, size_t len,
                      bool at_start)
{
    static const struct pretokenizer nothing = {.count = 0};
    struct pretok_text all = {text, len, at_start};
    return pretok_pass(p ? p : &nothing, run, (size_t)-1, all);
}
