/* quota.h - a limit on the memory that one piece of work may take, counted as it grows.
 *
 *     struct quota quota = {.most = 64 << 20, .why = "the most for a tokenizer"};
 *     if (!quota_take(&quota, bytes)) return quota_fail(&quota, path, err);
 *     ...
 *     quota_give(&quota, bytes);                           // when it is freed
 *
 * Untrusted files decide how much is allocated for them; a quota refuses before the machine does. A quota only counts:
 * it allocates nothing. After a failure the count is meaningless. A NULL quota has no limit. Not thread-safe.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct quota {
    uint64_t most; /* the limit, in bytes */
    uint64_t used, peak;
    bool refused;            /* quota_take has refused */
    enum plim_status status; /* of quota_fail; 0: PLIM_BAD_INPUT */
    const char *why;         /* ends the message: where the limit comes from, what to do */
};

/* Counts bytes that are about to be used, or just were. Returns false, and counts nothing, when they exceed
 * the limit. */
bool quota_take(struct quota *quota, uint64_t bytes);
void quota_give(struct quota *quota, uint64_t bytes);

/* Bytes left; UINT64_MAX without a quota. */
uint64_t quota_left(const struct quota *quota);

/* "name: takes more than 12.3 MiB (12897484 bytes) to read, why". */
enum plim_status quota_fail(const struct quota *quota, const char *name, struct plim_error *err);
