/* test_ops.c - every op of a backend against the double-precision reference, on random operands.
 *
 *     OP_DEVICE  cpu (default), cuda, or reference (the reference behind the kernel interface: tests the test)
 *     OP_CASES   random cases per op
 *     OP_SEED    another set of cases
 *     OP_CASE    this case of every op only; with an op's name as argument, of that op only
 *     OP_SKIP    not these ops, e.g. linear*
 *
 * Each case runs several times: once on the device with several threads and compared with the reference; once
 * with one thread, which must give the same bits; once with outputs on top of the inputs the op table allows
 * them to take over, which must give the same bits too.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/reference/reference.h"
#include "support/op_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CASES = 120, TEAM = 3 };

struct suite {
    struct device *many, *one; /* the same backend with several threads and with one */
    bool rounds_products;
    uint64_t seed;
    int first, end;
};

/* The reference behind the kernel interface: no threads, no memory of its own. */
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
    (void)threads;
    return device_cuda_open(0, out, err);
}

static const struct backend {
    const char *name;
    enum plim_status (*open)(int threads, struct device **out, struct plim_error *err);
} backends[] = {{"cpu", device_cpu_open}, {"reference", open_reference}, {"cuda", open_cuda}};

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static const struct backend *chosen_backend(void)
{
    const char *name = getenv("OP_DEVICE");
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (!strcmp(backends[i].name, name && *name ? name : "cpu")) return &backends[i];
    return NULL;
}

static int open_suite(void **state)
{
    static struct suite suite;
    const struct backend *backend = chosen_backend();
    struct plim_error err = {.text = "OP_DEVICE: write cpu, cuda or reference"};
    suite.rounds_products = backend && !strcmp(backend->name, "cuda");
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

/* A second run that must give the first one's bits; where products are rounded differently in place, the tolerance. */
static void run_again(const struct suite *suite, const struct op_case *c, struct device *dev,
                      unsigned in_place, const struct op_result *first, const char *where)
{
    struct op_result r;
    char why[200] = "";
    bool product = c->kind == OP_LINEAR || c->kind == OP_LINEAR_DX || c->kind == OP_LINEAR_DW;
    if (!op_run(c, dev, in_place, &r, why, sizeof why)) complain(c, where, why);
    if (suite->rounds_products && product && in_place) {
        if (op_compare(c, &r, why, sizeof why) > 1) complain(c, where, why);
    } else if (!op_same(c, first, &r, why, sizeof why)) {
        complain(c, where, why);
    }
    op_result_release(&r);
}

/* cuBLASLt rounds a product to the output's type before it adds to it, on some shapes. */
static void allow_rounded_product(struct op_case *c)
{
    bool adds = (c->kind == OP_LINEAR && (c->in[2] || c->in[3])) || (c->kind == OP_LINEAR_DX && c->in[2]) ||
                (c->kind == OP_LINEAR_DW && c->op.accumulate == ACC_ADD);
    enum dtype type = op_case_out(c, 0)->type;
    if (adds && type != DT_F32) c->inner[0] = fmax(c->inner[0], 4 * dtype_unit(type));
}

static double run_case(const struct suite *suite, int kind, int index, enum dtype *type)
{
    struct op_case c;
    struct op_result r;
    char why[200] = "";
    op_case_make(&c, kind, suite->seed, index);
    if (suite->rounds_products) allow_rounded_product(&c);
    *type = c.type;
    if (!op_run(&c, suite->many, 0, &r, why, sizeof why)) complain(&c, "run", why);
    double worst = op_compare(&c, &r, why, sizeof why);
    if (worst > 1) {
        char where[64];
        snprintf(where, sizeof where, "%.3g x tolerance", worst);
        complain(&c, where, why);
    }
    run_again(suite, &c, suite->one, 0, &r, "one thread");
    unsigned shares = op_may_share(&c);
    if (shares) run_again(suite, &c, suite->many, shares, &r, "in place");
    for (unsigned i = 0; i < OP_MAX_OUT; i++)
        if (shares & (1u << i) && shares != 1u << i)
            run_again(suite, &c, suite->many, 1u << i, &r, "one output in place");
    op_result_release(&r);
    op_case_release(&c);
    return worst;
}

static void run_op(void **state, int kind)
{
    const struct suite *suite = *state;
    double worst[DT_COUNT] = {0};
    if (!suite->many->kernels[kind].run) {
        if (kind == OP_FETCH || kind == OP_STORE)
            skip(); /* a device may leave copies to its transfer functions */
        fail_msg("%s: the device has no kernel", op_row(kind)->name);
    }
    for (int i = suite->first; i < suite->end; i++) {
        enum dtype type;
        double e = run_case(suite, kind, i, &type);
        worst[type] = fmax(worst[type], e);
    }
    print_message(
        "    %-11s %3d cases, worst error in units of the tolerance: f32 %.2f  bf16 %.2f  f16 %.2f\n",
        op_row(kind)->name, suite->end - suite->first, worst[DT_F32], worst[DT_BF16], worst[DT_F16]);
}

#define OPS(X)                                                                                               \
    X(embed, OP_EMBED)                                                                                       \
    X(norm, OP_NORM)                                                                                         \
    X(linear, OP_LINEAR)                                                                                     \
    X(rope_table, OP_ROPE_TABLE)                                                                             \
    X(rope, OP_ROPE)                                                                                         \
    X(attn, OP_ATTN)                                                                                         \
    X(swiglu, OP_SWIGLU)                                                                                     \
    X(gelu, OP_GELU)                                                                                         \
    X(add, OP_ADD)                                                                                           \
    X(xent, OP_XENT)                                                                                         \
    X(kv_append, OP_KV_APPEND)                                                                               \
    X(split3, OP_SPLIT3)                                                                                     \
    X(embed_bwd, OP_EMBED_BWD)                                                                               \
    X(norm_bwd, OP_NORM_BWD)                                                                                 \
    X(linear_dx, OP_LINEAR_DX)                                                                               \
    X(linear_dw, OP_LINEAR_DW)                                                                               \
    X(attn_bwd, OP_ATTN_BWD)                                                                                 \
    X(swiglu_bwd, OP_SWIGLU_BWD)                                                                             \
    X(gelu_bwd, OP_GELU_BWD)                                                                                 \
    X(join3, OP_JOIN3)                                                                                       \
    X(sumsq, OP_SUMSQ)                                                                                       \
    X(clip, OP_CLIP)                                                                                         \
    X(adamw, OP_ADAMW)                                                                                       \
    X(sgd, OP_SGD)                                                                                           \
    X(adamw8, OP_ADAMW8)                                                                                     \
    X(factor_stat, OP_FACTOR_STAT)                                                                           \
    X(adafactor, OP_ADAFACTOR)                                                                               \
    X(fetch, OP_FETCH)                                                                                       \
    X(store, OP_STORE)

#define TEST(name, kind)                                                                                     \
    static void op_##name(void **state) { run_op(state, kind); }
OPS(TEST)

int main(int argc, char **argv)
{
#define ROW(name, kind) cmocka_unit_test(op_##name),
    const struct CMUnitTest tests[] = {OPS(ROW)};
    _Static_assert(sizeof tests / sizeof tests[0] == OP_HOLD, "one test per op that does something");
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
