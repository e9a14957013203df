/* run-tests: not=tsan */
/* test_park.c - activations that wait on the host: what pass_offload_activations promises about a tape, what the clock says of it, and
 * when the planner asks for it. That results stay the same bits is test_exec_tiers.c's. */
#include "plan/cost.h"
#include "support/job_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;
static struct job job;
static struct preset preset;
static struct plan_request request;

enum { LAYERS = 12 };

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

static void open_job(const char *more)
{
    const char *keys[] = {"model.architecture=llama",
                          "model.vocab_size=128256",
                          "model.hidden_size=2048",
                          "model.intermediate_size=8192",
                          "model.num_layers=12",
                          "model.num_attention_heads=32",
                          "model.num_key_value_heads=8",
                          "model.tie_word_embeddings=true",
                          "data.max_length=2048",
                          "training.batch_size=4",
                          "training.mixed_precision=bf16",
                          more,
                          NULL};
    rig_job(&job, keys);
    must(preset_find("h200", &preset, &err));
    job_request(&job, &preset.facts, 8 << 20, &request);
}

static struct knobs parked(int layers, int recompute)
{
    struct knobs k = knobs_naive(&request);
    k.offload_layers = layers, k.recompute = recompute, k.loss_chunks = 4;
    return k;
}

static bool is_backward(const struct op *op)
{
    return op->part == PART_BACKWARD || op->part == PART_RECOMPUTE;
}

static bool reads(const struct op *op, int id)
{
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op->in[k] == id) return true;
    return false;
}

static bool writes(const struct op *op, int id)
{
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] == id) return true;
    return false;
}

/* One parked activation: stored right after the op that made it, held, fetched behind that and before backward reads it;
 * backward reads nothing but what was fetched. */
static void follow(const struct tape *tape, int home)
{
    int made = -1, stored = -1, fetched = -1, held = -1, near = -1, back = -1, wanted = -1;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_STORE && move_far(op) == home) stored = i, near = move_near(op);
        if (op->kind == OP_FETCH && move_far(op) == home) fetched = i, back = move_near(op);
    }
    assert_true(near >= 0 && back >= 0);
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (!op_moves(op) && writes(op, near)) made = i;
        if (op->kind == OP_HOLD && reads(op, near)) held = i;
        if (is_backward(op) && !op_moves(op) && reads(op, back) && wanted < 0) wanted = i;
        assert_false(is_backward(op) && reads(op, near));
    }
    assert_true(made >= 0 && made < stored && stored < fetched && fetched < wanted);
    for (int i = made + 1; i < stored; i++) assert_true(op_moves(&tape->ops[i]));
    assert_true(held < 0 || (held > stored && held < fetched));
}

static void test_what_is_parked(void **state)
{
    (void)state;
    open_job("training.max_grad_norm=1");
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++)
        for (int layers = 0; layers <= LAYERS + 1; layers++) {
            struct plan plan;
            struct knobs k = parked(layers, recompute);
            int homes = 0, layer_bits = 0;
            must(plan_make(&request, &k, &plan, &err));
            must(layout_verify(&plan.tape, &plan.layout, &err));
            for (int i = 0; i < plan.tape.ntensors; i++) {
                if (plan.tape.tensors[i].tier != TIER_HOST) continue;
                assert_int_equal(plan.tape.tensors[i].cls, CLASS_ACT);
                follow(&plan.tape, i);
                homes++;
            }
            for (int i = 0; i < plan.tape.nops; i++) {
                const struct op *op = &plan.tape.ops[i];
                if (op->kind == OP_FETCH) assert_true(i < plan.tape.loop_end);
                for (int in = 0; in < OP_MAX_IN && is_backward(op) && !op_moves(op); in++)
                    if (op->in[in] >= 0 && plan.tape.tensors[op->in[in]].cls == CLASS_ACT)
                        layer_bits |= op->layer >= 0 ? 1 << op->layer : 0;
            }
            assert_int_equal(layer_bits, (1 << LAYERS) - 1);
            int each =
                recompute == RECOMPUTE_FULL ? 1 : 2; /* at least; a layer made again keeps its input alone */
            assert_true(homes >= each * (layers < LAYERS ? layers : LAYERS));
            assert_true(layers == 0 ? homes == 0 : plan.layout.tier_bytes[TIER_HOST] > 0);
            plan_release(&plan);
        }
    job_release(&job);
}

/* A few layers hide behind computing; all of them do not, and the clock knows. */
static void test_the_clock_waits(void **state)
{
    (void)state;
    struct plan_bound none, few, all;
    open_job("training.max_grad_norm=1");
    struct knobs k = parked(0, RECOMPUTE_SELECTIVE);
    must(plan_bound_of(&request, &k, NULL, &none, &err));
    k.offload_layers = 2;
    must(plan_bound_of(&request, &k, NULL, &few, &err));
    k.offload_layers = LAYERS;
    must(plan_bound_of(&request, &k, NULL, &all, &err));
    assert_true(few.total < none.total && few.host > none.host);
    assert_true(few.step_seconds < 1.003 * none.step_seconds);
    assert_true(all.step_seconds > 1.3 * none.step_seconds);
    job_release(&job);
}

/* A budget that is a little too small for the whole batch at once: smaller parts are nearly as fast, and nothing is parked. Where
 * the batch is pinned and layers may not be recomputed in full, layers are parked, and without that nothing fits. Of the host no
 * more is taken than its line allows. */
static void test_the_planner_parks(void **state)
{
    (void)state;
    struct plan with, without;
    struct plan_bound bound;
    open_job("training.max_grad_norm=1");
    struct knobs k = parked(0, RECOMPUTE_SELECTIVE);
    request.pins.state_tier = request.pins.grad_tier = request.pins.param_tier = TIER_DEVICE;
    must(plan_bound_of(&request, &k, NULL, &bound, &err));
    request.budget = bound.total - ((int64_t)700 << 20);
    must(plan_search(&request, &with, &err));
    assert_int_equal(with.knobs.offload_layers, 0);
    plan_release(&with);
    request.pins.micro_batch = k.micro_batch, request.pins.recompute = RECOMPUTE_SELECTIVE;
    request.pins.full_layers = 0, request.pins.offload_layers = 0;
    request.budget -= (int64_t)1 << 30;
    assert_int_equal(plan_search(&request, &without, &err), PLIM_NO_FIT);
    request.pins.offload_layers = KNOB_OPEN;
    must(plan_search(&request, &with, &err));
    assert_true(with.fits && with.knobs.offload_layers > 0 && with.total <= request.budget);
    request.pins.micro_batch = request.pins.recompute = request.pins.full_layers = KNOB_OPEN;
    request.host_budget = with.host - 1;
    plan_release(&with);
    must(plan_search(&request, &with, &err));
    assert_true(with.fits && with.host <= request.host_budget);
    plan_release(&with), plan_release(&without);
    request.pins.offload_layers = 3, request.host_budget = 0;
    must(plan_search(&request, &with, &err));
    assert_int_equal(with.knobs.offload_layers, 3);
    plan_release(&with);
    job_release(&job);
}

/* Below the smallest budget for streamed parameters alone and for parked activations alone there is one for both. */
static void test_everything_leaves(void **state)
{
    (void)state;
    struct plan plan;
    int64_t low = (int64_t)64 << 20, high = (int64_t)64 << 30;
    open_job("training.max_grad_norm=1");
    request.pins.offload_layers = 0;
    while (high - low > (int64_t)4 << 20) {
        request.budget = low + (high - low) / 2;
        enum plim_status status = plan_search(&request, &plan, NULL);
        if (status == PLIM_OK || status == PLIM_NO_FIT) plan_release(&plan);
        if (status == PLIM_OK)
            high = request.budget;
        else
            low = request.budget;
    }
    request.budget = low - ((int64_t)16 << 20);
    assert_int_equal(plan_search(&request, &plan, &err), PLIM_NO_FIT);
    plan_release(&plan);
    request.pins.offload_layers = KNOB_OPEN;
    must(plan_search(&request, &plan, &err));
    assert_true(plan.fits && plan.knobs.offload_layers > 0 && plan.knobs.param_share > 0);
    plan_release(&plan);
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_parked),
        cmocka_unit_test(test_the_clock_waits),
        cmocka_unit_test(test_the_planner_parks),
        cmocka_unit_test(test_everything_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
