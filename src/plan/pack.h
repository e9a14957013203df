/* pack.h - offline dynamic storage allocation: intervals in, offsets out.
 *
 * An item occupies `size` bytes during the half-open time [lower, upper). Items whose times overlap must not overlap in
 * addresses. pack_items chooses offsets that keep the highest used address low; the peak of live bytes is a lower bound
 * for every packing. The packer knows nothing of tensors.
 *
 *     struct pack_item items[] = {{.lower = 0, .upper = 4, .size = 64}, ...};
 *     struct pack_result r;
 *     pack_items(items, n, &(struct pack_limits){.align = 64, .effort_ms = 50}, &r, &err);
 *     // items[i].offset, r.height, r.lower_bound
 *
 * Greedy passes come first; they take milliseconds for thousands of items and on tapes of transformers nearly always reach
 * the lower bound. If they do not (or exceed the capacity), a search improves the packing until it is good enough, proved
 * optimal, or out of time (effort_ms).
 */
#pragma once

#include "base/status.h"
#include <stdint.h>

struct pack_item {
    int64_t lower, upper; /* half-open lifetime, lower < upper */
    int64_t size;         /* bytes; 0 is allowed and gets offset 0 */
    int64_t offset;       /* out */
};

struct pack_limits {
    int64_t align;     /* offsets are multiples of this, sizes are rounded up to it; 0 means 1 */
    int64_t capacity;  /* good enough: stop as soon as height <= capacity; 0: aim at the lower bound */
    int64_t effort_ms; /* time limit of the search after the greedy passes; 0: limited by dives */
    int dives;         /* maximum number of dives, with effort_ms 0; both 0: no search */
};

struct pack_result {
    int64_t height;      /* highest used address, with rounded sizes */
    int64_t lower_bound; /* peak of live (rounded) bytes */
    const char *method;  /* what found it, for reports; static text */
};

/* Sets every items[i].offset. `limits` may be NULL for all zeros.
 *
 * PLIM_NO_FIT: a capacity is given and not reached (offsets hold the best packing found). PLIM_BAD_INPUT: lower >= upper, a
 * negative number, or live bytes beyond 2^63-1 (offsets are unchanged). PLIM_NO_MEMORY. With effort_ms 0 the same items
 * always give the same offsets. */
enum plim_status pack_items(struct pack_item *items, int n, const struct pack_limits *limits,
                            struct pack_result *result, struct plim_error *err);

/* Returns 1 and, in *a < *b, the first pair that overlaps in both time and address; 0: none. Used by tests
 * and the verifier. Sizes are not rounded; items of size 0 never overlap. O(n log n). */
int pack_conflict(const struct pack_item *items, int n, int *a, int *b);
