/* decoder_steps.c - what each kind of decoder does to the texts that pass through it. */
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/decoder_part.h"
#include "base/utf8.h"
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

static struct token_bytes item_of(const struct token_decoding *flow, size_t step)
{
    const struct strbuf *item = &flow->state[step].item;
    return (struct token_bytes){strbuf_text(item), item->len};
}

static const struct decoder_step *step_of(const struct token_decoding *flow, size_t step)
{
    return &flow->decoder->step[step];
}

static void pass(struct token_decoding *flow, size_t step, const char *bytes, size_t len)
{
    decoder_put(flow, step + 1, bytes, len);
    decoder_close(flow, step + 1);
}

/* --- ByteLevel -------------------------------------------------------------------------------------------- */

/* Bytes of the malformed sequence that begins here; *whole: how many a good one would have. */
static size_t malformed(const char *bytes, size_t len, size_t *whole)
{
    unsigned char lead = (unsigned char)bytes[0], second = len > 1 ? (unsigned char)bytes[1] : 0;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    size_t n = 1;
    *whole = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1;
    if (*whole > 1 && second >= low && second <= high)
        for (n = 2; n < *whole && n < len && ((unsigned char)bytes[n] & 0xc0) == 0x80;) n++;
    return n;
}

/* Puts the bytes as UTF-8; each maximal malformed subsequence becomes U+FFFD. A character that is cut off waits, unless
 * it is the end. How many bytes are done. */
static size_t put_lossy(struct token_decoding *flow, size_t step, const char *bytes, size_t len, bool end)
{
    size_t done = 0, whole;
    while (done < len) {
        size_t good = utf8_valid_prefix(bytes + done, len - done);
        decoder_put(flow, step + 1, bytes + done, good);
        done += good;
        if (done == len) break;
        size_t n = malformed(bytes + done, len - done, &whole);
        if (!end && done + n == len && n < whole) break;
        decoder_put(flow, step + 1, replacement, sizeof replacement - 1);
        done += n;
    }
    return done;
}

/* The byte a code point of the byte alphabet stands for, or -1. */
static int alphabet_byte(uint32_t point)
{
    if (point < 256) return byte_alphabet_point((unsigned char)point) == point ? (int)point : -1;
    if (point <= 256 + 32) return (int)point - 256;
    if (point <= 256 + 66) return (int)point - 256 - 33 + 127;
    return point == 256 + 67 ? 173 : -1;
}

bool decoder_add_alphabet(struct strbuf *out, struct token_bytes token)
{
    size_t before = out->len;
    for (size_t at = 0; at < token.len;) {
        uint32_t point = 0;
        size_t n = utf8_decode(token.text + at, token.len - at, &point);
        int byte = n ? alphabet_byte(point) : -1;
        if (byte < 0) {
            strbuf_truncate(out, before);
            return false;
        }
        strbuf_addc(out, (char)byte);
        at += n;
    }
    return true;
}

static void drop_front(struct strbuf *sb, size_t n)
{
    size_t left = sb->len - n;
    if (left) memmove(sb->data, sb->data + n, left);
    strbuf_truncate(sb, left);
}

void decoder_byte_level_close(struct token_decoding *flow, size_t step)
{
    struct strbuf *bytes = &flow->state[step].held;
    struct token_bytes token = item_of(flow, step);
    if (!decoder_add_alphabet(bytes, token)) strbuf_addn(bytes, token.text, token.len);
    flow->failed |= bytes->failed;
    drop_front(bytes, put_lossy(flow, step, strbuf_text(bytes), bytes->len, false));
}

/* All of it is one text. */
void decoder_byte_level_end(struct token_decoding *flow, size_t step)
{
    struct strbuf *bytes = &flow->state[step].held;
    put_lossy(flow, step, strbuf_text(bytes), bytes->len, true);
    decoder_close(flow, step + 1);
}

/* --- ByteFallback ----------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" -> 10; -1 when the token is not of that kind. A plus sign counts as no digit at all. */
int decoder_fallback_byte(struct token_bytes token)
{
    if (token.len != 6 || memcmp(token.text, "<0x", 3) != 0 || token.text[5] != '>') return -1;
    int high = token.text[3] == '+' ? 0 : hex_digit(token.text[3]), low = hex_digit(token.text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* A run of bytes is whole when something else follows: one bad byte spoils all of it, so none can go before. */
void decoder_byte_fallback_end(struct token_decoding *flow, size_t step)
{
    struct strbuf *bytes = &flow->state[step].held;
    if (!bytes->len) return;
    if (utf8_valid_prefix(bytes->data, bytes->len) == bytes->len)
        pass(flow, step, bytes->data, bytes->len);
    else
        for (size_t i = 0; i < bytes->len; i++) pass(flow, step, replacement, sizeof replacement - 1);
    strbuf_truncate(bytes, 0);
}

void decoder_byte_fallback_close(struct token_decoding *flow, size_t step)
{
    struct strbuf *bytes = &flow->state[step].held;
    struct token_bytes token = item_of(flow, step);
    int byte = decoder_fallback_byte(token);
    if (byte >= 0) {
        strbuf_addc(bytes, (char)byte);
        flow->failed |= bytes->failed;
        return;
    }
    decoder_byte_fallback_end(flow, step);
    pass(flow, step, token.text, token.len);
}

/* --- Metaspace -------------------------------------------------------------------------------------------- */

/* The replacement is a blank, but nothing in the first token when encoding put it there. */
void decoder_metaspace_close(struct token_decoding *flow, size_t step)
{
    const struct decoder_step *d = step_of(flow, step);
    struct token_bytes token = item_of(flow, step);
    bool blank = flow->state[step].count || !d->flag;
    size_t from = 0;
    for (size_t at = 0; at < token.len;) {
        bool hit = token.len - at >= d->len && memcmp(token.text + at, d->text, d->len) == 0;
        if (hit) {
            decoder_put(flow, step + 1, token.text + from, at - from);
            if (blank) decoder_put(flow, step + 1, " ", 1);
            from = at + d->len;
        }
        at += hit ? d->len : 1;
    }
    pass(flow, step, token.text + from, token.len - from);
}

/* --- WordPiece -------------------------------------------------------------------------------------------- */

static void replace_all(struct strbuf *text, struct strbuf *spare, const char *old, const char *made)
{
    struct text_replace r = {.pattern = (char *)(uintptr_t)old, .content = (char *)(uintptr_t)made};
    r.pattern_len = strlen(old), r.content_len = strlen(made);
    if (text_replace_is_identity(&r, strbuf_text(text), text->len)) return;
    strbuf_clear(spare);
    text_replace_run(&r, strbuf_text(text), text->len, spare);
    struct strbuf swap = *text;
    *text = *spare;
    *spare = swap;
    text->failed |= spare->failed;
}

/* Blanks before punctuation and English endings go, one rule after the other. */
void decoder_clean_up(struct strbuf *text, struct strbuf *spare)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        replace_all(text, spare, rules[i][0], rules[i][1]);
}

void decoder_wordpiece_close(struct token_decoding *flow, size_t step)
{
    const struct decoder_step *d = step_of(flow, step);
    struct token_bytes token = item_of(flow, step);
    struct strbuf *text = &flow->spare[0];
    bool first = flow->state[step].count == 0;
    bool inner = token.len >= d->len && memcmp(token.text, d->text, d->len) == 0;
    size_t skip = !first && inner ? d->len : 0;
    strbuf_clear(text);
    if (!first && !inner) strbuf_addc(text, ' ');
    strbuf_addn(text, token.text + skip, token.len - skip);
    if (d->flag && memchr(strbuf_text(text), ' ', text->len)) decoder_clean_up(text, &flow->spare[1]);
    flow->failed |= text->failed;
    pass(flow, step, strbuf_text(text), text->len);
}

/* --- BPEDecoder ------------------------------------------------------------------------------------------- */

/* The suffix is a blank, but nothing in the last token: each waits until it is known not to be that. */
static void pass_bpe(struct token_decoding *flow, size_t step, bool last)
{
    const struct decoder_step *d = step_of(flow, step);
    const struct strbuf *held = &flow->state[step].held;
    struct strbuf *text = &flow->spare[0];
    char blank[] = " ";
    struct text_replace r = {
        .pattern = d->text, .pattern_len = d->len, .content = blank, .content_len = !last};
    strbuf_clear(text);
    if (!held->len && !d->len && !last) strbuf_addc(text, ' ');
    text_replace_run(&r, strbuf_text(held), held->len, text);
    flow->failed |= text->failed;
    pass(flow, step, strbuf_text(text), text->len);
}

void decoder_bpe_close(struct token_decoding *flow, size_t step)
{
    struct decoder_state *state = &flow->state[step];
    if (state->waits) pass_bpe(flow, step, false);
    strbuf_truncate(&state->held, 0);
    strbuf_addn(&state->held, strbuf_text(&state->item), state->item.len);
    flow->failed |= state->held.failed;
    state->waits = true;
}

void decoder_bpe_end(struct token_decoding *flow, size_t step)
{
    if (flow->state[step].waits) pass_bpe(flow, step, true);
}

/* --- Fuse ------------------------------------------------------------------------------------------------- */

void decoder_fuse_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len)
{
    decoder_put(flow, step + 1, bytes, len);
}

void decoder_fuse_close(struct token_decoding *flow, size_t step) { (void)flow, (void)step; }

void decoder_fuse_end(struct token_decoding *flow, size_t step) { decoder_close(flow, step + 1); }

/* --- Strip ------------------------------------------------------------------------------------------------ */

/* Takes the content off the beginning of what is there; false: more bytes must say. */
static bool strip_start(const struct decoder_step *d, struct decoder_state *state)
{
    while (!state->inside && state->dropped < d->start) {
        if (state->item.len < d->len) return false;
        if (memcmp(state->item.data, d->text, d->len) != 0) break;
        drop_front(&state->item, d->len);
        state->dropped++;
    }
    return state->inside = true;
}

/* All but what may be taken off the end goes on. */
void decoder_strip_put(struct token_decoding *flow, size_t step, const char *bytes, size_t len)
{
    const struct decoder_step *d = step_of(flow, step);
    struct decoder_state *state = &flow->state[step];
    strbuf_addn(&state->item, bytes, len);
    if (state->item.failed || !strip_start(d, state)) return;
    size_t keep = d->stop > state->item.len / d->len ? state->item.len : d->stop * d->len;
    size_t go = state->item.len - keep;
    while (go && go < state->item.len && ((unsigned char)state->item.data[go] & 0xc0) == 0x80) go--;
    if (!go) return;
    decoder_put(flow, step + 1, state->item.data, go);
    drop_front(&state->item, go);
}

void decoder_strip_close(struct token_decoding *flow, size_t step)
{
    const struct decoder_step *d = step_of(flow, step);
    struct decoder_state *state = &flow->state[step];
    struct token_bytes t = item_of(flow, step);
    for (size_t n = 0;
         n < d->stop && t.len >= d->len && memcmp(t.text + t.len - d->len, d->text, d->len) == 0; n++)
        t.len -= d->len;
    pass(flow, step, t.text, t.len);
    state->dropped = 0, state->inside = false;
}

/* --- Replace ---------------------------------------------------------------------------------------------- */

void decoder_replace_close(struct token_decoding *flow, size_t step)
{
    struct token_bytes token = item_of(flow, step);
    struct strbuf *text = &flow->spare[0];
    size_t left = decoder_left(flow, step);
    strbuf_clear(text);
    text->most = left < SIZE_MAX ? left + 1 : 0; /* one too many is enough to know */
    text_replace_run(&step_of(flow, step)->replace, token.text, token.len, text);
    flow->failed |= text->failed, flow->full |= text->full;
    text->most = 0;
    pass(flow, step, strbuf_text(text), text->len);
}
