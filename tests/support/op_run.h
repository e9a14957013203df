/* op_run.h - runs an op case on a device and judges the result.
 *
 *     struct op_result r;
 *     if (!op_run(&c, dev, 0, &r, why, sizeof why)) ... why says what was touched that must not be
 *     double worst = op_compare(&c, &r, why, sizeof why);   // 1: just within tolerance
 *     op_result_release(&r);
 *
 * All operands and the workspace lie in one block of memory with guards between them. Guards, unused bytes
 * and the workspace hold 0xff (not-a-number), inputs and guards must be unchanged afterwards, and a build
 * with address sanitizer traps reads of guards as well.
 */
#ifndef PLIM_TESTS_SUPPORT_OP_RUN_H
#define PLIM_TESTS_SUPPORT_OP_RUN_H

#include "device/device.h"
#include "support/op_case.h"

struct op_result {
    void *out[OP_MAX_OUT]; /* images, NULL when absent */
};

/* Outputs (bits of a mask) that the op's row allows to take over an input that is present. */
unsigned op_may_share(const struct op_case *c);

/* `in_place`: outputs that take over their input's bytes, a subset of op_may_share. False when bytes changed
 * that are no output's. */
bool op_run(const struct op_case *c, struct device *dev, unsigned in_place, struct op_result *r, char *why,
            size_t size);
void op_result_release(struct op_result *r);

/* The worst error in units of the case's tolerance (infinite for a wrong not-a-number); why names the place.
 */
double op_compare(const struct op_case *c, const struct op_result *r, char *why, size_t size);

/* Bit for bit. */
bool op_same(const struct op_case *c, const struct op_result *a, const struct op_result *b, char *why,
             size_t size);

#endif
