/* run-tests: long, timeout=1800, not=asan, not=tsan */
/* test_search_proof.c - the search against every combination of knobs, on the fixed facts of five presets.
 *
 * Plans are compared by value: the predicted time, in which nothing that is offloaded counts as a gain, times PLAN_DOUBT where
 * something is (search.h).
 *
 *  a. The value is within 1 % of the best that fits, and something is found whenever something fits.
 *  b. More memory is never worth less, beyond 0.1 %. Memory that is there is used first.
 *  c. The order of the table's rows does not matter.
 *  d. No plan is slower than the one that the search before this one found (tests/golden/search/before.csv).
 *  e. The oracle's sums of parts are what whole tapes take, and work is bounded.
 */
#include "plan/oracle.h"
#include "plan/search.h"
#include "base/rng.h"
#include "support/job_rig.h"
#include "support/pace.h"
#include "support/search_jobs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)
#define BUDGETS  (70 / FEW)

/* Ops of tapes that planning LLaMA-70B may build, at any budget. */
#define WORK_70B 2000000

static struct plim_error err;

/* --- all combinations ------------------------------------------------------------------------------------------ */

static const char *const presets[] = {"cpu-4gb", "a10g", "rtx-4090", "h100", "h200"};
static const char *const jobs[] = {
    "training.max_grad_norm=1", "training.max_grad_norm=0 training.mixed_precision=bf16",
    "training.max_grad_norm=1 training.mixed_precision=bf16 training.grad_dtype=bf16 model.num_layers=2"};
enum { PRESETS = sizeof presets / sizeof *presets, JOBS = sizeof jobs / sizeof *jobs };

static const char *const model[] = {"model.architecture=llama",    "model.vocab_size=16384",
                                    "model.hidden_size=1024",      "model.intermediate_size=2816",
                                    "model.num_layers=3",          "model.num_attention_heads=16",
                                    "model.num_key_value_heads=4", "data.max_length=1024",
                                    "training.batch_size=4",       NULL};

struct outcome {
    int64_t total;
    double value;
    struct knobs knobs;
};

struct table {
    struct job job;
    struct preset preset;
    struct plan_request request;
    struct outcome *outcomes; /* by total; value and knobs: the best up to here */
    size_t count, cap;
};

static void open_job(struct table *t, const char *preset, const char *keys)
{
    char text[256];
    rig_job(&t->job, model);
    snprintf(text, sizeof text, "%s", keys);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        assert_int_equal(job_set(&t->job, word, NULL, &err), PLIM_OK);
    assert_int_equal(job_finish(&t->job, &err), PLIM_OK);
    assert_int_equal(preset_find(preset, &t->preset, &err), PLIM_OK);
    job_request(&t->job, &t->preset.facts, OVERHEAD, &t->request);
    t->request.host_budget = 0, t->request.clips_seldom = true;
}

static void close_job(struct table *t)
{
    free(t->outcomes);
    job_release(&t->job);
    *t = (struct table){0};
}

/* 0: nothing is offloaded, 1: state or activations, 2: parameters or gradients, too. The jobs pin nothing. */
static int far(const struct knobs *k)
{
    if (k->param_share || (k->grad_tier != TIER_DEVICE && !k->optimizer_in_forward)) return 2;
    return k->state_share || k->offload_layers;
}

/* What plans are compared by. */
static double value_of(struct oracle *oracle, const struct knobs *k, double seconds)
{
    static const double doubts[] = {1, PLAN_DOUBT, PLAN_DOUBT * PLAN_DOUBT};
    struct knobs home = *k;
    struct plan_bound b = {.step_seconds = 0};
    home.state_tier = TIER_DEVICE, home.state_share = home.host_share = home.offload_layers = 0;
    home.prefetch_ops = PREFETCH_AHEAD, home.optimizer_in_forward = home.before_norm_share = 0,
    home.grad_tier = TIER_DEVICE;
    if (far(k) == 1) assert_int_equal(oracle_ask(oracle, &home, &b, &err), PLIM_OK);
    return fmax(seconds, b.step_seconds) * doubts[far(k)];
}

static void keep(struct table *t, int64_t total, double value, const struct knobs *k)
{
    if (t->count == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 4096;
        t->outcomes = realloc(t->outcomes, t->cap * sizeof *t->outcomes);
        assert_non_null(t->outcomes);
    }
    t->outcomes[t->count++] = (struct outcome){total, value, *k};
}

/* Every value of every axis from `axis` on. */
static void try_all(struct table *t, const struct space *space, struct oracle *oracle, struct point *p,
                    int axis)
{
    if (axis == AXES) {
        struct plan_bound b;
        struct knobs k = space_knobs(space, p);
        assert_int_equal(oracle_ask(oracle, &k, &b, &err), PLIM_OK);
        keep(t, b.total, value_of(oracle, &k, b.step_seconds), &k);
        return;
    }
    for (p->at[axis] = 0; p->at[axis] < space_count(space, (enum axis_id)axis, p); p->at[axis]++)
        try_all(t, space, oracle, p, axis + 1);
    p->at[axis] = 0;
}

static int by_total(const void *a, const void *b)
{
    const struct outcome *x = a, *y = b;
    if (x->total != y->total) return x->total < y->total ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

static void fill(struct table *t)
{
    struct space space;
    struct oracle oracle;
    struct point p = {0};
    oracle_init(&oracle, &t->request);
    assert_int_equal(space_init(&space, &t->request, &err), PLIM_OK);
    try_all(t, &space, &oracle, &p, 0);
    oracle_release(&oracle);
    space_release(&space);
    qsort(t->outcomes, t->count, sizeof *t->outcomes, by_total);
    for (size_t i = 1; i < t->count; i++) {
        struct outcome *now = &t->outcomes[i];
        if (now->value > now[-1].value) now->value = now[-1].value, now->knobs = now[-1].knobs;
    }
}

/* The best of all whose bytes fit, NULL when there is none. */
static const struct outcome *best_within(const struct table *t, int64_t budget)
{
    const struct outcome *best = NULL;
    for (size_t i = 0; i < t->count && t->outcomes[i].total <= budget; i++) best = &t->outcomes[i];
    return best;
}

/* Bytes are a bound: at the very edge there may be no packing. */
static bool packs(const struct table *t, const struct outcome *best)
{
    struct plan plan;
    if (!best || plan_make(&t->request, &best->knobs, &plan, &err) != PLIM_OK) return false;
    bool fits = plan.fits;
    plan_release(&plan);
    return fits;
}

struct tally {
    int runs, fitted, missed, slower, faster_with_less, pairs;
    double worst, worst_pair;
};

/* The same plan with nothing offloaded does not fit, or takes longer than PLAN_DOUBT allows. */
static bool needs_offload(struct table *t, const struct plan *plan)
{
    struct knobs home = plan->knobs;
    struct plan_bound b;
    home.state_tier = home.grad_tier = home.param_tier = TIER_DEVICE;
    home.state_share = home.host_share = home.param_share = home.disk_share = home.offload_layers = 0;
    home.optimizer_in_forward = home.before_norm_share = 0;
    assert_int_equal(plan_bound_of(&t->request, &home, NULL, &b, &err), PLIM_OK);
    return b.total > t->request.budget || b.step_seconds > plan->step_seconds * PLAN_DOUBT;
}

/* Budgets from just below the smallest plan to just above the best. */
static void run_budgets(struct table *t, struct tally *tally)
{
    struct oracle oracle;
    int64_t least = t->outcomes[0].total, most = least;
    double before = INFINITY, end = t->outcomes[t->count - 1].value;
    oracle_init(&oracle, &t->request);
    for (size_t i = 0; i < t->count && t->outcomes[i].value > end; i++) most = t->outcomes[i].total;
    for (int i = -1; i < BUDGETS; i++) {
        struct plan plan;
        t->request.budget =
            least + (int64_t)((double)(most + most / 50 - least) * i / (BUDGETS - 1)) - (i < 0);
        const struct outcome *found = best_within(t, t->request.budget);
        double best = found ? found->value : INFINITY;
        enum plim_status status = plan_search(&t->request, &plan, &err);
        assert_true(status == PLIM_OK || status == PLIM_NO_FIT);
        tally->runs++, tally->fitted += status == PLIM_OK;
        tally->missed += status == PLIM_OK ? !found : packs(t, found);
        if (status == PLIM_OK) {
            double value = value_of(&oracle, &plan.knobs, plan.step_seconds);
            double over = value / best - 1, slower = value / before - 1;
            tally->slower += over > 0.01, tally->worst = fmax(tally->worst, over);
            if (isfinite(before)) tally->pairs++, tally->faster_with_less += slower > 0.001;
            if (isfinite(before)) tally->worst_pair = fmax(tally->worst_pair, slower);
            before = value;
            assert_true(plan.total <= t->request.budget);
            assert_true(!far(&plan.knobs) || needs_offload(t, &plan));
        }
        plan_release(&plan);
    }
    oracle_release(&oracle);
}

static void test_every_combination(void **state)
{
    (void)state;
    struct tally all = {0};
    for (int p = 0; p < PRESETS; p++)
        for (int j = 0; j < JOBS; j++) {
            struct table t = {0};
            struct tally one = {0};
            if ((p + JOBS * j) % FEW) continue; /* every job, each with another preset */
            open_job(&t, presets[p], jobs[j]);
            fill(&t);
            run_budgets(&t, &one);
            print_message("# %s, %s: %zu combinations, %d budgets, worst %.3f %%, worst pair %.3f %%\n",
                          presets[p], jobs[j], t.count, one.runs, 100 * one.worst, 100 * one.worst_pair);
            all.runs += one.runs, all.fitted += one.fitted, all.missed += one.missed,
                all.slower += one.slower;
            all.pairs += one.pairs, all.faster_with_less += one.faster_with_less;
            all.worst = fmax(all.worst, one.worst);
            close_job(&t);
        }
    print_message("# %d searches, %d fit, %d missed, %d beyond 1 %%; %d pairs, %d slower with more\n",
                  all.runs, all.fitted, all.missed, all.slower, all.pairs, all.faster_with_less);
    assert_int_equal(all.missed, 0);
    assert_int_equal(all.slower, 0);
    assert_int_equal(all.faster_with_less, 0);
    assert_true(SOME > 1 || (all.fitted >= 1000 && all.pairs >= 1000));
}

/* --- order, sums, work ------------------------------------------------------------------------------------------- */

static void shuffle(int order[AXES], uint64_t seed)
{
    for (int i = 0; i < AXES; i++) order[i] = i;
    for (int i = AXES - 1; i > 0; i--) {
        int k = (int)rng_below(seed, 0, (uint64_t)i, (uint64_t)i + 1), swap = order[i];
        order[i] = order[k], order[k] = swap;
    }
}

static void test_the_order_of_rows_does_not_matter(void **state)
{
    (void)state;
    for (int p = 0; p < PRESETS; p++) {
        struct table t = {0};
        open_job(&t, presets[p], jobs[p % JOBS]);
        struct knobs naive = knobs_naive(&t.request);
        struct plan_bound b;
        assert_int_equal(plan_bound_of(&t.request, &naive, NULL, &b, &err), PLIM_OK);
        for (int tenth = 9; tenth > 2; tenth -= SOME) {
            struct plan plan, other;
            int64_t fixed =
                (int64_t)t.preset.facts.overhead_bytes + (t.preset.facts.unified_memory ? OVERHEAD : 0);
            t.request.budget = fixed + (b.total - fixed) * tenth / 10;
            enum plim_status status = plan_search(&t.request, &plan, &err);
            for (uint64_t seed = 1; seed <= (SOME > 1 ? 1 : 3); seed++) {
                int order[AXES];
                shuffle(order, seed + (uint64_t)tenth);
                assert_int_equal(plan_search_in(&t.request, order, &other, &err), status);
                assert_true(knobs_equal(&plan.knobs, &other.knobs));
                plan_release(&other);
            }
            plan_release(&plan);
        }
        close_job(&t);
    }
}

static void test_parts_add_up(void **state)
{
    (void)state;
    for (int p = 0; p < PRESETS; p++)
        for (int j = 0; j < JOBS; j++) {
            struct table t = {0};
            struct space space;
            struct oracle oracle;
            open_job(&t, presets[p], jobs[j]);
            oracle_init(&oracle, &t.request);
            assert_int_equal(space_init(&space, &t.request, &err), PLIM_OK);
            for (uint64_t i = 0; i < 400 / SOME; i++) {
                struct point at = {0};
                struct plan_bound sum, whole;
                for (int a = 0; a < AXES; a++)
                    at.at[a] = (int)rng_below(7, (uint64_t)a, i, (uint64_t)space_count(&space, a, &at));
                struct knobs k = space_knobs(&space, &at);
                assert_int_equal(oracle_ask(&oracle, &k, &sum, &err), PLIM_OK);
                assert_int_equal(plan_bound_of(&t.request, &k, NULL, &whole, &err), PLIM_OK);
                assert_int_equal(sum.total, whole.total);
                assert_int_equal(sum.host, whole.host);
                assert_true(fabs(sum.step_seconds - whole.step_seconds) <= 1e-9 * whole.step_seconds);
            }
            oracle_release(&oracle);
            space_release(&space);
            close_job(&t);
        }
}

/* --- against the search before ---------------------------------------------------------------------------------- */

/* Of one op: tapes look at their loss since. */
#define LAUNCH 1e-5

static void test_no_plan_is_slower_than_before(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/search/before.csv", "r");
    char line[160], name[96];
    int count = 0, faster = 0;
    int64_t most = 0;
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    for (int i = 0; i < search_job_count(); i++) {
        struct job job;
        struct preset preset;
        struct plan_request request;
        struct plan plan;
        int fits;
        double seconds;
        search_job_open(i, name, sizeof name, &job, &preset, &request);
        assert_non_null(fgets(line, sizeof line, file));
        assert_int_equal(strncmp(line, name, strlen(name)), 0);
        assert_int_equal(sscanf(line + strlen(name), ",%d,%lf", &fits, &seconds), 2);
        if (i % FEW == 0) {
            assert_int_equal(plan_search(&request, &plan, &err), fits ? PLIM_OK : PLIM_NO_FIT);
            if (fits && plan.step_seconds > seconds * (1 + 1e-6) + LAUNCH)
                fail_msg("%s: %g s, it was %g", name, plan.step_seconds, seconds);
            count++, faster += plan.step_seconds < 0.999 * seconds;
            if (strstr(name, "70b") && plan.search.work > most) most = plan.search.work;
            plan_release(&plan);
        }
        job_release(&job);
    }
    fclose(file);
    print_message("# %d jobs, %d of them faster; LLaMA-70B: at most %lld ops built\n", count, faster,
                  (long long)most);
    assert_true(SOME > 1 || count >= 100);
    assert_true(most < WORK_70B);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_add_up),
        cmocka_unit_test(test_every_combination),
        cmocka_unit_test(test_the_order_of_rows_does_not_matter),
        cmocka_unit_test(test_no_plan_is_slower_than_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
