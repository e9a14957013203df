/* cost.c - an op takes the longer of computing and moving, plus a part of the shorter one that does not overlap.
 *
 * Moving is at cache speed when an op's operands fit half of the last-level cache, since the op before has just
 * written most of them. Traffic to a disk is added; traffic between a GPU and its host, and updates by the host, run
 * beside computing and share the host's memory. */
#include "plan/cost.h"

#include <math.h>

#define UNHIDDEN 0.3 /* share of the shorter of computing and moving that is not hidden by the longer */

/* Of forward and backward this share at most has copies beside it: they are asked for a few ops ahead (pass_spread), and
 * the link rests while those ops need nothing. Measured with streamed parameters on an H200, 1 B and 8 B. */
#define LOOKAHEAD 0.25

/* Seconds of one part of a tape. */
struct spent {
    double compute, fetch, store;
    double host; /* in the host's memory: updates there, and one end of every copy */
};

static double matmul_rate(const struct device_facts *facts, const struct op *op, enum dtype type)
{
    return type == DT_F32 && op->attr.tf32 && facts->tf32_flops > 0 ? facts->tf32_flops : facts->flops[type];
}

static void add_op(const struct tape *tape, const struct op *op, const struct device_facts *facts,
                   struct spent *spent)
{
    struct op_cost cost = op_cost_of(tape, op);
    enum dtype type = DT_F32;
    if (op->kind == OP_HOLD) return;
    double host_bytes = op->attr.on_host ? cost.bytes : cost.far_bytes;
    if (host_bytes > 0) {
        if (op_moves(op))
            *(op->kind == OP_FETCH ? &spent->fetch : &spent->store) += host_bytes / facts->far_bandwidth;
        if (facts->host_bandwidth > 0) spent->host += host_bytes / facts->host_bandwidth;
        spent->compute += facts->op_seconds;
        return;
    }
    if (cost.matmul_flops > 0 || cost.attn_flops > 0) type = tape->tensors[op->in[0]].type;
    double compute = 0;
    if (cost.matmul_flops > 0) compute += cost.matmul_flops / matmul_rate(facts, op, type);
    if (cost.attn_flops > 0) compute += cost.attn_flops / facts->attn_flops[type];
    if (facts->coded_rate > 0) compute += cost.coded / facts->coded_rate;
    bool cached = facts->cache_bytes && cost.bytes < 0.5 * (double)facts->cache_bytes;
    double move = cost.bytes / (cached ? facts->cache_bandwidth : facts->bandwidth);
    spent->compute += fmax(compute, move) + UNHIDDEN * fmin(compute, move) + facts->op_seconds;
}

/* A device with its own memory copies beside computing, and both ways at once a little slower than one. A disk does one
 * thing at a time, and the CPU waits for most of it or copies it through memory itself. */
static double total_of(const struct spent *spent, const struct device_facts *facts, double lookahead)
{
    if (facts->is_host) return spent->compute + spent->fetch + spent->store;
    double link = fmax(spent->fetch, spent->store) + UNHIDDEN * fmin(spent->fetch, spent->store);
    double hidden = fmin((1 - UNHIDDEN) * fmin(spent->compute, link), lookahead * spent->compute);
    return fmax(spent->compute + link - hidden, spent->host);
}

struct tape_time tape_time_of(const struct tape *tape, const struct device_facts *facts)
{
    struct spent loop = {0}, norm = {0}, update = {0}, *at = &update;
    for (int i = tape->nops - 1; i >= tape->loop_end; i--) {
        if (tape->ops[i].kind == OP_CLIP) at = &norm; /* all gradients are seen before the first update */
        add_op(tape, &tape->ops[i], facts, at);
    }
    for (int i = 0; i < tape->loop_end; i++) add_op(tape, &tape->ops[i], facts, &loop);
    return (struct tape_time){total_of(&loop, facts, LOOKAHEAD),
                              total_of(&norm, facts, 1) + total_of(&update, facts, 1)};
}
