/* status.h - how full a memory is relative to its four thresholds: one word, and one line for people.
 *
 *     struct gauge g = gauge_of("device", used, total, ours, &profile);
 *     enum memory_status s = gauge_status(&g);                    // MEMORY_CRITICAL
 *     status_line(&out, 300, &g, s, "reducing batch size");
 *     // [Step 300] Memory: 22.8/24.0 GB (95%), Status: critical - reducing batch size
 *
 * GB and MB in this line are powers of 1024, because scripts parse this format; everywhere else the program writes GiB.
 * Pure.
 */
#pragma once

#include "base/strbuf.h"
#include "job/preset.h"

enum memory_status { MEMORY_NORMAL, MEMORY_WARNING, MEMORY_CRITICAL, MEMORY_EMERGENCY, MEMORY_STATUSES };
const char *memory_status_name(enum memory_status status);

/* Thresholds of a gauge, in ascending order. */
enum { LINE_TARGET, LINE_WARNING, LINE_CRITICAL, LINE_EMERGENCY, LINES };

/* One memory that can run out. */
struct gauge {
    const char *name;    /* "device", "machine", "container", "budget" */
    int64_t used;        /* by all processes */
    int64_t total;       /* 0: unknown; it is then never full */
    int64_t ours;        /* this process's part of used */
    int64_t line[LINES]; /* bytes */
};

/* Gauge of memory shared with other processes: thresholds are shares of the total. */
struct gauge gauge_of(const char *name, int64_t used, int64_t total, int64_t ours,
                      const struct profile *profile);

/* Gauge of the job's own budget: the budget takes the place of the target share, and the other thresholds keep their
 * distance to it. One hundredth is allowed for measurement noise. */
struct gauge gauge_of_budget(int64_t used, int64_t budget, const struct profile *profile);

enum memory_status gauge_status(const struct gauge *gauge);

/* Writes the line for a step. `action` NULL or empty: none. */
void status_line(struct strbuf *out, int64_t step, const struct gauge *gauge, enum memory_status status,
                 const char *action);
