/* model_bpe_read.c - a BPE model from tokenizer.json, and what can be proved about its merges. */
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/model_bpe.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char word_mark[] = "\xe2\x96\x81";
enum { WORD_MARK = sizeof word_mark - 1 };

struct bpe_read {
    const struct node *spec;
    const char *name;
    const struct token_vocab *vocab;
    struct model_bpe *m;
    struct plim_error *err;
    struct strbuf text;
    struct quota *quota;
    uint64_t joins[128][2]; /* ASCII characters some merge joins */
};

/* One merge of the file: "a b" or ["a", "b"]; ["a", "b", 7] says its rank, which several may have. */
struct merge_text {
    const char *text[2];
    size_t len[2];
    int64_t rank; /* -1: its place in the list */
};

static bool split_merge(const struct node *item, struct merge_text *out)
{
    out->rank = -1;
    if (item->kind == NODE_STRING) {
        const char *text = item->as.string.text, *end = text + item->as.string.len;
        const char *blank = memchr(text, ' ', item->as.string.len);
        if (!blank || memchr(blank + 1, ' ', (size_t)(end - blank) - 1)) return false;
        out->text[0] = text, out->len[0] = (size_t)(blank - text);
        out->text[1] = blank + 1, out->len[1] = (size_t)(end - blank) - 1;
        return true;
    }
    bool ranked = item->kind == NODE_LIST && node_count(item) == 3;
    if (item->kind != NODE_LIST || (node_count(item) != 2 && !ranked)) return false;
    if (ranked) out->rank = node_int(node_item(item, 2), -1);
    if (ranked && (out->rank < 0 || out->rank >= UINT32_MAX)) return false;
    for (size_t i = 0; i < 2; i++) {
        const struct node *part = node_item(item, i);
        if (part->kind != NODE_STRING) return false;
        out->text[i] = part->as.string.text, out->len[i] = part->as.string.len;
    }
    return true;
}

/* --- proofs ------------------------------------------------------------------------------------------------ */

static size_t last_point_start(const char *text, size_t len)
{
    while (len > 0 && ((unsigned char)text[--len] & 0xc0) == 0x80) continue;
    return len;
}

static size_t first_point_len(const char *text, size_t len)
{
    size_t n = len > 0;
    while (n < len && ((unsigned char)text[n] & 0xc0) == 0x80) n++;
    return n;
}

/* The ASCII characters on both sides of a merge's boundary. */
static void note_join(struct bpe_read *r, const struct merge_text *merge)
{
    if (merge->len[0] == 0 || merge->len[1] == 0) return;
    unsigned char left = (unsigned char)merge->text[0][merge->len[0] - 1],
                  right = (unsigned char)merge->text[1][0];
    if (left < 0x80 && right < 0x80) r->joins[left][right >> 6] |= (uint64_t)1 << (right & 63);
}

/* Characters that are known and that no merge joins never share a token. */
static void find_cuts(struct bpe_read *r)
{
    for (unsigned left = 0; left < 128; left++)
        for (unsigned right = 0; right < 128; right++) {
            uint64_t bit = (uint64_t)1 << (right & 63);
            bool known = r->m->point_id[left] >= 0 && r->m->point_id[right] >= 0;
            if (known && !(r->joins[left][right >> 6] & bit)) r->m->cut[left][right >> 6] |= bit;
        }
}

/* A token is its own first-level symbol or ends (begins) with that of its last (first) character: whichever it
 * is, the boundary may be crossed. */
static void allow(struct bpe_read *r, const struct merge_text *merge, int32_t left, int32_t right)
{
    size_t start = last_point_start(merge->text[0], merge->len[0]);
    int32_t last = token_vocab_id(r->vocab, merge->text[0] + start, merge->len[0] - start);
    int32_t first = token_vocab_id(r->vocab, merge->text[1], first_point_len(merge->text[1], merge->len[1]));
    bpe_merges_allow(r->m->merges, left, right);
    if (last >= 0) bpe_merges_allow(r->m->merges, last, right);
    if (first >= 0) bpe_merges_allow(r->m->merges, left, first);
    if (last >= 0 && first >= 0) bpe_merges_allow(r->m->merges, last, first);
}

static bool marks(const char *text, size_t len)
{
    return len >= WORD_MARK && memcmp(text, word_mark, WORD_MARK) == 0;
}

/* May this merge join something with the beginning of the next word? */
static bool crosses_words(const struct merge_text *merge)
{
    size_t len = merge->len[0];
    bool left_ends_with_mark = len >= WORD_MARK && marks(merge->text[0] + len - WORD_MARK, WORD_MARK);
    return marks(merge->text[1], merge->len[1]) && !left_ends_with_mark;
}

/* --- reading ----------------------------------------------------------------------------------------------- */

static enum plim_status add_merge(struct bpe_read *r, const struct node *item, uint32_t rank)
{
    struct merge_text merge;
    if (!split_merge(item, &merge))
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: merges: expected \"left right\" or [left, right]",
                         r->name, item->line);
    size_t skip = r->m->prefix.len < merge.len[1] ? r->m->prefix.len : merge.len[1];
    strbuf_clear(&r->text);
    strbuf_addn(&r->text, merge.text[0], merge.len[0]);
    strbuf_addn(&r->text, merge.text[1] + skip, merge.len[1] - skip);
    if (strbuf_status(&r->text, r->err) != PLIM_OK) return PLIM_NO_MEMORY;
    int32_t left = token_vocab_id(r->vocab, merge.text[0], merge.len[0]);
    int32_t right = token_vocab_id(r->vocab, merge.text[1], merge.len[1]);
    int32_t joined = token_vocab_id(r->vocab, strbuf_text(&r->text), r->text.len);
    if (left < 0 || right < 0 || joined < 0)
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: merges: '%.*s' is not in the vocabulary", r->name,
                         item->line,
                         (int)(left < 0    ? merge.len[0]
                               : right < 0 ? merge.len[1]
                                           : r->text.len),
                         left < 0    ? merge.text[0]
                         : right < 0 ? merge.text[1]
                                     : strbuf_text(&r->text));
    bpe_merges_add(r->m->merges, left, right, merge.rank < 0 ? rank : (uint32_t)merge.rank, joined);
    allow(r, &merge, left, right);
    note_join(r, &merge);
    if (crosses_words(&merge)) r->m->cut_words = false;
    return PLIM_OK;
}

static enum plim_status read_merges(struct bpe_read *r)
{
    const struct node *list = node_get(r->spec, "merges");
    size_t count = node_count(list);
    if (!list || list->kind != NODE_LIST)
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: model: expected a list of merges", r->name,
                         r->spec->line);
    if (!quota_take(r->quota, bpe_merges_bytes_for(count))) return quota_fail(r->quota, r->name, r->err);
    r->m->merges = bpe_merges_new(count);
    if (!r->m->merges)
        return plim_fail(r->err, PLIM_NO_MEMORY, "%s: no memory for %zu merges", r->name, count);
    uint32_t rank = 0;
    for (size_t i = 0; i < count; i++) {
        const struct node *item = node_item(list, i);
        if (item->kind == NODE_STRING && strncmp(item->as.string.text, "#version", 8) == 0) continue;
        enum plim_status status = add_merge(r, item, rank++);
        if (status != PLIM_OK) return status;
    }
    if (r->m->prefix.len || r->m->suffix.len) bpe_merges_allow_all(r->m->merges);
    return PLIM_OK;
}

static void read_bytes(struct bpe_read *r)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        size_t len;
        if (r->m->byte_level) {
            char byte = (char)b;
            len = byte_alphabet_write(&byte, 1, text);
        } else {
            len = (size_t)snprintf(text, sizeof text, "<0x%02X>", b);
        }
        r->m->byte_id[b] = token_vocab_id(r->vocab, text, len);
    }
}

static enum plim_status read_points(struct bpe_read *r)
{
    struct model_bpe *m = r->m;
    if (m->byte_level || m->prefix.len || m->suffix.len) return PLIM_OK;
    if (!quota_take(r->quota, BPE_POINTS * sizeof *m->point_id)) return quota_fail(r->quota, r->name, r->err);
    m->point_id = malloc(BPE_POINTS * sizeof *m->point_id);
    if (!m->point_id) return plim_fail(r->err, PLIM_NO_MEMORY, "%s: no memory for the model", r->name);
    for (uint32_t point = 0; point < BPE_POINTS; point++) {
        char text[4];
        m->point_id[point] =
            point - 0xd800 < 0x800 ? -1 : token_vocab_id(r->vocab, text, utf8_encode(point, text));
    }
    return PLIM_OK;
}

/* An unknown token that is not in the vocabulary matters only when something can be unknown. */
static enum plim_status read_unknown(struct bpe_read *r)
{
    const struct node *node = node_get(r->spec, "unk_token");
    bool needed = !r->m->byte_level;
    for (int b = 0; b < 256; b++) needed |= r->m->byte_id[b] < 0;
    if (!node || node->kind != NODE_STRING) return PLIM_OK;
    r->m->unk = token_vocab_id(r->vocab, node->as.string.text, node->as.string.len);
    if (r->m->unk < 0 && needed)
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s:%d: model: unk_token '%s' is not in the vocabulary",
                         r->name, node->line, node->as.string.text);
    return PLIM_OK;
}

static enum plim_status read_options(struct bpe_read *r)
{
    struct model_bpe *m = r->m;
    const struct node *dropout = node_get(r->spec, "dropout");
    if (node_float(dropout, 0) > 0)
        return plim_fail(r->err, PLIM_UNSUPPORTED, "%s:%d: model option 'dropout' is not supported", r->name,
                         dropout->line);
    const struct node *prefix = node_get(r->spec, "continuing_subword_prefix");
    const struct node *suffix = node_get(r->spec, "end_of_word_suffix");
    if (prefix && prefix->kind == NODE_STRING)
        strbuf_addn(&m->prefix, prefix->as.string.text, prefix->as.string.len);
    if (suffix && suffix->kind == NODE_STRING)
        strbuf_addn(&m->suffix, suffix->as.string.text, suffix->as.string.len);
    m->unk = -1;
    m->fuse_unk = node_bool(node_get(r->spec, "fuse_unk"), false);
    m->byte_fallback = node_bool(node_get(r->spec, "byte_fallback"), false);
    m->ignore_merges = node_bool(node_get(r->spec, "ignore_merges"), false);
    m->cut_words = !m->byte_level && !m->ignore_merges && !m->prefix.len && !m->suffix.len &&
                   token_vocab_id(r->vocab, word_mark, WORD_MARK) >= 0;
    if (strbuf_status(&m->prefix, r->err) != PLIM_OK) return PLIM_NO_MEMORY;
    return strbuf_status(&m->suffix, r->err);
}

enum plim_status model_bpe_build(const struct node *spec, const char *name, const struct token_vocab *vocab,
                                 bool byte_level, struct quota *quota, struct token_model **out,
                                 struct plim_error *err)
{
    *out = NULL;
    struct model_bpe *m = calloc(1, sizeof *m);
    if (!m) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the model", name);
    struct bpe_read r = {.spec = spec, .name = name, .vocab = vocab, .m = m, .quota = quota, .err = err};
    m->base = (struct token_model){.ops = &model_bpe_ops, .vocab = vocab};
    m->byte_level = byte_level;
    enum plim_status status = read_options(&r);
    if (status == PLIM_OK) status = read_merges(&r);
    if (status == PLIM_OK) read_bytes(&r);
    if (status == PLIM_OK) status = read_points(&r);
    if (status == PLIM_OK && m->cut_words) find_cuts(&r);
    if (status == PLIM_OK) status = read_unknown(&r);
    const struct node *symbols = node_get(spec, "user_defined");
    if (status == PLIM_OK && node_count(symbols))
        status = added_tokens_build(symbols, name, vocab, 0, NULL, quota, &m->symbols, err);
    strbuf_release(&r.text);
    if (status == PLIM_OK)
        *out = &m->base;
    else
        model_bpe_ops.free(&m->base);
    return status;
}
