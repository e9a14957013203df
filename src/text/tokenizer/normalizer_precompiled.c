/* normalizer_precompiled.c - SentencePiece's character map (char_map.h), applied the way tokenizers does.
 *
 * A grapheme of fewer than six bytes is replaced whole by what its *shortest* key that is a prefix of it says,
 * even when more follows in the grapheme. Otherwise its code points are looked up one by one. That is not what
 * SentencePiece does, but what models in this format were published with.
 */
#include "text/tokenizer/char_map.h"
#include "text/tokenizer/normalizer_part.h"
#include "text/unicode.h"

enum { GRAPHEME_WHOLE = 6 }; /* shorter ones are looked up whole */

struct precompiled_normalizer {
    struct normalizer base;
    struct char_map map;
    bool plain[128]; /* ASCII that stays what it is when ASCII follows */
};

static void run_grapheme(const struct precompiled_normalizer *p, const char *text, size_t len,
                         struct strbuf *out)
{
    size_t new_len;
    const char *made = len < GRAPHEME_WHOLE ? char_map_shortest(&p->map, text, len, &new_len) : NULL;
    if (made) {
        strbuf_addn(out, made, new_len);
        return;
    }
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        text_next(text, &at);
        made = char_map_shortest(&p->map, text + begin, at - begin, &new_len);
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
                            struct strbuf *)
{
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
    char_map_release(&((struct precompiled_normalizer *)n)->map);
}

static void find_plain(struct precompiled_normalizer *p)
{
    for (unsigned c = 0; c < 128; c++) {
        char text = (char)c;
        size_t len = 0;
        const char *made = char_map_shortest(&p->map, &text, 1, &len);
        p->plain[c] = c != '\r' && (!made || (len == 1 && made[0] == text));
    }
}

static enum plim_status precompiled_read(struct normalizer *n, const struct node *spec, const char *name,
                                         struct plim_error *err)
{
    struct precompiled_normalizer *p = (struct precompiled_normalizer *)n;
    const struct node *map = node_get(spec, "precompiled_charsmap");
    if (!map || map->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s:%d: normalizer Precompiled: 'precompiled_charsmap': expected a text", name,
                         map ? map->line : spec->line);
    enum plim_status status = char_map_read(&p->map, map, name, err);
    if (status == PLIM_OK) find_plain(p);
    return status;
}

const struct normalizer_ops normalizer_precompiled = {
    precompiled_run, precompiled_is_identity, precompiled_release,
    .size = sizeof(struct precompiled_normalizer), .read = precompiled_read};
