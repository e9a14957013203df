/* hook.h - a webhook: sends messages about a run from its own thread, so that the run never waits.
 *
 *     struct hook *hook;
 *     hook_open(&(struct hook_options){.url = url, .seconds = 10, .library = library}, &hook, &err);
 *     hook_send(hook, &text);                            // takes the text; a full queue drops the oldest
 *     if (hook_problem(hook, &problem)) ...              // once, after the first message that did not arrive
 *     hook_finish(hook);                                 // the remaining messages have at most `seconds`
 *     if (hook_close(hook, &problem)) ...                // waits for them
 *
 * States of the thread, under the hook's lock:
 *
 *     waiting --hook_send--> sending --(arrived, failed, too slow)--> waiting
 *     waiting or sending --hook_finish--> draining --(queue empty, or the time is over)--> ended
 *
 * Invariants
 *  1. The queue holds at most HOOK_QUEUE messages; a message being sent has left it.
 *  2. A message has at most `seconds`; after hook_finish all remaining ones together have. If the answer says "later", the
 *     message is sent again, up to HOOK_TRIES times in total, while time remains.
 *  3. The lock is never held while sending.
 */
#pragma once

#include "base/strbuf.h"
#include "net/post.h"

enum { HOOK_QUEUE = 16, HOOK_TRIES = 3 };

struct hook;

struct hook_options {
    struct post_library *library;
    const char *url; /* a secret */
    double seconds;
};

enum plim_status hook_open(const struct hook_options *options, struct hook **out, struct plim_error *err);
/* Finish all hooks before closing the first, so that their time limits run in parallel. */
void hook_finish(struct hook *hook);
/* Returns true if there is a problem that hook_problem has not reported. NULL is fine. */
bool hook_close(struct hook *hook, struct plim_error *problem);

/* Takes over the text. */
void hook_send(struct hook *hook, struct strbuf *text);

/* Returns true once after a message was lost, with the reason. */
bool hook_problem(struct hook *hook, struct plim_error *out);
