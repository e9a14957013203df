/* replay.h - a trace of allocations through the caching allocator (mem/cache.h) on a simulated device.
 *
 *     struct replay_result result;
 *     replay_run(&result, &lives, &(struct replay_options){.conf = "expandable_segments:True", .memory = 24ull << 30}, &err);
 *     // result.stats under PyTorch's names, result.fragmentation, result.ooms
 *
 * Blocks older than the trace are allocated before it. A free that completes later than it was requested waits in the cache, as
 * a block that another stream uses. A refused allocation counts as an out-of-memory error; its free is left out and the trace
 * goes on, so that one run names every shortage.
 */
#pragma once

#include "mem/cache.h"
#include "report/torch_lives.h"

struct replay_options {
    const char *conf; /* PyTorch's option string; "" or NULL: its defaults */
    uint64_t memory;  /* bytes of the device; 0: no limit */
};

struct replay_result {
    struct cache_stats stats;
    struct cache_fragmentation fragmentation; /* at the end, except `peak` */
    int ooms;
    int64_t first_oom;       /* its time, as in torch_lives.h; 0: before the trace */
    int64_t first_oom_bytes; /* requested */
    int64_t calls;           /* allocations and frees */
    double seconds;
};

/* PLIM_BAD_INPUT: an option string that PyTorch would refuse, in its words, or one that needs `memory`; PLIM_UNSUPPORTED as
 * in cache_new; PLIM_NO_MEMORY of the host. Out of memory on the simulated device is a result, not an error. */
enum plim_status replay_run(struct replay_result *out, const struct torch_lives *lives,
                            const struct replay_options *options, struct plim_error *err);
