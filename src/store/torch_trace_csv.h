/* torch_trace_csv.h - allocations and frees as text, for traces of any program.
 *
 *     action,id,size,stream
 *     alloc,1,4096,0
 *     free,1,,
 *
 * The first line names the columns, in any order: action and id are needed, size and stream may be missing. Lines are in
 * the order of time. An id is a whole number, such as an address; it may be used again after the free. Actions:
 *
 *     alloc            size bytes for work on a stream (0 when empty)
 *     free             let go, and usable again at once
 *     free_requested   let go while other streams still use it; usable again from its free_completed on
 *     free_completed
 *
 * The result is a snapshot with one device, no segments and no frames, so that everything that takes a PyTorch snapshot takes it.
 */
#pragma once

#include "store/torch_snapshot.h"

/* PLIM_BAD_INPUT names the line. On failure there is nothing to release. The text is not kept. */
enum plim_status torch_trace_read_csv(struct torch_snapshot *out, const char *text, size_t len,
                                      const char *name, struct plim_error *err);
