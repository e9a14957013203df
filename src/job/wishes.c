/* wishes.c - keys that ask for the same thing in other words, and keys whose wish this version cannot grant.
 *
 * Two names for one wish may both be given while they agree. A key that would silently do nothing is an error that says
 * what to write instead; at its default it asks for nothing. */
#include "job/job.h"

#include <string.h>

/* ---- the same wish in other words ---- */

static bool fp16_clash(const struct job *job)
{
    const struct job_training *t = &job->training;
    return t->precision_given && t->fp16_given && t->fp16 != (t->precision == PRECISION_F16);
}

static bool bf16_clash(const struct job *job)
{
    const struct job_training *t = &job->training;
    return t->precision_given && t->bf16_given && t->bf16 != (t->precision == PRECISION_BF16);
}

static bool both_narrow(const struct job *job) { return job->training.fp16 && job->training.bf16; }

static bool recompute_clash(const struct job *job)
{
    const struct job_training *t = &job->training;
    return t->recompute_given && t->checkpointing_given &&
           t->checkpointing != (t->recompute != RECOMPUTE_NONE);
}

static bool wants_checkpointing(const struct job *job)
{
    return job->wishes.use_deepspeed && job->wishes.checkpointing;
}

static bool deepspeed_recompute_clash(const struct job *job)
{
    return wants_checkpointing(job) && job->training.recompute_given &&
           job->training.recompute == RECOMPUTE_NONE;
}

static bool deepspeed_checkpointing_clash(const struct job *job)
{
    return wants_checkpointing(job) && job->training.checkpointing_given && !job->training.checkpointing;
}

static const struct {
    const char *a, *b;
    bool (*clashes)(const struct job *);
} pairs[] = {
    {"training.fp16", "training.bf16", both_narrow},
    {"training.mixed_precision", "training.fp16", fp16_clash},
    {"training.mixed_precision", "training.bf16", bf16_clash},
    {"training.recompute", "training.gradient_checkpointing", recompute_clash},
    {"training.recompute", "training.deepspeed.activation_checkpointing", deepspeed_recompute_clash},
    {"training.gradient_checkpointing", "training.deepspeed.activation_checkpointing",
     deepspeed_checkpointing_clash},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

/* "training.bf16: true" */
static void put_key(const struct job *job, const char *key, struct strbuf *out)
{
    strbuf_addf(out, "%s: ", key);
    schema_value(schema_find(&job_schema, key), job, out);
}

enum plim_status job_agree(struct job *job, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < PAIRS && status == PLIM_OK; i++) {
        struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
        if (!pairs[i].clashes(job)) continue;
        put_key(job, pairs[i].a, &a);
        put_key(job, pairs[i].b, &b);
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: %s and %s contradict each other; keep one", job->name,
                           strbuf_text(&a), strbuf_text(&b));
        strbuf_release(&a);
        strbuf_release(&b);
    }
    if (status == PLIM_OK && wants_checkpointing(job) && !job->training.recompute_given)
        job->training.checkpointing = job->training.checkpointing_given = true;
    return status;
}

enum plim_status job_override(struct job *job, const char *key, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < PAIRS && status == PLIM_OK; i++) {
        bool is_a = !strcmp(key, pairs[i].a), is_b = !strcmp(key, pairs[i].b);
        if ((is_a || is_b) && pairs[i].clashes(job))
            status = schema_set(&job_schema, is_a ? pairs[i].b : pairs[i].a, "", job, &job->store, NULL, err);
    }
    return status;
}

/* ---- what cannot be granted yet ---- */

#define AT(field) offsetof(struct job, field)
#define OFFLOAD                                                                                              \
    "a GPU's optimizer state goes to host memory with training.state_tier: host, or by itself when the "     \
    "budget asks for it; write false"
#define BATCHES                                                                                              \
    "the effective batch is constant and the planner chooses the micro-batch; pin it with "                  \
    "training.micro_batch_size, or remove the key"

static const struct {
    const char *key;
    size_t section; /* of the bool that turns the key's section off; 0: none does */
    bool on_card;   /* a CPU grants it */
    const char *instead;
} denied[] = {
    {"training.deepspeed.zero_stage", AT(wishes.use_deepspeed), false,
     "there is one rank, so there is nothing to shard; write 0, and a budget: what does not fit is "
     "offloaded"},
    {"training.deepspeed.nvme_offload", AT(wishes.use_deepspeed), false,
     "write training.state_tier: disk instead (under a GPU: host), or only a budget: what does not fit is "
     "offloaded"},
    {"training.deepspeed.cpu_offload", AT(wishes.use_deepspeed), true, OFFLOAD},
    {"training.memory.enable_cpu_offload", 0, true, OFFLOAD},
    {"training.memory.pool_size_gb", 0, false, "there is no pool beside the plan; write budget instead"},
    {"training.dynamic_batching.min_batch_size", AT(wishes.dynamic_batching), false, BATCHES},
    {"training.dynamic_batching.max_batch_size", AT(wishes.dynamic_batching), false, BATCHES},
    {"training.dynamic_batching.target_memory_utilization", AT(wishes.dynamic_batching), false,
     "write training.memory.target_utilization, or a budget, instead"},
};
enum { DENIED = sizeof denied / sizeof *denied };

static bool section_is_off(const struct job *job, size_t section)
{
    return section && !*(const bool *)((const char *)job + section);
}

enum plim_status job_check_wishes(const struct job *job, bool on_card, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < DENIED && status == PLIM_OK; i++) {
        const struct schema_row *row = schema_find(&job_schema, denied[i].key);
        struct strbuf value = STRBUF_INIT;
        schema_value(row, job, &value);
        bool asked = strcmp(strbuf_text(&value), row->fallback) != 0;
        if (asked && denied[i].on_card == on_card && !section_is_off(job, denied[i].section))
            status = plim_fail(err, PLIM_UNSUPPORTED, "%s: key '%s': %s is not supported: %s", job->name,
                               row->path, strbuf_text(&value), denied[i].instead);
        strbuf_release(&value);
    }
    return status;
}
