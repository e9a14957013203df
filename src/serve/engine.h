/* engine.h - many requests through one model inside one line: blocks of keys and values, one flat row of tokens a step.
 *
 *     struct engine *e;
 *     engine_open(device, &(struct engine_options){.model = dir, .budget = 2 << 30, .parallel = 8}, &e, &err);
 *     engine_submit(e, &(struct engine_request){.prompt = ids, .count = n, .tokens = 64, .hear = put, .arg = stream}, &id, &err);
 *     while (engine_step(e, &err) == PLIM_OK && engine_busy(e)) ;         // or a thread of its own: engine_run
 *     engine_close(e);
 *
 * A step takes tokens of all running requests as one row: one token of each that decodes, and as much of waiting prompts as
 * the step has left (chunked prefill). Keys and values lie in blocks of ENGINE_BLOCK positions of one kept pool; a table
 * of block numbers is an operand. Requests that begin alike share blocks. When blocks run out the youngest request gives
 * its blocks back and is read again later; the largest request the plan promises always runs.
 *
 * An encoder-decoder reads the prompt as its source and has a row of caches for each running request, or one for each beam; an encoder makes one
 * vector of each prompt, or scores its labels, of many in a batch. Queue, bounds, events, waiting and stopping are the same for all of them.
 *
 * What a request gets depends on nothing but itself: not on who runs beside it, how its prompt was cut, whether it had to
 * wait or was read twice.
 *
 * engine_step belongs to one thread. Everything else may be called from any thread. Events are heard on the stepping
 * thread and must not wait.
 */
#ifndef PLIM_SERVE_ENGINE_H
#define PLIM_SERVE_ENGINE_H

#include "base/log.h"
#include "device/device.h"
#include "model/model.h"
#include "model/quantise.h"
#include "plan/offer.h"
#include "tensor/sample.h"
#include "tape/op.h"
#include "tape/pass.h"
#include "watch/peak.h"
#include <stdatomic.h>

#define ENGINE_BLOCK    KV_BLOCK /* positions of a block */
#define ENGINE_LOGPROBS 20       /* of the likeliest tokens, at most */
#define ENGINE_BEAMS    64       /* rows of a beam search, at most */

struct engine;

/* The stage that is told when opening has failed, before anything is given back. */
#define ENGINE_FAILED "failed"

/* Why an engine could not be opened, where memory was refused. */
struct engine_refusal {
    int64_t enough;   /* the smallest budget that would do; 0: unknown, or it is the host's that is missing */
    int64_t needed;   /* bytes of the plan that was refused; 0: there was none */
    struct peak peak; /* of that plan */
};

struct engine_options {
    const char *model; /* folder */
    int64_t budget;    /* bytes of the device; 0: no line */
    int64_t limit;     /* bytes that a plan may take where there is no budget; 0: what the device has free */
    int64_t host_budget; /* bytes of the host beside a device with its own memory; 0: no line */
    int64_t max_context; /* positions of the largest request; 0: the model's, or as many as fit */
    int64_t max_answer;  /* encoder-decoder: tokens of the longest answer; 0: as max_context */
    int parallel;        /* requests that run at once; 0: as many as fit, up to 256 */
    bool fewer;          /* `parallel` is a maximum: fewer run at once where not all fit */
    /* Encoder-decoder: each request is a beam search with so many rows (beam.h), at most ENGINE_BEAMS. Its answer is told at
     * the end, without log-probabilities. 0 or 1: tokens are sampled. */
    int beams;
    int64_t step_tokens;       /* of a step, at most; 0: chosen */
    int queue;                 /* requests that may wait; 0: 4 x parallel */
    int64_t vocab;             /* ids from here on have no text and are never drawn; 0: all may be */
    enum weights_kind weights; /* as files have them, or in blocks of 8 or 4 bits (quantise.h) */
    enum dtype kv_type;        /* 0 or DT_COUNT: the type of the weights; DT_U8: 8 bits (tensor/kv8.h) */
    int64_t overhead;          /* host bytes outside the arena; 0: measured now */
    int64_t chunk;             /* tokens of one prompt in one step, at most; 0: as the step has room for */
    int64_t beside;            /* host bytes of the caller, counted as overhead */
    /* Those bytes under another budget, where they depend on it; NULL: they do not. budget - caller_bytes(budget) never falls. */
    int64_t (*caller_bytes)(void *caller, int64_t budget);
    void *caller;
    bool alone; /* requests that begin alike do not share blocks */
    /* What may be given up where not everything fits (plan/offer.h); requests and context that are not set above always may. */
    bool allow_kv8;    /* keys and values in 8 bits */
    bool stream;       /* parameters on the tier below, fetched for each step */
    bool allow_window; /* as the last resort: one request at a time, each token computed from the last 32 */
    enum offer_rung first_rung; /* offers of the rungs above it have failed */
    /* Folder for streamed parameters where device memory is the process's own; NULL: none are streamed there. */
    const char *scratch;
    bool stream_last;     /* and only where nothing fits without */
    const char *rung;     /* name of the ladder's rung, static text; NULL: the offer's */
    bool exact;           /* computes in float32 whatever type the weights have */
    enum precision dtype; /* computes in this type, where dtype_given */
    bool dtype_given;
    bool op_by_op; /* steps are not recorded as programs, where the device could */
    bool
        mixed; /* float32 weights are computed in 16 bits where the device gains by it (job_automatic_precision) */
    int64_t
        window; /* tokens that the next one is computed from, the last ones, from position 0 on and each time anew; 0: all.
                     * Others come out than without it */
    bool
        remember; /* sizes that stood before are tried first (serve/plan_cache.h); engine_remember keeps them */
    bool
        plan_only; /* nothing is taken: the engine can tell its plan and be closed. Of the device only facts are looked at */
    struct engine_refusal *refusal; /* filled when opening fails; NULL: nobody asks */
    const char *advice;    /* how to ask for less, for refusals; NULL: --max-context where it was given */
    const struct log *log; /* NULL: nobody */
    void (*stage)(void *arg, const char *name); /* hears how far opening has come; NULL: nobody */
    void *stage_arg;
};

/* The plan that was committed. */
struct engine_plan {
    int64_t budget, total, arena, params, pool; /* bytes; pool: keys and values, part of the arena */
    int64_t transient, overhead,
        host;         /* of the arena, a step's; the process's; of the host beside a device's own */
    int64_t requests; /* of overhead, what requests that run and wait may take, at most */
    int64_t streamed; /* bytes of parameters that are on the tier below */
    int64_t window;   /* 0: none */
    bool remembered;  /* its sizes are those of an earlier start */
    /* Predicted tokens/s: prompts, one request, as many requests as run at once; each with rate_context positions. */
    double prefill_rate, decode_rate, full_rate;
    int64_t rate_context;
    int64_t blocks;  /* of the pool */
    int64_t context; /* positions of the largest request that is promised */
    int64_t
        answer; /* of its answer, where that has positions of its own (encoder-decoder); 0: they are the context's */
    int64_t width;          /* of an encoder: numbers of a vector, or its labels; else 0 */
    bool labels, per_token; /* width are labels; of each token, and not of a text */
    int64_t step_tokens;
    int parallel, queue;
    enum precision
        precision; /* of weights that are not in blocks, of activations, and of keys and values unless kv_type says otherwise */
    enum dtype kv_type;
    const char *rung; /* name for people; static text */
    enum offer_rung offer_rung;
    int64_t missed[OFFER_RUNGS]; /* fewest bytes that each rung above would take; 0: there is none */
};

enum engine_finish { FINISH_NONE, FINISH_LENGTH, FINISH_EOS, FINISH_CANCELLED, FINISH_FAILED };

struct engine_logprob {
    int32_t token;
    float logprob;
};

/* One token of a request, or its end. Every request that was taken ends with exactly one event whose finish is not
 * FINISH_NONE, also after hear has said false; the end-of-text token is not handed out. */
struct engine_event {
    int64_t id;
    int32_t token;                    /* -1: no token comes with this event */
    float logprob;                    /* of the token, when asked for */
    int ntop;                         /* of top: the likeliest tokens at that place */
    const struct engine_logprob *top; /* good for the call only */
    enum engine_finish finish;        /* FINISH_NONE: more will come */
    int64_t prompt_tokens, shared_tokens,
        tokens; /* so far; shared: prompt positions found in blocks of others */
    double queue_seconds, prefill_seconds, decode_seconds; /* so far */
    const char *why;                                       /* FINISH_FAILED: one line */
    const float *
        vector; /* [width], or [prompt tokens][width] per token, with the end of a request to an encoder; else NULL. Good for the call only */
};

struct engine_request {
    const int32_t *prompt; /* copied */
    int64_t count;
    int64_t second;           /* of an encoder: where the prompt's second segment begins; 0: it has none */
    int64_t tokens;           /* of the answer, at most; an encoder makes none */
    struct sampling sampling; /* temperature, top_k, top_p, min_p, penalties, seed */
    double length_penalty;    /* of a beam search */
    int logprobs;             /* -1: none; n: also the n likeliest */
    bool
        prompt_logprobs; /* of the prompt's tokens too: their events come first, that of the first without a logprob */
    bool ignore_eos;
    bool (*hear)(void *arg, const struct engine_event *event); /* false: cancel it */
    void *arg;
};

/* The errors of hf_config_load and weights; PLIM_NO_FIT with the bytes missing. The device is borrowed. */
enum plim_status engine_open(struct device *device, const struct engine_options *options, struct engine **out,
                             struct plim_error *err);
/* Another plan, on the same or another device, in the stead of one that failed: what runs and waits stays and is read again.
 * Requests longer than the new plan promises end as FINISH_FAILED. The model is the same, and the line where there is one. On an error nothing stands, and it may
 * be tried again. By the stepping thread. */
enum plim_status engine_reopen(struct engine *e, struct device *device, const struct engine_options *options,
                               struct plim_error *err);
/* The largest thing in a step of the plan. */
void engine_peak(const struct engine *e, struct peak *out);
void engine_close(struct engine *e); /* everything under way is heard as FINISH_CANCELLED */

const struct model_spec *engine_spec(const struct engine *e);
/* It follows the line and what engine_reopen makes of it: other threads than the stepping one take engine_plan_now. */
const struct engine_plan *engine_plan(const struct engine *e);
struct engine_plan engine_plan_now(struct engine *e);
/* The plan stands: the next start begins with its sizes. */
void engine_remember(const struct engine *e);
/* Tokens that the answer to a prompt of so many may have; below 0 the prompt alone is too long. */
static inline int64_t engine_answer_room(const struct engine_plan *plan, int64_t prompt)
{
    return plan->answer && prompt <= plan->context ? plan->answer : plan->context - prompt;
}

/* Queues a request. PLIM_NO_FIT: it can never run (the numbers are in the error); PLIM_BUSY: the queue is full, try later;
 * PLIM_BAD_INPUT: tokens outside the vocabulary, sampling that makes no sense. */
enum plim_status engine_submit(struct engine *e, const struct engine_request *request, int64_t *id,
                               struct plim_error *err);
void engine_cancel(struct engine *e, int64_t id); /* its blocks are free at the next step */

/* One step of everything that can run. An error is of the device: every request is still there, and a step may be tried
 * again or the engine closed. */
enum plim_status engine_step(struct engine *e, struct plim_error *err);
bool engine_busy(const struct engine *e);

/* Steps until *stop is set or engine_drain was called and nothing is left; sleeps while there is nothing to do. */
enum plim_status engine_run(struct engine *e, const atomic_int *stop, struct plim_error *err);
void engine_drain(struct engine *e); /* no more requests are taken: PLIM_BUSY; those there are finished */

/* Another line: blocks are given back, preempting what must be, and pages with them; or blocks join. No request is lost. Applied
 * by the next step; PLIM_NO_FIT: below parameters and one request, the old line stays; PLIM_UNSUPPORTED: not a decoder;
 * PLIM_BAD_INPUT: more than the device, or the container it is in, has. */
enum plim_status engine_set_budget(struct engine *e, int64_t budget, struct plim_error *err);

struct engine_stats {
    int running, waiting;
    int64_t blocks, blocks_used, blocks_shared;
    int64_t swapped; /* of preempted requests, those whose keys and values were kept on the host */
    int64_t steps, preemptions, prompt_tokens, generated_tokens, shared_tokens;
    int64_t ahead;        /* of steps, those launched before the one before them was read */
    int64_t finished[5];  /* by enum engine_finish */
    int64_t budget, used; /* bytes of the line and on the ledger */
};
void engine_stats(struct engine *e, struct engine_stats *out);
void engine_count_anew(struct engine *e); /* what is counted begins at 0: a warm-up is nobody's */

#endif
