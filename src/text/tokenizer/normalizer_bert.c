/* normalizer_bert.c - BertNormalizer: clean, put blanks around ideographs, strip accents, lower case.
 *
 * Plain ASCII goes through one table. Other text takes up to three passes, in the order above: the first copies
 * what stays, the second is NFD, the third drops marks and lowers.
 */
#include "text/tokenizer/normalizer_part.h"
#include "text/unicode.h"
#include <string.h>

struct bert_normalizer {
    struct normalizer base;
    bool clean, ideographs, accents, lower;
    unsigned char ascii[128]; /* what each becomes; DROPPED for nothing */
};

enum { DROPPED = 0xff };

static void ascii_run(const struct bert_normalizer *bert, const char *text, size_t len, struct strbuf *out)
{
    if (!strbuf_reserve(out, len)) return;
    char *to = out->data + out->len;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = bert->ascii[(unsigned char)text[i] & 127];
        *to = (char)c;
        to += c != DROPPED;
    }
    out->len = (size_t)(to - out->data);
    *to = '\0';
}

/* Both passes take a block of text, need at most two bytes for one, and write without asking for each. */
typedef void bert_pass(const struct bert_normalizer *, const char *text, size_t len, struct strbuf *out);

static void clean_run(const struct bert_normalizer *bert, const char *text, size_t len, struct strbuf *out)
{
    if (!strbuf_reserve(out, 2 * len)) return;
    char *to = out->data + out->len;
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        uint32_t point = text_next(text, &at);
        uint64_t row = unicode_row(point);
        if (bert->clean && row >> UNICODE_FLAG_BERT_CONTROL & 1) continue;
        bool ideograph = bert->ideographs && unicode_is_bert_ideograph(point);
        if (ideograph) *to++ = ' ';
        if (bert->clean && row >> UNICODE_FLAG_BERT_SPACE & 1)
            *to++ = ' ';
        else
            while (begin < at) *to++ = text[begin++];
        if (ideograph) *to++ = ' ';
    }
    out->len = (size_t)(to - out->data);
    *to = '\0';
}

static void accents_and_case(const struct bert_normalizer *bert, const char *text, size_t len,
                             struct strbuf *out)
{
    if (!strbuf_reserve(out, 2 * len)) return;
    char *to = out->data + out->len;
    for (size_t at = 0, begin = 0; at < len; begin = at) {
        uint32_t point = text_next(text, &at);
        if (bert->accents && unicode_is_bert_accent(point)) continue;
        if (!bert->lower)
            while (begin < at) *to++ = text[begin++];
        else if (point < 0x80)
            *to++ = (char)(point - 'A' < 26 ? point + 32 : point);
        else
            to = text_put_lower(to, point);
    }
    out->len = (size_t)(to - out->data);
    *to = '\0';
}

static void in_blocks(bert_pass *pass, const struct bert_normalizer *bert, const char *text, size_t len,
                      struct strbuf *out)
{
    for (size_t at = 0, end; at < len; at = end) {
        end = text_block(text, at, len);
        pass(bert, text + at, end - at, out);
    }
}

static void bert_run(const struct normalizer *n, const char *text, size_t len, struct strbuf *out,
                     struct strbuf *spare)
{
    const struct bert_normalizer *bert = (const struct bert_normalizer *)n;
    if (text_is_ascii(text, len)) {
        ascii_run(bert, text, len, out);
        return;
    }
    in_blocks(clean_run, bert, text, len, out);
    if (!bert->accents && !bert->lower) return;
    bool failed = out->failed;
    strbuf_clear(spare);
    if (bert->accents)
        unicode_normalize(UNICODE_NFD, strbuf_text(out), out->len, spare);
    else
        strbuf_addn(spare, strbuf_text(out), out->len);
    strbuf_clear(out);
    in_blocks(accents_and_case, bert, strbuf_text(spare), spare->len, out);
    if (failed || spare->failed) out->failed = true;
}

static bool bert_is_identity(const struct normalizer *n, const char *text, size_t len)
{
    const struct bert_normalizer *bert = (const struct bert_normalizer *)n;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 128 || bert->ascii[c] != c) return false;
    }
    return true;
}

static enum plim_status bert_read(struct normalizer *n, const struct node *spec, const char *,
                                  struct plim_error *)
{
    struct bert_normalizer *bert = (struct bert_normalizer *)n;
    bert->clean = node_bool(node_get(spec, "clean_text"), true);
    bert->ideographs = node_bool(node_get(spec, "handle_chinese_chars"), true);
    bert->lower = node_bool(node_get(spec, "lowercase"), true);
    bert->accents = node_bool(node_get(spec, "strip_accents"), bert->lower);
    for (unsigned c = 0; c < 128; c++) {
        bert->ascii[c] = (unsigned char)(bert->lower && c - 'A' < 26 ? c + 32 : c);
        if (bert->clean && unicode_is_bert_space(c)) bert->ascii[c] = ' ';
        if (bert->clean && unicode_is_bert_control(c)) bert->ascii[c] = DROPPED;
    }
    return PLIM_OK;
}

const struct normalizer_ops normalizer_bert = {bert_run, bert_is_identity,
                                               .size = sizeof(struct bert_normalizer), .read = bert_read};
