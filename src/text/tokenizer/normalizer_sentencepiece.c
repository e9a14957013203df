/* normalizer_sentencepiece.c - what SentencePiece does to a text before its model sees it.
 *
 * At every place a user-defined symbol stays as it is; else the longest key of the character map is replaced; else one
 * character is copied. Blanks become U+2581. "remove_extra_whitespaces" leaves one of several blanks and none at either end.
 * The blank that SentencePiece puts before a text is a step of the pre-tokenizer, which knows where a text begins.
 */
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/char_map.h"
#include "text/tokenizer/normalizer_part.h"
#include <string.h>

static const char mark[] = "\xe2\x96\x81"; /* U+2581 */

struct sentencepiece_normalizer {
    struct normalizer base;
    struct char_map map;
    struct added_tokens *symbols; /* user-defined; NULL: none */
    bool trim;                    /* remove_extra_whitespaces */
    const char *blank;            /* what a blank becomes */
    bool plain[128];              /* ASCII that stays what it is when ASCII follows; no blank */
};

/* The place of a text that is being read, and the next user-defined symbol. */
struct reading {
    const char *text;
    size_t len, at;
    struct added_search search;
    struct added_hit hit; /* start == len: none follows */
};

static void find_symbol(const struct sentencepiece_normalizer *n, struct reading *r)
{
    if (!n->symbols || (r->hit.start >= r->at && r->hit.end)) return;
    r->search.at = r->at;
    if (!added_next(n->symbols, ADDED_RAW, &r->search, &r->hit))
        r->hit = (struct added_hit){r->len, r->len + 1, -1};
}

/* Returns the next piece of the normalized text and advances r->at. */
static const char *next_piece(const struct sentencepiece_normalizer *n, struct reading *r, size_t *len)
{
    const char *from = r->text + r->at;
    size_t taken = 0;
    find_symbol(n, r);
    if (n->symbols && r->hit.start == r->at) {
        *len = r->hit.end - r->hit.start;
        r->at = r->hit.end;
        return from;
    }
    const char *made = char_map_longest(&n->map, from, r->len - r->at, &taken, len);
    if (made) {
        r->at += taken;
        return made;
    }
    size_t begin = r->at;
    text_next(r->text, &r->at);
    *len = r->at - begin;
    return from;
}

static void put_piece(const struct sentencepiece_normalizer *n, const char *piece, size_t len,
                      struct strbuf *out)
{
    const char *end = piece + len, *blank;
    while ((blank = memchr(piece, ' ', (size_t)(end - piece)))) {
        strbuf_addn(out, piece, (size_t)(blank - piece));
        strbuf_add(out, n->blank);
        piece = blank + 1;
    }
    strbuf_addn(out, piece, (size_t)(end - piece));
}

/* How many bytes from the beginning surely stay as they are. */
static size_t plain_prefix(const struct sentencepiece_normalizer *n, const char *text, size_t len)
{
    size_t i = 0;
    while (i < len && (unsigned char)text[i] < 128 && n->plain[(unsigned char)text[i]]) i++;
    if (i && i < len && (unsigned char)text[i] >= 128) i--;
    return i;
}

static void trim_end(const struct sentencepiece_normalizer *n, struct strbuf *out)
{
    size_t blank = strlen(n->blank);
    while (out->len >= blank && !memcmp(out->data + out->len - blank, n->blank, blank))
        strbuf_truncate(out, out->len - blank);
}

static void sentencepiece_run(const struct normalizer *base, const char *text, size_t len, struct strbuf *out,
                              struct strbuf *)
{
    const struct sentencepiece_normalizer *n = (const struct sentencepiece_normalizer *)base;
    struct reading r = {.text = text, .len = len, .search = {.text = text, .len = len}};
    bool after_blank = n->trim;
    while (r.at < len) {
        find_symbol(n, &r);
        size_t plain = plain_prefix(n, text + r.at, (n->symbols ? r.hit.start : len) - r.at), piece_len = 0;
        if (plain) {
            strbuf_addn(out, text + r.at, plain);
            r.at += plain, after_blank = false;
            continue;
        }
        const char *piece = next_piece(n, &r, &piece_len);
        while (after_blank && piece_len && *piece == ' ') piece++, piece_len--;
        if (!piece_len) continue;
        put_piece(n, piece, piece_len, out);
        after_blank = n->trim && piece[piece_len - 1] == ' ';
    }
    if (n->trim && !out->failed) trim_end(n, out);
}

static bool sentencepiece_is_identity(const struct normalizer *base, const char *text, size_t len)
{
    const struct sentencepiece_normalizer *n = (const struct sentencepiece_normalizer *)base;
    return !n->symbols && plain_prefix(n, text, len) == len;
}

static void sentencepiece_release(struct normalizer *base)
{
    struct sentencepiece_normalizer *n = (struct sentencepiece_normalizer *)base;
    char_map_release(&n->map);
    added_tokens_free(n->symbols);
}

/* A character is plain when no key of two ASCII characters begins with it, and none that changes it. */
static void find_plain(struct sentencepiece_normalizer *n)
{
    for (unsigned c = 1; c < 128; c++) {
        char text[2] = {(char)c, 0};
        size_t taken = 0, len = 0;
        const char *made = char_map_longest(&n->map, text, 1, &taken, &len);
        bool plain = c != ' ' && (!made || (len == 1 && *made == text[0]));
        for (unsigned next = 1; next < 128 && plain; next++) {
            text[1] = (char)next, taken = 0;
            plain = !char_map_begins(&n->map, text, 2);
        }
        n->plain[c] = plain;
    }
}

static enum plim_status sentencepiece_read(struct normalizer *base, const struct node *spec, const char *name,
                                           struct plim_error *err)
{
    const struct node *map = node_get(spec, "precompiled_charsmap"),
                      *symbols = node_get(spec, "user_defined");
    struct sentencepiece_normalizer *n = (struct sentencepiece_normalizer *)base;
    enum plim_status status = PLIM_OK;
    n->trim = node_bool(node_get(spec, "remove_extra_whitespaces"), true);
    n->blank = node_bool(node_get(spec, "escape_whitespaces"), true) ? mark : " ";
    if (map && map->kind == NODE_STRING) status = char_map_read(&n->map, map, name, err);
    if (status == PLIM_OK && node_count(symbols))
        status = added_tokens_build(symbols, name, NULL, 0, NULL, NULL, &n->symbols, err);
    if (status == PLIM_OK) find_plain(n);
    return status;
}

const struct normalizer_ops normalizer_sentencepiece = {
    sentencepiece_run, sentencepiece_is_identity, sentencepiece_release,
    .size = sizeof(struct sentencepiece_normalizer), .read = sentencepiece_read};
