/* calibrate_measure.c - the measurements of calibrate.h.
 *
 * Each runs the kernels that a plan will run, on growing problems, until one takes long enough to be timed
 * well: a fast machine is measured on large problems and a slow one does not take longer than it must. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/minmax.h"
#include "device/cpu/calibrate.h"
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "tape/pass.h"
#include "tensor/quant8.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    COPY_BYTES = 16 << 20,        /* beyond most caches */
    CACHE_COPY_BYTES = 256 << 10, /* within all last-level ones */
    MATMUL_MIN = 256,             /* rows, against a weight of 768 x 768 */
    MATMUL_MAX = 512,
    WIDTH = 768,
    ATTN_MAX = 512, /* tokens, with 8 heads of 64 */
    HEADS = 8,
    HEAD_DIM = 64,
};

#define LONG_ENOUGH     0.3e-3 /* one run */
#define MEASURE_SECONDS 3e-3   /* all runs of one measurement */

struct bench {
    struct threads *team;
    char *scratch;
    size_t bytes;
    /* the job being timed */
    struct gemm gemm;
    struct kernel_call call;
    void *work;
};

static double least(double x, double y) { return x < y ? x : y; }

typedef void job(struct bench *b);

static double once(struct bench *b, job *run)
{
    double begin = clock_seconds();
    run(b);
    double took = clock_seconds() - begin;
    return took > 1e-9 ? took : 1e-9;
}

/* The fastest of several short runs, and of three long ones: other programs on the machine disturb most of them, but not all. */
static double seconds(struct bench *b, job *run)
{
    double best = once(b, run), begin = clock_seconds(), used = 0;
    for (int i = 0; i < 2 || used < MEASURE_SECONDS; i++) {
        double took = once(b, run);
        if (took < best) best = took;
        used = clock_seconds() - begin;
    }
    return best;
}

static void run_gemm(struct bench *b) { gemm_run(&b->gemm, b->work, b->team); }

static size_t gemm_bytes(enum dtype type)
{
    return (size_t)WIDTH * (WIDTH + 2 * MATMUL_MAX) * dtype_size(type);
}

static void set_gemm(struct bench *b, enum dtype type, int64_t m, int64_t n)
{
    size_t weight = (size_t)WIDTH * WIDTH * dtype_size(type),
           rows = (size_t)WIDTH * MATMUL_MAX * dtype_size(type);
    b->work = b->scratch + weight + 2 * rows;
    b->gemm = gemm_by_lines(m, n, WIDTH, type, type);
    b->gemm.a = b->scratch + weight, b->gemm.b = b->scratch, b->gemm.c = b->scratch + weight + rows;
}

/* Without the time of packing rows, if that is known already. */
static double matmul_rate(struct bench *b, enum dtype type, double pack_bandwidth)
{
    for (int64_t m = MATMUL_MIN;; m *= 2) {
        set_gemm(b, type, m, WIDTH);
        if (once(b, run_gemm) < LONG_ENOUGH && m < MATMUL_MAX) continue;
        double took = seconds(b, run_gemm), packs = (double)m * WIDTH * (double)dtype_size(type);
        took -= least(packs / pack_bandwidth, took / 2);
        return 2.0 * (double)m * WIDTH * WIDTH / took;
    }
}

/* A narrow weight has as many rows to pack as a wide one, and few products with them. */
static double pack_bandwidth(struct bench *b)
{
    enum { NARROW = 64 };
    set_gemm(b, DT_BF16, MATMUL_MAX, WIDTH);
    double wide = seconds(b, run_gemm);
    set_gemm(b, DT_BF16, MATMUL_MAX, NARROW);
    double narrow = seconds(b, run_gemm), column = (wide - narrow) / (WIDTH - NARROW);
    double packs = narrow - NARROW * column;
    return packs > CALIBRATION_LEAST ? 2.0 * MATMUL_MAX * WIDTH / packs : CALIBRATION_UNLIMITED;
}

enum { SMALL = 256, SMALL_ROWS = 64, SMALLS = 24 }; /* weights of a small model, one after the other */

static void run_small(struct bench *b)
{
    for (int i = 0; i < SMALLS; i++, b->gemm.b = (const char *)b->gemm.b + 2 * SMALL * SMALL)
        gemm_run(&b->gemm, b->work, b->team);
    b->gemm.b = b->scratch;
}

/* Seconds of a small bf16 product beyond its flops, its rows' packing and its start: the weight's packing, and waiting for the
 * last worker. */
static double matmul_seconds(struct bench *b, const struct calibration *c)
{
    char *x = b->scratch + 2 * SMALLS * SMALL * SMALL;
    b->gemm = gemm_by_lines(SMALL_ROWS, SMALL, SMALL, DT_BF16, DT_BF16);
    b->gemm.a = x, b->gemm.b = b->scratch, b->gemm.c = x + 2 * SMALL_ROWS * SMALL;
    b->work = x + 4 * SMALL_ROWS * SMALL;
    double each = seconds(b, run_small) / SMALLS;
    each -= 2.0 * SMALL_ROWS * SMALL * SMALL / c->flops[DT_BF16] + c->op_seconds;
    each -= 2.0 * SMALL_ROWS * SMALL / c->pack_bandwidth;
    return each > CALIBRATION_LEAST ? each : CALIBRATION_LEAST;
}

static void run_attn(struct bench *b) { cpu_attn(&b->call); }

struct attn_shapes {
    struct tensor x, pos, lse;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT];
};

static void attn_shapes(struct attn_shapes *s, enum dtype type, int64_t batch, int64_t time, int64_t size)
{
    s->x = (struct tensor){.type = type, .ndim = 4, .dim = {batch, time, HEADS, size}};
    s->pos = (struct tensor){.type = DT_I32, .ndim = 2, .dim = {batch, time}};
    s->lse = (struct tensor){.type = DT_F32, .ndim = 3, .dim = {batch, HEADS, time}};
    memset(s->desc, 0, sizeof s->desc);
    s->desc[ATTN_Q] = s->desc[ATTN_K] = s->desc[ATTN_V] = s->desc[OP_MAX_IN + ATTN_O] = &s->x;
    s->desc[ATTN_POS] = &s->pos;
    s->desc[OP_MAX_IN + ATTN_LSE] = &s->lse;
}

static struct op attn_op(int64_t size)
{
    return (struct op){
        .kind = OP_ATTN,
        .attr = {
            .heads = HEADS, .kv_heads = HEADS, .head_dim = (int)size, .scale = 0.125f, .whole_rows = true}};
}

/* q, k, v, o, pos and lse, one after the other. */
enum { ATTN_SLOT = ATTN_MAX * HEADS * HEAD_DIM * 4 };

/* ATTN_MAX tokens in rows of `time`, with heads of `size`. */
static double attn_seconds(struct bench *b, enum dtype type, int64_t time, int64_t size)
{
    struct attn_shapes shapes;
    struct op op = attn_op(size);
    int32_t *pos = (int32_t *)(void *)(b->scratch + 4 * ATTN_SLOT);
    for (int i = 0; i < ATTN_MAX; i++) pos[i] = i % (int)time;
    attn_shapes(&shapes, type, ATTN_MAX / time, time, size);
    b->call = (struct kernel_call){.op = &op, .team = b->team, .work = b->scratch + 6 * ATTN_SLOT};
    memcpy(b->call.desc, shapes.desc, sizeof shapes.desc);
    for (int i = ATTN_Q; i <= ATTN_V; i++) b->call.in[i] = b->scratch + i * ATTN_SLOT;
    b->call.in[ATTN_POS] = pos;
    b->call.out[ATTN_O] = b->scratch + 3 * ATTN_SLOT;
    b->call.out[ATTN_LSE] = b->scratch + 5 * ATTN_SLOT;
    return seconds(b, run_attn);
}

enum { SHORT_ROW = 32, SMALL_HEAD = 16 };

static void run_attn_bwd(struct bench *b) { cpu_attn_bwd(&b->call); }

/* do, q, k, v, o, lse and pos, dq, dk, dv, one after the other. */
enum { ATTN_BWD_SLOTS = ATTN_BWD_POS + 4 };

static void attn_bwd_shapes(const struct attn_shapes *s, const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT])
{
    for (int i = ATTN_BWD_DO; i <= ATTN_BWD_O; i++) desc[i] = &s->x;
    desc[ATTN_BWD_LSE] = &s->lse, desc[ATTN_BWD_POS] = &s->pos;
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++) desc[OP_MAX_IN + i] = &s->x;
}

static double attn_bwd_seconds(struct bench *b)
{
    struct attn_shapes shapes;
    struct op op = attn_op(HEAD_DIM);
    op.kind = OP_ATTN_BWD;
    attn_shapes(&shapes, DT_BF16, 1, ATTN_MAX, HEAD_DIM);
    memset(b->scratch, 0x3c, ATTN_BWD_SLOTS * ATTN_SLOT);
    int32_t *pos = (int32_t *)(void *)(b->scratch + ATTN_BWD_POS * ATTN_SLOT);
    for (int i = 0; i < ATTN_MAX; i++) pos[i] = i;
    b->call =
        (struct kernel_call){.op = &op, .team = b->team, .work = b->scratch + ATTN_BWD_SLOTS * ATTN_SLOT};
    attn_bwd_shapes(&shapes, b->call.desc);
    for (int i = ATTN_BWD_DO; i <= ATTN_BWD_POS; i++) b->call.in[i] = b->scratch + i * ATTN_SLOT;
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++)
        b->call.out[i] = b->scratch + (ATTN_BWD_POS + 1 + i) * ATTN_SLOT;
    return seconds(b, run_attn_bwd);
}

static size_t attn_bwd_bytes(int threads)
{
    struct attn_shapes shapes;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {NULL};
    struct op op = attn_op(HEAD_DIM);
    op.kind = OP_ATTN_BWD;
    attn_shapes(&shapes, DT_BF16, 1, ATTN_MAX, HEAD_DIM);
    attn_bwd_shapes(&shapes, desc);
    return ATTN_BWD_SLOTS * ATTN_SLOT + cpu_attn_bwd_workspace(desc, &op, threads);
}

static double scores_of(int64_t time) { return HEADS * ATTN_MAX / 2.0 * (double)(time + 1); }

/* Attention is products of scores and heads, a part of each score that is as long for any head, and a part of each row of scores. The same
 * tokens with smaller heads and in shorter rows tell the three apart. */
static void attn_rates(struct bench *b, struct calibration *out)
{
    const double rows = HEADS * ATTN_MAX, all = scores_of(ATTN_MAX), few = scores_of(SHORT_ROW);
    double whole = attn_seconds(b, DT_BF16, ATTN_MAX, HEAD_DIM);
    double small = attn_seconds(b, DT_BF16, ATTN_MAX, SMALL_HEAD);
    double cut = attn_seconds(b, DT_BF16, SHORT_ROW, HEAD_DIM);
    double flop = (whole - small) / (4.0 * (HEAD_DIM - SMALL_HEAD) * all);
    double each = (whole - cut) / (all - few); /* score, with its products */
    if (flop <= 0 || 4 * HEAD_DIM * flop > each) flop = each / (4 * HEAD_DIM);
    double score = each - 4 * HEAD_DIM * flop, row = (cut - few * each) / rows;
    out->score_rate = score > 0 ? 1 / score : CALIBRATION_UNLIMITED;
    out->score_row_rate = row > 0 ? 1 / row : CALIBRATION_UNLIMITED;
    for (enum precision p = 0; p < PRECISION_COUNT; p++) {
        enum dtype type = precision_type(p);
        double took = type == DT_BF16 ? whole : attn_seconds(b, type, ATTN_MAX, HEAD_DIM);
        double rest = least(all / out->score_rate + rows / out->score_row_rate, took / 2);
        out->attn_flops[type] = 4.0 * HEAD_DIM * all / (took - rest);
    }
    double back = attn_bwd_seconds(b); /* with the parts that cost_attn_bwd counts */
    back -= least(1.5 * (all / out->score_rate + rows / out->score_row_rate), back / 2);
    out->attn_general_share = 1;                     /* the same kernels */
    out->attn_wide_share = out->attn_long_share = 1; /* score_rate and score_row_rate have them */
    out->attn_bwd_share = 10.0 * HEAD_DIM * all / back / out->attn_flops[DT_BF16];
}

static void run_copy(struct bench *b) { cpu_copy(&b->call); }

static double copy_rate(struct bench *b, int64_t bytes)
{
    struct tensor t = {.type = DT_U8, .ndim = 1, .dim = {bytes}};
    b->call = (struct kernel_call){.team = b->team, .in = {b->scratch}, .out = {b->scratch + bytes}};
    b->call.desc[MOVE_FROM] = b->call.desc[OP_MAX_IN + MOVE_TO] = &t;
    return 2.0 * (double)bytes / seconds(b, run_copy);
}

static void run_adamw8(struct bench *b) { cpu_adamw8(&b->call); }

enum { CODED = 128 << 10 }; /* elements: parameters, gradients and codes are 1.25 MiB */

/* An optimizer's call: inputs one after the other, results 0 to `last` in place. */
static void place_update(struct bench *b, const struct op *op, const struct tensor *const shapes[OP_MAX_IN],
                         int last)
{
    char *at = b->scratch;
    b->call = (struct kernel_call){.op = op, .team = b->team};
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!shapes[i]) continue;
        b->call.desc[i] = shapes[i], b->call.in[i] = at;
        at += tensor_bytes(shapes[i]);
    }
    for (int i = 0; i <= last; i++) {
        int in = op_shares(op->kind, i);
        b->call.desc[OP_MAX_IN + i] = shapes[in], b->call.out[i] = b->call.in[in];
    }
}

static double coded_rate(struct bench *b)
{
    static const struct op op = {.kind = OP_ADAMW8, .attr = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}};
    struct tensor p = {.type = DT_F32, .ndim = 1, .dim = {CODED}}, codes = p, scales = p, scalars = p;
    codes.type = DT_U8, scales.dim[0] = CODED / QUANT8_BLOCK, scalars.dim[0] = SCALAR_COUNT;
    const struct tensor *const shapes[OP_MAX_IN] = {
        [ADAMW8_P] = &p,       [ADAMW8_G] = &p,       [ADAMW8_MQ] = &codes,       [ADAMW8_VQ] = &codes,
        [ADAMW8_MS] = &scales, [ADAMW8_VS] = &scales, [ADAMW8_SCALARS] = &scalars};
    place_update(b, &op, shapes, ADAMW8_NEW_VS);
    return CODED / seconds(b, run_adamw8);
}

static void run_glu(struct bench *b) { cpu_glu(&b->call); }

static double curve_rate(struct bench *b)
{
    static const struct op op = {.kind = OP_GLU, .attr = {.activation = ACTIVATION_SILU}};
    struct tensor t = {.type = DT_BF16, .ndim = 2, .dim = {1, CODED}};
    b->call = (struct kernel_call){.op = &op, .team = b->team};
    for (int i = GLU_GATE; i <= GLU_UP; i++) b->call.desc[i] = &t, b->call.in[i] = b->scratch + i * 2 * CODED;
    b->call.desc[OP_MAX_IN + GLU_H] = &t, b->call.out[GLU_H] = b->scratch + 4 * CODED;
    return CODED / seconds(b, run_glu);
}

static void run_norm(struct bench *b) { cpu_norm(&b->call); }

static double plain_rate(struct bench *b)
{
    enum { ROW = 1024, ROWS = CODED / ROW };
    static const struct op op = {.kind = OP_NORM, .attr = {.eps = 1e-5f}};
    struct tensor x = {.type = DT_BF16, .ndim = 2, .dim = {ROWS, ROW}}, w = x, stat = x;
    w.ndim = 1, w.dim[0] = ROW, stat.type = DT_F32, stat.dim[1] = 1;
    b->call = (struct kernel_call){.op = &op, .team = b->team};
    char *at = b->scratch + 2 * 2 * CODED;
    b->call.desc[NORM_X] = b->call.desc[OP_MAX_IN + NORM_Y] = &x;
    b->call.desc[NORM_W] = &w, b->call.desc[OP_MAX_IN + NORM_STAT] = &stat;
    b->call.in[NORM_X] = b->scratch, b->call.out[NORM_Y] = b->scratch + 2 * CODED;
    b->call.in[NORM_W] = at, b->call.out[NORM_STAT] = at + 2 * ROW;
    return CODED / seconds(b, run_norm);
}

static void run_adamw(struct bench *b) { cpu_adamw(&b->call); }

/* A bf16 weight with 16 bits of its master, and moments in fp32. */
static double update_rate(struct bench *b)
{
    static const struct op op = {.kind = OP_ADAMW, .attr = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}};
    struct tensor wide = {.type = DT_F32, .ndim = 1, .dim = {CODED}}, p = wide, master = wide, list = wide;
    p.type = DT_BF16, master.type = DT_U16, list.dim[0] = SCALAR_COUNT;
    const struct tensor *const shapes[OP_MAX_IN] = {
        [ADAMW_P] = &p,    [ADAMW_G] = &wide,        [ADAMW_M] = &wide,
        [ADAMW_V] = &wide, [ADAMW_MASTER] = &master, [ADAMW_SCALARS] = &list};
    place_update(b, &op, shapes, ADAMW_NEW_MASTER);
    return CODED / seconds(b, run_adamw);
}

static void nothing(void *, int64_t, int64_t, int) {}

static void run_nothing(struct bench *b)
{
    threads_each(b->team, 4 * threads_count(b->team), 1, nothing, NULL);
}

/* And what an op does before its loop. */
static double start_seconds(struct bench *b) { return seconds(b, run_nothing) + 1e-6; }

static size_t scratch_bytes(int threads)
{
    size_t bytes = max_size(2 * COPY_BYTES, attn_bwd_bytes(threads));
    for (enum precision p = 0; p < PRECISION_COUNT; p++) {
        enum dtype type = precision_type(p);
        bytes =
            max_size(bytes, gemm_bytes(type) + gemm_workspace(MATMUL_MAX, WIDTH, WIDTH, type, type, threads));
        for (int i = 0; i < 3; i++) { /* as attn_rates measures */
            struct attn_shapes shapes;
            int64_t size = i == 1 ? SMALL_HEAD : HEAD_DIM, time = i == 2 ? SHORT_ROW : ATTN_MAX;
            struct op op = attn_op(size);
            attn_shapes(&shapes, type, ATTN_MAX / time, time, size);
            bytes = max_size(bytes, 6 * ATTN_SLOT + cpu_attn_workspace(shapes.desc, &op, threads));
        }
    }
    return (bytes + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
}

enum plim_status calibrate_measure(struct threads *team, struct calibration *out, struct plim_error *err)
{
    struct bench b = {.team = team, .bytes = scratch_bytes(threads_count(team))};
    b.scratch = mmap(NULL, b.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.scratch == MAP_FAILED)
        return plim_fail(err, PLIM_NO_MEMORY, "no room to measure this CPU: %zu bytes refused: %s", b.bytes,
                         strerror(errno));
    madvise(b.scratch, b.bytes, MADV_HUGEPAGE);
    memset(b.scratch, 0x3c, b.bytes); /* 0.0115 in f32 and bf16, 1.06 in f16 */
    memset(out, 0, sizeof *out);
    out->pack_bandwidth = pack_bandwidth(&b);
    for (enum precision p = 0; p < PRECISION_COUNT; p++)
        out->flops[precision_type(p)] = matmul_rate(&b, precision_type(p), out->pack_bandwidth);
    memset(b.scratch, 0x3c, 7 * ATTN_SLOT);
    attn_rates(&b, out);
    out->tf32_flops = out->flops[DT_F32];
    out->bandwidth = copy_rate(&b, COPY_BYTES);
    out->cache_bandwidth = copy_rate(&b, CACHE_COPY_BYTES);
    if (out->cache_bandwidth < out->bandwidth) out->cache_bandwidth = out->bandwidth;
    memset(b.scratch, 0x3c, 2 << 20);
    out->coded_rate = coded_rate(&b);
    out->curve_rate = curve_rate(&b);
    out->op_seconds = start_seconds(&b);
    out->plain_rate = plain_rate(&b);
    out->update_rate = update_rate(&b);
    out->matmul_seconds = matmul_seconds(&b, out);
    munmap(b.scratch, b.bytes);
    return PLIM_OK;
}
