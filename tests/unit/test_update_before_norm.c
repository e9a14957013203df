/* test_update_before_norm.c - updates that the host makes before the norm is known (tape/offload_pairs.c, exec/pairs.c): the bits of
 * updates after backward, on a device with its own memory (support/fake_device.h), whether clipping never binds, always or by turns,
 * whether steps are skipped, and whatever comes between two steps. */
/* run-tests: long, not=tsan */
#define _GNU_SOURCE /* nftw */
#include "pending_run.h"

#include <math.h>
#include <unistd.h>

#define WHOLE "training.micro_batch_size=8 "
#define BEFORE                                                                                               \
    WHOLE "training.state_tier=host training.grad_tier=host training.offload_layers=0 "                      \
          "training.optimizer_in_forward=true "

static void train_step(struct run *run, int step, event_between *between)
{
    struct trainer *t = run->trainer;
    struct train_event event = {0};
    bool finished;
    if (between) between(t, step);
    must(trainer_step(t, &event, &finished, &err));
    assert_true(finished);
    run->loss[step] = event.loss;
}

/* Trains step by step; returns the state at the end. Planned bytes are what is taken, of every tier. */
static double train(struct run *run, struct device *device, const char *keys, event_between *between)
{
    must(run_open(run, device, keys, false));
    struct runtime *rt = &run->trainer->runtime;
    bool guesses = strstr(keys, "update_before_norm") != NULL;
    assert_int_equal(rt->plan.knobs.before_norm_share > 0, guesses);
    for (int step = 0; step < STEPS; step++) {
        train_step(run, step, between);
        for (int tier = 0; tier < TIER_COUNT; tier++)
            if (rt->planned_peak[tier])
                assert_int_equal(runtime_ledger_peak(rt, (enum tier)tier), rt->planned_peak[tier]);
    }
    double state = state_of(run->trainer);
    run_close(run, device);
    return state;
}

static double train_on_cpu(struct run *run, const char *keys, event_between *between)
{
    struct device *cpu;
    char text[400];
    must(device_cpu_open(NULL, 2, &cpu, &err));
    snprintf(text, sizeof text, WHOLE "%s", keys);
    return train(run, cpu, text, between);
}

/* --- clipping -------------------------------------------------------------------------------------------------- */

static double *clip_of(struct trainer *t) { return &((struct job *)(uintptr_t)t->job)->training.clip; }
static void never(struct trainer *t, int) { *clip_of(t) = 1e6; }
static void always(struct trainer *t, int) { *clip_of(t) = 1e-2; }
static void first(struct trainer *t, int step) { *clip_of(t) = step ? 1e6 : 1e-2; }
static void second(struct trainer *t, int step) { *clip_of(t) = step == 1 ? 1e-2 : 1e6; }
static void last(struct trainer *t, int step) { *clip_of(t) = step == STEPS - 1 ? 1e-2 : 1e6; }

static event_between *const bindings[] = {never, always, first, second, last};
enum { BINDINGS = sizeof bindings / sizeof *bindings };

static const char *const shares[] = {
    "training.host_update=1 training.update_before_norm=1",
    "training.host_update=0.5 training.update_before_norm=1",
    "training.host_update=0.75 training.update_before_norm=0.5",
};
enum { SHARES = sizeof shares / sizeof *shares };

static void test_same_bits(void **state)
{
    (void)state;
    static const char *const maths[] = {
        "training.max_grad_norm=1",
        "training.max_grad_norm=1 training.grad_dtype=bf16 model.tie_word_embeddings=false",
        "training.max_grad_norm=1 training.mixed_precision=fp32 training.loss_chunks=2",
        "training.max_grad_norm=1 training.mixed_precision=fp16 training.weight_decay=0.1",
        "training.max_grad_norm=1 training.master_weights=none training.state_dtype=bf16",
        "training.max_grad_norm=1 training.optimizer=sgd training.recompute=full",
        "training.max_grad_norm=1 training.optimizer=sgd training.beta1=0",
    };
    for (size_t m = 0; m < sizeof maths / sizeof *maths; m++)
        for (int b = (int)m % EVERY; b < BINDINGS; b += EVERY) {
            struct run cpu, run;
            double want = train_on_cpu(&cpu, maths[m], bindings[b]);
            for (int k = (b + (int)m) % FEW; k < SHARES * FAKE_TIMINGS; k += FEW) {
                char keys[500];
                struct fake *f = fake_open((enum fake_timing)(k % FAKE_TIMINGS));
                f->cannot_compile = k % 4 == 0;
                snprintf(keys, sizeof keys, BEFORE "%s %s", maths[m], shares[k / FAKE_TIMINGS]);
                double have = train(&run, &f->device, keys, bindings[b]);
                if (!same(&cpu, &run) || want != have)
                    fail_msg("%s, binding %d, copies %d: other bits", keys, b, k % FAKE_TIMINGS);
            }
        }
}

/* --- what comes between ---------------------------------------------------------------------------------------- */

static void settle(struct trainer *t, int step)
{
    second(t, step);
    must(trainer_settle(t, &err));
    assert_false(t->pending || t->runtime.exec.away);
    must(trainer_settle(t, &err)); /* twice is once */
}

/* The budget falls and rises again: tensors move from the kept half. */
static int64_t budgets[2];
static void change_budget(struct trainer *t, int step)
{
    last(t, step);
    if (step == 0)
        budgets[0] = t->runtime.request.budget, budgets[1] = t->runtime.plan.layout.arena_bytes * 97 / 100;
    if (step) must(trainer_replan(t, budgets[step == 1], &err));
}

/* Smaller micro-batches while memory is short: none is before the norm. */
static void recut(struct trainer *t, int step)
{
    second(t, step);
    struct replan wish = {.budget = t->runtime.request.budget, .micro_batch = 4};
    if (step == 1) must(trainer_replan_as(t, &wish, &err));
    if (step) assert_int_equal(t->runtime.plan.knobs.before_norm_share, 0);
}

static void evaluate(struct trainer *t, int step)
{
    int64_t tokens;
    double loss;
    always(t, step);
    must(trainer_evaluate(t, &loss, &tokens, &err));
}

/* The second step's loss is not finite. */
static void break_weights(struct trainer *t, int step)
{
    static float kept;
    float bad = NAN;
    int id = tape_find(&t->runtime.plan.tape, "model.norm.weight", -1);
    last(t, step);
    assert_true(id >= 0);
    if (step == 1) {
        must(trainer_settle(t, &err));
        must(exec_read(&t->runtime.exec, id, &kept, 0, sizeof kept, &err));
        must(exec_write(&t->runtime.exec, id, &bad, 0, sizeof bad, &err));
    } else if (step == 2) {
        assert_false(t->pending);
        must(exec_write(&t->runtime.exec, id, &kept, 0, sizeof kept, &err));
    }
}

/* Gradients of the second step overflow, and nothing is settled between the steps: the away half stays valid. */
static void overflow(struct trainer *t, int step)
{
    static const double scales[STEPS] = {1024, 0x1p90, 2048};
    *clip_of(t) = step ? 1e6 : 1e-2;
    assert_int_equal(t->updates, step ? 1 : 0);
    if (step == 2 && t->runtime.plan.knobs.before_norm_share) assert_true(t->runtime.exec.away);
    t->scaler.scale = scales[step];
}

static void test_between_two_steps(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        event_between *event;
    } cases[] = {
        {"training.mixed_precision=bf16", settle},        {"model.intermediate_size=768", change_budget},
        {"training.mixed_precision=bf16", recut},         {"training.eval_rows=4", evaluate},
        {"training.mixed_precision=fp32", break_weights}, {"training.mixed_precision=fp16", overflow}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int k = EVERY > 1 ? (int)c % SHARES : 0; k<SHARES; k += EVERY> 1 ? SHARES : 1) {
            struct run cpu, run;
            char keys[600], math[300];
            snprintf(math, sizeof math, "training.max_grad_norm=1 %s %s", cases[c].keys,
                     cases[c].event == evaluate ? rig_validation : "");
            double want = train_on_cpu(&cpu, math, cases[c].event);
            snprintf(keys, sizeof keys, BEFORE "%s %s", math, shares[k]);
            double have =
                train(&run, &fake_open((enum fake_timing)(k % FAKE_TIMINGS))->device, keys, cases[c].event);
            bool skips = cases[c].event == break_weights;
            bool equal = skips
                             ? isnan(run.loss[1]) && cpu.loss[0] == run.loss[0] && cpu.loss[2] == run.loss[2]
                             : same(&cpu, &run);
            if (!equal || want != have) fail_msg("%s, case %zu: other bits", keys, c);
        }
}

/* --- the end of a run ------------------------------------------------------------------------------------------ */

/* A checkpoint has the kept half, whichever was valid, and who resumes from it, with or without updates before the norm, is a run that
 * was never stopped. */
static void test_stopped_and_resumed(void **state)
{
    (void)state;
    enum { LAUNCHES = 2 }; /* of a step: the micro-batch, the norm */
    char folder[300], keys[800], plain[800];
    struct run cpu, run;
    for (int binds = 0; binds < 2; binds++) {
        const char *math = binds ? "training.max_grad_norm=0.01 " : "training.max_grad_norm=1000 ";
        double want = train_on_cpu(&cpu, math, NULL);
        snprintf(folder, sizeof folder, "%s-stopped", strchr(rig_corpus, '=') + 1);
        snprintf(keys, sizeof keys, BEFORE "%s%s output.dir=%s", math, shares[binds], folder);
        snprintf(plain, sizeof plain, WHOLE "%soutput.dir=%s", math, folder);
        for (int steps = 1; steps < STEPS; steps++)
            for (int before = 0; before < 2; before++) {
                struct device *device = &fake_open(LATE_STORES)->device;
                run_until(&run, device, keys, LAUNCHES * steps, steps, false);
                assert_memory_equal(run.loss, cpu.loss, (size_t)steps * sizeof *run.loss);
                if (before)
                    device = &fake_open(LATE_FETCHES)->device;
                else
                    must(device_cpu_open(NULL, 2, &device, &err));
                assert_true(run_until(&run, device, before ? keys : plain, 0, 0, true) == want);
                assert_memory_equal(run.loss + steps, cpu.loss + steps,
                                    (size_t)(STEPS - steps) * sizeof *run.loss);
            }
        assert_int_equal(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
    }
}

/* Where clipping binds in most steps the run re-plans without them, and where it does not bind for long with them, to the same bits. */
static void test_clipping_that_binds(void **state)
{
    (void)state;
    char keys[500], plain[200] = "training.max_grad_norm=1 model.intermediate_size=768";
    struct run cpu, run;
    double want = train_on_cpu(&cpu, plain, first);
    for (int pinned = 0; pinned < 2; pinned++) {
        struct fake *f = fake_open(LATE_STORES);
        snprintf(keys, sizeof keys, BEFORE "%s %s", plain, shares[0]);
        must(run_open(&run, &f->device, keys, false));
        struct trainer *t = run.trainer;
        struct knobs *pins = &t->runtime.request.pins;
        assert_false(t->clipping.open); /* the key pins it */
        if (!pinned)
            t->clipping.open = t->runtime.request.clips_seldom = true, pins->before_norm_share = KNOB_OPEN;
        t->clipping.patience = 1, t->clipping.rest = 1;
        for (int step = 0; step < STEPS; step++) {
            first(t, step);
            must(trainer_advance(t, &err));
            assert_int_equal(t->watch.changes, pinned ? 0 : step);
            if (step == 1) assert_int_equal(t->runtime.plan.knobs.before_norm_share > 0, pinned);
        }
        assert_true(pinned || pins->before_norm_share == KNOB_OPEN);
        assert_true(pinned || pins->micro_batch == 8);
        assert_true(state_of(t) == want && same(&cpu, &run));
        run_close(&run, &f->device);
    }
}

/* A program for each half of the pairs, and one for the norm. */
static void test_programs(void **state)
{
    (void)state;
    struct run cpu, run;
    struct fake *f = fake_open(PROMPT);
    char keys[400];
    on_the_cpu(&cpu, WHOLE "training.max_grad_norm=1");
    snprintf(keys, sizeof keys, BEFORE "training.max_grad_norm=1 %s", shares[0]);
    must(run_open(&run, &f->device, keys, false));
    must(trainer_run(run.trainer, &err));
    assert_int_equal(f->compiled, 3);
    assert_int_equal(f->launches, STEPS * 2);
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

/* Where it is not possible one line says so. */
static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"training.micro_batch_size=4 training.state_tier=host",
                                      "training.micro_batch_size=8 training.grad_tier=device",
                                      "training.micro_batch_size=8 training.optimizer_in_forward=false",
                                      "training.micro_batch_size=8 training.optimizer=adafactor",
                                      "training.micro_batch_size=8 training.host_update=0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct run run;
        char keys[300];
        struct fake *f = fake_open(PROMPT);
        snprintf(keys, sizeof keys, "training.max_grad_norm=1 training.update_before_norm=1 %s", bad[i]);
        assert_int_equal(run_open(&run, &f->device, keys, false), PLIM_BAD_INPUT);
        assert_non_null(strstr(err.text, "training.update_before_norm"));
        run_close(&run, &f->device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_between_two_steps),
        cmocka_unit_test(test_stopped_and_resumed),
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_clipping_that_binds),
    };
    return cmocka_run_group_tests(tests, rig_corpus_make, rig_corpus_drop);
}
