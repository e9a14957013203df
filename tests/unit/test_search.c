/* test_search.c - the corners of the search: odd batches, pins that exclude each other, budgets at the edge.
 */
#include "support/job_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)

static struct plim_error err;
static struct job job;
static struct preset preset;
static struct plan_request request;

static void ask(int64_t batch, int64_t accumulation, int64_t budget)
{
    rig_job(&job, rig_small);
    job.training.batch_size = batch, job.training.accumulation = accumulation;
    assert_int_equal(preset_find("cpu-4gb", &preset, &err), PLIM_OK);
    job_request(&job, &preset.facts, OVERHEAD, &request);
    request.budget = budget;
}

static enum plim_status search(struct plan *plan)
{
    err = (struct plim_error){0};
    return plan_search(&request, plan, &err);
}

/* A prime batch has two micro-batches, the largest config there is has thousands: both are planned at once.
 */
static void test_odd_batches(void **state)
{
    (void)state;
    static const int64_t batches[][2] = {{1, 1},          {13, 1}, {997, 1}, {1000000, 1}, {1000000, 1000000},
                                         {999983, 999979}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct plan plan;
        ask(batches[i][0], batches[i][1], (int64_t)1 << 30);
        if (search(&plan) != PLIM_OK) fail_msg("%d: %s", (int)i, err.text);
        assert_true(plan.fits && plan.total <= request.budget && plan.total > OVERHEAD);
        assert_int_equal(plan.knobs.micro_batch * plan.knobs.accumulation, batches[i][0] * batches[i][1]);
        assert_int_equal(layout_verify(&plan.tape, &plan.layout, &err), PLIM_OK);
        /* However many micro-batches there are, gradients live through all of them. */
        for (int t = 0; t < plan.tape.ntensors; t++)
            if (plan.tape.tensors[t].cls == CLASS_GRAD && plan.knobs.accumulation > 1)
                assert_true(plan.layout.life[t].first == 0 && plan.layout.life[t].last >= plan.tape.loop_end);
        plan_release(&plan);
        job_release(&job);
    }
}

static void test_pins_that_exclude_each_other(void **state)
{
    (void)state;
    struct plan plan;
    ask(16, 1, (int64_t)1 << 30);
    request.pins.optimizer_in_backward = 1; /* alone it can be had ... */
    assert_int_equal(search(&plan), PLIM_OK);
    assert_true(plan.knobs.optimizer_in_backward && plan.knobs.accumulation == 1);
    plan_release(&plan);
    request.pins.micro_batch = 4; /* ... but not with four micro-batches: refused, not dropped */
    assert_int_equal(search(&plan), PLIM_BAD_INPUT);
    plan_release(&plan);
    request.pins.micro_batch = KNOB_OPEN, request.needs_global_norm = true;
    assert_int_equal(search(&plan), PLIM_BAD_INPUT);
    plan_release(&plan);
    job_release(&job);
}

/* From just above the smallest plan to just below it: fits, fits, does not, and then says how much is
 * missing. */
static void test_edge_of_the_budget(void **state)
{
    (void)state;
    struct plan plan;
    ask(16, 1, OVERHEAD + 1);
    assert_int_equal(search(&plan), PLIM_NO_FIT);
    int64_t smallest = plan.total;
    plan_release(&plan);
    for (int64_t more = -1; more < 300000; more = more * 3 / 2 + 1) {
        request.budget = smallest + more;
        enum plim_status status = search(&plan);
        if ((status == PLIM_OK) != (more >= 0)) fail_msg("smallest %+d bytes: %s", (int)more, err.text);
        assert_true(status == PLIM_OK ? plan.total <= request.budget
                                      : strstr(err.text, "(1 bytes) missing") != NULL);
        plan_release(&plan);
    }
    job_release(&job);
}

static int64_t bound_of(int recompute, int in_backward, int state_tier)
{
    struct knobs k = {.micro_batch = 1,
                      .accumulation = 1,
                      .recompute = recompute,
                      .loss_chunks = 1,
                      .optimizer_in_backward = in_backward,
                      .state_tier = state_tier,
                      .state_share = state_tier == TIER_DEVICE ? 0 : OFFLOAD_SHARES};
    struct plan_bound bound;
    assert_int_equal(plan_bound_of(&request, &k, NULL, &bound, &err), PLIM_OK);
    return bound.total;
}

/* State far away, gradients never all alive: found although far state alone is not enough, before gradients are sent to
 * the disk. */
static void test_far_state_with_updates_inside(void **state)
{
    (void)state;
    struct plan plan;
    ask(1, 1, (int64_t)1 << 30);
    request.needs_global_norm = false;
    int64_t waits = bound_of(RECOMPUTE_FULL, 0, TIER_DISK), inside = bound_of(RECOMPUTE_FULL, 1, TIER_DISK);
    assert_true(inside < waits);
    request.budget = waits - (waits - inside) / 8;
    assert_int_equal(search(&plan), PLIM_OK);
    assert_int_equal(plan.knobs.grad_tier, TIER_DEVICE);
    assert_true(plan.knobs.optimizer_in_backward);
    plan_release(&plan);
    job_release(&job);
}

/* With one short row weights and gradients are the peak, and a whole layer made again beside them is more than what
 * selective recomputation keeps: that must not send state to the disk. */
static void test_full_is_not_always_least(void **state)
{
    (void)state;
    struct plan plan;
    ask(1, 1, (int64_t)1 << 30);
    request.needs_global_norm = true;
    int64_t full = bound_of(RECOMPUTE_FULL, 0, TIER_DEVICE),
            selective = bound_of(RECOMPUTE_SELECTIVE, 0, TIER_DEVICE);
    assert_true(selective < full);
    request.budget = selective + (full - selective) / 2;
    assert_int_equal(search(&plan), PLIM_OK);
    assert_int_equal(plan.knobs.state_tier, TIER_DEVICE);
    assert_int_equal(plan.knobs.recompute, RECOMPUTE_SELECTIVE);
    plan_release(&plan);
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_batches),
        cmocka_unit_test(test_pins_that_exclude_each_other),
        cmocka_unit_test(test_edge_of_the_budget),
        cmocka_unit_test(test_far_state_with_updates_inside),
        cmocka_unit_test(test_full_is_not_always_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
