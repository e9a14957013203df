/* cuda_transfer.h - the host tier of a GPU: pinned memory, copies that overlap kernels, ops computed by the CPU.
 *
 *     struct cuda_transfer *tr;
 *     cuda_transfer_open(compute_stream, team, ledger, cls, &tr, &err);
 *     cuda_transfer_commit(tr, bytes, &err);
 *     cuda_transfer_fetch(tr, host_offset, to, n);         // queued on its own stream
 *     cuda_transfer_run(tr, &call);                        // an op on host operands, likewise
 *     cuda_transfer_before(tr, operand, n, writes);        // before a kernel that reads or writes these bytes
 *     cuda_transfer_join(tr);                              // the compute stream waits for every copy
 *
 * Order. There are four streams, for fetches, stores, ops of the host and exchanges with other cards. Each item waits for all
 * computing queued before it, and for every item on these streams that touches the same bytes, unless both only read. So a
 * tape that requests a slice one update ahead copies in both directions while it computes. All of it can be captured into a
 * graph. */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;
struct device_exchange;
struct kernel_call;
struct ledger;
struct threads;
struct cuda_transfer;

/* `team` touches the pages of the host tier and computes ops there; `ledger` (class `cls`) counts the tier's
 * bytes. Both are borrowed. */
enum plim_status cuda_transfer_open(struct CUstream_st *compute, struct threads *team, struct ledger *ledger,
                                    int cls, struct cuda_transfer **out, struct plim_error *err);
void cuda_transfer_close(struct cuda_transfer *tr);

/* Sets the size of the host tier; contents below both sizes are kept. PLIM_NO_MEMORY, from the ledger or the
 * system: the tier is unchanged. */
enum plim_status cuda_transfer_commit(struct cuda_transfer *tr, size_t bytes, struct plim_error *err);
void *cuda_transfer_base(const struct cuda_transfer *tr);

/* Each returns a cudaError_t as an int. */
int cuda_transfer_fetch(struct cuda_transfer *tr, size_t host_offset, void *to, size_t bytes);
int cuda_transfer_store(struct cuda_transfer *tr, const void *from, size_t host_offset, size_t bytes);
int cuda_transfer_run(struct cuda_transfer *tr, const struct kernel_call *call);
/* Calls an exchange's begin (device.h) with its stream; *why is the result. */
int cuda_transfer_exchange(struct cuda_transfer *tr, const struct device_exchange *exchange,
                           const char **why);
int cuda_transfer_before(struct cuda_transfer *tr, const void *operand, size_t bytes, bool writes);
int cuda_transfer_join(struct cuda_transfer *tr);
/* Waits for everything that touches these bytes of the host tier. */
int cuda_transfer_await(struct cuda_transfer *tr, size_t host_offset, size_t bytes);
/* True if nothing is in progress that a kernel might have to wait for. */
bool cuda_transfer_idle(const struct cuda_transfer *tr);

/* Ops of the host queued between begin and end belong to the program being compiled: end returns them, and
 * they must be freed once nothing runs them any more. Others are freed by cuda_transfer_done. */
struct cuda_host_op;
void cuda_transfer_record_begin(struct cuda_transfer *tr);
struct cuda_host_op *cuda_transfer_record_end(struct cuda_transfer *tr);
void cuda_host_ops_free(struct cuda_host_op *ops);

/* Times of copies, exchanges and ops of the host go there from now on; NULL: nowhere. */
struct cuda_times;
void cuda_transfer_time(struct cuda_transfer *tr, struct cuda_times *times);

/* Declares that everything queued so far is done. */
void cuda_transfer_done(struct cuda_transfer *tr);
