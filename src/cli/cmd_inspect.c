/* cmd_inspect.c - plimsoll inspect: what is in a file. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "text/codec.h"
#include "text/sentencepiece.h"
#include "base/hash.h"
#include "model/hf.h"
#include "model/labels.h"
#include "model/sentence.h"
#include "store/safetensors.h"
#include "model/weights_files.h"
#include "store/gguf.h"
#include "store/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct inspect_flags {
    bool json, tensors, checksum;
};

#define AT(field) offsetof(struct inspect_flags, field)
static const struct option_row rows[] = {
    {"tensors", 't', OPTION_FLAG, AT(tensors), NULL, "list every tensor of safetensors or GGUF"},
    {"checksum", 0, OPTION_FLAG, AT(checksum), NULL, "read all data for a checksum (the default)"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print a JSON array with one object per FILE"},
};

static const struct option_example examples[] = {
    {"inspect model.safetensors --tensors", "names, types and shapes"},
    {"inspect corpus.tok", "counts, tokenizer, and whether the data are intact"},
    {"inspect runs/small/checkpoint-00000100 --json", "a checkpoint, for a program"},
    {NULL, NULL}};

static const struct command command = {
    .name = "inspect",
    .summary = "describe a file: weights, tokenizer, tokens, checkpoint",
    .usage = "[OPTION...] FILE...",
    .description = "FILE is a safetensors or GGUF file, a tokenizer.json, a token file, or a folder: a "
                   "checkpoint or a Hugging Face model. Prints its contents, sizes, types and counts, and a "
                   "checksum of all data; token files are checked against their own checksums. Exits with 2 "
                   "if a file is damaged or of unknown kind.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* Facts go to both forms at once. */
struct report {
    const struct inspect_flags *flags;
    struct json_writer w;
    struct strbuf json, text;
};

static void say(struct report *r, const char *key, const char *value)
{
    json_str(&r->w, key, value);
    strbuf_addf(&r->text, "  %-14s %s\n", key, value);
}

static void say_number(struct report *r, const char *key, int64_t value)
{
    char digits[BYTES_TEXT];
    json_int(&r->w, key, value);
    strbuf_addf(&r->text, "  %-14s %s%s\n", key, value < 0 ? "-" : "",
                bytes_format_exact(digits, (uint64_t)(value < 0 ? -value : value)));
}

static void say_bytes(struct report *r, const char *key, uint64_t bytes)
{
    char size[BYTES_TEXT], exact[BYTES_TEXT];
    json_uint(&r->w, key, bytes);
    strbuf_addf(&r->text, "  %-14s %s (%s)\n", key, bytes_format(size, bytes),
                bytes_format_exact(exact, bytes));
}

static void say_hash(struct report *r, const char *key, uint64_t hash)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    say(r, key, text);
}

static void begin(struct report *r, const char *path, const char *kind)
{
    json_str(&r->w, "path", path);
    json_str(&r->w, "kind", kind);
    strbuf_addf(&r->text, "%s: %s\n", path, kind);
}

/* The checksum of a file: of its chunks of 1 MiB, each with the sum so far as its seed. */
static enum plim_status hash_file(const char *path, uint64_t *hash, struct plim_error *err)
{
    size_t chunk = 1 << 20;
    char *buf = malloc(chunk);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 1;
    if (!buf || fd < 0) {
        free(buf);
        if (fd >= 0) close(fd);
        return plim_fail(err, PLIM_IO, "%s: cannot read: %s", path, strerror(errno));
    }
    while (n > 0) {
        size_t got = 0;
        while (got < chunk && (n = read(fd, buf + got, chunk - got)) > 0) got += (size_t)n;
        if (got) *hash = hash64(buf, got, *hash);
    }
    enum plim_status status =
        n < 0 ? plim_fail(err, PLIM_IO, "%s: cannot read: %s", path, strerror(errno)) : PLIM_OK;
    close(fd);
    free(buf);
    return status;
}

static enum plim_status show_tokens(struct report *r, const char *path, struct plim_error *err)
{
    struct token_file *f;
    char width[8];
    enum plim_status status = token_file_open(path, &f, err);
    if (status != PLIM_OK) return status;
    const struct token_file_header *h = token_file_header(f);
    begin(r, path, "token file");
    snprintf(width, sizeof width, "u%u", 8 * h->width);
    say_bytes(r, "bytes", h->file_bytes);
    say_number(r, "version", h->version);
    say_number(r, "tokens", (int64_t)h->tokens);
    say(r, "type", width);
    say_number(r, "vocabulary", (int64_t)h->vocab_size);
    say_number(r, "samples", (int64_t)h->samples);
    say_number(r, "longest", (int64_t)h->longest);
    say(r, "samples_are", h->flags & TOKEN_FILE_LINES ? "records" : "documents");
    say(r, "loss_mask", h->flags & TOKEN_FILE_MASK ? "yes" : "no");
    say_number(r, "eos", h->eos);
    if (h->fingerprint)
        say_hash(r, "tokenizer", h->fingerprint);
    else
        say(r, "tokenizer", "bytes");
    if (r->flags->checksum) status = token_file_verify(f, err);
    if (status == PLIM_OK) say_hash(r, "checksum", h->sums_hash);
    token_file_close(f);
    return status;
}

static enum plim_status show_tokenizer(struct report *r, const char *path, struct plim_error *err)
{
    struct codec c;
    struct stat st;
    size_t len;
    enum plim_status status = codec_open(path, &c, err);
    if (status != PLIM_OK) return status;
    begin(r, path, "tokenizer");
    if (!stat(c.path, &st)) say_bytes(r, "bytes", (uint64_t)st.st_size);
    say(r, "type", tokenizer_kind(c.tokenizer));
    say_number(r, "vocabulary", c.vocab_size);
    int64_t special = 0;
    for (int64_t i = 0; i < c.vocab_size; i++) special += tokenizer_is_special(c.tokenizer, (int32_t)i);
    say_number(r, "special", special);
    if (c.eos >= 0) {
        say_number(r, "eos", c.eos);
        const char *text = tokenizer_text(c.tokenizer, c.eos, &len);
        if (text) say(r, "eos_token", text);
    }
    say_bytes(r, "memory", c.bytes);
    say_hash(r, "checksum", c.fingerprint);
    codec_close(&c);
    return PLIM_OK;
}

static void say_types(struct report *r, const struct weights_files *set)
{
    const char *names[32];
    int64_t counts[32];
    int n = 0;
    for (size_t i = 0; i < set->count; i++) {
        int k = 0;
        while (k < n && strcmp(names[k], set->tensors[i].type_name)) k++;
        if (k == 32) continue;
        if (k == n) names[n] = set->tensors[i].type_name, counts[n++] = 0;
        counts[k] += set->tensors[i].count;
    }
    json_begin_object(&r->w, "numbers_by_type");
    for (int k = 0; k < n; k++) {
        char digits[BYTES_TEXT];
        json_int(&r->w, names[k], counts[k]);
        strbuf_addf(&r->text, "  %-14s %s numbers\n", names[k],
                    bytes_format_exact(digits, (uint64_t)counts[k]));
    }
    json_end_object(&r->w);
}

static void list_tensors(struct report *r, const struct weights_files *set)
{
    json_begin_array(&r->w, "list");
    for (size_t i = 0; i < set->count; i++) {
        const struct safetensor *t = &set->tensors[i];
        char shape[160], size[BYTES_TEXT];
        safetensors_shape_text(t->ndim, t->dim, shape, sizeof shape);
        json_begin_object(&r->w, NULL);
        json_str(&r->w, "name", t->name);
        json_str(&r->w, "type", t->type_name);
        json_begin_array(&r->w, "shape");
        for (int d = 0; d < t->ndim; d++) json_int(&r->w, NULL, t->dim[d]);
        json_end_array(&r->w);
        json_uint(&r->w, "bytes", t->bytes);
        json_end_object(&r->w);
        strbuf_addf(&r->text, "    %-48s %-5s %-18s %s\n", t->name, t->type_name, shape,
                    bytes_format(size, t->bytes));
    }
    json_end_array(&r->w);
}

/* The next file name of the set after `done`; NULL: there is none. */
static const char *file_after(const struct weights_files *set, const char *done)
{
    const char *next = NULL;
    for (size_t i = 0; i < set->count; i++) {
        const struct safetensor *t = &set->tensors[i];
        for (int k = 0; k < (t->npieces ? t->npieces : 1); k++) {
            const char *file = t->npieces ? t->pieces[k].path : t->path;
            if ((!done || strcmp(file, done) > 0) && (!next || strcmp(file, next) < 0)) next = file;
        }
    }
    return next;
}

/* A set of weights; its files follow each other in the checksum, by name. */
static enum plim_status put_weights(struct report *r, const char *path, struct plim_error *err)
{
    struct weights_files set;
    enum plim_status status = weights_files_open(path, &set, err);
    if (status != PLIM_OK) return status;
    uint64_t bytes = 0, hash = 0;
    for (size_t i = 0; i < set.count; i++) bytes += set.tensors[i].bytes;
    say_number(r, "tensors", (int64_t)set.count);
    say_bytes(r, "data_bytes", bytes);
    say_types(r, &set);
    if (r->flags->tensors) list_tensors(r, &set);
    const char *done = NULL;
    while (r->flags->checksum && status == PLIM_OK) {
        const char *next = file_after(&set, done);
        if (!next) break;
        status = hash_file(next, &hash, err);
        done = next;
    }
    if (status == PLIM_OK && r->flags->checksum) say_hash(r, "checksum", hash);
    weights_files_close(&set);
    return status;
}

static enum plim_status show_weights(struct report *r, const char *path, struct plim_error *err)
{
    struct safetensors probe;
    enum plim_status status = safetensors_open(path, &probe, err); /* before anything is said of it */
    if (status != PLIM_OK) return status;
    safetensors_close(&probe);
    begin(r, path, "safetensors");
    return put_weights(r, path, err);
}

static enum plim_status show_gguf(struct report *r, const char *path, struct plim_error *err)
{
    static const char *const keys[][2] = {{"general.name", "name"},
                                          {"general.architecture", "architecture"},
                                          {"tokenizer.ggml.model", "tokenizer"},
                                          {"tokenizer.ggml.pre", "splits_words_as"}};
    struct gguf *file = NULL;
    enum plim_status status = gguf_open(path, &file, err);
    if (status != PLIM_OK) return status;
    begin(r, path, "GGUF");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = node_string(node_get(gguf_metadata(file), keys[i][0]), NULL);
        if (value) say(r, keys[i][1], value);
    }
    size_t tokens = node_count(node_get(gguf_metadata(file), "tokenizer.ggml.tokens"));
    if (tokens) say_number(r, "vocabulary", (int64_t)tokens);
    gguf_close(file);
    return put_weights(r, path, err);
}

static bool holds(const char *dir, const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", dir, name);
    return file_exists(path);
}

/* Prints the values of trainer.json. */
static enum plim_status put_trainer(struct report *r, const char *path, struct plim_error *err)
{
    struct doc *doc;
    enum plim_status status = json_load(path, &doc, err);
    if (status != PLIM_OK) return status;
    static const char *const numbers[] = {"step", "updates", "position", "seed"};
    static const char *const texts[] = {"mixed_precision", "optimizer"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (node_get(&doc->root, numbers[i]))
            say_number(r, numbers[i], node_int(node_get(&doc->root, numbers[i]), 0));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (node_get(&doc->root, texts[i])) say(r, texts[i], node_string(node_get(&doc->root, texts[i]), ""));
    const struct node *loader = node_get(&doc->root, "loader");
    if (loader) {
        json_node(&r->w, "loader", loader);
        strbuf_addf(&r->text, "  %-14s epoch %lld, row %lld\n", "data",
                    (long long)node_int(node_get(loader, "epoch"), 0),
                    (long long)node_int(node_get(loader, "rows"), 0));
    }
    doc_free(doc);
    return PLIM_OK;
}

/* Prints the encoder's settings from config.json; models of other kinds are described by their tensors. */
static void put_encoder(struct report *r, const char *dir)
{
    static const char *const tasks[MODEL_TASKS] = {"masked tokens", "labels", "vectors", "labels of texts"};
    struct model_spec spec;
    struct label_names names;
    struct sentence_config how;
    if (hf_config_load(dir, &spec, NULL) != PLIM_OK || !model_is_encoder(&spec)) return;
    say(r, "architecture", model_architecture_name(spec.arch));
    say(r, "task", tasks[spec.task]);
    if (spec.task == TASK_EMBEDDING && sentence_config_load(dir, &how, NULL) == PLIM_OK)
        say(r, "pooling", pooling_name(how.pooling));
    if (!model_has_labels(&spec) || labels_load(dir, &names, NULL) != PLIM_OK) return;
    strbuf_addf(&r->text, "  %-14s", "labels");
    json_begin_array(&r->w, "labels");
    for (size_t i = 0; i < names.list.count; i++) {
        strbuf_addf(&r->text, " %s", names.list.items[i]);
        json_str(&r->w, NULL, names.list.items[i]);
    }
    json_end_array(&r->w);
    strbuf_addc(&r->text, '\n');
    labels_release(&names);
}

static enum plim_status show_folder(struct report *r, const char *dir, struct plim_error *err)
{
    char path[MODEL_PATH + 64], state[MODEL_PATH + 64];
    bool checkpoint = holds(dir, "trainer.json", path, sizeof path);
    bool weights = holds(dir, "model.safetensors", path, sizeof path) ||
                   holds(dir, "model.safetensors.index.json", path, sizeof path) ||
                   holds(dir, SAFETENSORS_PIECES, path, sizeof path);
    if (!checkpoint && !weights && codec_find(dir, path, sizeof path)) return show_tokenizer(r, dir, err);
    if (!checkpoint && !weights)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: holds neither trainer.json, model.safetensors nor tokenizer.json; point at a checkpoint "
            "or a model folder",
            dir);
    begin(r, dir, checkpoint ? "checkpoint" : "model folder");
    enum plim_status status = PLIM_OK;
    if (checkpoint) {
        holds(dir, "trainer.json", path, sizeof path);
        status = put_trainer(r, path, err);
    }
    put_encoder(r, dir);
    json_begin_object(&r->w, "parameters");
    if (status == PLIM_OK) status = put_weights(r, dir, err);
    json_end_object(&r->w);
    if (status == PLIM_OK && holds(dir, "state", state, sizeof state)) {
        strbuf_add(&r->text, "  masters and moments:\n");
        json_begin_object(&r->w, "state");
        status = put_weights(r, state, err);
        json_end_object(&r->w);
    }
    return status;
}

static enum plim_status show(struct report *r, const char *path, struct plim_error *err)
{
    struct stat st;
    char head[16] = {0};
    if (stat(path, &st)) return plim_fail(err, PLIM_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return show_folder(r, path, err);
    int fd;
    enum plim_status status = file_open(path, &fd, err);
    if (status != PLIM_OK) return status;
    ssize_t n = pread(fd, head, sizeof head, 0);
    close(fd);
    if (n < 0) return plim_fail(err, PLIM_IO, "%s: cannot read: %s", path, strerror(errno));
    size_t len = strlen(path);
    if (!memcmp(head, "GGUF", 4)) return show_gguf(r, path, err);
    if (!memcmp(head, TOKEN_FILE_MAGIC, 8)) return show_tokens(r, path, err);
    if (n > 8 && head[8] == '{') return show_weights(r, path, err);
    if (n > 0 && (head[0] == '{' || sentencepiece_is(path) || (len > 5 && !strcmp(path + len - 5, ".json"))))
        return show_tokenizer(r, path, err);
    if (len > 12 && !strcmp(path + len - 12, ".safetensors")) return show_weights(r, path, err);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: unknown kind of file; give safetensors, GGUF, tokenizer.json, a SentencePiece "
                     "model, a token file or a checkpoint",
                     path);
}

static int inspect(const struct inspect_flags *f, const struct string_list *paths)
{
    struct report r = {.flags = f};
    struct plim_error err = {0};
    enum plim_status status = PLIM_OK;
    json_writer_init(&r.w, &r.json, 2);
    json_begin_array(&r.w, NULL);
    for (size_t i = 0; i < paths->count && status == PLIM_OK; i++) {
        json_begin_object(&r.w, NULL);
        status = show(&r, paths->items[i], &err);
        json_end_object(&r.w);
    }
    json_end_array(&r.w);
    strbuf_addc(&r.json, '\n');
    int code = 0;
    if (status == PLIM_OK) code = cli_print(f->json ? &r.json : &r.text);
    strbuf_release(&r.json);
    strbuf_release(&r.text);
    return status == PLIM_OK ? code : cli_error(&err);
}

static const struct inspect_flags defaults = {.checksum = true};

static int run(void *flags, const struct string_list *args) { return inspect(flags, args); }

const struct subcommand subcommand_inspect = {&command, run,     CLI_FLAGS(defaults),
                                              1,        CLI_ANY, "give files or folders"};
