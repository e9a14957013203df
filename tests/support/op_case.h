/* op_case.h - one op with random operands, made from a seed: what the op test suite runs on every backend.
 *
 *     struct op_case c;
 *     op_case_make(&c, OP_NORM, seed, 17);   // the same numbers wherever and whenever it is made
 *     ... op_run(&c, ...), op_compare(&c, ...)   (op_run.h)
 *     op_case_release(&c);
 *
 * A case chooses shapes (odd ones too), optional operands, attributes and the compute type at random.
 * Operands are images in their own dtype, so a reference computes from the very same rounded numbers as the
 * device. Outputs that are not added to begin as 0xff bytes: not-a-number in every floating type.
 *
 * A case also says how exact the result must be. Element i of an output may be off by
 *
 *     1.1 u_out |ref_i|  +  inner (|ref_i| + rms(ref) + scale)
 *
 * where u_out is half a unit in the last place of the output's dtype, `inner` the relative error the op's own
 * arithmetic may make (from the reduction length, and from the compute type where kernels round intermediate
 * values to it), and `scale` the size of terms that may cancel.
 */
#ifndef PLIM_TESTS_SUPPORT_OP_CASE_H
#define PLIM_TESTS_SUPPORT_OP_CASE_H

#include "tape/op.h"

struct op_case {
    int kind, index;
    uint64_t seed, random; /* random: state of the generator */
    enum dtype type;       /* compute type; the index chooses it: f32, bf16, f16 in turn */
    struct tape tape;      /* descriptors and one op */
    struct op op;
    void *in[OP_MAX_IN], *out[OP_MAX_OUT]; /* images; out: before the op runs. NULL when absent */
    double inner[OP_MAX_OUT], scale[OP_MAX_OUT];
    bool by_element; /* elements are of different nature: no rms in the tolerance */
    bool exact;      /* every output must equal the reference without any error */
    bool tune;       /* op_run lets the device learn first how best to run it, where it can */
    char note[128];  /* the variant, for messages */
};

/* Aborts when memory is out or the op's row does not accept the case: both are faults of the test. */
void op_case_make(struct op_case *c, int kind, uint64_t seed, int index);
void op_case_release(struct op_case *c);

/* A matrix product: linear or one of its gradients. */
bool op_case_product(const struct op_case *c);

const struct tensor *op_case_in(const struct op_case *c, int slot); /* NULL when absent */
const struct tensor *op_case_out(const struct op_case *c, int slot);

/* "attn case 17 (seed 1): bf16 q[2,13,4,64] ... window 7": returns buf. */
const char *op_case_text(const struct op_case *c, char *buf, size_t size);

/* Half a unit in the last place, relative, and the smallest normal number of a floating dtype. */
double dtype_unit(enum dtype type);
double dtype_tiny(enum dtype type);

#endif
