/* load.c - see load.h. */
#include "runtime/load.h"
#include "base/file.h"
#include "model/peft.h"
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

enum plim_status weights_write_constants(struct exec *exec, const struct model_spec *spec,
                                         struct plim_error *err)
{
    float frequencies[MODEL_ROPE_SETS * MODEL_MAX_HEAD / 2];
    int id = tape_find(exec->tape, "rope.inv_freq", -1);
    if (id < 0) return PLIM_OK;
    for (int set = 0; set < model_rope_sets(spec); set++)
        model_rope_frequencies(spec, set, frequencies + set * (model_rotary_size(spec) / 2));
    return exec_write(exec, id, frequencies, 0, tensor_bytes(&exec->tape->tensors[id]), err);
}

enum plim_status weights_put(void *arg, int tensor, int64_t first, const void *elements, int64_t n,
                             struct plim_error *err)
{
    struct exec *exec = arg;
    int64_t size = (int64_t)dtype_size(exec->tape->tensors[tensor].type);
    return exec_write(exec, tensor, elements, first * size, n * size, err);
}

/* The folder with the model's weights: that of an adapter's base, or the folder itself. */
static enum plim_status base_of(const char *dir, char *base, size_t size, bool *adapter,
                                struct plim_error *err)
{
    *adapter = peft_find_base(dir, base, size);
    if (!*adapter) snprintf(base, size, "%s", dir);
    if (*adapter && !file_exists(base))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s/" PEFT_CONFIG
                         ": base_model_name_or_path '%.200s' is not here; give the model's folder "
                         "and --adapter %s",
                         dir, base, dir);
    return PLIM_OK;
}

static enum plim_status load(const struct tape *tape, const struct weights_sink *sink,
                             const struct model_spec *spec, const char *dir, const struct log *log,
                             struct plim_error *err)
{
    struct weights_files files;
    enum plim_status status = weights_files_open(dir, &files, err);
    if (status != PLIM_OK) return status;
    status = weights_load(&files, spec, tape, sink, log, err);
    weights_files_close(&files);
    return status;
}

enum plim_status weights_from_directory(struct exec *exec, const struct model_spec *spec, const char *dir,
                                        const struct log *log, struct plim_error *err)
{
    struct weights_sink sink = {weights_put, exec, exec->device->team, false};
    char base[4096];
    bool adapter;
    enum plim_status status = base_of(dir, base, sizeof base, &adapter, err);
    if (status == PLIM_OK) status = load(exec->tape, &sink, spec, base, log, err);
    return status == PLIM_OK && adapter ? weights_merge(exec, spec, dir, err) : status;
}

struct other_tape {
    const struct tape *tape;
    struct exec *exec;
};

static enum plim_status put_by_name(void *arg, int tensor, int64_t first, const void *elements, int64_t n,
                                    struct plim_error *err)
{
    const struct other_tape *o = arg;
    const struct tensor *t = &o->tape->tensors[tensor];
    int id = tape_find(o->exec->tape, t->label, t->layer);
    if (id < 0) return plim_fail(err, PLIM_BUG, "no tensor '%s' takes the weights of that name", t->label);
    return weights_put(o->exec, id, first, elements, n, err);
}

enum plim_status weights_from_directory_by(const struct tape *whole, struct exec *exec,
                                           const struct model_spec *spec, const char *dir,
                                           const struct log *log, struct plim_error *err)
{
    struct other_tape other = {whole, exec};
    struct weights_sink sink = {put_by_name, &other, exec->device->team, false};
    char base[4096];
    bool adapter;
    enum plim_status status = base_of(dir, base, sizeof base, &adapter, err);
    if (status == PLIM_OK) status = load(whole, &sink, spec, base, log, err);
    return status == PLIM_OK && adapter ? weights_merge(exec, spec, dir, err) : status;
}

enum plim_status weights_to_train(struct exec *exec, const struct model_spec *spec, const char *dir,
                                  const struct log *log, struct plim_error *err)
{
    struct weights_sink sink = {weights_put, exec, exec->device->team, true};
    return load(exec->tape, &sink, spec, dir, log, err);
}

enum plim_status weights_choose(struct quantisation *out, const struct device *device, enum weights_kind kind,
                                const char *dir, const struct model_spec *spec, const struct tape *tape,
                                struct plim_error *err)
{
    const struct kernel *const *kernels = device->kernels;
    *out = (struct quantisation){0};
    if (kernels && !kernels[OP_LINEAR_Q]) {
        if (kind == WEIGHTS_AS_IS) return PLIM_OK;
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "this device has no kernels for %s weights; use the CPU, or as-is",
                         weights_kind_name(kind));
    }
    if (kind == WEIGHTS_FP8 && ((kernels && !kernels[OP_LINEAR_F8]) || !(device->facts.flops[DT_E4M3] > 0)))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "this device multiplies no fp8 numbers: an NVIDIA card of capability 8.9 or newer, or "
            "a CPU; use q8 or as-is");
    char base[4096];
    bool adapter;
    enum plim_status status = base_of(dir, base, sizeof base, &adapter, err);
    if (status != PLIM_OK) return status;
    if (adapter && kind != WEIGHTS_AS_IS)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: an adapter is merged into numbers, not into %s weights; export --merge it first", dir,
            weights_kind_name(kind));
    if (adapter) return PLIM_OK; /* its base is widened */
    /* Kernels for the gradient of experts in blocks widen every type. */
    struct quantise_wish wish = {kind, base, !kernels || kernels[OP_EXPERT_LINEAR_Q],
                                 !kernels || kernels[OP_EXPERT_LINEAR_Q_DX], false};
    return quantise_choose(out, &wish, spec, tape, err);
}

enum plim_status weights_precision(const char *dir, enum precision *out, struct plim_error *err)
{
    struct weights_files files;
    uint64_t bytes[DT_COUNT + 1] = {0};
    char base[4096];
    bool adapter;
    enum plim_status status = base_of(dir, base, sizeof base, &adapter, err);
    if (status == PLIM_OK) status = weights_files_open(base, &files, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < files.count; i++) {
        const struct safetensor *t = &files.tensors[i];
        bytes[weights_in_blocks(t) && files.gguf ? DT_BF16 : t->type] += t->bytes;
    }
    *out = PRECISION_F32;
    for (enum precision p = 0; p < PRECISION_COUNT; p++)
        if (bytes[precision_type(p)] > bytes[precision_type(*out)]) *out = p;
    weights_files_close(&files);
    return PLIM_OK;
}
