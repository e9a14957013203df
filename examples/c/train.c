/* train.c - trains a job inside its budget and prints the loss of every step.
 *
 *     cc train.c -o train $(pkg-config --cflags --libs plimsoll)
 *     ./train job.yaml 64MiB
 */
#include <plimsoll/plimsoll.h>
#include <stdio.h>

static void hear(void *arg, const struct plim_train_event *event)
{
    (void)arg;
    if (event->kind == PLIM_TRAIN_SAVED) printf("saved %s\n", event->text);
    if (event->kind == PLIM_TRAIN_REFUSED) fprintf(stderr, "%s\n", event->text); /* who holds what, what would help */
}

static enum plim_status train(struct plim_context *context, const char *path, const char *budget,
                              struct plim_error *err)
{
    char assignment[64];
    struct plim_job *job = NULL;
    struct plim_trainer *trainer = NULL;
    struct plim_train_options options = {.size = sizeof options, .overwrite = 1, .hear = hear};
    struct plim_step step = {.size = sizeof step};
    enum plim_status status = plim_job_open(context, path, &job, err);
    if (status == PLIM_OK && budget) {
        snprintf(assignment, sizeof assignment, "budget=%s", budget);
        status = plim_job_set(job, assignment, err);
    }
    /* Plans, takes every byte of the plan, and loads the weights: after this, memory cannot run out. */
    if (status == PLIM_OK) status = plim_trainer_open(job, &options, &trainer, err);
    while (status == PLIM_OK && !step.done) {
        status = plim_trainer_step(trainer, &step, err);
        if (status == PLIM_OK && !step.done)
            printf("step %lld of %lld: loss %.4f, %.0f tokens/s\n", (long long)step.step, (long long)step.steps,
                   step.loss, step.tokens_per_second);
    }
    plim_trainer_close(trainer);
    plim_job_close(job);
    return status;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct plim_context *context = NULL;
    if (argc < 2) return fprintf(stderr, "usage: train JOB.yaml [BUDGET]\n"), 2;
    enum plim_status status = plim_context_open(NULL, &context, &err);
    if (status == PLIM_OK) status = train(context, argv[1], argc > 2 ? argv[2] : NULL, &err);
    if (status != PLIM_OK) fprintf(stderr, "train: %s\n", err.text);
    plim_context_close(context);
    return status == PLIM_OK ? 0 : 1;
}
