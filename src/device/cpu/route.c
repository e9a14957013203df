/* route.c - the router of a mixture of experts: who gets which row, what its losses ask for, and the way back.
 *
 * Rows are taken in blocks of KERNEL_ROW_BLOCK. Each block counts its rows by expert and sums its probabilities in its
 * part of the workspace; the counts of all blocks before it, and of all experts before, say where its rows begin. So
 * places are those of a stable sort by expert, and every sum has the order of the blocks. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

#include <math.h>
#include <string.h>

enum { LINE = 1024 }; /* experts whose numbers fit the stack; more take the worker's part of the workspace */

struct routing {
    const struct row_ops *rows;
    enum dtype type;
    const void *logits;
    const int32_t *lengths;            /* [R / time] or NULL */
    int64_t count, time, experts, top; /* R, R / B, E, K */
    bool norm;
    float *weight;
    int32_t *expert, *place;
    double *sums;   /* [blocks, 2 E + 1]: as stat has them: rows, probabilities, lse^2 */
    int32_t *begin; /* [blocks, E]: rows of the block, then the place of the next one */
    float *lines;   /* [workers, E] */
};

static void load_row(const struct routing *r, int64_t row, float *logits)
{
    dtype_convert(logits, DT_F32, element(r->logits, r->type, row * r->experts), r->type, r->experts);
}

/* Logits become probabilities; their lse. */
static double soften(const struct routing *r, float *p)
{
    struct row_softmax s = r->rows->softmax(DT_F32, p, r->experts);
    r->rows->exp_scaled(DT_F32, p, p, r->experts, s.top, (float)(1 / s.sum));
    return (double)s.top + log(s.sum);
}

/* Padding has experts as every row, but the losses do not know of it. */
static bool is_padding(const struct routing *r, int64_t row)
{
    return r->lengths && row % r->time >= r->lengths[row / r->time];
}

static bool is_among(const int32_t *chosen, int64_t count, int64_t e)
{
    for (int64_t i = 0; i < count; i++)
        if (chosen[i] == e) return true;
    return false;
}

/* The largest, of equal ones the first. Logits decide, not what rounding makes of their exponentials: so every backend
 * chooses the same. */
static void choose(const float *logits, int64_t experts, int64_t top, int32_t *chosen)
{
    for (int64_t i = 0; i < top; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++) {
            if (best >= 0 && !(logits[e] > logits[best])) continue;
            if (!is_among(chosen, i, e)) best = e;
        }
        chosen[i] = (int32_t)best;
    }
}

static void weigh(const struct routing *r, const float *p, const int32_t *chosen, float *weight)
{
    float sum = 0;
    for (int64_t i = 0; i < r->top; i++) sum += weight[i] = p[chosen[i]];
    for (int64_t i = 0; i < r->top && r->norm; i++) weight[i] /= sum;
}

/* A row's part of the sums. */
static void count_row(const struct routing *r, const float *p, double lse, const int32_t *chosen,
                      double *sums)
{
    for (int64_t i = 0; i < r->top; i++) sums[chosen[i]]++;
    for (int64_t e = 0; e < r->experts; e++) sums[r->experts + e] += (double)p[e];
    sums[2 * r->experts] += lse * lse;
}

static void choose_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct routing *r = arg;
    float stack[LINE], *p = r->experts <= LINE ? stack : r->lines + worker * r->experts;
    for (int64_t b = begin; b < end; b++) {
        double *sums = r->sums + b * (2 * r->experts + 1);
        int32_t *counts = r->begin + b * r->experts;
        memset(sums, 0, (size_t)(2 * r->experts + 1) * sizeof *sums);
        memset(counts, 0, (size_t)r->experts * sizeof *counts);
        for (int64_t row = b * KERNEL_ROW_BLOCK; row < lesser((b + 1) * KERNEL_ROW_BLOCK, r->count); row++) {
            int32_t *chosen = r->expert + row * r->top;
            load_row(r, row, p);
            choose(p, r->experts, r->top, chosen);
            double lse = soften(r, p);
            weigh(r, p, chosen, r->weight + row * r->top);
            for (int64_t i = 0; i < r->top; i++) counts[chosen[i]]++;
            if (!is_padding(r, row)) count_row(r, p, lse, chosen, sums);
        }
    }
}

/* Counts become the places where each block's rows of each expert begin. */
static void find_places(const struct routing *r, int64_t blocks, int32_t *ends)
{
    int32_t at = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        for (int64_t b = 0; b < blocks; b++) {
            int32_t rows = r->begin[b * r->experts + e];
            r->begin[b * r->experts + e] = at;
            at += rows;
        }
        ends[e] = at;
    }
}

static void place_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct routing *r = arg;
    for (int64_t b = begin; b < end; b++) {
        int32_t *next = r->begin + b * r->experts;
        int64_t last = lesser((b + 1) * KERNEL_ROW_BLOCK, r->count) * r->top;
        for (int64_t i = b * KERNEL_ROW_BLOCK * r->top; i < last; i++) r->place[i] = next[r->expert[i]]++;
    }
}

static void add_up(const struct routing *r, int64_t blocks, float *stat)
{
    int64_t width = 2 * r->experts + 1; /* the last one is the third line's first number */
    for (int64_t i = 0; i < width; i++) {
        double sum = 0;
        for (int64_t b = 0; b < blocks; b++) sum += r->sums[b * width + i];
        stat[i] = (float)sum;
    }
    for (int64_t e = 1; e < r->experts; e++) stat[2 * r->experts + e] = 0;
}

/* Positions of a row of tokens; without lengths nobody asks. */
static int64_t time_of(int64_t count, const struct tensor *lengths)
{
    return lengths ? count / tensor_count(lengths) : count;
}

void cpu_route(const struct kernel_call *call)
{
    const struct tensor *logits = call_in(call, ROUTE_LOGITS), *weight = call_out(call, ROUTE_WEIGHT);
    int64_t experts = tensor_count(call_out(call, ROUTE_ENDS)), count = weight->dim[0],
            blocks = blocks_of(count, KERNEL_ROW_BLOCK);
    struct routing r = {.rows = row_ops(),
                        .type = logits->type,
                        .logits = call->in[ROUTE_LOGITS],
                        .lengths = call->in[ROUTE_LENGTHS],
                        .count = count,
                        .time = time_of(count, call_in(call, ROUTE_LENGTHS)),
                        .experts = experts,
                        .top = weight->dim[1],
                        .norm = call->op->attr.norm_topk,
                        .weight = call->out[ROUTE_WEIGHT],
                        .expert = call->out[ROUTE_EXPERT],
                        .place = call->out[ROUTE_PLACE],
                        .sums = call->work};
    r.begin = (int32_t *)(void *)(r.sums + blocks * (2 * experts + 1));
    r.lines = (float *)(void *)(r.begin + blocks * experts);
    threads_each(call->team, blocks, 1, choose_body, &r);
    find_places(&r, blocks, call->out[ROUTE_ENDS]);
    add_up(&r, blocks, call->out[ROUTE_STAT]);
    threads_each(call->team, blocks, 1, place_body, &r);
}

static size_t cpu_route_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    int64_t experts = tensor_count(desc[OP_MAX_IN + ROUTE_ENDS]),
            blocks = blocks_of(desc[OP_MAX_IN + ROUTE_WEIGHT]->dim[0], KERNEL_ROW_BLOCK);
    int64_t lines = experts > LINE ? threads * experts : 0;
    return (size_t)(blocks * (2 * experts + 1) * 8 + blocks * experts * 4 + lines * 4);
}

/* --- its losses ------------------------------------------------------------------------------------------- */

void cpu_router_loss(const struct kernel_call *call)
{
    const struct tensor *stat = call_in(call, ROUTER_LOSS_STAT);
    const struct op_attr *attr = &call->op->attr;
    int64_t layers = stat->dim[0], experts = stat->dim[2];
    const float *lines = call->in[ROUTER_LOSS_STAT];
    float *load = call->out[ROUTER_LOSS_LOAD], *factor = call->out[ROUTER_LOSS_FACTOR];
    double *loss = call->out[ROUTER_LOSS_LOSS],
           scale = (double)((const float *)call->in[ROUTER_LOSS_SCALARS])[SCALAR_AUX_GRAD];
    double pairs = 0, products = 0, squares = 0;
    for (int64_t l = 0; l < layers; l++) {
        for (int64_t e = 0; e < experts; e++) {
            float rows = lines[l * 3 * experts + e];
            pairs += (double)rows;
            load[l * experts + e] = call->accumulate ? load[l * experts + e] + rows : rows;
        }
        squares += (double)lines[(l * 3 + 2) * experts];
    }
    double rows = pairs / attr->top_k, most = rows > 0 ? rows : 1;
    for (int64_t e = 0; e < experts; e++) {
        double n = 0, p = 0;
        for (int64_t l = 0; l < layers; l++)
            n += (double)lines[l * 3 * experts + e], p += (double)lines[(l * 3 + 1) * experts + e];
        products += n * p;
        factor[e] = (float)(scale * (double)attr->balance * (double)experts * n / (most * most));
        factor[experts + e] = e ? 0 : (float)(scale * (double)attr->z_loss * 2 / most);
    }
    const double parts[3] = {(double)attr->balance * (double)experts * products / (most * most),
                             (double)attr->z_loss * squares / most, 1};
    for (int i = 0; i < 3; i++) loss[i] = call->accumulate ? loss[i] + parts[i] : parts[i];
}

/* --- the way back ----------------------------------------------------------------------------------------- */

struct unrouting {
    struct routing r;
    const float *dweight, *factor;
    void *dlogits;
};

/* d[E] of a row with probabilities p; d may not be p. */
static void row_gradient(const struct unrouting *u, int64_t row, double lse, const float *p, float *d)
{
    const struct routing *r = &u->r;
    const float *dw = u->dweight + row * r->top;
    const int32_t *chosen = r->expert + row * r->top;
    const float *factor = is_padding(r, row) ? NULL : u->factor;
    float mean = 0, pull = 0, sum = 0, z = factor ? factor[r->experts] * (float)lse : 0;
    for (int64_t e = 0; e < r->experts && factor; e++) pull += p[e] * factor[e];
    for (int64_t i = 0; i < r->top; i++) sum += p[chosen[i]];
    if (!r->norm) sum = 1;
    for (int64_t i = 0; i < r->top; i++) mean += p[chosen[i]] / sum * dw[i];
    for (int64_t e = 0; e < r->experts; e++) {
        d[e] = r->norm ? 0 : -(p[e] * mean);
        if (factor) d[e] += p[e] * (factor[e] - pull + z);
    }
    for (int64_t i = 0; i < r->top; i++) {
        int64_t e = chosen[i];
        d[e] += r->norm ? p[e] / sum * (dw[i] - mean) : p[e] * dw[i];
    }
}

static void unroute_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct unrouting *u = arg;
    const struct routing *r = &u->r;
    float stack[2 * LINE], *p = r->experts <= LINE ? stack : r->lines + 2 * worker * r->experts;
    for (int64_t row = begin; row < end; row++) {
        load_row(r, row, p);
        double lse = soften(r, p);
        row_gradient(u, row, lse, p, p + r->experts);
        dtype_convert(element(u->dlogits, r->type, row * r->experts), r->type, p + r->experts, DT_F32,
                      r->experts);
    }
}

void cpu_route_bwd(const struct kernel_call *call)
{
    const struct tensor *dweight = call_in(call, ROUTE_BWD_DWEIGHT),
                        *logits = call_in(call, ROUTE_BWD_LOGITS);
    int64_t count = dweight->dim[0], experts = tensor_count(logits) / count;
    struct unrouting u = {{.rows = row_ops(),
                           .type = logits->type,
                           .logits = call->in[ROUTE_BWD_LOGITS],
                           .lengths = call->in[ROUTE_BWD_LENGTHS],
                           .count = count,
                           .time = time_of(count, call_in(call, ROUTE_BWD_LENGTHS)),
                           .experts = experts,
                           .top = dweight->dim[1],
                           .norm = call->op->attr.norm_topk,
                           .expert = call->in[ROUTE_BWD_EXPERT],
                           .lines = call->work},
                          call->in[ROUTE_BWD_DWEIGHT],
                          call->in[ROUTE_BWD_FACTOR],
                          call->out[ROUTE_BWD_DLOGITS]};
    threads_each(call->team, count, row_grain(experts), unroute_body, &u);
}

static size_t cpu_route_bwd_workspace(const struct tensor *const *desc, const struct op *, int threads)
{
    int64_t experts = tensor_count(desc[ROUTE_BWD_LOGITS]) / desc[ROUTE_BWD_DWEIGHT]->dim[0];
    return experts > LINE ? (size_t)(2 * threads * experts) * sizeof(float) : 0;
}

CPU_KERNEL(route, cpu_route_workspace);
CPU_KERNEL(router_loss, NULL);
CPU_KERNEL(route_bwd, cpu_route_bwd_workspace);
