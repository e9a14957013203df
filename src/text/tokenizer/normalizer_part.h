/* normalizer_part.h - what the normalizers' files share. Outside of them only part.h is used.
 *
 * Every normalizer is one struct that begins with a struct normalizer; its ops say how it runs. A Sequence is
 * flattened when it is built, so run is never called on one from inside another.
 */
#ifndef PLIM_TEXT_TOKENIZER_NORMALIZER_PART_H
#define PLIM_TEXT_TOKENIZER_NORMALIZER_PART_H

#include "text/tokenizer/part.h"
#include "text/tokenizer/text.h"

struct normalizer_ops {
    /* Appends to `out`, which is empty. `spare` is scratch in any state; text lies in neither. */
    void (*run)(const struct normalizer *, const char *text, size_t len, struct strbuf *out,
                struct strbuf *spare);
    /* Surely nothing to do? */
    bool (*is_identity)(const struct normalizer *, const char *text, size_t len);
    void (*release)(struct normalizer *); /* what it holds beside itself; may be NULL */
    /* Bytes of a text that become one, at most; NULL: any number. */
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

/* Is every byte below 0x80? */
bool text_is_ascii(const char *text, size_t len);
/* The next code point; *at moves on. */
static inline uint32_t text_next(const char *text, size_t *at)
{
    size_t n = 0;
    uint32_t point = text_point(text + *at, &n);
    *at += n;
    return point;
}

/* The end of the next few KiB of a text, between two characters. Writers that ask for the most a text can become do it
 * block by block, so that what they ask for stays near to what they use. */
size_t text_block(const char *text, size_t at, size_t len);

/* Appends what `point` is in lower case; returns behind it. Needs 2 bytes of room for each byte of `point`. */
char *text_put_lower(char *to, uint32_t point);

#endif
