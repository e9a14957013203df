/* handle.h - what every object of the public API begins with, so that a wrong or closed handle is an error and no crash.
 *
 *     struct plim_thing { struct handle handle; ... };
 *     struct plim_thing *t = handle_new(sizeof *t, HANDLE_THING, context, err);    // zeroed
 *     if (!handle_is(t, HANDLE_THING, "plim_thing_run", err)) return PLIM_BAD_INPUT;
 *     handle_free(t);
 *
 * In builds with PLIMSOLL_HANDLES the memory of closed handles is never reused, so that use after close is always named.
 */
#pragma once

#include "base/context.h"
#include "base/status.h"

/* Kinds of handles, by name: plim_NAME. */
#define HANDLE_KINDS(X)                                                                                      \
    X(CONTEXT, context)                                                                                      \
    X(DEVICE, device)                                                                                        \
    X(MONITOR, monitor)                                                                                      \
    X(JOB, job)                                                                                              \
    X(PLAN, plan)                                                                                            \
    X(ACCUMULATOR, accumulator)                                                                              \
    X(TRAINER, trainer)                                                                                      \
    X(ENGINE, engine)                                                                                        \
    X(TOKENIZER, tokenizer)                                                                                  \
    X(EMBEDDER, embedder)                                                                                    \
    X(ALLOCATOR, allocator)

enum handle_kind {
#define X(upper, lower) HANDLE_##upper,
    HANDLE_KINDS(X)
#undef X
        HANDLE_KIND_COUNT
};

struct handle {
    uint32_t mark; /* the kind, in a form that other memory hardly has */
    struct plim_context *context;
};

struct plim_context {
    struct handle handle;
    struct context context; /* what the rest of the house takes */
    struct log log;
    char *cache, *modules;
};

/* A zeroed object; NULL: out of memory, with the error set. `context` is NULL for a context itself. */
void *handle_new(size_t bytes, enum handle_kind kind, struct plim_context *context, struct plim_error *err);
void handle_free(void *object);

/* True if `object` is an open handle of this kind. Otherwise sets the error (PLIM_BAD_INPUT) and returns false. */
bool handle_is(const void *object, enum handle_kind kind, const char *function, struct plim_error *err);

/* The context that an object was opened with. */
static inline const struct context *handle_context(const struct handle *handle)
{
    return &handle->context->context;
}

/* Copies options that begin with their size: a caller's older, shorter struct leaves the rest zero; `given` NULL: all are zero.
 * PLIM_BAD_INPUT: the size is none that a header of ours had. */
enum plim_status options_take(void *out, size_t bytes, const void *given, const char *function,
                              struct plim_error *err);

/* The opposite direction: fills a caller's struct of given->size bytes from ours. */
enum plim_status figures_give(void *given, const void *ours, size_t bytes, const char *function,
                              struct plim_error *err);

/* Turns a finished buffer into text for plim_free; NULL: out of memory. Releases the buffer. */
char *text_give(struct strbuf *text);
