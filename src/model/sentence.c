/* sentence.c - see sentence.h. */
#include "model/sentence.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

static const char *const names[POOLING_COUNT] = {[POOLING_MEAN] = "mean", [POOLING_FIRST] = "cls"};

const char *pooling_name(enum pooling pooling) { return names[pooling]; }

/* Switches of a pooling module; those we have no pooling for must be off. */
static const struct mode {
    const char *key;
    enum pooling pooling;
} modes[] = {
    {"pooling_mode_mean_tokens", POOLING_MEAN},          {"pooling_mode_cls_token", POOLING_FIRST},
    {"pooling_mode_max_tokens", POOLING_COUNT},          {"pooling_mode_mean_sqrt_len_tokens", POOLING_COUNT},
    {"pooling_mode_weightedmean_tokens", POOLING_COUNT}, {"pooling_mode_lasttoken", POOLING_COUNT},
};

static enum plim_status refuse_pooling(const char *file, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_UNSUPPORTED, "%s: pooling '%s' is not supported; supported: mean, cls", file,
                     what);
}

static enum plim_status read_modes(const struct node *root, const char *file, struct sentence_config *out,
                                   struct plim_error *err)
{
    int chosen = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (!node_bool(node_get(root, modes[i].key), false)) continue;
        if (modes[i].pooling == POOLING_COUNT) return refuse_pooling(file, modes[i].key, err);
        out->pooling = modes[i].pooling, chosen++;
    }
    if (chosen == 1) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED, "%s: %s; supported is one of mean and cls", file,
                     chosen ? "several poolings side by side" : "no pooling is switched on");
}

/* pooling_mode names one since version 5; before, each had a switch. */
static enum plim_status read_pooling(const char *file, struct sentence_config *out, struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = json_load(file, &doc, err);
    if (status != PLIM_OK) return status;
    const char *mode = node_string(node_get(&doc->root, "pooling_mode"), NULL);
    int which = 0;
    while (mode && which < POOLING_COUNT && strcmp(names[which], mode)) which++;
    if (!mode)
        status = read_modes(&doc->root, file, out, err);
    else if (which < POOLING_COUNT)
        out->pooling = (enum pooling)which;
    else
        status = refuse_pooling(file, mode, err);
    doc_free(doc);
    return status;
}

/* Where sentence-transformers keeps no length of its own, the tokenizer's counts: version 5 keeps it there alone. A model
 * that is no sentence-transformer is as long as its positions allow. Tokenizers without a limit write a number like 1e30. */
static enum plim_status read_tokenizer_length(struct sentence_config *out, struct plim_error *err)
{
    char file[640];
    struct doc *doc = NULL;
    snprintf(file, sizeof file, "%s/tokenizer_config.json", out->path);
    if (!out->found || !file_exists(file)) return PLIM_OK;
    enum plim_status status = json_load(file, &doc, err);
    if (status != PLIM_OK) return status;
    double length = node_float(node_get(&doc->root, "model_max_length"), 0);
    if (length >= 1 && length <= INT32_MAX) out->max_length = (int64_t)length;
    doc_free(doc);
    return PLIM_OK;
}

/* The file has the name of the architecture it was made for. */
static enum plim_status read_length(struct sentence_config *out, struct plim_error *err)
{
    static const char *const files[] = {"bert", "roberta", "distilbert", "xlm-roberta"};
    char file[640];
    struct doc *doc = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(file, sizeof file, "%s/sentence_%s_config.json", out->path, files[i]);
        if (file_exists(file)) break;
        file[0] = 0;
    }
    if (!file[0]) return read_tokenizer_length(out, err);
    enum plim_status status = json_load(file, &doc, err);
    if (status != PLIM_OK) return status;
    const struct node *length = node_get(&doc->root, "max_seq_length");
    if (!length || length->kind == NODE_NULL)
        status = read_tokenizer_length(out, err);
    else if (!node_is_whole(length, &out->max_length) || out->max_length < 1)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: key 'max_seq_length': expected a whole number from 1 on",
                           file);
    if (node_bool(node_get(&doc->root, "do_lower_case"), false))
        status = plim_fail(err, PLIM_UNSUPPORTED,
                           "%s: key 'do_lower_case': text is lowered by the tokenizer or not at all", file);
    doc_free(doc);
    return status;
}

static enum plim_status read_module(const struct node *module, const char *dir, const char *file,
                                    struct sentence_config *out, struct plim_error *err)
{
    const char *type = node_string(node_get(module, "type"), ""), *dot = strrchr(type, '.');
    const char *kind = dot ? dot + 1 : type, *path = node_string(node_get(module, "path"), "");
    char below[640];
    if (!strcmp(kind, "Normalize")) return out->normalize = true, PLIM_OK;
    snprintf(below, sizeof below, "%s%s%s%s", dir, *path ? "/" : "", path,
             strcmp(kind, "Pooling") ? "" : "/config.json");
    if (!strcmp(kind, "Pooling")) return read_pooling(below, out, err);
    if (strcmp(kind, "Transformer"))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: module '%s' is not supported; supported: Transformer, Pooling, Normalize", file,
                         type);
    if ((size_t)snprintf(out->path, sizeof out->path, "%s", below) >= sizeof out->path)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: the path is too long", dir);
    return PLIM_OK;
}

enum plim_status sentence_config_load(const char *dir, struct sentence_config *out, struct plim_error *err)
{
    char file[640];
    struct doc *doc = NULL;
    *out = (struct sentence_config){.normalize = true};
    if ((size_t)snprintf(out->path, sizeof out->path, "%s", dir) >= sizeof out->path)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: the path is too long", dir);
    snprintf(file, sizeof file, "%s/modules.json", dir);
    if (!file_exists(file)) return read_length(out, err);
    out->found = true, out->normalize = false;
    enum plim_status status = json_load(file, &doc, err);
    if (status == PLIM_OK && doc->root.kind != NODE_LIST)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: expected a list of modules", file);
    for (size_t i = 0; status == PLIM_OK && i < node_count(&doc->root); i++)
        status = read_module(node_item(&doc->root, i), dir, file, out, err);
    doc_free(doc);
    return status == PLIM_OK ? read_length(out, err) : status;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static const char *const files[] = {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
                                    NULL};

const char *sentence_file_name(int i) { return files[i]; }

static void put_module(struct json_writer *w, int number, const char *path, const char *type)
{
    char name[8];
    snprintf(name, sizeof name, "%d", number);
    json_begin_object(w, NULL);
    json_int(w, "idx", number);
    json_str(w, "name", name);
    json_str(w, "path", path);
    json_str(w, "type", type);
    json_end_object(w);
}

static void write_modules(struct json_writer *w, const struct model_spec *spec, int64_t)
{
    json_begin_array(w, NULL);
    put_module(w, 0, "", "sentence_transformers.models.Transformer");
    put_module(w, 1, "1_Pooling", "sentence_transformers.models.Pooling");
    if (spec->normalize) put_module(w, 2, "2_Normalize", "sentence_transformers.models.Normalize");
    json_end_array(w);
}

static void write_pooling(struct json_writer *w, const struct model_spec *spec, int64_t)
{
    json_begin_object(w, NULL);
    json_int(w, "word_embedding_dimension", spec->hidden_size);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        json_bool(w, modes[i].key, modes[i].pooling == spec->pooling);
    json_bool(w, "include_prompt", true);
    json_end_object(w);
}

static void write_length(struct json_writer *w, const struct model_spec *, int64_t max_length)
{
    json_begin_object(w, NULL);
    json_int(w, "max_seq_length", max_length);
    json_bool(w, "do_lower_case", false);
    json_end_object(w);
}

enum plim_status sentence_config_save(const char *dir, const struct model_spec *spec, int64_t max_length,
                                      struct plim_error *err)
{
    static void (*const writers[])(struct json_writer *, const struct model_spec *,
                                   int64_t) = {write_modules, write_pooling, write_length};
    char path[4300];
    snprintf(path, sizeof path, "%.4200s/1_Pooling", dir);
    enum plim_status status = file_make_dirs(path, err);
    for (int i = 0; files[i] && status == PLIM_OK; i++) {
        STRBUF_AUTO text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, 2);
        writers[i](&w, spec, max_length);
        strbuf_addc(&text, '\n');
        snprintf(path, sizeof path, "%.4200s/%s", dir, files[i]);
        status = strbuf_status(&text, err);
        if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    }
    return status;
}
