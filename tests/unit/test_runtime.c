/* test_runtime.c - the runtime holds what it promises: programs of several execs live side by side, every tier's ledger
 * carries the plan's bytes, and what does not fit is refused with nothing taken. */
/* run-tests: long */
#include "base/fault.h"
#include "device/registry.h"
#include "runtime/feed.h"
#include "support/fake_device.h"
#include "support/job_rig.h"
#include "support/pace.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { STEPS = 3, TRAINING = 3 /* programs: first micro-batch, others, update */ };

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* A small job with everything pinned but what `more`, a list that ends with NULL, says. */
static void make_job(struct job *job, const char *const *more)
{
    const char *keys[40] = {"model.architecture=llama",
                            "model.vocab_size=256",
                            "model.hidden_size=96",
                            "model.intermediate_size=256",
                            "model.num_layers=2",
                            "model.num_attention_heads=4",
                            "data.max_length=" LENGTH,
                            "training.batch_size=4",
                            "training.gradient_accumulation_steps=2",
                            "training.micro_batch_size=4",
                            "training.recompute=none",
                            "training.loss_chunks=1",
                            "training.steps=3",
                            "training.optimizer_in_backward=false",
                            "training.mixed_precision=bf16",
                            "budget=4GiB",
                            rig_corpus};
    int n = 0;
    while (keys[n]) n++;
    while (*more) keys[n++] = *more++;
    rig_job(job, keys);
    job->name = "test";
}
#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

static double step(struct trainer *t)
{
    struct train_event event = {0};
    bool finished;
    must(trainer_step(t, &event, &finished, &err));
    return event.loss;
}

static int64_t on_ledger(const struct device *device, enum tier tier)
{
    return (int64_t)ledger_current(device->ledger[tier]);
}

static void nothing_taken(const struct device *device)
{
    for (int tier = 0; tier < TIER_COUNT; tier++) assert_int_equal(on_ledger(device, (enum tier)tier), 0);
}

/* --- programs --------------------------------------------------------------------------------------------- */

static enum plim_status build_rows(void *arg, int64_t rows, struct tape *out, struct plim_error *e)
{
    struct trainer *t = arg;
    return job_build_eval(t->job, &t->runtime.device->facts, &t->runtime.plan.knobs, rows, t->job->max_length,
                          out, e);
}

/* The loss of fixed tokens; `passes` times the same. */
static double loss_of(struct forward *f, int passes)
{
    struct feed feed;
    double sum[2] = {0};
    must(feed_open(&feed, &f->exec, &err));
    int64_t n = tensor_count(&f->tape.tensors[feed.tensor[FEED_IDS]]), time = n / f->size;
    for (int64_t i = 0; i < n; i++)
        feed.rows.ids[i] = (int32_t)(i * 7 % 251), feed.rows.targets[i] = (int32_t)(i % 251),
        feed.rows.pos[i] = (int32_t)(i % time);
    for (int pass = 0; pass < passes; pass++) {
        must(feed_send(&feed, &err));
        must(exec_loop(&f->exec, 0, &err));
    }
    must(exec_read(&f->exec, tape_find(&f->tape, "loss", -1), sum, 0, sizeof sum, &err));
    feed_close(&feed);
    return sum[0] / sum[1];
}

/* Training and two evaluations of other sizes have their programs at once; freeing one's leaves the others'. */
static void test_programs_side_by_side(void **state)
{
    (void)state;
    double alone[STEPS];
    for (int beside = 0; beside < 2; beside++) {
        struct fake *f = fake_open(LATE_STORES);
        struct job job;
        struct trainer *t;
        struct forward small = {0}, large = {0};
        make_job(&job, MORE("training.state_tier=host"));
        must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
        struct forward_family family = {.build = build_rows, .arg = t, .adds = true};
        double first = step(t), before = 0;
        if (!beside) alone[0] = first;
        assert_true(first == alone[0]);
        assert_int_equal(fake_programs(f), TRAINING);
        if (beside) {
            must(runtime_forward(&t->runtime, &family, 2, 1, &small, &err));
            must(runtime_forward(&t->runtime, &family, 4, 4, &large, &err));
            before = loss_of(&small, 2);
            assert_int_equal(fake_programs(f), TRAINING + 1);
            loss_of(&large, 2);
            assert_int_equal(fake_programs(f), TRAINING + 2);
            assert_true(loss_of(&small, 1) == before);
            assert_int_equal(f->compiled, TRAINING + 2); /* nothing was compiled twice */
            assert_true(exec_program_bytes(&small.exec) > 0);
            forward_close(&large);
            assert_int_equal(fake_programs(f), TRAINING + 1);
            assert_true(loss_of(&small, 1) == before);
        }
        for (int i = 1; i < STEPS; i++) {
            double loss = step(t);
            if (!beside) alone[i] = loss;
            assert_true(loss == alone[i]);
        }
        if (beside) assert_true(loss_of(&small, 1) != before); /* the weights it reads have moved */
        struct runtime_moves moves;
        int freed = f->freed;
        must(runtime_replan(&t->runtime, t->runtime.request.budget, &moves, &err));
        assert_int_equal(f->freed, freed + TRAINING); /* its own */
        assert_int_equal(fake_programs(f), beside);
        forward_close(&small);
        trainer_close(t);
        assert_int_equal(fake_programs(f), 0);
        nothing_taken(&f->device);
        job_release(&job);
        f->device.ops->close(&f->device);
    }
}

/* performance.cuda_graphs: false runs op by op, with the same bits. */
static void test_without_programs(void **state)
{
    (void)state;
    double losses[2][STEPS];
    for (int graphs = 0; graphs < 2; graphs++) {
        struct fake *f = fake_open(PROMPT);
        struct job job;
        struct trainer *t;
        make_job(&job, MORE(graphs ? "performance.cuda_graphs=true" : "performance.cuda_graphs=false"));
        must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
        for (int i = 0; i < STEPS; i++) losses[graphs][i] = step(t);
        assert_int_equal(f->compiled > 0, graphs);
        trainer_close(t);
        job_release(&job);
        f->device.ops->close(&f->device);
    }
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
}

/* An evaluation inside training is compiled like anything else, and leaves training's programs alone. */
static void test_evaluation_keeps_programs(void **state)
{
    (void)state;
    struct fake *f = fake_open(PROMPT);
    struct job job;
    struct trainer *t;
    double loss, again;
    int64_t tokens;
    make_job(&job, MORE(rig_validation, "training.eval_rows=6"));
    must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
    step(t);
    must(trainer_evaluate(t, &loss, &tokens, &err));
    must(trainer_evaluate(t, &again, &tokens, &err));
    assert_true(loss == again && tokens > 0);
    assert_int_equal(fake_programs(f), TRAINING);
    int compiled = f->compiled;
    assert_true(compiled > TRAINING);
    step(t);
    assert_int_equal(f->compiled, compiled);
    trainer_close(t);
    job_release(&job);
    f->device.ops->close(&f->device);
}

/* --- ledgers ---------------------------------------------------------------------------------------------- */

static void test_host_ledger(void **state)
{
    (void)state;
    struct fake *f = fake_open(PROMPT);
    struct job job;
    struct trainer *t;
    struct ledger_state host;
    make_job(&job, MORE("training.state_tier=host", "training.grad_tier=host"));
    must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
    const struct plan *plan = &t->runtime.plan;
    step(t);
    ledger_read(f->device.ledger[TIER_HOST], &host);
    assert_true(plan->layout.tier_bytes[TIER_HOST] > 0);
    assert_int_equal(host.by_class[DEVICE_LEDGER_ARENA], plan->layout.tier_bytes[TIER_HOST]);
    assert_int_equal(host.by_class[DEVICE_LEDGER_OVERHEAD], plan->overhead);
    assert_int_equal(host.peak, plan->host);
    assert_int_equal(t->runtime.planned_peak[TIER_HOST], plan->host);
    assert_int_equal(runtime_ledger_peak(&t->runtime, TIER_DEVICE), plan->total);
    must(runtime_check(&t->runtime, &err));
    trainer_close(t);
    assert_int_equal(f->host_bytes, 0);
    nothing_taken(&f->device);
    job_release(&job);
    f->device.ops->close(&f->device);
}

/* A host line below what a pinned tier needs is refused by the planner; one that moves below a plan, by the ledger. */
static void test_host_budget(void **state)
{
    (void)state;
    struct fake *f = fake_open(PROMPT);
    struct job job;
    struct trainer *t = NULL;
    struct runtime rt = {0};
    make_job(&job, MORE("training.state_tier=host", "host_budget=1MiB"));
    assert_int_equal(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err), PLIM_NO_FIT);
    assert_null(t);
    assert_int_equal(f->host_bytes + f->committed, 0);
    nothing_taken(&f->device);
    job.host_budget = 0;
    must(runtime_plan(&rt, &f->device, &job, &(struct loader_sizes){0},
                      runtime_overhead(NULL, f->device.facts.threads, NULL), NULL, &err));
    rt.request.host_budget = rt.plan.host - 1;
    assert_int_equal(runtime_commit(&rt, &err), PLIM_NO_MEMORY);
    assert_non_null(strstr(err.text, "host memory"));
    runtime_close(&rt);
    assert_int_equal(f->host_bytes + f->committed, 0);
    nothing_taken(&f->device);
    job_release(&job);
    f->device.ops->close(&f->device);
}

/* The line falls and rises: after each move the ledgers of all tiers are the plan's, and their peaks the largest plan's. */
static void test_replan_keeps_ledgers(void **state)
{
    (void)state;
    struct fake *f = fake_open(LATE_FETCHES);
    struct job job;
    struct trainer *t;
    int64_t peak[TIER_COUNT] = {0};
    f->device.facts.lower_bandwidth = 10e9, f->device.facts.host_bandwidth = 20e9;
    make_job(&job, MORE("training.grad_tier=device"));
    must(trainer_open(&job, &f->device, &(struct train_options){0}, &t, &err));
    int64_t roomy = t->runtime.plan.total;
    bool used = false;
    for (int i = 0; i < 12; i++) {
        int64_t budget = i % 2 ? roomy - roomy / 24 * i : roomy;
        enum plim_status status = trainer_replan(t, budget, &err);
        if (status != PLIM_NO_FIT) must(status);
        must(runtime_check(&t->runtime, &err));
        const struct plan *plan = &t->runtime.plan;
        used = used || plan->layout.tier_bytes[TIER_HOST] > 0;
        assert_int_equal(f->host_bytes, plan->layout.tier_bytes[TIER_HOST]);
        for (int tier = 0; tier < TIER_COUNT; tier++) {
            int64_t planned = runtime_planned(&t->runtime, plan, (enum tier)tier);
            peak[tier] = planned > peak[tier] ? planned : peak[tier];
            assert_int_equal(on_ledger(&f->device, (enum tier)tier), planned);
            assert_int_equal(runtime_ledger_peak(&t->runtime, (enum tier)tier), peak[tier]);
            assert_int_equal(t->runtime.planned_peak[tier], peak[tier]);
        }
    }
    assert_true(used);
    trainer_close(t);
    nothing_taken(&f->device);
    job_release(&job);
    f->device.ops->close(&f->device);
}

/* One ledger for the process, one for the disk; the file shrinks and goes with the plans. */
static void test_disk_ledger(void **state)
{
    (void)state;
    struct device *cpu;
    struct job job;
    struct trainer *t;
    char folder[320];
    snprintf(folder, sizeof folder, "output.dir=%s-out", strchr(rig_corpus, '=') + 1);
    must(device_cpu_open(NULL, 2, &cpu, &err));
    assert_ptr_equal(cpu->ledger[TIER_HOST], cpu->ledger[TIER_DEVICE]);
    make_job(&job, MORE("training.state_tier=disk", folder));
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    assert_true(t->runtime.plan.disk > 0);
    assert_int_equal(on_ledger(cpu, TIER_DISK), t->runtime.plan.disk);
    assert_int_equal(on_ledger(cpu, TIER_DEVICE), t->runtime.plan.total);
    assert_int_equal(runtime_ledger_peak(&t->runtime, TIER_HOST), 0);
    step(t);
    trainer_close(t);
    nothing_taken(cpu);
    job_release(&job);
    cpu->ops->close(cpu);
    rmdir(strchr(folder, '=') + 1);
}

/* Memory that runs short is no reason to put state on the disk for next to nothing. */
static void test_replan_is_worth_it(void **state)
{
    (void)state;
    struct device *cpu;
    struct job job;
    struct trainer *t;
    struct runtime_moves moves;
    char folder[320];
    snprintf(folder, sizeof folder, "output.dir=%s-out", strchr(rig_corpus, '=') + 1);
    must(device_cpu_open(NULL, 2, &cpu, &err));
    make_job(&job, MORE(folder));
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    double seconds = t->runtime.plan.step_seconds;
    int64_t total = t->runtime.plan.total;
    struct replan little = {.budget = total - total / 200, .or_smallest = true, .worthwhile = true};
    step(t);
    assert_int_equal(t->runtime.plan.disk, 0);
    trainer_unbind(t);
    assert_int_equal(runtime_replan_as(&t->runtime, &little, &moves, &err), PLIM_NO_FIT);
    must(trainer_bind(t, &err));
    assert_true(t->runtime.plan.total == total && t->runtime.plan.disk == 0);
    step(t);
    trainer_unbind(t);
    little.worthwhile = false; /* an emergency takes what there is */
    must(runtime_replan_as(&t->runtime, &little, &moves, &err));
    assert_true(t->runtime.plan.disk > 0 && t->runtime.plan.step_seconds > 1.1 * seconds);
    trainer_close(t);
    nothing_taken(cpu);
    job_release(&job);
    cpu->ops->close(cpu);
    rmdir(strchr(folder, '=') + 1);
}

/* A run is told of growth beyond four MiB, not of a multiple of that. */
static void test_leak_is_told(void **state)
{
    (void)state;
    struct device *cpu;
    struct job job;
    struct trainer *t;
    struct context own = {.process = &(struct context_process){0}}; /* another's process is not looked at */
    must(device_cpu_open(&own, 2, &cpu, &err));
    make_job(&job, MORE("training.steps=1000"));
    job.monitor.interval = 0; /* samples are ours */
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    fault_set(fault_process(), FAULT_LEAK, 1);
    for (int i = 0; i < 200 && !t->watch.seen.leak.found; i++) {
        step(t);
        for (int k = 0; k < 2; k++) monitor_sample(t->watch.monitor);
        trainer_note_step(t, NULL);
    }
    const struct leak *leak = &t->watch.seen.leak;
    int64_t most = EVERY * ((int64_t)12 << 20); /* a sanitizer's own memory grows with it */
    if (!leak->found || leak->growth <= 4 << 20 || leak->growth > most || !t->watch.leak_told)
        fail_msg("found %d, growth %lld", leak->found, (long long)leak->growth);
    fault_set(fault_process(), FAULT_LEAK, 0);
    trainer_close(t);
    job_release(&job);
    cpu->ops->close(cpu);
}

/* --- re-plans that fail ----------------------------------------------------------------------------------- */

enum { BEFORE = 2, AFTER = 3 };
enum move { STAY, TIGHT, REFUSED };

/* The losses of a run on the CPU whose line falls and rises again between two steps: below what is kept in the arena, so that
 * state goes to the disk, or below the program's own size. Of the n-th call, a fault point fails. Returns how many of the
 * two re-plans failed. */
static int run_moved(enum move how, enum fault_point point, int64_t nth, double *losses)
{
    struct device *cpu;
    struct job job;
    struct trainer *t;
    char folder[320];
    int failed = 0;
    snprintf(folder, sizeof folder, "output.dir=%s-out", strchr(rig_corpus, '=') + 1);
    must(device_cpu_open(NULL, 2, &cpu, &err));
    make_job(&job, MORE(folder, "training.steps=9"));
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    const struct plan *plan = &t->runtime.plan;
    int64_t roomy = t->runtime.request.budget;
    int64_t low = how == REFUSED ? 1 << 20 : plan->total - plan->layout.kept_bytes / 4;
    for (int i = 0; i < BEFORE; i++) losses[i] = step(t);
    for (int move = 0; move < 2 && how != STAY; move++) {
        fault_set(fault_process(), point, nth);
        enum plim_status status = trainer_replan(t, move ? roomy : low, &err);
        fault_set(fault_process(), point, 0);
        failed += status != PLIM_OK;
        assert_false(t->runtime.torn);
        must(runtime_check(&t->runtime, &err));
        if (how == TIGHT && move == 0) assert_true((plan->disk > 0) == (status == PLIM_OK));
        losses[BEFORE + move] = step(t);
    }
    for (int i = how == STAY ? BEFORE : BEFORE + 2; i < BEFORE + AFTER; i++) losses[i] = step(t);
    trainer_close(t);
    nothing_taken(cpu);
    job_release(&job);
    cpu->ops->close(cpu);
    rmdir(strchr(folder, '=') + 1);
    return failed;
}

/* A re-plan that cannot be had leaves the old plan, and the run its bits: budgets that are refused, and each
 * commit, reservation and write that a move makes. */
static void test_failed_replan_keeps_bits(void **state)
{
    (void)state;
    static const enum fault_point points[] = {FAULT_ALLOC, FAULT_RESERVE, FAULT_WRITE};
    double calm[BEFORE + AFTER], moved[BEFORE + AFTER];
    int most = 0;
    run_moved(STAY, FAULT_ALLOC, 0, calm);
    assert_int_equal(run_moved(TIGHT, FAULT_ALLOC, 0, moved), 0);
    assert_memory_equal(calm, moved, sizeof calm);
    assert_int_equal(run_moved(REFUSED, FAULT_ALLOC, 0, moved), 1);
    assert_memory_equal(calm, moved, sizeof calm);
    for (size_t p = 0; p < sizeof points / sizeof *points; p++)
        for (int64_t nth = 1;; nth += EVERY > 10 ? 11 : EVERY > 1 ? 3 : 1) {
            int failed = run_moved(TIGHT, points[p], nth, moved);
            assert_memory_equal(calm, moved, sizeof calm);
            if (!failed) break;
            most = failed > most ? failed : most;
        }
    assert_int_equal(most, 2); /* moves in both directions have failed */
}

/* A process that only hosts us gives its overhead as a number. */
static void test_overhead_is_an_argument(void **state)
{
    (void)state;
    struct device *cpu;
    struct job job;
    struct runtime a = {0}, b = {0};
    struct loader_sizes none = {0};
    must(device_cpu_open(NULL, 1, &cpu, &err));
    make_job(&job, MORE("training.seed=1"));
    must(runtime_plan(&a, cpu, &job, &none, (struct overhead){10 << 20, 0}, NULL, &err));
    must(runtime_plan(&b, cpu, &job, &none, (struct overhead){11 << 20, 0}, NULL, &err));
    assert_int_equal(b.plan.total - a.plan.total, 1 << 20);
    runtime_close(&a);
    runtime_close(&b);
    job_release(&job);
    cpu->ops->close(cpu);
}

/* --- the registry ----------------------------------------------------------------------------------------- */

static void test_device_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"",        "gpu",     "CUDA",       "cuda:", "cuda:x",
                                      "cuda:-1", "cuda:1x", "cuda:99999", "cpu:0", "cudax",
                                      "auto:1",  "pjrt:",   "pjrt::1",    "tpu:x"};
    struct device_name name;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(device_name_read(bad[i], &name));
    assert_true(device_name_read("auto", &name) && !name.backend);
    assert_true(device_name_read("cuda:12", &name) && name.backend == backend_find("cuda") &&
                name.index == 12);
    assert_true(device_name_read("cpu", &name) && name.backend == backend_fallback() && name.index == 0);
    assert_true(device_name_read("pjrt:/opt/a:b.so:3", &name) && name.index == 3 &&
                !strcmp(name.plugin, "/opt/a:b.so") && name.backend == backend_find("pjrt"));
    assert_true(device_name_read("pjrt:cpu", &name) && name.index == 0 && !strcmp(name.plugin, "cpu"));
    assert_true(device_name_read("neuron:1", &name) && name.index == 1 && !strcmp(name.plugin, "neuron"));
    assert_null(backend_find("xpu"));
    int n = 0;
    while (backend_at(n)) n++;
    assert_ptr_equal(backend_at(n - 1), backend_fallback());
    assert_true(backend_fallback()->present());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs_side_by_side),
        cmocka_unit_test(test_without_programs),
        cmocka_unit_test(test_evaluation_keeps_programs),
        cmocka_unit_test(test_host_ledger),
        cmocka_unit_test(test_host_budget),
        cmocka_unit_test(test_replan_keeps_ledgers),
        cmocka_unit_test(test_disk_ledger),
        cmocka_unit_test(test_replan_is_worth_it),
        cmocka_unit_test(test_leak_is_told),
        cmocka_unit_test(test_failed_replan_keeps_bits),
        cmocka_unit_test(test_overhead_is_an_argument),
        cmocka_unit_test(test_device_names),
    };
    return cmocka_run_group_tests(tests, rig_corpus_make, rig_corpus_drop);
}
