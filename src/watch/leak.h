/* leak.h - growth of what the process holds outside the plan: noticed, attributed, told once.
 *
 *     struct leak leak = {0};
 *     leak_look(&leak, step, outside, allowed, &parts);     // at every sample
 *     if (leak.found && !leak.told) ... leak_text(&leak, &out);
 *
 * Memory outside the arena settles in the first steps: buffers are touched, libraries load, the loader fills. A window is
 * LEAK_WINDOW samples, and counts with its smallest one, so that a checkpoint or an evaluation that comes and goes is none.
 * Growth is a leak when LEAK_WINDOWS windows in a row were each larger than the one before and together by more than
 * is allowed. What grew is the part whose bytes grew most since the first of them. Pure.
 */
#ifndef PLIM_WATCH_LEAK_H
#define PLIM_WATCH_LEAK_H

#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>

enum leak_part { LEAK_LOADER, LEAK_LIBRARIES, LEAK_PAGE_CACHE, LEAK_UNKNOWN, LEAK_PARTS };

/* Memory that the process holds outside the arena, by holder. */
struct leak_parts {
    int64_t bytes[LEAK_PARTS];
};

enum { LEAK_WINDOW = 4, LEAK_WINDOWS = 4 };

struct leak {
    int64_t least;           /* of the window under way */
    struct leak_parts parts; /* when `least` was seen */
    int64_t step;            /* then */
    int seen;                /* samples of the window under way */
    int rising;              /* windows in a row, each larger than the one before */
    int64_t last;            /* the window before */
    int64_t from, from_step; /* where the rise began */
    struct leak_parts from_parts;
    bool found, told;
    int64_t growth, growth_steps; /* when found */
    enum leak_part who;
};

/* One sample. Steps that do not advance count as well: a leak in an idle thread is one. */
void leak_look(struct leak *leak, int64_t step, int64_t outside, int64_t allowed,
               const struct leak_parts *parts);

const char *leak_part_name(enum leak_part part);

/* "memory outside the plan has grown by 8.2 MiB in 12 steps: the loader's buffers" */
void leak_text(const struct leak *leak, struct strbuf *out);

#endif
