/* test_cpu_kernels.c - what the CPU kernels promise beyond being right (tests/op says whether they are): the
 * same bits for any number of threads, for rows in one call or in several, in place or not, and instruction
 * sets that agree. */
#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include "support/pace.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SLOTS = OP_MAX_IN + OP_MAX_OUT };

/* One op with operands. Patterns as in tape/op.c: a type letter (x compute type, f f32, d f64, i i32, m
 * master), then one letter or digit per dimension. */
struct spec {
    const char *name;
    int kind;
    const char *in[OP_MAX_IN], *out[OP_MAX_OUT];
    struct op_attr attr;
    int in_place[OP_MAX_OUT]; /* SHARES(input that the output may overwrite) */
};

#define RMS                                                                                                  \
    {                                                                                                        \
        .eps = 1e-5f                                                                                         \
    }
#define LAYER                                                                                                \
    {                                                                                                        \
        .eps = 1e-5f, .layer_norm = true                                                                     \
    }
#define GELU                                                                                                 \
    {                                                                                                        \
        .activation = ACTIVATION_GELU_TANH                                                                   \
    }
#define CONV1D                                                                                               \
    {                                                                                                        \
        .weight_kn = true                                                                                    \
    }
#define ADAM                                                                                                 \
    {                                                                                                        \
        .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f                                          \
    }

static const struct spec specs[] = {
    {"embed", OP_EMBED, {"iR", "xVC"}, {"xRC"}, {0}, {0}},
    {"embed + add", OP_EMBED, {"iR", "xVC", "xRC"}, {"xRC"}, {0}, {[EMBED_Y] = SHARES(EMBED_ADD)}},
    {"embed_bwd", OP_EMBED_BWD, {"iR", "xRC"}, {"fVC"}, {0}, {0}},
    {"rms", OP_NORM, {"xRC", "xC"}, {"xRC", "fR"}, RMS, {0}},
    {"layer", OP_NORM, {"xRC", "xC", "xC"}, {"xRC", "fR2"}, LAYER, {0}},
    {"rms_bwd",
     OP_NORM_BWD,
     {"xRC", "xRC", "xC", "fR"},
     {"xRC", "fC"},
     RMS,
     {[NORM_BWD_DX] = SHARES(NORM_BWD_DY)}},
    {"rms_bwd + add",
     OP_NORM_BWD,
     {"xRC", "xRC", "xC", "fR", "xRC"},
     {"xRC", "fC"},
     RMS,
     {[NORM_BWD_DX] = SHARES(NORM_BWD_ADD)}},
    {"layer_bwd + add",
     OP_NORM_BWD,
     {"xRC", "xRC", "xC", "fR2", "xRC"},
     {"xRC", "fC", "fC"},
     LAYER,
     {[NORM_BWD_DX] = SHARES(NORM_BWD_ADD)}},
    {"layer_bwd over dy",
     OP_NORM_BWD,
     {"xRC", "xRC", "xC", "fR2", "xRC"},
     {"xRC", "fC", "fC"},
     LAYER,
     {[NORM_BWD_DX] = SHARES(NORM_BWD_DY)}},
    {"linear", OP_LINEAR, {"xRC", "xMC", "xM", "xRM"}, {"xRM"}, {0}, {[LINEAR_Y] = SHARES(LINEAR_ADD)}},
    {"linear kn", OP_LINEAR, {"xRC", "xCM"}, {"xRM"}, CONV1D, {0}},
    {"linear_dx",
     OP_LINEAR_DX,
     {"xRM", "xMC", "xRC"},
     {"xRC"},
     {0},
     {[LINEAR_DX_DX] = SHARES(LINEAR_DX_ADD)}},
    {"linear_dx kn", OP_LINEAR_DX, {"xRM", "xCM"}, {"xRC"}, CONV1D, {0}},
    {"linear_dw", OP_LINEAR_DW, {"xRM", "xRC"}, {"fMC", "fM"}, {0}, {0}},
    {"linear_dw kn", OP_LINEAR_DW, {"xRM", "xRC"}, {"fCM", "fM"}, CONV1D, {0}},
    {"rope_table", OP_ROPE_TABLE, {"iBT", "fE"}, {"fBTD"}, {0}, {0}},
    {"swiglu", OP_GLU, {"xRC", "xRC"}, {"xRC"}, {0}, {[GLU_H] = SHARES(GLU_GATE)}},
    {"swiglu over up", OP_GLU, {"xRC", "xRC"}, {"xRC"}, {0}, {[GLU_H] = SHARES(GLU_UP)}},
    {"swiglu_bwd",
     OP_GLU_BWD,
     {"xRC", "xRC", "xRC"},
     {"xRC", "xRC"},
     {0},
     {[GLU_BWD_DGATE] = SHARES(GLU_BWD_GATE), [GLU_BWD_DUP] = SHARES(GLU_BWD_UP)}},
    {"swiglu_bwd over dh",
     OP_GLU_BWD,
     {"xRC", "xRC", "xRC"},
     {"xRC", "xRC"},
     {0},
     {[GLU_BWD_DGATE] = SHARES(GLU_BWD_DH), [GLU_BWD_DUP] = SHARES(GLU_BWD_GATE)}},
    {"swiglu_bwd and h",
     OP_GLU_BWD,
     {"xRC", "xRC", "xRC"},
     {"xRC", "xRC", "xRC"},
     {0},
     {[GLU_BWD_DGATE] = SHARES(GLU_BWD_GATE),
      [GLU_BWD_DUP] = SHARES(GLU_BWD_UP),
      [GLU_BWD_H] = SHARES(GLU_BWD_DH)}},
    {"gelu", OP_ACT, {"xRC"}, {"xRC"}, GELU, {[ACT_Y] = SHARES(ACT_X)}},
    {"gelu_bwd", OP_ACT_BWD, {"xRC", "xRC"}, {"xRC"}, GELU, {[ACT_BWD_DX] = SHARES(ACT_BWD_DY)}},
    {"gelu_bwd and y",
     OP_ACT_BWD,
     {"xRC", "xRC"},
     {"xRC", "xRC"},
     GELU,
     {[ACT_BWD_DX] = SHARES(ACT_BWD_DY), [ACT_BWD_Y] = SHARES(ACT_BWD_X)}},
    {"add", OP_ADD, {"xRC", "xRC"}, {"xRC"}, {0}, {[ADD_Y] = SHARES(ADD_A)}},
    {"xent", OP_XENT, {"xRV", "iR", "fS"}, {"d2", "xRV"}, {0}, {[XENT_DLOGITS] = SHARES(XENT_LOGITS)}},
    {"split3", OP_SPLIT3, {"xBTL"}, {"xBTKD", "xBTKD", "xBTKD"}, {0}, {0}},
    {"split3 rotated", OP_SPLIT3, {"xBTL", "fBTD"}, {"xBTKD", "xBTKD", "xBTKD"}, {0}, {0}},
    {"join3", OP_JOIN3, {"xBTKD", "xBTKD", "xBTKD"}, {"xBTL"}, {0}, {0}},
    {"join3 rotated", OP_JOIN3, {"xBTKD", "xBTKD", "xBTKD", "fBTD"}, {"xBTL"}, {0}, {0}},
    {"kv_append",
     OP_KV_APPEND,
     {"xBTKD", "xBTKD", "iBT", "xBTKD", "xBTKD"},
     {"xBTKD", "xBTKD"},
     {0},
     {[KV_APPEND_NEW_KC] = SHARES(KV_APPEND_KC), [KV_APPEND_NEW_VC] = SHARES(KV_APPEND_VC)}},
    {"sumsq", OP_SUMSQ, {"fRC"}, {"d1"}, {0}, {0}},
    {"adamw",
     OP_ADAMW,
     {"xRC", "fRC", "fRC", "fRC", "mRC", "fS"},
     {"xRC", "fRC", "fRC", "mRC"},
     ADAM,
     {[ADAMW_NEW_P] = SHARES(ADAMW_P),
      [ADAMW_NEW_M] = SHARES(ADAMW_M),
      [ADAMW_NEW_V] = SHARES(ADAMW_V),
      [ADAMW_NEW_MASTER] = SHARES(ADAMW_MASTER)}},
    {"sgd",
     OP_SGD,
     {"xRC", "fRC", "fRC", "mRC", "fS"},
     {"xRC", "fRC", "mRC"},
     ADAM,
     {[SGD_NEW_P] = SHARES(SGD_P), [SGD_NEW_M] = SHARES(SGD_M), [SGD_NEW_MASTER] = SHARES(SGD_MASTER)}},
    {"copy", OP_FETCH, {"xRC"}, {"xRC"}, {0}, {[MOVE_TO] = SHARES(MOVE_FROM)}},
};

enum { SPECS = sizeof specs / sizeof *specs };

/* --- a rig: operands of one op in memory of their own -------------------------------------------- */

struct sizes {
    int64_t rows, columns, vocabulary, outputs;
};

static const struct sizes odd = {331, 203, 1009, 77};

struct rig {
    const struct spec *spec;
    struct tensor tensors[SLOTS];
    void *owned[SLOTS + 1];
    struct op op;
    struct kernel_call call;
};

static int64_t size_of(char letter, const struct sizes *s)
{
    switch (letter) {
    case 'R':
        return s->rows;
    case 'C':
        return s->columns;
    case 'V':
        return s->vocabulary;
    case 'M':
        return s->outputs;
    case 'S':
        return SCALAR_COUNT;
    case 'B':
        return 3;
    case 'T':
        return 67;
    case 'H':
        return 6;
    case 'K':
        return 2;
    case 'D':
        return 46;
    case 'E':
        return 23;
    case 'L':
        return 3 * 2 * 46;
    default:
        return letter - '0';
    }
}

static enum dtype type_of(char letter, enum dtype x)
{
    switch (letter) {
    case 'x':
        return x;
    case 'd':
        return DT_F64;
    case 'i':
        return DT_I32;
    case 'm':
        return dtype_master(x);
    default:
        return DT_F32;
    }
}

static void *grab(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    assert_non_null(p);
    return p;
}

/* The same numbers for the same seed: between -2 and 2; whole numbers for ids; positive for second moments
 * and deviations, which no test tells apart from others. */
static void fill(void *p, const struct tensor *t, uint32_t seed)
{
    int64_t n = tensor_count(t);
    for (int64_t i = 0; i < n; i++) {
        uint32_t noise = ((uint32_t)i + 1 + seed * 7919u) * 2654435761u;
        noise ^= noise >> 15, noise *= 2246822519u, noise ^= noise >> 13;
        float value = (float)(noise >> 8) / (float)(1 << 22) - 2.0f;
        double wide = (double)value;
        if (t->type == DT_I32)
            ((int32_t *)p)[i] = t->ndim == 2 ? (int32_t)(i % t->dim[1]) : (int32_t)(noise % 1009);
        else if (t->type == DT_U16)
            ((uint16_t *)p)[i] = (uint16_t)noise;
        else if (t->type == DT_F64)
            ((double *)p)[i] = wide;
        else
            dtype_convert((char *)p + (size_t)i * dtype_size(t->type), t->type, &value, DT_F32, 1);
    }
}

static void operand(struct rig *r, int slot, enum dtype x, const struct sizes *sizes)
{
    const char *pattern = slot < OP_MAX_IN ? r->spec->in[slot] : r->spec->out[slot - OP_MAX_IN];
    if (!pattern || (pattern[0] == 'm' && x == DT_F32)) return;
    struct tensor *t = &r->tensors[slot];
    *t = (struct tensor){.type = type_of(pattern[0], x), .layer = -1, .view_of = -1, .owner = -1};
    for (const char *p = pattern + 1; *p; p++) t->dim[t->ndim++] = size_of(*p, sizes);
    void *p = r->owned[slot] = grab((size_t)tensor_bytes(t));
    fill(p, t, (uint32_t)slot);
    r->call.desc[slot] = t;
    if (slot < OP_MAX_IN)
        r->call.in[slot] = p;
    else
        r->call.out[slot - OP_MAX_IN] = p;
    bool moment = r->spec->kind == OP_ADAMW && slot == ADAMW_V;
    for (int64_t i = 0; moment && i < tensor_count(t); i++) ((float *)p)[i] = fabsf(((float *)p)[i]);
}

static void rig_open(struct rig *r, const struct spec *spec, enum dtype x, const struct sizes *sizes)
{
    memset(r, 0, sizeof *r);
    r->spec = spec;
    r->op = (struct op){.kind = spec->kind, .attr = spec->attr};
    r->call.op = &r->op;
    for (int slot = 0; slot < SLOTS; slot++) operand(r, slot, x, sizes);
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!spec->in[i] || strcmp(spec->in[i], "fS")) continue;
        float *s = r->call.in[i];
        s[SCALAR_LOSS_GRAD] = 0.01f, s[SCALAR_LR] = 1e-2f, s[SCALAR_BIAS1] = 0.1f, s[SCALAR_BIAS2] = 0.001f;
    }
}

static void rig_run(struct rig *r, struct threads *team, bool accumulate)
{
    const struct kernel *kernel = device_cpu_kernels()[r->spec->kind];
    size_t bytes = kernel->workspace ? kernel->workspace(r->call.desc, &r->op, threads_count(team)) : 0;
    free(r->owned[SLOTS]);
    r->call.work = r->owned[SLOTS] = grab(bytes);
    memset(r->call.work, 0xff, bytes);
    r->call.team = team;
    r->call.accumulate = accumulate;
    kernel->run(&r->call);
}

static void rig_close(struct rig *r)
{
    for (int i = 0; i <= SLOTS; i++) free(r->owned[i]);
}

static void expect_equal(const struct rig *a, const struct rig *b, const char *what, enum dtype x)
{
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!a->call.out[i]) continue;
        size_t bytes = (size_t)tensor_bytes(a->call.desc[OP_MAX_IN + i]);
        if (memcmp(a->call.out[i], b->call.out[i], bytes) == 0) continue;
        fail_msg("%s, %s: output %d differs %s", a->spec->name, dtype_name(x), i, what);
    }
}

static struct threads *team_of(int count)
{
    struct threads *team;
    assert_int_equal(threads_start(count, &team, NULL), PLIM_OK);
    return team;
}

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};

/* --- tests --------------------------------------------------------------------------------------- */

static void thread_count_changes_nothing(void **state)
{
    (void)state;
    struct threads *teams[3] = {team_of(1), team_of(2), team_of(3)};
    for (int s = 0; s < SPECS; s++)
        for (int t = EVERY > 1 ? s % 3 : 0; t < 3; t += EVERY)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                struct rig rigs[3];
                for (int i = 0; i < 3; i++) {
                    rig_open(&rigs[i], &specs[s], types[t], &odd);
                    rig_run(&rigs[i], teams[i], accumulate);
                }
                expect_equal(&rigs[0], &rigs[1], "with 2 threads", types[t]);
                expect_equal(&rigs[0], &rigs[2], "with 3 threads", types[t]);
                for (int i = 0; i < 3; i++) rig_close(&rigs[i]);
            }
    for (int i = 0; i < 3; i++) threads_free(teams[i]);
}

static void in_place_is_the_same(void **state)
{
    (void)state;
    struct threads *team = team_of(2);
    for (int s = 0; s < SPECS; s++)
        for (int t = EVERY > 1 ? s % 3 : 0; t < 3; t += EVERY) {
            struct rig apart, over;
            rig_open(&apart, &specs[s], types[t], &odd);
            rig_open(&over, &specs[s], types[t], &odd);
            for (int i = 0; i < OP_MAX_OUT; i++) {
                int slot = specs[s].in_place[i] - 1;
                if (slot >= 0 && over.call.in[slot]) over.call.out[i] = over.call.in[slot];
            }
            rig_run(&apart, team, false);
            rig_run(&over, team, false);
            expect_equal(&apart, &over, "in place", types[t]);
            rig_close(&apart);
            rig_close(&over);
        }
    threads_free(team);
}

/* Rows [first, first + rows) of every operand with rows; outputs without rows are those of the whole. */
static void run_rows(struct rig *r, struct threads *team, int64_t first, int64_t rows, bool accumulate)
{
    struct kernel_call whole = r->call;
    struct tensor part[SLOTS];
    for (int slot = 0; slot < SLOTS; slot++) {
        if (!whole.desc[slot]) continue;
        part[slot] = *whole.desc[slot];
        r->call.desc[slot] = &part[slot];
        const char *pattern = slot < OP_MAX_IN ? r->spec->in[slot] : r->spec->out[slot - OP_MAX_IN];
        if (pattern[1] != 'R') continue;
        int64_t row_bytes = tensor_bytes(whole.desc[slot]) / part[slot].dim[0];
        part[slot].dim[0] = rows;
        void **base = slot < OP_MAX_IN ? &r->call.in[slot] : &r->call.out[slot - OP_MAX_IN];
        *base = (char *)*base + first * row_bytes;
    }
    rig_run(r, team, accumulate);
    r->call = whole;
}

static void rows_may_come_in_parts(void **state)
{
    (void)state;
    static const char *const names[] = {"rms_bwd", "layer_bwd + add", "linear_dw", "linear_dw kn", "xent"};
    static const struct sizes sizes = {3 * GEMM_KC + 77, 67, 1009, 45};
    struct threads *team = team_of(2);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int s = 0; s < SPECS; s++)
            for (int t = EVERY > 1 ? s % 3 : 0; t < 3 && !strcmp(names[n], specs[s].name); t += EVERY)
                for (int accumulate = 0; accumulate < 2; accumulate++) {
                    struct rig one, two;
                    rig_open(&one, &specs[s], types[t], &sizes);
                    rig_open(&two, &specs[s], types[t], &sizes);
                    rig_run(&one, team, accumulate);
                    int64_t cut = strstr(names[n], "linear") ? GEMM_KC : KERNEL_ROW_BLOCK; /* of rows */
                    run_rows(&two, team, 0, 2 * cut, accumulate);
                    run_rows(&two, team, 2 * cut, cut, true);
                    run_rows(&two, team, 3 * cut, sizes.rows - 3 * cut, true);
                    expect_equal(&one, &two, "when rows come in three parts", types[t]);
                    rig_close(&one);
                    rig_close(&two);
                }
    threads_free(team);
}

static void ignored_targets_give_nothing(void **state)
{
    (void)state;
    struct threads *team = team_of(2);
    for (int t = 0; t < 3; t++) {
        struct rig r;
        int s = 0;
        while (strcmp(specs[s].name, "xent")) s++;
        rig_open(&r, &specs[s], types[t], &odd);
        int32_t *targets = r.call.in[XENT_TARGETS];
        for (int64_t i = 0; i < odd.rows; i += 2) targets[i] = -100;
        rig_run(&r, team, false);
        assert_true(((double *)r.call.out[XENT_LOSS])[1] == (double)(odd.rows / 2));
        size_t row = (size_t)odd.vocabulary * dtype_size(types[t]);
        for (size_t i = 0; i < row; i++) assert_int_equal(((char *)r.call.out[XENT_DLOGITS])[i], 0);
        rig_close(&r);
    }
    threads_free(team);
}

/* --- instruction sets ---------------------------------------------------------------------------- */

static void every_level_agrees(void **state)
{
    (void)state;
    enum { N = 333 };
    static float a[N], b[N], want[N], got[N];
    for (int i = 0; i < N; i++) a[i] = (float)(i - 160) * 0.6f, b[i] = cosf((float)i);
    a[0] = NAN, a[1] = INFINITY, a[2] = -INFINITY, a[3] = 1e-42f, a[4] = 3.3e38f, a[5] = 65519.0f;
    for (int level = 0; level < CPU_LEVELS; level++) {
        if (!cpu_has((enum cpu_level)level)) continue;
        const struct row_ops *rows = row_ops_at((enum cpu_level)level);
        for (int t = 1; t < 3; t++) { /* add 0 in a narrow type: conversion there and back */
            uint16_t narrow[2][N], zero[N] = {0}, sum[N];
            dtype_convert(narrow[0], types[t], a, DT_F32, N);
            rows->add(types[t], sum, narrow[0], zero, N);
            for (int i = 3; i < N; i++) assert_int_equal(sum[i], narrow[0][i]);
        }
        rows_plain.glu(DT_F32, (struct row_act){0}, want, a + 6, b, N - 6);
        rows->glu(DT_F32, (struct row_act){0}, got, a + 6, b, N - 6);
        for (int i = 0; i < N - 6; i++)
            assert_true(fabsf(got[i] - want[i]) <= 1e-6f * fabsf(want[i]) + 1e-36f);
        struct row_softmax x = rows->softmax(DT_F32, a + 6, N - 6),
                           y = rows_plain.softmax(DT_F32, a + 6, N - 6);
        assert_true(x.top == y.top && fabs(x.sum - y.sum) < 1e-6 * y.sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_count_changes_nothing), cmocka_unit_test(in_place_is_the_same),
        cmocka_unit_test(rows_may_come_in_parts),       cmocka_unit_test(ignored_targets_give_nothing),
        cmocka_unit_test(every_level_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
