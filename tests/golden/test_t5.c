/* test_t5.c - encoder-decoders against PyTorch's numbers (make_t5.py): logits, every gradient and ten AdamW losses, fp32 within
 * 1e-5 relative; gradients in bf16 at most 1.25 times as far off as PyTorch's own; every pass gives the same losses. */
#include "support/golden.h"
#include "support/test_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const cases[] = {"t5-v10", "t5-v11"};
enum { CASES = 2 };

static void logits_of(const struct golden *g)
{
    struct model_rig rig = {0};
    int64_t count;
    golden_run(&rig, g, &(struct rig_options){.head = HEAD_LOGITS}, 0);
    float *have = golden_floats(&rig, tape_find(&rig.tape, "logits", -1)),
          *want = golden_read(g, "logits", DT_F32, &count);
    double error = golden_error(have, want, count, 0);
    print_message("# %s: logits: error %.2e\n", g->name, error);
    if (!(error <= GOLDEN_TOLERANCE)) fail_msg("%s: logits: error %.3g", g->name, error);
    free(have), free(want);
    rig_close(&rig);
}

static struct golden_errors gradient_errors(const struct golden *g, enum precision precision)
{
    struct model_rig rig = {0};
    golden_run(&rig, g, &(struct rig_options){.grad = true, .precision = precision}, 0);
    struct golden_errors e = golden_gradients(&rig, g, 0);
    rig_close(&rig);
    return e;
}

static void gradients_of(const struct golden *g)
{
    struct golden_errors wide = gradient_errors(g, PRECISION_F32),
                         narrow = gradient_errors(g, PRECISION_BF16);
    double ours = sqrt(narrow.ours / narrow.count), torch = sqrt(narrow.torch / narrow.count);
    int files = 0; /* every gradient that PyTorch has is compared */
    for (size_t i = 0; i < g->expected.count; i++) files += !strncmp(g->expected.tensors[i].name, "grad:", 5);
    print_message("# %s: worst of %d gradients: error %.2e; bf16 rms %.2e, torch's %.2e\n", g->name,
                  wide.count, wide.worst, ours, torch);
    assert_int_equal(wide.count, files);
    if (!(wide.worst <= GOLDEN_TOLERANCE))
        fail_msg("%s: gradient of %s: error %.3g", g->name, wide.worst_name, wide.worst);
    if (!(ours <= 1.25 * torch)) fail_msg("%s: bf16 gradients: %.3g, torch %.3g", g->name, ours, torch);
}

static void losses_of(const struct golden *g)
{
    static const struct rig_options ways[] = {
        {.threads = 2},
        {.recompute = {RECOMPUTE_FULL, 0}},
        {.recompute = {RECOMPUTE_SELECTIVE, 4}},
        {.recompute = {RECOMPUTE_NONE, 3}, .in_backward = true},
        {.loss_chunks = 4},
        {.offload = {.state_tier = TIER_DISK, .param_tier = TIER_DISK, .slice_bytes = 4096}},
    };
    double first = 0;
    bool other = test_device_is_other(); /* it may have no disk, and sum in another order in each program */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (other && ways[i].offload.slice_bytes) continue;
        double sum = golden_losses(g, &ways[i], 0);
        if (i == 0) first = sum;
        if (sum != first && !other) fail_msg("%s: way %d has other losses", g->name, (int)i);
    }
}

static double loss_of(const struct golden *g, const struct rig_options *how)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    double loss[2];
    o.grad = true;
    golden_run(&rig, g, &o, 0);
    rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
    rig_close(&rig);
    return loss[0];
}

/* Nothing is dropped unless the tape trains; what is dropped does not depend on what is recomputed. */
static void dropout_of(const struct golden *g)
{
    double plain = loss_of(g, &(struct rig_options){.dropout = 0.3});
    double dropped = loss_of(g, &(struct rig_options){.dropout = 0.3, .training = true});
    double again =
        loss_of(g, &(struct rig_options){.dropout = 0.3, .training = true, .recompute = {RECOMPUTE_FULL, 0}});
    assert_true(plain == loss_of(g, &(struct rig_options){.threads = 1}));
    assert_true(dropped != plain && again == dropped);
}

/* Layers of both stacks are counted through, and parameters keep their own numbers. */
static void layers_of(const struct golden *g)
{
    struct model_rig rig = {0};
    char name[192];
    int last = -1;
    golden_run(&rig, g, &(struct rig_options){.head = HEAD_LOSS}, 0);
    for (int i = 0; i < rig.tape.nops; i++) {
        const struct op *op = &rig.tape.ops[i];
        if (op->layer < 0) continue;
        assert_true(op->layer == last || op->layer == last + 1);
        last = op->layer;
        if (op->kind != OP_LINEAR) continue;
        tape_tensor_name(&rig.tape, op->in[LINEAR_W], name, sizeof name);
        bool decoder = !strncmp(name, "decoder", 7);
        assert_int_equal(atoi(name + strlen("encoder.block.")),
                         op->layer - (decoder ? rig.spec.num_layers : 0));
    }
    assert_int_equal(last + 1, model_layers(&rig.spec));
    rig_close(&rig);
}

static void each(void (*body)(const struct golden *))
{
    for (int i = 0; i < CASES; i++) {
        struct golden g;
        golden_open(&g, cases[i]);
        body(&g);
        golden_close(&g);
    }
}

static void test_logits(void **state)
{
    (void)state;
    each(logits_of);
}

static void test_gradients(void **state)
{
    (void)state;
    each(gradients_of);
}

static void test_ten_steps(void **state)
{
    (void)state;
    each(losses_of);
}

static void test_dropout(void **state)
{
    (void)state;
    each(dropout_of);
}

static void test_layers(void **state)
{
    (void)state;
    each(layers_of);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),  cmocka_unit_test(test_gradients), cmocka_unit_test(test_ten_steps),
        cmocka_unit_test(test_dropout), cmocka_unit_test(test_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
