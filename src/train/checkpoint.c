/* checkpoint.c - see checkpoint.h.
 *
 * Names tell what a folder is: PREFIX and a step is a checkpoint, and complete when trainer.json is in it, which is
 * written last; TEMP PREFIX is one that is being written or removed and may go at any time. */
#define _GNU_SOURCE /* renameat2 */
#include "train/checkpoint.h"
#include "base/file.h"
#include "base/json.h"
#include "store/safetensors.h"
#include "model/hf.h"
#include "model/weights.h"
#include "train/tokenizer_files.h"
#include "train/trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "checkpoint-"
#define TEMP   ".tmp-"
#define PIECE  (1 << 20)

struct checkpoint {
    char path[512];
    struct doc *doc; /* trainer.json */
};

const char *checkpoint_path(const struct checkpoint *c) { return c->path; }

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    doc_free(c->doc);
    free(c);
}

/* Step of a folder name like checkpoint-00000120, or -1. */
static int64_t step_of_name(const char *name)
{
    if (strncmp(name, PREFIX, sizeof PREFIX - 1)) return -1;
    const char *digits = name + sizeof PREFIX - 1;
    char *end;
    long long step = strtoll(digits, &end, 10);
    return *digits && !*end ? step : -1;
}

int64_t checkpoint_newest(const char *dir, char *path, size_t size)
{
    DIR *d = opendir(dir);
    int64_t newest = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step = step_of_name(e->d_name);
        char last[800];
        snprintf(last, sizeof last, "%s/%s/trainer.json", dir, e->d_name);
        if (step <= newest || !file_exists(last)) continue;
        newest = step;
        snprintf(path, size, "%s/%s", dir, e->d_name);
    }
    closedir(d);
    return newest;
}

int64_t checkpoint_count(const char *dir)
{
    DIR *d = opendir(dir);
    int64_t count = 0;
    for (struct dirent *e; d && (e = readdir(d));) count += step_of_name(e->d_name) >= 0;
    if (d) closedir(d);
    return count;
}

/* What must be the same for a checkpoint to go on: everything that shapes the kept tensors. */
static void write_identity(const struct job *job, struct strbuf *out)
{
    const struct model_spec *s = &job->spec;
    strbuf_addf(out,
                "\"model\":{\"architecture\":\"%s\",\"vocab_size\":%lld,\"hidden_size\":%lld,"
                "\"intermediate_size\":%lld,\"num_layers\":%d,\"num_attention_heads\":%d,"
                "\"num_key_value_heads\":%d,\"head_dim\":%d,\"tie_word_embeddings\":%s},"
                "\"mixed_precision\":\"%s\",\"optimizer\":\"%s\",\"master_weights\":\"%s\","
                "\"state_dtype\":\"%s\"",
                model_architecture_name(s->arch), (long long)s->vocab_size, (long long)s->hidden_size,
                (long long)s->intermediate_size, s->num_layers, s->num_heads, s->num_kv_heads, s->head_dim,
                s->tie_embeddings ? "true" : "false", precision_name((enum precision)job->training.precision),
                optimizer_name((enum optimizer)job->training.optimizer),
                job->training.master ? "none" : "fp32", job->training.state_type ? "bf16" : "fp32");
}

/* First leaf below `want` that `have` lacks or has otherwise; its path into key. */
static bool differs(const struct node *want, const struct node *have, char *key, size_t size)
{
    for (size_t i = 0; i < node_count(want); i++) {
        const struct node *w = node_item(want, i), *h = node_get(have, w->key);
        bool same = h && h->kind == w->kind;
        if (same && w->kind == NODE_MAP) {
            if (differs(w, h, key, size)) return true;
            continue;
        }
        if (same && w->kind == NODE_INT) same = w->as.integer == h->as.integer;
        if (same && w->kind == NODE_BOOL) same = w->as.boolean == h->as.boolean;
        if (same && w->kind == NODE_STRING) same = !strcmp(w->as.string.text, h->as.string.text);
        if (same) continue;
        snprintf(key, size, "%s", w->key);
        return true;
    }
    return false;
}

static enum plim_status check_identity(const struct job *job, const struct checkpoint *c,
                                       struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *mine = NULL;
    char key[64];
    strbuf_addf(&text, "{");
    write_identity(job, &text);
    strbuf_addf(&text, "}");
    enum plim_status status = json_parse(text.data, text.len, "job", &mine, err);
    if (status == PLIM_OK && differs(&mine->root, &c->doc->root, key, sizeof key))
        status = plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: this checkpoint is of another model: '%s' differs from %s; choose another output.dir "
            "or mend the config",
            c->path, key, job->name);
    doc_free(mine);
    strbuf_release(&text);
    return status;
}

enum plim_status checkpoint_find(const struct job *job, struct checkpoint **out, struct plim_error *err)
{
    *out = NULL;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while checkpoints were looked for");
    char file[560];
    if (!checkpoint_newest(job->output_dir, c->path, sizeof c->path)) {
        free(c);
        return PLIM_OK;
    }
    snprintf(file, sizeof file, "%s/trainer.json", c->path);
    enum plim_status status = json_load(file, &c->doc, err);
    if (status == PLIM_OK) status = check_identity(job, c, err);
    if (status != PLIM_OK) {
        checkpoint_close(c);
        return status;
    }
    *out = c;
    return PLIM_OK;
}

/* --- restoring --- */

struct restore {
    struct exec *exec;
    int tensor;
    int64_t first; /* element with which the part begins */
};

static enum plim_status restore_piece(void *arg, int64_t first, const void *elements, int64_t n,
                                      struct plim_error *err)
{
    struct restore *r = arg;
    int64_t size = (int64_t)dtype_size(r->exec->tape->tensors[r->tensor].type);
    return exec_write(r->exec, r->tensor, elements, (r->first + first) * size, n * size, err);
}

static bool is_saved(const struct tensor *t, bool state)
{
    if (t->view_of >= 0 || !(t->flags & TENSOR_KEPT)) return false;
    return state ? t->cls == CLASS_MASTER || t->cls == CLASS_STATE : t->cls == CLASS_PARAM;
}

static enum plim_status restore_tensor(const struct safetensors *set, const char *dir, struct trainer *t,
                                       int id, struct plim_error *err)
{
    struct weights_part parts[WEIGHTS_PARTS];
    enum dtype type = t->runtime.plan.tape.tensors[id].type;
    enum plim_status status = PLIM_OK;
    int count = weights_parts(&t->job->spec, &t->runtime.plan.tape, id, parts);
    for (int i = 0; i < count && status == PLIM_OK; i++) {
        const struct safetensor *have = safetensors_find(set, parts[i].name);
        struct restore r = {&t->runtime.exec, id, parts[i].first};
        if (!have || have->count != parts[i].count || have->type != type)
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor %s is %s; the checkpoint is not of this job",
                               dir, parts[i].name, have ? "of another shape or type" : "missing");
        else
            status = safetensors_read(set, have, type, restore_piece, &r, err);
    }
    return status;
}

static enum plim_status restore_set(const char *dir, bool state, struct trainer *t, struct plim_error *err)
{
    struct safetensors set;
    enum plim_status status = safetensors_open(dir, &set, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < t->runtime.plan.tape.ntensors && status == PLIM_OK; i++)
        if (is_saved(&t->runtime.plan.tape.tensors[i], state)) status = restore_tensor(&set, dir, t, i, err);
    safetensors_close(&set);
    return status;
}

enum plim_status checkpoint_restore(struct checkpoint *c, struct trainer *t, struct plim_error *err)
{
    char dir[560];
    const struct node *root = &c->doc->root;
    enum plim_status status = restore_set(c->path, false, t, err);
    snprintf(dir, sizeof dir, "%s/state", c->path);
    if (status == PLIM_OK) status = restore_set(dir, true, t, err);
    if (status != PLIM_OK) return status;
    t->step = node_int(node_get(root, "step"), 0);
    t->updates = node_int(node_get(root, "updates"), t->step);
    t->saved_step = t->step;
    loader_set_seed(t->loader, (uint64_t)node_int(node_get(root, "seed"), (int64_t)loader_seed(t->loader)));
    status = loader_restore(t->loader, node_get(root, "loader"),
                            (uint64_t)node_int(node_get(root, "position"), 0), err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s", c->path);
        return status;
    }
    t->scaler.scale = node_float(node_path(root, "scaler.scale"), t->scaler.scale);
    t->scaler.good_steps = node_int(node_path(root, "scaler.good_steps"), 0);
    schedule_restore(&t->schedule, node_get(root, "schedule"));
    return PLIM_OK;
}

/* --- saving --- */

/* Bytes [first, first + count) of a tensor, which are a tensor of the file. */
struct span {
    int tensor;
    int64_t first, count;
};

static enum plim_status stream_span(struct trainer *t, const struct span *s, struct safetensors_writer *w,
                                    char *piece, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < s->count && status == PLIM_OK; at += PIECE) {
        int64_t n = s->count - at < PIECE ? s->count - at : PIECE;
        status = exec_read(&t->runtime.exec, s->tensor, piece, s->first + at, n, err);
        if (status == PLIM_OK) status = safetensors_writer_put(w, piece, (size_t)n, err);
    }
    return status;
}

static enum plim_status list_entries(struct trainer *t, bool state, struct bump *store,
                                     struct safetensors_entry **entries, struct span **spans, size_t *count,
                                     struct plim_error *err)
{
    const struct tape *tape = &t->runtime.plan.tape;
    size_t n = 0;
    for (int i = 0; i < tape->ntensors; i++) n += is_saved(&tape->tensors[i], state);
    *entries = bump_alloc(store, (n * WEIGHTS_PARTS + 1) * sizeof **entries);
    *spans = bump_alloc(store, (n * WEIGHTS_PARTS + 1) * sizeof **spans);
    *count = 0;
    bool good = *entries && *spans;
    for (int i = 0; good && i < tape->ntensors; i++) {
        struct weights_part parts[WEIGHTS_PARTS];
        const struct tensor *x = &tape->tensors[i];
        int64_t size = (int64_t)dtype_size(x->type);
        int pieces = is_saved(x, state) ? weights_parts(&t->job->spec, tape, i, parts) : 0;
        for (int k = 0; k < pieces && good; k++) {
            const struct weights_part *p = &parts[k];
            struct safetensors_entry e = {
                .name = bump_copy(store, p->name, strlen(p->name)), .type = x->type, .ndim = p->ndim};
            memcpy(e.dim, p->dim, sizeof p->dim);
            good = e.name != NULL;
            (*spans)[*count] = (struct span){i, p->first * size, p->count * size};
            (*entries)[(*count)++] = e;
        }
    }
    return good ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was written");
}

static enum plim_status save_set(struct trainer *t, bool state, const char *dir, struct plim_error *err)
{
    struct bump store = {0};
    struct safetensors_entry *entries = NULL;
    struct safetensors_writer w;
    struct span *spans = NULL;
    size_t count = 0;
    char *piece = malloc(PIECE);
    enum plim_status status =
        piece ? list_entries(t, state, &store, &entries, &spans, &count, err)
              : plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was written");
    if (status == PLIM_OK) status = file_make_dirs(dir, err);
    if (status == PLIM_OK) {
        status = safetensors_writer_begin(&w, dir, entries, count, UINT64_MAX, err);
        if (status == PLIM_OK) {
            for (size_t i = 0; i < count && status == PLIM_OK; i++)
                status = stream_span(t, &spans[i], &w, piece, err);
            if (status == PLIM_OK)
                status = safetensors_writer_end(&w, err);
            else
                safetensors_writer_abandon(&w);
        }
    }
    free(piece);
    bump_free(&store);
    return status;
}

static enum plim_status save_texts(struct trainer *t, const char *dir, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[640];
    hf_config_write(&t->job->spec, precision_type((enum precision)t->job->training.precision), &text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    strbuf_release(&text);
    if (status != PLIM_OK) return status;
    text = (struct strbuf)STRBUF_INIT;
    struct loader_state data;
    loader_state(t->loader, &data);
    strbuf_addf(&text, "{\"step\":%lld,\"updates\":%lld,\"position\":%llu,\"seed\":%llu,", (long long)t->step,
                (long long)t->updates, (unsigned long long)data.rows,
                (unsigned long long)loader_seed(t->loader));
    write_identity(t->job, &text);
    strbuf_addf(&text, ",\"scaler\":{\"scale\":%.17g,\"good_steps\":%lld},\"schedule\":", t->scaler.scale,
                (long long)t->scaler.good_steps);
    schedule_save(&t->schedule, &text);
    strbuf_addf(&text, ",\"loader\":");
    loader_save(t->loader, &text);
    strbuf_addf(&text, "}\n");
    snprintf(path, sizeof path, "%s/trainer.json", dir);
    status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    strbuf_release(&text);
    return status;
}

/* Remove a file, a link or a folder two levels deep: ours have no more. */
static void remove_tree(const char *path, int depth)
{
    if (!unlink(path) || depth < 0) return;
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char child[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        remove_tree(child, depth - 1);
    }
    closedir(d);
    rmdir(path);
}

void checkpoint_remove(const char *path) { remove_tree(path, 2); }

/* The oldest checkpoint before `newest` into victim ("" when there is none); how many there are up to it. What
 * earlier crashes left half-written or half-removed goes. */
static int64_t find_oldest(const char *dir, int64_t newest, char *victim, size_t size)
{
    int64_t oldest = newest, count = 0;
    DIR *d = opendir(dir);
    *victim = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step = step_of_name(e->d_name);
        char partial[800];
        snprintf(partial, sizeof partial, "%s/%s", dir, e->d_name);
        if (!strncmp(e->d_name, TEMP PREFIX, sizeof TEMP PREFIX - 1)) remove_tree(partial, 2);
        count += step >= 0 && step <= newest;
        if (step >= 0 && step < oldest) oldest = step, snprintf(victim, size, "%s", partial);
    }
    if (d) closedir(d);
    return count;
}

/* Keep the newest `keep`. A victim loses its name first: half removed, it must not pass for a checkpoint. */
static void prune(const char *dir, int64_t keep, int64_t newest)
{
    char victim[800], away[600];
    snprintf(away, sizeof away, "%s/" TEMP PREFIX "old", dir);
    while (find_oldest(dir, newest, victim, sizeof victim) > keep && *victim) {
        if (rename(victim, away)) return; /* not ours to remove */
        remove_tree(away, 2);
    }
}

/* The complete folder temp takes the name `path`; one that an earlier run left there is exchanged for it. */
static enum plim_status take_name(const char *temp, const char *path, struct plim_error *err)
{
    if (!rename(temp, path)) return file_sync_parent(path, err);
    if (errno != ENOTEMPTY && errno != EEXIST)
        return plim_fail(err, PLIM_IO, "%s: cannot rename the checkpoint into place: %s", path,
                         strerror(errno));
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE))
        return plim_fail(err, PLIM_IO, "%s: is in the way: %s; remove it or choose another output.dir", path,
                         strerror(errno));
    enum plim_status status = file_sync_parent(path, err);
    remove_tree(temp, 2);
    return status;
}

enum plim_status checkpoint_save(struct trainer *t, char *path, size_t size, struct plim_error *err)
{
    const char *dir = t->job->output_dir;
    char temp[512], state[560];
    snprintf(path, size, "%s/" PREFIX "%08lld", dir, (long long)t->step);
    if (t->step > 0 && t->saved_step == t->step)
        return PLIM_OK; /* resumed and stopped again at the same step */
    snprintf(temp, sizeof temp, "%s/" TEMP PREFIX "%08lld", dir, (long long)t->step);
    snprintf(state, sizeof state, "%s/state", temp);
    remove_tree(temp, 2);
    enum plim_status status = file_make_dirs(temp, err);
    if (status == PLIM_OK) status = save_set(t, false, temp, err);
    if (status == PLIM_OK) status = save_set(t, true, state, err);
    if (status == PLIM_OK) status = tokenizer_files_copy(t->corpus.codec.path, temp, err);
    if (status == PLIM_OK) status = save_texts(t, temp, err);
    if (status == PLIM_OK) status = take_name(temp, path, err);
    if (status != PLIM_OK) {
        remove_tree(temp, 2);
        plim_error_prefix(err, "checkpoint of step %lld not saved, earlier ones are intact",
                          (long long)t->step);
        return status;
    }
    t->saved_step = t->step;
    prune(dir, t->job->keep_checkpoints, t->step);
    return PLIM_OK;
}
