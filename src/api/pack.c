/* pack.c - see plimsoll/pack.h. */
#include "plan/pack.h"
#include <plimsoll/pack.h>

#include <limits.h>
#include <stdlib.h>

enum plim_status plim_pack(struct plim_interval *blocks, size_t count, uint64_t align, uint64_t *height,
                           struct plim_error *err)
{
    struct pack_result result = {0};
    if ((count && !blocks) || !height)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_pack: blocks or height is NULL");
    if (count > INT_MAX) return plim_fail(err, PLIM_BAD_INPUT, "plim_pack: more than %d blocks", INT_MAX);
    struct pack_item *items = calloc(count + 1, sizeof *items);
    if (!items) return plim_fail(err, PLIM_NO_MEMORY, "plim_pack: out of memory for %zu blocks", count);
    for (size_t i = 0; i < count; i++)
        items[i] = (struct pack_item){blocks[i].born, blocks[i].died, (int64_t)blocks[i].bytes, 0};
    struct pack_limits limits = {.align = (int64_t)align, .dives = 4};
    enum plim_status status = pack_items(items, (int)count, &limits, &result, err);
    for (size_t i = 0; i < count && status == PLIM_OK; i++) blocks[i].offset = (uint64_t)items[i].offset;
    *height = status == PLIM_OK ? (uint64_t)result.height : 0;
    free(items);
    return status;
}
