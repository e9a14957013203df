/* normalizer_simple.c - the normalizers of a few lines: normal forms, Lowercase, StripAccents, Strip, Prepend,
 * Replace, Nmt. Each is a struct, what it does, when it surely does nothing, and how it is built.
 */
#include "text/tokenizer/normalizer_part.h"
#include "text/tokenizer/text_replace.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

/* --- NFC, NFD, NFKC, NFKD --------------------------------------------------------------------------------- */

struct form_normalizer {
    struct normalizer base;
    enum unicode_form form;
};

static void form_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                     struct strbuf *)
{
    unicode_normalize(((const struct form_normalizer *)n)->form, text, len, out);
}

static bool form_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    enum unicode_form form = ((const struct form_normalizer *)n)->form;
    if (text_is_ascii(text, len)) return true;
    for (size_t at = 0; at < len;)
        if (unicode_form_touches(form, text_next(text, &at))) return false;
    return true;
}

/* A composed character has at least a third of the bytes of its parts; marks that stay are as long as they were. */
static size_t form_shrinks(const struct normalizer *n)
{
    return ((const struct form_normalizer *)n)->form == UNICODE_NFC ? 4 : 0;
}

static enum plim_status form_read(struct normalizer *n, const struct node *spec, const char *,
                                  struct plim_error *)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(node_string(node_get(spec, "type"), ""), names[i]) == 0)
            ((struct form_normalizer *)n)->form = (enum unicode_form)i;
    return PLIM_OK;
}

const struct normalizer_ops normalizer_form = {
    form_run, form_is_identity, NULL, form_shrinks, sizeof(struct form_normalizer), form_read};

/* --- Lowercase -------------------------------------------------------------------------------------------- */

static void lower_block(const char *text, size_t len, struct strbuf *out)
{
    if (!strbuf_reserve(out, 2 * len)) return;
    char *to = out->data + out->len;
    for (size_t at = 0; at < len;) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0x80) {
            *to++ = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
            at++;
        } else {
            to = text_put_lower(to, text_next(text, &at));
        }
    }
    out->len = (size_t)(to - out->data);
    *to = '\0';
}

static void lower_run(const struct normalizer *, const char *text, size_t len, struct strbuf *out,
                      struct strbuf *)
{
    for (size_t at = 0, end; at < len; at = end) {
        end = text_block(text, at, len);
        lower_block(text + at, end - at, out);
    }
}

static bool lower_is_identity(const struct normalizer *, const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        unsigned char c = (unsigned char)text[at];
        if (c < 0x80) {
            if (c >= 'A' && c <= 'Z') return false;
            at++;
            continue;
        }
        uint32_t lower[UNICODE_LOWER_MOST], point = text_next(text, &at);
        if (unicode_lower(point, lower) != 1 || lower[0] != point) return false;
    }
    return true;
}

const struct normalizer_ops normalizer_lower = {lower_run, lower_is_identity,
                                                .size = sizeof(struct normalizer)};

/* --- StripAccents ----------------------------------------------------------------------------------------- */

static void accents_run(const struct normalizer *, const char *text, size_t len, struct strbuf *out,
                        struct strbuf *)
{
    for (size_t at = 0, begin = 0; at < len; begin = at)
        if (!unicode_is_accent(text_next(text, &at))) strbuf_addn(out, text + begin, at - begin);
}

static bool accents_is_identity(const struct normalizer *, const char *text, size_t len)
{
    if (text_is_ascii(text, len)) return true;
    for (size_t at = 0; at < len;)
        if (unicode_is_accent(text_next(text, &at))) return false;
    return true;
}

const struct normalizer_ops normalizer_accents = {accents_run, accents_is_identity,
                                                  .size = sizeof(struct normalizer)};

/* --- Strip ------------------------------------------------------------------------------------------------ */

struct strip_normalizer {
    struct normalizer base;
    bool left, right;
};

static size_t strip_begin(const struct strip_normalizer *strip, const char *text, size_t len)
{
    size_t begin = 0, at = 0;
    while (strip->left && at < len && unicode_is_space(text_next(text, &at))) begin = at;
    return begin;
}

static size_t strip_end(const struct strip_normalizer *strip, const char *text, size_t begin, size_t len)
{
    size_t end = len;
    while (strip->right && end > begin) {
        size_t start = end - 1;
        while (start > begin && ((unsigned char)text[start] & 0xc0) == 0x80) start--;
        size_t at = start;
        if (!unicode_is_space(text_next(text, &at))) break;
        end = start;
    }
    return end;
}

static void strip_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                      struct strbuf *)
{
    const struct strip_normalizer *strip = (const struct strip_normalizer *)n;
    size_t begin = strip_begin(strip, text, len);
    strbuf_addn(out, text + begin, strip_end(strip, text, begin, len) - begin);
}

static bool strip_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    const struct strip_normalizer *strip = (const struct strip_normalizer *)n;
    return strip_begin(strip, text, len) == 0 && strip_end(strip, text, 0, len) == len;
}

static enum plim_status strip_read(struct normalizer *n, const struct node *spec, const char *,
                                   struct plim_error *)
{
    struct strip_normalizer *strip = (struct strip_normalizer *)n;
    strip->left = node_bool(node_get(spec, "strip_left"), true);
    strip->right = node_bool(node_get(spec, "strip_right"), true);
    return PLIM_OK;
}

const struct normalizer_ops normalizer_strip = {strip_run, strip_is_identity,
                                                .size = sizeof(struct strip_normalizer), .read = strip_read};

/* --- Prepend ---------------------------------------------------------------------------------------------- */

struct prepend_normalizer {
    struct normalizer base;
    char *text;
    size_t len;
};

static void prepend_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                        struct strbuf *)
{
    const struct prepend_normalizer *prepend = (const struct prepend_normalizer *)n;
    if (len) strbuf_addn(out, prepend->text, prepend->len);
    strbuf_addn(out, text, len);
}

static bool prepend_is_identity(const struct normalizer *n, const char *, size_t len)
{
    return len == 0 || ((const struct prepend_normalizer *)n)->len == 0;
}

static void prepend_release(struct normalizer *n) { free(((struct prepend_normalizer *)n)->text); }

static enum plim_status prepend_read(struct normalizer *n, const struct node *spec, const char *name,
                                     struct plim_error *err)
{
    struct prepend_normalizer *prepend = (struct prepend_normalizer *)n;
    return normalizer_text(spec, "prepend", name, &prepend->text, &prepend->len, err);
}

const struct normalizer_ops normalizer_prepend = {prepend_run, prepend_is_identity, prepend_release,
                                                  .size = sizeof(struct prepend_normalizer),
                                                  .read = prepend_read};

/* --- Replace ---------------------------------------------------------------------------------------------- */

struct replace_normalizer {
    struct normalizer base;
    struct text_replace replace;
};

static void replace_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                        struct strbuf *)
{
    text_replace_run(&((const struct replace_normalizer *)n)->replace, text, len, out);
}

static bool replace_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    return text_replace_is_identity(&((const struct replace_normalizer *)n)->replace, text, len);
}

static void replace_release(struct normalizer *n)
{
    text_replace_release(&((struct replace_normalizer *)n)->replace);
}

static enum plim_status replace_read(struct normalizer *n, const struct node *spec, const char *name,
                                     struct plim_error *err)
{
    return text_replace_read(&((struct replace_normalizer *)n)->replace, spec, "normalizer", name, err);
}

const struct normalizer_ops normalizer_replace = {replace_run, replace_is_identity, replace_release,
                                                  .size = sizeof(struct replace_normalizer),
                                                  .read = replace_read};

/* --- Nmt -------------------------------------------------------------------------------------------------- */

/* Maps a code point to itself, to a blank, or to 0 for nothing. */
static uint32_t nmt_map(uint32_t point)
{
    static const uint32_t blanks[] = {0x9, 0xa, 0xc, 0xd, 0x1680, 0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd};
    for (size_t i = 0; i < sizeof blanks / sizeof blanks[0]; i++)
        if (point == blanks[i]) return ' ';
    if (point >= 0x200b && point <= 0x200f) return ' ';
    if ((point > 0 && point < 0x20) || point == 0x7f || point == 0x8f || point == 0x9f) return 0;
    return point;
}

static void nmt_run(const struct normalizer *, const char *text, size_t len, struct strbuf *out,
                    struct strbuf *)
{
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        uint32_t point = text_next(text, &at), mapped = nmt_map(point);
        if (mapped == point)
            strbuf_addn(out, text + begin, at - begin);
        else if (mapped)
            strbuf_addc(out, (char)mapped);
    }
}

static bool nmt_is_identity(const struct normalizer *, const char *text, size_t len)
{
    for (size_t at = 0; at < len;) {
        uint32_t point = text_next(text, &at);
        if (nmt_map(point) != point) return false;
    }
    return true;
}

const struct normalizer_ops normalizer_nmt = {nmt_run, nmt_is_identity, .size = sizeof(struct normalizer)};
