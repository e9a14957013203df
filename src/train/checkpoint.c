/* checkpoint.c - see checkpoint.h.
 *
 * manifest.json is written last and binds everything else; then the folder gets its name (checkpoint_folder.h). */
#include "train/checkpoint.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "store/safetensors.h"
#include "model/hf.h"
#include "model/sentence.h"
#include "model/weights.h"
#include "train/checkpoint_folder.h"
#include "train/manifest.h"
#include "train/tokenizer_files.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE      (1 << 20)
#define FORMAT     2             /* of trainer.json; from 2 on there is a manifest */
#define STEPS_MOST 1000000000000 /* training.steps has no more */

struct checkpoint {
    char path[512];
    struct doc *doc;      /* trainer.json */
    struct doc *manifest; /* NULL: of a version that wrote none */
};

const char *checkpoint_path(const struct checkpoint *c) { return c->path; }
const struct node *checkpoint_manifest(const struct checkpoint *c)
{
    return c->manifest ? &c->manifest->root : NULL;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    doc_free(c->doc);
    doc_free(c->manifest);
    free(c);
}

/* --- whole or damaged --- */

/* A count that trainer.json must have, whole and within its limits. */
static enum plim_status read_count(const struct checkpoint *c, const char *key, int64_t most, int64_t *out,
                                   struct plim_error *err)
{
    const struct node *node = node_get(&c->doc->root, key);
    if (node && node_is_whole(node, out) && *out >= 0 && *out <= most) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s/trainer.json: damaged: '%s' is %s", c->path, key,
                     node ? "no number that it can be" : "missing");
}

/* trainer.json's own numbers, the manifest and the folder's name tell of one step. */
static enum plim_status check_step(const struct checkpoint *c, struct plim_error *err)
{
    int64_t step, updates, bound;
    const char *slash = strrchr(c->path, '/');
    int64_t named = checkpoint_name_step(slash ? slash + 1 : c->path);
    enum plim_status status = read_count(c, "step", STEPS_MOST, &step, err);
    if (status == PLIM_OK && node_get(&c->doc->root, "updates"))
        status = read_count(c, "updates", step, &updates, err);
    if (status != PLIM_OK) return status;
    bound = c->manifest ? node_int(node_get(&c->manifest->root, "step"), -1) : step;
    if (bound == step && (named < 0 || named == step)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: damaged: its name, trainer.json and manifest.json tell of different steps",
                     c->path);
}

static enum plim_status load(struct checkpoint *c, unsigned parts, struct plim_error *err)
{
    char file[560];
    snprintf(file, sizeof file, "%s/trainer.json", c->path);
    enum plim_status status = manifest_read(c->path, &c->manifest, err);
    if (status == PLIM_OK && c->manifest) status = manifest_check(c->path, c->manifest, parts, err);
    if (status == PLIM_OK && json_load(file, &c->doc, err) != PLIM_OK)
        status = err ? err->status : PLIM_BAD_INPUT;
    if (status == PLIM_OK && !c->manifest && node_int(node_get(&c->doc->root, "format"), 1) >= FORMAT)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s/manifest.json: damaged: it is missing", c->path);
    return status == PLIM_OK ? check_step(c, err) : status;
}

/* What can be had instead of a damaged checkpoint: the newest one before it that is whole. */
static void offer_earlier(const char *path, struct plim_error *err)
{
    struct checkpoint other = {0};
    char dir[512];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int64_t step = checkpoint_name_step(slash ? slash + 1 : path);
    bool whole = false;
    while (!whole && step > 0 && (step = checkpoint_below(dir, step, other.path, sizeof other.path)) > 0) {
        whole = load(&other, MANIFEST_WEIGHTS | MANIFEST_STATE, NULL) == PLIM_OK;
        doc_free(other.doc), doc_free(other.manifest);
        other.doc = other.manifest = NULL;
    }
    if (whole)
        plim_fail(err, err->status,
                  "%s; the one before, %s, is whole: use that, or remove the damaged folder", err->text,
                  other.path);
    else
        plim_fail(err, err->status, "%s; there is no whole checkpoint before it", err->text);
}

static enum plim_status open_at(const char *path, unsigned parts, struct checkpoint **out,
                                struct plim_error *err)
{
    struct plim_error why = {0};
    struct checkpoint *c = *out = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was opened");
    snprintf(c->path, sizeof c->path, "%s", path);
    enum plim_status status = load(c, parts, &why);
    if (status == PLIM_OK) return status;
    offer_earlier(path, &why);
    checkpoint_close(c);
    *out = NULL;
    return plim_fail(err, status, "%s", why.text);
}

enum plim_status checkpoint_find(const char *dir, struct checkpoint **out, struct plim_error *err)
{
    char path[512];
    *out = NULL;
    if (!checkpoint_newest(dir, path, sizeof path)) return PLIM_OK;
    return open_at(path, MANIFEST_WEIGHTS | MANIFEST_STATE, out, err);
}

enum plim_status checkpoint_check(const char *dir, unsigned parts, bool *checked, struct plim_error *err)
{
    struct checkpoint *c = NULL;
    char last[1100];
    *checked = true;
    snprintf(last, sizeof last, "%s/trainer.json", dir);
    if (!file_exists(last)) return PLIM_OK; /* a model of somebody else's */
    enum plim_status status = open_at(dir, parts, &c, err);
    if (c) *checked = c->manifest != NULL;
    checkpoint_close(c);
    return status;
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
    enum dtype type = t->runtime.plan.tape.tensors[id].type;
    enum plim_status status = PLIM_OK;
    int count = weights_part_count(&t->runtime.plan.tape, id);
    for (int i = 0; i < count && status == PLIM_OK; i++) {
        const struct weights_part part = weights_part(&t->job->spec, &t->runtime.plan.tape, id, i);
        const struct safetensor *have = safetensors_find(set, part.name);
        struct restore r = {&t->runtime.exec, id, part.first};
        if (!have || have->count != part.count || have->type != type)
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor %s is %s; the checkpoint is not of this job",
                               dir, part.name, have ? "of another shape or type" : "missing");
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

/* Where the data go on. When the caller knows that their order is another one, they begin at the first row. */
static enum plim_status restore_data(const struct checkpoint *c, struct trainer *t, bool order_changed,
                                     struct plim_error *err)
{
    const struct node *root = &c->doc->root;
    struct plim_error why = {0};
    if (!c->manifest) loader_set_seed(t->loader, (uint64_t)node_int(node_get(root, "seed"), 1));
    enum plim_status status = loader_restore(t->loader, node_get(root, "loader"),
                                             (uint64_t)node_int(node_get(root, "position"), 0), &why);
    if (status == PLIM_OK) return status;
    if (order_changed && status == PLIM_BAD_INPUT)
        return loader_seek(t->loader, &(struct loader_state){0}, err);
    return plim_fail(err, status, "%s: %s", c->path, why.text);
}

enum plim_status checkpoint_restore(struct checkpoint *c, struct trainer *t, bool order_changed,
                                    struct plim_error *err)
{
    char dir[560];
    const struct node *root = &c->doc->root;
    enum plim_status status = restore_set(c->path, false, t, err);
    snprintf(dir, sizeof dir, "%s/state", c->path);
    if (status == PLIM_OK) status = restore_set(dir, true, t, err);
    if (status == PLIM_OK) status = restore_data(c, t, order_changed, err);
    if (status != PLIM_OK) return status;
    t->step = node_int(node_get(root, "step"), 0);
    t->updates = node_int(node_get(root, "updates"), t->step);
    t->saved_step = t->step;
    t->scaler.scale = node_float(node_path(root, "scaler.scale"), t->scaler.scale);
    t->scaler.good_steps = node_int(node_path(root, "scaler.good_steps"), 0);
    t->scaler.overflows = node_int(node_path(root, "scaler.overflows"), 0);
    schedule_restore(&t->schedule, node_get(root, "schedule"));
    return PLIM_OK;
}

/* --- saving --- */

/* Bytes [first, first + count) of a tensor, which are a tensor of the file. */
struct span {
    int tensor;
    int64_t first, count;
};

/* `w` NULL: another rank writes, and this one gives its pieces. */
static enum plim_status stream_span(struct trainer *t, const struct span *s, struct safetensors_writer *w,
                                    char *piece, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < s->count && status == PLIM_OK; at += PIECE) {
        int64_t n = s->count - at < PIECE ? s->count - at : PIECE;
        status = exec_read(&t->runtime.exec, s->tensor, piece, s->first + at, n, err);
        if (status == PLIM_OK && w) status = safetensors_writer_put(w, piece, (size_t)n, err);
    }
    return status;
}

static enum plim_status list_entries(struct trainer *t, bool state, struct bump *store,
                                     struct safetensors_entry **entries, struct span **spans, size_t *count,
                                     struct plim_error *err)
{
    const struct tape *tape = &t->runtime.plan.tape;
    size_t n = 0;
    for (int i = 0; i < tape->ntensors; i++)
        if (is_saved(&tape->tensors[i], state)) n += (size_t)weights_part_count(tape, i);
    *entries = bump_alloc(store, (n + 1) * sizeof **entries);
    *spans = bump_alloc(store, (n + 1) * sizeof **spans);
    *count = 0;
    bool good = *entries && *spans;
    for (int i = 0; good && i < tape->ntensors; i++) {
        const struct tensor *x = &tape->tensors[i];
        int64_t size = (int64_t)dtype_size(x->type);
        int pieces = is_saved(x, state) ? weights_part_count(tape, i) : 0;
        for (int k = 0; k < pieces && good; k++) {
            const struct weights_part part = weights_part(&t->job->spec, tape, i, k), *p = &part;
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

/* The tensors of the list, one behind the other, into a new file. */
static enum plim_status write_set(struct trainer *t, const char *dir, const char *name,
                                  const struct safetensors_entry *entries, const struct span *spans,
                                  size_t count, char *piece, struct manifest_files *files,
                                  struct plim_error *err)
{
    struct safetensors_writer w;
    enum plim_status status = file_make_dirs(dir, err);
    if (status == PLIM_OK) status = safetensors_writer_begin(&w, dir, entries, count, UINT64_MAX, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < count && status == PLIM_OK; i++)
        status = stream_span(t, &spans[i], &w, piece, err);
    if (status == PLIM_OK) manifest_add(files, name, w.sum.bytes, checksum_end(&w.sum));
    if (status == PLIM_OK) return safetensors_writer_end(&w, err);
    safetensors_writer_abandon(&w);
    return status;
}

static enum plim_status save_set(struct trainer *t, bool state, const char *dir, struct manifest_files *files,
                                 struct plim_error *err)
{
    const char *name = state ? "state/model.safetensors" : "model.safetensors"; /* one shard: no limit */
    struct bump store = {0};
    struct safetensors_entry *entries = NULL;
    struct span *spans = NULL;
    size_t count = 0;
    char *piece = malloc(PIECE);
    enum plim_status status =
        piece ? list_entries(t, state, &store, &entries, &spans, &count, err)
              : plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was written");
    bool writes = comm_rank(t->runtime.device->comm) == 0;
    if (status == PLIM_OK && writes)
        status = write_set(t, dir, name, entries, spans, count, piece, files, err);
    for (size_t i = 0; !writes && i < count && status == PLIM_OK; i++)
        status = stream_span(t, &spans[i], NULL, piece, err);
    free(piece);
    bump_free(&store);
    return status;
}

static enum plim_status save_text(const char *dir, const char *name, struct strbuf *text,
                                  struct manifest_files *files, struct plim_error *err)
{
    char path[640];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    enum plim_status status = strbuf_status(text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text->data, text->len, err);
    if (status == PLIM_OK) manifest_add(files, name, text->len, hash64(text->data, text->len, 0));
    strbuf_release(text);
    return status;
}

static void write_trainer(const struct trainer *t, struct strbuf *text)
{
    struct loader_state data;
    loader_state(t->loader, &data);
    strbuf_addf(text, "{\"format\":%d,\"step\":%lld,\"updates\":%lld,\"position\":%llu,\"seed\":%llu,",
                FORMAT, (long long)t->step, (long long)t->updates, (unsigned long long)data.rows,
                (unsigned long long)loader_seed(t->loader));
    strbuf_addf(text, "\"mixed_precision\":\"%s\",\"optimizer\":\"%s\",",
                precision_name((enum precision)t->job->training.precision),
                optimizer_name((enum optimizer)t->job->training.optimizer));
    strbuf_addf(text, "\"scaler\":{\"scale\":%.17g,\"good_steps\":%lld,\"overflows\":%lld},\"schedule\":",
                t->scaler.scale, (long long)t->scaler.good_steps, (long long)t->scaler.overflows);
    schedule_save(&t->schedule, text);
    strbuf_addf(text, ",\"loader\":");
    loader_save(t->loader, text);
    strbuf_addf(text, "}\n");
}

static enum plim_status save_texts(struct trainer *t, const char *dir, struct manifest_files *files,
                                   struct plim_error *err)
{
    struct strbuf config = STRBUF_INIT, trainer = STRBUF_INIT;
    hf_config_write(&t->job->spec, precision_type((enum precision)t->job->training.precision), &config);
    enum plim_status status = save_text(dir, "config.json", &config, files, err);
    if (status == PLIM_OK) status = tokenizer_files_copy(t->corpus.codec.path, dir, err);
    bool vectors = t->job->spec.task == TASK_EMBEDDING;
    if (status == PLIM_OK && vectors)
        status = sentence_config_save(dir, &t->job->spec, t->job->max_length, err);
    for (int i = 0; vectors && sentence_file_name(i) && status == PLIM_OK; i++)
        status = manifest_add_file(files, dir, sentence_file_name(i), err);
    for (int i = 0; tokenizer_file_name(i) && status == PLIM_OK; i++)
        status = manifest_add_file(files, dir, tokenizer_file_name(i), err);
    if (status != PLIM_OK) return status;
    write_trainer(t, &trainer);
    return save_text(dir, "trainer.json", &trainer, files, err);
}

/* Every file of the checkpoint, into a folder without its final name. */
static enum plim_status save_files(struct trainer *t, const char *dir, struct plim_error *err)
{
    struct manifest_files files = {0};
    struct manifest_about about = {.step = t->step,
                                   .now = t->start.now,
                                   .machine = t->runtime.device->facts.name,
                                   .knobs = &t->runtime.plan.knobs,
                                   .run = &t->start.facts->root};
    char state[560];
    bool writes = comm_rank(t->runtime.device->comm) == 0;
    snprintf(state, sizeof state, "%s/state", dir);
    enum plim_status status = writes ? file_make_dirs(dir, err) : PLIM_OK;
    if (status == PLIM_OK) status = save_set(t, false, dir, &files, err);
    if (status == PLIM_OK) status = save_set(t, true, state, &files, err);
    if (status == PLIM_OK && writes) status = save_texts(t, dir, &files, err);
    return status == PLIM_OK && writes ? manifest_write(dir, &about, &files, err) : status;
}

/* What is written gets its name: rank 0's work. */
static enum plim_status give_name(struct trainer *t, const char *temp, const char *path,
                                  struct plim_error *err)
{
    /* Between the two, a crash leaves no checkpoint with a name rather than one of the run that was to be replaced. */
    if (t->start.replaces) checkpoint_clear(t->job->output_dir);
    return checkpoint_take_name(temp, path, err);
}

enum plim_status checkpoint_save(struct trainer *t, char *path, size_t size, struct plim_error *err)
{
    const char *dir = t->job->output_dir;
    struct comm *comm = t->runtime.device->comm;
    bool writes = comm_rank(comm) == 0;
    char temp[512];
    snprintf(path, size, "%s/" CHECKPOINT_PREFIX "%08lld", dir, (long long)t->step);
    if (t->step > 0 && t->saved_step == t->step)
        return PLIM_OK; /* resumed and stopped again at the same step */
    snprintf(temp, sizeof temp, "%s/" CHECKPOINT_TEMP CHECKPOINT_PREFIX "%08lld", dir, (long long)t->step);
    if (writes) checkpoint_remove(temp);
    enum plim_status status = save_files(t, temp, err);
    if (status == PLIM_OK && writes) status = give_name(t, temp, path, err);
    if (status != PLIM_OK) {
        if (writes) checkpoint_remove(temp);
        plim_error_prefix(err, "checkpoint of step %lld not saved, earlier ones are intact",
                          (long long)t->step);
        return status;
    }
    t->start.replaces = false;
    t->saved_step = t->step;
    if (writes) checkpoint_prune(dir, t->job->keep_checkpoints, t->step);
    return PLIM_OK;
}
