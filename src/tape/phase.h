/* phase.h - phases of a pass. An offloaded tensor is near from the first op of a phase that touches it to the last. The
 * slices of the head count as one phase. */
#pragma once

#include "tape/tape.h"

enum phase { PHASE_FORWARD, PHASE_HEAD, PHASE_BACKWARD, PHASES };

static inline enum phase phase_of(const struct op *op)
{
    static const enum phase phases[PART_COUNT] = {[PART_FORWARD] = PHASE_FORWARD,
                                                  [PART_HEAD] = PHASE_HEAD,
                                                  [PART_BACKWARD] = PHASE_BACKWARD,
                                                  [PART_RECOMPUTE] = PHASE_BACKWARD,
                                                  [PART_UPDATE] = PHASE_BACKWARD};
    return phases[op->part];
}
