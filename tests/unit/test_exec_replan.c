/* test_exec_replan.c - plans that change between two steps on a device with its own memory: state and parameters leave for the
 * host tier and come back, a re-plan is refused, a checkpoint is saved and read with parameters away. The device is a fake
 * (support/fake_device.h); the losses must be the CPU's, bit for bit. */
/* run-tests: long */
#define _GNU_SOURCE /* nftw */
#include "train/checkpoint.h"
#include "tier_run.h"

#include <ftw.h>

/* The budget falls below the state and rises again: state goes to the host tier and comes back,
 * of the largest tensors in more than one piece. */
static void test_replan_between_tiers(void **state)
{
    (void)state;
    struct run cpu, run;
    struct fake *f = fake_open(LATE_STORES);
    on_the_cpu(&cpu, "model.intermediate_size=768");
    must(run_open(&run, &f->device, "model.intermediate_size=768", false));
    struct trainer *t = run.trainer;
    int64_t roomy = t->runtime.request.budget, arena = t->runtime.plan.layout.arena_bytes;
    for (int step = 0; step < STEPS; step++) {
        struct train_event event = {0};
        bool finished;
        int64_t budget = step == 1 ? arena * 9 / 10 : roomy;
        if (step) must(trainer_replan(t, budget, &err));
        assert_int_equal(t->runtime.plan.knobs.state_tier, step == 1 ? TIER_HOST : TIER_DEVICE);
        assert_int_equal(f->host_bytes, t->runtime.plan.layout.tier_bytes[TIER_HOST]);
        must(trainer_step(t, &event, &finished, &err));
        run.loss[step] = event.loss;
        assert_true(ledger_current(f->device.ledger[TIER_DEVICE]) <= (uint64_t)budget);
    }
    assert_int_equal(f->freed, 2 * 3); /* of the two plans that went */
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

/* A re-plan that fails when state is on the host already: the old plan goes on, and the host tier is as small as it was. */
static void test_replan_refused(void **state)
{
    (void)state;
    struct run cpu, run;
    struct fake *f = fake_open(LATE_STORES);
    on_the_cpu(&cpu, "");
    must(run_open(&run, &f->device, "", false));
    struct trainer *t = run.trainer;
    for (int step = 0; step < STEPS; step++) {
        struct train_event event = {0};
        bool finished;
        if (step == 1) {
            f->refuse = true;
            assert_int_equal(trainer_replan(t, t->runtime.plan.layout.arena_bytes * 9 / 10, &err),
                             PLIM_NO_MEMORY);
            assert_false(t->runtime.torn);
            assert_int_equal(f->host_bytes, 0);
        }
        must(trainer_step(t, &event, &finished, &err));
        run.loss[step] = event.loss;
    }
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

/* --- parameters come and go --------------------------------------------------------------------------------- */

enum { LONG = 6 }; /* steps */

/* What a run of some steps shows: training and validation losses. */
struct record {
    double loss[LONG], eval[LONG];
};

static void step_and_evaluate(struct trainer *t, int step, struct record *out)
{
    struct train_event event = {0};
    bool finished;
    int64_t tokens;
    must(trainer_step(t, &event, &finished, &err));
    out->loss[step] = event.loss;
    must(trainer_evaluate(t, &out->eval[step], &tokens, &err));
    assert_true(tokens > 0);
}

static void same_records(const struct record *a, const struct record *b, int from, const char *what)
{
    for (int i = from; i < LONG; i++)
        if (a->loss[i] != b->loss[i] || a->eval[i] != b->eval[i])
            fail_msg("%s, step %d: %.17g and %.17g, not %.17g and %.17g", what, i + 1, b->loss[i], b->eval[i],
                     a->loss[i], a->eval[i]);
}

/* Keys of a run with validation data. Gradients stay, so that parameters are what leaves after the state. */
static void long_keys(char *keys, size_t size, const char *more)
{
    snprintf(keys, size, "training.steps=%d training.grad_tier=device training.eval_rows=6 %s %s", LONG,
             rig_validation, more);
}

static void long_run_on_the_cpu(const char *more, struct record *out)
{
    char keys[512];
    struct device *cpu;
    struct run run;
    long_keys(keys, sizeof keys, more);
    must(device_cpu_open(NULL, 2, &cpu, &err));
    must(run_open(&run, cpu, keys, false));
    for (int i = 0; i < LONG; i++) step_and_evaluate(run.trainer, i, out);
    run_close(&run, cpu);
}

/* The largest and the smallest budget, of a falling row of them, at which parameters are away: the fewest and the most
 * that the planner ever sends. Both are 0 where it sends none. */
static void budgets_without_parameters(const struct trainer *t, int64_t *largest, int64_t *smallest)
{
    struct plan_request request = t->runtime.request;
    *largest = *smallest = 0;
    for (request.budget = t->runtime.plan.total; request.budget > t->runtime.plan.total / 16;
         request.budget -= t->runtime.plan.total / (EVERY > 1 ? 24 : 64)) {
        struct plan plan;
        if (plan_search(&request, &plan, &err) == PLIM_OK && plan.knobs.param_share > 0) {
            *smallest = request.budget;
            if (!*largest) *largest = request.budget;
        }
        plan_release(&plan);
    }
}

static void move_parameters(enum fake_timing timing, const char *more, const struct record *cpu)
{
    char keys[512];
    struct run run;
    struct record seen;
    struct fake *f = fake_open(timing);
    long_keys(keys, sizeof keys, more);
    must(run_open(&run, &f->device, keys, false));
    struct trainer *t = run.trainer;
    int64_t roomy = t->runtime.request.budget, some, most;
    budgets_without_parameters(t, &some, &most);
    assert_true(some > most && most > 0);
    const int64_t budgets[LONG] = {roomy, some, most, some, roomy, most};
    for (int i = 0; i < LONG; i++) {
        if (i) must(trainer_replan(t, budgets[i], &err));
        const struct knobs *k = &t->runtime.plan.knobs;
        assert_int_equal(k->param_tier, budgets[i] == roomy ? TIER_DEVICE : TIER_HOST);
        assert_int_equal(f->host_bytes, t->runtime.plan.layout.tier_bytes[TIER_HOST]);
        must(layout_verify(&t->runtime.plan.tape, &t->runtime.plan.layout, &err));
        step_and_evaluate(t, i, &seen);
        assert_true(ledger_current(f->device.ledger[TIER_DEVICE]) <= (uint64_t)budgets[i]);
    }
    assert_true(f->copies > 0);
    run_close(&run, &f->device);
    same_records(cpu, &seen, 0, keys);
}

/* The budget falls below the parameters and rises again, with evaluations between: they leave, in part and nearly all,
 * and come back; nobody sees a difference. */
static void test_replan_moves_parameters(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "training.host_update=1", "training.host_update=0",
        "training.host_update=0.5 model.tie_word_embeddings=false training.mixed_precision=fp32"};
    for (int k = 0; k < 3; k += (EVERY > 10 ? 3 : 1)) {
        struct record cpu;
        long_run_on_the_cpu(keys[k], &cpu);
        for (int timing = k % EVERY; timing < FAKE_TIMINGS; timing += EVERY)
            move_parameters((enum fake_timing)timing, keys[k], &cpu);
    }
}

/* Pins that send parameters away before the state, or keep the state: a smaller and a larger budget find their way, too. */
static void test_replan_with_pins(void **state)
{
    (void)state;
    static const char *const pins[] = {"training.param_tier=host", "training.state_tier=device",
                                       "training.grad_tier=host"};
    for (int k = 0; k < 3; k++) {
        struct run run;
        struct fake *f = fake_open(LATE_STORES);
        must(run_open(&run, &f->device, pins[k], false));
        int64_t roomy = run.trainer->runtime.plan.total;
        for (int64_t budget = roomy; budget > roomy / 4; budget -= roomy / 24 * EVERY) {
            enum plim_status status = trainer_replan(run.trainer, budget, &err);
            if (status != PLIM_OK && status != PLIM_NO_FIT) fail_msg("%s: %s", pins[k], err.text);
        }
        must(trainer_replan(run.trainer, roomy, &err));
        run_close(&run, &f->device);
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

/* Saved with parameters away, resumed with them away, near, and on the CPU. */
static void test_checkpoint_of_far_parameters(void **state)
{
    (void)state;
    enum { SAVED = 2, RUNS = 3 };
    static const char *others[] = {"training.device"};
    const struct string_list accepted = {others, 1};
    static const char *const placed[RUNS] = {"training.state_tier=host training.param_tier=host", "", ""};
    char folder[300], keys[512], more[400], path[512];
    struct record cpu, seen;
    struct run run;
    snprintf(folder, sizeof folder, "%s-saved", strchr(rig_corpus, '=') + 1);
    long_run_on_the_cpu("", &cpu);
    for (int r = -1; r < RUNS; r++) {
        struct fake *f = fake_open(LATE_STORES);
        struct device *device = &f->device;
        if (r == 2) {
            device->ops->close(device);
            must(device_cpu_open(NULL, 2, &device, &err));
        }
        snprintf(more, sizeof more, "output.dir=%s %s", folder, placed[r < 0 ? 0 : r]);
        long_keys(keys, sizeof keys, more);
        must(run_open_with(&run, device, keys,
                           (struct train_options){.resume = r >= 0, .accepted = &accepted}));
        assert_int_equal(run.trainer->step, r < 0 ? 0 : SAVED);
        for (int i = (int)run.trainer->step; i < (r < 0 ? SAVED : LONG); i++)
            step_and_evaluate(run.trainer, i, &seen);
        if (r < 0) must(checkpoint_save(run.trainer, path, sizeof path, &err));
        run_close(&run, device);
        if (r >= 0) same_records(&cpu, &seen, SAVED, keys);
    }
    assert_int_equal(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replan_between_tiers),    cmocka_unit_test(test_replan_refused),
        cmocka_unit_test(test_replan_moves_parameters), cmocka_unit_test(test_checkpoint_of_far_parameters),
        cmocka_unit_test(test_replan_with_pins),
    };
    return cmocka_run_group_tests(tests, rig_corpus_make, rig_corpus_drop);
}
