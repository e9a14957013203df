/* module.h - a range of a tape as a StableHLO program: its text, and the tensors it takes and gives back.
 *
 *     struct module m;
 *     module_make(&range, false, &m, &err);
 *     // m.text: the program; argument i is the tensor m.operands[i].tensor
 *     module_release(&m);
 *
 * Arguments are the tensors that exist outside the range: kept ones, inputs, outputs, and those that another range touches. All
 * others are values inside the program, and the plug-in places them. An argument that the range writes is donated: its result
 * has the same bytes (tf.aliasing_output), so tensors stay in place from run to run. With `apart`, nothing is donated: for one op
 * whose outputs may lie on top of its inputs.
 */
#pragma once

#include "device/pjrt/hlo.h"
#include "device/range.h"

struct module_operand {
    int tensor; /* never a view */
    bool read;  /* an argument */
    int result; /* number of the result that replaces it; -1: none */
};

struct module {
    struct hlo h;
    struct module_operand *operands;
    int count, results;
    /* While it is being made. */
    const struct device_range *range;
    struct hlo_value *values; /* of roots; id -1: none yet */
};

/* PLIM_UNSUPPORTED: an op of the range has no emitter. */
enum plim_status module_make(const struct device_range *range, bool apart, struct module *out,
                             struct plim_error *err);
void module_release(struct module *m);
