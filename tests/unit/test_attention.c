/* Attention on the CPU against a naive implementation in double precision: every kind of visibility, every
 * dtype, odd sizes; the same bits with every number of threads; nothing written outside of what was given.
 */
#include "device/cpu/attention_rows.h"
#include "device/cpu/kernels.h"
#include "support/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

enum { GUARD = 256, FILL = 0xa5 };

/* How pos is written. */
enum pos_kind {
    POS_PLAIN,  /* 0 1 2 ... */
    POS_PACKED, /* samples of uneven length in one row: 0 1 2 0 1 2 3 4 0 ... */
    POS_CACHED, /* a continuation, another length in every batch row */
    POS_WILD,   /* cached, positions out of order */
};

struct shape {
    const char *name;
    int64_t b, t, s, h, k, d;
    int window;
    enum pos_kind pos;
};

static const struct shape shapes[] = {
    {"one token", 1, 1, 1, 1, 1, 8, 0, POS_PLAIN},
    {"causal", 2, 37, 37, 2, 2, 64, 0, POS_PLAIN},
    {"causal, whole blocks", 1, 192, 192, 2, 2, 64, 0, POS_PLAIN},
    {"causal, long", 1, 333, 333, 3, 1, 64, 0, POS_PLAIN},
    {"causal, longer than a block of rows", 1, 700, 700, 1, 1, 16, 0, POS_PLAIN},
    {"wide heads", 1, 130, 130, 2, 1, 128, 0, POS_PLAIN},
    {"widest heads", 1, 101, 101, 1, 1, 256, 0, POS_PLAIN},
    {"odd heads", 2, 75, 75, 3, 3, 20, 0, POS_PLAIN},
    {"odder heads", 1, 53, 53, 2, 1, 33, 0, POS_PLAIN},
    {"one element", 1, 29, 29, 2, 2, 1, 0, POS_PLAIN},
    {"window", 1, 300, 300, 2, 2, 32, 17, POS_PLAIN},
    {"window of one", 1, 40, 40, 2, 2, 16, 1, POS_PLAIN},
    {"wide window", 1, 311, 311, 2, 1, 64, 150, POS_PLAIN},
    {"groups", 2, 97, 97, 8, 2, 64, 0, POS_PLAIN},
    {"odd groups", 1, 61, 61, 15, 3, 24, 0, POS_PLAIN},
    {"packed", 2, 280, 280, 4, 2, 64, 0, POS_PACKED},
    {"packed, window", 1, 350, 350, 2, 2, 40, 50, POS_PACKED},
    {"decode", 3, 1, 200, 4, 2, 64, 0, POS_CACHED},
    {"decode, one head", 2, 1, 77, 1, 1, 36, 0, POS_CACHED},
    {"decode, many heads to one", 2, 1, 1300, 12, 2, 64, 0, POS_CACHED},
    {"decode, pieces", 2, 1, 2000, 4, 2, 128, 0, POS_CACHED},
    {"decode, pieces, window", 2, 1, 2000, 2, 2, 64, 300, POS_CACHED},
    {"prefill into a cache", 2, 70, 150, 4, 2, 64, 0, POS_CACHED},
    {"prefill into a cache, window", 1, 70, 700, 4, 4, 32, 33, POS_CACHED},
    {"few queries, pieces", 1, 5, 1700, 6, 2, 48, 0, POS_CACHED},
    {"cache, any order", 1, 60, 90, 2, 1, 32, 0, POS_WILD},
};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    FEWER = EVERY > 1 ? 3 : 1
}; /* a sanitizer sees a shape in one type */

/* ---- memory with guards ---------------------------------------------------------------------- */

struct buffer {
    unsigned char *base, *data;
    size_t bytes;
};

static struct buffer buffer_make(size_t bytes)
{
    struct buffer b = {.bytes = bytes};
    size_t room = (bytes + 63) / 64 * 64;
    b.base = aligned_alloc(64, room + 2 * GUARD);
    assert_non_null(b.base);
    memset(b.base, FILL, room + 2 * GUARD);
    b.data = b.base + GUARD;
    return b;
}

static void buffer_check(const struct buffer *b)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(b->base[i], FILL);
        assert_int_equal(b->data[b->bytes + i], FILL);
    }
}

static void buffer_free(struct buffer *b)
{
    free(b->base);
    *b = (struct buffer){0};
}

/* ---- a problem ------------------------------------------------------------------------------- */

enum { Q, K, V, DO, O, DQ, DK, DV, TENSORS };

struct problem {
    const struct shape *shape;
    enum dtype type;
    struct op fwd, bwd;
    struct tensor desc[TENSORS], lse_desc, pos_desc;
    struct buffer x[TENSORS], lse, pos;
    double *value[TENSORS], *lse_value; /* the inputs as they were rounded; what they should give */
};

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 40) / 8388608.0 - 1.0;
}

static int64_t count(const struct tensor *t) { return t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3]; }

static void make_pos(struct problem *p, uint64_t *seed)
{
    const struct shape *s = p->shape;
    int32_t *pos = (int32_t *)(void *)p->pos.data;
    for (int64_t b = 0; b < s->b; b++) {
        int32_t at = 0, left = 1 + (int32_t)((uniform(seed) + 1) * 40);
        int32_t base = (int32_t)((s->s - s->t) * (b + 1) / s->b);
        for (int64_t t = 0; t < s->t; t++, at++) {
            if (s->pos == POS_PACKED && left-- == 0) at = 0, left = (int32_t)((uniform(seed) + 1) * 40);
            pos[b * s->t + t] = at + (s->pos >= POS_CACHED ? base : 0);
            if (s->pos == POS_WILD) pos[b * s->t + t] = (int32_t)(t * 31 % s->s);
        }
    }
}

/* Keys behind everybody's sight must not be looked at: they are NaN. */
static void make_values(struct problem *p, uint64_t *seed)
{
    const struct shape *s = p->shape;
    const int32_t *pos = (const int32_t *)(const void *)p->pos.data;
    for (int x = Q; x <= DO; x++) {
        int64_t n = count(&p->desc[x]), row = n / (p->desc[x].dim[0] * p->desc[x].dim[1]);
        float *f = malloc((size_t)n * 4);
        assert_non_null(f);
        for (int64_t i = 0; i < n; i++) {
            int64_t key = i / row % s->s, b = i / row / s->s, seen = s->pos < POS_CACHED;
            for (int64_t t = 0; !seen && t < s->t && (x == K || x == V); t++) seen = key <= pos[b * s->t + t];
            f[i] = seen || x == Q || x == DO ? (float)uniform(seed) * (x == Q ? 2 : 1) : NAN;
        }
        dtype_convert(p->x[x].data, p->type, f, DT_F32, n);
        dtype_convert(f, DT_F32, p->x[x].data, p->type, n);
        for (int64_t i = 0; i < n; i++) p->value[x][i] = (double)f[i];
        free(f);
    }
}

static void problem_make(struct problem *p, const struct shape *s, enum dtype type)
{
    uint64_t seed = 7 + (uint64_t)(s - shapes);
    *p = (struct problem){.shape = s, .type = type};
    for (int x = 0; x < TENSORS; x++) {
        bool key = x == K || x == V || x == DK || x == DV;
        p->desc[x] = (struct tensor){.type = type, .ndim = 4};
        p->desc[x].dim[0] = s->b, p->desc[x].dim[1] = key ? s->s : s->t;
        p->desc[x].dim[2] = key ? s->k : s->h, p->desc[x].dim[3] = s->d;
        p->x[x] = buffer_make((size_t)count(&p->desc[x]) * dtype_size(type));
        p->value[x] = calloc((size_t)count(&p->desc[x]), sizeof(double));
    }
    p->lse_desc = (struct tensor){.type = DT_F32, .ndim = 3, .dim = {s->b, s->h, s->t}};
    p->pos_desc = (struct tensor){.type = DT_I32, .ndim = 2, .dim = {s->b, s->t}};
    p->lse = buffer_make((size_t)(s->b * s->h * s->t) * 4);
    p->pos = buffer_make((size_t)(s->b * s->t) * 4);
    p->lse_value = calloc((size_t)(s->b * s->h * s->t), sizeof(double));
    p->fwd.kind = OP_ATTN, p->bwd.kind = OP_ATTN_BWD;
    p->fwd.attr = (struct op_attr){.heads = (int)s->h,
                                   .kv_heads = (int)s->k,
                                   .head_dim = (int)s->d,
                                   .window = s->window,
                                   .cached = s->pos >= POS_CACHED,
                                   .scale = (float)(1 / sqrt((double)s->d))};
    p->bwd.attr = p->fwd.attr;
    make_pos(p, &seed);
    make_values(p, &seed);
}

static void problem_free(struct problem *p)
{
    for (int x = 0; x < TENSORS; x++) buffer_free(&p->x[x]), free(p->value[x]);
    buffer_free(&p->lse), buffer_free(&p->pos);
    free(p->lse_value);
}

/* ---- naive ----------------------------------------------------------------------------------- */

struct naive {
    const struct problem *p;
    int64_t first, last, query, key0, key_step; /* where vectors begin */
    double scale;
};

static struct naive naive_at(const struct problem *p, int64_t b, int64_t t, int64_t h)
{
    const struct shape *s = p->shape;
    struct naive n = {.p = p, .scale = (double)p->fwd.attr.scale};
    int64_t pos = ((const int32_t *)(const void *)p->pos.data)[b * s->t + t];
    n.last = p->fwd.attr.cached ? pos : t;
    n.first = p->fwd.attr.cached ? 0 : t - pos;
    if (s->window && n.first < n.last - s->window + 1) n.first = n.last - s->window + 1;
    n.query = ((b * s->t + t) * s->h + h) * s->d;
    n.key0 = (b * s->s * s->k + h / (s->h / s->k)) * s->d;
    n.key_step = s->k * s->d;
    return n;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

static double score(const struct naive *n, int64_t s)
{
    const struct problem *p = n->p;
    return n->scale * dot(p->value[Q] + n->query, p->value[K] + n->key0 + s * n->key_step, p->shape->d);
}

static double naive_forward(const struct naive *n)
{
    double top = -INFINITY, sum = 0, *o = n->p->value[O] + n->query;
    for (int64_t s = n->first; s <= n->last; s++) top = fmax(top, score(n, s));
    for (int64_t s = n->first; s <= n->last; s++) sum += exp(score(n, s) - top);
    for (int64_t s = n->first; s <= n->last; s++) {
        double w = exp(score(n, s) - top) / sum;
        for (int64_t i = 0; i < n->p->shape->d; i++)
            o[i] += w * n->p->value[V][n->key0 + s * n->key_step + i];
    }
    return top + log(sum);
}

/* From the output as it was rounded, which is what the op is given. */
static void naive_backward(const struct naive *n, double lse)
{
    const struct problem *p = n->p;
    int64_t d = p->shape->d;
    const double *d_o = p->value[DO] + n->query;
    double delta = 0;
    for (int64_t i = 0; i < d; i++) {
        float o;
        dtype_convert(&o, DT_F32, p->x[O].data + (size_t)(n->query + i) * dtype_size(p->type), p->type, 1);
        delta += d_o[i] * (double)o;
    }
    for (int64_t s = n->first; s <= n->last; s++) {
        int64_t key = n->key0 + s * n->key_step;
        double w = exp(score(n, s) - lse), ds = n->scale * w * (dot(d_o, p->value[V] + key, d) - delta);
        for (int64_t i = 0; i < d; i++) {
            p->value[DQ][n->query + i] += ds * p->value[K][key + i];
            p->value[DK][key + i] += ds * p->value[Q][n->query + i];
            p->value[DV][key + i] += w * d_o[i];
        }
    }
}

static void naive(struct problem *p, bool backward)
{
    const struct shape *s = p->shape;
    for (int64_t i = 0; i < s->b * s->h * s->t; i++) {
        struct naive n = naive_at(p, i / s->t / s->h, i % s->t, i / s->t % s->h);
        if (backward) {
            naive_backward(&n, p->lse_value[i]);
        } else {
            p->lse_value[i] = naive_forward(&n);
        }
    }
}

/* ---- running and comparing ------------------------------------------------------------------- */

static struct kernel_call call_forward(struct problem *p)
{
    struct kernel_call c = {.op = &p->fwd};
    c.desc[ATTN_Q] = &p->desc[Q], c.in[ATTN_Q] = p->x[Q].data;
    c.desc[ATTN_K] = &p->desc[K], c.in[ATTN_K] = p->x[K].data;
    c.desc[ATTN_V] = &p->desc[V], c.in[ATTN_V] = p->x[V].data;
    c.desc[ATTN_POS] = &p->pos_desc, c.in[ATTN_POS] = p->pos.data;
    c.desc[OP_MAX_IN + ATTN_O] = &p->desc[O], c.out[ATTN_O] = p->x[O].data;
    c.desc[OP_MAX_IN + ATTN_LSE] = &p->lse_desc, c.out[ATTN_LSE] = p->lse.data;
    return c;
}

static struct kernel_call call_backward(struct problem *p)
{
    static const int in[] = {
        [ATTN_BWD_DO] = DO, [ATTN_BWD_Q] = Q, [ATTN_BWD_K] = K, [ATTN_BWD_V] = V, [ATTN_BWD_O] = O};
    static const int out[] = {[ATTN_BWD_DQ] = DQ, [ATTN_BWD_DK] = DK, [ATTN_BWD_DV] = DV};
    struct kernel_call c = {.op = &p->bwd};
    for (int i = ATTN_BWD_DO; i <= ATTN_BWD_O; i++) c.desc[i] = &p->desc[in[i]], c.in[i] = p->x[in[i]].data;
    c.desc[ATTN_BWD_LSE] = &p->lse_desc, c.in[ATTN_BWD_LSE] = p->lse.data;
    c.desc[ATTN_BWD_POS] = &p->pos_desc, c.in[ATTN_BWD_POS] = p->pos.data;
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++)
        c.desc[OP_MAX_IN + i] = &p->desc[out[i]], c.out[i] = p->x[out[i]].data;
    return c;
}

/* Scratch is full of NaN before, and its guards are whole after. */
static void run_call(struct kernel_call *call, kernel_run *run, kernel_workspace *workspace,
                     struct threads *team)
{
    size_t bytes = workspace(call->desc, call->op, threads_count(team));
    struct buffer work = buffer_make(bytes);
    memset(work.data, 0xff, bytes);
    call->work = work.data;
    call->team = team;
    run(call);
    buffer_check(&work);
    buffer_free(&work);
}

static void run_all(struct problem *p, struct threads *team)
{
    struct kernel_call fwd = call_forward(p), bwd = call_backward(p);
    run_call(&fwd, cpu_attn, cpu_attn_workspace, team);
    if (p->shape->pos != POS_CACHED) run_call(&bwd, cpu_attn_bwd, cpu_attn_bwd_workspace, team);
    for (int x = 0; x < TENSORS; x++) buffer_check(&p->x[x]);
    buffer_check(&p->lse);
}

/* Largest difference relative to |expected| plus its root mean square (at least 1/64). */
static double distance(const double *want, const void *got, enum dtype type, int64_t n)
{
    double square = 0, worst = 0;
    float *f = malloc((size_t)n * 4);
    assert_non_null(f);
    dtype_convert(f, DT_F32, got, type, n);
    for (int64_t i = 0; i < n; i++) square += want[i] * want[i];
    double usual = fmax(sqrt(square / (double)n), 1.0 / 64);
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(want[i] - (double)f[i]) / (usual + fabs(want[i]));
        worst = off <= worst ? worst : off; /* NaN counts */
    }
    free(f);
    return worst;
}

static void compare(const struct problem *p)
{
    static const struct {
        int x;
        const char *name;
    } outputs[] = {{O, "o"}, {DQ, "dq"}, {DK, "dk"}, {DV, "dv"}};
    static const double limit[] = {[DT_F32] = 3e-5, [DT_BF16] = 4e-2, [DT_F16] = 1e-3};
    const struct shape *s = p->shape;
    for (int i = 0; i < (s->pos == POS_CACHED ? 1 : 4); i++) {
        int x = outputs[i].x;
        double off = distance(p->value[x], p->x[x].data, p->type, count(&p->desc[x]));
        if (!(off < limit[p->type])) {
            print_error("%s %s: %s is off by %g\n", s->name, dtype_name(p->type), outputs[i].name, off);
            fail();
        }
    }
    const float *lse = (const float *)(const void *)p->lse.data;
    for (int64_t i = 0; i < s->b * s->h * s->t; i++)
        if (!(fabs(p->lse_value[i] - (double)lse[i]) < 1e-5)) fail_msg("%s: lse is off", s->name);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static struct threads *teams[3];

static int start_teams(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        if (threads_start(i + 1, &teams[i], NULL) != PLIM_OK) return -1;
    return 0;
}

static int free_teams(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) threads_free(teams[i]);
    return 0;
}

static void one_shape(const struct shape *s, enum dtype type)
{
    struct problem p;
    problem_make(&p, s, type);
    run_all(&p, teams[0]);
    naive(&p, false);
    if (s->pos != POS_CACHED) naive(&p, true);
    compare(&p);
    struct buffer kept[TENSORS];
    for (int x = O; x < TENSORS; x++) {
        kept[x] = buffer_make(p.x[x].bytes);
        memcpy(kept[x].data, p.x[x].data, p.x[x].bytes);
    }
    for (int i = 1; i < 3; i++) {
        run_all(&p, teams[i]);
        for (int x = O; x < TENSORS; x++) assert_memory_equal(kept[x].data, p.x[x].data, p.x[x].bytes);
    }
    for (int x = O; x < TENSORS; x++) buffer_free(&kept[x]);
    problem_free(&p);
}

static void f32(void **state)
{
    (void)state;
    for (int i = 0 % FEWER; i < SHAPES; i += FEWER) one_shape(&shapes[i], DT_F32);
}

static void bf16(void **state)
{
    (void)state;
    for (int i = 1 % FEWER; i < SHAPES; i += FEWER) one_shape(&shapes[i], DT_BF16);
}

static void f16(void **state)
{
    (void)state;
    for (int i = 2 % FEWER; i < SHAPES; i += FEWER) one_shape(&shapes[i], DT_F16);
}

/* No part of the scratch may grow with time * time. */
static void workspace_is_linear(void **state)
{
    (void)state;
    for (int group = 1; group <= 8; group *= 8) {
        size_t bytes[2][2];
        for (int i = 0; i < 2; i++) {
            struct shape s = {"", 1, 4096 << i, 4096 << i, 8, 8 / group, 64, 0, POS_PLAIN};
            struct tensor q = {.type = DT_BF16, .ndim = 4, .dim = {s.b, s.t, s.h, s.d}}, k = q;
            k.dim[2] = s.k;
            const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT] = {[ATTN_Q] = &q, [ATTN_K] = &k, [ATTN_V] = &k};
            const struct tensor *back[OP_MAX_IN + OP_MAX_OUT] = {
                [ATTN_BWD_DO] = &q, [ATTN_BWD_Q] = &q, [ATTN_BWD_K] = &k, [ATTN_BWD_V] = &k};
            struct op op = {.attr = {.scale = 1}};
            bytes[0][i] = cpu_attn_workspace(desc, &op, 2);
            bytes[1][i] = cpu_attn_bwd_workspace(back, &op, 2);
            assert_true(bytes[1][i] < 2u * (3 * 4 * 64 * (size_t)s.t + (1u << 20)) + 4 * 8 * (size_t)s.t);
        }
        assert_int_equal(bytes[0][0], bytes[0][1]);
        assert_true(bytes[1][1] < 2 * bytes[1][0]);
    }
}

/* Exponentials of the table in use against exp2(): 2^x as the weight of a score x below a top of 0. */
static void exponentials(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        const struct attn_rows *rows = attn_rows_for(gemm_kernel_at(cpu_level(), types[i]));
        if (!rows) rows = attn_rows_for(gemm_kernel_at(cpu_level(), DT_F32)); /* which then multiplies, too */
        assert_non_null(rows);
        for (double v = -130; v < 0; v += 0.03) {
            float x[4], y[4], top = 0, sum = 0;
            for (int j = 0; j < 4; j++) x[j] = y[j] = (float)v - 0.007f * (float)j;
            assert_true(rows->single->weigh(x, 1, 4, &top, &sum) == 1);
            for (int j = 0; j < 4; j++) {
                double want = exp2((double)y[j]), off = fabs((double)x[j] - want);
                assert_true(y[j] < -126 ? (double)x[j] < 0x1p-125 : off <= 2 * want * 0x1p-23);
            }
        }
        float edge[4] = {-INFINITY, 0, -127, -3e38f}, top = 0, sum = 0;
        rows->single->weigh(edge, 1, 4, &top, &sum);
        assert_true(edge[0] == 0 && edge[1] == 1 && edge[2] == 0 && edge[3] == 0 && sum == 1);
    }
}

/* Scores far beyond 2^31 have a softmax, as they have in PyTorch: nothing becomes NaN, and the probabilities are right. */
static void huge_scores(void **state)
{
    (void)state;
    static const char *const names[] = {"causal", "causal, long", "decode", "few queries, pieces",
                                        "packed, window"};
    for (int i = 0; i < SHAPES; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            for (int power = 30; power <= 60 && !strcmp(shapes[i].name, names[k]);
                 power += EVERY > 1 ? 30 : 6) {
                struct problem p;
                problem_make(&p, &shapes[i], DT_F32);
                float *q = (float *)(void *)p.x[Q].data;
                for (int64_t j = 0; j < count(&p.desc[Q]); j++)
                    q[j] = ldexpf(q[j], power), p.value[Q][j] = (double)q[j];
                run_all(&p, teams[0]);
                naive(&p, false);
                assert_true(distance(p.value[O], p.x[O].data, DT_F32, count(&p.desc[O])) < 1e-4);
                for (int x = O; x < TENSORS && (x == O || p.shape->pos != POS_CACHED); x++)
                    for (int64_t j = 0; j < count(&p.desc[x]); j++)
                        assert_true(isfinite(((float *)(void *)p.x[x].data)[j]));
                problem_free(&p);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials), cmocka_unit_test(f32), cmocka_unit_test(huge_scores),
        cmocka_unit_test(bf16),         cmocka_unit_test(f16), cmocka_unit_test(workspace_is_linear),
    };
    return cmocka_run_group_tests_name("attention", tests, start_teams, free_teams);
}
