/* decoder_steps.c - what each kind of decoder does to a list of texts. */
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/decoder_part.h"
#include "base/utf8.h"
#include <string.h>

/* Appends bytes as UTF-8; each maximal malformed subsequence becomes U+FFFD. */
static void add_lossy(struct strbuf *out, const char *bytes, size_t len)
{
    while (len) {
        size_t good = utf8_valid_prefix(bytes, len);
        strbuf_addn(out, bytes, good);
        bytes += good, len -= good;
        if (!len) return;
        unsigned char lead = (unsigned char)bytes[0], second = len > 1 ? (unsigned char)bytes[1] : 0;
        size_t whole = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 1, n = 1;
        unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (whole > 1 && second >= low && second <= high)
            for (n = 2; n < whole && n < len && ((unsigned char)bytes[n] & 0xc0) == 0x80;) n++;
        strbuf_add(out, "\xef\xbf\xbd");
        bytes += n, len -= n;
    }
}

/* The byte a code point of the byte alphabet stands for, or -1. */
static int alphabet_byte(uint32_t point)
{
    if (point < 256) return byte_alphabet_point((unsigned char)point) == point ? (int)point : -1;
    if (point <= 256 + 32) return (int)point - 256;
    if (point <= 256 + 66) return (int)point - 256 - 33 + 127;
    return point == 256 + 67 ? 173 : -1;
}

static bool add_alphabet(struct strbuf *out, struct token_text token)
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

void decoder_byte_level(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    (void)step;
    struct strbuf bytes = STRBUF_INIT;
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        if (!add_alphabet(&bytes, token)) strbuf_addn(&bytes, token.text, token.len);
    }
    add_lossy(&out->text, strbuf_text(&bytes), bytes.len);
    if (bytes.failed) out->text.failed = true;
    text_list_close(out);
    strbuf_release(&bytes);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" -> 10; -1 when the token is not of that kind. A plus sign counts as no digit at all. */
static int fallback_byte(struct token_text token)
{
    if (token.len != 6 || memcmp(token.text, "<0x", 3) != 0 || token.text[5] != '>') return -1;
    int high = token.text[3] == '+' ? 0 : hex_digit(token.text[3]), low = hex_digit(token.text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

static void fallback_flush(struct strbuf *bytes, struct text_list *out)
{
    if (!bytes->len) return;
    if (utf8_valid_prefix(bytes->data, bytes->len) == bytes->len) {
        strbuf_addn(&out->text, bytes->data, bytes->len);
        text_list_close(out);
    } else {
        for (size_t i = 0; i < bytes->len; i++) {
            strbuf_add(&out->text, "\xef\xbf\xbd");
            text_list_close(out);
        }
    }
    strbuf_truncate(bytes, 0);
}

void decoder_byte_fallback(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    (void)step;
    struct strbuf bytes = STRBUF_INIT;
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        int byte = fallback_byte(token);
        if (byte >= 0) {
            strbuf_addc(&bytes, (char)byte);
            continue;
        }
        fallback_flush(&bytes, out);
        strbuf_addn(&out->text, token.text, token.len);
        text_list_close(out);
    }
    fallback_flush(&bytes, out);
    if (bytes.failed) out->text.failed = true;
    strbuf_release(&bytes);
}

/* The replacement is a blank, but nothing in the first token when encoding put it there. */
void decoder_metaspace(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        for (size_t at = 0; at < token.len;) {
            bool hit = token.len - at >= step->len && memcmp(token.text + at, step->text, step->len) == 0;
            if (!hit)
                strbuf_addc(&out->text, token.text[at]);
            else if (i || !step->flag)
                strbuf_addc(&out->text, ' ');
            at += hit ? step->len : 1;
        }
        text_list_close(out);
    }
}

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
static void clean_up(struct strbuf *text, struct strbuf *spare)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        replace_all(text, spare, rules[i][0], rules[i][1]);
}

void decoder_wordpiece(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    struct strbuf text = STRBUF_INIT, spare = STRBUF_INIT;
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        bool inner = token.len >= step->len && memcmp(token.text, step->text, step->len) == 0;
        size_t skip = i && inner ? step->len : 0;
        strbuf_truncate(&text, 0);
        if (i && !inner) strbuf_addc(&text, ' ');
        strbuf_addn(&text, token.text + skip, token.len - skip);
        if (step->flag && memchr(strbuf_text(&text), ' ', text.len)) clean_up(&text, &spare);
        strbuf_addn(&out->text, strbuf_text(&text), text.len);
        text_list_close(out);
    }
    if (text.failed) out->text.failed = true;
    strbuf_release(&text);
    strbuf_release(&spare);
}

/* The suffix is a blank, but nothing in the last token. */
void decoder_bpe(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    struct text_replace r = {.pattern = step->text, .pattern_len = step->len};
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        bool last = i + 1 == in->count;
        char blank[] = " ";
        r.content = blank, r.content_len = !last;
        if (!token.len && !step->len && !last) strbuf_addc(&out->text, ' ');
        text_replace_run(&r, token.text, token.len, &out->text);
        text_list_close(out);
    }
}

void decoder_fuse(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    (void)step;
    strbuf_addn(&out->text, strbuf_text(&in->text), in->text.len);
    text_list_close(out);
}

void decoder_strip(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        struct token_text t = text_list_item(in, i);
        for (size_t n = 0;
             n < step->start && t.len >= step->len && memcmp(t.text, step->text, step->len) == 0; n++)
            t.text += step->len, t.len -= step->len;
        for (size_t n = 0; n < step->stop && t.len >= step->len &&
                           memcmp(t.text + t.len - step->len, step->text, step->len) == 0;
             n++)
            t.len -= step->len;
        strbuf_addn(&out->text, t.text, t.len);
        text_list_close(out);
    }
}

void decoder_replace(const struct decoder_step *step, const struct text_list *in, struct text_list *out)
{
    for (size_t i = 0; i < in->count; i++) {
        struct token_text token = text_list_item(in, i);
        text_replace_run(&step->replace, token.text, token.len, &out->text);
        text_list_close(out);
    }
}
