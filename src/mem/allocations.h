/* allocations.h - what our own code has taken from the C library, by call site; in builds that were made for it.
 *
 *     cmake --preset dev -DPLIMSOLL_ALLOCATIONS=ON       // malloc, calloc, realloc, aligned_alloc, strdup, strndup, free
 *
 *     allocations_mark();                                // growth is counted from here
 *     struct allocation_site top[8];
 *     int n = allocations_grown(top, 8);                 // the sites whose bytes have grown most; 0 in other builds
 *     allocations_text(&out, 3);                         // "1.0 MiB in 12 blocks at plimsoll+0x2f31a, ..."
 *
 * The linker redirects calls of our own objects (--wrap), so libraries are not counted and other builds have nothing of it,
 * not even a test of a flag. `addr2line -fe plimsoll 0x2f31a` names the function and its line.
 */
#pragma once

#include "base/json.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>

struct allocation_site {
    const void *site;      /* the address behind the call */
    int64_t bytes, blocks; /* held now */
    int64_t before;        /* bytes held when allocations_mark was called */
};

bool allocations_counted(void);
void allocations_mark(void);

/* At most `most` sites, by growth since the mark, the largest first; those that have not grown are left out. Their number. */
int allocations_grown(struct allocation_site *out, int most);

/* "plimsoll+0x2f31a" */
void allocations_place(const void *site, char *out, size_t size);

/* Nothing in builds that do not count. */
void allocations_text(struct strbuf *out, int most);
void allocations_json(struct json_writer *w, const char *key, int most);
