/* checkpoint.c - finding, checking and restoring; checkpoint_save.c writes. See checkpoint.h. */
#include "train/checkpoint.h"
#include "base/file.h"
#include "base/json.h"
#include "store/safetensors.h"
#include "model/weights.h"
#include "train/checkpoint_folder.h"
#include "train/checkpoint_part.h"
#include "train/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
                     "%s: damaged: its name, trainer.json and manifest.json name different steps", c->path);
}

/* This rank's share of the files to read. */
struct share {
    int rank, ranks;
};

static enum plim_status load(struct checkpoint *c, unsigned parts, struct share share, struct plim_error *err)
{
    char file[560];
    snprintf(file, sizeof file, "%s/trainer.json", c->path);
    enum plim_status status = manifest_read(c->path, &c->manifest, err);
    if (status == PLIM_OK && !file_exists(file))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: damaged: it is missing", file);
    if (status == PLIM_OK && c->manifest)
        status = manifest_check(c->path, c->manifest, parts, share.rank, share.ranks, err);
    if (status == PLIM_OK && json_load(file, &c->doc, err) != PLIM_OK)
        status = err ? err->status : PLIM_BAD_INPUT;
    if (status == PLIM_OK && !c->manifest &&
        node_int(node_get(&c->doc->root, "format"), 1) >= CHECKPOINT_FORMAT)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s/manifest.json: damaged: it is missing", c->path);
    return status == PLIM_OK ? check_step(c, err) : status;
}

/* Names the newest intact checkpoint before a damaged one. */
static void offer_earlier(const char *path, struct plim_error *err)
{
    struct checkpoint other = {0};
    char dir[512];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int64_t step = checkpoint_name_step(slash ? slash + 1 : path);
    bool whole = false;
    while (!whole && step > 0 && (step = checkpoint_below(dir, step, other.path, sizeof other.path)) > 0) {
        whole = load(&other, MANIFEST_WEIGHTS | MANIFEST_STATE, (struct share){0, 1}, NULL) == PLIM_OK;
        doc_free(other.doc), doc_free(other.manifest);
        other.doc = other.manifest = NULL;
    }
    if (whole)
        plim_fail(err, err->status,
                  "%s; the previous one, %s, is intact: use it, or remove the damaged folder", err->text,
                  other.path);
    else
        plim_fail(err, err->status, "%s; there is no intact checkpoint before it: remove the damaged folder",
                  err->text);
}

static enum plim_status open_at(const char *path, unsigned parts, struct share share, struct checkpoint **out,
                                struct plim_error *err)
{
    struct plim_error why = {0};
    struct checkpoint *c = *out = calloc(1, sizeof *c);
    if (!c) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a checkpoint was opened");
    snprintf(c->path, sizeof c->path, "%s", path);
    enum plim_status status = load(c, parts, share, &why);
    if (status == PLIM_OK) return status;
    offer_earlier(path, &why);
    checkpoint_close(c);
    *out = NULL;
    return plim_fail(err, status, "%s", why.text);
}

enum plim_status checkpoint_find(const char *dir, struct comm *comm, struct checkpoint **out,
                                 struct plim_error *err)
{
    char path[512];
    struct share share = {comm_rank(comm), comm_ranks(comm)};
    int64_t step = checkpoint_newest(dir, path, sizeof path);
    *out = NULL;
    enum plim_status status = comm_same(comm, &step, sizeof step, "the newest checkpoint", err);
    if (status != PLIM_OK || !step) return status;
    status = open_at(path, MANIFEST_WEIGHTS | MANIFEST_STATE, share, out, err);
    status = comm_agree(comm, status, err);
    if (status != PLIM_OK) checkpoint_close(*out), *out = NULL;
    return status;
}

enum plim_status checkpoint_check(const char *dir, unsigned parts, bool *checked, struct plim_error *err)
{
    struct checkpoint *c = NULL;
    *checked = true;
    if (!checkpoint_is_ours(dir)) return PLIM_OK; /* a model of somebody else's */
    enum plim_status status = open_at(dir, parts, (struct share){0, 1}, &c, err);
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

/* The elements [*first, *first + *count) of a part of a tensor that this rank has. */
static void own_elements(const struct exec *exec, int id, const struct weights_part *part, int64_t *first,
                         int64_t *count)
{
    const struct tensor *t = &exec->tape->tensors[id];
    int64_t begin = exec_own_first(exec, id), end = begin + t->piece;
    *first = 0, *count = part->count;
    if (!t->piece) return;
    begin -= part->first, end -= part->first;
    if (begin < 0) begin = 0;
    if (end > part->count) end = part->count;
    *first = begin, *count = end > begin ? end - begin : 0;
}

static enum plim_status restore_tensor(const struct safetensors *set, const char *dir, struct trainer *t,
                                       int id, bool state, struct plim_error *err)
{
    enum dtype type = t->runtime.plan.tape.tensors[id].type;
    enum plim_status status = PLIM_OK;
    int count = weights_part_count(&t->runtime.plan.tape, id);
    for (int i = 0; i < count && status == PLIM_OK; i++) {
        const struct weights_part part = weights_part(&t->job->spec, &t->runtime.plan.tape, id, i);
        char buf[256];
        const char *name = checkpoint_name(t, &part, state, buf, sizeof buf);
        const struct safetensor *have = safetensors_find(set, name);
        struct restore r = {&t->runtime.exec, id, part.first};
        int64_t first, own;
        own_elements(r.exec, id, &part, &first, &own);
        if (!have || have->count != part.count || have->type != type)
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor %s is %s; the checkpoint is not of this job",
                               dir, name, have ? "of another shape or type" : "missing");
        else
            status = safetensors_read_part(set, have, type, first, own, restore_piece, &r, err);
    }
    return status;
}

static enum plim_status restore_set(const char *dir, bool state, struct trainer *t, struct plim_error *err)
{
    struct safetensors set;
    enum plim_status status = safetensors_open(dir, &set, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < t->runtime.plan.tape.ntensors && status == PLIM_OK; i++)
        if (checkpoint_keeps(t, &t->runtime.plan.tape.tensors[i], state))
            status = restore_tensor(&set, dir, t, i, state, err);
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
    snprintf(dir, sizeof dir, "%s%s", c->path, t->job->adapting ? "/" PEFT_WEIGHTS : "");
    enum plim_status status = restore_set(dir, false, t, err);
    snprintf(dir, sizeof dir, "%s/state", c->path);
    if (status == PLIM_OK) status = restore_set(dir, true, t, err);
    if (status == PLIM_OK) status = restore_data(c, t, order_changed, err);
    if (status != PLIM_OK) return status;
    t->step = node_int(node_get(root, "step"), 0);
    t->updates = node_int(node_get(root, "updates"), t->step);
    t->saved_step = t->step;
    t->stuck = node_int(node_get(root, "stuck"), 0);
    t->eval_due = node_bool(node_get(root, "eval_due"), false);
    t->scaler.scale = node_float(node_path(root, "scaler.scale"), t->scaler.scale);
    t->scaler.good_steps = node_int(node_path(root, "scaler.good_steps"), 0);
    t->scaler.overflows = node_int(node_path(root, "scaler.overflows"), 0);
    lr_schedule_restore(&t->schedule, node_get(root, "schedule"));
    best_model_restore(&t->best, node_get(root, "best"));
    return PLIM_OK;
}
