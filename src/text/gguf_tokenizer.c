/* gguf_tokenizer.c - see gguf_tokenizer.h. */
#include "text/gguf_tokenizer.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/utf8.h"

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
    static const char *const never[] = {"single_word", "lstrip", "rstrip", "normalized"};
    json_begin_array(&t->w, "added_tokens");
    for (size_t i = 0; i < node_count(t->tokens); i++) {
        int64_t type = type_of(t, i);
        const struct node *text = token(t, (int64_t)i);
        if (type != TOKEN_CONTROL && type != TOKEN_USER && type != TOKEN_UNKNOWN) continue;
        json_begin_object(&t->w, NULL);
        json_int(&t->w, "id", (int64_t)i);
        json_strn(&t->w, "content", text->as.string.text, text->as.string.len);
        for (size_t k = 0; k < sizeof never / sizeof *never; k++) json_bool(&t->w, never[k], false);
        json_bool(&t->w, "special", type != TOKEN_USER);
        json_end_object(&t->w);
    }
    json_end_array(&t->w);
}

static void put_piece(struct json_writer *w, const char *kind, const struct node *id, const char *sequence)
{
    json_begin_object(w, NULL);
    json_begin_object(w, kind);
    if (id)
        json_strn(w, "id", id->as.string.text, id->as.string.len);
    else
        json_str(w, "id", sequence);
    json_int(w, "type_id", 0);
    json_end_object(w);
    json_end_object(w);
}

static void put_template_token(struct json_writer *w, const struct node *text, int64_t id)
{
    json_begin_object(w, text->as.string.text);
    json_strn(w, "id", text->as.string.text, text->as.string.len);
    json_begin_array(w, "ids");
    json_int(w, NULL, id);
    json_end_array(w);
    json_begin_array(w, "tokens");
    json_strn(w, NULL, text->as.string.text, text->as.string.len);
    json_end_array(w);
    json_end_object(w);
}

/* What is put around a text: BOS and EOS as the file says, `bos` where it does not. */
static void put_post_processor(struct writing *t, bool bos)
{
    const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"};
    const bool add[] = {node_bool(meta(t->file, "tokenizer.ggml.add_bos_token"), bos),
                        node_bool(meta(t->file, "tokenizer.ggml.add_eos_token"), false)};
    const struct node *around[2];
    for (int i = 0; i < 2; i++) around[i] = add[i] ? named(t, keys[i]) : NULL;
    if (!around[0] && !around[1]) {
        json_null(&t->w, "post_processor");
        return;
    }
    json_begin_object(&t->w, "post_processor");
    json_str(&t->w, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        json_begin_array(&t->w, pair ? "pair" : "single");
        for (int i = 0; i <= pair; i++) {
            if (around[0]) put_piece(&t->w, "SpecialToken", around[0], NULL);
            put_piece(&t->w, "Sequence", NULL, i ? "B" : "A");
            if (around[1]) put_piece(&t->w, "SpecialToken", around[1], NULL);
        }
        json_end_array(&t->w);
    }
    json_begin_object(&t->w, "special_tokens");
    bool same = around[0] && around[0] == around[1];
    for (int i = 0; i < (same ? 1 : 2); i++)
        if (around[i]) put_template_token(&t->w, around[i], node_int(meta(t->file, keys[i]), 0));
    json_end_object(&t->w);
    json_end_object(&t->w);
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

/* Two tokens that make a third. */
struct merge {
    int32_t left, right, whole;
    int32_t left_length, right_length; /* characters */
    double score;
};

struct merges {
    struct merge *items;
    size_t count, cap;
    int32_t *slots; /* ids by hash of their text, -1: free */
    size_t mask;
};

static int32_t find_id(const struct writing *t, const struct merges *m, const char *text, size_t len)
{
    for (size_t at = hash64(text, len, 0) & m->mask; m->slots[at] >= 0; at = (at + 1) & m->mask) {
        const struct node *other = token(t, m->slots[at]);
        if (other->as.string.len == len && !memcmp(other->as.string.text, text, len)) return m->slots[at];
    }
    return -1;
}

static bool index_tokens(const struct writing *t, struct merges *m)
{
    size_t n = node_count(t->tokens), size = 16;
    while (size < 2 * n) size *= 2;
    m->slots = malloc(size * sizeof *m->slots), m->mask = size - 1;
    if (!m->slots) return false;
    memset(m->slots, 0xff, size * sizeof *m->slots);
    for (size_t i = 0; i < n; i++) {
        const struct node *text = token(t, (int64_t)i);
        size_t at = hash64(text->as.string.text, text->as.string.len, 0) & m->mask;
        while (m->slots[at] >= 0) at = (at + 1) & m->mask;
        m->slots[at] = (int32_t)i;
    }
    return true;
}

static bool add_merge(struct merges *m, const struct merge *merge)
{
    if (m->count == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 4096;
        struct merge *grown = realloc(m->items, cap * sizeof *grown);
        if (!grown) return false;
        m->items = grown, m->cap = cap;
    }
    m->items[m->count++] = *merge;
    return true;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Every way in which token `id` is two others. */
static bool split_token(const struct writing *t, struct merges *m, int32_t id)
{
    const struct node *text = token(t, id);
    const char *s = text->as.string.text;
    size_t len = text->as.string.len;
    int32_t length = 0, before = 0;
    for (size_t i = 0; i < len; i++) length += !is_continuation(s[i]);
    for (size_t cut = 1; cut < len; cut++) {
        before += !is_continuation(s[cut - 1]);
        if (is_continuation(s[cut])) continue;
        struct merge merge = {.whole = id,
                              .left = find_id(t, m, s, cut),
                              .right = find_id(t, m, s + cut, len - cut),
                              .left_length = before,
                              .right_length = length - before,
                              .score = node_float(node_item(t->scores, (size_t)id), 0)};
        if (merge.left >= 0 && merge.right >= 0 && !add_merge(m, &merge)) return false;
    }
    return true;
}

/* The best score first, then the longest left and right part, then the order of tokens: as transformers sorts them. */
static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    const int32_t first[] = {y->left_length, y->right_length, x->whole, x->left, x->right};
    const int32_t second[] = {x->left_length, x->right_length, y->whole, y->left, y->right};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (first[i] != second[i]) return first[i] < second[i] ? -1 : 1;
    return 0;
}

static enum plim_status put_score_merges(struct writing *t)
{
    struct merges m = {0};
    bool enough = index_tokens(t, &m);
    for (size_t i = 0; i < node_count(t->tokens) && enough; i++)
        if (type_of(t, i) == TOKEN_NORMAL) enough = split_token(t, &m, (int32_t)i);
    if (enough && m.count) qsort(m.items, m.count, sizeof *m.items, by_rank);
    for (size_t i = 0; i < m.count && enough; i++) {
        const struct node *parts[] = {token(t, m.items[i].left), token(t, m.items[i].right)};
        json_begin_array(&t->w, NULL);
        for (int k = 0; k < 2; k++) json_strn(&t->w, NULL, parts[k]->as.string.text, parts[k]->as.string.len);
        json_end_array(&t->w);
    }
    free(m.items);
    free(m.slots);
    return enough ? PLIM_OK : plim_fail(t->err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(t->file));
}

#define SPACE "\xe2\x96\x81" /* U+2581 stands for it */

static void put_replace(struct json_writer *w, const char *from, const char *to)
{
    json_begin_object(w, NULL);
    json_str(w, "type", "Replace");
    json_begin_object(w, "pattern");
    json_str(w, "String", from);
    json_end_object(w);
    json_str(w, "content", to);
    json_end_object(w);
}

static void put_spaces(struct json_writer *w, bool prefix)
{
    json_begin_object(w, "normalizer");
    json_str(w, "type", "Sequence");
    json_begin_array(w, "normalizers");
    if (prefix) {
        json_begin_object(w, NULL);
        json_str(w, "type", "Prepend");
        json_str(w, "prepend", SPACE);
        json_end_object(w);
    }
    put_replace(w, " ", SPACE);
    json_end_array(w);
    json_end_object(w);
    json_begin_object(w, "decoder");
    json_str(w, "type", "Sequence");
    json_begin_array(w, "decoders");
    put_replace(w, SPACE, " ");
    put_typed(w, NULL, "ByteFallback");
    put_typed(w, NULL, "Fuse");
    if (prefix) {
        json_begin_object(w, NULL);
        json_str(w, "type", "Strip");
        json_str(w, "content", " ");
        json_int(w, "start", 1);
        json_int(w, "stop", 0);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
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
