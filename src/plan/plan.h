/* plan.h - a plan is data: knobs, tape, offsets, peaks per tier, predicted time. `plimsoll plan` prints it, and
 * `plimsoll train` executes the same object.
 *
 *     struct plan_request request = {.facts = &facts, .budget = bytes, .overhead = measured, .rows = 32,
 *                                    .time = 256, .layers = 8, .compute = compute_tape, .place = place_tape,
 *                                    .build_arg = &job};
 *     knobs_open(&request.pins);                    // the planner chooses every knob
 *     struct plan plan;
 *     switch (plan_search(&request, &plan, &err)) {
 *     case PLIM_OK: ...                             // plan.knobs, plan.tape, plan.layout
 *     case PLIM_NO_FIT: ...                         // err says by how many bytes; plan holds the smallest one
 *     }
 *     plan_release(&plan);
 *
 * plan/ knows neither models nor backends: a callback makes the tape for a set of knobs, and facts describe the
 * device. Knobs that change the mathematics (effective batch, optimizer, precision) are never searched.
 */
#pragma once

#include "plan/facts.h"
#include "plan/knobs.h"
#include "plan/layout.h"

enum { PLAN_LENGTHS = 9 }; /* maximum of plan_request.lengths */

struct plan_request {
    const struct device_facts *facts;
    int64_t budget;      /* total bytes; for a device with its own memory: bytes on the device */
    int64_t host_budget; /* total host bytes, for a device with its own memory; 0: no limit */
    int64_t overhead;    /* host bytes outside the arena: code, stacks, heap */
    /* Limit for overhead, search_used and the search's tapes together; 0: no limit. */
    int64_t search_line;
    int64_t search_used; /* bytes of search_line that other data occupy while plans are compared */
    int64_t rows;        /* effective batch of this rank */
    int64_t time;        /* T, tokens per row */
    int64_t source_time; /* S, tokens of the source; 0: there is none */
    int layers;
    int64_t micro_least, micro_most; /* limits of the micro-batch if it is not pinned; 0: none */
    bool whole_passes;               /* contrastive rows are compared within a pass, so it is never split */
    int lengths; /* number of loop tapes for rows of several lengths, which share the arena in turn; 0: one */
    int programs;           /* of forward passes that will be recorded; 0: few */
    bool forward_tape;      /* an evaluation or a reference's pass has a tape of its own beside the step's */
    bool needs_global_norm; /* clipping or loss scaling: the optimizer cannot run inside backward */
    bool
        clips_seldom; /* the search may take updates before the norm, which gain where clipping seldom binds */
    bool host_updates;      /* the host's CPU can run this optimizer's updates */
    bool whole_grads;       /* ranks sum gradients once a step, not in every micro-batch */
    bool may_keep_gathered; /* parameters gathered for forward (stage 3) may stay whole until backward */
    bool whole_state;       /* this optimizer's state cannot be sharded */
    bool fp8;               /* products convert weights to fp8, which may be kept for a step */
    struct knobs pins;
    /* The tape for one set of knobs (all of them set) and request->facts is made in two steps. `compute` writes the
     * ops in order into `out`, initialised or used before: forward, backward, recompute, updates; or one part of
     * them, if the update does not run inside backward. `place` assigns tiers and adds the copies between them. The
     * first step depends on plan_compute_knobs alone. */
    enum plim_status (*compute)(const struct plan_request *request, const struct knobs *, enum tape_part,
                                struct tape *out, struct plim_error *);
    enum plim_status (*place)(const struct plan_request *request, const struct knobs *, struct tape *,
                              struct plim_error *);
    const void *build_arg;
    const void *variant; /* for compute and place: a modification; NULL: none */
};

struct plan {
    bool fits;
    struct knobs knobs;
    struct tape tape;
    struct layout layout;
    int64_t budget, overhead;
    int64_t total; /* compared with the budget: the process's bytes on the CPU, the device's bytes on a GPU */
    int64_t device, host, disk;
    int64_t
        beside_arena;    /* part of device: the context, programs for further lengths, a large step's graph */
    int64_t planning;    /* part of overhead that comparing plans took beyond the plan itself */
    double step_seconds; /* predicted, one optimizer step */
    struct plan_search_report {
        double gap;     /* no fitting plan is faster by more than this share, assuming ordered axes */
        int tapes;      /* number of tapes built */
        int64_t work;   /* total ops of these tapes */
        double seconds; /* time of the search */
    } search;
};

/* Finds the fastest predicted plan that fits. PLIM_NO_FIT: err names the missing bytes and *out is the smallest plan;
 * or, if finding that would exceed search_line, a plan without a tape whose total is one byte above it. */
enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err);

/* Makes the plan of exactly these knobs, regardless of the budget (`fits` tells). */
enum plim_status plan_make(const struct plan_request *request, const struct knobs *knobs, struct plan *out,
                           struct plim_error *err);

/* Largest tape (with layout) that the search may build under search_line; INT64_MAX: no limit. Building takes more
 * than the tape itself: ops are copied from one list to another, and packing sorts them all. plan_needs: the
 * search_line that a tape of this size needs. */
int64_t plan_tape_most(const struct plan_request *request);
int64_t plan_needs(const struct plan_request *request, int64_t tape);
/* PLIM_NO_FIT: the tape is too large for search_line. */
enum plim_status plan_refuse_search(const struct plan_request *request, int64_t tape, struct plim_error *err);

/* True if it fits both budgets. */
bool plan_within(const struct plan_request *request, int64_t total, int64_t host);

/* Bounds for one set of knobs, from plan_bound_of or the oracle. */
struct plan_bound {
    int64_t total, host;
    int64_t own;  /* part of host: the plan's own data structures */
    int64_t tape; /* part of own: tape and layout built at once to make the plan; set by the oracle only */
    double step_seconds;
};

/* Returns the knobs that the computation depends on; the others are 0. */
struct knobs plan_compute_knobs(const struct knobs *knobs);

/* Fills the two totals that are compared with the budgets. Inputs: the arena's bytes, the plan's own data structures,
 * bytes offloaded to the host, and whether disk buffers are needed. */
void plan_lines(const struct plan_request *request, const struct knobs *knobs, int64_t arena, int64_t own,
                int64_t on_host, bool on_disk, struct plan_bound *out);

/* Sets the totals of a plan with a finished layout and an arena of this size. A budget of 0 means no limit: it fits. */
void plan_sum(struct plan *plan, const struct plan_request *request, int64_t arena, int64_t own);

/* Memory of tape and layout themselves, by part. It reaches megabytes when offloaded updates are cut into many
 * slices. */
struct plan_own {
    int64_t loop, update;
};
struct plan_own plan_own_bytes(const struct tape *tape, const struct layout *layout);
/* Like plan_own_bytes, plus the tapes of shorter rows and of forward passes if the request has them. */
struct plan_own plan_own_all(const struct plan_request *request, const struct tape *tape,
                             const struct layout *layout);

/* Options for laying out tapes of these knobs. */
struct layout_options plan_layout_options(const struct plan_request *request, const struct knobs *knobs);

/* Bytes and time of these knobs' plan, without packing. `room` is a tape to reuse: callers that ask often
 * keep one and save allocations (NULL: none). */
enum plim_status plan_bound_of(const struct plan_request *request, const struct knobs *knobs,
                               struct tape *room, struct plan_bound *out, struct plim_error *err);

/* The naive need: no memory-saving techniques and the whole batch at once. */
struct knobs knobs_naive(const struct plan_request *request);

void plan_release(struct plan *plan);
