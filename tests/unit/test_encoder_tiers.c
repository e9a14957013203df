/* run-tests: not=tsan */
/* test_encoder_tiers.c - training and evaluation of encoders on a device with its own memory, a fake (support/fake_device.h): under
 * every placement, recomputation and slicing of the loss the losses and scores are the CPU's, bit for bit. */
#include "support/fake_device.h"
#include "support/job_rig.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { STEPS = 3, KEYS = 40 };

static struct plim_error err;
static char labels[64] = "/tmp/plimsoll-labels-XXXXXX.jsonl", pairs[64] = "/tmp/plimsoll-pairs-XXXXXX.jsonl";

struct record {
    double loss[STEPS], eval, score;
};

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* Bytes are the tokens; `more` are keys, one space between two. */
static void run_on(struct device *device, const char *file, const char *more, struct record *out)
{
    char text[512], train[96], validation[96];
    snprintf(train, sizeof train, "data.train=%s", file);
    snprintf(validation, sizeof validation, "data.validation=%s", file);
    const char *keys[KEYS] = {"model.architecture=bert",
                              "model.vocab_size=256",
                              "model.hidden_size=64",
                              "model.num_layers=3",
                              "model.num_attention_heads=4",
                              "data.max_length=32",
                              "training.batch_size=4",
                              "training.steps=3",
                              "training.optimizer_in_backward=false",
                              "training.learning_rate=1e-2",
                              "training.eval_rows=8",
                              "budget=4GiB",
                              train,
                              validation};
    struct job job;
    struct trainer *trainer;
    struct train_options options = {0};
    int64_t tokens;
    int n = 0;
    while (keys[n]) n++;
    snprintf(text, sizeof text, "%s", more);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) keys[n++] = word;
    rig_job(&job, keys);
    job.name = "test";
    must(trainer_open(&job, device, &options, &trainer, &err));
    for (int i = 0; i < STEPS; i++) {
        struct train_event event = {0};
        bool finished;
        must(trainer_step(trainer, &event, &finished, &err));
        out->loss[i] = event.loss;
    }
    must(trainer_evaluate(trainer, &out->eval, &tokens, &err));
    assert_true(tokens > 0);
    out->score = trainer->scores.entities.accuracy + trainer->scores.cosine;
    trainer_close(trainer);
    job_release(&job);
    device->ops->close(device);
}

static void compare(const char *file, const char *what)
{
    static const char *const variants[] = {
        "training.state_tier=host training.host_update=0",
        "training.state_tier=host training.param_tier=host training.grad_tier=host training.host_update=0.5",
        "training.recompute=full training.param_tier=host",
        "training.recompute=selective",
        "training.offload_layers=2",
        "training.loss_chunks=3"};
    struct device *cpu;
    struct record wanted, got;
    char keys[400];
    must(device_cpu_open(NULL, 2, &cpu, &err));
    snprintf(keys, sizeof keys, "%s training.recompute=none", what);
    run_on(cpu, file, keys, &wanted);
    assert_true(wanted.loss[STEPS - 1] < wanted.loss[0]);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        struct fake *f = fake_open((enum fake_timing)(i % FAKE_TIMINGS));
        snprintf(keys, sizeof keys, "%s %s", what, variants[i]);
        run_on(&f->device, file, keys, &got);
        if (memcmp(&wanted, &got, sizeof wanted))
            fail_msg("%s: %.17g, %.17g, not %.17g, %.17g", keys, got.loss[2], got.eval, wanted.loss[2],
                     wanted.eval);
    }
}

static void test_labels(void **state)
{
    (void)state;
    compare(labels, "training.objective=token_labels");
    compare(labels, "training.objective=token_labels training.mixed_precision=bf16 model.dropout=0.1");
}

static void test_pairs(void **state)
{
    (void)state;
    compare(pairs, "training.objective=sentence_pairs");
    compare(pairs, "training.objective=sentence_pairs training.mixed_precision=bf16");
}

static FILE *make(char *path)
{
    int fd = mkstemps(path, 6);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

static int write_files(void **state)
{
    (void)state;
    FILE *a = make(labels), *b = make(pairs);
    if (!a || !b) return 1;
    for (int i = 0; i < 16; i++) {
        fprintf(a, "{\"tokens\":[\"ab%d\",\"cd\",\"ef%d\"],\"labels\":[\"X\",\"O\",\"%s\"]}\n", i, i % 3,
                i % 2 ? "X" : "O");
        fprintf(b, "{\"text_a\":\"%c%c text %d\",\"text_b\":\"other %c%c\"}\n", 'a' + i, 'b' + i, i, 'a' + i,
                'b' + i);
    }
    return fclose(a) | fclose(b);
}

static int remove_files(void **state)
{
    (void)state;
    return unlink(labels) | unlink(pairs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_labels), cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, write_files, remove_files);
}
