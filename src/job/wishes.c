/* wishes.c - keys that ask for the same thing in other words, and what other frameworks' words pin.
 *
 * Two names for one wish may both be given while they agree. A key that would silently do nothing is an error that says
 * what to write instead; at its default it asks for nothing. */
#include "job/deepspeed.h"
#include "job/job.h"
#include "job/preset.h"

#include <stdio.h>
#include <string.h>

/* ---- the same wish in other words ---- */

/* Each of these is asked when both keys of its pair are given. */
static bool both_narrow(const struct job *job) { return job->training.fp16 && job->training.bf16; }

static bool fp16_clash(const struct job *job)
{
    return job->training.fp16 != (job->training.precision == PRECISION_F16);
}

static bool bf16_clash(const struct job *job)
{
    return job->training.bf16 != (job->training.precision == PRECISION_BF16);
}

static bool recompute_clash(const struct job *job)
{
    return job->training.checkpointing != (job->training.recompute != RECOMPUTE_NONE);
}

/* DeepSpeed's section counts while it is on. */
static bool deepspeed_recompute_clash(const struct job *job)
{
    return job->wishes.use_deepspeed &&
           job->wishes.checkpointing != (job->training.recompute != RECOMPUTE_NONE);
}

static bool deepspeed_checkpointing_clash(const struct job *job)
{
    return job->wishes.use_deepspeed && job->wishes.checkpointing != job->training.checkpointing;
}

static bool zero_clash(const struct job *job)
{
    return job->wishes.use_deepspeed && job->wishes.zero_stage != job->training.zero;
}

/* DeepSpeed's devices as tiers. */
static const enum tier tiers[] = {
    [OFFLOAD_NONE] = TIER_DEVICE, [OFFLOAD_CPU] = TIER_HOST, [OFFLOAD_NVME] = TIER_DISK};

static bool state_clash(const struct job *job)
{
    return job->training.state_tier != (int)tiers[job->wishes.offload_optimizer];
}

static bool param_clash(const struct job *job)
{
    return job->training.param_tier != (int)tiers[job->wishes.offload_param];
}

static bool tf32_clash(const struct job *job)
{
    return job->training.tf32 != (job->training.matmul_precision != MATMUL_HIGHEST);
}

static bool floor_clash(const struct job *job)
{
    return job->schedule.min_lr > 0 && job->schedule.min_lr_ratio > 0;
}

static bool warmup_clash(const struct job *job)
{
    return job->schedule.warmup_steps > 0 && job->schedule.warmup_ratio > 0;
}

static const struct pair {
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
    {"training.zero_stage", "training.deepspeed.zero_stage", zero_clash},
    {"training.state_tier", "training.deepspeed.offload_optimizer", state_clash},
    {"training.param_tier", "training.deepspeed.offload_param", param_clash},
    {"performance.float32_matmul_precision", "training.tf32", tf32_clash},
    {"training.warmup_steps", "training.warmup_ratio", warmup_clash},
    {"training.min_lr", "training.min_lr_ratio", floor_clash},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static bool clashes(const struct job *job, const struct pair *pair)
{
    return job_key_given(job, pair->a) && job_key_given(job, pair->b) && pair->clashes(job);
}

/* "training.bf16: true" */
static void put_key(const struct job *job, const char *key, struct strbuf *out)
{
    const struct origin *o = job_origin(job, key);
    strbuf_addf(out, "%s: ", key);
    schema_value(schema_find(&job_schema, key), job, out);
    if (o->kind != ORIGIN_DEFAULT)
        strbuf_addf(out, " (%s%s%s)", o->where, o->name ? ", " : "", o->name ? o->name : "");
}

enum plim_status job_agree(struct job *job, struct plim_error *err)
{
    struct job_training *t = &job->training;
    const struct job_wishes *w = &job->wishes;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < PAIRS && status == PLIM_OK; i++) {
        STRBUF_AUTO a = STRBUF_INIT, b = STRBUF_INIT;
        if (!clashes(job, &pairs[i])) continue;
        put_key(job, pairs[i].a, &a);
        put_key(job, pairs[i].b, &b);
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: %s and %s contradict each other; keep one", job->name,
                           strbuf_text(&a), strbuf_text(&b));
    }
    if (status != PLIM_OK || !w->use_deepspeed) return status;
    if (job_given(job, &w->checkpointing) && w->checkpointing && !job_given(job, &t->recompute) &&
        !job_given(job, &t->checkpointing)) {
        t->checkpointing = true;
        job_origin_follow(job, "training.gradient_checkpointing",
                          "training.deepspeed.activation_checkpointing");
    }
    if (job_given(job, &w->zero_stage) && !job_given(job, &t->zero)) {
        t->zero = w->zero_stage;
        job_origin_follow(job, "training.zero_stage", "training.deepspeed.zero_stage");
    }
    return status;
}

/* As if it had not been given. */
static enum plim_status drop_key(struct job *job, const char *key, struct plim_error *err)
{
    struct origin_recorder recorder;
    return schema_set(&job_schema, key, "", job, &job->store,
                      origin_record(&recorder, job, ORIGIN_DEFAULT, NULL), err);
}

enum plim_status job_override(struct job *job, const char *key, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < PAIRS && status == PLIM_OK; i++) {
        bool is_a = !strcmp(key, pairs[i].a), is_b = !strcmp(key, pairs[i].b);
        const char *other = is_a ? pairs[i].b : pairs[i].a;
        if ((!is_a && !is_b) || !clashes(job, &pairs[i]) || pairs[i].clashes == both_narrow) continue;
        if (job_origin(job, other)->kind < ORIGIN_SET) status = drop_key(job, other, err);
    }
    return status;
}

/* ---- what the words of other frameworks pin ---- */

/* A status that comes before the one below it is never seen. */
static enum plim_status check_thresholds(const struct job *job, struct plim_error *err)
{
    struct profile p;
    job_thresholds(job, &p);
    const struct {
        const char *key;
        double value;
    } lines[] = {{"warning_threshold", p.warning},
                 {"critical_threshold", p.critical},
                 {"emergency_threshold", p.emergency}};
    for (int i = 0; i < 2; i++)
        if (lines[i].value > lines[i + 1].value)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: training.memory.%s %g is above %s %g; write them in rising order",
                             job->name, lines[i].key, lines[i].value, lines[i + 1].key, lines[i + 1].value);
    return PLIM_OK;
}

/* Arguments that only some schedules take. */
#define OF(kind) (1u << SCHEDULE_##kind)
#define FALLING                                                                                              \
    (OF(LINEAR) | OF(COSINE) | OF(WSD) | OF(GREEDY) | OF(RESTARTS) | OF(POLYNOMIAL)) /* to min_lr */

static const struct schedule_key {
    const char *key; /* a section, where it ends with a dot */
    unsigned kinds;
    const char *names;
} schedule_keys[] = {
    {"training.min_lr", FALLING, "schedules that fall to it"},
    {"training.min_lr_ratio", FALLING, "schedules that fall to it"},
    {"training.lr_cycles", OF(COSINE) | OF(RESTARTS) | OF(WSD), "cosine, cosine_with_restarts and wsd"},
    {"training.lr_power", OF(POLYNOMIAL), "polynomial"},
    {"training.lr_timescale", OF(INVERSE_SQRT), "inverse_sqrt"},
    {"training.decay_steps", OF(WSD), "wsd"},
    {"training.stable_steps", OF(WSD), "wsd"},
    {"training.decay_type", OF(WSD), "wsd"},
    {"training.greedy.", OF(GREEDY), "greedy"},
};

enum { SCHEDULE_KEYS = sizeof schedule_keys / sizeof *schedule_keys };

static bool is_for(const struct schedule_key *row, const char *key)
{
    size_t len = strlen(row->key);
    return row->key[len - 1] == '.' ? !strncmp(row->key, key, len) : !strcmp(row->key, key);
}

/* An argument that the schedule does not look at would be a wish that nobody hears. */
static enum plim_status check_schedule(const struct job *job, struct plim_error *err)
{
    const struct schema_row *kind = schema_find(&job_schema, "training.lr_scheduler");
    for (size_t i = 0; i < job_schema.count; i++) {
        const char *key = job_schema.rows[i].path;
        size_t k = 0;
        while (k < SCHEDULE_KEYS && !is_for(&schedule_keys[k], key)) k++;
        if (k == SCHEDULE_KEYS || schedule_keys[k].kinds >> job->schedule.kind & 1 ||
            !job_key_given(job, key))
            continue;
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key '%s' is for %s, and training.lr_scheduler is %s; remove it, or choose another "
            "schedule",
            job_origin(job, key)->where, job_key_name(job, key), schedule_keys[k].names,
            kind->names[job->schedule.kind]);
    }
    return PLIM_OK;
}

enum plim_status job_check_wishes(struct job *job, struct plim_error *err)
{
    enum plim_status scheduled = check_schedule(job, err);
    if (scheduled != PLIM_OK) return scheduled;
    const struct job_batching *b = &job->batching;
    deepspeed_settle_ratios(job);
    if (b->enabled && b->max && b->max < b->min)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: training.dynamic_batching: max_batch_size %lld is below min_batch_size %lld; "
                         "swap them",
                         job->name, (long long)b->max, (long long)b->min);
    if (job->training.save_strategy == EVERY_NEVER) job->training.save_every = 0;
    const struct job_wishes *w = &job->wishes;
    const char *param = "training.deepspeed.offload_param";
    if (job_given(job, &w->offload_param) && w->offload_param != OFFLOAD_NONE &&
        job_given(job, &job->training.zero) && job->training.zero < ZERO_PARAMS)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: %s: parameters are offloaded with stage 3 alone, and it is %lld; write 3, or none",
            job_origin(job, param)->where, job_key_name(job, param), (long long)job->training.zero);
    return check_thresholds(job, err);
}

/* A tier that a word of DeepSpeed pins; the key that has the same meaning may say so, too. */
static enum plim_status pin_tier(struct job *job, const char *from, const char *key, enum tier tier,
                                 struct plim_error *err)
{
    int *field = (int *)(void *)((char *)job + schema_find(&job_schema, key)->offset);
    struct strbuf word = STRBUF_INIT;
    enum plim_status status = PLIM_OK;
    put_key(job, from, &word);
    if (!job_given(job, field))
        job_origin_follow(job, key, from);
    else if (*field != (int)tier)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: %s and %s: %s contradict each other; keep one",
                           job->name, strbuf_text(&word), key, tier_name((enum tier) * field));
    strbuf_release(&word);
    *field = (int)tier;
    return status;
}

static const char state_tier[] = "training.state_tier", grad_tier[] = "training.grad_tier",
                  param_tier[] = "training.param_tier";

/* Everything stays on the device, because `from` says so. */
static enum plim_status pin_all(struct job *job, const char *from, struct plim_error *err)
{
    struct job_training *t = &job->training;
    enum plim_status status = pin_tier(job, from, state_tier, TIER_DEVICE, err);
    if (status == PLIM_OK) status = pin_tier(job, from, grad_tier, TIER_DEVICE, err);
    if (status == PLIM_OK) status = pin_tier(job, from, param_tier, TIER_DEVICE, err);
    if (status == PLIM_OK && t->offload_layers > 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: %s: false and training.offload_layers: %lld contradict each other; keep one",
                         job->name, from, (long long)t->offload_layers);
    if (status == PLIM_OK && !job_given(job, &t->offload_layers))
        job_origin_follow(job, "training.offload_layers", from);
    return status;
}

static bool says_no(const struct job *job, const bool *field) { return job_given(job, field) && !*field; }

/* Words for offloading that say false. What they name is a GPU's host, or a CPU's disk. */
static enum plim_status forbid_offload(struct job *job, const struct device_facts *facts,
                                       struct plim_error *err)
{
    const struct job_wishes *w = &job->wishes;
    bool card = !facts->unified_memory, deepspeed = w->use_deepspeed;
    const struct {
        bool said;
        const char *key;
    } words[] = {
        {card && deepspeed && says_no(job, &w->cpu_offload) && !w->nvme_offload,
         "training.deepspeed.cpu_offload"},
        {card && says_no(job, &w->memory_offload), "training.memory.enable_cpu_offload"},
        {!card && deepspeed && says_no(job, &w->nvme_offload), "training.deepspeed.nvme_offload"},
    };
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words && status == PLIM_OK; i++)
        if (words[i].said) status = pin_all(job, words[i].key, err);
    return status;
}

enum plim_status job_grant_wishes(struct job *job, const struct device_facts *facts, struct plim_error *err)
{
    static const char optimizer[] = "training.deepspeed.offload_optimizer";
    const struct job_wishes *w = &job->wishes;
    const char *word = w->nvme_offload ? "training.deepspeed.nvme_offload" : "training.deepspeed.cpu_offload";
    int old = w->nvme_offload ? OFFLOAD_NVME : OFFLOAD_CPU;
    bool both = w->use_deepspeed && (w->nvme_offload || w->cpu_offload);
    bool state = job_given(job, &w->offload_optimizer);
    const struct {
        bool asked;
        const char *from, *key;
        int device; /* enum offload_device */
    } rows[] = {
        {state && w->offload_optimizer == OFFLOAD_NONE && !job_key_given(job, grad_tier), optimizer,
         grad_tier, OFFLOAD_NONE},
        {both, word, state_tier, old},
        {both && w->zero_stage == 3, word, param_tier, old},
        {state, optimizer, state_tier, w->offload_optimizer},
        {job_given(job, &w->offload_param), "training.deepspeed.offload_param", param_tier, w->offload_param},
    };
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == PLIM_OK; i++) {
        bool there = rows[i].device == OFFLOAD_CPU && facts->unified_memory; /* a CPU has all of it there */
        if (rows[i].asked && !there)
            status = pin_tier(job, rows[i].from, rows[i].key, tiers[rows[i].device], err);
    }
    return status == PLIM_OK ? forbid_offload(job, facts, err) : status;
}

static void put_idle(const struct job *job, const char *key, const char *why, struct strbuf *out)
{
    const struct origin *o = job_origin(job, key);
    if (o->kind != ORIGIN_DEFAULT) strbuf_addf(out, "%s, %s: %s\n", o->where, o->name ? o->name : key, why);
}

void job_idle_text(const struct job *job, const struct device_facts *facts, struct strbuf *out)
{
    static const char fraction[] = "training.memory.cuda_memory_fraction";
    static const char *const pieces[] = {
        "training.zero.max_live_parameters", "training.zero.max_reuse_distance",
        "training.zero.prefetch_bucket_size", "training.zero.param_persistence_threshold"};
    if (facts->ranks <= 1) {
        put_idle(job, "training.zero_stage", "there is one rank, so that a stage has nothing to shard", out);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            put_idle(job, pieces[i], "there is one rank, and its parameters are whole", out);
    }
    if (facts->unified_memory)
        put_idle(job, fraction, "the device is a CPU", out);
    else if (job->budget)
        put_idle(job, fraction, "a budget is given", out);
}
