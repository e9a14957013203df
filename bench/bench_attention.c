/* bench_attention [threads] [seconds per line] - attention on the CPU: GFLOP/s of forward and backward by
 * shape and dtype, causal pairs counted once (4 flops per pair and element forward, 10 backward), and GB/s of
 * decoding.
 */
#include "base/clock.h"
#include "base/threads.h"
#include "device/cpu/gemm_kernel.h"
#include "device/cpu/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct shape {
    int64_t b, t, s, h, k, d;
    int window;
};

static const struct shape shapes[] = {
    {1, 512, 512, 12, 12, 64, 0},   {1, 1024, 1024, 12, 12, 64, 0}, {1, 2048, 2048, 12, 12, 64, 0},
    {1, 2048, 2048, 12, 4, 64, 0},  {1, 1024, 1024, 8, 2, 128, 0},  {1, 2048, 2048, 12, 12, 64, 256},
    {1, 1024, 1024, 12, 12, 80, 0}, {1, 1, 8192, 12, 12, 64, 0},    {1, 1, 8192, 32, 8, 128, 0},
    {8, 1, 2048, 16, 2, 64, 0},
};

enum { Q, K, V, DO, O, DQ, DK, DV, TENSORS };

struct problem {
    struct shape shape;
    struct tensor desc[TENSORS], lse_desc, pos_desc;
    void *x[TENSORS], *lse, *pos;
    struct op fwd, bwd;
};

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "bench_attention: no memory\n");
        exit(4);
    }
    return p;
}

static void fill(void *x, enum dtype type, int64_t n)
{
    uint32_t seed = 1;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float f = (float)(seed >> 8) / 8388608.0f - 1.0f;
        dtype_convert((char *)x + (size_t)i * dtype_size(type), type, &f, DT_F32, 1);
    }
}

static struct problem make(const struct shape *s, enum dtype type)
{
    struct problem p = {.shape = *s};
    for (int x = 0; x < TENSORS; x++) {
        bool key = x == K || x == V || x == DK || x == DV;
        int64_t n = key ? s->b * s->s * s->k * s->d : s->b * s->t * s->h * s->d;
        p.desc[x] = (struct tensor){.type = type, .ndim = 4};
        p.desc[x].dim[0] = s->b, p.desc[x].dim[1] = key ? s->s : s->t;
        p.desc[x].dim[2] = key ? s->k : s->h, p.desc[x].dim[3] = s->d;
        p.x[x] = room((size_t)n * dtype_size(type));
        fill(p.x[x], type, n);
    }
    p.lse_desc = (struct tensor){.type = DT_F32, .ndim = 3, .dim = {s->b, s->h, s->t}};
    p.pos_desc = (struct tensor){.type = DT_I32, .ndim = 2, .dim = {s->b, s->t}};
    p.lse = room((size_t)(s->b * s->h * s->t) * 4);
    p.pos = room((size_t)(s->b * s->t) * 4);
    for (int64_t i = 0; i < s->b * s->t; i++) ((int32_t *)p.pos)[i] = (int32_t)(i % s->t + s->s - s->t);
    p.fwd = (struct op){.kind = OP_ATTN};
    p.fwd.attr.window = s->window;
    p.fwd.attr.cached = s->t != s->s;
    p.fwd.attr.scale = 1 / sqrtf((float)s->d);
    p.bwd = p.fwd;
    p.bwd.kind = OP_ATTN_BWD;
    return p;
}

static struct kernel_call call_of(struct problem *p, bool backward)
{
    static const int forward[] = {[ATTN_Q] = Q, [ATTN_K] = K, [ATTN_V] = V};
    static const int back[] = {
        [ATTN_BWD_DO] = DO, [ATTN_BWD_Q] = Q, [ATTN_BWD_K] = K, [ATTN_BWD_V] = V, [ATTN_BWD_O] = O};
    const int *in = backward ? back : forward, last = backward ? ATTN_BWD_O : ATTN_V;
    struct kernel_call c = {.op = backward ? &p->bwd : &p->fwd};
    for (int i = 0; i <= last; i++) c.desc[i] = &p->desc[in[i]], c.in[i] = p->x[in[i]];
    if (backward) {
        c.in[ATTN_BWD_LSE] = p->lse, c.in[ATTN_BWD_POS] = p->pos;
        c.out[ATTN_BWD_DQ] = p->x[DQ], c.out[ATTN_BWD_DK] = p->x[DK], c.out[ATTN_BWD_DV] = p->x[DV];
    } else {
        c.in[ATTN_POS] = p->pos, c.out[ATTN_O] = p->x[O], c.out[ATTN_LSE] = p->lse;
    }
    return c;
}

/* Best seconds of one call. */
static double best(struct problem *p, bool backward, struct threads *team, double seconds)
{
    struct kernel_call call = call_of(p, backward);
    kernel_workspace *workspace = backward ? cpu_attn_bwd_workspace : cpu_attn_workspace;
    kernel_run *run = backward ? cpu_attn_bwd : cpu_attn;
    size_t bytes = workspace(call.desc, call.op, threads_count(team));
    call.work = room(bytes ? bytes : 64);
    call.team = team;
    double least = 1e30, until = clock_seconds() + seconds;
    do {
        double start = clock_seconds();
        run(&call);
        double took = clock_seconds() - start;
        least = took < least ? took : least;
    } while (clock_seconds() < until);
    free(call.work);
    return least;
}

static double pairs(const struct shape *s)
{
    double sum = 0;
    for (int64_t t = 0; t < s->t; t++) {
        double seen = (double)(t + 1 + s->s - s->t);
        sum += s->window && seen > s->window ? s->window : seen;
    }
    return sum * (double)(s->b * s->h);
}

static void one(const struct shape *s, enum dtype type, struct threads *team, double seconds)
{
    struct problem p = make(s, type);
    double work = pairs(s) * (double)s->d, fwd = best(&p, false, team, seconds);
    printf("%-4s B%-2d T%-5d S%-5d H%-3d K%-3d D%-4d W%-4d fwd %8.3f ms %7.1f GFLOP/s", dtype_name(type),
           (int)s->b, (int)s->t, (int)s->s, (int)s->h, (int)s->k, (int)s->d, s->window, fwd * 1e3,
           4e-9 * work / fwd);
    if (s->t == s->s) {
        double bwd = best(&p, true, team, seconds);
        printf("   bwd %8.3f ms %7.1f GFLOP/s\n", bwd * 1e3, 10e-9 * work / bwd);
    } else {
        double bytes = 2.0 * (double)(s->b * s->s * s->k * s->d) * (double)dtype_size(type);
        printf("   %6.1f GB/s of keys and values\n", 1e-9 * bytes / fwd);
    }
    for (int x = 0; x < TENSORS; x++) free(p.x[x]);
    free(p.lse), free(p.pos);
}

int main(int argc, char **argv)
{
    struct threads *team;
    struct plim_error err;
    double seconds = argc > 2 ? atof(argv[2]) : 0.5;
    if (threads_start(argc > 1 ? atoi(argv[1]) : 0, &team, &err) != PLIM_OK) {
        fprintf(stderr, "bench_attention: %s\n", err.text);
        return plim_exit_code(err.status);
    }
    printf("%d threads, %s, %s\n", threads_count(team), gemm_kernel_at(cpu_level(), DT_F32)->name,
           gemm_kernel_at(cpu_level(), DT_BF16)->name);
    for (int type = DT_F32; type <= DT_BF16; type++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            one(&shapes[i], (enum dtype)type, team, seconds);
    threads_free(team);
    return 0;
}
