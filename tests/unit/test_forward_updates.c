/* test_forward_updates.c - updates that wait for the next step's forward (tape/pass_update.c, train/trainer_pending.c): the bits of
 * updates after backward, on the CPU and on a device with its own memory (support/fake_device.h), whatever comes between two
 * steps. */
/* run-tests: long, not=tsan */
#define _GNU_SOURCE /* nftw */
#include "base/fault.h"
#include "pending_run.h"

#include <math.h>
#include <unistd.h>

#define FORWARD "training.optimizer_in_forward=true "
/* Gradients leave with their state, and the host updates its part from its own copy of the weights. */
#define HOST                                                                                                 \
    "training.state_tier=host training.grad_tier=host training.host_update=0.5 training.offload_layers=0 "

/* Trains step by step; returns the state at the end. */
static double train(struct run *run, struct device *device, const char *keys, event_between *between)
{
    must(run_open(run, device, keys, false));
    struct trainer *t = run->trainer;
    bool forward = strstr(keys, FORWARD) != NULL;
    assert_int_equal(t->runtime.plan.knobs.optimizer_in_forward, forward);
    for (int step = 0; step < STEPS; step++) {
        struct train_event event = {0};
        bool finished;
        if (between) between(t, step);
        must(trainer_step(t, &event, &finished, &err));
        assert_true(finished);
        assert_int_equal(t->pending, forward && !event.skipped);
        run->loss[step] = event.loss;
        assert_int_equal(ledger_peak(device->ledger[TIER_DEVICE]), t->runtime.planned_peak[TIER_DEVICE]);
    }
    double state = state_of(t);
    assert_false(t->pending);
    run_close(run, device);
    return state;
}

static double train_on_cpu(struct run *run, const char *keys, event_between *between)
{
    struct device *cpu;
    must(device_cpu_open(NULL, 2, &cpu, &err));
    return train(run, cpu, keys, between);
}

static const char *const clips[] = {"training.max_grad_norm=0.5", "training.max_grad_norm=50",
                                    "training.max_grad_norm=0"};
enum { CLIPS = sizeof clips / sizeof *clips };

/* Clipping that binds, that does not, and none. */
static void test_same_bits_on_the_cpu(void **state)
{
    (void)state;
    static const char *const maths[] = {
        "training.optimizer=adamw",
        "training.optimizer=adamw training.micro_batch_size=2 training.recompute=full",
        "training.optimizer=adamw training.mixed_precision=fp16 training.micro_batch_size=8",
        "training.optimizer=adamw training.master_weights=none training.state_dtype=bf16",
        "training.optimizer=adamw8bit model.tie_word_embeddings=false",
        "training.optimizer=adafactor",
        "training.optimizer=sgd training.state_tier=disk training.param_tier=disk training.grad_tier=disk"};
    for (size_t m = 0; m < sizeof maths / sizeof *maths; m++)
        for (int c = (int)m % EVERY % CLIPS; c < CLIPS; c += EVERY) {
            struct run after, forward;
            char keys[300];
            snprintf(keys, sizeof keys, "%s %s", maths[m], clips[c]);
            double want = train_on_cpu(&after, keys, NULL);
            snprintf(keys, sizeof keys, FORWARD "%s %s", maths[m], clips[c]);
            double have = train_on_cpu(&forward, keys, NULL);
            if (!same(&after, &forward) || want != have) fail_msg("%s: other bits", keys);
        }
}

/* State on the host: slices are updated by the device, the host or both, between the ops of forward. */
static void test_same_bits_on_a_card(void **state)
{
    (void)state;
    static const char *const maths[] = {
        "training.max_grad_norm=0.5", "training.max_grad_norm=50 training.micro_batch_size=8",
        "training.max_grad_norm=0.5 training.optimizer=adamw8bit training.micro_batch_size=2",
        "training.max_grad_norm=0.5 model.num_layers=4 model.tie_word_embeddings=false "
        "training.recompute=full",
        "training.max_grad_norm=0.5 training.optimizer=adafactor model.num_layers=1 model.vocab_size=2048"};
    static const char *const tiers[] = {
        "training.host_update=0",
        "training.host_update=1",
        "training.host_update=0.625",
        "training.host_update=0.5 training.grad_tier=host",
        "training.host_update=0.625 training.param_tier=host",
        "training.host_update=0 training.param_tier=host training.grad_tier=host",
        "training.host_update=0.5 training.offload_layers=2",
        "training.host_update=0.75 training.grad_tier=host training.offload_layers=1",
        "training.host_update=1 training.grad_tier=host training.param_tier=host",
    };
    enum { TIERS = sizeof tiers / sizeof *tiers, MATHS = sizeof maths / sizeof *maths };
    for (int m = 0; m < MATHS; m++) {
        struct run cpu, run;
        char keys[400];
        double want = train_on_cpu(&cpu, maths[m], NULL);
        for (int k = m % FEW; k<TIERS * FAKE_TIMINGS; k += EVERY> 1 ? 2 * FEW : FEW) {
            struct fake *f = fake_open((enum fake_timing)(k % FAKE_TIMINGS));
            f->cannot_compile = k % 5 == 0;
            snprintf(keys, sizeof keys, FORWARD "training.state_tier=host %s %s", maths[m],
                     tiers[k / FAKE_TIMINGS]);
            double have = train(&run, &f->device, keys, NULL);
            if (!same(&cpu, &run) || want != have)
                fail_msg("%s, copies %d: other bits than on the CPU", keys, k % FAKE_TIMINGS);
        }
    }
}

/* The budget falls and rises again: what is pending is made before tensors move. */
static int64_t budgets[STEPS];
static void change_budget(struct trainer *t, int step)
{
    const struct knobs *k = &t->runtime.plan.knobs;
    if (!budgets[0])
        budgets[0] = t->runtime.request.budget,
        budgets[1] = t->runtime.plan.layout.arena_bytes * (k->grad_tier == TIER_DEVICE ? 90 : 97) / 100;
    if (step) must(trainer_replan(t, step == 1 ? budgets[1] : budgets[0], &err));
}

static void settle(struct trainer *t, int step)
{
    bool pending = t->pending;
    assert_int_equal(pending, t->update_scalars >= 0 && step > 0);
    must(trainer_settle(t, &err));
    must(trainer_settle(t, &err)); /* twice is once */
}

static void test_between_two_steps(void **state)
{
    (void)state;
    static event_between *const events[] = {settle, change_budget};
    static const char keys[] = FORWARD "training.max_grad_norm=0.5 model.intermediate_size=768";
    /* Gradients leave with their state, and the host updates from its own copy of the weights. */
    static const char *const more[] = {
        "", " training.grad_tier=host training.host_update=0.5 training.offload_layers=0",
        " training.grad_tier=host training.host_update=0.75 training.offload_layers=0 "
        "training.micro_batch_size=8"};
    for (size_t m = 0; m < sizeof more / sizeof *more; m++) {
        struct run cpu, run;
        char text[300];
        snprintf(text, sizeof text, "%s%s", keys + strlen(FORWARD),
                 strstr(more[m], "=8") ? " training.micro_batch_size=8" : "");
        double want = train_on_cpu(&cpu, text, NULL);
        snprintf(text, sizeof text, "%s%s", keys, more[m]);
        for (size_t e = 0; e < sizeof events / sizeof *events; e++)
            for (int timing = (int)m; timing < FAKE_TIMINGS; timing += m || EVERY > 1 ? FAKE_TIMINGS : 1) {
                memset(budgets, 0, sizeof budgets);
                double have = train(&run, &fake_open((enum fake_timing)timing)->device, text, events[e]);
                assert_true(same(&cpu, &run) && want == have);
            }
    }
}

/* A step whose loss is not finite leaves nothing pending. */
static void break_weights(struct trainer *t, int step)
{
    static float kept;
    float bad = NAN;
    int id = tape_find(&t->runtime.plan.tape, "model.norm.weight", -1);
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

static void test_skipped_step(void **state)
{
    (void)state;
    static const char keys[] = FORWARD "training.max_grad_norm=0.5 training.mixed_precision=fp32";
    struct run after, forward;
    double want = train_on_cpu(&after, keys + strlen(FORWARD), break_weights);
    for (int fake = 0; fake < 2; fake++) {
        char text[400];
        snprintf(text, sizeof text, "%s%s", keys, fake ? " " HOST : "");
        double have = fake ? train(&forward, &fake_open(LATE_STORES)->device, text, break_weights)
                           : train_on_cpu(&forward, text, break_weights);
        assert_true(isnan(after.loss[1]) && isnan(forward.loss[1]));
        assert_true(after.loss[0] == forward.loss[0] && after.loss[2] == forward.loss[2] && want == have);
    }
}

/* Gradients overflow in the second step. Its forward makes the updates of the first step, with the loss scale of the first step;
 * afterwards nothing is pending. */
static void overflow(struct trainer *t, int step)
{
    static const double scales[STEPS] = {1024, 0x1p90, 2048};
    assert_int_equal(t->updates, step ? 1 : 0);
    if (step == 2) assert_false(t->pending);
    t->scaler.scale = scales[step];
}

static void test_overflow(void **state)
{
    (void)state;
    static const char keys[] = FORWARD "training.max_grad_norm=0.5 training.mixed_precision=fp16";
    struct run after, forward;
    double want = train_on_cpu(&after, keys + strlen(FORWARD), overflow);
    double have = train_on_cpu(&forward, keys, overflow);
    assert_true(same(&after, &forward) && want == have);
    have = train(&forward, &fake_open(LATE_FETCHES)->device,
                 FORWARD HOST "training.max_grad_norm=0.5 training.mixed_precision=fp16", overflow);
    assert_true(same(&after, &forward) && want == have);
}

static double evaluations[STEPS];
static void evaluate(struct trainer *t, int step)
{
    int64_t tokens;
    must(trainer_evaluate(t, &evaluations[step], &tokens, &err));
    assert_false(t->pending);
}

static void test_evaluation(void **state)
{
    (void)state;
    char keys[500];
    struct run after, forward;
    double seen[STEPS];
    snprintf(keys, sizeof keys, "training.max_grad_norm=0.5 training.eval_rows=4 %s", rig_validation);
    double want = train_on_cpu(&after, keys, evaluate);
    memcpy(seen, evaluations, sizeof seen);
    snprintf(keys, sizeof keys, FORWARD HOST "training.max_grad_norm=0.5 training.eval_rows=4 %s",
             rig_validation);
    double have = train(&forward, &fake_open(LATE_STORES)->device, keys, evaluate);
    assert_true(same(&after, &forward) && want == have && !memcmp(seen, evaluations, sizeof seen));
}

/* The disk fails while pending updates are made, e.g. for an order to save. Some parameters are updated and others are not, so the run
 * cannot go on. */
static void test_updates_in_part(void **state)
{
    (void)state;
    struct device *cpu;
    struct run run;
    struct train_event event = {0};
    bool finished;
    must(device_cpu_open(NULL, 2, &cpu, &err));
    must(run_open(&run, cpu, FORWARD "training.max_grad_norm=0.5 training.state_tier=disk", false));
    must(trainer_step(run.trainer, &event, &finished, &err));
    assert_true(run.trainer->pending && !run.trainer->runtime.torn);
    fault_set(fault_process(), FAULT_IO, 5);
    assert_int_equal(trainer_settle(run.trainer, &err), PLIM_IO);
    fault_set(fault_process(), FAULT_IO, 0);
    assert_true(run.trainer->runtime.torn);
    run_close(&run, cpu);
}

/* --- the end of a run ------------------------------------------------------------------------------------- */

/* The last step, and a signal after the first step or inside the second: nothing is pending in the checkpoint, and a run that resumes
 * from it, with updates inside forward or after backward, is one that was never stopped. */
static void test_stopped_and_resumed(void **state)
{
    (void)state;
    enum { LAUNCHES = 3 }; /* of a step: first micro-batch, second, norm */
    static const char math[] = "training.max_grad_norm=0.5 ";
    char folder[300], keys[700], plain[700];
    struct run cpu, run;
    double want = train_on_cpu(&cpu, math, NULL);
    snprintf(folder, sizeof folder, "%s-stopped", strchr(rig_corpus, '=') + 1);
    snprintf(keys, sizeof keys, FORWARD HOST "%soutput.dir=%s", math, folder);
    snprintf(plain, sizeof plain, "%soutput.dir=%s", math, folder);
    assert_true(run_until(&run, &fake_open(LATE_STORES)->device, keys, 0, 0, false) == want);
    assert_true(same(&cpu, &run));
    for (int inside = 0; inside < 2; inside++)
        for (int forward = 0; forward < 2; forward++) {
            struct device *device = &fake_open(LATE_STORES)->device;
            run_until(&run, device, keys, LAUNCHES + inside, 1, false);
            assert_true(run.loss[0] == cpu.loss[0]);
            if (forward)
                device = &fake_open(LATE_FETCHES)->device;
            else
                must(device_cpu_open(NULL, 2, &device, &err));
            assert_true(run_until(&run, device, forward ? keys : plain, 0, 0, true) == want);
            assert_memory_equal(run.loss + 1, cpu.loss + 1, (STEPS - 1) * sizeof *run.loss);
        }
    assert_int_equal(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* Three programs as ever: pending updates are part of the first micro-batch's, and a step alone has no others. */
static void test_programs(void **state)
{
    (void)state;
    struct run cpu, run;
    struct fake *f = fake_open(PROMPT);
    on_the_cpu(&cpu, "");
    must(run_open(&run, &f->device, FORWARD "training.state_tier=host", false));
    must(trainer_run(run.trainer, &err));
    assert_int_equal(f->compiled, 3);
    assert_int_equal(f->launches, STEPS * 3);
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_on_the_cpu),
        cmocka_unit_test(test_same_bits_on_a_card),
        cmocka_unit_test(test_between_two_steps),
        cmocka_unit_test(test_skipped_step),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_updates_in_part),
        cmocka_unit_test(test_stopped_and_resumed),
        cmocka_unit_test(test_programs),
    };
    return cmocka_run_group_tests(tests, rig_corpus_make, rig_corpus_drop);
}
