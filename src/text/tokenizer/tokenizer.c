/* tokenizer.c - tokenizer.json into parts, and the questions asked of them; encoder.c runs them.
 *
 * The vocabulary comes first because everything refers to it, the added tokens last because some of them are
 * looked for in normalized text. A ByteLevel pre-tokenizer in front of a BPE model is folded into the model, which
 * then works on raw bytes: the byte alphabet is never written. "truncation" and "padding" describe batches, not
 * text, and are not read.
 */
#include "text/tokenizer/tokenizer_impl.h"
#include "text/tokenizer/model_bpe.h"
#include "base/file.h"
#include "base/json.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ID_LIST_FIRST = 64 };

bool token_list_reserve(struct token_list *list, size_t more)
{
    if (list->cap - list->count >= more) return true;
    size_t cap = list->cap ? 2 * list->cap : ID_LIST_FIRST;
    if (more > SIZE_MAX / sizeof *list->id / 2 - list->count) return false;
    if (list->most && list->count + more > list->most) list->full = true;
    if (list->full) return false;
    if (cap < list->count + more) cap = list->count + more;
    if (list->most && cap > list->most) cap = list->most;
    int32_t *grown = realloc(list->id, cap * sizeof *grown);
    if (!grown) return false;
    list->id = grown, list->cap = cap;
    return true;
}

void token_list_release(struct token_list *list)
{
    free(list->id);
    *list = (struct token_list){0};
}

/* --- building ---------------------------------------------------------------------------------------------- */

enum model_type { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE };

/* Early files do not name the model's type; its members tell. */
static const char *model_type_name(const struct node *model)
{
    const char *type = node_string(node_get(model, "type"), NULL);
    if (type) return type;
    if (node_get(model, "merges")) return "BPE";
    const struct node *vocab = node_get(model, "vocab");
    if (vocab && vocab->kind == NODE_LIST) return "Unigram";
    return node_get(model, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

static enum plim_status model_type(const struct node *model, const char *name, enum model_type *type,
                                   struct plim_error *err)
{
    static const char *const names[] = {
        [MODEL_BPE] = "BPE", [MODEL_UNIGRAM] = "Unigram", [MODEL_WORDPIECE] = "WordPiece"};
    if (!model || model->kind != NODE_MAP)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: expected a model; is it a tokenizer.json?", name);
    const char *text = model_type_name(model);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], text) == 0) {
            *type = (enum model_type)i;
            return PLIM_OK;
        }
    return plim_fail(err, PLIM_UNSUPPORTED, "%s:%d: model type '%s' is not supported", name, model->line,
                     text);
}

static bool has_text(const struct node *model, const char *key)
{
    const char *text = node_string(node_get(model, key), NULL);
    return text && *text;
}

/* May the model take raw bytes? Not when its symbols carry affixes or fall back to tokens for bytes, which are
 * those of the alphabet's UTF-8. */
static bool folds_bytes(const struct tokenizer *tok, const struct node *model)
{
    return pretokenizer_ends_in_bytes(tok->pretokenizer) && !has_text(model, "continuing_subword_prefix") &&
           !has_text(model, "end_of_word_suffix") && !node_bool(node_get(model, "byte_fallback"), false);
}

static enum plim_status build_model(struct tokenizer *tok, const struct node *spec, const char *name,
                                    enum model_type type, struct quota *quota, struct plim_error *err)
{
    switch (type) {
    case MODEL_UNIGRAM:
        return model_unigram_build(spec, name, tok->vocab, quota, &tok->model, err);
    case MODEL_WORDPIECE:
        return model_wordpiece_build(spec, name, tok->vocab, quota, &tok->model, err);
    case MODEL_BPE:
        break;
    }
    tok->byte_level = folds_bytes(tok, spec);
    if (tok->byte_level) pretokenizer_pass_raw(tok->pretokenizer);
    return model_bpe_build(spec, name, tok->vocab, tok->byte_level, quota, &tok->model, err);
}

/* A rough size of what a part keeps of its node: the texts in it, and as much again. */
static size_t node_weight(const struct node *node)
{
    if (!node) return 0;
    if (node->kind == NODE_STRING) return 64 + 2 * node->as.string.len;
    size_t sum = 64;
    if (node->kind == NODE_LIST || node->kind == NODE_MAP)
        for (size_t i = 0; i < node_count(node); i++) sum += node_weight(node_item(node, i));
    return sum;
}

/* Checks that tokens added by the post-processor can be decoded. */
static enum plim_status check_postproc(const struct tokenizer *tok, const struct node *root, const char *name,
                                       struct plim_error *err)
{
    const int32_t *ids[2];
    size_t count[2];
    postproc_single(tok->postproc, &ids[0], &count[0], &ids[1], &count[1]);
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < count[side]; i++)
            if (!tokenizer_text(tok, ids[side][i], NULL))
                return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: post_processor: id %d is not in the vocabulary",
                                 name, node_get(root, "post_processor")->line, (int)ids[side][i]);
    return PLIM_OK;
}

static enum plim_status build(struct tokenizer *tok, const struct node *root, const char *name,
                              struct quota *quota, struct plim_error *err)
{
    const struct node *model = node_get(root, "model"), *vocab = node_get(model, "vocab");
    const struct node *normalizer = node_get(root, "normalizer"), *decoder = node_get(root, "decoder");
    const struct node *postproc = node_get(root, "post_processor");
    enum model_type type = MODEL_BPE;
    enum plim_status status = model_type(model, name, &type, err);
    tok->part_bytes = node_weight(normalizer) + node_weight(decoder) + node_weight(postproc) +
                      node_weight(node_get(root, "pre_tokenizer"));
    if (status == PLIM_OK && !quota_take(quota, sizeof *tok + tok->part_bytes))
        status = quota_fail(quota, name, err);
    if (status == PLIM_OK) status = token_vocab_build(vocab, name, quota, &tok->vocab, err);
    if (status == PLIM_OK) status = normalizer_build(normalizer, name, &tok->normalizer, err);
    if (status == PLIM_OK)
        status = pretokenizer_build(node_get(root, "pre_tokenizer"), name, &tok->pretokenizer, err);
    if (status == PLIM_OK) status = build_model(tok, model, name, type, quota, err);
    if (status == PLIM_OK) status = postproc_build(postproc, name, &tok->postproc, err);
    if (status == PLIM_OK) status = token_decoder_build(decoder, name, &tok->decoder, err);
    if (status == PLIM_OK)
        status = added_tokens_build(node_get(root, "added_tokens"), name, tok->vocab, node_count(vocab),
                                    tok->normalizer, quota, &tok->added, err);
    if (status == PLIM_OK) status = check_postproc(tok, root, name, err);
    return status;
}

static enum plim_status from_doc(const struct doc *doc, const char *name, struct quota *quota,
                                 struct tokenizer **out, struct plim_error *err)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the tokenizer", name);
    enum plim_status status = build(tok, &doc->root, name, quota, err);
    if (status == PLIM_OK)
        *out = tok;
    else
        tokenizer_free(tok);
    return status;
}

enum plim_status tokenizer_read(struct strbuf *text, const char *name, struct quota *quota,
                                struct tokenizer **out, struct plim_error *err)
{
    struct quota usual = {.most = TOKENIZER_QUOTA, .why = "the most for a tokenizer"};
    struct doc *doc;
    size_t len = text->len;
    *out = NULL;
    if (!quota) quota = &usual;
    if (!quota_take(quota, len)) return quota_fail(quota, name, err);
    enum plim_status status = json_parse_taking(text, name, quota, &doc, err);
    if (status != PLIM_OK) return status;
    status = from_doc(doc, name, quota, out, err);
    quota_give(quota, len + doc->store.total);
    doc_free(doc);
    return status;
}

enum plim_status tokenizer_parse(const char *text, size_t len, const char *name, struct tokenizer **out,
                                 struct plim_error *err)
{
    STRBUF_AUTO copy = STRBUF_INIT;
    *out = NULL;
    strbuf_addn(&copy, text, len);
    enum plim_status status = strbuf_status(&copy, err);
    if (status == PLIM_OK) status = tokenizer_read(&copy, name, NULL, out, err);
    return status;
}

enum plim_status tokenizer_load(const char *path, struct tokenizer **out, struct plim_error *err)
{
    STRBUF_AUTO file = STRBUF_INIT, text = STRBUF_INIT;
    struct stat facts;
    *out = NULL;
    strbuf_add(&file, path);
    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) strbuf_add(&file, "/tokenizer.json");
    enum plim_status status = strbuf_status(&file, err);
    if (status == PLIM_OK) status = file_read(strbuf_text(&file), TOKENIZER_QUOTA, &text, err);
    if (status == PLIM_OK) status = tokenizer_read(&text, strbuf_text(&file), NULL, out, err);
    return status;
}

void tokenizer_free(struct tokenizer *tok)
{
    if (!tok) return;
    added_tokens_free(tok->added);
    token_decoder_free(tok->decoder);
    postproc_free(tok->postproc);
    if (tok->model) tok->model->ops->free(tok->model);
    pretokenizer_free(tok->pretokenizer);
    normalizer_free(tok->normalizer);
    token_vocab_free(tok->vocab);
    free(tok);
}

/* --- asking ------------------------------------------------------------------------------------------------ */

const char *tokenizer_kind(const struct tokenizer *tok)
{
    bool bytes = tok->byte_level || pretokenizer_ends_in_bytes(tok->pretokenizer);
    return bytes && tok->model->ops == &model_bpe_ops ? "byte-level BPE" : tok->model->ops->kind;
}

int64_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    int64_t model = token_vocab_size(tok->vocab), added = added_tokens_size(tok->added);
    return model > added ? model : added;
}

int32_t tokenizer_id(const struct tokenizer *tok, const char *text, size_t len)
{
    int32_t id = added_tokens_id(tok->added, text, len);
    return id >= 0 ? id : token_vocab_id(tok->vocab, text, len);
}

const char *tokenizer_text(const struct tokenizer *tok, int32_t id, size_t *len)
{
    const char *text = added_tokens_text(tok->added, id, len);
    return text ? text : token_vocab_text(tok->vocab, id, len);
}

bool tokenizer_is_special(const struct tokenizer *tok, int32_t id)
{
    return added_tokens_special_id(tok->added, id);
}

size_t tokenizer_bytes(const struct tokenizer *tok)
{
    return sizeof *tok + token_vocab_bytes(tok->vocab) + added_tokens_bytes(tok->added) +
           pretokenizer_bytes(tok->pretokenizer) + tok->model->ops->bytes(tok->model) + tok->part_bytes;
}

/* Bytes of a token that is written in the byte alphabet: its characters. */
static size_t raw_bytes(const char *text, size_t len)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

size_t tokenizer_text_most(const struct tokenizer *tok)
{
    size_t most = 1, len;
    for (int64_t id = 0; id < tokenizer_vocab_size(tok); id++)
        if (tokenizer_text(tok, (int32_t)id, &len) && len > most) most = len;
    return most;
}

size_t tokenizer_longest(const struct tokenizer *tok)
{
    const struct model_bpe *bpe = (const struct model_bpe *)(const void *)tok->model;
    size_t longest = 1, shrinks = normalizer_shrinks(tok->normalizer);
    if (!tok->byte_level || tok->model->ops != &model_bpe_ops || !shrinks) return 0;
    if (added_tokens_strip(tok->added) || !pretokenizer_keeps_all(tok->pretokenizer)) return 0;
    for (int i = 0; i < 256; i++)
        if (bpe->byte_id[i] < 0) return 0;
    for (int64_t id = 0; id < tokenizer_vocab_size(tok); id++) {
        size_t len, bytes;
        const char *text = added_tokens_text(tok->added, (int32_t)id, &len);
        if (text)
            bytes = len;
        else if ((text = token_vocab_text(tok->vocab, (int32_t)id, &len)))
            bytes = raw_bytes(text, len);
        else
            continue;
        if (bytes > longest) longest = bytes;
    }
    return shrinks * longest;
}

bool tokenizer_pair_marks(const struct tokenizer *tok, struct pair_marks *out)
{
    return postproc_pair(tok->postproc, out);
}

/* --- decoding ---------------------------------------------------------------------------------------------- */

struct decoding {
    const struct tokenizer *tok;
    unsigned flags;
    struct token_decoding *flow;
};

enum plim_status decoding_open(const struct tokenizer *tok, unsigned flags, struct decoding **out,
                               struct plim_error *err)
{
    struct decoding *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return plim_fail(err, PLIM_NO_MEMORY, "no memory for a decoder");
    *d = (struct decoding){.tok = tok, .flags = flags};
    enum plim_status status = token_decoding_open(tok->decoder, &d->flow, err);
    if (status == PLIM_OK)
        *out = d;
    else
        free(d);
    return status;
}

void decoding_close(struct decoding *d)
{
    if (!d) return;
    token_decoding_close(d->flow);
    free(d);
}

/* *skip: it is left out of the text. */
static enum plim_status find_token(const struct tokenizer *tok, int32_t id, unsigned flags,
                                   struct token_bytes *token, bool *skip, struct plim_error *err)
{
    token->text = tokenizer_text(tok, id, &token->len);
    if (!token->text)
        return plim_fail(err, PLIM_BAD_INPUT, "token id %d is not in the vocabulary of %lld", (int)id,
                         (long long)tokenizer_vocab_size(tok));
    *skip = flags & TOKENIZE_SKIP_SPECIAL && added_tokens_special(tok->added, token->text, token->len);
    return PLIM_OK;
}

enum plim_status decoding_add(struct decoding *d, int32_t id, struct strbuf *out, struct plim_error *err)
{
    struct token_bytes token;
    bool skip = false;
    enum plim_status status = find_token(d->tok, id, d->flags, &token, &skip, err);
    return status == PLIM_OK && !skip ? token_decoding_add(d->flow, token, out, err) : status;
}

enum plim_status decoding_add_text(struct decoding *d, const char *text, size_t len, struct strbuf *out,
                                   struct plim_error *err)
{
    return token_decoding_add(d->flow, (struct token_bytes){text, len}, out, err);
}

enum plim_status decoding_end(struct decoding *d, struct strbuf *out, struct plim_error *err)
{
    return token_decoding_end(d->flow, out, err);
}

enum plim_status decoding_tail(const struct decoding *d, struct strbuf *out, struct plim_error *err)
{
    return token_decoding_tail(d->flow, out, err);
}

bool decoding_holds(const struct decoding *d) { return token_decoding_holds(d->flow); }

enum plim_status tokenizer_piece(const struct tokenizer *tok, int32_t id, unsigned flags, struct strbuf *out,
                                 struct plim_error *err)
{
    struct token_bytes token;
    bool skip = false;
    enum plim_status status = find_token(tok, id, flags, &token, &skip, err);
    return status == PLIM_OK && !skip ? token_decoder_piece(tok->decoder, token, out, err) : status;
}

enum plim_status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t count,
                                  unsigned flags, struct strbuf *out, struct plim_error *err)
{
    struct decoding *d;
    enum plim_status status = decoding_open(tok, flags, &d, err);
    for (size_t i = 0; i < count && status == PLIM_OK; i++) status = decoding_add(d, ids[i], out, err);
    if (status == PLIM_OK) status = decoding_end(d, out, err);
    decoding_close(d);
    return status;
}
