/* run-tests: long, not=asan, not=tsan */
/* test_search.c - the corners of the search: odd batches, pins that exclude each other, budgets at the edge. */
#include "plan/search.h"
#include "support/job_rig.h"
#include "support/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
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
    for (int64_t more = -1; more < 300000; more = more < 0 ? 0 : more * 3 / 2 * EVERY + 1) {
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

/* --- devices with their own memory --------------------------------------------------------------------------- */

static void ask_gpu(const char *device, const char *const *keys, const char *pin)
{
    rig_job(&job, keys);
    char text[256] = "";
    if (pin) snprintf(text, sizeof text, "%s", pin);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        assert_int_equal(job_set(&job, word, NULL, &err), PLIM_OK);
    assert_int_equal(job_finish(&job, &err), PLIM_OK);
    assert_int_equal(preset_find(device, &preset, &err), PLIM_OK);
    job_request(&job, &preset.facts, OVERHEAD, &request);
}

static int64_t naive_total(void)
{
    struct knobs naive = knobs_naive(&request);
    struct plan_bound bound;
    assert_int_equal(plan_bound_of(&request, &naive, NULL, &bound, &err), PLIM_OK);
    return bound.total;
}

static void must_be_sound(const struct plan *plan)
{
    assert_true(plan->fits && plan->total <= request.budget);
    assert_true(request.host_budget == 0 || plan->host <= request.host_budget);
    assert_int_equal(tape_verify(&plan->tape, &err), PLIM_OK);
    assert_int_equal(layout_verify(&plan->tape, &plan->layout, &err), PLIM_OK);
}

/* Less memory is not faster through every placement there is, but for what a plan that offloads must gain to be taken. */
static void must_not_be_faster(const char *device, bool global_norm)
{
    double slowest = 0, edge = PLAN_DOUBT - 1;
    int fitted = 0, placements = 0;
    struct knobs last = {0};
    ask_gpu(device, rig_llama_1b, NULL);
    request.needs_global_norm = global_norm;
    int64_t fixed = (int64_t)preset.facts.overhead_bytes, above = naive_total() - fixed;
    for (;; above = above * (EVERY > 1 ? 6 : SOME > 1 ? 7 : 9) / 10) {
        struct plan plan;
        request.budget = fixed + above;
        enum plim_status status = search(&plan);
        if (status == PLIM_OK) {
            must_be_sound(&plan);
            if (plan.step_seconds < slowest * (1 - edge))
                fail_msg("%s: in %lld bytes a step takes %g s, in more %g", device, (long long)request.budget,
                         plan.step_seconds, slowest);
            slowest = plan.step_seconds > slowest ? plan.step_seconds : slowest;
            placements += !fitted || last.state_tier != plan.knobs.state_tier ||
                          last.grad_tier != plan.knobs.grad_tier || last.param_tier != plan.knobs.param_tier;
            last = plan.knobs, fitted++;
        }
        plan_release(&plan);
        if (status == PLIM_OK) continue;
        assert_int_equal(status, PLIM_NO_FIT);
        break;
    }
    assert_true(fitted > 10 / SOME && placements >= 3);
    job_release(&job);
}

static void test_less_is_not_faster(void **state)
{
    (void)state;
    must_not_be_faster("rtx-4090", 0);
    must_not_be_faster("h200", 1);
    if (SOME > 1) return;
    must_not_be_faster("rtx-4090", 1);
    must_not_be_faster("h200", 0);
}

/* Half of a batch carries its gradients from part to part, the whole does not: where half does not fit, it may. */
static void test_the_whole_batch_may_fit(void **state)
{
    (void)state;
    struct plan plan;
    int64_t total[2];
    ask_gpu("h200", rig_llama_1b,
            "training.batch_size=4 training.max_grad_norm=1 training.offload_layers=0 "
            "training.recompute=selective");
    for (int parts = 1; parts <= 2; parts++) {
        struct knobs k = knobs_naive(&request);
        struct plan_bound bound;
        k.recompute = RECOMPUTE_SELECTIVE, k.micro_batch = 4 / parts, k.accumulation = parts;
        k.loss_chunks = 16 / parts;
        assert_int_equal(plan_bound_of(&request, &k, NULL, &bound, &err), PLIM_OK);
        total[parts - 1] = bound.total;
    }
    assert_true(total[0] < total[1]);
    request.budget = total[0] + (1 << 20);
    assert_int_equal(search(&plan), PLIM_OK);
    must_be_sound(&plan);
    assert_int_equal(plan.knobs.micro_batch, 4);
    plan_release(&plan);
    job_release(&job);
}

/* Parameters that stream are fetched early, and late only where early ones do not fit. */
static void test_late_fetches_are_a_last_resort(void **state)
{
    (void)state;
    int early = 0, late = 0;
    ask_gpu("h200", rig_llama_70b, "training.param_tier=host training.state_tier=host");
    for (int64_t mib = 13000; mib > 0; mib = mib * (SOME > 1 ? 90 : 98) / 100) {
        struct plan plan;
        struct plan_bound bound;
        request.budget = mib << 20;
        if (search(&plan) != PLIM_OK) {
            plan_release(&plan);
            break;
        }
        must_be_sound(&plan);
        bool is_late = plan.knobs.prefetch_ops == PREFETCH_LEAST;
        *(is_late ? &late : &early) += 1;
        struct knobs other = plan.knobs;
        other.prefetch_ops = PREFETCH_AHEAD;
        assert_int_equal(plan_bound_of(&request, &other, NULL, &bound, &err), PLIM_OK);
        assert_true(!is_late || bound.total > request.budget || bound.step_seconds > plan.step_seconds);
        plan_release(&plan);
    }
    assert_true(early > 0 && late > 0);
    job_release(&job);
}

/* The buffers of an update by the device are the peak here: who lets the host update fits in less. */
static void test_updates_by_the_host_make_room(void **state)
{
    (void)state;
    struct plan plan;
    ask_gpu("l4", rig_llama_1b,
            "data.max_length=64 training.batch_size=1 model.num_layers=32 model.hidden_size=4096 "
            "model.intermediate_size=11008 model.vocab_size=32000 model.num_key_value_heads=32 "
            "model.tie_word_embeddings=false");
    request.needs_global_norm = false;
    struct knobs k = {.micro_batch = 1,
                      .accumulation = 1,
                      .recompute = RECOMPUTE_FULL,
                      .loss_chunks = 1,
                      .optimizer_in_backward = true,
                      .state_tier = TIER_HOST,
                      .state_share = OFFLOAD_SHARES,
                      .param_tier = TIER_HOST,
                      .param_share = OFFLOAD_SHARES};
    struct plan_bound device, host;
    assert_int_equal(plan_bound_of(&request, &k, NULL, &device, &err), PLIM_OK);
    k.host_share = OFFLOAD_SHARES;
    assert_int_equal(plan_bound_of(&request, &k, NULL, &host, &err), PLIM_OK);
    assert_true(host.total < device.total);
    request.budget = host.total + (device.total - host.total) / 8;
    assert_int_equal(search(&plan), PLIM_OK);
    must_be_sound(&plan);
    assert_true(plan.knobs.host_share > 0);
    plan_release(&plan);
    job_release(&job);
}

/* The host's line holds as the device's does, and who breaks it is told its name. */
static void test_host_budget(void **state)
{
    (void)state;
    int by_host = 0, parts = 0;
    ask_gpu("h200", rig_llama_1b, NULL);
    request.needs_global_norm = true;
    for (int64_t gib = 32; gib >= 2; gib /= SOME > 1 ? 4 : 2)
        for (int64_t host = OVERHEAD; host < (int64_t)24 << 30; host = host * 3 + ((int64_t)1 << 30)) {
            struct plan plan;
            request.budget = gib << 30, request.host_budget = host;
            enum plim_status status = search(&plan);
            if (status == PLIM_OK) {
                must_be_sound(&plan);
            } else {
                assert_int_equal(status, PLIM_NO_FIT);
                assert_int_equal(strstr(err.text, "host_budget") != NULL, plan.total <= request.budget);
                by_host += plan.total <= request.budget;
            }
            plan_release(&plan);
        }
    assert_true(by_host > 0);
    /* What a part of the state needs is enough where all of it would not fit. */
    for (int64_t gib = 18; gib >= 3; gib -= SOME) {
        struct plan all, part;
        request.budget = gib << 30, request.host_budget = 0;
        assert_int_equal(search(&all), PLIM_OK);
        request.host_budget = all.host;
        assert_int_equal(search(&part), PLIM_OK);
        must_be_sound(&part);
        parts += all.knobs.state_share < OFFLOAD_SHARES;
        plan_release(&part);
        plan_release(&all);
    }
    assert_true(parts > 0);
    job_release(&job);
    /* It is of no meaning where the device's memory is the host's. */
    ask(16, 1, (int64_t)1 << 30);
    struct plan plan;
    request.host_budget = 1;
    assert_int_equal(search(&plan), PLIM_OK);
    plan_release(&plan);
    job_release(&job);
}

/* Updates before the norm, pinned or found: found only where clipping is known to bind seldom, never with several micro-batches, and only
 * where they are faster. They take as much again of the host for their part of the state. */
static void test_updates_before_the_norm(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "training.batch_size=4 training.max_grad_norm=1 training.grad_dtype=bf16",
        "training.batch_size=4 training.max_grad_norm=1 training.grad_dtype=bf16",
        "training.batch_size=4 training.max_grad_norm=1 training.grad_dtype=bf16 "
        "training.update_before_norm=0.5",
        "training.batch_size=4 training.max_grad_norm=1 training.grad_dtype=bf16 "
        "training.update_before_norm=1 "
        "training.micro_batch_size=1"};
    double seconds[3];
    for (int k = 0; k < 4; k++) {
        struct plan plan;
        ask_gpu("h200", rig_llama_1b, keys[k]);
        assert_false(request.clips_seldom);
        request.clips_seldom = k == 1;
        request.budget = (int64_t)10 << 30;
        assert_int_equal(search(&plan), k < 3 ? PLIM_OK : PLIM_BAD_INPUT);
        const struct knobs *knobs = &plan.knobs;
        if (k == 0) assert_int_equal(knobs->before_norm_share, 0);
        if (k == 2) assert_int_equal(knobs->before_norm_share, OFFLOAD_SHARES / 2);
        if (k < 3 && knobs->before_norm_share) {
            struct knobs without = *knobs;
            struct plan_bound b;
            without.before_norm_share = 0;
            assert_int_equal(plan_bound_of(&request, &without, NULL, &b, &err), PLIM_OK);
            assert_true(knobs->optimizer_in_forward && knobs->accumulation == 1 &&
                        knobs->grad_tier == TIER_HOST);
            assert_true(b.host < plan.host && knobs->host_share > 0);
            must_be_sound(&plan);
        }
        if (k < 3) seconds[k] = plan.step_seconds;
        plan_release(&plan);
        job_release(&job);
    }
    assert_true(seconds[1] < 0.95 * seconds[0] && seconds[1] <= seconds[2] * 1.001);
}

struct tiers {
    int state, grad, param;
};

static bool is_there(const struct knobs *k, struct tiers at)
{
    return k->state_tier == at.state && k->grad_tier == at.grad && k->param_tier == at.param &&
           k->state_share == (at.state == TIER_DEVICE ? 0 : OFFLOAD_SHARES) &&
           k->param_share == (at.param == TIER_DEVICE ? 0 : OFFLOAD_SHARES) &&
           (at.state != TIER_DEVICE || k->host_share == 0);
}

/* A pin moves what it names and nothing else, as long as there is room. */
static void test_pins_move_only_what_they_name(void **state)
{
    (void)state;
    static const struct {
        const char *pin;
        struct tiers at;
    } cases[] = {
        {"training.grad_tier=host training.state_tier=device", {TIER_DEVICE, TIER_HOST, TIER_DEVICE}},
        {"training.param_tier=host", {TIER_HOST, TIER_DEVICE, TIER_HOST}}, /* their state goes first */
        {"training.param_tier=host training.state_tier=device", {TIER_DEVICE, TIER_DEVICE, TIER_HOST}},
        {"training.state_tier=host", {TIER_HOST, TIER_DEVICE, TIER_DEVICE}},
        {"training.host_update=0.25", {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE}},
        {"training.grad_tier=device training.max_grad_norm=1", {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct plan plan;
        ask_gpu("h200", rig_llama_1b, cases[k].pin);
        assert_int_equal(search(&plan), PLIM_OK);
        must_be_sound(&plan);
        assert_true(is_there(&plan.knobs, cases[k].at));
        plan_release(&plan);
        job_release(&job);
    }
}

/* Memory that is there is used first: where a plan without offloading is at most a tenth slower, nothing leaves the device. Where
 * state must leave, parameters that have room stay. */
static void test_memory_that_is_there_is_used_first(void **state)
{
    (void)state;
    static const struct {
        const char *device, *pin;
        double gib; /* 0: all that the device has */
        bool state;
    } cases[] = {{"h200", "training.max_grad_norm=0", 35.5, false},
                 {"h200", "training.max_grad_norm=0", 24, false},
                 {"h200", "training.max_grad_norm=1", 21.5, false},
                 {"a100-80", "training.max_grad_norm=0", 0, false},
                 {"l4", "training.max_grad_norm=0 training.batch_size=1 data.max_length=512", 0, false},
                 {"rtx-4090", "training.max_grad_norm=1", 0, false},
                 {"h200", "training.max_grad_norm=1", 8, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan;
        ask_gpu(cases[i].device, rig_llama_1b, cases[i].pin);
        request.budget = (int64_t)preset.facts.memory_bytes;
        if (cases[i].gib > 0) request.budget = (int64_t)(cases[i].gib * (1 << 30));
        assert_int_equal(search(&plan), PLIM_OK);
        must_be_sound(&plan);
        if ((plan.knobs.state_share > 0) != cases[i].state || plan.knobs.param_share ||
            (plan.knobs.offload_layers && !cases[i].state))
            fail_msg(
                "%s, %g GiB: %lld parts of the state, %lld of the parameters, %lld layers leave; %lld bytes",
                cases[i].device, cases[i].gib, (long long)plan.knobs.state_share,
                (long long)plan.knobs.param_share, (long long)plan.knobs.offload_layers,
                (long long)plan.total);
        plan_release(&plan);
        job_release(&job);
    }
}

/* Where there is no room, the pinned one still stays where it is and the others go. */
static void test_pins_hold_when_it_is_tight(void **state)
{
    (void)state;
    static const char *const pins[] = {"training.host_update=0.25", "training.param_tier=device",
                                       "training.grad_tier=device", "training.state_tier=device",
                                       "training.grad_tier=host"};
    for (size_t k = 0; k < sizeof pins / sizeof *pins; k++)
        for (int64_t gib = 20 - (int64_t)k % SOME * 4; gib >= 3; gib -= 4 * SOME) {
            struct plan plan;
            ask_gpu("rtx-4090", rig_llama_1b, pins[k]);
            request.budget = gib << 30;
            enum plim_status status = search(&plan);
            assert_true(status == PLIM_OK || status == PLIM_NO_FIT);
            if (status == PLIM_OK) must_be_sound(&plan);
            const struct knobs *knobs = &plan.knobs, *p = &request.pins;
            assert_true(p->state_tier == KNOB_OPEN || p->state_tier == knobs->state_tier);
            assert_true(p->grad_tier == KNOB_OPEN || p->grad_tier == knobs->grad_tier);
            assert_true(p->param_tier == KNOB_OPEN || p->param_tier == knobs->param_tier);
            if (p->host_share != KNOB_OPEN && status == PLIM_OK)
                assert_int_equal(knobs->host_share, knobs->state_tier == TIER_HOST ? 4 : 0);
            plan_release(&plan);
            job_release(&job);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_batches),
        cmocka_unit_test(test_pins_that_exclude_each_other),
        cmocka_unit_test(test_edge_of_the_budget),
        cmocka_unit_test(test_far_state_with_updates_inside),
        cmocka_unit_test(test_full_is_not_always_least),
        cmocka_unit_test(test_less_is_not_faster),
        cmocka_unit_test(test_the_whole_batch_may_fit),
        cmocka_unit_test(test_late_fetches_are_a_last_resort),
        cmocka_unit_test(test_updates_by_the_host_make_room),
        cmocka_unit_test(test_host_budget),
        cmocka_unit_test(test_updates_before_the_norm),
        cmocka_unit_test(test_pins_move_only_what_they_name),
        cmocka_unit_test(test_memory_that_is_there_is_used_first),
        cmocka_unit_test(test_pins_hold_when_it_is_tight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
