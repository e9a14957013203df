/* leak.h - detects growth of the process's memory outside the plan, attributes it, and reports it once.
 *
 *     struct leak leak = {0};
 *     leak_look(&leak, step, outside, allowed, &parts);     // at every sample
 *     if (leak.found && !leak.told) ... leak_text(&leak, &out);
 *
 * Memory outside the arena settles in the first steps: buffers are touched, libraries load, the loader fills. A window is
 * LEAK_WINDOW samples and counts with its smallest one, so a checkpoint or an evaluation that comes and goes does not
 * count. Growth is a leak when LEAK_WINDOWS consecutive windows each exceed the one before, and together by more than
 * `allowed`. It is attributed to the part that grew most since the first of them. Pure.
 */
#pragma once

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
    int64_t least;           /* minimum of the current window */
    struct leak_parts parts; /* at the time of `least` */
    int64_t step;            /* at that time */
    int seen;                /* samples in the current window */
    int rising;              /* consecutive windows, each larger than the one before */
    int64_t last;            /* the previous window */
    int64_t from, from_step; /* where the growth began */
    struct leak_parts from_parts;
    bool found, told;
    int64_t growth, growth_steps; /* when found */
    enum leak_part who;
};

/* Adds one sample. Samples without a new step count too: an idle thread can leak. */
void leak_look(struct leak *leak, int64_t step, int64_t outside, int64_t allowed,
               const struct leak_parts *parts);

const char *leak_part_name(enum leak_part part);

/* "memory outside the plan has grown by 8.2 MiB in 12 steps: the loader's buffers" */
void leak_text(const struct leak *leak, struct strbuf *out);
