/* test_dropout.c - training drops numbers where the architectures do: with none the tape is as it was, with some the bits
 * depend on the step, the op and the row alone, and shares are right. */
#include "base/strbuf.h"
#include "device/registry.h"
#include "support/job_rig.h"
#include "support/pace.h"
#include "tape/dropout.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { STEPS = 3 };

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

static void make_job(struct job *job, const char *arch, const char *const *more)
{
    const char *keys[40] = {"model.vocab_size=256",
                            "model.hidden_size=64",
                            "model.num_layers=2",
                            "model.intermediate_size=128",
                            "model.num_attention_heads=4",
                            "data.max_length=48",
                            "training.batch_size=8",
                            "training.steps=3",
                            "training.eval_rows=4",
                            "training.learning_rate=1e-3",
                            "training.recompute=none",
                            "training.loss_chunks=1",
                            "training.micro_batch_size=4",
                            "training.optimizer_in_backward=false",
                            "budget=4GiB",
                            rig_corpus,
                            rig_validation,
                            arch};
    int n = 0;
    while (keys[n]) n++;
    while (*more) keys[n++] = *more++;
    rig_job(job, keys);
    job->name = "test";
}

struct outcome {
    double loss[STEPS], eval;
};

static struct outcome train(const char *arch, int threads, const char *const *more)
{
    struct outcome out = {0};
    struct device *cpu;
    struct job job;
    struct trainer *t;
    int64_t tokens;
    must(device_cpu_open(NULL, threads, &cpu, &err));
    make_job(&job, arch, more);
    must(trainer_open(&job, cpu, &(struct train_options){0}, &t, &err));
    for (int i = 0; i < STEPS; i++) {
        struct train_event event = {0};
        bool finished;
        must(trainer_step(t, &event, &finished, &err));
        out.loss[i] = event.loss;
        if (i == 0) must(trainer_evaluate(t, &out.eval, &tokens, &err));
    }
    trainer_close(t);
    job_release(&job);
    cpu->ops->close(cpu);
    return out;
}

static void same_bits(const struct outcome *a, const struct outcome *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
}

/* Evaluations repeat and are without; training differs by seed. */
static void check_architecture(const char *arch)
{
    struct outcome off = train(arch, 2, MORE("model.dropout=0"));
    struct outcome on = train(arch, 2, MORE("model.dropout=0.3")), again;
    assert_true(on.loss[0] != off.loss[0]);
    assert_true(fabs(on.loss[0] - off.loss[0]) < 0.5);
    again = train(arch, 1, MORE("model.dropout=0.3"));
    same_bits(&on, &again);
    again = train(arch, 2, MORE("model.dropout=0.3", "training.recompute=full"));
    same_bits(&on, &again);
    again = train(arch, 2, MORE("model.dropout=0.3", "training.recompute=selective"));
    same_bits(&on, &again);
    static const char *const micro[] = {"training.micro_batch_size=1", "training.micro_batch_size=2",
                                        "training.micro_batch_size=8"};
    for (int i = 0; i < 3; i++) {
        again = train(arch, 2, MORE("model.dropout=0.3", micro[i]));
        for (int k = 0; k < STEPS; k++) assert_true(fabs(on.loss[k] - again.loss[k]) < 1e-5 * on.loss[k]);
    }
    /* Rows that come longest first have other numbers, but the same ones however they are cut into passes. */
    on = train(arch, 2, MORE("model.dropout=0.3", "data.padding=longest"));
    again = train(arch, 1, MORE("model.dropout=0.3", "data.padding=longest", "training.micro_batch_size=1"));
    for (int k = 0; k < STEPS; k++) assert_true(fabs(on.loss[k] - again.loss[k]) < 1e-5 * on.loss[k]);
}

static void test_llama(void **state)
{
    (void)state;
    check_architecture("model.architecture=llama");
}

static void test_gpt2(void **state)
{
    (void)state;
    if (EVERY == 1) check_architecture("model.architecture=gpt2"); /* other ops, the same threads */
}

static void print_tape(const struct model_spec *spec, bool training, struct strbuf *out)
{
    struct tape tape;
    struct model_shape shape = {.batch = 2, .time = 16, .head = HEAD_LOSS, .training = training};
    tape_init(&tape);
    must(model_emit(spec, &shape, &tape, &err));
    must(tape_verify(&tape, &err));
    tape_print(&tape, out);
    tape_release(&tape);
}

static int count_ops(const struct model_spec *spec, int kind)
{
    struct tape tape;
    struct model_shape shape = {.batch = 2, .time = 16, .head = HEAD_LOSS, .training = true};
    int count = 0;
    tape_init(&tape);
    must(model_emit(spec, &shape, &tape, &err));
    for (int i = 0; i < tape.nops; i++) count += tape.ops[i].kind == kind && tape.ops[i].attr.dropout > 0;
    for (int i = 0; i < tape.nops; i++)
        for (int k = 0; k < i; k++)
            if (tape.ops[i].attr.dropout > 0 && tape.ops[k].attr.dropout > 0)
                assert_true(tape.ops[i].attr.stream != tape.ops[k].attr.stream);
    tape_release(&tape);
    return count;
}

static void test_where(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        int attention, others;
    } cases[] = {{"model.architecture=llama", 2, 0}, {"model.architecture=gpt2", 2, 5}};
    for (int i = 0; i < 2; i++) {
        struct job job;
        struct strbuf trains = STRBUF_INIT, judges = STRBUF_INIT;
        make_job(&job, cases[i].arch, MORE("model.dropout=0"));
        print_tape(&job.spec, true, &trains);
        print_tape(&job.spec, false, &judges);
        assert_string_equal(trains.data, judges.data); /* without dropout training is as it was */
        assert_int_equal(count_ops(&job.spec, OP_ATTN) + count_ops(&job.spec, OP_DROPOUT), 0);
        model_set_dropout(&job.spec, 0.1);
        assert_int_equal(count_ops(&job.spec, OP_ATTN), cases[i].attention);
        assert_int_equal(count_ops(&job.spec, OP_DROPOUT), cases[i].others);
        strbuf_clear(&trains);
        print_tape(&job.spec, false, &trains);
        assert_string_equal(trains.data, judges.data); /* and evaluation never drops */
        strbuf_release(&trains);
        strbuf_release(&judges);
        job_release(&job);
    }
}

/* Shares are right within four deviations, for every row, op and step, and no two of them agree. */
static void test_shares(void **state)
{
    (void)state;
    enum { N = 20000 };
    static char first[N];
    float scalars[SCALAR_COUNT] = {0};
    for (int p = 1; p < 10; p += 4)
        for (int k = 0; k < 24; k++) {
            struct op_attr attr = {.dropout = (float)p / 10, .stream = (1u << 30) + (unsigned)(k % 2)};
            scalars[SCALAR_KEY_LOW] = (float)(k / 2 % 3 * 12345), scalars[SCALAR_FIRST_ROW] = (float)(k / 6);
            struct dropout d = dropout_of(&attr, scalars);
            uint32_t row = dropout_row(&d, 0);
            double share = p / 10.0, deviation = sqrt(N * share * (1 - share));
            int dropped = 0, agree = 0;
            for (int i = 0; i < N; i++) {
                char keeps = (char)dropout_keeps(&d, row, (uint64_t)i);
                dropped += !keeps;
                if (k == 0) first[i] = keeps;
                agree += keeps == first[i];
            }
            assert_true(fabs(dropped - N * share) < 4 * deviation);
            assert_true(fabs((double)d.scale - 1 / (1 - share)) < 1e-5);
            if (k) assert_true(fabs(agree - N * (share * share + (1 - share) * (1 - share))) < 5 * sqrt(N));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_gpt2),
    };
    return cmocka_run_group_tests(tests, rig_samples_make, rig_corpus_drop);
}
