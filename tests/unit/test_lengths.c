/* run-tests: not=tsan */
/* test_lengths.c - rows of any length: passes of several lengths inside one plan give the losses of rows padded to the
 * maximum, nothing is compiled after the start, and every tier's ledger carries the plan's bytes. */
#include "device/registry.h"
#include "runtime/lengths.h"
#include "support/fake_device.h"
#include "support/job_rig.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { STEPS = 4, TIME = 96 };

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

static void make_job(struct job *job, const char *const *more)
{
    const char *keys[40] = {"model.architecture=llama",
                            "model.vocab_size=256",
                            "model.hidden_size=64",
                            "model.intermediate_size=128",
                            "model.num_layers=2",
                            "model.num_attention_heads=4",
                            "data.max_length=96",
                            "data.append_eos=false",
                            "training.batch_size=12",
                            "training.learning_rate=1e-3",
                            "training.steps=4",
                            "training.eval_rows=20",
                            "budget=4GiB",
                            rig_corpus};
    int n = 0;
    while (keys[n]) n++;
    while (*more) keys[n++] = *more++;
    rig_job(job, keys);
    job->name = "test";
}

struct outcome {
    double loss[STEPS], eval;
    int64_t positions, padding, tokens;
};

/* A run; `replan`: the line falls and rises between steps. */
static void train(struct device *device, const char *const *keys, bool replan, struct outcome *out)
{
    struct job job;
    struct trainer *t;
    *out = (struct outcome){0};
    make_job(&job, keys);
    must(trainer_open(&job, device, &(struct train_options){0}, &t, &err));
    int64_t budget = t->runtime.request.budget;
    for (int i = 0; i < STEPS; i++) {
        struct train_event event = {0};
        bool finished;
        if (replan && i) must(trainer_replan(t, i % 2 ? t->runtime.plan.total : budget, &err));
        must(trainer_step(t, &event, &finished, &err));
        must(runtime_check(&t->runtime, &err)); /* ledgers and plan, to the byte */
        out->loss[i] = event.loss, out->tokens += event.tokens;
        out->positions += event.positions, out->padding += event.padding;
    }
    if (t->corpus.validation) {
        int64_t tokens;
        must(trainer_evaluate(t, &out->eval, &tokens, &err));
    }
    trainer_close(t);
    job_release(&job);
}

static void same_losses(const struct outcome *a, const struct outcome *b)
{
    for (int i = 0; i < STEPS; i++)
        if (fabs(a->loss[i] - b->loss[i]) > 1e-5 * a->loss[i])
            fail_msg("step %d: %.9f and %.9f", i + 1, a->loss[i], b->loss[i]);
    assert_true(fabs(a->eval - b->eval) <= 1e-5 * a->eval);
    assert_int_equal(a->tokens, b->tokens);
}

static void test_losses(void **state)
{
    (void)state;
    struct device *cpu;
    struct outcome whole, shorter, moved, grouped, small;
    must(device_cpu_open(NULL, 2, &cpu, &err));
    train(cpu, MORE(rig_validation), false, &whole);
    train(cpu, MORE(rig_validation, "data.padding=longest", "data.group_by_length=false"), false, &shorter);
    same_losses(&whole, &shorter);
    assert_true(shorter.positions < whole.positions * 3 / 4);
    assert_int_equal(whole.positions, STEPS * 12 * TIME);
    assert_int_equal(whole.positions - whole.padding, shorter.positions - shorter.padding);
    train(cpu, MORE(rig_validation, "data.padding=longest", "data.group_by_length=false"), true, &moved);
    same_losses(&whole, &moved);
    train(cpu, MORE(rig_validation, "data.padding=longest"), false, &grouped);
    assert_true(grouped.padding * 2 < grouped.positions);
    train(cpu,
          MORE(rig_validation, "data.padding=longest", "training.micro_batch_size=2",
               "training.recompute=full", "training.threads=1"),
          false, &small);
    same_losses(&grouped, &small);
    cpu->ops->close(cpu);
}

/* On a device that is as hostile as allowed, with everything offloaded that can be. */
static void test_nothing_is_compiled_late(void **state)
{
    (void)state;
    static const char *const tiers[][4] = {
        {"training.threads=1", "training.threads=1", "training.threads=1", "training.max_grad_norm=0"},
        {"training.state_tier=host", "training.grad_tier=host", "training.param_tier=host",
         "training.max_grad_norm=1"}};
    struct outcome whole, shorter;
    for (int i = 0; i < 2; i++) {
        struct fake *f = fake_open(LATE_STORES);
        f->device.facts.lower_bandwidth = 10e9, f->device.facts.host_bandwidth = 20e9;
        train(&f->device, MORE(tiers[i][0], tiers[i][1], tiers[i][2], tiers[i][3], rig_validation), false,
              &whole);
        struct job job;
        struct trainer *t;
        make_job(&job, MORE(tiers[i][0], tiers[i][1], tiers[i][2], tiers[i][3], rig_validation,
                            "data.padding=longest", "data.group_by_length=false"));
        must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
        int compiled = f->compiled;
        shorter = (struct outcome){0};
        for (int s = 0; s < STEPS; s++) {
            struct train_event event = {0};
            bool finished;
            int64_t tokens;
            must(trainer_step(t, &event, &finished, &err));
            shorter.loss[s] = event.loss, shorter.tokens += event.tokens;
            must(trainer_evaluate(t, &shorter.eval, &tokens, &err));
        }
        assert_int_equal(f->compiled, compiled);
        same_losses(&whole, &shorter);
        trainer_close(t);
        assert_int_equal(fake_programs(f), 0);
        job_release(&job);
        f->device.ops->close(&f->device);
    }
}

/* Programs of further lengths take device memory that a plan with one length has no line for. */
static void test_programs_are_in_the_plan(void **state)
{
    (void)state;
    struct fake *f = fake_open(LATE_STORES);
    int64_t beside[2];
    f->device.facts.program_bytes = 3 << 20;
    for (int i = 0; i < 2; i++) {
        struct job job;
        struct trainer *t;
        make_job(&job, MORE(i ? "data.padding=longest" : "data.padding=max_length"));
        must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
        must(runtime_check(&t->runtime, &err));
        beside[i] = t->runtime.plan.device - t->runtime.plan.layout.arena_bytes;
        assert_int_equal(beside[i], t->runtime.plan.beside_arena);
        if (i) assert_int_equal(beside[1] - beside[0], 2 * (t->runtime.request.lengths - 1) * (3 << 20));
        if (i) assert_true(t->lengths.count <= t->runtime.request.lengths);
        trainer_close(t);
        job_release(&job);
    }
    f->device.ops->close(&f->device);
}

static void test_ladder(void **state)
{
    (void)state;
    int64_t ladder[LENGTHS_LADDER];
    assert_int_equal(lengths_ladder(512, ladder), 8);
    static const int64_t expected[] = {512, 384, 256, 192, 128, 96, 64, 32};
    assert_memory_equal(ladder, expected, sizeof expected);
    for (int64_t time = 1; time < 300; time++) {
        int n = lengths_ladder(time, ladder);
        assert_true(n >= 1 && ladder[0] == time);
        for (int i = 1; i < n; i++) assert_true(ladder[i] < ladder[i - 1] && ladder[i] % 16 == 0);
    }
}

/* Every row is in one pass that is long enough, in order; and no other way of cutting computes less. */
static void check_cutting(const struct pass_shape *shapes, int count, const int32_t *lengths, int64_t n)
{
    struct cutting c;
    int64_t row = 0, positions = 0;
    must(cutting_open(&c, n, &err));
    lengths_cut(&c, shapes, count, lengths, n);
    for (int64_t i = 0; i < c.count; i++) {
        const struct pass_shape *s = &shapes[c.cuts[i].program];
        assert_true(c.cuts[i].rows >= 1 && c.cuts[i].rows <= s->rows && s->time >= lengths[row]);
        row += c.cuts[i].rows, positions += s->rows * s->time;
    }
    assert_int_equal(row, n);
    int64_t alone = (n + shapes[0].rows - 1) / shapes[0].rows * shapes[0].rows * shapes[0].time;
    assert_true(positions <= alone && positions == c.best[0]);
    cutting_close(&c);
}

static void test_cuts(void **state)
{
    (void)state;
    static const struct pass_shape shapes[] = {{8, 64}, {2, 64}, {4, 32}, {8, 16}};
    int32_t lengths[40];
    for (int n = 1; n <= 40; n++)
        for (int top = 1; top <= 64; top += 9) {
            for (int i = 0; i < n; i++) lengths[i] = 1 + (top - 1) * (n - i) / n;
            check_cutting(shapes, 4, lengths, n);
            check_cutting(shapes, 1, lengths, n);
        }
}

/* Epochs are counted, and become steps. */
static void test_epochs(void **state)
{
    (void)state;
    struct device *cpu;
    struct job job;
    struct trainer *t;
    char before[sizeof job];
    must(device_cpu_open(NULL, 1, &cpu, &err));
    make_job(&job, MORE("training.epochs=1.5", "training.save_strategy=epoch"));
    memcpy(before, &job, sizeof job);
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    assert_int_equal(t->length.epoch.rows, RIG_SAMPLES);
    assert_int_equal(t->length.steps, 15); /* of 12 rows */
    assert_int_equal(t->length.save_every, 10);
    assert_memory_equal(before, &job, sizeof job); /* it says what the user said */
    trainer_close(t);
    job_release(&job);
    cpu->ops->close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_nothing_is_compiled_late),
        cmocka_unit_test(test_programs_are_in_the_plan),
        cmocka_unit_test(test_epochs),
    };
    return cmocka_run_group_tests(tests, rig_samples_make, rig_corpus_drop);
}
