/* normalizer_part.h - shared by the normalizers' source files. Other code uses part.h.
 *
 * Every normalizer is a struct that begins with a struct normalizer; its ops say how it runs. A Sequence is flattened when
 * it is built, so it never contains another.
 */
#pragma once

#include "text/tokenizer/part.h"
#include "text/tokenizer/text.h"

struct normalizer_ops {
    /* Appends to `out`, which is empty. `spare` is scratch with any content; text is in neither. */
    void (*run)(const struct normalizer *, const char *text, size_t len, struct strbuf *out,
                struct strbuf *spare);
    /* True if the text surely needs no change. */
    bool (*is_identity)(const struct normalizer *, const char *text, size_t len);
    void (*release)(struct normalizer *); /* frees its members; may be NULL */
    /* Maximum input bytes per output byte; NULL: unlimited. */
    size_t (*shrinks)(const struct normalizer *);
    size_t size; /* of its struct */
    /* Fills in a zeroed one from its part of tokenizer.json; NULL: there is nothing to read. */
    enum plim_status (*read)(struct normalizer *n, const struct node *spec, const char *name,
                             struct plim_error *err);
};

struct normalizer {
    const struct normalizer_ops *ops;
};

/* A copy of the text of a string node in malloc'd memory. PLIM_BAD_INPUT "...: 'key': expected a text". */
enum plim_status normalizer_text(const struct node *spec, const char *key, const char *name, char **text,
                                 size_t *len, struct plim_error *err);

extern const struct normalizer_ops normalizer_form, normalizer_lower, normalizer_accents, normalizer_strip,
    normalizer_prepend, normalizer_replace, normalizer_nmt, normalizer_bert, normalizer_precompiled,
    normalizer_sentencepiece;

/* True if every byte is below 0x80. */
bool text_is_ascii(const char *text, size_t len);
/* The next code point; advances *at. */
static inline uint32_t text_next(const char *text, size_t *at)
{
    size_t n = 0;
    uint32_t point = text_point(text + *at, &n);
    *at += n;
    return point;
}

/* The end of the next few KiB of a text, between two characters. Writers that reserve for the worst case do
 * so block by block, so that they reserve little more than they use. */
size_t text_block(const char *text, size_t at, size_t len);

/* Appends `point` in lower case and returns the end. Needs 2 bytes of room per byte of `point`. */
char *text_put_lower(char *to, uint32_t point);
