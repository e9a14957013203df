/* model_wordpiece.c - the longest token from the left, again and again.
 *
 * Both kinds of tokens are in one trie: those that begin a word, and those that continue one, which carry a
 * prefix ("##"). Walking the prefix once, when the model is built, gives the node every later match starts from.
 * A word with too many code points, or with a place where no token fits, is one unknown token.
 */
#include "text/tokenizer/byte_trie.h"
#include <stdlib.h>
#include <string.h>

struct wordpiece {
    struct token_model base;
    struct byte_trie trie;
    uint64_t inner; /* node behind the prefix */
    size_t prefix;  /* its bytes */
    bool has_inner; /* is there any token with the prefix? */
    int64_t most;   /* code points */
    int32_t unk;
};

static bool add_id(struct token_list *out, int32_t id)
{
    if (out->count == out->cap && !token_list_reserve(out, 1)) return false;
    out->id[out->count++] = id;
    return true;
}

/* Length of the longest token at the beginning of text, 0 when there is none. */
static size_t longest(const struct byte_trie *trie, uint64_t node, const char *text, size_t len, int32_t *id)
{
    size_t found = 0;
    for (size_t n = 0; n < len && byte_trie_step(trie, &node, (unsigned char)text[n]);) {
        n++;
        int32_t value = byte_trie_value(node);
        if (value >= 0) found = n, *id = value;
    }
    return found;
}

static bool too_long(const struct wordpiece *m, const char *text, size_t len)
{
    int64_t count = 0;
    if ((int64_t)len <= m->most) return false;
    for (size_t i = 0; i < len; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count > m->most;
}

static bool wordpiece_encode(const struct token_model *model, void *, const char *piece, size_t len,
                             struct token_list *out)
{
    const struct wordpiece *m = (const struct wordpiece *)model;
    size_t before = out->count, at = 0;
    if (too_long(m, piece, len)) return add_id(out, m->unk);
    while (at < len) {
        int32_t id = -1;
        size_t n = 0;
        if (at == 0)
            n = longest(&m->trie, byte_trie_root(&m->trie), piece, len, &id);
        else if (m->has_inner)
            n = longest(&m->trie, m->inner, piece + at, len - at, &id);
        if (!n) {
            out->count = before;
            return add_id(out, m->unk);
        }
        if (!add_id(out, id)) return false;
        at += n;
    }
    return true;
}

static void wordpiece_free(struct token_model *model)
{
    struct wordpiece *m = (struct wordpiece *)model;
    if (!m) return;
    byte_trie_release(&m->trie);
    free(m);
}

static size_t wordpiece_bytes(const struct token_model *model)
{
    const struct wordpiece *m = (const struct wordpiece *)model;
    return sizeof *m + m->trie.count * sizeof *m->trie.unit;
}

static size_t wordpiece_covers(const struct token_model *model, int32_t id, bool first)
{
    const struct wordpiece *m = (const struct wordpiece *)model;
    size_t len = 0;
    bool known = id != m->unk && token_vocab_text(model->vocab, id, &len);
    return !known ? 0 : first ? len : len - m->prefix;
}

static const struct token_model_ops wordpiece_ops = {.kind = "WordPiece",
                                                     .free = wordpiece_free,
                                                     .encode = wordpiece_encode,
                                                     .bytes = wordpiece_bytes,
                                                     .covers = wordpiece_covers};

static enum plim_status read_options(struct wordpiece *m, const struct node *spec, const char *name,
                                     struct plim_error *err)
{
    const char *unk = node_string(node_get(spec, "unk_token"), "[UNK]");
    const char *prefix = node_string(node_get(spec, "continuing_subword_prefix"), "##");
    m->most = node_int(node_get(spec, "max_input_chars_per_word"), 100);
    m->unk = token_vocab_id(m->base.vocab, unk, strlen(unk));
    if (m->unk < 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s:%d: model WordPiece: unk_token '%s' is not in the vocabulary", name, spec->line,
                         unk);
    m->inner = byte_trie_root(&m->trie), m->prefix = strlen(prefix);
    m->has_inner = true;
    for (size_t i = 0; prefix[i] && m->has_inner; i++)
        m->has_inner = byte_trie_step(&m->trie, &m->inner, (unsigned char)prefix[i]);
    return PLIM_OK;
}

enum plim_status model_wordpiece_build(const struct node *spec, const char *name,
                                       const struct token_vocab *vocab, struct quota *quota,
                                       struct token_model **out, struct plim_error *err)
{
    *out = NULL;
    struct wordpiece *m = calloc(1, sizeof *m);
    if (!m) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the model", name);
    m->base = (struct token_model){&wordpiece_ops, vocab};
    enum plim_status status = byte_trie_build(&m->trie, vocab, name, quota, err);
    if (status == PLIM_OK) status = read_options(m, spec, name, err);
    if (status == PLIM_OK)
        *out = &m->base;
    else
        wordpiece_free(&m->base);
    return status;
}
