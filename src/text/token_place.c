/* token_place.c - see token_place.h. */
#include "text/token_place.h"
#include "base/utf8.h"

#include <string.h>

static bool goes_on(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

/* Characters that begin among these bytes. */
static size_t begins(const char *bytes, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += !goes_on(bytes[i]);
    return n;
}

struct token_place token_place_behind(const char *text, size_t len)
{
    size_t n = begins(text, len);
    return (struct token_place){.made = n, .begun = n};
}

/* Where a token begins before which something was held. `came`: the text it has brought; `made`: where that begins. */
static size_t place_behind_held(const struct token_place *p, const struct strbuf *piece, const char *came,
                                size_t len, size_t made, bool holds)
{
    const char *bytes = strbuf_text(piece);
    bool ends = piece->len && len >= piece->len && !memcmp(came + len - piece->len, bytes, piece->len) &&
                utf8_valid_prefix(bytes, piece->len) == piece->len;
    if (!holds && ends) return p->made - begins(bytes, piece->len);
    bool inside = piece->len && goes_on(*bytes) && p->begun > made;
    return inside ? p->begun - 1 : p->begun;
}

enum plim_status token_place_add(struct token_place *p, struct token_text *text, int32_t token,
                                 struct strbuf *out, size_t *at, struct plim_error *err)
{
    bool held = token_text_holds(text);
    size_t before = out->len, made = p->made;
    STRBUF_AUTO piece = STRBUF_INIT;
    enum plim_status status = token_text_add(text, token, out, err);
    bool holds = token_text_holds(text);
    if (status == PLIM_OK && (held || holds)) status = token_text_piece(text, token, &piece, err);
    if (status == PLIM_OK) {
        const char *came = strbuf_text(out) + before;
        size_t len = out->len - before;
        p->made += begins(came, len);
        *at = held ? place_behind_held(p, &piece, came, len, made, holds) : made;
        if (*at < p->last) *at = p->last;
        p->last = *at;
        p->begun += begins(strbuf_text(&piece), piece.len);
        if (!holds || p->begun < p->made) p->begun = p->made;
    }
    return status;
}
