/* peak.h - the largest tensor at the point where a plan uses most memory.
 *
 *     struct peak peak;
 *     peak_of(&plan.tape, &plan.layout, &peak);      // peak.tensor "lm_head.weight", peak.op "linear", 262 MB, class "param"
 */
#pragma once

#include "plan/layout.h"

struct peak {
    char tensor[96], op[48]; /* the largest tensor on the device, and the running op; empty: unknown */
    const char *cls;         /* of the tensor, "work" for an op's scratch; "": unknown */
    int64_t bytes;
};

/* A tape without ops, or NULL, has no peak. */
void peak_of(const struct tape *tape, const struct layout *layout, struct peak *out);
/* Index of that tensor, ignoring scratch; -1: none. */
int peak_tensor(const struct tape *tape, const struct layout *layout);
