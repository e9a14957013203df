/* search_clash.c - which settings leave nothing to plan. Each limit of a request is lifted in turn: where there is still nothing, it has
 * no part in it and stays lifted; where something is possible then, it comes back. What remains excludes each other, and without
 * any one of it there is a plan. */
#include "plan/search_internal.h"

#include <stddef.h>

/* Keys that constrain the search in addition to pins. Adafactor also sums gradients once per step; it is relaxed
 * after these, and named. */
static const struct {
    const char *key;
    size_t offset; /* of a bool of struct plan_request */
} flags[] = {
    {"training.optimizer: adafactor", offsetof(struct plan_request, whole_state)},
    {"training.mixed_precision: fp16", offsetof(struct plan_request, needs_global_norm)}, /* others: job.c */
    {"training.zero.sum_gradients: step", offsetof(struct plan_request, whole_grads)},
};
static const char largest[] = "the largest micro-batch (training.max_micro_batch_size, dynamic_batching)";
enum { FLAGS = sizeof flags / sizeof *flags, LIMITS = KNOB_COUNT + FLAGS + 1 };

static const char *limit_key(int limit)
{
    if (limit < KNOB_COUNT) return knob_rows[limit].key;
    return limit < KNOB_COUNT + FLAGS ? flags[limit - KNOB_COUNT].key : largest;
}

static void lift(struct plan_request *r, int limit)
{
    if (limit < KNOB_COUNT)
        knob_set(&r->pins, limit, KNOB_OPEN);
    else if (limit < KNOB_COUNT + FLAGS)
        *(bool *)(void *)((char *)r + flags[limit - KNOB_COUNT].offset) = false;
    else
        r->micro_most = 0;
}

static bool is_possible(const struct plan_request *r)
{
    struct space space;
    bool possible = false;
    if (space_init(&space, r, NULL) == PLIM_OK)
        for (struct point p = {0}; p.at[AXIS_PLACE] < space.nplaces; p.at[AXIS_PLACE]++)
            possible = possible || space_count(&space, AXIS_MICRO, &p) > 0;
    space_release(&space);
    return possible;
}

/* The limits that exclude each other, the last first; how many. */
static int find_limits(const struct plan_request *request, int found[LIMITS])
{
    struct plan_request r = *request;
    int count = 0;
    if (is_possible(&r)) return 0;
    for (int i = LIMITS - 1; i >= 0; i--) {
        struct plan_request without = r;
        lift(&without, i);
        if (!is_possible(&without))
            r = without;
        else if (limit_key(i))
            found[count++] = i;
    }
    return count;
}

enum plim_status search_name_clash(const struct plan_request *request, struct plim_error *err)
{
    struct strbuf keys = STRBUF_INIT;
    int found[LIMITS], count = find_limits(request, found);
    for (int i = count - 1; i >= 0; i--)
        strbuf_addf(&keys, "%s%s", limit_key(found[i]), i > 1 ? ", " : i == 1 ? " and " : "");
    bool forward = count == 1 && found[0] == KNOB_ROW(optimizer_in_forward);
    bool before = count == 1 && found[0] == KNOB_ROW(before_norm_share);
    enum plim_status status =
        forward ? plim_fail(err, PLIM_BAD_INPUT,
                            "%s needs one rank, rows of one length, and a device whose ops run one by one; "
                            "remove it",
                            strbuf_text(&keys))
        : before
            ? plim_fail(err, PLIM_BAD_INPUT,
                        "%s needs one rank, the whole batch in one micro-batch, state and gradients in a "
                        "GPU's host memory, and adamw or sgd; remove it",
                        strbuf_text(&keys))
        : count == 0 ? plim_fail(err, PLIM_BAD_INPUT, "the pinned settings exclude each other")
        : count == 1
            ? plim_fail(err, PLIM_BAD_INPUT, "%s is not possible here; remove it", strbuf_text(&keys))
            : plim_fail(err, PLIM_BAD_INPUT, "%s exclude each other; remove one", strbuf_text(&keys));
    strbuf_release(&keys);
    return status;
}
