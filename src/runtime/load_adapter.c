/* load_adapter.c - PEFT's files into a tape: merged into the model's weights, or as an adapter's own. See load.h. */
#include "model/peft.h"
#include "model/weights.h"
#include "runtime/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- merging ------------------------------------------------------------------------------------------------ */

enum { MERGE_BLOCK = 4096 }; /* numbers converted at a time */

/* One part of a parameter. */
struct merge_part {
    struct exec *exec;
    int param;
    int64_t first;
};

static enum plim_status get(void *arg, int64_t first, float *values, int64_t n, struct plim_error *err)
{
    const struct merge_part *p = arg;
    enum dtype type = p->exec->tape->tensors[p->param].type;
    int64_t size = (int64_t)dtype_size(type);
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += MERGE_BLOCK) {
        float raw[MERGE_BLOCK];
        int64_t k = n - at < MERGE_BLOCK ? n - at : MERGE_BLOCK;
        status = exec_read(p->exec, p->param, raw, (p->first + first + at) * size, k * size, err);
        if (status == PLIM_OK) dtype_convert(values + at, DT_F32, raw, type, k);
    }
    return status;
}

static enum plim_status put(void *arg, int64_t first, const float *values, int64_t n, struct plim_error *err)
{
    const struct merge_part *p = arg;
    enum dtype type = p->exec->tape->tensors[p->param].type;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += MERGE_BLOCK) {
        float raw[MERGE_BLOCK];
        int64_t k = n - at < MERGE_BLOCK ? n - at : MERGE_BLOCK;
        dtype_convert(raw, type, values + at, DT_F32, k);
        status = weights_put(p->exec, p->param, p->first + first + at, raw, k, err);
    }
    return status;
}

static enum plim_status merge_param(struct exec *exec, const struct model_spec *spec, int param,
                                    struct peft *peft, struct plim_error *err)
{
    const struct tape *tape = exec->tape;
    int count = weights_part_count(tape, param);
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < count && status == PLIM_OK; i++) {
        const struct weights_part part = weights_part(spec, tape, param, i);
        struct merge_part place = {exec, param, part.first};
        const struct peft_io io = {get, put, &place};
        bool changed;
        status = peft_merge(peft, part.name, part.ndim, part.dim, &io, &changed, err);
    }
    return status;
}

static enum plim_status refuse_blocks(const struct tape *tape, int param, struct plim_error *err)
{
    char name[192];
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s is in blocks of few bits, which an adapter cannot be merged into; use a model with bf16 "
        "weights",
        tape_tensor_name(tape, param, name, sizeof name));
}

enum plim_status weights_merge(struct exec *exec, const struct model_spec *spec, const char *adapter,
                               struct plim_error *err)
{
    struct peft *peft;
    enum plim_status status = peft_open(adapter, spec, &peft, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < exec->tape->ntensors && status == PLIM_OK; i++) {
        const struct tensor *t = &exec->tape->tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0 || t->owner >= 0) continue;
        status = t->type == DT_U8 ? refuse_blocks(exec->tape, i, err) : merge_param(exec, spec, i, peft, err);
    }
    if (status == PLIM_OK) status = peft_check_used(peft, err);
    peft_close(peft);
    return status;
}

/* --- an adapter's own parameters ------------------------------------------------------------------------------- */

static enum plim_status load_part(struct exec *exec, int param, const struct weights_part *part,
                                  const struct safetensors *set, const char *key, struct plim_error *err)
{
    const struct tensor *t = &exec->tape->tensors[param];
    const struct safetensor *file = safetensors_find(set, key);
    int master = weights_master(exec->tape, param);
    char have[96], want[96];
    bool same = file && file->count == part->count && file->ndim == part->ndim;
    for (int i = 0; same && i < part->ndim; i++) same = file->dim[i] == part->dim[i];
    if (!same)
        return plim_fail(err, PLIM_BAD_INPUT, "tensor '%.160s' is %s, but the job's adapter needs %s", key,
                         file ? safetensors_shape_text(file->ndim, file->dim, have, sizeof have) : "missing",
                         safetensors_shape_text(part->ndim, part->dim, want, sizeof want));
    float *values = malloc((size_t)part->count * sizeof *values);
    uint16_t *narrow = malloc((size_t)part->count * 2 * sizeof *narrow), *low = narrow + part->count;
    enum plim_status status = values && narrow
                                  ? safetensors_read_all(set, file, DT_F32, values, err)
                                  : plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was read");
    int64_t bad = status == PLIM_OK ? dtype_find_nonfinite(DT_F32, values, part->count) : -1;
    if (bad >= 0)
        status = plim_fail(err, PLIM_BAD_INPUT, "tensor '%.160s': element %lld is not finite", key,
                           (long long)bad);
    bool split = master >= 0 && exec->tape->tensors[master].type == DT_U16, wide = t->type == DT_F32;
    for (int64_t i = 0; i < part->count && split && status == PLIM_OK; i++)
        master_split(values[i], &narrow[i], &low[i]);
    if (status == PLIM_OK && !split && !wide) dtype_convert(narrow, t->type, values, DT_F32, part->count);
    if (status == PLIM_OK)
        status = weights_put(exec, param, part->first, wide ? (void *)values : narrow, part->count, err);
    if (status == PLIM_OK && master >= 0)
        status =
            weights_put(exec, master, part->first, split ? (void *)low : (void *)values, part->count, err);
    free(values), free(narrow);
    return status;
}

enum plim_status weights_of_adapter(struct exec *exec, const struct model_spec *spec,
                                    const struct adapter *adapter, const char *dir, struct plim_error *err)
{
    char path[4200], key[256];
    struct safetensors set;
    snprintf(path, sizeof path, "%s/" PEFT_WEIGHTS, dir);
    enum plim_status status = safetensors_open(path, &set, err);
    if (status != PLIM_OK) return status;
    bool *used = calloc(set.count + 1, sizeof *used);
    if (!used) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while an adapter was read");
    for (int i = 0; i < exec->tape->ntensors && status == PLIM_OK; i++) {
        const struct tensor *t = &exec->tape->tensors[i];
        bool own = t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0 && !(t->flags & TENSOR_FROZEN);
        int count = own ? weights_part_count(exec->tape, i) : 0;
        for (int k = 0; k < count && status == PLIM_OK; k++) {
            const struct weights_part part = weights_part(spec, exec->tape, i, k);
            adapter_file_name(adapter, part.name, key, sizeof key);
            status = load_part(exec, i, &part, &set, key, err);
            if (status == PLIM_OK) used[safetensors_find(&set, key) - set.tensors] = true;
        }
    }
    for (size_t i = 0; i < set.count && status == PLIM_OK;
         i++) /* PEFT saves the base of an output projection, too */
        if (!used[i] && !strstr(set.tensors[i].name, ".base_layer.weight"))
            status = plim_fail(err, PLIM_BAD_INPUT,
                               "tensor '%.160s' has no module in this model: the adapter is of another model",
                               set.tensors[i].name);
    free(used);
    safetensors_close(&set);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", path);
    return status;
}
