/* gguf_tokenizer.c - see gguf_tokenizer.h. */
#include "text/gguf_tokenizer.h"
#include "base/json.h"
#include "text/score_merges.h"
#include "text/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

/* Token types of GGUF. */
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

struct writing {
    const struct gguf *file;
    const struct node *tokens, *types, *scores;
    struct json_writer w;
    struct plim_error *err;
};

static const struct node *meta(const struct gguf *file, const char *key)
{
    return node_get(gguf_metadata(file), key);
}

static int64_t type_of(const struct writing *t, size_t id)
{
    return node_int(node_item(t->types, id), TOKEN_NORMAL);
}

static const struct node *token(const struct writing *t, int64_t id)
{
    const struct node *text = id >= 0 ? node_item(t->tokens, (size_t)id) : NULL;
    return text && text->kind == NODE_STRING ? text : NULL;
}

/* A token that the metadata name: "bos". */
static const struct node *named(const struct writing *t, const char *key)
{
    return token(t, node_int(meta(t->file, key), -1));
}

/* --- words are split ------------------------------------------------------------------------------------------------ */

#define REST       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CONTRACTED "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define UPPER      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER      "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED      "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|"

/* Rules as the tokenizer.json of the models that have them. */
struct split_rule {
    const char *names[6]; /* of tokenizer.ggml.pre */
    const char *regex;    /* NULL: GPT-2's own */
    bool digits;          /* each alone, before GPT-2's rule */
    bool nfc;             /* text is normalised first */
    bool ignore_merges;   /* a word that is a token needs no merges */
    bool bos;             /* add_bos_token, where the file does not say */
};
static const struct split_rule rules[] = {
    {{"gpt-2", "gpt2", "phi-2"}, NULL, false, false, false, false},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell"}, NULL, true, false, false, false},
    {{"llama-bpe", "llama3", "llama-v3"}, CONTRACTED "\\p{N}{1,3}|" REST, false, false, true, true},
    {{"dbrx", "smaug-bpe"}, CONTRACTED "\\p{N}{1,3}|" REST, false, false, false, false},
    {{"qwen2", "deepseek-r1-qwen"}, CONTRACTED "\\p{N}|" REST, false, true, false, false},
    {{"tekken"},
     CASED "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     false,
     false,
     true,
     true},
};

static const struct split_rule *find_rule(const char *name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (size_t k = 0; k < sizeof rules->names / sizeof *rules->names && rules[i].names[k]; k++)
            if (!strcmp(rules[i].names[k], name)) return &rules[i];
    return NULL;
}

static void put_byte_level(struct json_writer *w, const char *key, bool regex)
{
    json_begin_object(w, key);
    json_str(w, "type", "ByteLevel");
    json_bool(w, "add_prefix_space", false);
    json_bool(w, "trim_offsets", true);
    json_bool(w, "use_regex", regex);
    json_end_object(w);
}

static void put_pre_tokenizer(struct json_writer *w, const struct split_rule *rule)
{
    json_begin_object(w, "pre_tokenizer");
    json_str(w, "type", "Sequence");
    json_begin_array(w, "pretokenizers");
    if (rule->regex || rule->digits) {
        json_begin_object(w, NULL);
        json_str(w, "type", rule->digits ? "Digits" : "Split");
        if (rule->digits) json_bool(w, "individual_digits", true);
        if (rule->regex) {
            json_begin_object(w, "pattern");
            json_str(w, "Regex", rule->regex);
            json_end_object(w);
            json_str(w, "behavior", "Isolated");
            json_bool(w, "invert", false);
        }
        json_end_object(w);
    }
    put_byte_level(w, NULL, !rule->regex);
    json_end_array(w);
    json_end_object(w);
}

/* --- parts that both kinds have ------------------------------------------------------------------------------------- */

static void put_added(struct writing *t)
{
    json_begin_array(&t->w, "added_tokens");
    for (size_t i = 0; i < node_count(t->tokens); i++) {
        int64_t type = type_of(t, i);
        const struct node *text = token(t, (int64_t)i);
        if (type != TOKEN_CONTROL && type != TOKEN_USER && type != TOKEN_UNKNOWN) continue;
        struct json_token added = {text->as.string.text, text->as.string.len, (int64_t)i};
        tokenizer_json_added(&t->w, &added, type != TOKEN_USER);
    }
    json_end_array(&t->w);
}

/* Adds BOS and EOS around a text as the file says; `bos` applies if it does not say. */
static void put_post_processor(struct writing *t, bool bos)
{
    const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"};
    const bool add[] = {node_bool(meta(t->file, "tokenizer.ggml.add_bos_token"), bos),
                        node_bool(meta(t->file, "tokenizer.ggml.add_eos_token"), false)};
    struct json_token around[2];
    for (int i = 0; i < 2; i++) {
        const struct node *text = add[i] ? named(t, keys[i]) : NULL;
        around[i] = (struct json_token){.text = text ? text->as.string.text : NULL,
                                        .len = text ? text->as.string.len : 0,
                                        .id = node_int(meta(t->file, keys[i]), 0)};
    }
    tokenizer_json_around(&t->w, &around[0], &around[1]);
}

static void put_vocabulary(struct writing *t)
{
    json_begin_object(&t->w, "vocab");
    for (size_t i = 0; i < node_count(t->tokens); i++)
        if (type_of(t, i) != TOKEN_UNUSED) json_int(&t->w, token(t, (int64_t)i)->as.string.text, (int64_t)i);
    json_end_object(&t->w);
}

static void begin_model(struct writing *t, bool ignore_merges, const struct node *unknown)
{
    json_begin_object(&t->w, "model");
    json_str(&t->w, "type", "BPE");
    json_null(&t->w, "dropout");
    if (unknown)
        json_strn(&t->w, "unk_token", unknown->as.string.text, unknown->as.string.len);
    else
        json_null(&t->w, "unk_token");
    json_bool(&t->w, "fuse_unk", unknown != NULL);
    json_bool(&t->w, "byte_fallback", t->scores != NULL);
    json_bool(&t->w, "ignore_merges", ignore_merges);
    put_vocabulary(t);
    json_begin_array(&t->w, "merges");
}

static void end_model(struct writing *t)
{
    json_end_array(&t->w);
    json_end_object(&t->w);
}

static void put_typed(struct json_writer *w, const char *key, const char *type)
{
    json_begin_object(w, key);
    json_str(w, "type", type);
    json_end_object(w);
}

/* --- BPE over bytes --------------------------------------------------------------------------------------------------- */

static enum plim_status write_bytes(struct writing *t)
{
    const char *pre = node_string(meta(t->file, "tokenizer.ggml.pre"), "default");
    const struct node *merges = meta(t->file, "tokenizer.ggml.merges");
    const struct split_rule *rule = find_rule(pre);
    t->scores = NULL;
    if (!rule)
        return plim_fail(t->err, PLIM_UNSUPPORTED,
                         "%s: key 'tokenizer.ggml.pre': how '%.60s' splits words is not known here; give the "
                         "model's tokenizer.json with --tokenizer",
                         gguf_path(t->file), pre);
    if (!merges || merges->kind != NODE_LIST)
        return plim_fail(t->err, PLIM_BAD_INPUT, "%s: key 'tokenizer.ggml.merges' is missing",
                         gguf_path(t->file));
    put_added(t);
    if (rule->nfc) put_typed(&t->w, "normalizer", "NFC");
    put_pre_tokenizer(&t->w, rule);
    put_post_processor(t, rule->bos);
    put_byte_level(&t->w, "decoder", true);
    begin_model(t, rule->ignore_merges, NULL);
    for (size_t i = 0; i < node_count(merges); i++) {
        const struct node *merge = node_item(merges, i);
        if (merge->kind == NODE_STRING) json_strn(&t->w, NULL, merge->as.string.text, merge->as.string.len);
    }
    end_model(t);
    return PLIM_OK;
}

/* --- SentencePiece's BPE ------------------------------------------------------------------------------------------------ */

static enum plim_status put_score_merges(struct writing *t)
{
    size_t n = node_count(t->tokens);
    struct scored_piece *pieces = calloc(n + 1, sizeof *pieces);
    if (!pieces) return plim_fail(t->err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(t->file));
    for (size_t i = 0; i < n; i++) {
        const struct node *text = token(t, (int64_t)i);
        pieces[i] = (struct scored_piece){.text = text->as.string.text,
                                          .len = text->as.string.len,
                                          .score = node_float(node_item(t->scores, i), 0),
                                          .whole = type_of(t, i) == TOKEN_NORMAL,
                                          .part = true};
    }
    bool enough = score_merges_write(&t->w, pieces, n, false);
    free(pieces);
    return enough ? PLIM_OK : plim_fail(t->err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(t->file));
}

static void put_spaces(struct json_writer *w, bool prefix)
{
    json_begin_object(w, "normalizer");
    json_str(w, "type", "Sequence");
    json_begin_array(w, "normalizers");
    if (prefix) {
        json_begin_object(w, NULL);
        json_str(w, "type", "Prepend");
        json_str(w, "prepend", TOKENIZER_JSON_BLANK);
        json_end_object(w);
    }
    tokenizer_json_replace(w, " ", TOKENIZER_JSON_BLANK);
    json_end_array(w);
    json_end_object(w);
    tokenizer_json_blank_decoder(w, prefix, false);
}

static enum plim_status write_pieces(struct writing *t)
{
    const struct node *unknown = named(t, "tokenizer.ggml.unknown_token_id");
    for (size_t i = 0; i < node_count(t->tokens) && !unknown; i++)
        if (type_of(t, i) == TOKEN_UNKNOWN) unknown = token(t, (int64_t)i);
    if (node_count(t->scores) != node_count(t->tokens))
        return plim_fail(t->err, PLIM_BAD_INPUT, "%s: 'tokenizer.ggml.scores' has %zu numbers for %zu tokens",
                         gguf_path(t->file), node_count(t->scores), node_count(t->tokens));
    put_added(t);
    put_spaces(&t->w, node_bool(meta(t->file, "tokenizer.ggml.add_space_prefix"), true));
    put_post_processor(t, true);
    begin_model(t, false, unknown);
    enum plim_status status = put_score_merges(t);
    end_model(t);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------------- */

bool gguf_has_tokenizer(const struct gguf *file) { return meta(file, "tokenizer.ggml.model") != NULL; }

bool gguf_file_has_tokenizer(const char *path)
{
    struct gguf *file = NULL;
    bool has = gguf_open(path, &file, NULL) == PLIM_OK && gguf_has_tokenizer(file);
    gguf_close(file);
    return has;
}

static enum plim_status check_lists(const struct writing *t)
{
    size_t n = node_count(t->tokens);
    if (!n || t->tokens->kind != NODE_LIST)
        return plim_fail(t->err, PLIM_BAD_INPUT, "%s: key 'tokenizer.ggml.tokens' is missing or empty",
                         gguf_path(t->file));
    if (n > INT32_MAX / 4)
        return plim_fail(t->err, PLIM_BAD_INPUT, "%s: %zu tokens are too many", gguf_path(t->file), n);
    if (t->types && node_count(t->types) != n)
        return plim_fail(t->err, PLIM_BAD_INPUT,
                         "%s: 'tokenizer.ggml.token_type' has %zu numbers for %zu tokens", gguf_path(t->file),
                         node_count(t->types), n);
    for (size_t i = 0; i < n; i++) {
        const struct node *text = token(t, (int64_t)i);
        if (!text || strlen(text->as.string.text) != text->as.string.len)
            return plim_fail(t->err, PLIM_BAD_INPUT,
                             "%s: 'tokenizer.ggml.tokens': token %zu is no text or has a NUL in it",
                             gguf_path(t->file), i);
    }
    return PLIM_OK;
}

static struct writing begin(const struct gguf *file, struct strbuf *out, struct plim_error *err)
{
    struct writing t = {.file = file,
                        .tokens = meta(file, "tokenizer.ggml.tokens"),
                        .types = meta(file, "tokenizer.ggml.token_type"),
                        .scores = meta(file, "tokenizer.ggml.scores"),
                        .err = err};
    json_writer_init(&t.w, out, 0);
    json_begin_object(&t.w, NULL);
    return t;
}

enum plim_status gguf_tokenizer_write(const struct gguf *file, struct strbuf *out, struct plim_error *err)
{
    const char *model = node_string(meta(file, "tokenizer.ggml.model"), NULL);
    if (!model)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: it holds no tokenizer ('tokenizer.ggml.model'); give one with --tokenizer",
                         gguf_path(file));
    bool bytes = !strcmp(model, "gpt2");
    if (!bytes && strcmp(model, "llama"))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: key 'tokenizer.ggml.model': '%.60s' is not supported; gpt2 and llama are",
                         gguf_path(file), model);
    struct writing t = begin(file, out, err);
    json_str(&t.w, "version", "1.0");
    enum plim_status status = check_lists(&t);
    if (status == PLIM_OK) status = bytes ? write_bytes(&t) : write_pieces(&t);
    json_end_object(&t.w);
    return status == PLIM_OK ? strbuf_status(out, err) : status;
}

enum plim_status gguf_tokenizer_config_write(const struct gguf *file, struct strbuf *out,
                                             struct plim_error *err)
{
    static const char *const keys[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                          {"tokenizer.ggml.eos_token_id", "eos_token"},
                                          {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                          {"tokenizer.ggml.padding_token_id", "pad_token"}};
    struct writing t = begin(file, out, err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct node *text = named(&t, keys[i][0]);
        if (text) json_strn(&t.w, keys[i][1], text->as.string.text, text->as.string.len);
    }
    const struct node *chat = meta(file, "tokenizer.chat_template");
    if (chat && chat->kind == NODE_STRING)
        json_strn(&t.w, "chat_template", chat->as.string.text, chat->as.string.len);
    json_end_object(&t.w);
    return strbuf_status(out, err);
}
