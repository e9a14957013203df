/* lengths.c - see lengths.h. */
#include "runtime/lengths.h"

#include <stdlib.h>

#define GRAIN 16 /* positions */

/* Positions of a pass that keep a CPU, or a GPU, busy: more are hardly faster each. */
#define CPU_POSITIONS 2048
#define GPU_POSITIONS 16384

/* Rows of a pass over rows of this length. */
static int64_t rows_for(const struct runtime *rt, int64_t time)
{
    int64_t longest = rt->request.time + rt->request.source_time; /* sources are as many times as long */
    int64_t plan = rt->plan.knobs.micro_batch * longest, row = longest * time / rt->request.time;
    int64_t busy = rt->device->facts.unified_memory ? CPU_POSITIONS : GPU_POSITIONS;
    int64_t rows = (plan < busy ? plan : busy) / row;
    if (rows < 1) rows = 1;
    if (rt->request.whole_passes) return rt->plan.knobs.micro_batch;
    return rows < rt->request.rows ? rows : rt->request.rows;
}

int lengths_ladder(int64_t time, int64_t out[LENGTHS_LADDER])
{
    static const int sixteenths[LENGTHS_LADDER] = {16, 12, 8, 6, 4, 3, 2, 1};
    int count = 0;
    for (int i = 0; i < LENGTHS_LADDER; i++) {
        int64_t length = (time * sixteenths[i] + 15) / 16;
        if (i > 0) length = (length + GRAIN - 1) / GRAIN * GRAIN;
        if (count && length >= out[count - 1]) continue;
        out[count++] = length;
    }
    return count;
}

/* The tape of one length with so many rows. */
static enum plim_status lay_out(const struct runtime *rt, int64_t rows, int64_t time,
                                struct length_program *out, struct plim_error *err)
{
    struct plan_request request = rt->request;
    struct knobs knobs = rt->plan.knobs;
    struct layout_options options = plan_layout_options(&request, &knobs);
    request.time = time, knobs.micro_batch = rows;
    request.search_line = 0; /* nothing is compared */
    options.above = &rt->plan.layout, options.above_tape = &rt->plan.tape;
    *out = (struct length_program){0};
    tape_init(&out->tape);
    enum plim_status status = request.compute(&request, &knobs, TAPE_LOOP, &out->tape, err);
    if (status == PLIM_OK) status = request.place(&request, &knobs, &out->tape, err);
    if (status == PLIM_OK) status = tape_verify(&out->tape, err);
    if (status == PLIM_OK) tape_trim(&out->tape);
    if (status == PLIM_OK) status = layout_make(&out->tape, &options, &out->layout, err);
    if (status != PLIM_OK) tape_release(&out->tape);
    return status;
}

/* Invariant 1. */
static bool is_within(const struct layout *l, const struct runtime *rt)
{
    bool within = l->arena_bytes <= rt->arena && l->kept_bytes == rt->plan.layout.kept_bytes;
    for (int tier = 0; tier < TIER_COUNT; tier++)
        within = within && l->tier_bytes[tier] <= rt->plan.layout.tier_bytes[tier];
    return within;
}

static void close_program(struct length_program *p)
{
    exec_close(&p->exec);
    layout_release(&p->layout);
    tape_release(&p->tape);
}

/* As many rows as have room; *fits is false where not even one has. */
static enum plim_status open_program(const struct runtime *rt, int64_t time, struct length_program *out,
                                     struct pass_shape *shape, bool *fits, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    *fits = false;
    for (int64_t rows = rows_for(rt, time); rows >= 1 && !*fits; rows -= (rows + 15) / 16) {
        status = lay_out(rt, rows, time, out, err);
        if (status != PLIM_OK) return status;
        *shape = (struct pass_shape){rows, time};
        *fits = is_within(&out->layout, rt);
        if (!*fits) close_program(out);
        if (rt->request.whole_passes) break;
    }
    if (*fits) status = exec_open(&out->exec, rt->device, &out->tape, &out->layout, rt->disk, err);
    if (*fits && status == PLIM_OK) status = runtime_tune(rt, &out->exec, err);
    return status;
}

enum plim_status lengths_open(struct lengths *l, struct runtime *rt, struct plim_error *err)
{
    int64_t ladder[LENGTHS_LADDER];
    int steps = rt->request.lengths > 1 ? lengths_ladder(rt->request.time, ladder) : 0;
    *l = (struct lengths){.runtime = rt, .count = 1};
    l->shape[0] = (struct pass_shape){rt->plan.knobs.micro_batch, rt->request.time};
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < steps && status == PLIM_OK; i++) {
        bool fits;
        if (i == 0 && rows_for(rt, ladder[0]) >= l->shape[0].rows) continue;
        status = open_program(rt, ladder[i], &l->at[l->count], &l->shape[l->count], &fits, err);
        l->count += fits;
    }
    if (status != PLIM_OK) lengths_close(l);
    return status;
}

void lengths_close(struct lengths *l)
{
    for (int i = 1; i < l->count; i++) close_program(&l->at[i]);
    *l = (struct lengths){0};
}

struct exec *lengths_exec(struct lengths *l, int program)
{
    return program ? &l->at[program].exec : &l->runtime->exec;
}

enum plim_status cutting_open(struct cutting *c, int64_t rows, struct plim_error *err)
{
    *c = (struct cutting){.cuts = calloc((size_t)rows + 1, sizeof *c->cuts),
                          .best = calloc((size_t)rows + 1, sizeof *c->best)};
    return c->cuts && c->best ? PLIM_OK
                              : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the passes of a step");
}

void cutting_close(struct cutting *c)
{
    free(c->cuts);
    free(c->best);
    *c = (struct cutting){0};
}

/* Positions that rows from i on take at least with this shape next; those of best[] are known. */
static int64_t cost_with(const struct pass_shape *p, int64_t i, int64_t n, const int64_t *best)
{
    int64_t next = i + p->rows < n ? i + p->rows : n;
    return p->rows * p->time + best[next];
}

static int choose(const struct pass_shape *shapes, int count, int64_t length, int64_t i, int64_t n,
                  const int64_t *best)
{
    int chosen = 0;
    for (int k = 1; k < count && shapes[k].time >= length; k++)
        if (cost_with(&shapes[k], i, n, best) < cost_with(&shapes[chosen], i, n, best)) chosen = k;
    return chosen;
}

void lengths_cut(struct cutting *out, const struct pass_shape *shapes, int count, const int32_t *row_lengths,
                 int64_t n)
{
    int64_t *best = out->best;
    best[n] = 0;
    for (int64_t i = n - 1; i >= 0; i--)
        best[i] = cost_with(&shapes[choose(shapes, count, row_lengths[i], i, n, best)], i, n, best);
    out->count = 0;
    for (int64_t i = 0; i < n;) {
        int program = choose(shapes, count, row_lengths[i], i, n, best);
        int64_t rows = shapes[program].rows < n - i ? shapes[program].rows : n - i;
        out->cuts[out->count++] = (struct length_cut){program, rows};
        i += rows;
    }
}
