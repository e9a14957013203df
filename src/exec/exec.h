/* exec.h - executes a plan on a device: nothing left to decide, nothing left to allocate.
 *
 *     struct exec exec;
 *     exec_open(&exec, device, &plan.tape, &plan.layout, disk, &err);   // disk: NULL unless a tensor lives on disk
 *     exec_tune(&exec, &err);                                    // optional: what runs often is compiled
 *     exec_write(&exec, ids, host_ids, 0, bytes, &err);
 *     exec_loop(&exec, micro, &err);                             // one micro-batch
 *     exec_update(&exec, &err);                                  // the rest of the tape
 *     exec_read(&exec, loss, host_loss, 0, bytes, &err);
 *     exec_close(&exec);
 *
 * The exec borrows tape, layout, device and disk and owns its programs (device/device.h): a range of ops that runs for the
 * first time after exec_tune is compiled, and launched from then on. Where the device compiles nothing, as on the CPU, a
 * program is the range itself, resolved as it runs. Any number of execs may be open over one arena; closing one leaves the
 * programs of the others alone. The device's arena must be committed to at least layout.arena_bytes.
 */
#pragma once

#include "comm/comm.h"
#include "device/device.h"
#include "exec/disk.h"
#include "plan/layout.h"

#define EXEC_FETCHES   16
#define EXEC_STORES    16
#define EXEC_EXCHANGES 32
#define EXEC_PROGRAMS  6

struct exec_span { /* bytes of the arena */
    const char *begin, *end;
};

struct exec {
    struct device *device;
    const struct tape *tape;
    const struct layout *layout;
    struct disk_store *disk;
    struct {
        int tensor; /* root being filled */
        uint64_t ticket;
    } fetching[EXEC_FETCHES];
    int nfetching;
    struct {
        int tensor; /* being written behind */
        uint64_t ticket;
    } storing[EXEC_STORES];
    int nstoring;
    struct {
        uint64_t ticket;
        struct exec_span reads, writes;
    } exchanging[EXEC_EXCHANGES]; /* between ranks, overlapping computing, in the order of their start */
    int nexchanging;
    struct exec_program {
        int begin, end; /* ops */
        bool first;     /* of the first micro-batch of a window */
        bool away;
        bool timed;
        struct device_program *program;
    } programs[EXEC_PROGRAMS];
    int nprograms;
    /* Pairs of the host (tape/offload_pairs.c): there are some; the half that is valid now is the one that is not kept. */
    bool pairs, away;
    bool compiles;      /* compile ranges before running them; set by exec_tune */
    double *op_seconds; /* by op kind, when the caller wants a profile; else NULL */
    /* By op: when it ran (exec/op_clock.h). While it is set, ops run as they do otherwise. NULL: nobody asks. */
    struct clock_span *times;
    /* Called after each op, when set, with its results in place. */
    void (*inspect)(void *arg, const struct exec *exec, int op);
    void *inspect_arg;
};

/* Connects the devices of all ranks, so that they exchange without their hosts. Call it before planning, because the
 * library's device memory becomes part of facts.overhead_bytes. For devices that support it (device_ops.exchange),
 * one per rank; device->comm is set. PLIM_UNSUPPORTED: some rank lacks the library, and all exchange through their
 * hosts; PLIM_IO. */
enum plim_status exec_join_devices(struct device *device, struct plim_error *err);

/* PLIM_UNSUPPORTED when the device lacks an op of the tape. */
enum plim_status exec_open(struct exec *exec, struct device *device, const struct tape *tape,
                           const struct layout *layout, struct disk_store *disk, struct plim_error *err);

/* For a new arena: zeroes kept tensors except the parameters, which are written next. */
void exec_fresh(struct exec *exec);

/* Lets the device measure how to run this tape's ops best and, if it can, compile them; worth it when the tape runs
 * many times. Destroys the arena's contents outside kept tensors, and this exec's programs. */
enum plim_status exec_tune(struct exec *exec, struct plim_error *err);

/* Compiles everything that a run of the tape needs, for either half of the host's pairs: with `later`, also the loop for micro-batches after the first,
 * and the update if the tape has one. Call it after exec_tune; nothing runs. */
enum plim_status exec_prepare(struct exec *exec, bool later, struct plim_error *err);
enum plim_status exec_prepare_later(struct exec *exec, struct plim_error *err); /* only that loop */

/* Frees the programs; ranges are compiled again when they run next. Call it after a change to the memory they were
 * compiled for. */
void exec_drop_programs(struct exec *exec);

/* Frees what the exec owns; a zeroed exec is allowed. Call it before its tape and layout are released. */
void exec_close(struct exec *exec);

/* Bytes of the device that its programs take. */
size_t exec_program_bytes(const struct exec *exec);

/* Ops [begin, end); micro is the index of the micro-batch in its window. */
enum plim_status exec_run(struct exec *exec, int begin, int end, int64_t micro, struct plim_error *err);
enum plim_status exec_loop(struct exec *exec, int64_t micro, struct plim_error *err);
enum plim_status exec_update(struct exec *exec, struct plim_error *err);
/* Only the updates that the loop begins with (pass_update.c, inside forward); not compiled, because it is rare. */
enum plim_status exec_pending(struct exec *exec, struct plim_error *err);
/* Fills the host's copies of weights, which it needs for its updates inside forward (tape/offload_host.c). Pending updates keep
 * copies and parameters equal. Before a step with nothing pending call this: parameters may have changed in other ways. */
enum plim_status exec_prime(struct exec *exec, struct plim_error *err);

/* The other half of the host's pairs is valid from now on: the update of the step before is about to be made. (pairs.c) */
void exec_turn_pairs(struct exec *exec);
/* Makes the kept half of the host's pairs the valid one, for whoever reads kept tensors. */
enum plim_status exec_pairs_home(struct exec *exec, struct plim_error *err);

/* The address of a device tensor the host may write directly; NULL on a device with its own memory. */
void *exec_host(const struct exec *exec, int tensor);

/* Copies between host memory and a tensor on any tier; offset and bytes are within the tensor. For a sharded tensor
 * all ranks must call it together: each reads the same bytes, and each keeps its own part of what is written. */
enum plim_status exec_read(const struct exec *exec, int tensor, void *host, int64_t offset, int64_t bytes,
                           struct plim_error *err);
enum plim_status exec_write(const struct exec *exec, int tensor, const void *host, int64_t offset,
                            int64_t bytes, struct plim_error *err);
/* Writes the first `bytes` of each of `rows` rows of `stride` bytes; what lies between them may be written or not. */
enum plim_status exec_write_rows(const struct exec *exec, int tensor, const void *host, int64_t offset,
                                 int64_t stride, int64_t bytes, int64_t rows, struct plim_error *err);
/* Begins to read the first bytes of a device tensor, whole on every rank, as of all ops run so far. The device's
 * read_end returns them, even if more ops run in between. Requires device_ops.read_begin. */
void exec_read_begin(const struct exec *exec, int tensor, int slot, int64_t bytes);

/* First element of this rank's piece of a sharded tensor. */
int64_t exec_own_first(const struct exec *exec, int tensor);

/* Reads this rank's own part of a tensor, its piece or all of it; offset is within that part. Not a collective call. */
enum plim_status exec_read_own(const struct exec *exec, int tensor, void *host, int64_t offset, int64_t bytes,
                               struct plim_error *err);
enum plim_status exec_write_own(const struct exec *exec, int tensor, const void *host, int64_t offset,
                                int64_t bytes, struct plim_error *err);
