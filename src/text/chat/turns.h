/* turns.h - derives a conversation's prefixes from one rendering, using the turns of the template's loop over messages.
 *
 *     struct chat_turns turns = {.loop = tmpl->loop, .item = values, ...};   // NULL: render every prefix instead
 *     ... render the conversation            // turns.begin[i]: where the text of turn i begins
 *     turns.last_only = true
 *     ... render the first k messages        // the head, the last turn and the tail
 *
 * Most templates are a head, one loop over the messages and a tail. If a turn of the loop depends neither on the number of
 * following messages nor on state left by earlier turns, the text of the first k messages is the conversation's text up to
 * turn k, then turn k again (now as the last one: loop.last), then the tail. turns_loop proves this for a template:
 *
 *  1. Head and loop use the list of messages only as messages[n] with a number n, messages[n:], another name for one of
 *     these, messages[loop.index0 + n] with n <= 1, or to test that it is present. The tail may use it freely.
 *  2. In the loop, `loop` is used only for first, last, index, index0, previtem, nextitem and depth.
 *  3. No turn leaves state behind: nothing in the loop, or in a macro, sets an attribute of a namespace, and no iterator
 *     is made before the loop that a turn could read.
 *
 * Cases that depend on values are detected while the conversation is rendered (`odd`), such as messages[-1] through
 * loop.index0 - 1.
 */
#pragma once

#include "text/chat/tree.h"
#include <stdint.h>

struct chat_turns {
    const struct chat_stmt *loop;
    const struct chat_value *item; /* the messages as values; shared by all renderings */
    size_t items;                  /* how many of them are rendered */
    size_t used;                   /* bytes of memory of these values */
    bool last_only;                /* skip the turns before the last */
    bool odd;                      /* out: a turn read the end of the list */
    size_t count;                  /* out: turns of the loop; 0: it did not run */
    size_t begun;                  /* out: turns that began; a loop can end early */
    /* out: start of each message's text; has room for every message. last_only: one entry, the last turn's. */
    size_t *begin;
};

/* The loop, and the number of messages a prefix needs for the proof to hold. NULL: not proved. */
const struct chat_stmt *turns_loop(const struct chat_template *tmpl, size_t *need);
