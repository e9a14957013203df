/* job_flags.c - flags of other trainers' command lines that stand for a key of ours. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *flag, *key;
} keys[JOB_FLAGS] = {
    [FLAG_EPOCHS] = {"--epochs", "training.epochs"},
    [FLAG_BATCH] = {"--batch-size", "training.batch_size"},
    [FLAG_ACCUMULATION] = {"--gradient-accumulation-steps", "training.gradient_accumulation_steps"},
    [FLAG_SCHEDULER] = {"--lr-scheduler", "training.lr_scheduler"},
    [FLAG_OUTPUT] = {"--model-output", "output.dir"},
    [FLAG_MODEL] = {"--pretrained-model", "model.path"},
    [FLAG_BASE] = {"--base", "model.weights"},
    [FLAG_WORKERS] = {"--dataloader-num-workers", "data.workers"},
};

const char *const cli_modes[] = {"single", "multi", NULL};

enum plim_status cli_check_mode(const struct job_options *options, int ranks, const char *how,
                                struct plim_error *err)
{
    bool single = options->mode && !strcmp(options->mode, "single");
    bool multi = options->mode && !strcmp(options->mode, "multi");
    if (single && ranks > 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "option '--mode single': %d ranks were started; start one process, or write multi",
                         ranks);
    if (multi && ranks < 2)
        return plim_fail(err, PLIM_BAD_INPUT, "option '--mode multi': there is one rank; %s, or write single",
                         how);
    return PLIM_OK;
}

/* "r=8,targets=q_proj,v_proj": a part without an equals sign belongs to the value before it. */
static enum plim_status take_lora(struct job *job, const char *settings, const struct schema_listener *notes,
                                  struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (!job_key_given(job, "adapter.type"))
        status = job_set_flag(job, "--lora", "adapter.type", "lora", notes, err);
    for (const char *at = settings; *at && status == PLIM_OK;) {
        const char *mark = at + strcspn(at, "="), *end = mark;
        char key[64], value[512];
        if (!*mark || (size_t)snprintf(key, sizeof key, "adapter.%.*s", (int)(mark - at), at) >= sizeof key)
            return plim_fail(err, PLIM_BAD_INPUT, "option '--lora': '%.80s': write KEY=VALUE,..., e.g. r=8",
                             at);
        for (end = mark + 1 + strcspn(mark + 1, ","); *end && strcspn(end + 1, ",") <= strcspn(end + 1, "=");)
            end += 1 + strcspn(end + 1, ",");
        snprintf(value, sizeof value, "%.*s", (int)(end - mark - 1), mark + 1);
        status = job_set_flag(job, "--lora", key, value, notes, err);
        at = *end ? end + 1 : end;
    }
    return status;
}

enum plim_status cli_take_flags(struct job *job, const struct job_options *options,
                                const struct schema_listener *notes, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < JOB_FLAGS && status == PLIM_OK; i++)
        if (options->flags[i])
            status = job_set_flag(job, keys[i].flag, keys[i].key, options->flags[i], notes, err);
    if (status == PLIM_OK && options->lora) status = take_lora(job, options->lora, notes, err);
    if (status == PLIM_OK && options->no_graphs)
        status = job_set_flag(job, "--disable-cudagraphs", "performance.cuda_graphs", "false", notes, err);
    if (options->no_compilation && notes)
        notes->say(notes->arg, "--disable-compilation", "--disable-compilation",
                   "needless: kernels are compiled ahead");
    if (options->budget_given) {
        job->budget = options->budget;
        job_origin_set(job, "budget", ORIGIN_FLAG, "--budget");
    }
    return status;
}
