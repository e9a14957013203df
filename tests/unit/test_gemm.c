/* Matrix multiply against a double-precision reference, and its promises bit for bit: the result depends
 * neither on the thread count, nor on where K is split over accumulating calls, nor on the rows and columns
 * around an element. The program runs itself once more for every lower instruction level of the machine. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_TEAM = 3, PAD = 3, GUARD = 64 };

/* Sanitizers make the reference slow and look at memory and threads, not at numbers: every so-manieth case will do. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 7, SANITIZED = 1 };
#else
enum { STRIDE = 1, SANITIZED = 0 };
#endif
static const unsigned char MARK = 0xa5;

static struct threads *teams[MAX_TEAM + 1];

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A value of the test: small integers make every fp32 sum exact, the others exercise rounding. */
static float value(uint32_t *state, bool exact)
{
    uint32_t r = next_random(state);
    return exact ? (float)((int)(r % 9) - 4) : (float)r * 0x1p-23f - 1.0f;
}

static void put(void *at, enum dtype type, int64_t i, float f)
{
    dtype_convert((char *)at + (size_t)i * dtype_size(type), type, &f, DT_F32, 1);
}

static double get(const void *at, enum dtype type, int64_t i)
{
    double d;
    dtype_convert(&d, DT_F64, (const char *)at + (size_t)i * dtype_size(type), type, 1);
    return d;
}

/* An exactly sized block, so that a sanitizer sees every step outside. */
static void *fresh(int64_t n, enum dtype type, uint32_t *state, bool exact)
{
    void *p = malloc((size_t)(n ? n : 1) * dtype_size(type));
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) put(p, type, i, value(state, exact));
    return p;
}

struct trial {
    int64_t m, n, k;
    enum dtype type, c_type;
    bool a_turned, b_turned; /* contiguous over m; contiguous over k */
    bool bias, add, in_place, exact, split;
};

struct data {
    struct gemm g;
    void *c_before; /* C as filled, with its padding columns */
    int64_t c_count;
};

static struct data make(const struct trial *t, uint32_t seed)
{
    struct data d = {{.m = t->m, .n = t->n, .k = t->k, .ab_type = t->type, .c_type = t->c_type}, NULL, 0};
    struct gemm *g = &d.g;
    g->split = t->split;
    g->a_rs = t->a_turned ? 1 : t->k + PAD;
    g->a_cs = t->a_turned ? t->m + PAD : 1;
    g->b_rs = t->b_turned ? 1 : t->n + PAD;
    g->b_cs = t->b_turned ? t->k + PAD : 1;
    g->c_rs = t->n + PAD;
    d.c_count = t->m * g->c_rs;
    g->a = fresh((t->m - 1) * g->a_rs + (t->k ? t->k - 1 : 0) * g->a_cs + 1, t->type, &seed, t->exact);
    g->b = fresh((t->k ? t->k - 1 : 0) * g->b_rs + (t->n - 1) * g->b_cs + 1, t->type, &seed, t->exact);
    g->c = fresh(d.c_count, t->c_type, &seed, t->exact);
    g->bias = t->bias ? fresh(t->n, t->type, &seed, t->exact) : NULL;
    if (t->add) g->add = t->in_place ? g->c : fresh(d.c_count, t->c_type, &seed, t->exact);
    d.c_before = malloc((size_t)d.c_count * dtype_size(t->c_type));
    assert_non_null(d.c_before);
    memcpy(d.c_before, g->c, (size_t)d.c_count * dtype_size(t->c_type));
    return d;
}

static void drop(struct data *d)
{
    free((void *)(uintptr_t)d->g.a);
    free((void *)(uintptr_t)d->g.b);
    free((void *)(uintptr_t)d->g.bias);
    if (d->g.add != d->g.c) free((void *)(uintptr_t)d->g.add);
    free(d->g.c);
    free(d->c_before);
}

static void refill(struct data *d)
{
    memcpy(d->g.c, d->c_before, (size_t)d->c_count * dtype_size(d->g.c_type));
}

/* Run with a workspace of exactly the promised size; fail when anything after it was touched. */
static void run(const struct gemm *g, int threads)
{
    size_t bytes =
        (g->split ? gemm_split_workspace : gemm_workspace)(g->m, g->n, g->k, g->ab_type, g->c_type, threads);
    unsigned char *workspace = aligned_alloc(64, (bytes + GUARD + 63) & ~(size_t)63);
    assert_non_null(workspace);
    memset(workspace + bytes, MARK, GUARD);
    gemm_run(g, workspace, teams[threads]);
    for (int i = 0; i < GUARD; i++) assert_int_equal(workspace[bytes + (size_t)i], MARK);
    free(workspace);
}

static void fail_at(const struct trial *t, int64_t m, int64_t n, double got, double want)
{
    fail_msg("%lldx%lldx%lld %s->%s turned %d%d bias %d add %d in place %d: C[%lld,%lld] is %.9g, not %.9g",
             (long long)t->m, (long long)t->n, (long long)t->k, dtype_name(t->type), dtype_name(t->c_type),
             t->a_turned, t->b_turned, t->bias, t->add, t->in_place, (long long)m, (long long)n, got, want);
}

static void check_element(const struct trial *t, const struct data *d, const double *a, const double *b,
                          int64_t m, int64_t n)
{
    const struct gemm *g = &d->g;
    int64_t at = m * g->c_rs + n;
    double start = t->bias ? get(g->bias, t->type, n) : 0, sum = 0, size = fabs(start);
    if (t->add) {
        double r = get(t->in_place ? d->c_before : g->add, t->c_type, at);
        start += r, size += fabs(r);
    }
    for (int64_t k = 0; k < t->k; k++) sum += a[k] * b[k];
    for (int64_t k = 0; k < t->k && !t->exact; k++) size += fabs(a[k] * b[k]);
    double want = start + sum, got = get(g->c, t->c_type, at);
    if (t->exact) {
        float f = (float)want;
        char rounded[8];
        dtype_convert(rounded, t->c_type, &f, DT_F32, 1);
        if (got != get(rounded, t->c_type, 0)) fail_at(t, m, n, got, want);
        return;
    }
    double bound = size * 0x1p-22 * (8 + sqrt((double)t->k)) + 1e-30;
    if (t->split) bound += size * 0x1p-16;
    if (t->c_type == DT_BF16) bound += fabs(want) * 0x1p-8;
    if (t->c_type == DT_F16) bound += fabs(want) * 0x1p-11 + 0x1p-24;
    if (!(fabs(got - want) <= bound)) fail_at(t, m, n, got, want);
}

/* C against double sums (of a large problem every seventh row: all places in a tile), and the padding columns
 * against what was there. */
static void check(const struct trial *t, const struct data *d)
{
    const struct gemm *g = &d->g;
    double *a = malloc((size_t)(t->m * t->k + 1) * sizeof *a),
           *b = malloc((size_t)(t->n * t->k + 1) * sizeof *b);
    assert_true(a && b);
    for (int64_t i = 0; i < t->m * t->k; i++) {
        a[i] = get(g->a, t->type, i / t->k * g->a_rs + i % t->k * g->a_cs);
    }
    for (int64_t i = 0; i < t->n * t->k; i++) {
        b[i] = get(g->b, t->type, i / t->k * g->b_cs + i % t->k * g->b_rs);
    }
    int64_t step = t->m * t->n * t->k > 20000000 ? 7 : 1;
    for (int64_t m = 0; m < t->m; m++) {
        for (int64_t n = 0; n < t->n && m % step == 0; n++)
            check_element(t, d, a + m * t->k, b + n * t->k, m, n);
        for (int64_t n = t->n; n < g->c_rs; n++) {
            double was = get(d->c_before, t->c_type, m * g->c_rs + n);
            if (get(g->c, t->c_type, m * g->c_rs + n) != was) fail_at(t, m, n, get(g->c, t->c_type, n), was);
        }
    }
    free(a);
    free(b);
}

static void try_one(const struct trial *t, uint32_t seed)
{
    struct data d = make(t, seed);
    run(&d.g, 1 + (int)(seed % MAX_TEAM));
    check(t, &d);
    drop(&d);
}

static const struct {
    enum dtype ab, c;
    bool split;
} type_pairs[] = {
    {DT_F32, DT_F32}, {DT_BF16, DT_BF16}, {DT_BF16, DT_F32},
    {DT_F16, DT_F16}, {DT_F16, DT_F32},   {DT_F32, DT_F32, true},
};
enum { PAIRS = sizeof type_pairs / sizeof *type_pairs };

static void set_types(struct trial *t, int pair)
{
    t->type = type_pairs[pair].ab, t->c_type = type_pairs[pair].c, t->split = type_pairs[pair].split;
}

/* All 32 combinations of strides and extras, for every pair of types and small odd shapes. */
static void test_small(void **state)
{
    (void)state;
    static const int64_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 31, 40};
    static const int64_t ns[] = {1, 3, 4, 11, 12, 13, 16, 24, 31, 33, 47, 65};
    static const int64_t ks[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 66};
    uint32_t seed = 1;
    for (int i = 0; i < 32 * PAIRS * 4; i += STRIDE) {
        struct trial t = {0};
        set_types(&t, i % PAIRS);
        int bits = i / PAIRS;
        t.a_turned = bits & 1, t.b_turned = bits >> 1 & 1, t.bias = bits >> 2 & 1;
        t.add = bits >> 3 & 1, t.in_place = bits >> 4 & 1;
        t.exact = (i / (32 * PAIRS)) & 1;
        t.m = ms[next_random(&seed) % (sizeof ms / sizeof *ms)];
        t.n = ns[next_random(&seed) % (sizeof ns / sizeof *ns)];
        t.k = ks[next_random(&seed) % (sizeof ks / sizeof *ks)];
        try_one(&t, next_random(&seed));
    }
}

/* Several k blocks, both ways of sharing, several tasks. */
static void test_blocks(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 100, 1027}, {3, 50, 2 * GEMM_KC}, {20, 130, GEMM_KC + 1}, {130, 29, 700}, {270, 14, 1030},
    };
    uint32_t seed = 7;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int i = 0; i < PAIRS * 4; i += STRIDE) {
            struct trial t = {.m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2]};
            set_types(&t, i % PAIRS);
            t.a_turned = i / PAIRS & 1, t.b_turned = i / PAIRS >> 1 & 1;
            t.bias = next_random(&seed) & 1, t.add = next_random(&seed) & 1;
            t.in_place = next_random(&seed) & 1, t.exact = next_random(&seed) & 1;
            try_one(&t, next_random(&seed));
        }
    }
}

/* So large that the shared panel is packed in several rounds: over columns and k; over rows and k with
 * running sums that stay. */
static void test_rounds(void **state)
{
    (void)state;
    struct trial f32 = {.m = 80, .n = 1031, .k = 1640, .type = DT_F32, .c_type = DT_F32, .exact = true};
    f32.add = f32.in_place = f32.a_turned = true;
    try_one(&f32, 4);
    struct trial bf16 = {.m = 300, .n = 121, .k = 18000, .type = DT_BF16, .c_type = DT_BF16, .exact = true};
    bf16.bias = bf16.b_turned = true;
    for (uint32_t seed = 0; seed < MAX_TEAM && !SANITIZED; seed++) try_one(&bf16, seed);
}

static void same_bits(const struct data *d, const void *want, const char *what)
{
    if (memcmp(d->g.c, want, (size_t)d->c_count * dtype_size(d->g.c_type)) != 0) {
        fail_msg("%s changes the result: %lldx%lldx%lld %s", what, (long long)d->g.m, (long long)d->g.n,
                 (long long)d->g.k, dtype_name(d->g.ab_type));
    }
}

static void *copy_of_c(const struct data *d)
{
    size_t bytes = (size_t)d->c_count * dtype_size(d->g.c_type);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, d->g.c, bytes);
    return copy;
}

static struct trial invariant_trial(int i, int64_t m, int64_t n, int64_t k)
{
    struct trial t = {.m = m, .n = n, .k = k, .bias = true, .add = true, .in_place = true};
    set_types(&t, i);
    t.b_turned = i & 1, t.a_turned = i >> 1 & 1;
    return t;
}

static void test_thread_count(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * PAIRS; i += STRIDE) {
        struct trial t = invariant_trial(i % PAIRS, i < PAIRS ? 77 : 515, 205, 1100);
        struct data d = make(&t, (uint32_t)i);
        run(&d.g, 1);
        void *want = copy_of_c(&d);
        for (int threads = 2; threads <= MAX_TEAM; threads++) {
            refill(&d);
            run(&d.g, threads);
            same_bits(&d, want, "the thread count");
        }
        free(want);
        drop(&d);
    }
}

static void test_split_k(void **state)
{
    (void)state;
    for (int i = 0; i < PAIRS; i += STRIDE) {
        if (type_pairs[i].c != DT_F32) continue;
        struct trial t = invariant_trial(i, 45, 100, 3 * GEMM_KC + 70);
        struct data d = make(&t, (uint32_t)i + 50);
        run(&d.g, 1);
        void *want = copy_of_c(&d);
        size_t size = dtype_size(t.type);
        for (int64_t cut = GEMM_KC; cut <= 3 * GEMM_KC; cut += GEMM_KC) {
            refill(&d);
            struct gemm first = d.g, rest = d.g;
            first.k = cut, rest.k = t.k - cut;
            rest.a = (const char *)d.g.a + (size_t)(cut * d.g.a_cs) * size;
            rest.b = (const char *)d.g.b + (size_t)(cut * d.g.b_rs) * size;
            rest.bias = NULL, rest.add = rest.c;
            run(&first, 2);
            run(&rest, 2);
            same_bits(&d, want, "splitting K");
        }
        free(want);
        drop(&d);
    }
}

/* One row, or any few rows and columns, computed alone. */
static void test_parts(void **state)
{
    (void)state;
    static const int64_t heights[] = {1, 2, 3, 5, 8, 11};
    for (int i = 0; i < PAIRS; i += STRIDE) {
        struct trial t = invariant_trial(i, 30, 61, GEMM_KC + 90);
        struct data d = make(&t, (uint32_t)i + 90);
        run(&d.g, 2);
        void *want = copy_of_c(&d);
        size_t size = dtype_size(t.type), c_size = dtype_size(t.c_type);
        refill(&d);
        for (int64_t m = 0, h = 0; m < t.m; m += heights[h++ % 6]) {
            for (int64_t n = 0; n < t.n; n += 17) {
                struct gemm part = d.g;
                part.m = heights[h % 6] < t.m - m ? heights[h % 6] : t.m - m;
                part.n = t.n - n < 17 ? t.n - n : 17;
                part.a = (const char *)d.g.a + (size_t)(m * d.g.a_rs) * size;
                part.b = (const char *)d.g.b + (size_t)(n * d.g.b_cs) * size;
                part.bias = (const char *)d.g.bias + (size_t)n * size;
                part.c = (char *)d.g.c + (size_t)(m * d.g.c_rs + n) * c_size;
                part.add = part.c;
                run(&part, 1);
            }
        }
        same_bits(&d, want, "cutting M and N");
        free(want);
        drop(&d);
    }
}

/* Rows [m, m + part.m) of d as a problem of their own. */
static struct gemm rows_of(const struct data *d, int64_t m, int64_t rows)
{
    struct gemm part = d->g;
    size_t c_size = dtype_size(d->g.c_type);
    part.m = rows;
    part.a = (const char *)d->g.a + (size_t)(m * d->g.a_rs) * dtype_size(d->g.ab_type);
    part.c = (char *)d->g.c + (size_t)(m * d->g.c_rs) * c_size;
    part.add = (const char *)d->g.add + (size_t)(m * d->g.c_rs) * c_size;
    return part;
}

/* Few rows have kernels of their own, which read B in place: whole steps and rests of lines and k, with the bits that many
 * rows have. */
static void test_few_rows(void **state)
{
    (void)state;
    static const int64_t heights[] = {1, 2, 3, 1, 5, 8, 4, 7, 16}, ns[] = {192, 75}, ks[] = {1024, 593, 8};
    for (int i = 0; i < PAIRS * 2 * 2 * 3; i += STRIDE) {
        struct trial t = {
            .m = 47, .n = ns[i / PAIRS / 2 % 2], .k = ks[i / PAIRS / 4], .bias = i & 1, .add = true};
        set_types(&t, i % PAIRS);
        t.b_turned = i / PAIRS % 2;
        t.in_place = i / 2 & 1;
        struct data d = make(&t, (uint32_t)i + 130);
        run(&d.g, 2);
        void *want = copy_of_c(&d);
        refill(&d);
        for (int64_t m = 0, h = 0; m < t.m; m += heights[h++]) {
            struct gemm part = rows_of(&d, m, heights[h]);
            run(&part, 1 + (int)h % MAX_TEAM);
        }
        same_bits(&d, want, "a call with few rows");
        free(want);
        drop(&d);
    }
}

/* Any bits but NaN: subnormal, zero with a sign, now and then infinite. */
static void fill_halves(const void *at, int64_t n, uint32_t seed)
{
    uint16_t *h = (uint16_t *)(uintptr_t)at;
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = next_random(&seed);
        uint16_t size = r % 4 == 0 ? r >> 4 & 0x3ff : (r >> 4) % 0x7c00;
        h[i] = (uint16_t)((r % 2048 == 1 ? 0x7c00 : r % 64 == 2 ? 0 : size) | (r >> 8 & 0x8000));
    }
}

/* fp16 that kernels for few rows may widen in another way. */
static void test_few_rows_of_odd_halves(void **state)
{
    (void)state;
    for (int turned = 0; turned < 2; turned++) {
        struct trial t = {.m = 27, .n = 75, .k = 593, .type = DT_F16, .c_type = DT_F32, .b_turned = turned};
        struct data d = make(&t, 5);
        fill_halves(d.g.a, (t.m - 1) * d.g.a_rs + t.k, 6);
        fill_halves(d.g.b, turned ? (t.n - 1) * d.g.b_cs + t.k : (t.k - 1) * d.g.b_rs + t.n, 7);
        run(&d.g, 2);
        void *want = copy_of_c(&d);
        refill(&d);
        static const int64_t heights[] = {1, 2, 4, 8, 12};
        for (int64_t m = 0, h = 0; m < t.m; m += heights[h++]) {
            struct gemm part = rows_of(&d, m, heights[h]);
            part.add = NULL;
            run(&part, 1);
        }
        same_bits(&d, want, "few rows of odd halves");
        free(want);
        drop(&d);
    }
}

/* The bound for problems of unknown size holds for every smaller one, and is within reach of the largest. */
static void test_workspace_bound(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 7, 64, 300, 512, 513, 1024, 2048, 4096, 14336};
    static const int teams_of[] = {1, 2, 16, 64};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t random = 1;
    for (int i = 0; i < 200000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t r = random >> 24;
        int64_t m = sizes[r % SIZES], n = sizes[r / 10 % SIZES], k = sizes[r / 100 % SIZES];
        int threads = teams_of[r / 1000 % 4];
        enum dtype ab = type_pairs[r / 4000 % PAIRS].ab, c = type_pairs[r / 4000 % PAIRS].c;
        int64_t less_m = 1 + (int64_t)(r / 50000) % m, less_k = 1 + (int64_t)(r / 90000) % k;
        size_t most = gemm_workspace_most(m, n, k, ab, c, threads);
        size_t needs = gemm_workspace(less_m, n, less_k, ab, c, threads);
        if (needs > most)
            fail_msg("m %d of %d, n %d, k %d of %d, %d threads: %zu of %zu", (int)less_m, (int)m, (int)n,
                     (int)less_k, (int)k, threads, needs, most);
    }
}

static int start_teams(void **state)
{
    (void)state;
    struct plim_error err = {0};
    for (int i = 1; i <= MAX_TEAM; i++) {
        if (threads_start(i, &teams[i], &err) != PLIM_OK) return -1;
    }
    return 0;
}

static int stop_teams(void **state)
{
    (void)state;
    for (int i = 1; i <= MAX_TEAM; i++) threads_free(teams[i]);
    return 0;
}

/* This program again, at a lower level. */
static int run_at(const char *self, enum cpu_level level)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        setenv("PLIMSOLL_CPU", cpu_level_name(level), 1);
        execl(self, self, (char *)NULL);
        _exit(127);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),           cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_rounds),          cmocka_unit_test(test_thread_count),
        cmocka_unit_test(test_split_k),         cmocka_unit_test(test_parts),
        cmocka_unit_test(test_few_rows),        cmocka_unit_test(test_few_rows_of_odd_halves),
        cmocka_unit_test(test_workspace_bound),
    };
    int failed = 0;
    if (!getenv("PLIMSOLL_CPU") && !SANITIZED) {
        for (int level = 0; level < CPU_LEVELS; level++) {
            if ((int)cpu_level() != level && cpu_has((enum cpu_level)level)) {
                failed += run_at(argv[0], (enum cpu_level)level);
            }
        }
    }
    failed += cmocka_run_group_tests_name(cpu_level_name(cpu_level()), tests, start_teams, stop_teams);
    return failed;
}
