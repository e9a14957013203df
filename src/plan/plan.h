/* plan.h - a plan is data: knobs, tape, offsets, peaks per tier, predicted time. `plimsoll plan` prints it and
 * `plimsoll train` executes the very same object.
 *
 *     struct plan_request request = {.facts = &facts, .budget = bytes, .overhead = measured, .rows = 32,
 *                                    .time = 256, .layers = 8, .build = build_tape, .build_arg = &job};
 *     knobs_open(&request.pins);                    // every knob is the planner's
 *     struct plan plan;
 *     switch (plan_search(&request, &plan, &err)) {
 *     case PLIM_OK: ...                             // plan.knobs, plan.tape, plan.layout
 *     case PLIM_NO_FIT: ...                         // err says by how many bytes; plan holds the smallest one
 *     }
 *     plan_release(&plan);
 *
 * plan/ knows neither models nor backends: a callback makes the tape for a set of knobs, the facts say what the
 * device gives. Knobs that change the mathematics (effective batch, optimizer, precision) are never searched.
 */
#ifndef PLIM_PLAN_PLAN_H
#define PLIM_PLAN_PLAN_H

#include "plan/facts.h"
#include "plan/layout.h"
#include "tape/pass.h"

/* What the search may choose. In pins, KNOB_OPEN leaves the choice to the planner. */
#define KNOB_OPEN (-1)

struct knobs {
    int64_t micro_batch;  /* rows of one micro-batch */
    int64_t accumulation; /* micro-batches per optimizer step: rows / micro_batch */
    int recompute;        /* enum recompute */
    int full_layers;      /* so many first layers, or those behind the parked ones, are recomputed in full */
    int loss_chunks;      /* slices of the output projection and loss */
    int optimizer_in_backward;
    int state_tier; /* enum tier of moments and masters */
    int grad_tier;  /* enum tier where gradients wait between micro-batches */
    int state_share; /* of OFFLOAD_SHARES parts of the state, so many are on state_tier; 0 when that is the device */
    int host_share; /* of OFFLOAD_SHARES slices of an update of state in host memory, so many the CPU does */
    int param_tier; /* enum tier of parameters while no op reads them */
    int param_share; /* of OFFLOAD_SHARES parts of them, so many are on param_tier; 0 when that is the device */
    int offload_layers; /* so many first layers' activations wait in a GPU's host memory for backward */
    int late; /* 1: what a GPU's host holds is fetched shortly before it is used, which takes least of the device */
};

void knobs_open(struct knobs *pins);

/* "device", "disk", "host (25 % of it), updated there" */
const char *knobs_state_text(const struct knobs *knobs, char *buf, size_t size);

/* "device", "host (50 % of it)" */
const char *knobs_param_text(const struct knobs *knobs, char *buf, size_t size);

/* "", ", activations of 2 layers wait on the host" */
const char *knobs_parked_text(const struct knobs *knobs, char *buf, size_t size);

/* "none", "selective", "full", "selective + 6 layers in full" */
const char *knobs_recompute_text(const struct knobs *knobs, char *buf, size_t size);

struct plan_request {
    const struct device_facts *facts;
    int64_t budget;      /* bytes in all; on a device with its own memory: bytes on the device */
    int64_t host_budget; /* host bytes in all, for a device with its own memory; 0: no limit */
    int64_t overhead;    /* host bytes outside the arena: code, stacks, heap */
    int64_t rows;        /* effective batch of this rank */
    int64_t time;        /* T, tokens per row */
    int layers;
    bool needs_global_norm; /* clipping or loss scaling: the optimizer cannot run inside backward */
    struct knobs pins;
    /* Makes the tape of one set of knobs (all of them set) in `out`, initialised or used before. */
    enum plim_status (*build)(void *arg, const struct knobs *, struct tape *out, struct plim_error *);
    void *build_arg;
};

struct plan {
    bool fits;
    struct knobs knobs;
    struct tape tape;
    struct layout layout;
    int64_t budget, overhead;
    int64_t total; /* what the budget is held against: the process on the CPU, the device's bytes on a GPU */
    int64_t device, host, disk;
    double step_seconds; /* predicted, one optimizer step */
    double search_seconds;
    int tried; /* tapes built on the way */
};

/* The fastest predicted plan that fits. PLIM_NO_FIT: the smallest plan there is, and the bytes missing in err. */
enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err);

/* The plan of exactly these knobs, whatever the budget (fits says whether it holds). */
enum plim_status plan_make(const struct plan_request *request, const struct knobs *knobs, struct plan *out,
                           struct plim_error *err);

/* Does it hold both lines? */
bool plan_within(const struct plan_request *request, int64_t total, int64_t host);

/* Only its total bytes and time, without packing. `room` is a tape to work in; who asks often keeps one and saves the
 * time its memory takes (NULL: none). */
struct plan_bound {
    int64_t total, host;
    double step_seconds;
};
enum plim_status plan_bound_of(const struct plan_request *request, const struct knobs *knobs,
                               struct tape *room, struct plan_bound *out, struct plim_error *err);

/* No tricks and the whole batch at once: what people call the naive need. */
struct knobs knobs_naive(const struct plan_request *request);

void plan_release(struct plan *plan);

#endif
