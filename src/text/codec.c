/* codec.c - see codec.h. */
#include "text/codec.h"
#include "base/file.h"
#include "base/json.h"
#include "base/hash.h"
#include "mem/os.h"
#include "text/byte_text.h"
#include "text/gguf_tokenizer.h"
#include "text/sentencepiece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool codec_is_bytes(const char *path) { return !path || !*path || !strcmp(path, "bytes"); }

bool codec_find(const char *model, char *path, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model", "spiece.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((size_t)snprintf(path, size, "%s/%s", model, names[i]) < size && file_exists(path)) return true;
    return gguf_is(model) && (size_t)snprintf(path, size, "%s", model) < size;
}

/* The tokenizer's file: the path, or the file in that folder. */
static char *find_file(const char *path)
{
    struct stat st;
    size_t room = strlen(path) + sizeof "/tokenizer.model";
    char *file = malloc(room);
    bool folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    if (file && (!folder || !codec_find(path, file, room)))
        snprintf(file, room, "%s%s", path, folder ? "/tokenizer.json" : "");
    return file;
}

/* "eos_token" of tokenizer_config.json: a text, or a map with "content". A file that is no JSON has none; one that takes
 * more than is left is an error. */
static enum plim_status eos_from_config(struct codec *c, struct quota *quota, struct plim_error *err)
{
    char *slash = strrchr(c->path, '/');
    size_t folder = slash ? (size_t)(slash - c->path) + 1 : 0;
    char name[4096];
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct plim_error why = {0};
    snprintf(name, sizeof name, "%.*stokenizer_config.json", (int)folder, c->path);
    if (!file_exists(name) || file_read(name, quota_left(quota), &text, NULL) != PLIM_OK) return PLIM_OK;
    enum plim_status status = quota_take(quota, text.len) ? json_parse_taking(&text, name, quota, &doc, &why)
                                                          : quota_fail(quota, name, &why);
    strbuf_release(&text);
    if (status != PLIM_OK) {
        if (quota->refused && err) *err = why;
        return quota->refused ? status : PLIM_OK;
    }
    const struct node *eos = node_get(&doc->root, "eos_token");
    if (eos && eos->kind == NODE_MAP) eos = node_get(eos, "content");
    if (eos && eos->kind == NODE_STRING)
        c->eos = tokenizer_id(c->tokenizer, eos->as.string.text, eos->as.string.len);
    doc_free(doc);
    return PLIM_OK;
}

static int32_t eos_by_name(const struct tokenizer *tokenizer)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                        "<|eot_id|>",    "<|im_end|>",      "[SEP]"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        int32_t id = tokenizer_id(tokenizer, usual[i], strlen(usual[i]));
        if (id >= 0) return id;
    }
    return -1;
}

/* Pages of code that reading touches for the first time, and what malloc takes beside what is asked of it: so much, or
 * an eighth of a small budget. */
#define READING_ITSELF (UINT64_C(1) << 20)

/* Part of the usual quota that a budget leaves. */
static struct quota quota_under(uint64_t budget)
{
    struct quota quota = {.most = TOKENIZER_QUOTA, .why = "the most for a tokenizer"};
    uint64_t taken = budget ? os_process_counted() : 0;
    uint64_t left = budget > taken ? budget - taken : 0;
    left -= left / 8 < READING_ITSELF ? left / 8 : READING_ITSELF;
    if (!budget || left > quota.most) return quota;
    return (struct quota){
        .most = left, .status = PLIM_NO_FIT, .why = "all that the budget leaves; raise the budget"};
}

/* tokenizer.json as a GGUF file would have it, and its end-of-text token's text. */
static enum plim_status text_of_gguf(const char *path, struct strbuf *text, struct strbuf *eos,
                                     struct plim_error *err)
{
    struct gguf *file = NULL;
    enum plim_status status = gguf_open(path, &file, err);
    if (status != PLIM_OK) return status;
    const struct node *meta = gguf_metadata(file);
    int64_t id = node_int(node_get(meta, "tokenizer.ggml.eos_token_id"), -1);
    const char *name =
        id < 0 ? NULL : node_string(node_item(node_get(meta, "tokenizer.ggml.tokens"), (size_t)id), NULL);
    status = gguf_tokenizer_write(file, text, err);
    if (name) strbuf_add(eos, name);
    gguf_close(file);
    return status;
}

/* The tokenizer.json that a file of another kind stands for. */
static enum plim_status read_other(struct codec *c, struct quota *quota, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT, eos = STRBUF_INIT;
    enum plim_status status = gguf_is(c->path) ? text_of_gguf(c->path, &text, &eos, err)
                                               : sentencepiece_write(c->path, &text, &eos, err);
    if (status == PLIM_OK && text.len > quota->most) status = quota_fail(quota, c->path, err);
    if (status == PLIM_OK) {
        c->fingerprint = hash64(text.data, text.len, 0) | 1;
        status = tokenizer_read(&text, c->path, quota, &c->tokenizer, err);
    }
    if (status == PLIM_OK && eos.len) c->eos = tokenizer_id(c->tokenizer, eos.data, eos.len);
    return status;
}

static enum plim_status read_tokenizer(struct codec *c, struct quota *quota, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct stat st;
    enum plim_status status = PLIM_OK;
    if (gguf_is(c->path) || sentencepiece_is(c->path)) return read_other(c, quota, err);
    if (!stat(c->path, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size > quota->most)
        return quota_fail(quota, c->path, err);
    status = file_read(c->path, quota->most, &text, err);
    if (status == PLIM_IO && err) {
        struct plim_error why = *err;
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s; give a tokenizer.json, a SentencePiece model, a folder with one, or "
                           "bytes",
                           why.text);
    }
    size_t n = strlen(c->path);
    if (status == PLIM_OK && n > 6 && !strcmp(c->path + n - 6, ".model") && strbuf_text(&text)[0] != '{')
        status = plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: it is no SentencePiece model; save the tokenizer's tokenizer.json with transformers",
            c->path);
    if (status == PLIM_OK) {
        c->fingerprint = hash64(text.data, text.len, 0) | 1; /* never 0, which means bytes */
        status = tokenizer_read(&text, c->path, quota, &c->tokenizer, err);
    }
    return status;
}

enum plim_status codec_open_within(const char *path, uint64_t budget, struct codec *out,
                                   struct plim_error *err)
{
    *out = (struct codec){.vocab_size = 256, .eos = -1};
    if (codec_is_bytes(path)) return PLIM_OK;
    out->path = find_file(path);
    if (!out->path) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    struct quota quota = quota_under(budget);
    enum plim_status status = read_tokenizer(out, &quota, err);
    if (status == PLIM_OK && !gguf_is(out->path)) status = eos_from_config(out, &quota, err);
    os_give_back(); /* what reading took is not what the tokenizer holds */
    if (status != PLIM_OK) {
        codec_close(out);
        return status;
    }
    out->vocab_size = tokenizer_vocab_size(out->tokenizer);
    out->bytes = tokenizer_bytes(out->tokenizer);
    out->reading = quota.peak;
    if (out->eos < 0) out->eos = eos_by_name(out->tokenizer);
    return PLIM_OK;
}

enum plim_status codec_open(const char *path, struct codec *out, struct plim_error *err)
{
    return codec_open_within(path, 0, out, err);
}

void codec_close(struct codec *c)
{
    tokenizer_free(c->tokenizer);
    free(c->path);
    *c = (struct codec){.vocab_size = 256, .eos = -1};
}

enum plim_status codec_set_eos(struct codec *c, const char *text, struct plim_error *err)
{
    int32_t id = c->tokenizer ? tokenizer_id(c->tokenizer, text, strlen(text)) : -1;
    if (id < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: there is no token '%s'", c->path ? c->path : "bytes",
                         text);
    c->eos = id;
    return PLIM_OK;
}

enum plim_status codec_encode(struct encoder *encoder, const char *text, size_t len, unsigned flags,
                              struct token_list *out, struct plim_error *err)
{
    if (encoder) return encoder_encode(encoder, text, len, flags, out, err);
    if (!token_list_reserve(out, len))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for %zu tokens", len);
    for (size_t i = 0; i < len; i++) out->id[out->count++] = (unsigned char)text[i];
    return PLIM_OK;
}

enum plim_status codec_decode(const struct codec *c, const int32_t *ids, size_t count, unsigned flags,
                              struct strbuf *out, struct plim_error *err)
{
    struct byte_text text = {0};
    char bytes[BYTE_TEXT_MAX];
    if (c->tokenizer) return tokenizer_decode(c->tokenizer, ids, count, flags, out, err);
    for (size_t i = 0; i < count; i++) strbuf_addn(out, bytes, byte_text_add(&text, ids[i], bytes));
    strbuf_addn(out, bytes, byte_text_end(&text, bytes));
    return strbuf_status(out, err);
}

enum plim_status codec_piece(const struct codec *c, int32_t id, unsigned flags, struct strbuf *out,
                             struct plim_error *err)
{
    if (c->tokenizer) return tokenizer_piece(c->tokenizer, id, flags, out, err);
    strbuf_addc(out, (char)id);
    return strbuf_status(out, err);
}
