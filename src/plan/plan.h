/* plan.h - a plan is data: knobs, tape, offsets, peaks per tier, predicted time. `plimsoll plan` prints it and
 * `plimsoll train` executes the very same object.
 *
 *     struct plan_request request = {.facts = &facts, .budget = bytes, .overhead = measured, .rows = 32,
 *                                    .time = 256, .layers = 8, .compute = compute_tape, .place = place_tape,
 *                                    .build_arg = &job};
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
#include "plan/knobs.h"
#include "plan/layout.h"

enum { PLAN_LENGTHS = 9 }; /* at most: see plan_request.lengths */

struct plan_request {
    const struct device_facts *facts;
    int64_t budget;      /* bytes in all; on a device with its own memory: bytes on the device */
    int64_t host_budget; /* host bytes in all, for a device with its own memory; 0: no limit */
    int64_t overhead;    /* host bytes outside the arena: code, stacks, heap */
    int64_t
        search_line; /* what overhead, `beside` and the tapes of the search may reach together; 0: no limit */
    int64_t beside;  /* bytes that others hold of search_line while plans are compared */
    int64_t rows;    /* effective batch of this rank */
    int64_t time;    /* T, tokens per row */
    int64_t source_time; /* S, of the source beside them; 0: there is none */
    int layers;
    int64_t micro_least, micro_most; /* rows of a micro-batch, where it is not pinned; 0: no limit */
    bool whole_passes;               /* contrastive rows are compared within a pass: it is never split */
    int lengths; /* tapes of the loop, for rows of several lengths, that take turns over the plan's arena; 0: one */
    bool needs_global_norm; /* clipping or loss scaling: the optimizer cannot run inside backward */
    bool host_updates;      /* a host's CPU can make this optimizer's updates */
    bool whole_grads;       /* ranks sum gradients once a step, not in every micro-batch */
    bool may_keep_gathered; /* what stage 3 gathers for forward may stay whole until backward */
    bool whole_state;       /* this optimizer's state cannot be in pieces */
    struct knobs pins;
    /* The tape of one set of knobs (all of them set) for request->facts is made in two steps. `compute` writes what is
     * computed, and in what order, into `out`, initialised or used before: forward, backward, recomputation, updates; or one
     * part of it, where the update does not run inside backward. `place` says where it all lives, with the copies between
     * tiers. The first depends on plan_compute_knobs alone. */
    enum plim_status (*compute)(const struct plan_request *request, const struct knobs *, enum tape_part,
                                struct tape *out, struct plim_error *);
    enum plim_status (*place)(const struct plan_request *request, const struct knobs *, struct tape *,
                              struct plim_error *);
    const void *build_arg;
    const void *variant; /* for compute and place: what is otherwise; NULL: nothing */
};

struct plan {
    bool fits;
    struct knobs knobs;
    struct tape tape;
    struct layout layout;
    int64_t budget, overhead;
    int64_t total; /* what the budget is held against: the process on the CPU, the device's bytes on a GPU */
    int64_t device, host, disk;
    int64_t planning;    /* of overhead, what comparing plans took beyond the plan itself */
    double step_seconds; /* predicted, one optimizer step */
    struct plan_search_report {
        double gap; /* no plan that fits is faster by more than this share, as far as the axes are ordered */
        int tapes;  /* built on the way */
        int64_t work;   /* ops of all of them */
        double seconds; /* it took */
    } search;
};

/* The fastest predicted plan that fits. PLIM_NO_FIT: the smallest plan there is, and the bytes missing in err; or, where
 * looking for it takes more than search_line, a plan without a tape whose total is a byte above it. */
enum plim_status plan_search(const struct plan_request *request, struct plan *out, struct plim_error *err);

/* The plan of exactly these knobs, whatever the budget (fits says whether it holds). */
enum plim_status plan_make(const struct plan_request *request, const struct knobs *knobs, struct plan *out,
                           struct plim_error *err);

/* Largest tape (layout included) that the search may build under search_line; INT64_MAX: no limit. Building takes more
 * than the tape itself: ops are written from one list into another, and packing sorts them all. plan_needs: the line that a
 * tape of so many bytes needs. */
int64_t plan_tape_most(const struct plan_request *request);
int64_t plan_needs(const struct plan_request *request, int64_t tape);
/* PLIM_NO_FIT: so large a tape is more than search_line allows. */
enum plim_status plan_refuse_search(const struct plan_request *request, int64_t tape, struct plim_error *err);

/* Does it hold both lines? */
bool plan_within(const struct plan_request *request, int64_t total, int64_t host);

/* What plan_bound_of and the oracle find of a set of knobs. */
struct plan_bound {
    int64_t total, host;
    int64_t own;  /* of the host's bytes, the plan's own data structures */
    int64_t tape; /* of them, the tape and layout that making the plan builds at once; of the oracle alone */
    double step_seconds;
};

/* The knobs that what is computed depends on; the others are 0. */
struct knobs plan_compute_knobs(const struct knobs *knobs);

/* Bytes of the device outside the arena: what the context takes, and programs of further lengths. */
int64_t plan_device_overhead(const struct plan_request *request);

/* What the two lines are held against: an arena of so many bytes, the plan's own data structures, and what is offloaded to
 * the host; where something is on disk, the buffers it goes through. */
void plan_lines(const struct plan_request *request, int64_t arena, int64_t own, int64_t on_host, bool on_disk,
                struct plan_bound *out);

/* The totals of a plan whose layout stands, with an arena of so many bytes. A budget of 0 is none: it fits. */
void plan_sum(struct plan *plan, const struct plan_request *request, int64_t arena, int64_t own);

/* What tape and layout take themselves, by part: megabytes, when offloaded updates are cut into many slices. */
struct plan_own {
    int64_t loop, update;
};
struct plan_own plan_own_bytes(const struct tape *tape, const struct layout *layout);
/* The same with the tapes of shorter rows, where the request has such. */
struct plan_own plan_own_all(const struct plan_request *request, const struct tape *tape,
                             const struct layout *layout);

/* How tapes of these knobs are laid out. */
struct layout_options plan_layout_options(const struct plan_request *request, const struct knobs *knobs);

/* Bytes and time of the plan of these knobs, without packing. `room` is a tape to work in; a caller that asks often keeps
 * one and saves the time its memory takes (NULL: none). */
enum plim_status plan_bound_of(const struct plan_request *request, const struct knobs *knobs,
                               struct tape *room, struct plan_bound *out, struct plim_error *err);

/* No tricks and the whole batch at once: what people call the naive need. */
struct knobs knobs_naive(const struct plan_request *request);

void plan_release(struct plan *plan);

#endif
