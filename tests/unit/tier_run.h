/* tier_run.h - a small training run on any device, for tests of exec and of updates that wait.
 *
 *     struct run cpu, run;
 *     on_the_cpu(&cpu, "");
 *     run_all(&run, &fake_open(LATE_STORES)->device, "training.state_tier=host");
 *     assert_true(same(&cpu, &run));                  // losses, bit for bit
 *
 * `more` are keys of the job, one space between two; only the tiers are the planner's choice. Needs rig_corpus.
 */
#ifndef PLIM_TESTS_TIER_RUN_H
#define PLIM_TESTS_TIER_RUN_H

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
#include <cmocka.h>

enum { STEPS = 3, KEYS = 40 };

static struct plim_error err;

struct run {
    struct job job;
    struct trainer *trainer;
    double loss[STEPS];
};

static void hear(void *arg, const struct train_event *event)
{
    if (event->kind == TRAIN_STEP) ((struct run *)arg)->loss[event->step - 1] = event->loss;
}

static enum plim_status run_open_with(struct run *run, struct device *device, const char *more,
                                      struct train_options options)
{
    const char *keys[KEYS] = {"model.architecture=llama",
                              "model.vocab_size=256",
                              "model.hidden_size=96",
                              "model.intermediate_size=256",
                              "model.num_layers=2",
                              "model.num_attention_heads=4",
                              "model.tie_word_embeddings=true",
                              "data.max_length=" LENGTH,
                              "training.batch_size=4",
                              "training.gradient_accumulation_steps=2",
                              "training.micro_batch_size=4",
                              "training.recompute=none",
                              "training.loss_chunks=1",
                              "training.steps=3",
                              "training.optimizer_in_backward=false",
                              "training.learning_rate=1e-2",
                              "training.mixed_precision=bf16",
                              "budget=4GiB",
                              rig_corpus};
    char text[512];
    int n = 0;
    while (keys[n]) n++;
    snprintf(text, sizeof text, "%s", more);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) keys[n++] = word;
    memset(run, 0, sizeof *run);
    rig_job(&run->job, keys);
    run->job.name = "test";
    options.listener = (struct train_listener){hear, run};
    return trainer_open(&run->job, device, &options, &run->trainer, &err);
}

static enum plim_status run_open(struct run *run, struct device *device, const char *more, bool profile)
{
    return run_open_with(run, device, more, (struct train_options){.profile = profile});
}

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

static void run_close(struct run *run, struct device *device)
{
    trainer_close(run->trainer);
    job_release(&run->job);
    device->ops->close(device);
}

/* Trains on the device and closes it. */
static void run_all(struct run *run, struct device *device, const char *more)
{
    must(run_open(run, device, more, false));
    must(trainer_run(run->trainer, &err));
    run_close(run, device);
}

static void on_the_cpu(struct run *run, const char *more)
{
    struct device *cpu;
    must(device_cpu_open(NULL, 2, &cpu, &err));
    run_all(run, cpu, more);
    assert_true(run->loss[STEPS - 1] != run->loss[0]); /* the weights moved */
}

static bool same(const struct run *a, const struct run *b)
{
    return !memcmp(a->loss, b->loss, sizeof a->loss);
}

#endif
