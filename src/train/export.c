/* export.c - see export.h.
 *
 * The list of what will be written is made from the source's headers; then each tensor is read in blocks,
 * joined with its master where that adds bits, converted and written. Reading both streams by position keeps
 * them in step without holding either.
 */
#include "train/export.h"
#include "base/file.h"
#include "model/quantised_folder.h"
#include "model/hf.h"
#include "model/labels.h"
#include "model/peft.h"
#include "model/sentence.h"
#include "model/weights_files.h"
#include "store/gguf.h"
#include "train/checkpoint.h"
#include "train/manifest.h"
#include "text/codec.h"
#include "train/tokenizer_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 65536 /* elements at a time */

/* One file open at a time for each stream; a tensor in pieces goes from one to the next. */
struct stream {
    int fd;
    const char *path;
};

struct exporter {
    struct weights_files params;
    struct safetensors state;
    bool has_state;
    enum dtype type;
    struct safetensors_entry *entries; /* [params.count], the same order */
    struct stream from, masters;
    struct exported *result;
    const char *source; /* the folder it comes from */
    char base[4096];    /* the folder of the weights: source's own, or an adapter's base */
    struct peft *peft;  /* merged into them; NULL: none */
    bool adapter;       /* what is written is an adapter */
    bool gguf;          /* as a GGUF file */
    double raw[BLOCK];  /* room for any type */
    uint16_t low[BLOCK];
    float wide[BLOCK];
    double out[BLOCK];
};

static void stream_close(struct stream *s)
{
    if (s->fd >= 0) close(s->fd);
    *s = (struct stream){-1, NULL};
}

static enum plim_status stream_go_to(struct stream *s, const char *path, struct plim_error *err)
{
    if (s->path && !strcmp(s->path, path)) return PLIM_OK;
    stream_close(s);
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot be opened: %s", path, strerror(errno));
    s->path = path;
    return PLIM_OK;
}

static enum plim_status stream_read(struct stream *s, const struct safetensor *t, int64_t first, void *out,
                                    int64_t n, struct plim_error *err)
{
    size_t size = dtype_size(t->type);
    enum plim_status status = PLIM_OK;
    for (char *to = out; n > 0 && status == PLIM_OK;) {
        struct safetensor_piece p = safetensor_piece_at(t, first);
        int64_t here = p.first + p.count - first < n ? p.first + p.count - first : n;
        status = stream_go_to(s, p.path, err);
        if (status == PLIM_OK)
            status = file_pread_full(s->fd, to, (size_t)here * size,
                                     p.offset + (uint64_t)(first - p.first) * size, p.path, err);
        first += here, n -= here, to += (size_t)here * size;
    }
    return status;
}

/* The master that knows more bits of this parameter, or NULL. */
static const struct safetensor *find_master(const struct exporter *e, const struct safetensor *t,
                                            struct plim_error *err)
{
    char name[256];
    if (!e->has_state || !dtype_is_narrow(t->type)) return NULL;
    snprintf(name, sizeof name, "master(%s)", t->name);
    const struct safetensor *m = safetensors_find(&e->state, name);
    if (!m) return NULL;
    if (m->count != t->count || m->type != dtype_master(t->type)) {
        plim_fail(err, PLIM_BAD_INPUT,
                  "%s: tensor '%s' does not belong to the parameter; fetch the checkpoint again", m->path,
                  name);
        return NULL;
    }
    return m;
}

/* Where tensors without a master go. */
struct passing {
    struct safetensors_writer *writer;
    enum dtype type;
};

/* Elements [first, first + n) of a tensor in the type to be written; returns where they are. */
static const void *convert(struct exporter *e, const struct safetensor *t, const struct safetensor *m,
                           enum dtype type, int64_t n)
{
    if (!m) {
        if (t->type == type) return e->raw;
        dtype_convert(e->out, type, e->raw, t->type, n);
        return e->out;
    }
    const unsigned char *narrow = (const unsigned char *)e->raw;
    for (int64_t i = 0; m->type == DT_U16 && i < n; i++) {
        uint16_t weight;
        memcpy(&weight, narrow + 2 * i, sizeof weight);
        e->wide[i] = master_join(weight, e->low[i]);
    }
    if (type == DT_F32) return e->wide;
    dtype_convert(e->out, type, e->wide, DT_F32, n);
    return e->out;
}

static enum plim_status pass_on(void *arg, int64_t, const void *elements, int64_t n, struct plim_error *err)
{
    struct passing *p = arg;
    return safetensors_writer_put(p->writer, elements, (size_t)n * dtype_size(p->type), err);
}

/* --- merging ---------------------------------------------------------------------------------------------------- */

struct merging {
    struct exporter *e;
    const struct safetensor *t;
    enum dtype type;
    struct safetensors_writer *writer;
};

static enum plim_status merge_get(void *arg, int64_t first, float *values, int64_t n, struct plim_error *err)
{
    struct merging *m = arg;
    enum plim_status status = PLIM_OK;
    if (m->e->params.quantised)
        return quantised_folder_part(m->e->params.quantised, m->t, first, n, values, err);
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        status = stream_read(&m->e->from, m->t, first + at, m->e->raw, k, err);
        if (status == PLIM_OK) dtype_convert(values + at, DT_F32, m->e->raw, m->t->type, k);
    }
    return status;
}

static enum plim_status merge_put(void *arg, int64_t, const float *values, int64_t n, struct plim_error *err)
{
    struct merging *m = arg;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        dtype_convert(m->e->out, m->type, values + at, DT_F32, k);
        status = safetensors_writer_put(m->writer, m->e->out, (size_t)k * dtype_size(m->type), err);
    }
    return status;
}

/* Files may leave the architecture's prefix out of names; adapters do not. */
static enum plim_status merge_tensor(struct exporter *e, const struct model_spec *spec, size_t index,
                                     struct safetensors_writer *w, bool *changed, struct plim_error *err)
{
    const struct safetensor *t = &e->params.tensors[index];
    struct merging m = {e, t, e->entries[index].type, w};
    const struct peft_io io = {merge_get, merge_put, &m};
    char name[256];
    *changed = false;
    if (!dtype_is_float(t->type)) return PLIM_OK;
    if (e->params.gguf)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: an adapter is not merged into a GGUF file; export it to a folder first",
                         e->params.path);
    enum plim_status status = peft_merge(e->peft, t->name, t->ndim, t->dim, &io, changed, err);
    if (status != PLIM_OK || *changed) return status;
    snprintf(name, sizeof name, "%s%s", model_weight_prefix(spec), t->name);
    return peft_merge(e->peft, name, t->ndim, t->dim, &io, changed, err);
}

static enum plim_status export_tensor(struct exporter *e, const struct model_spec *spec, size_t index,
                                      struct safetensors_writer *w, struct plim_error *err)
{
    const struct safetensor *t = &e->params.tensors[index];
    enum dtype type = e->entries[index].type;
    if (e->peft) {
        bool merged;
        enum plim_status status = merge_tensor(e, spec, index, w, &merged, err);
        if (status != PLIM_OK || merged) return status;
    }
    if (e->params.gguf || e->params.quantised) /* which have no masters, and elements that have to be made */
        return weights_files_read(&e->params, t, type, pass_on, &(struct passing){w, type}, err);
    struct plim_error mismatch = {0};
    const struct safetensor *m = t->type == type ? NULL : find_master(e, t, &mismatch);
    if (mismatch.status != PLIM_OK) return *err = mismatch, err->status;
    enum plim_status status = PLIM_OK;
    for (int64_t first = 0; first < t->count && status == PLIM_OK; first += BLOCK) {
        int64_t n = t->count - first < BLOCK ? t->count - first : BLOCK;
        status = stream_read(&e->from, t, first, e->raw, n, err);
        if (status == PLIM_OK && m)
            status = stream_read(&e->masters, m, first, m->type == DT_U16 ? (void *)e->low : e->wide, n, err);
        if (status == PLIM_OK)
            status = safetensors_writer_put(w, convert(e, t, m, type, n), (size_t)n * dtype_size(type), err);
    }
    e->result->from_masters |= m != NULL;
    return status;
}

/* Lists the entries to write: the names and shapes stay, floating types change. */
static enum plim_status list_entries(struct exporter *e, struct plim_error *err)
{
    uint64_t most = 0;
    e->entries = calloc(e->params.count + 1, sizeof *e->entries);
    if (!e->entries) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an export was listed");
    for (size_t i = 0; i < e->params.count; i++) {
        const struct safetensor *t = &e->params.tensors[i];
        if (t->type == DT_COUNT)
            return plim_fail(err, PLIM_UNSUPPORTED,
                             "%s: tensor '%.200s': type %s is not read by this version", t->path, t->name,
                             t->type_name);
        bool untyped = e->params.gguf && weights_in_blocks(t); /* blocks of few bits have no type there */
        enum dtype own = untyped ? DT_BF16 : t->type;
        enum dtype type = dtype_is_float(t->type) && e->type != DT_COUNT ? e->type : own;
        e->entries[i] = (struct safetensors_entry){.name = t->name, .type = type, .ndim = t->ndim};
        memcpy(e->entries[i].dim, t->dim, sizeof t->dim);
        e->result->parameters += t->count;
        e->result->bytes += (uint64_t)t->count * dtype_size(type);
        if (t->bytes > most) most = t->bytes, e->result->type = type;
    }
    e->result->tensors = e->params.count;
    return PLIM_OK;
}

static enum plim_status copy_adapter_config(const struct exporter *e, const char *dir, struct plim_error *err)
{
    STRBUF_AUTO path = STRBUF_INIT, text = STRBUF_INIT;
    strbuf_addf(&path, "%s/" PEFT_CONFIG, e->source);
    enum plim_status status = strbuf_status(&path, err);
    if (status == PLIM_OK) status = file_read(path.data, 1 << 20, &text, err);
    strbuf_clear(&path);
    strbuf_addf(&path, "%s/" PEFT_CONFIG, dir);
    return status == PLIM_OK ? file_write_atomic(path.data, text.data, text.len, err) : status;
}

static enum plim_status write_all(struct exporter *e, const struct model_spec *spec, const char *dir,
                                  uint64_t shard_bytes, struct plim_error *err)
{
    struct safetensors_writer w;
    enum plim_status status =
        e->adapter ? safetensors_file_begin(&w, dir, PEFT_WEIGHTS, e->entries, e->params.count, err)
                   : safetensors_writer_begin(&w, dir, e->entries, e->params.count, shard_bytes, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < e->params.count && status == PLIM_OK; i++)
        status = export_tensor(e, spec, i, &w, err);
    if (status == PLIM_OK && e->peft) status = peft_check_used(e->peft, err);
    if (status == PLIM_OK)
        status = safetensors_writer_end(&w, err);
    else
        safetensors_writer_abandon(&w);
    if (e->adapter) return status == PLIM_OK ? copy_adapter_config(e, dir, err) : status;
    if (status == PLIM_OK) status = hf_config_save(spec, e->result->type, dir, err);
    struct sentence_config how;
    if (status == PLIM_OK) status = sentence_config_load(e->source, &how, err);
    if (status == PLIM_OK && how.found) {
        struct model_spec vectors = *spec;
        vectors.pooling = how.pooling, vectors.normalize = how.normalize;
        status =
            sentence_config_save(dir, &vectors, how.max_length ? how.max_length : spec->max_positions, err);
    }
    char tokenizer[4096];
    if (status == PLIM_OK && codec_find(e->source, tokenizer, sizeof tokenizer))
        status = tokenizer_files_copy(tokenizer, dir, err);
    return status == PLIM_OK ? model_files_copy(e->source, dir, err) : status;
}

/* --- the folder -------------------------------------------------------------------------------------------
 */

static bool is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    bool empty = true;
    if (!d) return false;
    for (struct dirent *x; empty && (x = readdir(d));)
        empty = !strcmp(x->d_name, ".") || !strcmp(x->d_name, "..");
    closedir(d);
    return empty;
}

static bool names_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

static enum plim_status check_target(const char *from, const char *to, bool force, struct plim_error *err)
{
    struct stat a, b;
    if (stat(to, &b)) return PLIM_OK;
    if (S_ISREG(b.st_mode) && names_gguf(to))
        return force ? PLIM_OK
                     : plim_fail(err, PLIM_BAD_INPUT, "%s: exists; choose another target or add --force", to);
    if (!S_ISDIR(b.st_mode))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a folder; choose another target", to);
    if (!stat(from, &a) && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: source and target are the same; choose another target",
                         to);
    if (force || is_empty(to)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: exists and is not empty; choose another target or add --force",
                     to);
}

/* Into a folder beside the target, which then takes its name. */
static enum plim_status write_new(struct exporter *e, const struct model_spec *spec, const char *to,
                                  uint64_t shard_bytes, struct plim_error *err)
{
    STRBUF_AUTO temp = STRBUF_INIT;
    size_t n = strlen(to);
    while (n > 1 && to[n - 1] == '/') n--;
    strbuf_addf(&temp, "%.*s.tmp-%ld", (int)n, to, (long)getpid());
    enum plim_status status = strbuf_status(&temp, err);
    if (status == PLIM_OK) status = file_make_dirs(temp.data, err);
    if (status == PLIM_OK) {
        status = write_all(e, spec, temp.data, shard_bytes, err);
        if (e->gguf) {
            if (status == PLIM_OK) status = peft_write_gguf(temp.data, spec, to, err);
            checkpoint_remove(temp.data);
            return status;
        }
        if (status == PLIM_OK && rename(temp.data, to))
            status = plim_fail(err, PLIM_IO, "%s: cannot take its name: %s", to, strerror(errno));
        if (status == PLIM_OK)
            status = file_sync_parent(to, err);
        else
            checkpoint_remove(temp.data);
    }
    return status;
}

static enum plim_status open_source(struct exporter *e, const char *from, struct plim_error *err)
{
    STRBUF_AUTO state = STRBUF_INIT, file = STRBUF_INIT;
    strbuf_addf(&file, "%s%s", e->base, e->adapter ? "/" PEFT_WEIGHTS : "");
    enum plim_status status = strbuf_status(&file, err);
    if (status == PLIM_OK) status = weights_files_open(file.data, &e->params, err);
    e->params.path = from;
    if (status != PLIM_OK || e->peft) return status;
    strbuf_addf(&state, "%s/state", from);
    status = strbuf_status(&state, err);
    if (status == PLIM_OK && file_exists(state.data)) {
        status = safetensors_open(state.data, &e->state, err);
        e->has_state = status == PLIM_OK;
    }
    return status;
}

/* Weights come from the folder itself or, where an adapter is merged, from its base. */
static enum plim_status choose_weights(struct exporter *e, const char *from, const char *to,
                                       const struct export_options *options, struct plim_error *err)
{
    bool adapter = peft_find_base(from, e->base, sizeof e->base);
    if (options->merge && !adapter && !options->adapter)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: is not an adapter, so there is nothing to merge; leave --merge out, or add --adapter DIR",
            from);
    if (options->merge && adapter && !file_exists(e->base))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s/" PEFT_CONFIG
                         ": base_model_name_or_path '%.200s' is not here; write export MODEL "
                         "--merge --adapter %s",
                         from, e->base, from);
    e->adapter = adapter && !options->merge;
    e->gguf = e->adapter && names_gguf(to);
    if (names_gguf(to) && !e->gguf)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: a GGUF file is written of an adapter alone; name a folder for a model", to);
    if (!adapter || e->adapter) snprintf(e->base, sizeof e->base, "%s", from);
    if (options->merge && gguf_is(e->base))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: export the GGUF file first, and merge into that folder",
                         e->base);
    return PLIM_OK;
}

enum plim_status export_model(const char *from, const char *to, const struct export_options *options,
                              struct exported *out, struct plim_error *err)
{
    struct model_spec spec;
    struct label_names labels = {0};
    bool checked;
    *out = (struct exported){.type = DT_F32};
    struct exporter *e = calloc(1, sizeof *e);
    if (!e) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while an export was set up");
    e->type = options->type, e->result = out, e->source = from;
    e->from = e->masters = (struct stream){-1, NULL};
    enum plim_status status = check_target(from, to, options->force, err);
    if (status == PLIM_OK) status = choose_weights(e, from, to, options, err);
    if (status == PLIM_OK) status = checkpoint_check(from, MANIFEST_WEIGHTS | MANIFEST_STATE, &checked, err);
    if (status == PLIM_OK) status = hf_config_load(e->adapter ? from : e->base, &spec, err);
    const char *merged = options->adapter ? options->adapter : from;
    if (status == PLIM_OK && options->merge) status = peft_open(merged, &spec, &e->peft, err);
    out->sparse = status == PLIM_OK && spec.sparse_block > 0;
    if (status == PLIM_OK) status = labels_load(from, &labels, err);
    if (status == PLIM_OK && (int64_t)labels.list.count == spec.num_labels) spec.labels = labels.list.items;
    if (status == PLIM_OK) status = open_source(e, from, err);
    if (status == PLIM_OK) status = list_entries(e, err);
    if (status == PLIM_OK && file_exists(to) && !e->gguf && !is_empty(to))
        status = write_all(e, &spec, to, options->shard_bytes, err);
    else if (status == PLIM_OK)
        status = write_new(e, &spec, to, options->shard_bytes, err);
    stream_close(&e->from);
    stream_close(&e->masters);
    labels_release(&labels);
    free(e->entries);
    weights_files_close(&e->params);
    peft_close(e->peft);
    if (e->has_state) safetensors_close(&e->state);
    free(e);
    return status;
}
