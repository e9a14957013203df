/* summary.h - a run's memory in a few familiar numbers: allocated, reserved, free, peak, by class.
 *
 *     struct memory_summary s;
 *     summary_of(&runtime, &s);
 *     summary_json(&s, w, "memory");
 *
 * The numbers refer to the tier that the budget counts: the process on a CPU, device memory on a GPU. All but the peak
 * follow from the plan, which is committed to the byte (runtime_check).
 */
#pragma once

#include "base/json.h"
#include "runtime/runtime.h"

struct memory_summary {
    int64_t budget;
    int64_t allocated; /* live at the peak of a step, overhead included */
    int64_t reserved;  /* committed: arena and overhead */
    int64_t free;      /* of the budget */
    int64_t peak;      /* maximum ever reserved */
    int64_t overhead;
    int64_t host, disk;            /* on the tiers below */
    int64_t by_class[CLASS_COUNT]; /* of allocated, without the overhead */
};

void summary_of(const struct runtime *rt, struct memory_summary *out);

/* Reserved bytes as a share of the budget; bytes of the arena that are unused even at the peak, as a
 * share. */
double summary_utilisation(const struct memory_summary *summary);
double summary_fragmentation(const struct memory_summary *summary);

void summary_json(const struct memory_summary *summary, struct json_writer *w, const char *key);
