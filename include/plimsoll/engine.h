/* plimsoll/engine.h - text from a model inside a budget: many requests at once.
 *
 *     struct plim_engine_options options = {.size = sizeof options, .model = "runs/demo", .budget = 2ull << 30};
 *     struct plim_engine *engine;
 *     plim_engine_open(context, &options, &engine, &err);
 *     struct plim_request request = {.size = sizeof request, .prompt = "Once", .max_tokens = 64, .hear = put};
 *     int64_t id;
 *     plim_engine_submit(engine, &request, &id, &err);
 *     plim_engine_run(engine, &err);                        // until every request has ended
 *     plim_engine_close(engine);
 *
 * Either the caller steps (plim_engine_step, plim_engine_run, plim_engine_generate), or plim_engine_start gives the engine
 * a thread of its own. Only one thread may step; a second one gets PLIM_BAD_INPUT. Submit, cancel, set_budget and figures
 * may be called from any thread. Events come on the stepping thread, perhaps before plim_engine_submit has returned;
 * handlers must not block and must not call the engine except for submit and cancel.
 *
 * When a device fails or refuses memory, the engine goes on with fewer or shorter requests, streamed parameters, or on
 * the CPU if `device` is "auto", and the log says so. If nothing helps, every request ends as FAILED, the error is returned
 * by the step that failed and by every later call, and the engine can only be closed.
 */
#ifndef PLIMSOLL_ENGINE_H
#define PLIMSOLL_ENGINE_H

#include <plimsoll/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_engine;

struct plim_engine_options {
    size_t size;
    const char *model;     /* Hugging Face folder, GGUF file, checkpoint or run folder */
    const char *device;    /* "auto" if NULL */
    const char *tokenizer; /* NULL: the model's own */
    const char *weights;   /* "as-is", "q8", "q4", "nf4", "fp4", "fp8"; NULL: as-is */
    const char *kv_type;   /* "auto", "f32", "bf16", "f16", "i8", "fp8"; NULL: auto, the type of the weights */
    const char *scratch;   /* on the CPU: folder for parameters that stream from disk; NULL: none do */
    uint64_t budget;       /* 0: what the device or container has free. Counts texts of up to 64 KiB as prompts */
    int64_t max_context;   /* tokens of the largest request; 0: the model's, or as many as fit */
    int parallel;          /* concurrent requests; 0: as many as fit */
    int queue;             /* requests that may wait; 0: 4 * parallel */
    int threads;           /* 0: all cores */
    int allow_kv8;         /* concessions that may change results slightly: 8-bit keys and values ... */
    int allow_window;      /* ... and as a last resort a window of 32 tokens */
    int max_adapters;      /* adapters on the device at once (plim_engine_load_adapter); 0: none can be loaded */
    int max_adapter_rank;  /* 0: 16 */
};
PLIM_API enum plim_status plim_engine_open(struct plim_context *context,
                                           const struct plim_engine_options *options, struct plim_engine **out,
                                           struct plim_error *err);
/* Requests under way end as CANCELLED. Waits for the step that runs. A handler cannot close its engine. */
PLIM_API void plim_engine_close(struct plim_engine *engine);

enum plim_finish {
    PLIM_FINISH_NONE = 0,     /* more will come */
    PLIM_FINISH_LENGTH = 1,
    PLIM_FINISH_STOP = 2,     /* end-of-text token or a stop string */
    PLIM_FINISH_CANCELLED = 3,
    PLIM_FINISH_FAILED = 4
};

/* A piece of an answer, or its end. Each request ends with exactly one event whose finish is not NONE. */
struct plim_engine_event {
    size_t size;
    int64_t id;
    const char *text;  /* UTF-8 that has become certain; may be empty; valid during the call */
    size_t text_bytes;
    int32_t token;     /* -1: none comes with this event */
    float logprob;     /* if requested */
    enum plim_finish finish;
    const char *why;   /* FAILED: one line; else NULL */
    int64_t prompt_tokens, tokens;
    double queue_seconds, prefill_seconds, decode_seconds;
};

struct plim_request {
    size_t size;
    const char *prompt;      /* text; or NULL and ids. Everything is copied */
    const int32_t *ids;
    size_t id_count;
    int chat;                /* prompt is a JSON array of messages, rendered by the model's chat template */
    int64_t max_tokens;      /* 0: as many as the context has room for */
    double temperature;      /* 0: the likeliest token */
    double top_p, min_p;     /* 0: off */
    int64_t top_k;           /* 0: off */
    double repetition_penalty, presence_penalty, frequency_penalty; /* repetition 0: 1 */
    uint64_t seed;
    int logprobs;
    int ignore_eos;
    const char *const *stop; /* strings that end the answer; NULL after the last; may be NULL */
    int (*hear)(void *arg, const struct plim_engine_event *event); /* 0: go on; else cancel. May be NULL */
    void *arg;
    const char *adapter;     /* name of a loaded adapter; NULL: the model alone */
};
/* PLIM_BUSY: the queue is full. PLIM_BAD_INPUT: there is no such adapter. PLIM_NO_FIT: longer than the engine promises. PLIM_NOT_FOUND: chat, and the model has no
 * template. id may be NULL. */
PLIM_API enum plim_status plim_engine_submit(struct plim_engine *engine, const struct plim_request *request,
                                             int64_t *id, struct plim_error *err);
PLIM_API void plim_engine_cancel(struct plim_engine *engine, int64_t id);

/* Runs one step, and applies a new budget; *busy, if not NULL, says whether requests are left. */
PLIM_API enum plim_status plim_engine_step(struct plim_engine *engine, int *busy, struct plim_error *err);
/* Steps until no request is left. */
PLIM_API enum plim_status plim_engine_run(struct plim_engine *engine, struct plim_error *err);
/* Steps on a thread of the engine's own, until plim_engine_close. */
PLIM_API enum plim_status plim_engine_start(struct plim_engine *engine, struct plim_error *err);

/* The whole answer to one prompt at once; free it with plim_free. Other requests advance, too. Only while no thread steps.
 * request->hear, if not NULL, hears the answer as it comes; if it cancels, the result is PLIM_INTERRUPTED and *text what there was. */
PLIM_API enum plim_status plim_engine_generate(struct plim_engine *engine, const struct plim_request *request,
                                               char **text, struct plim_error *err);

/* Changes the budget; no request is lost. The next step applies it; an engine with a thread of its own has applied it when
 * this returns. 0: what the device or container has free. PLIM_NO_FIT: too small; PLIM_NO_MEMORY: memory was refused;
 * PLIM_BAD_INPUT: more than the device has. After an error the old budget stays. */
PLIM_API enum plim_status plim_engine_set_budget(struct plim_engine *engine, uint64_t budget,
                                                 struct plim_error *err);

/* Adapters that requests choose by name. `folder` is PEFT's, with a LoRA of linear layers. Requests of all adapters run in one batch, and
 * an answer does not depend on the others. There may be more adapters than max_adapters: they take turns on the device. Unloading lets
 * requests under way finish. PLIM_BAD_INPUT: the name is taken or unknown, or the folder is of another model; PLIM_UNSUPPORTED: the
 * engine was opened without max_adapters, or the adapter can only be merged; PLIM_BUSY: too many are loaded. */
PLIM_API enum plim_status plim_engine_load_adapter(struct plim_engine *engine, const char *name, const char *folder,
                                                   struct plim_error *err);
PLIM_API enum plim_status plim_engine_unload_adapter(struct plim_engine *engine, const char *name,
                                                     struct plim_error *err);

struct plim_engine_figures {
    size_t size;
    uint64_t budget, planned_bytes, used_bytes;
    uint64_t parameter_bytes, kv_bytes, streamed_bytes;
    int64_t context;  /* tokens of the largest promised request */
    int parallel, running, waiting;
    int64_t steps, preemptions, prompt_tokens, generated_tokens;
    double prefill_rate, decode_rate; /* predicted tokens per second */
};
PLIM_API enum plim_status plim_engine_figures(struct plim_engine *engine, struct plim_engine_figures *out,
                                              struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
