/* handle.c - see handle.h. */
#include "api/handle.h"

#include <stdlib.h>
#include <string.h>

/* A mark is 0x504c0000 plus the kind; a closed handle's is 0xdead0000 plus the kind. */
enum { OPEN_MARK = 0x504c0000 };
#define CLOSED_MARK 0xdead0000u

static const char *const names[HANDLE_KIND_COUNT] = {
#define X(upper, lower) "plim_" #lower,
    HANDLE_KINDS(X)
#undef X
};

void *handle_new(size_t bytes, enum handle_kind kind, struct plim_context *context, struct plim_error *err)
{
    struct handle *handle = calloc(1, bytes);
    if (!handle) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a %s", names[kind]), NULL;
    handle->mark = OPEN_MARK + (uint32_t)kind;
    handle->context = context;
    return handle;
}

void handle_free(void *object)
{
    struct handle *handle = object;
    if (!handle) return;
    handle->mark = CLOSED_MARK + (handle->mark & 0xffff);
#ifndef PLIMSOLL_HANDLES
    free(handle);
#endif
}

bool handle_is(const void *object, enum handle_kind kind, const char *function, struct plim_error *err)
{
    const struct handle *handle = object;
    uint32_t mark = handle ? handle->mark : 0, number = mark & 0xffff;
    const char *what = !handle                        ? "NULL"
                       : number >= HANDLE_KIND_COUNT  ? NULL
                       : mark == CLOSED_MARK + number ? "closed"
                       : mark == OPEN_MARK + number   ? names[number]
                                                      : NULL;
    if (mark == OPEN_MARK + (uint32_t)kind) return true;
    if (what && !strcmp(what, "closed"))
        plim_fail(err, PLIM_BAD_INPUT, "%s: this %s has been closed", function, names[number]);
    else
        plim_fail(err, PLIM_BAD_INPUT, "%s: expected a %s, got %s", function, names[kind],
                  what ? what : "memory that is not a handle");
    return false;
}

enum plim_status options_take(void *out, size_t bytes, const void *given, const char *function,
                              struct plim_error *err)
{
    size_t size = 0;
    memset(out, 0, bytes);
    if (given) memcpy(&size, given, sizeof size);
    if (given && (size < sizeof size || size > bytes))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: options.size is %zu; set it to sizeof options (%zu at most in this version)",
                         function, size, bytes);
    if (given) memcpy(out, given, size);
    return PLIM_OK;
}

enum plim_status figures_give(void *given, const void *ours, size_t bytes, const char *function,
                              struct plim_error *err)
{
    size_t size = 0;
    if (!given) return plim_fail(err, PLIM_BAD_INPUT, "%s: the pointer for the result is NULL", function);
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > bytes)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: size is %zu; set it to sizeof (%zu at most in this version)", function, size,
                         bytes);
    memcpy((char *)given + sizeof size, (const char *)ours + sizeof size, size - sizeof size);
    return PLIM_OK;
}

char *text_give(struct strbuf *text)
{
    char *out = text->failed ? NULL : strdup(strbuf_text(text));
    strbuf_release(text);
    return out;
}
