/* engine_part.h - shared by engine.c (the handle and who may step it) and engine_answer.c (a request and its text). */
#pragma once

#include "api/find_model.h"
#include "api/handle.h"
#include "api/model_engine.h"
#include "text/chat_template.h"
#include "text/codec.h"
#include <plimsoll/engine.h>
#include <pthread.h>

/* Locks, in the order in which one thread may take them: gate, encoding; gate, lock. */
struct plim_engine {
    struct handle handle;
    struct model_engine model;
    char dir[MODEL_PATH], name[MODEL_PATH];
    char *scratch; /* a copy; NULL: nothing streams from disk */
    struct codec codec;
    struct chat_template *chat; /* NULL: no_chat says why */
    struct plim_error no_chat;

    pthread_mutex_t encoding;
    struct encoder *encoder; /* NULL: bytes. Guarded by encoding */

    /* Held while the ladder moves the engine to another rung, and by calls that such a move must not meet. Recursive: handlers
     * that hear of the move may submit and cancel. */
    pthread_mutex_t gate;
    struct plim_error broken; /* no rung is left, or the engine is being closed; guarded by gate */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t idle;  /* nobody steps any more */
    bool stepping;        /* a thread is in step, run or generate */
    bool started;         /* the engine has a thread of its own */
    pthread_t stepper;    /* whoever steps, if stepping or started */
    atomic_int stop;
};

/* Opens everything. plan_only: nothing is committed, and the handle is good for its plan alone. */
enum plim_status engine_handle_open(struct plim_context *context, const struct plim_engine_options *options,
                                    const char *function, bool plan_only, struct plim_engine **out,
                                    struct plim_error *err);

/* Hears an answer in place of request.hear. */
typedef int answer_hear(void *arg, const struct plim_engine_event *event);
enum plim_status answer_submit(struct plim_engine *engine, const struct plim_request *request,
                               const char *function, int64_t *id, struct plim_error *err);
