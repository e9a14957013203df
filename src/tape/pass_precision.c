/* pass_precision.c - parameters, activations and caches take the compute type; what is marked as a statistic
 * stays as declared. No casts are needed anywhere: kernels load any type and compute in fp32. Masters are made by
 * pass_update, where they are needed. */
#include "tape/pass.h"

#include <string.h>

static const char *const names[PRECISION_COUNT] = {PRECISION_NAMES};
static const enum dtype types[PRECISION_COUNT] = {
    [PRECISION_F32] = DT_F32, [PRECISION_BF16] = DT_BF16, [PRECISION_F16] = DT_F16, [PRECISION_F8] = DT_BF16};

const char *precision_name(enum precision p) { return names[p]; }
enum dtype precision_type(enum precision p) { return types[p]; }

enum precision precision_parse(const char *name)
{
    int p = 0;
    while (p < PRECISION_COUNT && strcmp(name, names[p])) p++;
    return (enum precision)p;
}

enum plim_status pass_precision(struct tape *tape, enum precision precision, struct plim_error *err)
{
    if (tape->failed) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the tape was made");
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        bool narrows = t->cls == CLASS_PARAM || t->cls == CLASS_ACT || t->cls == CLASS_KV;
        if (!narrows || t->type != DT_F32 || (t->flags & TENSOR_STAT)) continue;
        if (t->view_of >= 0) t->view_offset = t->view_offset / 4 * (int64_t)dtype_size(types[precision]);
        t->type = types[precision];
    }
    return PLIM_OK;
}

void pass_narrow_grads(struct tape *tape)
{
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_GRAD && t->owner >= 0) t->type = tape->tensors[t->owner].type;
    }
}
