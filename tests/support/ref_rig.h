/* ref_rig.h - one op of the reference with its arrays, for tests that reason about the reference itself.
 *
 *     struct rig r = rig_make(OP_LINEAR, 1);          // 1: seed of its random numbers
 *     rig_in(&r, 0, DT_F32, "2 3 5");                 // an input of that shape, normal numbers
 *     rig_in(&r, 1, DT_F32, "4 5");
 *     rig_out(&r, 0, DT_F32, "2 3 4");
 *     rig_run(&r);                                    // r.call.out[0].f
 *     rig_free(&r);
 *
 * Setting call.in[i].f or call.out[i].f to NULL makes that operand absent; the array stays the rig's.
 */
#ifndef PLIM_TESTS_SUPPORT_REF_RIG_H
#define PLIM_TESTS_SUPPORT_REF_RIG_H

#include "device/reference/reference.h"

struct rig {
    struct op op;
    struct tensor desc[OP_MAX_IN + OP_MAX_OUT]; /* of inputs, then of outputs */
    struct ref_call call;                       /* its op and desc are set when it runs */
    union ref_array weight[OP_MAX_OUT];         /* of the outputs in rig_value; NULL: none */
    uint64_t random;
    void *owned[2 * (OP_MAX_IN + OP_MAX_OUT)];
    int nowned;
};

struct rig rig_make(int kind, uint64_t seed);
void rig_free(struct rig *r);

void rig_in(struct rig *r, int slot, enum dtype type, const char *shape);
void rig_out(struct rig *r, int slot, enum dtype type, const char *shape);
void rig_ints(struct rig *r, int slot, const int *values, int n);
void rig_reals(struct rig *r, int slot, const double *values, int n);

/* An input that is somebody else's array, or a copy of it. */
void rig_use(struct rig *r, int slot, union ref_array array, const struct tensor *desc);
void rig_copy(struct rig *r, int slot, union ref_array array, const struct tensor *desc);

/* Give output `slot` random weights. */
void rig_weigh(struct rig *r, int slot);

/* Compute the outputs; the op's row must accept the operands. */
void rig_run(struct rig *r);

/* Run it: the weighted sum of the outputs that have weights. */
double rig_value(struct rig *r);

const struct tensor *rig_out_desc(const struct rig *r, int slot);

#endif
