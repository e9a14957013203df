/* hook.h - an address that is told of a run, from a thread of its own: whoever sends never waits.
 *
 *     struct hook *hook;
 *     hook_open(&(struct hook_options){.url = url, .seconds = 10, .library = library}, &hook, &err);
 *     hook_send(hook, &text);                            // takes the text; a full queue drops the oldest
 *     if (hook_problem(hook, &problem)) ...              // once, after the first message that did not arrive
 *     hook_finish(hook);                                 // from now on what is left has `seconds` at most
 *     if (hook_close(hook, &problem)) ...                // waits for it
 *
 * States of the thread, under the hook's lock:
 *
 *     waiting --hook_send--> sending --(arrived, failed, too slow)--> waiting
 *     waiting or sending --hook_finish--> draining --(queue empty, or the time is over)--> ended
 *
 * Invariants
 *  1. The queue never has more than HOOK_QUEUE messages; what is sent has left it.
 *  2. A message has `seconds` at most; after hook_finish all of them together have. One that is answered with "later" is sent
 *     again, HOOK_TRIES times in all, as far as that time goes.
 *  3. The lock is never held while something is sent.
 */
#ifndef PLIM_TELL_HOOK_H
#define PLIM_TELL_HOOK_H

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
/* Several are finished before the first is closed: their time runs together. */
void hook_finish(struct hook *hook);
/* True: there is a problem that hook_problem has not told. NULL is fine. */
bool hook_close(struct hook *hook, struct plim_error *problem);

/* The text is the hook's afterwards. */
void hook_send(struct hook *hook, struct strbuf *text);

/* Was a message lost? True once, with why. */
bool hook_problem(struct hook *hook, struct plim_error *out);

#endif
