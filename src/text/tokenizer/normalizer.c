/* normalizer.c - building normalizers by name, and running them in sequence.
 *
 * A sequence keeps its steps in one flat list. Each step that has something to do writes into the buffer that
 * does not hold its input; at the end the buffers change places if the result is in the wrong one.
 */
#include "text/tokenizer/normalizer_part.h"
#include "text/unicode.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 };

/* --- helpers of all normalizers --------------------------------------------------------------------------- */

enum plim_status normalizer_text(const struct node *spec, const char *key, const char *name, char **text,
                                 size_t *len, struct plim_error *err)
{
    const struct node *value = node_get(spec, key);
    if (!value || value->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: normalizer: '%s': expected a text", name,
                         value ? value->line : spec->line, key);
    *len = value->as.string.len;
    *text = malloc(*len + 1);
    if (!*text) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a normalizer", name);
    memcpy(*text, value->as.string.text, *len);
    (*text)[*len] = '\0';
    return PLIM_OK;
}

bool text_is_ascii(const char *text, size_t len)
{
    uint64_t word, seen = 0;
    size_t at = 0;
    for (; at + 8 <= len; at += 8) {
        memcpy(&word, text + at, 8);
        seen |= word;
    }
    for (; at < len; at++) seen |= (unsigned char)text[at];
    return !(seen & 0x8080808080808080u);
}

size_t text_block(const char *text, size_t at, size_t len)
{
    if (len - at <= BLOCK) return len;
    at += BLOCK;
    while (((unsigned char)text[at] & 0xc0) == 0x80) at--;
    return at;
}

char *text_put_lower(char *to, uint32_t point)
{
    uint32_t lower[UNICODE_LOWER_MOST];
    size_t count = unicode_lower(point, lower);
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        size_t n = utf8_encode(lower[i], bytes);
        memcpy(to, bytes, n);
        to += n;
    }
    return to;
}

enum plim_status normalizer_fail(size_t len, struct plim_error *err)
{
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "the normalizer makes more than %zu bytes of a text of %zu, the most it may: %d times its length "
        "and %zu",
        normalizer_most(len), len, NORMALIZER_TIMES, NORMALIZER_MORE);
}

/* --- Sequence --------------------------------------------------------------------------------------------- */

struct sequence_normalizer {
    struct normalizer base;
    struct normalizer **steps;
    size_t count, cap;
};

static void sequence_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                         struct strbuf *spare)
{
    const struct sequence_normalizer *s = (const struct sequence_normalizer *)n;
    struct strbuf third = {.most = out->most}, *held = NULL; /* held: the buffer that holds the text so far */
    bool failed = false, full = false;
    for (size_t i = 0; i < s->count; i++) {
        const struct normalizer *step = s->steps[i];
        const char *from = held ? strbuf_text(held) : text;
        size_t from_len = held ? held->len : len;
        if (step->ops->is_identity(step, from, from_len)) continue;
        struct strbuf *to = held == out ? spare : out;
        strbuf_clear(to);
        step->ops->run(step, from, from_len, to, &third);
        failed |= to->failed, full |= to->full;
        held = to;
        if (failed) break;
    }
    if (!held) strbuf_clear(out), strbuf_addn(out, text, len);
    if (held == spare) {
        struct strbuf swap = *out;
        *out = *spare;
        *spare = swap;
    }
    out->failed |= failed, out->full |= full;
    strbuf_release(&third);
}

static bool sequence_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    const struct sequence_normalizer *s = (const struct sequence_normalizer *)n;
    for (size_t i = 0; i < s->count; i++)
        if (!s->steps[i]->ops->is_identity(s->steps[i], text, len)) return false;
    return true;
}

static void sequence_release(struct normalizer *n)
{
    struct sequence_normalizer *s = (struct sequence_normalizer *)n;
    for (size_t i = 0; i < s->count; i++) normalizer_free(s->steps[i]);
    free(s->steps);
}

static const struct normalizer_ops sequence_ops;

static bool sequence_add(struct sequence_normalizer *s, struct normalizer *step)
{
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        struct normalizer **steps = realloc(s->steps, cap * sizeof *steps);
        if (!steps) return false;
        s->steps = steps;
        s->cap = cap;
    }
    s->steps[s->count++] = step;
    return true;
}

/* Takes over `step`; a sequence inside gives its own steps instead. */
static bool sequence_adopt(struct sequence_normalizer *s, struct normalizer *step)
{
    bool whole = true;
    if (!step) return true;
    if (step->ops != &sequence_ops) {
        whole = sequence_add(s, step);
        if (!whole) normalizer_free(step);
        return whole;
    }
    struct sequence_normalizer *inner = (struct sequence_normalizer *)step;
    size_t moved = 0;
    while (moved < inner->count && whole) whole = sequence_add(s, inner->steps[moved]), moved += whole;
    memmove(inner->steps, inner->steps + moved, (inner->count - moved) * sizeof *inner->steps);
    inner->count -= moved;
    normalizer_free(step);
    return whole;
}

static enum plim_status sequence_read(struct normalizer *n, const struct node *spec, const char *name,
                                      struct plim_error *err)
{
    const struct node *list = node_get(spec, "normalizers");
    if (!list || list->kind != NODE_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: normalizer Sequence: 'normalizers': expected a list",
                         name, list ? list->line : spec->line);
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < node_count(list) && status == PLIM_OK; i++) {
        struct normalizer *step = NULL;
        status = normalizer_build(node_item(list, i), name, &step, err);
        if (status == PLIM_OK && !sequence_adopt((struct sequence_normalizer *)n, step))
            status = plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a normalizer", name);
    }
    return status;
}

static const struct normalizer_ops sequence_ops = {sequence_run, sequence_is_identity, sequence_release,
                                                   .size = sizeof(struct sequence_normalizer),
                                                   .read = sequence_read};

/* --- the interface ---------------------------------------------------------------------------------------- */

static const struct {
    const char *type;
    const struct normalizer_ops *ops;
} types[] = {
    {"NFC", &normalizer_form},
    {"NFD", &normalizer_form},
    {"NFKC", &normalizer_form},
    {"NFKD", &normalizer_form},
    {"Lowercase", &normalizer_lower},
    {"StripAccents", &normalizer_accents},
    {"Strip", &normalizer_strip},
    {"Prepend", &normalizer_prepend},
    {"Nmt", &normalizer_nmt},
    {"Replace", &normalizer_replace},
    {"BertNormalizer", &normalizer_bert},
    {"Precompiled", &normalizer_precompiled},
    {"SentencePiece", &normalizer_sentencepiece}, /* our own: sentencepiece.h */
    {"Sequence", &sequence_ops},
};

enum plim_status normalizer_build(const struct node *spec, const char *name, struct normalizer **out,
                                  struct plim_error *err)
{
    *out = NULL;
    if (!spec || spec->kind == NODE_NULL) return PLIM_OK;
    const struct node *type = node_get(spec, "type");
    const char *text = node_string(type, NULL);
    if (!text)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: normalizer: 'type': expected a text", name, spec->line);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].type, text) != 0) continue;
        const struct normalizer_ops *ops = types[i].ops;
        *out = calloc(1, ops->size);
        if (!*out) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a normalizer", name);
        (*out)->ops = ops;
        enum plim_status status = ops->read ? ops->read(*out, spec, name, err) : PLIM_OK;
        if (status != PLIM_OK) normalizer_free(*out), *out = NULL;
        return status;
    }
    return plim_fail(err, PLIM_UNSUPPORTED, "%s:%d: normalizer type '%s' is not supported", name, type->line,
                     text);
}

void normalizer_free(struct normalizer *n)
{
    if (!n) return;
    if (n->ops->release) n->ops->release(n);
    free(n);
}

void normalizer_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                    struct strbuf *spare)
{
    strbuf_clear(out);
    if (!n)
        strbuf_addn(out, text, len);
    else
        n->ops->run(n, text, len, out, spare);
}

size_t normalizer_shrinks(const struct normalizer *n)
{
    return !n ? 1 : n->ops->shrinks ? n->ops->shrinks(n) : 0;
}

bool normalizer_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    return !n || n->ops->is_identity(n, text, len);
}
