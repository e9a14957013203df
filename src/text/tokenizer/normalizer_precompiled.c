/* normalizer_precompiled.c - SentencePiece's character map, applied the way tokenizers does.
 *
 * The map is base64 of: the trie's bytes (u32), the trie (u32 units, little-endian), the replacements (UTF-8,
 * each ended by NUL). A unit has a label (bits 0-7 and 31), a flag that a value follows (8), and an offset from
 * which, xor the next byte, the next unit lies (bits 10-30, 8 bits further left when bit 9 is set). A value is
 * the place of a replacement.
 *
 * A grapheme of fewer than six bytes is replaced whole by what its *shortest* key that is a prefix of it says,
 * even when more follows in the grapheme. Otherwise its code points are looked up one by one. That is not what
 * SentencePiece does, but what models in this format were published with.
 *
 * The file is not trusted: every unit and every place is checked when it is used.
 */
#include "text/tokenizer/normalizer_part.h"
#include "text/unicode.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { GRAPHEME_WHOLE = 6 }; /* shorter ones are looked up whole */

struct precompiled_normalizer {
    struct normalizer base;
    uint32_t *unit;
    char *text; /* replacements */
    size_t units, text_len;
    bool plain[128]; /* ASCII that stays what it is when ASCII follows */
};

static uint32_t unit_label(uint32_t unit) { return unit & (1u << 31 | 0xff); }
static size_t unit_offset(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

/* The value of the shortest key that is a prefix of the text. */
static bool find_shortest(const struct precompiled_normalizer *p, const char *text, size_t len, size_t *value)
{
    if (!p->units) return false;
    size_t at = unit_offset(p->unit[0]);
    for (size_t i = 0; i < len && text[i]; i++) {
        at ^= (unsigned char)text[i];
        if (at >= p->units || unit_label(p->unit[at]) != (unsigned char)text[i]) return false;
        uint32_t unit = p->unit[at];
        at ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        if (at >= p->units) return false;
        *value = p->unit[at] & 0x7fffffff;
        return true;
    }
    return false;
}

/* What a text becomes; NULL when no key fits. A place inside a character would not be UTF-8: no key. */
static const char *transform(const struct precompiled_normalizer *p, const char *text, size_t len,
                             size_t *new_len)
{
    size_t place;
    if (!find_shortest(p, text, len, &place) || place > p->text_len) return NULL;
    if (((unsigned char)p->text[place] & 0xc0) == 0x80) return NULL;
    *new_len = strlen(p->text + place);
    return p->text + place;
}

static void run_grapheme(const struct precompiled_normalizer *p, const char *text, size_t len,
                         struct strbuf *out)
{
    size_t new_len;
    const char *made = len < GRAPHEME_WHOLE ? transform(p, text, len, &new_len) : NULL;
    if (made) {
        strbuf_addn(out, made, new_len);
        return;
    }
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        text_next(text, &at);
        made = transform(p, text + begin, at - begin, &new_len);
        if (made)
            strbuf_addn(out, made, new_len);
        else
            strbuf_addn(out, text + begin, at - begin);
    }
}

/* How many bytes from the beginning are plain ASCII with ASCII, or nothing, behind each. */
static size_t plain_prefix(const struct precompiled_normalizer *p, const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && (unsigned char)text[n] < 128 && p->plain[(unsigned char)text[n]]) n++;
    if (n && n < len && (unsigned char)text[n] >= 128) n--;
    return n;
}

static void precompiled_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                            struct strbuf *spare)
{
    (void)spare;
    const struct precompiled_normalizer *p = (const struct precompiled_normalizer *)n;
    for (size_t at = 0; at < len;) {
        size_t plain = plain_prefix(p, text + at, len - at);
        strbuf_addn(out, text + at, plain);
        at += plain;
        if (at == len) break;
        size_t whole = unicode_grapheme(text + at, len - at);
        run_grapheme(p, text + at, whole, out);
        at += whole;
    }
}

static bool precompiled_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    return plain_prefix((const struct precompiled_normalizer *)n, text, len) == len;
}

static void precompiled_release(struct normalizer *n)
{
    struct precompiled_normalizer *p = (struct precompiled_normalizer *)n;
    free(p->unit);
    free(p->text);
}

static const struct normalizer_ops precompiled_ops = {precompiled_run, precompiled_is_identity,
                                                      precompiled_release};

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Padded base64 to bytes; *out has room for 3 bytes in 4. False when it is malformed. */
static bool base64_decode(const char *text, size_t len, unsigned char *out, size_t *out_len)
{
    size_t pad = 0, n = 0;
    if (len % 4) return false;
    while (pad < 2 && pad < len && text[len - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t word = 0;
        size_t digits = i + 4 == len ? 4 - pad : 4;
        for (size_t j = 0; j < 4; j++) {
            int digit = j < digits ? base64_digit(text[i + j]) : 0;
            if (digit < 0) return false;
            word = word << 6 | (uint32_t)digit;
        }
        if (digits < 4 && word & (digits == 3 ? 0xffu : 0xffffu)) return false;
        for (size_t j = 0; j + 1 < digits; j++) out[n++] = (unsigned char)(word >> (16 - 8 * j));
    }
    *out_len = n;
    return true;
}

static uint32_t load_u32(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Blob to units and replacements. False: malformed. *no_memory: it was memory. */
static bool read_blob(struct precompiled_normalizer *p, const unsigned char *blob, size_t len,
                      bool *no_memory)
{
    *no_memory = false;
    if (len < 4 || load_u32(blob) / 4 > (len - 4) / 4) return false;
    p->units = load_u32(blob) / 4;
    const unsigned char *text = blob + 4 + 4 * p->units;
    p->text_len = len - 4 - 4 * p->units;
    if (utf8_valid_prefix((const char *)text, p->text_len) != p->text_len) return false;
    p->unit = malloc(4 * p->units + 4);
    p->text = malloc(p->text_len + 1);
    *no_memory = !p->unit || !p->text;
    if (*no_memory) return false;
    for (size_t i = 0; i < p->units; i++) p->unit[i] = load_u32(blob + 4 + 4 * i);
    memcpy(p->text, text, p->text_len);
    p->text[p->text_len] = '\0';
    return true;
}

static void find_plain(struct precompiled_normalizer *p)
{
    for (unsigned c = 0; c < 128; c++) {
        char text = (char)c;
        size_t len = 0;
        const char *made = transform(p, &text, 1, &len);
        p->plain[c] = c != '\r' && (!made || (len == 1 && made[0] == text));
    }
}

enum plim_status normalizer_precompiled_build(const struct node *spec, const char *name,
                                              struct normalizer **out, struct plim_error *err)
{
    const struct node *map = node_get(spec, "precompiled_charsmap");
    if (!map || map->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s:%d: normalizer Precompiled: 'precompiled_charsmap': expected a text", name,
                         map ? map->line : spec->line);
    enum plim_status status =
        normalizer_new(&precompiled_ops, sizeof(struct precompiled_normalizer), name, out, err);
    if (status != PLIM_OK) return status;
    size_t len = map->as.string.len, blob_len = 0;
    unsigned char *blob = malloc(len / 4 * 3 + 1);
    bool no_memory = !blob;
    bool good = blob && base64_decode(map->as.string.text, len, blob, &blob_len) &&
                read_blob((struct precompiled_normalizer *)*out, blob, blob_len, &no_memory);
    free(blob);
    if (good)
        find_plain((struct precompiled_normalizer *)*out);
    else if (no_memory)
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a character map of %zu bytes", name, len);
    else
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s:%d: normalizer Precompiled: the character map is malformed", name, map->line);
    return status;
}
