/* engine.h - many requests through one model within one budget: keys and values in blocks, one flat row of tokens per
 * step.
 *
 *     struct engine *e;
 *     engine_open(device, &(struct engine_options){.model = dir, .budget = 2 << 30, .parallel = 8}, &e, &err);
 *     engine_submit(e, &(struct engine_request){.prompt = ids, .count = n, .tokens = 64, .hear = put, .arg = stream}, &id, &err);
 *     while (engine_step(e, &err) == PLIM_OK && engine_busy(e)) ;         // or a thread of its own: engine_run
 *     engine_close(e);
 *
 * A step takes tokens of all running requests as one row: one token of each request that decodes, and as much of
 * waiting prompts as fits (chunked prefill). Keys and values are in blocks of ENGINE_BLOCK positions of one pool; a
 * table of block numbers is an operand. Requests with the same beginning share blocks. When blocks run out, the
 * youngest request gives its blocks back and is computed again later. The largest request that the plan promises
 * always runs.
 *
 * An encoder-decoder reads the prompt as its source and has one row of caches per running request, or one per beam. An encoder turns
 * each prompt into one vector, or scores its labels, many in a batch. Queue, limits, events, waiting and stopping
 * work alike for all kinds.
 *
 * A request's result depends only on the request: not on other requests, on how its prompt was cut, or on whether it
 * waited or was computed twice.
 *
 * Only one thread may call engine_step. All other functions may be called from any thread. Events are delivered on
 * the stepping thread; their handlers must not block.
 */
#pragma once

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

/* Stage reported when opening has failed, before anything is released. */
#define ENGINE_FAILED "failed"

/* Details for the case that opening failed for lack of memory. */
struct engine_refusal {
    int64_t enough;   /* smallest sufficient budget; 0: unknown, or host memory is missing */
    int64_t needed;   /* bytes of the refused plan; 0: there was none */
    struct peak peak; /* of that plan */
};

/* An adapter that requests choose by its name (engine_adapters.h). */
struct engine_adapter {
    const char *name, *dir; /* dir: a PEFT folder */
};

struct engine_options {
    const char *model;   /* folder */
    const char *adapter; /* PEFT folder that is merged into its weights, borrowed; NULL: none */
    /* Adapters beside the model, borrowed during engine_open. */
    const struct engine_adapter *adapters;
    int adapter_count;
    int adapter_slots; /* adapters on the device at once; 0: all, or fewer where not all fit */
    int adapter_rank;  /* largest rank; 0: the largest of those above, or 16 */
    int adapter_images; /* adapters in host memory beside a device with its own; 0: all if there are more than slots; -1: none */
    int64_t budget;      /* bytes of the device; 0: no limit */
    int64_t limit;       /* limit for a plan without a budget; 0: the device's free memory */
    int64_t host_budget; /* host memory next to a device with its own memory; 0: no limit */
    int64_t max_context; /* positions of the largest request; 0: the model's, or as many as fit */
    int64_t max_answer;  /* encoder-decoder: tokens of the longest answer; 0: as max_context */
    int parallel;        /* maximum concurrent requests; 0: as many as fit, up to 256 */
    bool fewer;          /* may reduce `parallel` if not all fit */
    /* Encoder-decoder: each request is a beam search with this many rows (beam.h), at most ENGINE_BEAMS. The answer is
     * reported at the end, without log-probabilities. 0 or 1: tokens are sampled. */
    int beams;
    int64_t step_tokens;       /* maximum per step; 0: chosen automatically */
    int queue;                 /* requests that may wait; 0: 4 x parallel */
    int64_t vocab;             /* ids from here on have no text and are never drawn; 0: all may be drawn */
    enum weights_kind weights; /* as files have them, or in blocks of 8 or 4 bits (quantise.h) */
    enum dtype kv_type; /* 0 or DT_COUNT: the type of the weights; DT_U8, DT_E4M3: 8 bits (tensor/kv8.h) */
    int64_t overhead;   /* host bytes outside the arena; 0: measured now */
    int64_t chunk;      /* maximum tokens of one prompt per step; 0: as many as fit */
    /* Tokens that an answer is expected to have as long as none has ended; 0: 256; -1: none, so that requests join while
     * there is memory for what they have, and are preempted more often. */
    int64_t usual_answer;
    int64_t caller_bytes; /* host memory used by the caller; counted as overhead */
    /* Value of caller_bytes under another budget; NULL: constant. budget - caller_bytes_under(budget)
     * must never fall as the budget rises. */
    int64_t (*caller_bytes_under)(void *caller, int64_t budget);
    void *caller;
    bool no_prefix_sharing; /* requests with the same beginning do not share blocks */
    /* Concessions that the engine may make when not everything fits (plan/offer.h). It may also reduce requests
     * and context that are not set above. */
    bool allow_kv8;    /* keys and values in 8 bits */
    bool stream;       /* parameters on the tier below, fetched for each step */
    bool allow_window; /* as the last resort: one request at a time, each token computed from the last 32 */
    enum offer_rung first_rung; /* skip the rungs above it: their offers have failed */
    /* Folder for streamed parameters where device memory is the process's own; NULL: none are streamed there. */
    const char *scratch;
    bool stream_last;     /* stream only when nothing fits otherwise */
    const char *rung;     /* name of the ladder's rung, static text; NULL: the offer's */
    bool exact;           /* computes in float32, regardless of the weights' type */
    enum precision dtype; /* computes in this type, if dtype_given */
    bool dtype_given;
    bool op_by_op; /* runs steps op by op even if the device can record programs */
    /* Computes float32 weights in 16 bits where that is faster on the device (job_automatic_precision). */
    bool mixed;
    /* Number of last tokens from which the next one is computed, each time again from position 0; 0: all. Results
     * differ from those without a window. */
    int64_t window;
    /* Tries sizes that worked before first (serve/plan_cache.h); engine_remember stores them. */
    bool remember;
    /* Allocates nothing: the engine can report its plan and be closed. Only the device's facts are read. */
    bool plan_only;
    struct engine_refusal *refusal; /* filled when opening fails; may be NULL */
    const char *advice;             /* how to ask for less, for refusals; NULL: --max-context if given */
    const struct log *log;          /* may be NULL */
    void (*stage)(void *arg, const char *name); /* reports the progress of opening; may be NULL */
    void *stage_arg;
};

/* The plan that was committed. */
struct engine_plan {
    int64_t budget, total, arena, params, pool; /* bytes; pool: keys and values, part of the arena */
    int64_t limit;     /* holds the plan where there is no budget, e.g. a container's; 0: none */
    int64_t transient; /* a step's part of the arena */
    int64_t overhead;  /* host memory outside the arena */
    int64_t host;      /* host memory, for a device with its own memory */
    int64_t requests;  /* part of overhead: maximum for running and waiting requests */
    int64_t streamed;  /* bytes of parameters that are on the tier below */
    int64_t adapters;  /* bytes of slots for adapters, part of params */
    int adapter_slots, adapter_rank, adapter_images; /* 0: none */
    int64_t window;                                  /* 0: none */
    bool remembered;                                 /* its sizes come from an earlier start */
    /* Predicted tokens/s: prompts; one request; as many requests as run at once. Each request has rate_context
     * positions. */
    double prefill_rate, decode_rate, full_rate;
    int64_t rate_context;
    int64_t blocks;  /* of the pool */
    int64_t context; /* positions of the largest promised request */
    /* Positions of an answer, if separate from the context (encoder-decoder); 0: they share the context. */
    int64_t answer;
    int64_t width;          /* of an encoder: numbers of a vector, or its labels; else 0 */
    bool labels, per_token; /* width counts labels; labels are per token */
    int64_t step_tokens;
    int parallel, queue;
    /* Precision of weights that are not in blocks, of activations, and of keys and values unless kv_type says
     * otherwise. */
    enum precision precision;
    enum dtype kv_type;
    const char *rung; /* name for people; static text */
    enum offer_rung offer_rung;
    int64_t missed[OFFER_RUNGS]; /* fewest bytes that each rung above would need; 0: no such rung */
};

enum engine_finish { FINISH_NONE, FINISH_LENGTH, FINISH_EOS, FINISH_CANCELLED, FINISH_FAILED };

struct engine_logprob {
    int32_t token;
    float logprob;
};

/* One token of a request, or its end. Every accepted request ends with exactly one event whose finish is not
 * FINISH_NONE, even after hear returned false. The end-of-text token is not reported. */
struct engine_event {
    int64_t id;
    int32_t token;                    /* -1: no token comes with this event */
    float logprob;                    /* of the token, when asked for */
    int ntop;                         /* of top: the likeliest tokens at that place */
    const struct engine_logprob *top; /* valid during the call only */
    enum engine_finish finish;        /* FINISH_NONE: more will come */
    /* So far. shared: prompt positions found in blocks of other requests. */
    int64_t prompt_tokens, shared_tokens, tokens;
    double queue_seconds, prefill_seconds, decode_seconds; /* so far */
    const char *why;                                       /* FINISH_FAILED: one line */
    /* [width], or [prompt tokens][width] per token, at the end of a request to an encoder; else NULL. Valid during
     * the call only. */
    const float *vector;
};

struct engine_request {
    const int32_t *prompt; /* copied */
    int64_t count;
    const char *adapter;      /* one of the engine's, read during engine_submit; NULL: the model alone */
    int64_t second;           /* encoders: start of the prompt's second segment; 0: none */
    int64_t tokens;           /* maximum per answer; encoders ignore it */
    struct sampling sampling; /* temperature, top_k, top_p, min_p, penalties, seed */
    double length_penalty;    /* of a beam search */
    int logprobs;             /* -1: none; n: also the n likeliest */
    /* Also report the prompt's tokens: their events come first; the first token has no logprob. */
    bool prompt_logprobs;
    bool ignore_eos;
    bool (*hear)(void *arg, const struct engine_event *event); /* false: cancel it */
    void *arg;
};

/* Errors: those of hf_config_load and weights; PLIM_NO_FIT names the missing bytes. The device is borrowed. */
enum plim_status engine_open(struct device *device, const struct engine_options *options, struct engine **out,
                             struct plim_error *err);
/* Replaces a failed plan, on the same or another device. Running and waiting requests stay and are computed again;
 * requests longer than the new plan promises end as FINISH_FAILED. The model stays, and so does the budget if there
 * is one. On an error no plan is active, and the call may be repeated. Only for the stepping thread. */
enum plim_status engine_reopen(struct engine *e, struct device *device, const struct engine_options *options,
                               struct plim_error *err);
/* Largest tensor in a step of the plan. */
void engine_peak(const struct engine *e, struct peak *out);
void engine_close(struct engine *e); /* everything under way is heard as FINISH_CANCELLED */
/* Ends everything under way as FINISH_FAILED and refuses new requests: no step will work again. Only for the stepping thread. */
void engine_fail(struct engine *e, const char *why);

const struct model_spec *engine_spec(const struct engine *e);
/* Changes with the budget and with engine_reopen; threads other than the stepping one use engine_plan_now. */
const struct engine_plan *engine_plan(const struct engine *e);
struct engine_plan engine_plan_now(struct engine *e);
/* Stores the plan's sizes, so that the next start tries them first. */
void engine_remember(const struct engine *e);
/* Maximum tokens of the answer to a prompt of this length; negative: the prompt alone is too long. */
static inline int64_t engine_answer_room(const struct engine_plan *plan, int64_t prompt)
{
    return plan->answer && prompt <= plan->context ? plan->answer : plan->context - prompt;
}

/* Queues a request. PLIM_NO_FIT: it can never run (the numbers are in the error); PLIM_BUSY: the queue is full, try later;
 * PLIM_BAD_INPUT: tokens outside the vocabulary, sampling that makes no sense, an adapter that is not there. */
enum plim_status engine_submit(struct engine *e, const struct engine_request *request, int64_t *id,
                               struct plim_error *err);
void engine_cancel(struct engine *e, int64_t id); /* its blocks are free at the next step */

/* Called on the stepping thread once all tokens of a step have been heard: whoever wakes threads for them can do it once for
 * each step instead of once for each token. NULL: nobody. A call may still be under way when this returns. */
void engine_on_told(struct engine *e, void (*told)(void *arg), void *arg);

/* Runs one step. On a device error every request is kept; the step may be repeated or the engine closed. */
enum plim_status engine_step(struct engine *e, struct plim_error *err);
bool engine_busy(const struct engine *e);

/* Steps until *stop is set, or until engine_drain was called and no request is left. Sleeps while idle. */
enum plim_status engine_run(struct engine *e, const atomic_int *stop, struct plim_error *err);
void engine_drain(struct engine *e); /* refuses new requests with PLIM_BUSY; accepted ones are finished */

/* Changes the budget: frees blocks and pages, preempting requests as needed, or adds blocks. No request is lost. The
 * next step applies it. PLIM_NO_FIT: too small for the parameters and one request, the old budget stays;
 * PLIM_UNSUPPORTED: not a decoder; PLIM_BAD_INPUT: more than the device or its container has. */
enum plim_status engine_set_budget(struct engine *e, int64_t budget, struct plim_error *err);
/* Waits until the stepping thread has applied it, or *stop is set. Returns false if memory was refused and the old budget stays. Not
 * for the stepping thread. */
bool engine_await_budget(struct engine *e, const atomic_int *stop);

struct engine_stats {
    int running, waiting;
    int64_t blocks, blocks_used, blocks_shared;
    int64_t swapped; /* preempted requests whose keys and values were saved to the host */
    int64_t steps, preemptions, prompt_tokens, generated_tokens, shared_tokens;
    int64_t ahead;        /* steps launched before the previous one was read */
    int64_t finished[5];  /* by enum engine_finish */
    int64_t budget, used; /* bytes of the budget (or of the limit in its place), and reserved on the ledger */
};
void engine_stats(struct engine *e, struct engine_stats *out);
void engine_count_anew(struct engine *e); /* resets the counters, for example after a warm-up */
