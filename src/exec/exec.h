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
#ifndef PLIM_EXEC_EXEC_H
#define PLIM_EXEC_EXEC_H

#include "comm/comm.h"
#include "device/device.h"
#include "exec/disk.h"
#include "plan/layout.h"

#define EXEC_FETCHES   16
#define EXEC_STORES    16
#define EXEC_EXCHANGES 32
#define EXEC_PROGRAMS  4

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
    } exchanging[EXEC_EXCHANGES]; /* between ranks, beside computing, in the order they were begun */
    int nexchanging;
    struct exec_program {
        int begin, end; /* ops */
        bool first;     /* of the first micro-batch of a window */
        struct device_program *program;
    } programs[EXEC_PROGRAMS];
    int nprograms;
    bool compiles;      /* what runs is compiled first; set by exec_tune */
    double *op_seconds; /* by op kind, when the caller wants a profile; else NULL */
    /* Called after each op, when set, with its results in place. */
    void (*inspect)(void *arg, const struct exec *exec, int op);
    void *inspect_arg;
};

/* The devices of all ranks find each other and exchange without their hosts from now on: before a plan is made, since what the
 * library takes of the device becomes part of facts.overhead_bytes. For devices that can (device_ops.exchange), one to each
 * rank; device->comm is set. PLIM_UNSUPPORTED: some rank has no library, and all go through their hosts; PLIM_IO. */
enum plim_status exec_join_devices(struct device *device, struct plim_error *err);

/* PLIM_UNSUPPORTED when the device lacks an op of the tape. */
enum plim_status exec_open(struct exec *exec, struct device *device, const struct tape *tape,
                           const struct layout *layout, struct disk_store *disk, struct plim_error *err);

/* For a new arena: what is kept becomes zero, but for the parameters, which are written next. */
void exec_fresh(struct exec *exec);

/* Lets the device learn how to run this tape's ops best and, where it can, compile them: worth it when the tape runs
 * many times. Whatever is in the arena outside kept tensors is lost, and so are this exec's programs. */
enum plim_status exec_tune(struct exec *exec, struct plim_error *err);

/* Compiles what a run of the tape needs, so that nothing is compiled later: the loop with `later`, too, as it is for
 * micro-batches after the first, and the update where the tape has one. After exec_tune; nothing runs. */
void exec_prepare(struct exec *exec, bool later);

/* Frees the programs; what runs next is compiled anew. After something has happened to the memory they were compiled for. */
void exec_drop_programs(struct exec *exec);

/* Frees what the exec owns; a zeroed one has nothing. Before its tape and layout go. */
void exec_close(struct exec *exec);

/* Bytes of the device that its programs take. */
size_t exec_program_bytes(const struct exec *exec);

/* Ops [begin, end); micro is the index of the micro-batch in its window. */
enum plim_status exec_run(struct exec *exec, int begin, int end, int64_t micro, struct plim_error *err);
enum plim_status exec_loop(struct exec *exec, int64_t micro, struct plim_error *err);
enum plim_status exec_update(struct exec *exec, struct plim_error *err);

/* The address of a device tensor the host may write directly; NULL on a device with its own memory. */
void *exec_host(const struct exec *exec, int tensor);

/* Copy between host memory and a tensor, wherever it lives; offset and bytes within the tensor. Of a tensor in pieces all
 * ranks read the same bytes together, each gets them, and of what is written each keeps what is its own. */
enum plim_status exec_read(const struct exec *exec, int tensor, void *host, int64_t offset, int64_t bytes,
                           struct plim_error *err);
enum plim_status exec_write(const struct exec *exec, int tensor, const void *host, int64_t offset,
                            int64_t bytes, struct plim_error *err);
/* The first bytes of a device tensor, whole on every rank, as what was run so far leaves them; the device's read_end brings
 * them, however much is run in between. Where the device has reads in two parts (device_ops.read_begin). */
void exec_read_begin(const struct exec *exec, int tensor, int slot, int64_t bytes);

/* The element of a tensor in pieces with which this rank's begins. */
int64_t exec_own_first(const struct exec *exec, int tensor);

/* Reads this rank's own part of a tensor, its piece or all of it; offset is within that part. Not a collective call. */
enum plim_status exec_read_own(const struct exec *exec, int tensor, void *host, int64_t offset, int64_t bytes,
                               struct plim_error *err);
enum plim_status exec_write_own(const struct exec *exec, int tensor, const void *host, int64_t offset,
                                int64_t bytes, struct plim_error *err);

#endif
