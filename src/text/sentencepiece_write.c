/* sentencepiece_write.c - a tokenizer.json from a SentencePiece model and the files beside it. */
#include "text/sentencepiece.h"
#include "base/file.h"
#include "base/json.h"
#include "text/score_merges.h"
#include "text/tokenizer_json.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNK_PENALTY 10.0f /* SentencePiece's: so much less than the worst piece */
#define USER_BONUS  0.1   /* of a user-defined symbol, for each byte after its first */
#define CONFIG_MOST ((uint64_t)64 << 20)
#define EXTRA_MOST  100000

/* Additions of a transformers class to the file. */
struct habits {
    const char *name;
    bool bos, eos;
    int extra_ids; /* <extra_id_0> is the last */
    bool always;   /* a blank is put before every text between special tokens, not only the first */
};
static const struct habits classes[] = {
    {"LlamaTokenizer", true, false, 0, false}, {"CodeLlamaTokenizer", true, false, 0, false},
    {"GemmaTokenizer", true, false, 0, false}, {"T5Tokenizer", false, true, 100, true},
    {"MT5Tokenizer", false, true, 100, true},
};

struct sp_added {
    char *text;
    int64_t id;
    bool special;
};

struct sp_writing {
    struct sp_model model;
    struct habits habits;
    struct doc *config, *added_file; /* tokenizer_config.json, added_tokens.json; NULL: none */
    struct sp_added *added;
    size_t nadded, added_cap;
    struct json_writer w;
    struct plim_error *err;
};

/* --- files beside the model --------------------------------------------------------------------------------------------- */

static struct doc *read_beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    char file[4096];
    struct doc *doc = NULL;
    STRBUF_AUTO text = STRBUF_INIT;
    snprintf(file, sizeof file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    if (file_exists(file) && file_read(file, CONFIG_MOST, &text, NULL) == PLIM_OK &&
        json_parse(strbuf_text(&text), text.len, file, &doc, NULL) != PLIM_OK)
        doc = NULL;
    return doc;
}

static const struct node *config_key(const struct sp_writing *t, const char *key)
{
    return t->config ? node_get(&t->config->root, key) : NULL;
}

/* "T5TokenizerFast" is "T5Tokenizer". */
static const struct habits *find_class(const char *name)
{
    size_t len = strlen(name);
    if (len > 4 && !strcmp(name + len - 4, "Fast")) len -= 4;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strlen(classes[i].name) == len && !memcmp(classes[i].name, name, len)) return &classes[i];
    return NULL;
}

static bool is_any_class(const char *name)
{
    static const char *const names[] = {"PreTrainedTokenizer", "PreTrainedTokenizerFast",
                                        "TokenizersBackend"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static enum plim_status find_habits(struct sp_writing *t)
{
    const char *class = node_string(config_key(t, "tokenizer_class"), NULL);
    struct doc *model = read_beside(t->model.path, "config.json");
    const char *type = model ? node_string(node_get(&model->root, "model_type"), "") : "";
    bool t5 = !strcmp(type, "t5") || !strcmp(type, "mt5") || !strcmp(type, "umt5");
    doc_free(model);
    const struct habits *found = class && !is_any_class(class) ? find_class(class) : NULL;
    if (class && !found && !is_any_class(class))
        return plim_fail(
            t->err, PLIM_UNSUPPORTED,
            "%s: tokenizer_config.json names the class %.60s, which gives ids of its own; save the "
            "tokenizer's tokenizer.json with transformers",
            t->model.path, class);
    if (!found && t5) found = find_class("T5Tokenizer");
    bool unigram = t->model.type == SP_UNIGRAM;
    t->habits = found ? *found : (struct habits){.bos = !unigram, .eos = unigram, .always = unigram};
    t->habits.bos = node_bool(config_key(t, "add_bos_token"), t->habits.bos);
    t->habits.eos = node_bool(config_key(t, "add_eos_token"), t->habits.eos);
    t->habits.always |= node_bool(config_key(t, "legacy"), false);
    int64_t extra = t->habits.extra_ids ? node_int(config_key(t, "extra_ids"), t->habits.extra_ids) : 0;
    t->habits.extra_ids = extra < 0 || extra > EXTRA_MOST ? 0 : (int)extra;
    return PLIM_OK;
}

/* --- added tokens ------------------------------------------------------------------------------------------------------- */

static bool add_token(struct sp_writing *t, const char *text, size_t len, int64_t id, bool special)
{
    if (t->nadded == t->added_cap) {
        size_t cap = t->added_cap ? 2 * t->added_cap : 64;
        struct sp_added *grown = realloc(t->added, cap * sizeof *grown);
        if (!grown) return false;
        t->added = grown, t->added_cap = cap;
    }
    char *copy = strndup(text, len);
    if (copy) t->added[t->nadded++] = (struct sp_added){copy, id, special};
    return copy != NULL;
}

/* A token of a file beside the model, unless the model has another text for its id. */
static bool add_other(struct sp_writing *t, const struct node *text, int64_t id, bool special)
{
    if (!text || text->kind != NODE_STRING || id < 0) return true;
    const struct sp_piece *piece = id < (int64_t)t->model.count ? &t->model.pieces[id] : NULL;
    size_t len = text->as.string.len;
    if (piece && (piece->len != len || memcmp(piece->text, text->as.string.text, len))) return true;
    return add_token(t, text->as.string.text, len, id, special);
}

static bool add_from_files(struct sp_writing *t)
{
    const struct node *decoder = config_key(t, "added_tokens_decoder");
    bool good = true;
    for (size_t i = 0; i < node_count(decoder) && good; i++) {
        const struct node *item = node_item(decoder, i);
        good = add_other(t, node_get(item, "content"), strtoll(item->key ? item->key : "-1", NULL, 10),
                         node_bool(node_get(item, "special"), false));
    }
    const struct node *list = t->added_file ? &t->added_file->root : NULL;
    for (size_t i = 0; i < node_count(list) && good; i++) {
        const struct node *item = node_item(list, i);
        struct node text = {.kind = NODE_STRING};
        text.as.string.text = item->key, text.as.string.len = item->key_len;
        good = !item->key || add_other(t, &text, node_int(item, -1), false);
    }
    return good;
}

/* T5's sentinels, which the class adds where no file names them. */
static bool add_sentinels(struct sp_writing *t)
{
    for (size_t i = 0; i < t->nadded; i++)
        if (!strcmp(t->added[i].text, "<extra_id_0>")) return true;
    bool good = true;
    for (int i = 0; i < t->habits.extra_ids && good; i++) {
        char name[32];
        int n = snprintf(name, sizeof name, "<extra_id_%d>", t->habits.extra_ids - 1 - i);
        good = add_token(t, name, (size_t)n, (int64_t)t->model.count + i, true);
    }
    return good;
}

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const struct sp_added *)a)->id, y = ((const struct sp_added *)b)->id;
    return (x > y) - (x < y);
}

/* By id, and one for each: special where one of its sources says so. */
static void sort_added(struct sp_writing *t)
{
    size_t kept = 0;
    if (t->nadded) qsort(t->added, t->nadded, sizeof *t->added, by_id);
    for (size_t i = 0; i < t->nadded; i++) {
        if (kept && t->added[kept - 1].id == t->added[i].id) {
            t->added[kept - 1].special |= t->added[i].special;
            free(t->added[i].text);
        } else {
            t->added[kept++] = t->added[i];
        }
    }
    t->nadded = kept;
}

static enum plim_status put_added(struct sp_writing *t)
{
    bool good = true;
    for (size_t i = 0; i < t->model.count && good; i++) {
        const struct sp_piece *p = &t->model.pieces[i];
        if (p->type == SP_CONTROL || p->type == SP_UNKNOWN)
            good = add_token(t, p->text, p->len, (int64_t)i, true);
    }
    good = good && add_from_files(t) && add_sentinels(t);
    if (!good) return plim_fail(t->err, PLIM_NO_MEMORY, "%s: no memory for added tokens", t->model.path);
    sort_added(t);
    int64_t next = (int64_t)t->model.count;
    json_begin_array(&t->w, "added_tokens");
    for (size_t i = 0; i < t->nadded; i++) {
        const struct sp_added *a = &t->added[i];
        if (a->id > next)
            return plim_fail(t->err, PLIM_UNSUPPORTED,
                             "%s: the added token '%.60s' has id %lld, but %lld comes next", t->model.path,
                             a->text, (long long)a->id, (long long)next);
        next += a->id == next;
        struct json_token token = {a->text, strlen(a->text), a->id};
        tokenizer_json_added(&t->w, &token, a->special);
    }
    json_end_array(&t->w);
    return PLIM_OK;
}

/* --- normalizer and pre-tokenizer --------------------------------------------------------------------------------------- */

static void put_base64(struct json_writer *w, const char *key, const unsigned char *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    STRBUF_AUTO out = STRBUF_INIT;
    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t word = 0;
        for (size_t j = 0; j < 3; j++) word = word << 8 | (j < n ? bytes[i + j] : 0u);
        for (size_t j = 0; j < 4; j++) strbuf_addc(&out, j <= n ? digits[word >> (18 - 6 * j) & 63] : '=');
    }
    json_strn(w, key, strbuf_text(&out), out.len);
    w->out->failed |= out.failed;
}

static void put_user_defined(struct sp_writing *t)
{
    json_begin_array(&t->w, "user_defined");
    for (size_t i = 0; i < t->model.count; i++) {
        const struct sp_piece *p = &t->model.pieces[i];
        struct json_token token = {p->text, p->len, (int64_t)i};
        if (p->type == SP_USER_DEFINED) tokenizer_json_added(&t->w, &token, false);
    }
    json_end_array(&t->w);
}

static void put_normalizer(struct sp_writing *t)
{
    const struct sp_model *m = &t->model;
    json_begin_object(&t->w, "normalizer");
    json_str(&t->w, "type", "SentencePiece");
    if (m->char_map_len) put_base64(&t->w, "precompiled_charsmap", m->char_map, m->char_map_len);
    json_bool(&t->w, "remove_extra_whitespaces", m->trim);
    json_bool(&t->w, "escape_whitespaces", m->escape);
    put_user_defined(t);
    json_end_object(&t->w);
    if (!m->dummy_prefix) return;
    json_begin_object(&t->w, "pre_tokenizer");
    json_str(&t->w, "type", "SentencePiece");
    json_bool(&t->w, "first", !t->habits.always);
    json_bool(&t->w, "behind", m->suffix);
    json_str(&t->w, "content", m->escape ? TOKENIZER_JSON_BLANK : " ");
    json_end_object(&t->w);
}

/* --- the tokens around a text ------------------------------------------------------------------------------------------- */

/* "bos_token" of tokenizer_config.json, else the model's own; text NULL: none. */
static struct json_token named_token(const struct sp_writing *t, const char *key, int64_t own)
{
    const struct node *name = config_key(t, key);
    if (name && name->kind == NODE_MAP) name = node_get(name, "content");
    const char *text = node_string(name, NULL);
    for (size_t i = 0; i < t->nadded; i++)
        if (text ? !strcmp(t->added[i].text, text) : t->added[i].id == own)
            return (struct json_token){t->added[i].text, strlen(t->added[i].text), t->added[i].id};
    return (struct json_token){0};
}

static void put_around(struct sp_writing *t, struct strbuf *eos)
{
    struct json_token before = named_token(t, "bos_token", t->model.bos);
    struct json_token behind = named_token(t, "eos_token", t->model.eos);
    if (behind.text) strbuf_add(eos, behind.text);
    if (!t->habits.bos) before.text = NULL;
    if (!t->habits.eos) behind.text = NULL;
    tokenizer_json_around(&t->w, &before, &behind);
}

/* --- models ------------------------------------------------------------------------------------------------------------- */

/* Tokens that are found in text have scores; a user-defined symbol gets SentencePiece's bonus. */
static void put_scores(struct sp_writing *t)
{
    json_begin_array(&t->w, "vocab");
    for (size_t i = 0; i < t->model.count; i++) {
        const struct sp_piece *p = &t->model.pieces[i];
        json_begin_array(&t->w, NULL);
        json_strn(&t->w, NULL, p->text, p->len);
        if (t->model.type == SP_BPE || p->type == SP_NORMAL)
            json_double(&t->w, NULL, (double)p->score);
        else if (p->type == SP_USER_DEFINED)
            json_double(&t->w, NULL, USER_BONUS * (double)(p->len - (p->len > 0)));
        else
            json_null(&t->w, NULL);
        json_end_array(&t->w);
    }
    json_end_array(&t->w);
}

static void put_unigram(struct sp_writing *t)
{
    float least = FLT_MAX;
    for (size_t i = 0; i < t->model.count; i++) {
        const struct sp_piece *p = &t->model.pieces[i];
        if (p->type == SP_NORMAL && p->score < least) least = p->score;
    }
    json_str(&t->w, "type", "Unigram");
    json_bool(&t->w, "sentencepiece", true);
    json_int(&t->w, "unk_id", t->model.unk);
    json_double(&t->w, "unk_score", (double)(least - UNK_PENALTY));
    put_scores(t);
}

static enum plim_status put_bpe(struct sp_writing *t)
{
    const struct sp_piece *unk = &t->model.pieces[t->model.unk];
    struct scored_piece *pieces = calloc(t->model.count, sizeof *pieces);
    if (!pieces) return plim_fail(t->err, PLIM_NO_MEMORY, "%s: no memory for its merges", t->model.path);
    for (size_t i = 0; i < t->model.count; i++) {
        const struct sp_piece *p = &t->model.pieces[i];
        bool normal = p->type == SP_NORMAL;
        pieces[i] = (struct scored_piece){p->text, p->len, (double)p->score, normal, normal};
    }
    json_str(&t->w, "type", "BPE");
    json_strn(&t->w, "unk_token", unk->text, unk->len);
    json_bool(&t->w, "fuse_unk", true);
    put_user_defined(t);
    put_scores(t);
    json_begin_array(&t->w, "merges");
    bool enough = score_merges_write(&t->w, pieces, t->model.count, true);
    json_end_array(&t->w);
    free(pieces);
    return enough ? PLIM_OK
                  : plim_fail(t->err, PLIM_NO_MEMORY, "%s: no memory for its merges", t->model.path);
}

static enum plim_status put_model(struct sp_writing *t)
{
    enum plim_status status = PLIM_OK;
    json_begin_object(&t->w, "model");
    json_bool(&t->w, "byte_fallback", t->model.byte_fallback);
    if (t->model.type == SP_BPE)
        status = put_bpe(t);
    else
        put_unigram(t);
    json_end_object(&t->w);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------------ */

static enum plim_status put_all(struct sp_writing *t, struct strbuf *eos)
{
    const struct sp_model *m = &t->model;
    json_begin_object(&t->w, NULL);
    json_str(&t->w, "version", "1.0");
    enum plim_status status = put_added(t);
    if (status != PLIM_OK) return status;
    put_normalizer(t);
    put_around(t, eos);
    tokenizer_json_blank_decoder(&t->w, m->dummy_prefix && !m->suffix, m->dummy_prefix && m->suffix);
    status = put_model(t);
    json_end_object(&t->w);
    return status;
}

enum plim_status sentencepiece_write(const char *path, struct strbuf *text, struct strbuf *eos,
                                     struct plim_error *err)
{
    struct sp_writing t = {.err = err};
    enum plim_status status = sp_model_read(&t.model, path, err);
    if (status == PLIM_OK) {
        t.config = read_beside(path, "tokenizer_config.json");
        t.added_file = read_beside(path, "added_tokens.json");
        json_writer_init(&t.w, text, 0);
        status = find_habits(&t);
    }
    if (status == PLIM_OK) status = put_all(&t, eos);
    if (status == PLIM_OK) status = strbuf_status(text, err);
    for (size_t i = 0; i < t.nadded; i++) free(t.added[i].text);
    free(t.added);
    doc_free(t.config);
    doc_free(t.added_file);
    sp_model_release(&t.model);
    return status;
}
