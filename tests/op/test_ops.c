/* test_ops.c - every op of a backend against the double-precision reference, on random operands.
 *
 *     OP_DEVICE  cpu (default), cuda, reference (the reference behind the kernel interface: tests the test), or pjrt (the plug-in
 *                of OP_PLUGIN, a path; ops without an emitter are left out)
 *     OP_CASES   random cases per op
 *     OP_SEED    another set of cases
 *     OP_CASE    this case of every op only; with an op's name as argument, of that op only
 *     OP_SKIP    not these ops, e.g. linear*
 *     OP_TUNE    0: nothing is tuned, so a GPU's attention is our own
 *
 * Each case runs several times: once on the device with several threads and compared with the reference; once
 * with one thread, which must give the same bits; once with outputs on top of the inputs the op table allows
 * them to take over, which must give the same bits too.
 *
 * A GPU has more than one way for products and attention. Cases that need not be repeatable are tuned first, as in
 * training, so that the ways timing chooses and cuDNN's attention are compared with the reference; the second device
 * has not been tuned, and there the tolerance counts instead of bits. Repeatable ones must have the same bits always.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/pjrt/pjrt_device.h"
#include "reference/reference.h"
#include "support/op_run.h"
#include "support/test_device.h"
#include "tensor/blocks.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CASES = 120, TEAM = 3 };

struct suite {
    struct device *many, *one; /* the same backend with several threads and with one */
    bool cuda, tunes;
    uint64_t seed;
    int first, end;
};

/* The reference behind the kernel interface: no threads, no memory of its own. */
static enum plim_status open_cpu(int threads, struct device **out, struct plim_error *err)
{
    return device_cpu_open(NULL, threads, out, err);
}

static enum plim_status open_reference(int threads, struct device **out, struct plim_error *err)
{
    (void)threads;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) return plim_fail(err, PLIM_NO_MEMORY, "no memory for a device");
    dev->kernels = reference_kernels;
    *out = dev;
    return PLIM_OK;
}

static enum plim_status open_cuda(int threads, struct device **out, struct plim_error *err)
{
    return device_cuda_open(NULL, 0, threads, out, err);
}

/* Settings that the plug-in reads when it is loaded are set as the program would. */
static enum plim_status open_pjrt(int threads, struct device **out, struct plim_error *err)
{
    const char *plugin = getenv("OP_PLUGIN");
    return device_pjrt_open(test_context(), plugin && *plugin ? plugin : "cpu", 0, 0, threads, out, err);
}

static const struct tested_backend {
    const char *name;
    enum plim_status (*open)(int threads, struct device **out, struct plim_error *err);
} backends[] = {{"cpu", open_cpu}, {"reference", open_reference}, {"cuda", open_cuda}, {"pjrt", open_pjrt}};

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static const struct tested_backend *chosen_backend(void)
{
    const char *name = getenv("OP_DEVICE");
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (!strcmp(backends[i].name, name && *name ? name : "cpu")) return &backends[i];
    return NULL;
}

static int open_suite(void **state)
{
    static struct suite suite;
    const struct tested_backend *backend = chosen_backend();
    struct plim_error err = {.text = "OP_DEVICE: write cpu, cuda, pjrt or reference"};
    suite.cuda = backend && !strcmp(backend->name, "cuda");
    suite.tunes = suite.cuda && setting("OP_TUNE", 1);
    suite.seed = (uint64_t)setting("OP_SEED", 1);
    suite.first = (int)setting("OP_CASE", 0);
    suite.end = getenv("OP_CASE") ? suite.first + 1 : (int)setting("OP_CASES", DEFAULT_CASES);
    *state = &suite;
    if (backend && backend->open(TEAM, &suite.many, &err) == PLIM_OK &&
        backend->open(1, &suite.one, &err) == PLIM_OK)
        return 0;
    print_error("%s\n", err.text);
    return -1;
}

static void close_device(struct device *dev)
{
    if (dev && dev->ops)
        dev->ops->close(dev);
    else
        free(dev);
}

static int close_suite(void **state)
{
    struct suite *suite = *state;
    close_device(suite->one);
    close_device(suite->many);
    return 0;
}

static _Noreturn void complain(const struct op_case *c, const char *where, const char *why)
{
    char text[512];
    fail_msg("%s\n    %s: %s", op_case_text(c, text, sizeof text), where, why);
    abort();
}

/* A second run that must give the first one's bits, or only be within the tolerance; whether it has those bits. */
static bool run_again(const struct op_case *c, struct device *dev, unsigned in_place,
                      const struct op_result *first, bool bits, const char *where)
{
    struct op_result r;
    char why[200] = "";
    if (!op_run(c, dev, in_place, &r, why, sizeof why)) complain(c, where, why);
    bool same = op_same(c, first, &r, why, sizeof why);
    if (!same && (bits || op_compare(c, &r, why, sizeof why) > 1)) complain(c, where, why);
    op_result_release(&r);
    return same;
}

/* The matrices of a product, which linear and its gradients have in the same places. */
enum { PRODUCT_A, PRODUCT_B };
enum { PRODUCT_RESULT };

/* A product of cuBLASLt that is added to something. */
static bool adds_product(const struct op_case *c)
{
    switch (c->kind) {
    case OP_LINEAR:
        return c->in[LINEAR_BIAS] || c->in[LINEAR_ADD];
    case OP_LINEAR_DX:
        return c->in[LINEAR_DX_ADD] != NULL;
    case OP_LINEAR_Q_DX:
        return c->in[LINEAR_Q_DX_ADD] != NULL;
    case OP_LINEAR8:
        return c->in[LINEAR8_BIAS] || c->in[LINEAR8_ADD];
    case OP_LINEAR_F8:
        return c->in[LINEAR_F8_BIAS] || c->in[LINEAR_F8_ADD];
    case OP_LINEAR_DW:
    case OP_LINEAR8_DW:
        return c->op.accumulate == ACC_ADD;
    default:
        return false;
    }
}

/* cuBLASLt rounds a product to the output's type before it adds to it, on some shapes. */
static void allow_rounded_product(struct op_case *c)
{
    if (!c->out[PRODUCT_RESULT]) return;
    enum dtype type = op_case_out(c, PRODUCT_RESULT)->type;
    double *inner = &c->inner[PRODUCT_RESULT];
    if (adds_product(c) && type != DT_F32) *inner = fmax(*inner, 4 * dtype_unit(type));
}

/* Tensor cores of 9.0 keep 14 bits of the sums inside a product of fp8 numbers, and cut the rest off. */
static void allow_short_sums(struct op_case *c)
{
    const struct tensor *x = op_case_in(c, PRODUCT_A);
    if (c->kind != OP_LINEAR8 && c->kind != OP_LINEAR8_DW && c->kind != OP_LINEAR_F8) return;
    c->inner[PRODUCT_RESULT] = fmax(c->inner[PRODUCT_RESULT], 0x1p-11 * sqrt((double)x->dim[x->ndim - 1]));
}

/* Operands of tf32 lose 13 bits, by truncation at worst: 2^-10 each. */
static void allow_tf32(struct op_case *c)
{
    c->inner[PRODUCT_RESULT] = fmax(c->inner[PRODUCT_RESULT], 4 * 0x1p-10);
}

/* Rows of all three matrices are whole 16 bytes, and there is enough to multiply for the library to be asked. */
static bool suits_tf32(const struct op_case *c)
{
    const struct tensor *a = op_case_in(c, PRODUCT_A), *b = op_case_in(c, PRODUCT_B),
                        *out = op_case_out(c, PRODUCT_RESULT);
    const struct tensor *all[] = {a, b, out};
    if (!c->out[PRODUCT_RESULT]) return false;
    for (int i = 0; i < 3; i++)
        if (all[i]->dim[all[i]->ndim - 1] % 4) return false;
    double products = sqrt((double)tensor_count(a) * (double)tensor_count(b) * (double)tensor_count(out));
    return products >= 0x1p19;
}

/* What the cases of an op have shown. */
struct seen {
    double worst[DT_COUNT];
    /* Cases that may take cuDNN's attention, and those that did: other bits than our own kernels'; cases that may
     * multiply in tf32 and are not too small or odd for it, and those that did: larger errors than fp32's. */
    int whole, whole_taken, tf32, tf32_taken;
};

static bool is_fast_attention(const struct op_case *c)
{
    return c->op.attr.whole_rows && !c->op.attr.repeatable && c->type != DT_F32;
}

/* The error of the first run in units of the tolerance. */
static double judge(const struct suite *suite, struct op_case *c, const struct op_result *r,
                    struct seen *seen)
{
    char why[200] = "", where[64];
    double worst = op_compare(c, r, why, sizeof why);
    if (suite->cuda && c->op.attr.tf32 && c->type == DT_F32) {
        seen->tf32 += suits_tf32(c), seen->tf32_taken += worst > 1;
        allow_tf32(c);
        worst = op_compare(c, r, why, sizeof why);
    }
    snprintf(where, sizeof where, "%.3g x tolerance", worst);
    if (worst > 1) complain(c, where, why);
    return worst;
}

/* Weights in blocks that no model gives to a GPU (model/quantise.c): experts and tokens of types with a table, frozen experts. */
static bool is_left_to_cpus(const struct op_case *c)
{
    bool table = false, experts = c->op.kind == OP_EXPERT_LINEAR_Q;
    for (int i = 0; i < OP_LINE_PARTS && c->op.attr.lines[i].lines; i++)
        table = table || block_type_of((uint32_t)c->op.attr.lines[i].type)->table;
    return (table && (experts || c->op.kind == OP_EMBED_Q)) || (experts && c->op.attr.keep_x);
}

static void run_case(const struct suite *suite, int kind, int index, struct seen *seen)
{
    struct op_case c;
    struct op_result r;
    char why[200] = "";
    op_case_make(&c, kind, suite->seed, index);
    bool refused = c.op.attr.e4m3 && !strcmp(suite->many->ops->name, "pjrt"); /* by the engine */
    if (refused || (suite->cuda && is_left_to_cpus(&c))) {
        op_case_release(&c);
        return;
    }
    if (suite->cuda) allow_rounded_product(&c), allow_short_sums(&c);
    c.tune = suite->tunes && !c.op.attr.repeatable && (op_case_product(&c) || c.op.attr.whole_rows);
    if (!op_run(&c, suite->many, 0, &r, why, sizeof why)) complain(&c, "run", why);
    seen->worst[c.type] = fmax(seen->worst[c.type], judge(suite, &c, &r, seen));
    /* Else the first run may have taken another way, or cuBLASLt adds in place by another one. */
    bool bits = !c.tune && (!suite->cuda || c.op.attr.repeatable || !adds_product(&c));
    c.tune = false;
    bool same = run_again(&c, suite->one, 0, &r, bits, "one thread");
    if (is_fast_attention(&c)) seen->whole++, seen->whole_taken += !same;
    unsigned shares = op_may_share(&c);
    if (shares) run_again(&c, suite->many, shares, &r, bits, "in place");
    for (unsigned i = 0; i < OP_MAX_OUT; i++)
        if (shares & (1u << i) && shares != 1u << i)
            run_again(&c, suite->many, 1u << i, &r, bits, "one output in place");
    op_result_release(&r);
    op_case_release(&c);
}

enum { ENOUGH = 3, CUDNN_OLDEST = 90600 };

/* Whether this machine has a cuDNN that the backend takes. */
static bool cudnn_is_here(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    size_t (*version)(void) = library ? (size_t(*)(void))dlsym(library, "cudnnGetVersion") : NULL;
    return version && version() >= CUDNN_OLDEST; /* stays open: the backend has it too */
}

/* A way that was never taken was not tested. */
static void check_ways(const struct suite *suite, const struct seen *seen)
{
    if (!suite->tunes) return;
    if (seen->whole)
        print_message("    %-11s %3d of %d took cuDNN's kernels\n", "", seen->whole_taken, seen->whole);
    if (seen->tf32)
        print_message("    %-11s %3d of %d were multiplied in tf32\n", "", seen->tf32_taken, seen->tf32);
    if (seen->whole >= ENOUGH && !seen->whole_taken && cudnn_is_here())
        fail_msg("cuDNN is here, but none of its kernels ran");
    if (seen->tf32 >= ENOUGH && !seen->tf32_taken) fail_msg("no product was in tf32");
}

static void run_op(void **state, int kind)
{
    const struct suite *suite = *state;
    struct seen seen = {0};
    if (!suite->many->kernels[kind]) {
        if (op_row(kind)->cls == OP_CLASS_MOVE)
            skip(); /* a device may leave copies to its transfer functions */
        if (!strcmp(suite->many->ops->name, "pjrt")) skip(); /* no emitter */
        if (kind == OP_EXPERT_LINEAR_Q_DX && !suite->many->facts.unified_memory)
            skip(); /* and frozen experts as their files have them (model/quantise.h) */
        fail_msg("%s: the device has no kernel", op_name(kind));
    }
    for (int i = suite->first; i < suite->end; i++) run_case(suite, kind, i, &seen);
    print_message(
        "    %-11s %3d cases, worst error in units of the tolerance: f32 %.2f  bf16 %.2f  f16 %.2f\n",
        op_name(kind), suite->end - suite->first, seen.worst[DT_F32], seen.worst[DT_BF16],
        seen.worst[DT_F16]);
    check_ways(suite, &seen);
}

#define OPS(X)                                                                                               \
    X(embed, OP_EMBED)                                                                                       \
    X(norm, OP_NORM)                                                                                         \
    X(linear, OP_LINEAR)                                                                                     \
    X(rope_table, OP_ROPE_TABLE)                                                                             \
    X(attn, OP_ATTN)                                                                                         \
    X(rope, OP_ROPE)                                                                                         \
    X(glu, OP_GLU)                                                                                           \
    X(act, OP_ACT)                                                                                           \
    X(dropout, OP_DROPOUT)                                                                                   \
    X(add, OP_ADD)                                                                                           \
    X(row_gate, OP_ROW_GATE)                                                                                 \
    X(row_gate_bwd, OP_ROW_GATE_BWD)                                                                         \
    X(adapter_linear, OP_ADAPTER_LINEAR)                                                                     \
    X(take, OP_TAKE)                                                                                         \
    X(dora_norm, OP_DORA_NORM)                                                                               \
    X(dora_norm_q, OP_DORA_NORM_Q)                                                                           \
    X(column_scale, OP_COLUMN_SCALE)                                                                         \
    X(column_scale_bwd, OP_COLUMN_SCALE_BWD)                                                                 \
    X(xent, OP_XENT)                                                                                         \
    X(preference, OP_PREFERENCE)                                                                             \
    X(kv_append, OP_KV_APPEND)                                                                               \
    X(kv_put, OP_KV_PUT)                                                                                     \
    X(attn_paged, OP_ATTN_PAGED)                                                                             \
    X(sample, OP_SAMPLE)                                                                                     \
    X(kv_put8, OP_KV_PUT8)                                                                                   \
    X(attn_paged8, OP_ATTN_PAGED8)                                                                           \
    X(linear_q, OP_LINEAR_Q)                                                                                 \
    X(embed_q, OP_EMBED_Q)                                                                                   \
    X(expert_linear_q, OP_EXPERT_LINEAR_Q)                                                                   \
    X(linear_q_dx, OP_LINEAR_Q_DX)                                                                           \
    X(expert_linear_q_dx, OP_EXPERT_LINEAR_Q_DX)                                                             \
    X(split3, OP_SPLIT3)                                                                                     \
    X(embed_bwd, OP_EMBED_BWD)                                                                               \
    X(norm_bwd, OP_NORM_BWD)                                                                                 \
    X(linear_dx, OP_LINEAR_DX)                                                                               \
    X(linear_dw, OP_LINEAR_DW)                                                                               \
    X(attn_bwd, OP_ATTN_BWD)                                                                                 \
    X(glu_bwd, OP_GLU_BWD)                                                                                   \
    X(act_bwd, OP_ACT_BWD)                                                                                   \
    X(join3, OP_JOIN3)                                                                                       \
    X(pool, OP_POOL)                                                                                         \
    X(pool_bwd, OP_POOL_BWD)                                                                                 \
    X(route, OP_ROUTE)                                                                                       \
    X(dispatch, OP_DISPATCH)                                                                                 \
    X(expert_linear, OP_EXPERT_LINEAR)                                                                       \
    X(combine, OP_COMBINE)                                                                                   \
    X(router_loss, OP_ROUTER_LOSS)                                                                           \
    X(route_bwd, OP_ROUTE_BWD)                                                                               \
    X(expert_linear_dx, OP_EXPERT_LINEAR_DX)                                                                 \
    X(expert_linear_dw, OP_EXPERT_LINEAR_DW)                                                                 \
    X(combine_dw, OP_COMBINE_DW)                                                                             \
    X(sumsq, OP_SUMSQ)                                                                                       \
    X(clip, OP_CLIP)                                                                                         \
    X(adamw, OP_ADAMW)                                                                                       \
    X(sgd, OP_SGD)                                                                                           \
    X(adamw8, OP_ADAMW8)                                                                                     \
    X(factor_stat, OP_FACTOR_STAT)                                                                           \
    X(adafactor, OP_ADAFACTOR)                                                                               \
    X(quantise8, OP_QUANTISE8)                                                                               \
    X(linear8, OP_LINEAR8)                                                                                   \
    X(linear_f8, OP_LINEAR_F8)                                                                               \
    X(linear8_dw, OP_LINEAR8_DW)                                                                             \
    X(fetch, OP_FETCH)                                                                                       \
    X(store, OP_STORE)

#define TEST(name, kind)                                                                                     \
    static void op_##name(void **state) { run_op(state, kind); }
OPS(TEST)

int main(int argc, char **argv)
{
#define ROW(name, kind) cmocka_unit_test(op_##name),
    const struct CMUnitTest tests[] = {OPS(ROW)};
    _Static_assert(sizeof tests / sizeof tests[0] == OP_KIND_COUNT - 5,
                   "one test per op; hold does nothing, and four need other ranks (tests/unit/test_comm.c)");
    char filter[64], skip[64]; /* cmocka keeps them */
    if (argc > 1) {
        snprintf(filter, sizeof filter, "op_%s", argv[1]);
        cmocka_set_test_filter(filter);
    }
    if (getenv("OP_SKIP")) {
        snprintf(skip, sizeof skip, "op_%s", getenv("OP_SKIP"));
        cmocka_set_skip_filter(skip);
    }
    return cmocka_run_group_tests(tests, open_suite, close_suite);
}
