/* run-tests: not=tsan */
/* test_plan.c - layouts are sound and tight, the search obeys budget and pins. */
#include "support/job_rig.h"
#include "support/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)

static struct plim_error err;

static void request_for(struct job *job, const char *device, struct preset *preset,
                        struct plan_request *request)
{
    assert_int_equal(preset_find(device, preset, &err), PLIM_OK);
    job_request(job, &preset->facts, OVERHEAD, request);
}

#define FAMILY(...)                                                                                          \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        "model.vocab_size=512", "model.hidden_size=128", "model.intermediate_size=256",                      \
            "model.num_layers=4", "model.num_attention_heads=4", "data.max_length=64",                       \
            "training.batch_size=8", "training.gradient_accumulation_steps=2", __VA_ARGS__, NULL             \
    }

/* One of each family beside models of known sizes. */
static const char *const *const models[] = {
    rig_small,
    rig_gpt2,
    rig_llama_1b,
    FAMILY("model.architecture=bert", "training.objective=token_labels", "data.labels=O,B-PER"),
    FAMILY("model.architecture=t5", "data.max_source_length=96"),
    FAMILY("model.architecture=mixtral", "model.num_experts=6", "model.num_key_value_heads=2"),
    FAMILY("model.architecture=qwen2_moe", "model.num_experts=6",
           "model.shared_expert_intermediate_size=96")};

/* Every combination of knobs gives a layout that verifies and is at most 2 % above its lower bound. */
static void test_layouts_are_sound_and_tight(void **state)
{
    (void)state;
    double worst = 1;
    int count = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct job job;
        struct preset preset;
        struct plan_request request;
        rig_job(&job, models[m]);
        request_for(&job, "cpu-4gb", &preset, &request);
        for (int i = (int)m % EVERY; i < 48; i += EVERY) {
            static const struct recompute_options ways[] = {
                {RECOMPUTE_NONE, 0}, {RECOMPUTE_SELECTIVE, 0}, {RECOMPUTE_SELECTIVE, 3}, {RECOMPUTE_FULL, 0}};
            int64_t micro = i & 1 ? 1 : request.rows;
            struct knobs k = {.micro_batch = micro,
                              .accumulation = request.rows / micro,
                              .recompute = (int)ways[i / 2 % 4].policy,
                              .full_layers = ways[i / 2 % 4].full_layers,
                              .loss_chunks = i / 8 % 2 ? 8 : 1,
                              .optimizer_in_backward = i / 16 == 1 && micro == request.rows,
                              .state_tier = i / 16 == 2 ? TIER_DISK : TIER_DEVICE};
            struct plan plan;
            if (plan_make(&request, &k, &plan, &err) != PLIM_OK) fail_msg("%s", err.text);
            if (layout_verify(&plan.tape, &plan.layout, &err) != PLIM_OK)
                fail_msg("model %zu, knobs %d: %s", m, i, err.text);
            double ratio = (double)plan.layout.arena_bytes / (double)plan.layout.lower_bound;
            if (ratio > worst) worst = ratio;
            if (ratio > 1.02) fail_msg("model %zu, knobs %d: %.4f x the lower bound", m, i, ratio);
            int64_t sum = 0;
            for (int c = 0; c < CLASS_COUNT; c++) sum += plan.layout.by_class[c];
            assert_int_equal(sum, plan.layout.lower_bound);
            plan_release(&plan);
            count++;
        }
        job_release(&job);
    }
    print_message("# %d tapes, worst arena / lower bound %.4f\n", count, worst);
}

static void test_search_obeys_the_budget(void **state)
{
    (void)state;
    struct job job;
    struct preset preset;
    struct plan_request request;
    double slower = 0;
    int fitted = 0, refused = 0;
    rig_job(&job, rig_small);
    request_for(&job, "cpu-4gb", &preset, &request);
    for (int64_t budget = (int64_t)256 << 20; budget > OVERHEAD; budget = budget * 9 / 10) {
        struct plan plan;
        request.budget = budget;
        enum plim_status status = plan_search(&request, &plan, &err);
        if (status == PLIM_OK) {
            assert_true(plan.fits && plan.total <= budget);
            assert_int_equal(plan.knobs.micro_batch * plan.knobs.accumulation, request.rows);
            assert_int_equal(refused, 0); /* once it does not fit, less does not fit either */
            /* Where parameters come from the disk, what fits is a matter of single layers. */
            double edge = plan.knobs.param_tier == TIER_DEVICE ? 0.98 : 0.9;
            if (plan.step_seconds < slower * edge)
                fail_msg("%g s in %lld bytes, %g in more", plan.step_seconds, (long long)budget, slower);
            slower = plan.step_seconds;
            fitted++;
        } else {
            assert_int_equal(status, PLIM_NO_FIT);
            assert_non_null(strstr(err.text, "missing"));
            assert_true(plan.total > budget);
            refused++;
        }
        plan_release(&plan);
    }
    assert_true(fitted > 5 && refused > 0);
    job_release(&job);
}

static void test_pins_are_honoured(void **state)
{
    (void)state;
    static const char *const pins[] = {"training.micro_batch_size=2", "training.recompute=full",
                                       "training.loss_chunks=3", "training.state_tier=disk", NULL};
    struct job job;
    struct preset preset;
    struct plan_request request;
    struct plan plan;
    rig_job(&job, rig_small);
    for (int i = 0; pins[i]; i++) assert_int_equal(job_set(&job, pins[i], NULL, &err), PLIM_OK);
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    request_for(&job, "cpu-4gb", &preset, &request);
    request.budget = (int64_t)1 << 30;
    assert_int_equal(plan_search(&request, &plan, &err), PLIM_OK);
    assert_int_equal(plan.knobs.micro_batch, 2);
    assert_int_equal(plan.knobs.recompute, RECOMPUTE_FULL);
    assert_int_equal(plan.knobs.loss_chunks, 3);
    assert_int_equal(plan.knobs.state_tier, TIER_DISK);
    plan_release(&plan);
    request.pins.micro_batch = 3; /* does not divide 16 */
    assert_int_equal(plan_search(&request, &plan, &err), PLIM_BAD_INPUT);
    plan_release(&plan);
    job_release(&job);
}

/* One layer fewer recomputed in full, with the loss cut as finely as can be, does not fit or is no faster. */
static void test_fewest_layers_are_remade(void **state)
{
    (void)state;
    int seen = 0, between = 0;
    struct job job;
    struct preset preset;
    struct plan_request request;
    rig_job(&job, rig_llama_1b);
    request_for(&job, "h200", &preset, &request);
    request.overhead = 600 << 20;
    for (int64_t gib = 10; gib <= 28; gib += EVERY > 1 ? 3 : 1) {
        struct plan plan, tighter;
        request.budget = gib << 30;
        if (plan_search(&request, &plan, &err) != PLIM_OK) fail_msg("%lld GiB: %s", (long long)gib, err.text);
        int layers = plan.knobs.full_layers;
        if (plan.knobs.recompute == RECOMPUTE_SELECTIVE && layers > 0) {
            struct knobs less = plan.knobs;
            less.full_layers = layers - 1;
            less.loss_chunks = 4096;
            assert_int_equal(plan_make(&request, &less, &tighter, &err), PLIM_OK);
            if (tighter.fits && tighter.step_seconds < plan.step_seconds * 0.999)
                fail_msg("%lld GiB: %d layers, but %d fit and are faster", (long long)gib, layers,
                         layers - 1);
            plan_release(&tighter);
            seen++, between += layers % (request.layers / 4) != 0;
        }
        plan_release(&plan);
    }
    assert_true(seen > 2 && between > 0);
    job_release(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_are_sound_and_tight),
        cmocka_unit_test(test_search_obeys_the_budget),
        cmocka_unit_test(test_pins_are_honoured),
        cmocka_unit_test(test_fewest_layers_are_remade),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
