/* engine_part.h - shared by the files of the engine. See engine.h.
 *
 * engine.c is the public part, equal for every kind of model: opening, submitting, waiting. A kind is a table of
 * functions. A decoder's plan is made in engine_offer.c and committed and moved in engine_plan.c (engine_size.h is
 * their interface). engine_step.c runs steps; engine_pass.c fills a step and reads its results. Encoder-decoders are
 * in engine_source.h, encoders in engine_vectors.c.
 *
 * The schedule, the blocks and everything that touches the device belong to the stepping thread. Fields below `lock`
 * are guarded by it.
 */
#ifndef PLIM_SERVE_ENGINE_PART_H
#define PLIM_SERVE_ENGINE_PART_H

#include "base/locked.h"
#include "plan/offer.h"
#include "runtime/runtime.h"
#include "serve/draw.h"
#include "serve/engine.h"
#include "serve/engine_snapshot.h"
#include "serve/plan_cache.h"
#include "serve/schedule.h"

enum { ENGINE_MEMBERS = 64 };
/* Numbers per row that the device draws (model.h, "drawn"): the token, its log-probability, the likeliest tokens and
 * their log-probabilities. */
enum { DRAWN_NUMBERS = 2 + 2 * ENGINE_LOGPROBS };

/* Programs of several sizes over the same kept bytes: the first is the runtime's plan. */
struct family {
    struct runtime runtime;
    struct forward more[ENGINE_MEMBERS]; /* of member i + 1 */
    struct model_flat size[ENGINE_MEMBERS];
    struct
        member { /* where tokens go in and logits come out, and what is drawn where the device samples; else -1 */
        struct exec *exec;
        int flat, logits, drawn;
    } member[ENGINE_MEMBERS];
    int count;
};

/* Functions that differ by kind of model. */
struct engine_kind {
    /* Called with spec and options set: makes a plan within the budget, commits memory, loads weights, fills e->plan. */
    enum plim_status (*open)(struct engine *e, struct plim_error *err);
    void (*close)(struct engine *e); /* also what open did not finish; requests have ended */
    enum plim_status (*step)(struct engine *e, struct plim_error *err);
    /* Changes to the plan for options.budget between two steps, keeping the requests. On an error the old plan stays. */
    enum plim_status (*move)(struct engine *e, struct plim_error *err);
    /* The pass that represents the plan in reports: the largest, or one over every row. Sets nothing, or an empty
     * tape, if there is no plan. */
    void (*largest)(const struct engine *e, const struct tape **tape, const struct layout **layout);
};
extern const struct engine_kind engine_decoder, engine_source, engine_vectors;

struct request {
    struct sequence sequence; /* first */
    int64_t id;
    struct engine_request ask; /* its prompt points to tokens */
    int32_t *tokens;           /* prompt, then answer */
    struct seen so_far;        /* tokens, where they are penalised */
    int64_t made, told;        /* tokens of the answer; of the prompt, told with their log-probabilities */
    bool seen;                 /* it was in a step */
    bool open; /* the device left a token to the host: its steps are read before others begin */
    double submitted, started, answered;
    int64_t bytes;         /* of host memory */
    bool cancelled;        /* under the lock */
    struct request *next;  /* of all */
    struct request *after; /* of those that are not in the schedule yet */
};

static inline struct request *request_of(struct sequence *s) { return (struct request *)s; }

/* A step: its rows, and the draws for each request. Rows and draws of requests that have ended meanwhile are NULL. */
struct step {
    const struct member *member;
    struct model_flat size;
    struct step_row *rows;  /* [parallel] */
    struct draw *draws;     /* [parallel] */
    struct request **drawn; /* [parallel] */
    int row_count, draw_count;
    int64_t tokens;
    /* Launched before the previous step was read: its tokens are the ones that step draws. */
    bool behind;
};

struct engine {
    struct device *device;
    struct engine_options options;
    const struct engine_kind *kind;
    void *own;   /* of kinds other than decoders */
    char *model; /* a copy of options.model */
    struct model_spec spec;
    struct engine_plan plan;
    struct quantisation quantisation; /* of weights; the same under every plan */
    struct offer offer;               /* of the plan */
    struct overhead overhead;         /* of the process and the caller, whatever is offered */
    int64_t stated_overhead;          /* before the reserve was used up */
    int64_t tape_bytes;               /* of the tapes and layouts of all members */
    enum dtype kv_type;
    int64_t block_bytes, base; /* base: the total without blocks */
    int64_t least_blocks, most_blocks;
    int64_t smallest;     /* smallest plan that keeps the promises; the budget never goes below it */
    int64_t asked_budget; /* the budget for which the plan was first made */
    struct family family;
    struct blocks blocks;
    struct schedule schedule;
    int64_t kept_bytes,
        kept_room; /* of waiting requests' keys and values on the host (engine_keep.c); room 0: none */
    struct step step[DEVICE_READS]; /* the second where the device draws tokens by itself */
    struct step *under_way;         /* launched and not read; NULL: none is */
    struct drawer drawer;
    double now;           /* when the tokens of the last step were there */
    int64_t fresh_tokens; /* made since the statistics were last written */
    int32_t *staged;      /* inputs of the largest member, for a device with its own memory */
    int32_t *told;        /* [parallel, DRAWN_NUMBERS]: what it has drawn, likewise */
    char *raw;            /* logits, likewise: of rows that the host draws */

    pthread_mutex_t lock;
    pthread_cond_t more;  /* there is something to do */
    struct request *live; /* all of them, newest first */
    int64_t live_count, live_bytes, bytes_room;
    struct request *incoming, **incoming_end;
    int64_t next_id;
    bool draining, budget_moved, cancels; /* cancels: a request was cancelled since the last check */
    int64_t wanted_budget;
    struct engine_stats stats;
    struct engine_orders orders;
    struct snapshot_wish wish; /* of the order that waits */
};

/* Steps that may be in progress at once. A device whose memory is the process's own computes during the call, and the
 * host draws its tokens, so there is one. */
static inline int engine_steps(const struct engine *e)
{
    return e->device->facts.unified_memory ? 1 : DEVICE_READS;
}

/* engine_offer.c: the compute type, from the weights or the options. */
enum plim_status engine_choose_precision(struct engine *e, struct plim_error *err);
/* engine_offer.c: plans the largest offer that fits; spec and options must be set. engine_plan.c: commits it and
 * prepares its programs. */
enum plim_status engine_make_plan(struct engine *e, struct plim_error *err);
enum plim_status engine_commit(struct engine *e, struct plim_error *err);
/* Applies the latest budget; no request is lost. */
enum plim_status engine_move_line(struct engine *e, struct plim_error *err);
void family_close(struct family *f);
void family_drop(struct family *f); /* for a plan that was not committed */
/* The smallest member for this many tokens and rows. */
const struct member *family_member(const struct family *f, int64_t tokens, int64_t rows,
                                   struct model_flat *size);
/* Maximum number of blocks under a budget; below least_blocks: it does not fit. */
int64_t engine_blocks_within(const struct engine *e, int64_t budget);

/* engine_keep.c: keys and values of waiting requests, in host memory. */
struct keeper engine_keeper(struct engine *e);
int64_t engine_keep_room(const struct engine *e, int64_t request_bytes);

/* engine.c: frees a request that has no owner left. */
void request_free(struct request *r);

/* engine_pass.c: what goes into a step and what comes out of it. The step has its rows; step_size finds the member that computes
 * them. step_launch hands inputs over and begins; step_draw waits, and every draw has its token then, unless the step was
 * overtaken: logits are gone then, and a draw that the device has left to the host is not done. */
void step_size(const struct engine *e, struct step *s);
enum plim_status step_launch(struct engine *e, struct step *s, struct plim_error *err);
enum plim_status step_draw(struct engine *e, struct step *s, bool overtaken, struct plim_error *err);
/* Can a step with one token more of each row be launched before this one is read? The device must draw all tokens of this one, none
 * of them the last of its answer, and leave them where the other one's ids are: it is the same member's. */
bool step_may_be_overtaken(const struct engine *e, const struct step *s);

/* engine_step.c: the end of a request, told and freed. */
void engine_finish(struct engine *e, struct request *r, struct engine_event *event);
void engine_finish_cancelled(struct engine *e, struct request *r);
/* The next token of a request's answer, told; false: with it the request has ended. */
bool engine_answer(struct engine *e, struct request *r, const struct draw *d);
enum plim_status engine_step_decoder(struct engine *e, struct plim_error *err);

/* engine_snapshot.c: exec_loop, measured where a snapshot waits for a step; and the one that waits while nothing is to do. */
enum plim_status engine_loop(struct engine *e, struct exec *exec, struct plim_error *err);
void engine_snapshot_idle(struct engine *e);

/* The line that was asked for, if it is another one; every kind's step begins with it. */
enum plim_status engine_take_line(struct engine *e, struct plim_error *err);
/* Measures the memory of process and caller, which no offer changes. */
void engine_measure_process(struct engine *e);
int64_t engine_drawer_room(const struct engine *e);
int64_t engine_tape_bytes(const struct tape *tape, const struct layout *layout);
/* The largest offer of the wish that fits the line, or with PLIM_NO_FIT the smallest: e->offer, its bytes in e->plan.total. */
enum plim_status engine_choose(struct engine *e, const struct offer_wish *wish,
                               const struct offer_oracle *oracle, struct offer_choice *choice,
                               struct plim_error *err);
/* Host bytes of the caller under a line. */
int64_t engine_caller_bytes(const struct engine *e, int64_t line);
/* Bytes of a plan that grow with the line, by less than the line does. */
typedef int64_t engine_following(const struct engine *e, int64_t line);
/* PLIM_NO_FIT: what takes the bytes, how many of them, and the budget that would do. */
enum plim_status engine_refuse(const struct engine *e, const char *what, const struct offer_bytes *need,
                               engine_following *follows, struct plim_error *err);
/* Bytes of the host that a plan may take beside a device with its own memory; 0: no limit, or there is no such device. */
int64_t engine_host_line(const struct engine *e);
/* The bytes that a plan under this budget may take: never more than the device has. Without a budget: what it has free. 0: unknown. */
int64_t engine_line(const struct engine *e, int64_t budget);

/* For kinds without a schedule: the request that waits longest, no longer waiting; NULL: none does. Before it, requests that
 * were cancelled while they waited are ended. */
struct request *engine_next(struct engine *e);
/* It waits again, before all others. */
void engine_put_back(struct engine *e, struct request *r);
bool engine_is_cancelled(struct engine *e, const struct request *r);
/* Requests that run now, as the statistics have it; rows: of so many that could. */
void engine_note(struct engine *e, int running, int rows);
/* Host bytes that requests may take together, at most `most` unless a queue was asked for, and how many wait within it. */
#define ENGINE_ROOM ((int64_t)8 << 20)
void engine_set_room(struct engine *e, int64_t request_bytes, int64_t most);
/* Under another plan: requests that it does not promise end, the others wait for their turn. */
enum plim_status engine_readmit(struct engine *e, struct plim_error *err);

/* Opening has come so far. */
void engine_tell(const struct engine *e, const char *stage);

#endif
