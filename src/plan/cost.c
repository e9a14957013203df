/* cost.c - an op takes the longer of computing and moving, plus a part of the shorter one that does not overlap.
 *
 * Moving is at cache speed when an op's operands fit half of the last-level cache, since the op before has just
 * written most of them. Far traffic overlaps with nothing but its own update, so it is added. */
#include "plan/cost.h"

#include <math.h>

#define UNHIDDEN 0.3 /* share of the shorter of computing and moving that is not hidden by the longer */

static double op_seconds(const struct tape *tape, const struct op *op, const struct device_facts *facts)
{
    struct op_cost cost = op_cost_of(tape, op);
    enum dtype type = DT_F32;
    if (cost.matmul_flops > 0 || cost.attn_flops > 0) type = tape->tensors[op->in[0]].type;
    double compute = 0;
    if (cost.matmul_flops > 0) compute += cost.matmul_flops / facts->flops[type];
    if (cost.attn_flops > 0) compute += cost.attn_flops / facts->attn_flops[type];
    bool cached = facts->cache_bytes && cost.bytes < 0.5 * (double)facts->cache_bytes;
    double move = cost.bytes / (cached ? facts->cache_bandwidth : facts->bandwidth);
    double far = cost.far_bytes > 0 ? cost.far_bytes / facts->far_bandwidth : 0;
    return fmax(compute, move) + UNHIDDEN * fmin(compute, move) + far + facts->op_seconds;
}

struct tape_time tape_time_of(const struct tape *tape, const struct device_facts *facts)
{
    struct tape_time time = {0};
    for (int i = 0; i < tape->nops; i++) {
        double seconds = op_seconds(tape, &tape->ops[i], facts);
        if (i < tape->loop_end)
            time.loop_seconds += seconds;
        else
            time.update_seconds += seconds;
    }
    return time;
}
