/* quota.c - see quota.h. Invariant: used <= peak <= most. */
#include "base/quota.h"
#include "base/bytes.h"

bool quota_take(struct quota *quota, uint64_t bytes)
{
    if (!quota) return true;
    quota->refused |= bytes > quota->most - quota->used;
    if (bytes > quota->most - quota->used) return false;
    quota->used += bytes;
    if (quota->used > quota->peak) quota->peak = quota->used;
    return true;
}

void quota_give(struct quota *quota, uint64_t bytes)
{
    if (quota) quota->used -= bytes < quota->used ? bytes : quota->used;
}

uint64_t quota_left(const struct quota *quota) { return quota ? quota->most - quota->used : UINT64_MAX; }

enum plim_status quota_fail(const struct quota *quota, const char *name, struct plim_error *err)
{
    char most[BYTES_TEXT];
    return plim_fail(err, quota->status ? quota->status : PLIM_BAD_INPUT,
                     "%s: takes more than %s (%llu bytes) to read, %s", name, bytes_format(most, quota->most),
                     (unsigned long long)quota->most, quota->why);
}
