/* cuda_transfer.h - the host tier of a GPU: pinned memory, copies that run beside the kernels, ops the CPU computes.
 *
 *     struct cuda_transfer *tr;
 *     cuda_transfer_open(compute_stream, team, &tr, &err);
 *     cuda_transfer_commit(tr, bytes, &err);
 *     cuda_transfer_fetch(tr, host_offset, to, n);         // queued on a stream of its own
 *     cuda_transfer_run(tr, &call);                        // an op on host operands, likewise
 *     cuda_transfer_before(tr, operand, n, writes);        // before a kernel that reads or writes these bytes
 *     cuda_transfer_join(tr);                              // the compute stream waits for every copy
 *
 * Order. There are three streams, for fetches, stores and ops of the host. Each thing begins when everything queued for
 * computing before it is done, and everything on these streams that touches a byte of it, unless both only read. So a tape that asks for a slice
 * one update ahead copies while it computes, in both directions at once. All of it can be captured into a graph. */
#ifndef PLIM_DEVICE_CUDA_CUDA_TRANSFER_H
#define PLIM_DEVICE_CUDA_CUDA_TRANSFER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;
struct kernel_call;
struct threads;
struct cuda_transfer;

/* `team` brings in the pages of the host tier and computes ops there; borrowed. */
enum plim_status cuda_transfer_open(struct CUstream_st *compute, struct threads *team,
                                    struct cuda_transfer **out, struct plim_error *err);
void cuda_transfer_close(struct cuda_transfer *tr);

/* Size of the host tier; what is below both sizes keeps its content. PLIM_NO_MEMORY: the tier is as before. */
enum plim_status cuda_transfer_commit(struct cuda_transfer *tr, size_t bytes, struct plim_error *err);
void *cuda_transfer_base(const struct cuda_transfer *tr);

/* Each returns a cudaError_t as an int. */
int cuda_transfer_fetch(struct cuda_transfer *tr, size_t host_offset, void *to, size_t bytes);
int cuda_transfer_store(struct cuda_transfer *tr, const void *from, size_t host_offset, size_t bytes);
int cuda_transfer_run(struct cuda_transfer *tr, const struct kernel_call *call);
int cuda_transfer_before(struct cuda_transfer *tr, const void *operand, size_t bytes, bool writes);
int cuda_transfer_join(struct cuda_transfer *tr);

/* From here on (false: no more) ops of the host are of a recording and stay until all are forgotten. */
void cuda_transfer_record(struct cuda_transfer *tr, bool recording);
/* Every op of the host so far is done. `all`: and no recording will run again. */
void cuda_transfer_forget(struct cuda_transfer *tr, bool all);

#endif
