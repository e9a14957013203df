/* pack.h - offline dynamic storage allocation: intervals in, offsets out.
 *
 * An item occupies `size` bytes during the half-open time [lower, upper). Two items whose times overlap must not
 * overlap in addresses. pack_items chooses offsets so that the highest used address is small; pack_lower_bound
 * is the peak of live bytes, below which no packing can go. Knows nothing of tensors.
 *
 *     struct pack_item items[] = {{.lower = 0, .upper = 4, .size = 64}, ...};
 *     struct pack_result r;
 *     pack_items(items, n, &(struct pack_limits){.align = 64, .effort_ms = 50}, &r, &err);
 *     // items[i].offset, r.height, r.lower_bound
 */
#ifndef PLIM_PLAN_PACK_H
#define PLIM_PLAN_PACK_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct pack_item {
    int64_t lower, upper; /* half-open lifetime, lower < upper */
    int64_t size;         /* bytes; 0 is allowed and gets offset 0 */
    int64_t offset;       /* out */
};

struct pack_limits {
    int64_t align;     /* offsets are multiples of this, sizes are rounded up to it; 0 means 1 */
    int64_t capacity;  /* stop as soon as height <= capacity; 0: aim at the lower bound */
    int64_t effort_ms; /* how long the search beyond the greedy passes may take; 0: greedy passes only */
};

struct pack_result {
    int64_t height;      /* highest used address */
    int64_t lower_bound; /* peak of live (aligned) bytes */
    const char *method;  /* which pass found it, for reports */
};

/* PLIM_NO_FIT when capacity is given and not reached (offsets then hold the best packing found);
 * PLIM_BAD_INPUT for lower >= upper or a negative size; PLIM_NO_MEMORY. Deterministic when effort_ms is 0. */
enum plim_status pack_items(struct pack_item *items, int n, const struct pack_limits *limits,
                            struct pack_result *result, struct plim_error *err);

int64_t pack_lower_bound(const struct pack_item *items, int n, int64_t align);

/* First pair of items that overlap in both time and address, or 0: the checker used by tests and the verifier. */
int pack_conflict(const struct pack_item *items, int n, int *a, int *b);

#endif
