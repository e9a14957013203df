/* ref_probe.h - one op of the reference with its arrays, for tests that reason about the reference itself.
 *
 *     struct probe r = probe_make(OP_LINEAR, 1);          // 1: seed of its random numbers
 *     probe_in(&r, LINEAR_X, DT_F32, "2 3 5");          // an input of that shape, normal numbers
 *     probe_in(&r, LINEAR_W, DT_F32, "4 5");
 *     probe_out(&r, LINEAR_Y, DT_F32, "2 3 4");
 *     probe_run(&r);                                    // r.call.out[LINEAR_Y].f
 *     probe_free(&r);
 *
 * Setting call.in[i].f or call.out[i].f to NULL makes that operand absent; the array stays the probe's.
 */
#ifndef PLIM_TESTS_SUPPORT_REF_PROBE_H
#define PLIM_TESTS_SUPPORT_REF_PROBE_H

#include "reference/reference.h"

struct probe {
    struct op op;
    struct tensor desc[OP_MAX_IN + OP_MAX_OUT]; /* of inputs, then of outputs */
    struct ref_call call;                       /* its op and desc are set when it runs */
    union ref_array weight[OP_MAX_OUT];         /* of the outputs in probe_value; NULL: none */
    uint64_t random;
    void *owned[2 * (OP_MAX_IN + OP_MAX_OUT)];
    int nowned;
};

struct probe probe_make(int kind, uint64_t seed);
void probe_free(struct probe *r);

void probe_in(struct probe *r, int slot, enum dtype type, const char *shape);
void probe_out(struct probe *r, int slot, enum dtype type, const char *shape);
void probe_ints(struct probe *r, int slot, const int *values, int n);
void probe_reals(struct probe *r, int slot, const double *values, int n);

/* An input that is somebody else's array, or a copy of it. */
void probe_use(struct probe *r, int slot, union ref_array array, const struct tensor *desc);
void probe_copy(struct probe *r, int slot, union ref_array array, const struct tensor *desc);

/* Give output `slot` random weights. */
void probe_weigh(struct probe *r, int slot);

/* Compute the outputs; the op's row must accept the operands. */
void probe_run(struct probe *r);

/* Run it: the weighted sum of the outputs that have weights. */
double probe_value(struct probe *r);

const struct tensor *probe_out_desc(const struct probe *r, int slot);

#endif
