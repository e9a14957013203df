/* reference.h - every op in plain C and double precision: what the fast kernels of every backend are compared
 * with.
 *
 * Simple loops written from the definitions in tape/op.h, no blocking, no threads, no cleverness. Slow by
 * intention: a reader can check a function here against its formula. Finite differences prove the backward
 * ops (tests/op/test_reference.c).
 *
 * Operands are arrays of doubles, integers are int32. Two things differ from a kernel call:
 *  - nothing is rounded: an output holds the exact-as-double result, whatever its dtype;
 *  - a master operand (adamw, sgd) is the whole fp32 master as a number, not the 16 bits beside the weight.
 * Outputs never overlap inputs; an op that updates something (kv_append, adamw, sgd) copies what it leaves
 * alone.
 *
 * From real bytes and back:
 *
 *     void *memory = malloc(reference_bytes(call.desc));
 *     struct ref_call ref;
 *     reference_load(&ref, &call, memory);     // operands of a kernel call as doubles, outputs too
 *     reference_run(&ref);                     // ref.out[i].f[j] is what call.out[i][j] should be near
 *     reference_store(&ref, &call);            // rounded once into the call's outputs
 *
 * reference_kernels is the same as a backend's kernel table (its workspace is reference_bytes): a device can
 * be made of it, and a single op of another device can be replaced by it when hunting a wrong kernel.
 */
#ifndef PLIM_DEVICE_REFERENCE_REFERENCE_H
#define PLIM_DEVICE_REFERENCE_REFERENCE_H

#include "device/device.h"

union ref_array {
    double *f;
    int32_t *i; /* operands of type I32 */
};

struct ref_call {
    const struct op *op;
    const struct tensor
        *desc[OP_MAX_IN + OP_MAX_OUT];              /* as in struct kernel_call; the dtype tells f from i */
    union ref_array in[OP_MAX_IN], out[OP_MAX_OUT]; /* NULL when absent */
    bool accumulate;                                /* outputs marked acc are added to */
};

/* Computes every present output. Shapes must obey the op's row (op_check). */
void reference_run(const struct ref_call *call);

/* Memory for the arrays of all present operands. */
size_t reference_bytes(const struct tensor *const *desc);

/* Lay the arrays out in `memory` and fill them from the call's operands, inputs and outputs alike. */
void reference_load(struct ref_call *ref, const struct kernel_call *call, void *memory);

/* Round the outputs into the call's output operands. */
void reference_store(const struct ref_call *ref, const struct kernel_call *call);

extern const struct kernel *const reference_kernels[OP_KIND_COUNT];

#endif
