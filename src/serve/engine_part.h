/* engine_part.h - shared by the files of the engine. See engine.h.
 *
 * engine.c is the public part, equal for every kind of model: opening, submitting, waiting. A kind is a table of
 * functions. A decoder's plan is made in engine_offer.c and committed and moved in engine_plan.c (engine_size.h is
 * their interface). engine_adapters.c has the adapters beside its model. engine_step.c runs steps; engine_pass.c fills a
 * step and reads its results. Encoder-decoders are in engine_source.h, encoders in engine_vectors.c.
 *
 * The schedule, the blocks and everything that touches the device belong to the stepping thread. Fields below `lock`
 * are guarded by it.
 */
#pragma once

#include "base/locked.h"
#include "plan/offer.h"
#include "runtime/runtime.h"
#include "serve/draw.h"
#include "serve/engine.h"
#include "serve/engine_adapters.h"
#include "serve/engine_snapshot.h"
#include "serve/plan_cache.h"
#include "serve/schedule.h"

enum { ENGINE_MEMBERS = 256 };
/* Numbers per row that the device draws (model.h, "drawn"): the token, its log-probability, the likeliest tokens and
 * their log-probabilities. */
enum { DRAWN_NUMBERS = 2 + 2 * ENGINE_LOGPROBS };

/* Rows whose logits the host reads from a device at once; it draws few, or all if the device cannot. */
enum { ENGINE_RAW_ROWS = 64 };

/* Programs of several sizes over the same kept bytes: the first is the runtime's plan. */
struct family {
    struct runtime runtime;
    struct forward more[ENGINE_MEMBERS]; /* of member i + 1 */
    struct model_flat size[ENGINE_MEMBERS];
    /* Tensors of a member: input, logits, and the drawn tokens if the device samples; else -1. */
    struct member {
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
    struct seen so_far;        /* tokens that are penalised */
    int64_t made, told;        /* tokens of the answer; prompt tokens reported with their log-probabilities */
    enum engine_finish ends;   /* its last token is there, though not reported; FINISH_NONE: it goes on */
    bool seen;                 /* it took part in a step */
    bool open; /* the device left a token to the host: its step must be read before the next begins */
    double submitted, started, answered;
    int64_t bytes;                  /* of host memory */
    bool cancelled;                 /* under the lock */
    struct served_adapter *adapter; /* NULL: none */
    char *why;                      /* it cannot be read: the request ends */
    struct request *next, **link;   /* in the list of all; link: what points here */
    struct request *after;          /* next among those not yet in the schedule */
};

static inline struct request *request_of(struct sequence *s) { return (struct request *)s; }

/* The slot of a running request's adapter; -1: it has none. */
static inline int request_slot(const struct request *r) { return r->adapter ? r->adapter->slot : -1; }

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
    void *own;   /* state of kinds other than decoders */
    char *model; /* a copy of options.model */
    struct model_spec spec;
    struct engine_plan plan;
    struct quantisation quantisation; /* of weights; the same under every plan */
    struct offer offer;               /* of the plan */
    struct overhead overhead;         /* of process and caller, independent of the offer */
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
    /* Host memory of waiting requests' keys and values (engine_keep.c); room 0: they are not kept. */
    int64_t kept_bytes, kept_room;
    struct step step[DEVICE_READS]; /* the second is used if the device draws tokens itself */
    struct step *under_way;         /* launched but not read; NULL: none */
    struct step *untold;            /* read, and its tokens counted, but not reported; NULL: none */
    int untold_ends;                /* requests that ended with it: live, but no longer in the schedule */
    struct drawer drawer;
    double now;           /* when the tokens of the last step arrived */
    int64_t fresh_tokens; /* made since the statistics were last written */
    int32_t *staged;      /* inputs of the largest member, for a device with its own memory */
    int32_t *told;        /* [parallel, DRAWN_NUMBERS]: results of its draws */
    char *raw;            /* logits of up to ENGINE_RAW_ROWS rows that the host draws */

    pthread_mutex_t lock;
    void (*on_told)(void *arg); /* guarded by the lock, as is told_arg */
    void *told_arg;
    pthread_cond_t more;  /* signalled when there is work */
    struct request *live; /* all of them, newest first */
    int64_t live_count, live_bytes, bytes_room;
    struct request *incoming, **incoming_end;
    int64_t next_id;
    bool budget_moving;                   /* the stepping thread applies a budget */
    pthread_cond_t settled;               /* it has */
    bool draining, budget_moved, cancels; /* cancels: a request was cancelled since the last check */
    int64_t wanted_budget;
    struct adapters adapters; /* engine_adapters.c */
    bool broken;              /* a request's adapter cannot be read. The stepping thread's */
    struct engine_stats stats;
    struct engine_orders orders;
    struct snapshot_wish wish; /* of the waiting order */
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

/* engine_pass.c: inputs and results of a step. step_size finds the member for the step's rows. step_launch
 * passes the inputs and starts it. step_draw waits; then every draw has its token, unless the step was
 * overtaken: its logits are gone, and a draw that the device left to the host is not done. */
void step_size(const struct engine *e, struct step *s);
enum plim_status step_launch(struct engine *e, struct step *s, struct plim_error *err);
enum plim_status step_draw(struct engine *e, struct step *s, bool overtaken, struct plim_error *err);
/* True if a step with one more token per row can be launched before this one is read. The device must draw
 * all tokens of this one, none may be the last of its answer, and both steps must use the same member, so
 * that the tokens are where the next step's ids are. */
bool step_may_be_overtaken(const struct engine *e, const struct step *s);

/* engine_step.c: reports the end of a request and frees it. */
void engine_finish(struct engine *e, struct request *r, struct engine_event *event);
void engine_finish_cancelled(struct engine *e, struct request *r);
/* Reports the next token of a request's answer. Returns false if the request ended with it. */
bool engine_answer(struct engine *e, struct request *r, const struct draw *d);
enum plim_status engine_step_decoder(struct engine *e, struct plim_error *err);
void engine_told(struct engine *e);      /* a step's tokens were heard */
void engine_tell_rest(struct engine *e); /* reports the tokens of e->untold */

/* engine_snapshot.c: engine_loop is exec_loop, measured if a snapshot waits for a step; engine_snapshot_idle
 * serves a snapshot while idle. */
enum plim_status engine_loop(struct engine *e, struct exec *exec, struct plim_error *err);
void engine_snapshot_idle(struct engine *e);

/* Applies a new budget, if there is one; every kind's step calls it first. */
enum plim_status engine_take_line(struct engine *e, struct plim_error *err);
/* Measures the memory of process and caller, which no offer changes. */
void engine_measure_process(struct engine *e);
int64_t engine_drawer_room(const struct engine *e);
int64_t engine_tape_bytes(const struct tape *tape, const struct layout *layout);
/* Chooses the largest offer of the wish that fits, or with PLIM_NO_FIT the smallest. Sets e->offer, and
 * e->plan.total to its bytes. */
enum plim_status engine_choose(struct engine *e, const struct offer_wish *wish,
                               const struct offer_oracle *oracle, struct offer_choice *choice,
                               struct plim_error *err);
/* Host memory of the caller under a budget. */
int64_t engine_caller_bytes(const struct engine *e, int64_t line);
/* Bytes of a plan that grow with the budget, but more slowly. */
typedef int64_t engine_following(const struct engine *e, int64_t line);
/* PLIM_NO_FIT names the part, its bytes, and a sufficient budget. */
enum plim_status engine_refuse(const struct engine *e, const char *what, const struct offer_bytes *need,
                               engine_following *follows, struct plim_error *err);
/* Host memory that a plan may use next to a device with its own memory; 0: no limit, or no such device. */
int64_t engine_host_line(const struct engine *e);
/* Bytes that a plan under this budget may use: never more than the device has. Without a budget: the free
 * bytes. 0: unknown. */
int64_t engine_line(const struct engine *e, int64_t budget);

/* For kinds without a schedule: ends requests that were cancelled while waiting. Each step calls it, even if no request can
 * join. */
void engine_end_cancelled(struct engine *e);
/* For kinds without a schedule: takes the request that has waited longest; NULL: none. */
struct request *engine_next(struct engine *e);
/* Puts a request back at the front of the queue. */
void engine_put_back(struct engine *e, struct request *r);
bool engine_is_cancelled(struct engine *e, const struct request *r);
/* Records the running requests for the statistics; rows: how many could run. */
void engine_note(struct engine *e, int running, int rows);
/* Sets the host memory for all requests, at most `most` unless a queue was requested, and the length of the
 * queue. */
#define ENGINE_ROOM ((int64_t)8 << 20)
void engine_set_room(struct engine *e, int64_t request_bytes, int64_t most);
/* After a change of plan: ends requests that it cannot serve, and queues the others again. */
enum plim_status engine_readmit(struct engine *e, struct plim_error *err);

/* Reports the progress of opening. */
void engine_tell(const struct engine *e, const char *stage);
