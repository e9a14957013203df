/* device.h - a backend is one struct of functions: memory, kernels, programs, facts.
 *
 *     struct device *dev;
 *     backend_find("cpu")->open(&context, 0, threads, &dev, &err);             // device/registry.h
 *     dev->ops->commit(dev, bytes, &err);                            // the arena: [0, bytes) is usable
 *     dev->ops->run(dev, &call);                                     // one op, operands already resolved
 *     dev->ops->close(dev);
 *
 * Kernels never allocate: scratch comes with the call, and the planner has counted its size through workspace(). A
 * kernel missing from the table is an error at planning time.
 */
#pragma once

#include "base/clock.h"
#include "base/context.h"
#include "base/threads.h"
#include "device/range.h"
#include "mem/ledger.h"
#include "plan/facts.h"

/* Classes of a tier's ledger: tensors placed by the plan, and the process's overhead. */
enum { DEVICE_LEDGER_ARENA, DEVICE_LEDGER_OVERHEAD, DEVICE_LEDGER_CLASSES };

struct device;
struct comm;

/* A range of ops compiled for repeated launches, such as a CUDA graph. Addresses of operands are part of it. The
 * caller owns it; any number may exist, and each must be freed before its device is closed. Backends embed it at the
 * beginning of their own struct. */
struct device_program {
    struct device *device;
    /* Device memory outside the arena, as far as the driver reports it; facts.overhead_bytes has room for it. */
    size_t bytes;
};

enum device_fill { FILL_ZERO, FILL_NOISE };

/* For reads in two parts: how many may be outstanding, and the bytes of each. */
enum { DEVICE_READS = 2, DEVICE_READ_BYTES = 64 << 10 };

/* A device's memory as its driver reports it, over all processes. */
enum { DEVICE_HOLDERS = 16 };
struct device_memory {
    size_t total, used, ours;
    /* Processes that use it, including this one, as far as the driver reports them. */
    struct device_holder {
        int pid;
        size_t bytes;
    } holder[DEVICE_HOLDERS];
    int holders;
};

/* An exchange with other devices' memory that overlaps computing. `begin` queues it on a stream of the device without
 * waiting, and returns NULL or one line about the failure. */
struct device_exchange {
    const void *from;
    void *to, *work; /* work is written too */
    size_t from_bytes, to_bytes, work_bytes;
    const char *(*begin)(void *arg, void *stream);
    void *arg;
};

/* parts[ranks][count], added in that order in fp32 (f64 in f64); the value in `out` is added last. */
struct device_parts {
    const void *parts;
    void *out;
    int ranks;
    int64_t count;
    enum dtype type;
    bool add;
};

struct device_ops {
    const char *name;
    /* Grows or shrinks the arena; shrinking returns pages to the system. The remaining contents are kept. */
    enum plim_status (*commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*base)(struct device *);
    /* Fills [offset, offset + bytes) of the arena with zeros or with noise, numbers of ordinary size for any type.
     * NULL: new arena memory is zero, and nothing is timed on it. */
    void (*fill)(struct device *, size_t offset, size_t bytes, enum device_fill with);
    /* Copies between the arena and host memory, by arena offset. They run after all ops given so far and after
     * fetches and stores of these bytes. On return the caller may reuse its memory, and read's data has arrived.
     * Written data is visible to every later op and read; the failure of a small write may be reported only by the
     * next sync. Any thread may call these two and sync while no thread gives ops. */
    enum plim_status (*read)(struct device *, size_t offset, void *host, size_t bytes,
                             struct plim_error *err);
    enum plim_status (*write)(struct device *, size_t offset, const void *host, size_t bytes,
                              struct plim_error *err);
    /* Optional: the first `bytes` of each of `rows` rows that are `stride` bytes apart, here and there. NULL: rows are written
     * whole. */
    enum plim_status (*write_rows)(struct device *, size_t offset, const void *host, size_t stride,
                                   size_t bytes, size_t rows, struct plim_error *err);
    /* Optional, both or none: a small read in two parts. read_begin captures the bytes as of all ops given so far;
     * read_end waits for that, and for nothing given later. Beginning again on a slot discards its previous read. */
    void (*read_begin)(struct device *, int slot, size_t offset, size_t bytes);
    enum plim_status (*read_end)(struct device *, int slot, void *host, size_t bytes, struct plim_error *err);
    /* Runs one op. An asynchronous device only queues it; sync reports failures. */
    void (*run)(struct device *, struct kernel_call *call);
    /* Optional: runs several ops at once with the same bits as one by one; a fused run without attr.repeatable may have others within
     * rounding. They are a group of one kind, at most
     * TAPE_GROUP_MOST, in which no op touches what another writes (tape/group.h), or a run that `fuses` accepted.
     * NULL: ops run one by one. */
    void (*run_many)(struct device *, struct kernel_call *calls, int count);
    /* Optional: true if run_many has one kernel for these neighbouring ops (plan/fuse.h). */
    bool (*fuses)(struct device *, const struct kernel_call *calls, int count);
    /* Scratch of an op if it depends on more than shapes and threads; NULL: the kernel table gives it. */
    size_t (*workspace)(const struct device *, const struct tensor *const *desc, const struct op *op);
    /* Measures how best to run this op, or NULL. Overwrites its outputs and workspace. No copy may be running: tuning does not
     * wait for any. */
    void (*tune)(struct device *, struct kernel_call *call);
    /* Waits until everything given so far is done. PLIM_IO: the device failed, with the reason. */
    enum plim_status (*sync)(struct device *, struct plim_error *err);
    /* Device memory used by this process according to the driver. NULL: device memory is the process's own. */
    size_t (*used)(struct device *);
    /* Device memory used by all processes. May be called from any thread while others compute. Returns false when the
     * driver does not report it. NULL: device memory is the process's own. */
    bool (*memory)(struct device *, struct device_memory *out);
    /* Optional, all three or none; NULL: ops run one by one. compile makes a program of a range (device/range.h)
     * without computing anything. *out is NULL if the device cannot and ops must run one by one. PLIM_UNSUPPORTED: the range
     * cannot run at all; PLIM_NO_MEMORY. Tape and layout must outlive the program.
     * launch runs a whole program at the cost of one op. program_free waits until the program is idle; other programs
     * are unaffected. */
    enum plim_status (*compile)(struct device *, const struct device_range *range,
                                struct device_program **out, struct plim_error *err);
    void (*launch)(struct device_program *);
    void (*program_free)(struct device_program *);
    /* Host tier of devices with their own memory; NULL on the CPU, whose lower tier is the disk. host_commit sets its
     * size (contents up to the smaller size are kept) and books the bytes on the host tier's ledger. fetch and store
     * copy between it and the arena, overlapping computing; an op that writes what a running copy reads, or touches
     * what it writes, waits for it. run_host runs an op with the CPU's kernel on operands in the host tier,
     * overlapping the device; it waits for copies of its bytes, and copies of its bytes wait for it. */
    enum plim_status (*host_commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*host_base)(struct device *);
    void (*fetch)(struct device *, size_t host_offset, size_t offset, size_t bytes);
    void (*store)(struct device *, size_t offset, size_t host_offset, size_t bytes);
    void (*run_host)(struct device *, struct kernel_call *call);
    /* Waits until nothing given so far touches these bytes of the host tier; the caller may then use them. */
    enum plim_status (*host_wait)(struct device *, size_t host_offset, size_t bytes, struct plim_error *err);
    /* Optional, all four or none: exchanges with other devices. exchange is ordered like a fetch and calls begin
     * before it returns. add_parts and copy (with zeros from byte `here` on) queue on the stream passed to begin;
     * sync reports failures. is_idle: true if everything given so far is done; does not wait. */
    enum plim_status (*exchange)(struct device *, const struct device_exchange *, struct plim_error *err);
    void (*add_parts)(struct device *, const struct device_parts *, void *stream);
    void (*copy)(struct device *, void *to, size_t bytes, const void *from, size_t here, void *stream);
    bool (*is_idle)(struct device *);
    /* Optional, all three or none: when ops ran, without waiting for any of them. After time_begin, what is given
     * belongs to the op that time_op named last (-1: to none), and is timed on the stream that it runs on, in compiled programs
     * too. Ops given at once (run_many) are timed as the first of them. time_end waits, sets the spans of the ops that ran,
     * and leaves the others alone; programs compiled meanwhile must be freed before. */
    enum plim_status (*time_begin)(struct device *, int ops, struct plim_error *err);
    void (*time_op)(struct device *, int op);
    enum plim_status (*time_end)(struct device *, struct clock_span *spans, struct plim_error *err);
    void (*close)(struct device *);
};

struct device {
    const struct device_ops *ops;
    const struct context *context; /* passed to open, borrowed; may be NULL */
    struct device_facts facts;
    const struct kernel *const *kernels; /* by op kind; an entry is NULL if the op is not supported */
    /* By tier, owned by the device. If device memory is the process's own, device and host share one ledger. */
    struct ledger *ledger[TIER_COUNT];
    struct comm *comm;    /* the other ranks, borrowed; NULL: single rank */
    struct threads *team; /* host threads: they compute on the CPU and make weights for every device */
};

/* Used by the registry; other code opens devices through device/registry.h. `threads` 0: one per online CPU. GPUs are
 * opened by number: PLIM_UNSUPPORTED says what is missing (this build's CUDA part, a driver, a card, code for this
 * card, cuBLASLt); PLIM_NO_MEMORY means that the card has too little free memory for a context. device_cuda_present:
 * this build has CUDA and the machine has a driver and a card (or a driver too old to tell), usable or not. */
enum plim_status device_cpu_open(const struct context *context, int threads, struct device **out,
                                 struct plim_error *err);
bool device_cpu_peek(const struct context *context, int index, struct device_facts *out);
enum plim_status device_cuda_open(const struct context *context, int index, int threads, struct device **out,
                                  struct plim_error *err);
bool device_cuda_present(void);
/* See backend.peek. */
bool device_cuda_peek(const struct context *context, int index, struct device_facts *out);
/* Lowest compute capability of the CUDA kernels, 80 for 8.0. */
#define DEVICE_CUDA_LEAST 80

/* The CPU's kernels by op kind, for ops that other devices leave to their host. */
const struct kernel *const *device_cpu_kernels(void);
/* True if its updates write elsewhere past the caches (facts.host_uncached_stores). */
bool device_cpu_uncached_stores(void);

/* Workspace of an op on this device, as the planner counts it. */
size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op);
/* Workspace computed from a kernel table alone, without a device. */
size_t device_table_workspace(const struct kernel *const *kernels, const struct tape *tape,
                              const struct op *op, int threads);
/* Operands of an op as kernels get them: in[0..], then out[0..]; NULL: no operand. */
void device_describe(const struct tape *tape, const struct op *op, const struct tensor **desc);

/* For backends: initialises the ledgers of all tiers in `own`, without a budget. `unified`: host memory is on the
 * device's ledger. */
void device_ledgers_init(struct device *dev, struct ledger own[TIER_COUNT], bool unified);
void device_ledgers_destroy(struct device *dev);
