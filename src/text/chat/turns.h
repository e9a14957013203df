/* turns.h - a conversation's prefixes without rendering them: the turns of a template's loop over the messages.
 *
 *     struct chat_turns turns = {.loop = tmpl->loop, .item = values, ...};   // NULL: prefixes must be rendered as a whole
 *     ... render the conversation            // turns.begin[i]: where the text of turn i begins
 *     turns.last_only = true
 *     ... render the first k messages        // the head, the last turn and the tail
 *
 * Most templates are a head, one loop over the messages and a tail. Where a turn of the loop sees neither how many messages
 * follow nor what earlier turns left behind, the text of the first k messages is what the whole conversation has up to turn
 * k, then turn k once more (it is the last one now: loop.last), then the tail. turns_loop proves that of a template:
 *
 *  1. Head and loop use the list of messages only as messages[n] with a number n, messages[n:], another name for one of
 *     these, messages[loop.index0 + n] with n <= 1, or to see that it is there; the tail may do as it likes.
 *  2. In the loop, `loop` is asked for first, last, index, index0, previtem, nextitem and depth only.
 *  3. No turn leaves something behind: nothing in the loop, or in a macro, sets an attribute of a namespace, and no iterator
 *     is made before the loop that a turn could read.
 *
 * What only values tell is noticed while the conversation is rendered (`odd`): messages[-1] by way of loop.index0 - 1.
 */
#ifndef PLIM_TEXT_CHAT_TURNS_H
#define PLIM_TEXT_CHAT_TURNS_H

#include "text/chat/tree.h"
#include <stdint.h>

struct chat_turns {
    const struct chat_stmt *loop;
    const struct chat_value *item; /* the messages as values, for all renderings; not copied */
    size_t items;                  /* of them, the rendered ones */
    size_t used;                   /* bytes of memory behind them */
    bool last_only;                /* turns before the last are left out */
    bool odd;                      /* out: a turn has looked at the end of the list */
    size_t count;                  /* out: turns of the loop; 0: it did not run */
    size_t begun;                  /* out: those of them that have begun: a loop can be left early */
    /* out: start of each message's text; has room for every message. last_only: one entry, the last turn's. */
    size_t *begin;
};

/* The loop, and how many messages a prefix must have for the proof to hold; NULL: not proved. */
const struct chat_stmt *turns_loop(const struct chat_template *tmpl, size_t *need);

#endif
