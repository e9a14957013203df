/* run-tests: not=tsan */
/* test_search_ranks.c - the search for several ranks: how much work it takes, what it finds, and what its bounds rely on. */
#include "job/cluster.h"
#include "plan/oracle.h"
#include "plan/search.h"
#include "support/job_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)

static struct plim_error err;
static struct job job;
static struct preset preset;
static struct plan_request request;

static const char *const llama_70b[] = {RIG_SHAPE_70B,
                                        "model.tie_word_embeddings=false",
                                        "data.max_length=4096",
                                        "training.batch_size=1",
                                        "training.gradient_accumulation_steps=4",
                                        "training.mixed_precision=bf16",
                                        NULL};
static const char *const small[] = {"model.architecture=llama",
                                    "model.vocab_size=16384",
                                    "model.hidden_size=1024",
                                    "model.intermediate_size=2816",
                                    "model.num_layers=3",
                                    "model.num_attention_heads=16",
                                    "model.num_key_value_heads=4",
                                    "data.max_length=1024",
                                    "training.batch_size=4",
                                    "training.mixed_precision=bf16",
                                    NULL};

static void open_job(const char *const *keys, struct cluster cluster)
{
    err = (struct plim_error){0};
    rig_job(&job, keys);
    assert_int_equal(preset_find("h100", &preset, &err), PLIM_OK);
    assert_int_equal(cluster_apply(&cluster, &preset.facts, &err), PLIM_OK);
    job_request(&job, &preset.facts, OVERHEAD, &request);
    request.budget = (int64_t)preset.facts.memory_bytes;
}

/* Planning LLaMA-70B, and what a step of the plan may take. */
static const struct {
    struct cluster cluster;
    double seconds;
} large[] = {
    {{.ranks = 1024, .nodes = 128}, 94.5},
    {{.ranks = 1024, .nodes = 128, .link = "nvlink", .network = "400g"}, 24.1},
    {{.ranks = 8}, 46.5},
};

/* Ops of tapes, of which 0.6 M are planned in less than 270 ms. */
#define WORK_MOST 600000

static void test_work_is_bounded(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        struct plan plan;
        open_job(llama_70b, large[i].cluster);
        assert_int_equal(plan_search(&request, &plan, &err), PLIM_OK);
        print_message("# %lld ranks: %lld ops built, %.2f s a step\n", (long long)large[i].cluster.ranks,
                      (long long)plan.search.work, plan.step_seconds);
        assert_true(plan.search.work < WORK_MOST);
        assert_true(plan.step_seconds < large[i].seconds);
        plan_release(&plan);
        job_release(&job);
    }
}

/* The opening bound of a box counts the exchanges of one update for all: they are the same whatever is offloaded. */
static void check_exchanges(const struct space *space, struct oracle *oracle, int place)
{
    struct point p = {.at[AXIS_PLACE] = place};
    struct exchange_seconds first = {0}, here;
    if (!space_count(space, AXIS_MICRO, &p)) return;
    for (; p.at[AXIS_SHARE] < space_count(space, AXIS_SHARE, &p); p.at[AXIS_SHARE] += 3)
        for (int u = 0; u < space_count(space, AXIS_UPDATER, &p); u++) {
            p.at[AXIS_UPDATER] = u;
            struct knobs k = space_knobs(space, &p);
            assert_int_equal(oracle_exchanges(oracle, &k, &here, &err), PLIM_OK);
            if (p.at[AXIS_SHARE] == 0 && u == 0) first = here;
            assert_true(fabs(here.update - first.update) <= 1e-9 * first.update);
            assert_true(here.loop >= first.loop * (1 - 1e-9));
        }
}

/* Of a point's updaters the first takes least of the device: no other is asked whether something fits. */
static void check_updaters(const struct space *space, struct oracle *oracle, int place)
{
    struct point p = {.at[AXIS_PLACE] = place};
    if (!space_count(space, AXIS_MICRO, &p)) return;
    for (; p.at[AXIS_SHARE] < space_count(space, AXIS_SHARE, &p); p.at[AXIS_SHARE] += 3)
        for (int r = 0; r < space_count(space, AXIS_RECOMPUTE, &p); r++) {
            struct plan_bound first = {0}, here;
            p.at[AXIS_RECOMPUTE] = r;
            for (int u = 0; u < space_count(space, AXIS_UPDATER, &p); u++) {
                p.at[AXIS_UPDATER] = u;
                struct knobs k = space_knobs(space, &p);
                assert_int_equal(oracle_ask(oracle, &k, &here, &err), PLIM_OK);
                if (u == 0) first = here;
                assert_true(here.total >= first.total);
            }
        }
}

static void for_each_place(struct cluster cluster,
                           void (*check)(const struct space *, struct oracle *, int place))
{
    struct space space;
    struct oracle oracle;
    open_job(small, cluster);
    assert_int_equal(space_init(&space, &request, &err), PLIM_OK);
    oracle_init(&oracle, &request);
    assert_true(space.nplaces > 2);
    for (int place = 0; place < space.nplaces; place++) check(&space, &oracle, place);
    oracle_release(&oracle);
    space_release(&space);
    job_release(&job);
}

static void test_exchanges_of_updates(void **state)
{
    (void)state;
    for_each_place((struct cluster){.ranks = 4}, check_exchanges);
    for_each_place((struct cluster){.ranks = 16, .nodes = 2}, check_exchanges);
}

static void test_the_first_updater_takes_least(void **state)
{
    (void)state;
    for_each_place((struct cluster){.ranks = 1}, check_updaters);
    for_each_place((struct cluster){.ranks = 16, .nodes = 2}, check_updaters);
}

/* The share of another place that offloads as much, or the next more. */
static void test_shares_of_other_places(void **state)
{
    struct space space;
    (void)state;
    open_job(small, (struct cluster){.ranks = 16, .nodes = 2});
    assert_int_equal(space_init(&space, &request, &err), PLIM_OK);
    for (int from = 0; from < space.nplaces; from++)
        for (int at = 0; at < space.shares[from].count; at++)
            for (int to = 0; to < space.nplaces; to++) {
                struct point p = {.at = {[AXIS_PLACE] = from, [AXIS_SHARE] = at}};
                int found = space_share(&space, &p, to), last = space.shares[to].count - 1;
                struct share wanted = space.shares[from].items[at], there = space.shares[to].items[found];
                assert_in_range(found, 0, last);
                assert_true(there.state + there.param >= wanted.state + wanted.param || found == last);
                if (from == to) assert_int_equal(found, at);
            }
    space_release(&space);
    job_release(&job);
}

/* Parameters leave the device in pieces alone: a tier that is pinned makes the stage 3, and is never dropped. */
static void test_a_pinned_tier_chooses_the_stage(void **state)
{
    struct plan plan;
    (void)state;
    open_job(small, (struct cluster){.ranks = 4});
    request.pins.param_tier = TIER_HOST;
    for (int pinned = 0; pinned < 2; pinned++) {
        if (pinned) request.pins.state_tier = TIER_HOST;
        assert_int_equal(plan_search(&request, &plan, &err), PLIM_OK);
        assert_int_equal(plan.knobs.zero, ZERO_PARAMS);
        assert_int_equal(plan.knobs.param_tier, TIER_HOST);
        assert_int_equal(plan.knobs.state_tier, TIER_HOST);
        plan_release(&plan);
    }
    job_release(&job);
}

static void must_name(const char *a, const char *b)
{
    struct plan plan;
    assert_int_equal(plan_search(&request, &plan, &err), PLIM_BAD_INPUT);
    char text[160];
    snprintf(text, sizeof text, "%s and %s exclude each other; remove one", a, b);
    assert_string_equal(err.text, text);
    plan_release(&plan);
    job_release(&job);
}

/* Of all that is pinned, the error names the keys that exclude each other. */
static void test_a_clash_is_named(void **state)
{
    const struct cluster four = {.ranks = 4};
    (void)state;
    for (int zero = ZERO_NONE; zero < ZERO_PARAMS; zero++) {
        open_job(small, four);
        request.pins.param_tier = request.pins.state_tier = TIER_HOST, request.pins.zero = zero;
        must_name("training.param_tier", "training.zero_stage");
    }
    open_job(small, four);
    request.pins.grad_tier = TIER_HOST, request.pins.zero = ZERO_NONE, request.pins.loss_chunks = 2;
    must_name("training.grad_tier", "training.zero_stage");
    open_job(small, four);
    request.pins.grad_tier = TIER_HOST, request.whole_grads = true;
    must_name("training.grad_tier", "training.zero.sum_gradients: step");
    open_job(small, four);
    request.pins.grad_tier = TIER_HOST, request.whole_grads = request.whole_state = true;
    must_name("training.grad_tier", "training.optimizer: adafactor");
    open_job(small, four);
    request.pins.zero = ZERO_STATE, request.whole_grads = request.whole_state = true;
    must_name("training.zero_stage", "training.optimizer: adafactor");
    open_job(small, four);
    request.pins.optimizer_in_backward = 1, request.pins.micro_batch = 1;
    must_name("training.micro_batch_size", "training.optimizer_in_backward");
}

/* Tapes that are large beside the arena: comparing plans takes more than a plan does. */
static const char *const long_tapes[] = {"model.architecture=smollm3",
                                         "model.vocab_size=4096",
                                         "model.hidden_size=8",
                                         "model.intermediate_size=24",
                                         "model.num_layers=8",
                                         "model.num_attention_heads=1",
                                         "model.num_key_value_heads=1",
                                         "adapter.type=dora",
                                         "adapter.r=4",
                                         "data.max_length=7",
                                         "training.batch_size=2",
                                         "training.mixed_precision=fp16",
                                         "training.optimizer=sgd",
                                         "training.max_grad_norm=0",
                                         "training.param_tier=disk",
                                         NULL};

/* The smallest plan, as a search without a line of its own states it, is found under just that line. */
static void test_a_stated_minimum_can_be_searched(void **state)
{
    struct plan plan;
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        const struct cluster cluster = {.ranks = ranks};
        rig_job(&job, long_tapes);
        assert_int_equal(preset_find("cpu-1gb", &preset, &err), PLIM_OK);
        if (ranks > 1) assert_int_equal(cluster_apply(&cluster, &preset.facts, &err), PLIM_OK);
        preset.facts.disk_bandwidth = 1e9;
        job_request(&job, &preset.facts, OVERHEAD, &request);
        request.budget = 1;
        if (plan_search(&request, &plan, &err) != PLIM_NO_FIT) fail_msg("%d ranks: %s", ranks, err.text);
        int64_t least = plan.total;
        plan_release(&plan);
        for (int64_t more = 0; more < 1 << 18; more = 3 * more + 4096) {
            request.budget = request.search_line = least + more;
            if (plan_search(&request, &plan, &err) != PLIM_OK) fail_msg("%d ranks: %s", ranks, err.text);
            assert_true(plan.total <= request.budget);
            plan_release(&plan);
        }
        job_release(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_is_bounded),
        cmocka_unit_test(test_exchanges_of_updates),
        cmocka_unit_test(test_the_first_updater_takes_least),
        cmocka_unit_test(test_shares_of_other_places),
        cmocka_unit_test(test_a_pinned_tier_chooses_the_stage),
        cmocka_unit_test(test_a_clash_is_named),
        cmocka_unit_test(test_a_stated_minimum_can_be_searched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
