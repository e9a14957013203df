/* test_exec_tiers.c - what exec and the trainer do for a device with its own memory: copies to and from the host tier,
 * recordings, staged rows, tuning. The device is a fake (support/fake_device.h) that is as late and as destructive as it may
 * be; the losses must be the CPU's, bit for bit. */
/* run-tests: long, not=tsan */
#include "base/rng.h"
#include "tape/group.h"
#include "tier_run.h"

#include <unistd.h>

enum { MICROS = 2 };

static void test_tiers_give_the_same_bits(void **state)
{
    (void)state;
    /* One layer below a large tied head: its gradient is fetched again when it has hardly been stored. */
    static const char *const optimizers[] = {
        "training.optimizer=adamw", "training.optimizer=adamw8bit",
        "training.optimizer=sgd training.max_grad_norm=0.5",
        "training.mixed_precision=fp32 model.num_layers=1 model.vocab_size=2048"};
    enum { TIERS = 8 };
    static const char *const tiers[TIERS] = {
        "training.state_tier=host training.host_update=0",
        "training.state_tier=host training.grad_tier=host training.host_update=0",
        "training.grad_tier=host",
        "training.state_tier=host training.host_update=1",
        "training.state_tier=host training.grad_tier=host training.host_update=0.4",
        "training.state_tier=host training.param_tier=host training.host_update=0.6",
        "training.state_tier=host training.param_tier=host training.grad_tier=host training.host_update=1",
        "training.state_tier=device training.param_tier=host"};
    for (int o = 0; o < 4; o++) {
        struct run cpu, run;
        on_the_cpu(&cpu, optimizers[o]);
        for (int k = o % FEW; k < TIERS * FAKE_TIMINGS; k += FEW) {
            char keys[256];
            struct fake *f = fake_open((enum fake_timing)(k % FAKE_TIMINGS));
            snprintf(keys, sizeof keys, "%s %s", optimizers[o], tiers[k / FAKE_TIMINGS]);
            must(run_open(&run, &f->device, keys, false));
            assert_int_equal(f->host_bytes, run.trainer->runtime.plan.layout.tier_bytes[TIER_HOST]);
            must(trainer_run(run.trainer, &err));
            assert_true(f->copies > 0 && f->npending == 0);
            assert_int_equal(f->host_runs > 0, o != 1 && run.trainer->runtime.plan.knobs.host_share > 0);
            run_close(&run, &f->device);
            if (!same(&cpu, &run))
                fail_msg("%s, copies %d: other losses than on the CPU", keys, k % FAKE_TIMINGS);
        }
    }
}

/* Below the host's memory a disk: state, or state and parameters, come and go through stages in host memory. */
static void test_disk_below_the_host(void **state)
{
    (void)state;
    static const char *const maths[] = {
        "training.optimizer=adamw", "training.optimizer=adamw8bit training.mixed_precision=fp32",
        "training.optimizer=adamw training.optimizer_in_backward=true training.gradient_accumulation_steps=1 "
        "training.batch_size=4"};
    static const char *const tiers[] = {"training.state_tier=disk",
                                        "training.state_tier=disk training.param_tier=disk",
                                        "training.state_tier=disk training.param_tier=host",
                                        "training.state_tier=device training.param_tier=disk"};
    enum { TIERS = sizeof tiers / sizeof *tiers };
    for (int m = 0; m < 3; m++) {
        struct run cpu, run;
        on_the_cpu(&cpu, maths[m]);
        for (int k = m % FEW; k < TIERS * FAKE_TIMINGS; k += FEW) {
            char keys[400];
            struct fake *f = fake_open((enum fake_timing)(k % FAKE_TIMINGS));
            snprintf(keys, sizeof keys, "%s %s", maths[m], tiers[k / FAKE_TIMINGS]);
            must(run_open(&run, &f->device, keys, false));
            const struct plan *plan = &run.trainer->runtime.plan;
            assert_true(plan->disk > 0 && plan->disk % DISK_BLOCK == 0);
            assert_int_equal(ledger_current(f->device.ledger[TIER_DISK]), plan->disk);
            assert_int_equal(f->host_bytes, plan->layout.tier_bytes[TIER_HOST]);
            must(trainer_run(run.trainer, &err));
            assert_true(f->host_waits > 0);
            run_close(&run, &f->device);
            if (!same(&cpu, &run))
                fail_msg("%s, copies %d: other losses than on the CPU", keys, k % FAKE_TIMINGS);
        }
    }
}

/* What the host's line does not hold goes on to the disk, from the last parameter on; what stays is where it was. */
static void test_host_budget_fills_the_disk(void **state)
{
    (void)state;
    static const char more[] = "model.num_layers=6 model.hidden_size=192 training.mixed_precision=fp32";
    struct run cpu, run;
    char keys[400];
    if (EVERY > 1)
        skip(); /* a sanitizer's own memory, which the host's line counts, grows between the two runs */
    on_the_cpu(&cpu, more);
    struct fake *f = fake_open(LATE_STORES);
    snprintf(keys, sizeof keys, "%s training.state_tier=host", more);
    must(run_open(&run, &f->device, keys, false));
    const struct plan *plan = &run.trainer->runtime.plan;
    int64_t host = plan->host, tier = plan->layout.tier_bytes[TIER_HOST], device = plan->total;
    assert_int_equal(plan->disk, 0);
    run_close(&run, &f->device);
    f = fake_open(LATE_FETCHES);
    snprintf(keys, sizeof keys, "%s budget=%lld host_budget=%lld", more, (long long)(device + (1 << 20)),
             (long long)(host - tier / 3));
    must(run_open(&run, &f->device, keys, false));
    plan = &run.trainer->runtime.plan;
    assert_true(plan->knobs.disk_share > 0 && plan->knobs.disk_share < OFFLOAD_SHARES);
    assert_true(plan->disk > 0 && plan->layout.tier_bytes[TIER_HOST] > 0 && plan->host <= host - tier / 3);
    must(trainer_run(run.trainer, &err));
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

static void test_the_cpu_has_no_host_tier(void **state)
{
    (void)state;
    struct device *cpu;
    struct run run;
    must(device_cpu_open(NULL, 1, &cpu, &err));
    assert_int_equal(run_open(&run, cpu, "training.state_tier=host", false), PLIM_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tier host"));
    job_release(&run.job);
    assert_int_equal(run_open(&run, cpu, "training.offload_layers=1", false), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "training.offload_layers"));
    job_release(&run.job);
    cpu->ops->close(cpu);
}

/* Activations wait on the host: the CPU's losses, whatever is made again beside that, and fewer bytes on the device. */
static void test_parked_layers(void **state)
{
    (void)state;
    static const char *const works[] = {"training.recompute=none", "training.recompute=selective",
                                        "training.recompute=selective training.recompute_layers=2",
                                        "training.recompute=full",
                                        "model.architecture=gpt2 training.recompute=none"};
    enum { WORKS = sizeof works / sizeof *works, MOST = 6 };
    for (int w = 0; w<WORKS; w += EVERY> 1 ? WORKS : 1) {
        struct run cpu, run;
        char keys[256];
        int64_t arena[MOST + 1];
        snprintf(keys, sizeof keys, "data.max_length=48 model.num_layers=6 training.micro_batch_size=8 %s",
                 works[w]);
        on_the_cpu(&cpu, keys);
        for (int parked = 0; parked <= MOST; parked += 2) {
            struct fake *f = fake_open((enum fake_timing)((w + parked / 2) % FAKE_TIMINGS));
            snprintf(keys, sizeof keys,
                     "data.max_length=48 model.num_layers=6 training.micro_batch_size=8 "
                     "training.state_tier=device training.offload_layers=%d %s",
                     parked, works[w]);
            must(run_open(&run, &f->device, keys, false));
            arena[parked] = run.trainer->runtime.plan.layout.lower_bound;
            assert_int_equal(f->host_bytes, run.trainer->runtime.plan.layout.tier_bytes[TIER_HOST]);
            assert_int_equal(f->host_bytes > 0, parked > 0);
            must(trainer_run(run.trainer, &err));
            assert_int_equal(f->copies > 0, parked > 0);
            run_close(&run, &f->device);
            if (!same(&cpu, &run)) fail_msg("%s: other losses than on the CPU", keys);
        }
        if (w < 2 && !(arena[2] < arena[0] && arena[4] <= arena[2]))
            fail_msg("%s: %lld, %lld, %lld bytes with 0, 2 and 4 layers parked", works[w],
                     (long long)arena[0], (long long)arena[2], (long long)arena[4]);
    }
}

/* A loss in slices leaves a tensor in the tape, all logits at once, that nobody uses and that has no place. */
static void test_slices_of_the_loss(void **state)
{
    (void)state;
    static const char keys[] = "data.max_length=300 training.loss_chunks=2 training.steps=3";
    struct run cpu, run;
    struct fake *f = fake_open(PROMPT);
    on_the_cpu(&cpu, keys);
    must(run_open(&run, &f->device, keys, false));
    assert_int_equal(run.trainer->runtime.plan.knobs.loss_chunks, 2);
    must(trainer_run(run.trainer, &err));
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

/* The first micro-batch, the others and the update are recorded once each; every step replays them. */
static void test_recorded_once(void **state)
{
    (void)state;
    struct run cpu, run;
    struct fake *f = fake_open(PROMPT);
    on_the_cpu(&cpu, "");
    must(run_open(&run, &f->device, "", false));
    assert_int_equal(f->compiled, 0);
    must(trainer_run(run.trainer, &err));
    assert_int_equal(f->compiled, 3);
    assert_int_equal(f->launches, STEPS * (MICROS + 1));
    assert_int_equal(
        f->runs, STEPS * (MICROS * run.trainer->runtime.plan.tape.loop_end +
                          (run.trainer->runtime.plan.tape.nops - run.trainer->runtime.plan.tape.loop_end)));
    must(exec_tune(&run.trainer->runtime.exec, &err));
    assert_int_equal(f->freed, 3);
    assert_int_equal(run.trainer->runtime.exec.nprograms, 0);
    run_close(&run, &f->device);
    assert_true(same(&cpu, &run));
}

/* Groups in ops [begin, end). */
static int groups_in(const struct tape *tape, int begin, int end)
{
    int groups = 0;
    for (int i = begin, next; i < end; i = next) groups += (next = tape_group_end(tape, i)) > i + 1;
    return groups;
}

/* Updates and sums of squares of a model are given to the device at once, when they are recorded and when they are not. */
static void test_groups_at_once(void **state)
{
    (void)state;
    struct run cpu, run;
    on_the_cpu(&cpu, "");
    for (int recorded = 0; recorded < 2; recorded++) {
        struct fake *f = fake_open(PROMPT);
        f->cannot_compile = !recorded;
        must(run_open(&run, &f->device, "", false));
        must(trainer_run(run.trainer, &err));
        const struct tape *tape = &run.trainer->runtime.plan.tape;
        int update = groups_in(tape, tape->loop_end, tape->nops);
        assert_int_equal(groups_in(tape, 0, tape->loop_end), 0);
        assert_int_equal(update, 2);
        assert_int_equal(f->groups, recorded ? update : STEPS * update);
        run_close(&run, &f->device);
        assert_true(same(&cpu, &run));
    }
}

/* A profile times op by op; a device may find that it cannot record. Both compute without recordings. */
static void test_not_recorded(void **state)
{
    (void)state;
    struct run cpu, run;
    on_the_cpu(&cpu, "");
    for (int profile = 0; profile < 2; profile++) {
        struct fake *f = fake_open(LATE_FETCHES);
        f->cannot_compile = !profile;
        must(run_open(&run, &f->device, "training.state_tier=host", profile));
        must(trainer_run(run.trainer, &err));
        assert_int_equal(f->compiled, profile ? 0 : 1);
        assert_int_equal(f->launches, 0);
        if (profile) assert_true(run.trainer->op_seconds[OP_LINEAR] > 0);
        if (profile) assert_int_equal(f->groups, 0);
        run_close(&run, &f->device);
        assert_true(same(&cpu, &run));
    }
}

/* How many events of a trace have such a member in "args". */
static int events_with(const char *path, const char *member)
{
    struct doc *doc;
    int count = 0;
    must(json_load(path, &doc, &err));
    const struct node *events = node_get(&doc->root, "traceEvents");
    for (size_t i = 0; i < node_count(events); i++)
        count += node_get(node_get(node_item(events, i), "args"), member) != NULL;
    doc_free(doc);
    return count;
}

/* A step that is measured runs as every other one, from recordings that note times; no mark is left of them, and the bits are
 * the same. */
static void test_a_measured_step(void **state)
{
    (void)state;
    struct run cpu, run;
    char path[300];
    snprintf(path, sizeof path, "%s.trace.json", strchr(rig_corpus, '=') + 1);
    on_the_cpu(&cpu, "");
    for (int timing = 0; timing < FAKE_TIMINGS; timing += (EVERY > 1 ? 3 : 1)) {
        struct fake *f = fake_open((enum fake_timing)timing);
        must(run_open_with(&run, &f->device, "training.state_tier=host",
                           (struct train_options){.trace = path, .trace_step = 2}));
        must(trainer_run(run.trainer, &err));
        assert_int_equal(f->compiled, 3 * 3); /* before, for this step, and behind it */
        assert_int_equal(f->launches, STEPS * (MICROS + 1));
        assert_int_equal(fake_programs(f), 3);
        const struct tape *tape = &run.trainer->runtime.plan.tape;
        int ops = 0;
        for (int i = 0; i < tape->nops; i++) ops += tape->ops[i].kind != OP_HOLD;
        assert_int_equal(events_with(path, "planned_us"), ops);
        assert_true(!run.trainer->trace.clock.ops && !run.trainer->trace.wanted);
        assert_true(!run.trainer->runtime.exec.times && !f->times);
        run_close(&run, &f->device);
        assert_int_equal(unlink(path), 0);
        assert_true(same(&cpu, &run));
    }
}

/* Without recordings nothing joins the copies at the end of a micro-batch: rows of the next one arrive while gradients
 * are still being stored, perhaps out of the same bytes. */
static void test_not_recorded_late(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "training.state_tier=host training.grad_tier=host",
        "training.mixed_precision=fp32 model.num_layers=1 model.vocab_size=2048 training.grad_tier=host"};
    for (int k = 0; k < 2 * FAKE_TIMINGS; k += (EVERY > 1 ? 4 : 1)) {
        struct run cpu, run;
        struct fake *f = fake_open((enum fake_timing)(k % FAKE_TIMINGS));
        f->cannot_compile = true;
        on_the_cpu(&cpu, k < FAKE_TIMINGS
                             ? ""
                             : "training.mixed_precision=fp32 model.num_layers=1 model.vocab_size=2048");
        run_all(&run, &f->device, keys[k / FAKE_TIMINGS]);
        assert_true(same(&cpu, &run));
    }
}

/* Updates inside backward with state on the host: slices are fetched and stored between the ops of the loop, by the device,
 * the host or both, and so are parameters that are there, too. */
static void test_updates_inside_backward(void **state)
{
    (void)state;
    static const char inside[] =
        "training.optimizer_in_backward=true training.gradient_accumulation_steps=1 training.batch_size=4";
    static const char *const maths[] = {"", "model.tie_word_embeddings=false model.num_layers=3",
                                        "training.optimizer=adamw8bit", "training.optimizer=adafactor"};
    static const char *const tiers[] = {
        "training.host_update=0",
        "training.host_update=1",
        "training.host_update=0.625 training.param_tier=host",
        "training.host_update=0 training.param_tier=host",
    };
    enum { TIERS = sizeof tiers / sizeof *tiers };
    for (int m = 0; m < 4; m++) {
        struct run cpu, run;
        char keys[400];
        snprintf(keys, sizeof keys, "%s %s", inside, maths[m]);
        on_the_cpu(&cpu, keys);
        for (int k = m % FEW; k < TIERS * FAKE_TIMINGS; k += FEW) {
            snprintf(keys, sizeof keys, "%s %s training.state_tier=host %s", inside, maths[m],
                     tiers[k / FAKE_TIMINGS]);
            run_all(&run, &fake_open((enum fake_timing)(k % FAKE_TIMINGS))->device, keys);
            if (!same(&cpu, &run))
                fail_msg("%s, copies %d: other losses than on the CPU", keys, k % FAKE_TIMINGS);
        }
    }
}

/* --- any job ------------------------------------------------------------------------------------------------ */

/* One of each is drawn. Rows of keys that change what is computed, keys that do not, and where things are; updates inside
 * backward have the whole batch at once and their gradients at hand. */
static const char *const any_model[] = {"model.num_layers=1 model.vocab_size=2048", "model.num_layers=3",
                                        "model.num_layers=4 model.tie_word_embeddings=false",
                                        "model.num_layers=2 model.hidden_size=192",
                                        "model.num_layers=3 model.architecture=gpt2 model.hidden_size=64"};
static const char *const any_update[] = {
    "training.optimizer=adamw",
    "training.optimizer=adamw training.mixed_precision=fp32",
    "training.optimizer=sgd",
    "training.optimizer=adamw8bit",
    "training.optimizer=adafactor",
    "training.optimizer=adamw training.grad_dtype=bf16",
    "training.optimizer=adamw training.master_weights=none training.state_dtype=bf16"};
static const char *const any_pace[] = {"training.micro_batch_size=1 training.max_grad_norm=1",
                                       "training.micro_batch_size=2", "training.micro_batch_size=8",
                                       "training.micro_batch_size=8 training.optimizer_in_backward=true",
                                       "training.micro_batch_size=2 training.optimizer_in_forward=true "
                                       "training.max_grad_norm=1"};
static const char *const any_work[] = {"training.recompute=none", "training.recompute=selective",
                                       "training.recompute=full",
                                       "training.recompute=full training.loss_chunks=2"};
static const char *const any_grad_tier[] = {"training.grad_tier=host", "training.grad_tier=device"};
static const char *const any_tier[] = {"training.state_tier=host training.param_tier=host",
                                       "training.state_tier=host training.param_tier=device",
                                       "training.state_tier=device training.param_tier=host"};
static const char *const any_share[] = {"training.host_update=0", "training.host_update=1",
                                        "training.host_update=0.5", "training.host_update=0.625"};

static const char *const any_park[] = {"training.offload_layers=0", "training.offload_layers=1",
                                       "training.offload_layers=2", "training.offload_layers=9"};

static const char *draw(const char *const *rows, size_t n, uint64_t job, uint64_t index)
{
    return rows[rng_below(7, job, index, n)];
}
#define DRAW(rows, job, index) draw(rows, sizeof rows / sizeof *rows, job, index)

/* Whatever is computed, wherever things are and however late copies come: the CPU's losses. */
static void test_any_job(void **state)
{
    (void)state;
    enum { JOBS = 60 };
    for (uint64_t job = 0; job < JOBS; job += FEW) {
        char maths[400], keys[512];
        struct run cpu, run;
        const char *pace = DRAW(any_pace, job, 0), *tier = DRAW(any_tier, job, 1);
        bool inside = strstr(pace, "in_backward") != NULL;
        snprintf(maths, sizeof maths, "%s %s %s %s", DRAW(any_model, job, 2), DRAW(any_update, job, 3), pace,
                 DRAW(any_work, job, 4));
        snprintf(keys, sizeof keys, "%s %s %s %s %s", maths, tier,
                 inside ? any_grad_tier[1] : DRAW(any_grad_tier, job, 5), DRAW(any_share, job, 6),
                 DRAW(any_park, job, 9));
        struct fake *f = fake_open((enum fake_timing)rng_below(7, job, 7, FAKE_TIMINGS));
        f->cannot_compile = rng_below(7, job, 8, 3) == 0;
        on_the_cpu(&cpu, maths);
        run_all(&run, &f->device, keys);
        if (!same(&cpu, &run)) fail_msg("job %d, %s: other losses than on the CPU", (int)job, keys);
    }
}

static void test_rows_are_staged(void **state)
{
    (void)state;
    struct run run;
    struct fake *f = fake_open(PROMPT);
    must(run_open(&run, &f->device, "", false));
    struct feed *feed = &run.trainer->feed[0];
    int64_t bytes = tensor_bytes(&run.trainer->runtime.plan.tape.tensors[feed->tensor[FEED_TARGETS]]),
            count = bytes / 4;
    int32_t *seen = malloc((size_t)bytes);
    assert_non_null(seen);
    assert_non_null(feed->staged);
    assert_null(exec_host(&run.trainer->runtime.exec, feed->tensor[FEED_IDS]));
    for (int64_t i = 0; i < count; i++)
        feed->rows.ids[i] = 7, feed->rows.targets[i] = (int32_t)i, feed->rows.pos[i] = 3;
    int before = f->writes;
    must(feed_send(feed, &err));
    assert_int_equal(f->writes, before + 3);
    must(exec_read(&run.trainer->runtime.exec, feed->tensor[FEED_TARGETS], seen, 0, bytes, &err));
    assert_memory_equal(seen, feed->rows.targets, (size_t)bytes);
    free(seen);
    run_close(&run, &f->device);

    struct device *cpu;
    must(device_cpu_open(NULL, 1, &cpu, &err));
    must(run_open(&run, cpu, "", false));
    feed = &run.trainer->feed[0];
    assert_null(feed->staged);
    assert_ptr_equal(feed->rows.ids, exec_host(&run.trainer->runtime.exec, feed->tensor[FEED_IDS]));
    must(feed_send(feed, &err));
    run_close(&run, cpu);
}

static bool writes_kept(const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (op->out[k] >= 0 && tape->tensors[tape_root(tape, op->out[k])].flags & TENSOR_KEPT) return true;
    return false;
}

/* Every op that computes and writes nothing of value, as the first micro-batch runs it and as the others do. */
static void test_tuned(void **state)
{
    (void)state;
    struct run run;
    struct fake *f = fake_open(PROMPT);
    must(run_open(&run, &f->device, "training.state_tier=host", false));
    const struct tape *tape = &run.trainer->runtime.plan.tape;
    int want = 0, left_out = 0;
    for (int i = 0; i < tape->nops; i++) {
        if (!op_computes(&tape->ops[i]) || writes_kept(tape, &tape->ops[i]))
            left_out++;
        else
            want += 2;
    }
    assert_int_equal(f->tunes, want);
    assert_true(left_out > 0);
    run_close(&run, &f->device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers_give_the_same_bits),
        cmocka_unit_test(test_disk_below_the_host),
        cmocka_unit_test(test_host_budget_fills_the_disk),
        cmocka_unit_test(test_the_cpu_has_no_host_tier),
        cmocka_unit_test(test_parked_layers),
        cmocka_unit_test(test_slices_of_the_loss),
        cmocka_unit_test(test_recorded_once),
        cmocka_unit_test(test_groups_at_once),
        cmocka_unit_test(test_not_recorded),
        cmocka_unit_test(test_a_measured_step),
        cmocka_unit_test(test_not_recorded_late),
        cmocka_unit_test(test_updates_inside_backward),
        cmocka_unit_test(test_any_job),
        cmocka_unit_test(test_rows_are_staged),
        cmocka_unit_test(test_tuned),
    };
    return cmocka_run_group_tests(tests, rig_corpus_make, rig_corpus_drop);
}
