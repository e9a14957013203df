/* torch_lives.h - when each block of a PyTorch trace was alive: the trace as intervals.
 *
 *     struct torch_lives lives;
 *     torch_lives_find(&lives, &snap.devices[0], &err);
 *     // lives.items[i]: [begin, end) in events, bytes, stream, frame
 *     torch_lives_release(&lives);
 *
 * Time is the position in the trace: event i happens at i + 1, the trace ends at event_count + 1. A block that was alive before
 * the trace begins at 0: it is freed without having been allocated, or it is in the snapshot's segments and no event made
 * it. A block lives until its free is completed (where the trace has such events), because until then another stream may
 * still use it.
 */
#pragma once

#include "base/status.h"
#include "store/torch_snapshot.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct torch_life {
    int64_t begin, end; /* half-open */
    int64_t let_go;     /* when the free was requested; 0: never */
    int64_t bytes;      /* as requested */
    uint64_t address, stream;
    int frame;
    int order; /* of the allocations of the trace: 0, 1, ...; -1: older than the trace */
};

struct torch_lives {
    struct torch_life *items; /* those older than the trace in no order, the others in order of allocation */
    int count, allocations, older;
    int64_t end;                         /* of the trace */
    int64_t live_peak, live_peak_at;     /* bytes as requested, and the first time they were alive together */
    int64_t reserved_peak, reserved_end; /* bytes of segments */
    int streams;
    int ooms;
};

/* PLIM_BAD_INPUT: more than 2^31 events or bytes beyond 2^62; PLIM_NO_MEMORY. */
enum plim_status torch_lives_find(struct torch_lives *out, const struct torch_device *device,
                                  struct plim_error *err);
void torch_lives_release(struct torch_lives *lives);
