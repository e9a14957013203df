/* group.h - ops that a device may run at once.
 *
 *     for (int i = 0; i < tape.nops; i = end) {
 *         end = tape_group_end(&tape, i);      // ops [i, end), in any order or side by side
 *         ...
 *     }
 *
 * A group is a run of ops of one kind whose row says `together` (op.h), in one part of the tape and none of them on the
 * host, such that no op touches bytes that another one writes. So their order does not matter. Every other op is a group by
 * itself.
 */
#pragma once

#include "tape/tape.h"

/* Maximum length of a group: the arguments of one launch. */
enum { TAPE_GROUP_MOST = 64 };

int tape_group_search(const struct tape *tape, int first);

/* Index after the group that begins at op `first`. Takes time linear in the group's operands; most ops are followed
 * by one of another kind and take none. */
static inline int tape_group_end(const struct tape *tape, int first)
{
    const struct op *op = &tape->ops[first];
    return first + 1 < tape->nops && op[0].kind == op[1].kind ? tape_group_search(tape, first) : first + 1;
}
