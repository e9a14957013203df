/* knobs.c - the list of knobs, and everything that goes through it. See knobs.h. */
#include "plan/knobs.h"

#include <stdio.h>
#include <string.h>

#define KNOB(member, ...)                                                                                    \
    {                                                                                                        \
        .name = #member, .offset = offsetof(struct knobs, member), __VA_ARGS__                               \
    }

const struct knob_row knob_rows[KNOB_COUNT] = {
    KNOB(micro_batch, .key = "training.micro_batch_size"),
    KNOB(accumulation),
    KNOB(recompute, .form = KNOB_RECOMPUTE, .key = "training.recompute"),
    {.name = "recompute_layers",
     .offset = offsetof(struct knobs, full_layers),
     .key = "training.recompute_layers"},
    KNOB(loss_chunks, .key = "training.loss_chunks"),
    KNOB(optimizer_in_backward, .form = KNOB_FLAG, .key = "training.optimizer_in_backward"),
    KNOB(optimizer_in_forward, .form = KNOB_FLAG, .key = "training.optimizer_in_forward"),
    KNOB(state_tier, .form = KNOB_TIER, .key = "training.state_tier"),
    KNOB(state_share),
    KNOB(host_share, .key = "training.host_update"),
    KNOB(before_norm_share, .key = "training.update_before_norm"),
    KNOB(grad_tier, .form = KNOB_TIER, .key = "training.grad_tier"),
    KNOB(param_tier, .form = KNOB_TIER, .key = "training.param_tier"),
    KNOB(param_share),
    KNOB(disk_share),
    KNOB(offload_layers, .key = "training.offload_layers"),
    KNOB(zero, .key = "training.zero_stage"),
    KNOB(keep_gathered, .form = KNOB_FLAG),
    KNOB(prefetch_ops),
    KNOB(keep_fp8, .form = KNOB_FLAG),
};

int64_t knob_get(const struct knobs *knobs, int row)
{
    return *(const int64_t *)(const void *)((const char *)knobs + knob_rows[row].offset);
}

void knob_set(struct knobs *knobs, int row, int64_t value)
{
    *(int64_t *)(void *)((char *)knobs + knob_rows[row].offset) = value;
}

void knobs_open(struct knobs *pins)
{
    for (int i = 0; i < KNOB_COUNT; i++) knob_set(pins, i, KNOB_OPEN);
}

bool knobs_equal(const struct knobs *a, const struct knobs *b) { return !memcmp(a, b, sizeof *a); }

void knobs_json(struct json_writer *w, const struct knobs *knobs)
{
    for (int i = 0; i < KNOB_COUNT; i++) {
        const struct knob_row *row = &knob_rows[i];
        int64_t value = knob_get(knobs, i);
        switch (row->form) {
        case KNOB_NUMBER:
            json_int(w, row->name, value);
            break;
        case KNOB_FLAG:
            json_bool(w, row->name, value);
            break;
        case KNOB_RECOMPUTE:
            json_str(w, row->name, recompute_name((enum recompute)value));
            break;
        case KNOB_TIER:
            json_str(w, row->name, tier_name((enum tier)value));
            break;
        }
    }
}

const char *knobs_recompute_text(const struct knobs *knobs, char *buf, size_t size)
{
    const char *policy = recompute_name((enum recompute)knobs->recompute);
    int layers = (int)knobs->full_layers;
    if (layers > 0 && knobs->recompute != RECOMPUTE_FULL)
        snprintf(buf, size, "%s + %d layer%s in full", policy, layers, layers == 1 ? "" : "s");
    else
        snprintf(buf, size, "%s", policy);
    return buf;
}

static int percent(int64_t share) { return (int)((100 * share + OFFLOAD_SHARES / 2) / OFFLOAD_SHARES); }

static const char *share_text(int64_t tier, int64_t share, char *buf, size_t size)
{
    if (share > 0 && share < OFFLOAD_SHARES)
        snprintf(buf, size, "%s (%d %% of it)", tier_name((enum tier)tier), percent(share));
    else
        snprintf(buf, size, "%s", tier_name((enum tier)tier));
    return buf;
}

/* Describes the part of it that is on disk. */
static void disk_text(int64_t tier, int64_t share, char *buf, size_t size)
{
    size_t used = strlen(buf);
    if (tier != TIER_HOST || share <= 0) return;
    if (share >= OFFLOAD_SHARES)
        snprintf(buf + used, size - used, ", on disk");
    else
        snprintf(buf + used, size - used, ", %d %% of all on disk", percent(share));
}

const char *knobs_state_text(const struct knobs *knobs, char *buf, size_t size)
{
    share_text(knobs->state_tier, knobs->state_share, buf, size);
    disk_text(knobs->state_tier, knobs->disk_share, buf, size);
    size_t used = strlen(buf);
    if (knobs->host_share >= OFFLOAD_SHARES)
        snprintf(buf + used, size - used, ", updated there");
    else if (knobs->host_share > 0)
        snprintf(buf + used, size - used, ", %d %% of that updated there", percent(knobs->host_share));
    return buf;
}

const char *knobs_param_text(const struct knobs *knobs, char *buf, size_t size)
{
    share_text(knobs->param_tier, knobs->param_share, buf, size);
    disk_text(knobs->param_tier, knobs->disk_share - OFFLOAD_SHARES, buf, size);
    return buf;
}

const char *knobs_activations_text(const struct knobs *knobs, char *buf, size_t size)
{
    int n = (int)knobs->offload_layers;
    buf[0] = '\0';
    if (n > 0) snprintf(buf, size, ", activations of %d layer%s offloaded", n, n == 1 ? "" : "s");
    return buf;
}
