/* pins.c - the knobs that a job's keys pin. Which key pins which knob is a column of knob_rows (plan/knobs.h). */
#include "job/job.h"

/* A key's value as its knob counts: a share of updates is so many of OFFLOAD_SHARES parts. */
static int64_t said(const struct job *job, const char *key)
{
    const struct schema_row *row = schema_find(&job_schema, key);
    const void *field = (const char *)job + row->offset;
    switch (row->kind) {
    case SCHEMA_BOOL:
        return *(const bool *)field;
    case SCHEMA_INT64:
        return *(const int64_t *)field;
    case SCHEMA_FLOAT:
        return (int64_t)(*(const double *)field * OFFLOAD_SHARES + 0.5);
    default:
        return *(const int *)field; /* an enum */
    }
}

const char *job_pin_name(const struct job *job, int knob)
{
    const char *key = knob_rows[knob].key, *other = "training.gradient_checkpointing";
    int other_says = job->training.checkpointing ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    if (knob == KNOB_ROW(recompute) && job_key_given(job, other) && job->training.recompute == other_says)
        key = other; /* two words for one thing are one pin */
    return key && job_key_given(job, key) ? job_key_name(job, key) : NULL;
}

/* Under a GPU what is on disk is offloaded to the host, and from there further down: parameters after all state. A tier that
 * is pinned has all of it. */
static void pin_disk(const struct job *job, const struct device_facts *facts, struct knobs *pins)
{
    const struct job_wishes *w = &job->wishes;
    bool state = pins->state_tier == TIER_DISK, param = pins->param_tier == TIER_DISK;
    bool forbidden = w->use_deepspeed && job_given(job, &w->nvme_offload) && !w->nvme_offload;
    if (forbidden || (pins->state_tier == TIER_HOST && !param)) pins->disk_share = 0;
    if (facts->disk_bandwidth <= 0 || !(state || param)) return;
    pins->disk_share = param ? 2 * OFFLOAD_SHARES : OFFLOAD_SHARES;
    if (state || pins->state_tier == KNOB_OPEN) pins->state_tier = TIER_HOST;
    if (param) pins->param_tier = TIER_HOST;
}

static int64_t at_most(int64_t value, int64_t most) { return value < most ? value : most; }

void job_pins(const struct job *job, const struct device_facts *facts, unsigned left_out, struct knobs *pins)
{
    int layers = model_layers(&job->spec); /* those that the model does not have are not counted */
    knobs_open(pins);
    for (int i = 0; i < KNOB_COUNT; i++)
        if (!(left_out >> i & 1) && job_pin_name(job, i)) knob_set(pins, i, said(job, knob_rows[i].key));
    if (job_whole_passes(job)) /* samples of a batch are compared with each other */
        pins->micro_batch = job->training.batch_size;
    if (pins->recompute != KNOB_OPEN && pins->full_layers == KNOB_OPEN) pins->full_layers = 0;
    pins->offload_layers = at_most(pins->offload_layers, layers);
    pins->full_layers =
        at_most(pins->full_layers, pins->offload_layers > 0 ? layers - pins->offload_layers : layers);
    if (!facts->unified_memory) pin_disk(job, facts, pins);
}
