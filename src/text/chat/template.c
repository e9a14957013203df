/* template.c - parsing, finding and freeing templates; the rest of chat_template.h that is not evaluation. */
#include "base/file.h"
#include "base/json.h"
#include "text/chat/eval.h"
#include "text/chat/lex.h"
#include "text/chat/parse.h"
#include "text/chat_template.h"
#include "text/gguf_tokenizer.h"
#include "base/hash.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_TEXT = 4096 };

static enum plim_status parse_into(struct chat_template *tmpl, const char *text, size_t len,
                                   struct plim_error *err)
{
    struct chat_token *tokens;
    enum plim_status status = chat_lex(text, len, tmpl->name, &tmpl->store, &tokens, err);
    struct chat_parser p = {.tmpl = tmpl, .at = tokens, .err = err};
    /* The interpreter relies on `loop` being the first name. */
    if (status == PLIM_OK && parse_intern(&p, "loop", 4) != 0) status = p.status;
    if (status == PLIM_OK) status = chat_parse(tmpl, tokens, err);
    return status;
}

enum plim_status chat_template_parse(const char *text, size_t len, const char *name,
                                     struct chat_template **out, struct plim_error *err)
{
    *out = NULL;
    if (len > CHAT_TEMPLATE_MAX)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: a chat template of %zu bytes; at most %d are read", name,
                         len, (int)CHAT_TEMPLATE_MAX);
    struct chat_template *tmpl = calloc(1, sizeof *tmpl);
    if (!tmpl) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    tmpl->fingerprint = hash64(text, len, 0);
    tmpl->name = bump_copy(&tmpl->store, name, strlen(name));
    enum plim_status status = tmpl->name ? parse_into(tmpl, text, len, err)
                                         : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    if (status == PLIM_OK)
        *out = tmpl;
    else
        chat_template_free(tmpl);
    return status;
}

void chat_template_free(struct chat_template *tmpl)
{
    if (!tmpl) return;
    bump_free(&tmpl->store);
    free(tmpl);
}

const char *chat_template_name(const struct chat_template *tmpl) { return tmpl->name; }

size_t chat_template_bytes(const struct chat_template *tmpl) { return sizeof *tmpl + tmpl->store.total; }

uint64_t chat_template_fingerprint(const struct chat_template *tmpl) { return tmpl->fingerprint; }

enum plim_status chat_template_render(const struct chat_template *tmpl, const struct node *messages,
                                      const struct chat_options *options, struct strbuf *out,
                                      struct plim_error *err)
{
    struct chat_talk talk = {messages, node_count(messages), NULL};
    return chat_eval_render(tmpl, &talk, options, out, NULL, NULL, err);
}

/* ---- finding a model's template ---- */

/* Special tokens are written as a text or as {"content": text, ...}. */
static enum plim_status keep_tokens(struct chat_template *tmpl, const struct node *config,
                                    struct plim_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    size_t most = sizeof names / sizeof *names;
    tmpl->tokens = bump_alloc(&tmpl->store, most * sizeof *tmpl->tokens);
    for (size_t i = 0; tmpl->tokens && i < most; i++) {
        const struct node *token = node_get(config, names[i]);
        if (token && token->kind == NODE_MAP) token = node_get(token, "content");
        if (!token || token->kind != NODE_STRING) continue;
        char *copy = bump_copy(&tmpl->store, token->as.string.text, token->as.string.len);
        if (!copy) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", tmpl->name);
        tmpl->tokens[tmpl->token_count++] = (struct chat_pair){chat_string(names[i], strlen(names[i])),
                                                               chat_string(copy, token->as.string.len)};
    }
    return tmpl->tokens ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", tmpl->name);
}

/* chat_template is a text, or a list of {name, template}. */
static enum plim_status choose(const char *path, const struct node *config, const char *which,
                               const struct node **out, struct plim_error *err)
{
    const struct node *entry = node_get(config, "chat_template");
    STRBUF_AUTO names = STRBUF_INIT;
    *out = NULL;
    if (entry && entry->kind == NODE_STRING && (!which || strcmp(which, "default") == 0)) *out = entry;
    for (size_t i = 0; entry && entry->kind == NODE_LIST && i < node_count(entry); i++) {
        const char *name = node_string(node_get(node_item(entry, i), "name"), "");
        const struct node *text = node_get(node_item(entry, i), "template");
        if (text && text->kind == NODE_STRING && strcmp(name, which ? which : "default") == 0) *out = text;
        strbuf_addf(&names, "%s%.60s", names.len ? ", " : "", name);
    }
    enum plim_status status = PLIM_OK;
    if (!*out && names.len)
        status = plim_fail(err, PLIM_NOT_FOUND, "%s: no chat template '%s'; there are: %.300s", path,
                           which ? which : "default", strbuf_text(&names));
    else if (!*out && entry && entry->kind == NODE_STRING)
        status = plim_fail(err, PLIM_NOT_FOUND,
                           "%s: no chat template '%s'; there is only one, without a name", path, which);
    else if (!*out)
        status = plim_fail(err, PLIM_NOT_FOUND,
                           "%s: no chat template: the key 'chat_template' is missing or not a text; name a "
                           ".jinja file or the model's folder",
                           path);
    return status;
}

/* The tokenizer_config.json that a GGUF file would have. */
static enum plim_status config_of_gguf(const char *path, struct doc **doc, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct gguf *file = NULL;
    enum plim_status status = gguf_open(path, &file, err);
    if (status == PLIM_OK) status = gguf_tokenizer_config_write(file, &text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, path, doc, err);
    gguf_close(file);
    return status;
}

static enum plim_status load_config(const char *path, const char *which, struct chat_template **out,
                                    struct plim_error *err)
{
    struct doc *doc;
    const struct node *text;
    enum plim_status status = gguf_is(path) ? config_of_gguf(path, &doc, err) : json_load(path, &doc, err);
    if (status != PLIM_OK) return status;
    status = choose(path, &doc->root, which, &text, err);
    if (status == PLIM_OK) {
        status = chat_template_parse(text->as.string.text, text->as.string.len, "chat template", out, err);
        if (status != PLIM_OK) plim_error_prefix(err, "%s", path);
    }
    if (status == PLIM_OK) status = keep_tokens(*out, &doc->root, err);
    if (status != PLIM_OK) {
        chat_template_free(*out);
        *out = NULL;
    }
    doc_free(doc);
    return status;
}

/* A *.jinja file; its special tokens come from the tokenizer_config.json beside it, when there is one. */
static enum plim_status load_jinja(const char *path, const char *config, struct chat_template **out,
                                   struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct doc *doc = NULL;
    enum plim_status status = file_read(path, CHAT_TEMPLATE_MAX, &text, err);
    if (status == PLIM_OK) status = chat_template_parse(strbuf_text(&text), text.len, path, out, err);
    if (status == PLIM_OK && file_exists(config)) status = json_load(config, &doc, err);
    if (status == PLIM_OK && doc) status = keep_tokens(*out, &doc->root, err);
    if (status != PLIM_OK) {
        chat_template_free(*out);
        *out = NULL;
    }
    doc_free(doc);
    return status;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum plim_status chat_template_load(const char *path, const char *which, struct chat_template **out,
                                    struct plim_error *err)
{
    char jinja[PATH_TEXT], config[PATH_TEXT];
    size_t len = strlen(path);
    *out = NULL;
    if (len + 32 > sizeof config)
        return plim_fail(err, PLIM_BAD_INPUT, "%.100s...: the path is too long", path);
    if (is_folder(path)) {
        snprintf(jinja, sizeof jinja, "%s/chat_template.jinja", path);
        snprintf(config, sizeof config, "%s/tokenizer_config.json", path);
        bool named = which && strcmp(which, "default") != 0;
        if (!named && file_exists(jinja)) return load_jinja(jinja, config, out, err);
        if (file_exists(config)) return load_config(config, which, out, err);
        return plim_fail(
            err, PLIM_NOT_FOUND,
            "%s: no chat template: neither chat_template.jinja nor tokenizer_config.json; name a "
            ".jinja file",
            path);
    }
    const char *slash = strrchr(path, '/');
    /* A tokenizer by its file: look beside it. */
    const char *name = slash ? slash + 1 : path;
    if (!strcmp(name, "tokenizer.json") || (len > 6 && !strcmp(path + len - 6, ".model"))) {
        snprintf(jinja, sizeof jinja, "%.*s", slash ? (int)(slash + 1 - path) : 1, slash ? path : ".");
        return chat_template_load(jinja, which, out, err);
    }
    if (len < 6 || strcmp(path + len - 6, ".jinja") != 0) return load_config(path, which, out, err);
    snprintf(config, sizeof config, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - path) : 0, path);
    return load_jinja(path, config, out, err);
}
