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
};

struct normalizer {
    const struct normalizer_ops *ops;
};

/* Zeroed memory for a normalizer of `size` bytes. */
enum plim_status normalizer_new(const struct normalizer_ops *ops, size_t size, const char *name,
                                struct normalizer **out, struct plim_error *err);

/* A copy of the text of a string node in malloc'd memory. PLIM_BAD_INPUT "...: 'key': expected a text". */
enum plim_status normalizer_text(const struct node *spec, const char *key, const char *name, char **text,
                                 size_t *len, struct plim_error *err);

/* Builders; on errors the caller frees what *out holds. */
enum plim_status normalizer_form_build(const struct node *spec, const char *name, struct normalizer **out,
                                       struct plim_error *err);
enum plim_status normalizer_lower_build(const struct node *spec, const char *name, struct normalizer **out,
                                        struct plim_error *err);
enum plim_status normalizer_accents_build(const struct node *spec, const char *name, struct normalizer **out,
                                          struct plim_error *err);
enum plim_status normalizer_strip_build(const struct node *spec, const char *name, struct normalizer **out,
                                        struct plim_error *err);
enum plim_status normalizer_prepend_build(const struct node *spec, const char *name, struct normalizer **out,
                                          struct plim_error *err);
enum plim_status normalizer_replace_build(const struct node *spec, const char *name, struct normalizer **out,
                                          struct plim_error *err);
enum plim_status normalizer_nmt_build(const struct node *spec, const char *name, struct normalizer **out,
                                      struct plim_error *err);
enum plim_status normalizer_bert_build(const struct node *spec, const char *name, struct normalizer **out,
                                       struct plim_error *err);
enum plim_status normalizer_precompiled_build(const struct node *spec, const char *name,
                                              struct normalizer **out, struct plim_error *err);

enum plim_status normalizer_sentencepiece_build(const struct node *spec, const char *name,
                                                struct normalizer **out, struct plim_error *err);

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
