/* device.h - a backend is one struct of functions: memory, kernels, programs, facts.
 *
 *     struct device *dev;
 *     backend_find("cpu")->open(&context, 0, threads, &dev, &err);             // device/registry.h
 *     dev->ops->commit(dev, bytes, &err);                            // the arena: [0, bytes) is usable
 *     dev->ops->run(dev, &call);                                     // one op, operands already resolved
 *     dev->ops->close(dev);
 *
 * Kernels never allocate: scratch comes with the call and its size is the backend's workspace() fact, which the
 * planner has counted. A kernel missing from the table is an error at planning time.
 */
#ifndef PLIM_DEVICE_DEVICE_H
#define PLIM_DEVICE_DEVICE_H

#include "base/context.h"
#include "base/threads.h"
#include "device/range.h"
#include "mem/ledger.h"
#include "plan/facts.h"

/* Classes of a tier's ledger: what the plan lays out there, and what the process takes beside it. */
enum { DEVICE_LEDGER_ARENA, DEVICE_LEDGER_OVERHEAD, DEVICE_LEDGER_CLASSES };

struct device;
struct comm;

/* A range of ops made into one thing that is launched again and again, such as a CUDA graph. Where its operands lie is part
 * of it. It belongs to the caller, any number may be alive, and each is freed before its device is closed. Backends have
 * it at the beginning of a struct of their own. */
struct device_program {
    struct device *device;
    /* That it takes of the device beside the arena, as far as the driver tells; facts.overhead_bytes has room for them. */
    size_t bytes;
};

enum device_fill { FILL_ZERO, FILL_NOISE };

/* Of reads in two parts: how many at a time, and the bytes of each. */
enum { DEVICE_READS = 2, DEVICE_READ_BYTES = 64 << 10 };

/* A device's memory as its driver sees it, of all processes. */
enum { DEVICE_HOLDERS = 16 };
struct device_memory {
    size_t total, used, ours;
    struct device_holder {
        int pid;
        size_t bytes;
    } holder[DEVICE_HOLDERS]; /* processes on it, ours included, as far as the driver tells */
    int holders;
};

/* Bytes between this device's memory and that of others, which are moved beside what it computes: `begin` queues that on a
 * stream of the device's, waits for nothing, and returns NULL or one line about what went wrong. */
struct device_exchange {
    const void *from;
    void *to, *work; /* work is written, too */
    size_t from_bytes, to_bytes, work_bytes;
    const char *(*begin)(void *arg, void *stream);
    void *arg;
};

/* parts[ranks][count] of a type, to be added in that order, in fp32 (f64 in f64), what is in `out` last. */
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
    /* Grow or shrink the arena; shrinking gives the pages back to the system. Contents of what stays are kept. */
    enum plim_status (*commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*base)(struct device *);
    /* [offset, offset + bytes) of the arena become zero or, as noise, numbers of ordinary sizes whatever their type.
     * NULL: what the arena grows by is zero, and nothing is timed on it. */
    void (*fill)(struct device *, size_t offset, size_t bytes, enum device_fill with);
    /* Copies between the arena and host memory, by arena offset. They come after what was given to compute and after
     * fetches and stores of these bytes; the caller's memory is its own again when they return, and what read brings is
     * there. What is written is there for every op and read that follows; a failure of a small write may only be told by
     * the next sync. Any thread may call these two and sync, while none gives ops. */
    enum plim_status (*read)(struct device *, size_t offset, void *host, size_t bytes,
                             struct plim_error *err);
    enum plim_status (*write)(struct device *, size_t offset, const void *host, size_t bytes,
                              struct plim_error *err);
    /* Optional, both or none: a read in two parts, of few bytes. read_begin takes note of them as they are when everything given so
     * far is done; read_end waits for that and for nothing that was given later. A slot that begins again forgets what it had. */
    void (*read_begin)(struct device *, int slot, size_t offset, size_t bytes);
    enum plim_status (*read_end)(struct device *, int slot, void *host, size_t bytes, struct plim_error *err);
    /* One op. A device that computes asynchronously only takes note; what goes wrong, sync tells. */
    void (*run)(struct device *, struct kernel_call *call);
    /* Optional: several ops at once, with the same bits as one by one: a group of one kind, at most TAPE_GROUP_MOST, none of
     * which touches what another writes (tape/group.h), or a run that `fuses` said yes to. NULL: run them one by one. */
    void (*run_many)(struct device *, struct kernel_call *calls, int count);
    /* Optional: whether run_many has one kernel for neighbouring ops of a pattern (plan/fuse.h). */
    bool (*fuses)(struct device *, const struct kernel_call *calls, int count);
    /* Scratch of an op where it depends on more than shapes and threads; NULL: the table of kernels says it. */
    size_t (*workspace)(const struct device *, const struct tensor *const *desc, const struct op *op);
    /* Learn how best to run this op, or NULL. Writes its outputs and workspace: nothing of value may be in them. */
    void (*tune)(struct device *, struct kernel_call *call);
    /* Everything so far is done. PLIM_IO: the device failed, and how. */
    enum plim_status (*sync)(struct device *, struct plim_error *err);
    /* What the driver says this process takes on the device; NULL: device memory is the process's own. */
    size_t (*used)(struct device *);
    /* The same of everybody, from any thread while others compute; false: the driver does not tell. NULL: device memory is
     * the process's own. */
    bool (*memory)(struct device *, struct device_memory *out);
    /* Optional, all three or none; NULL: ops are run one by one. compile makes a program of a range (device/range.h) and
     * computes nothing; NULL when the device cannot after all. Tape and layout outlive the program. launch runs all of a
     * program at the price of one op. program_free waits until it is not under way; other programs stay as they are. */
    struct device_program *(*compile)(struct device *, const struct device_range *range);
    void (*launch)(struct device_program *);
    void (*program_free)(struct device_program *);
    /* The tier below, for devices with their own memory: NULL on the CPU, whose lower tier is the disk. host_commit
     * sizes it (content up to the smaller size is kept) and carries the bytes on the host tier's ledger, fetch and store
     * copy between it and the arena beside what computes; ops that write what a copy under way reads, or touch what it writes, wait for it by themselves. run_host computes an op on
     * operands in the host tier with the CPU's kernel, beside what the device computes: it waits for copies of its bytes,
     * and copies of its bytes wait for it. */
    enum plim_status (*host_commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*host_base)(struct device *);
    void (*fetch)(struct device *, size_t host_offset, size_t offset, size_t bytes);
    void (*store)(struct device *, size_t offset, size_t host_offset, size_t bytes);
    void (*run_host)(struct device *, struct kernel_call *call);
    /* Nothing that was given so far touches these bytes of the host tier any more: the caller may. */
    enum plim_status (*host_wait)(struct device *, size_t host_offset, size_t bytes, struct plim_error *err);
    /* Optional, all four or none: exchanges with other devices. exchange orders one like a fetch and calls its begin before it
     * returns; add_parts and copy (with zeros from `here` bytes on) queue on the stream that begin was given, and
     * what goes wrong, sync tells. is_idle: everything so far is done, asked without waiting. */
    enum plim_status (*exchange)(struct device *, const struct device_exchange *, struct plim_error *err);
    void (*add_parts)(struct device *, const struct device_parts *, void *stream);
    void (*copy)(struct device *, void *to, size_t bytes, const void *from, size_t here, void *stream);
    bool (*is_idle)(struct device *);
    void (*close)(struct device *);
};

struct device {
    const struct device_ops *ops;
    const struct context *context; /* it was opened with, borrowed; NULL: none */
    struct device_facts facts;
    const struct kernel *const *kernels; /* by op kind; NULL: it has none */
    /* By tier, owned by the device. Where device memory is the process's own, device and host are one ledger. */
    struct ledger *ledger[TIER_COUNT];
    struct comm *comm;    /* the ranks that work beside it, borrowed; NULL: it is alone */
    struct threads *team; /* the host's: computes on the CPU, makes weights for every device */
};

/* What the registry's rows are made of; others open a device through device/registry.h. `threads` 0: one per online CPU.
 * A GPU by its number: PLIM_UNSUPPORTED says what is missing (this build's CUDA part, a driver, a card, a card this build
 * has code for, cuBLASLt), PLIM_NO_MEMORY that the card has too little free for the context. device_cuda_present: this
 * build has CUDA and the machine a driver and a card (or a driver too old to say), usable or not. */
enum plim_status device_cpu_open(const struct context *context, int threads, struct device **out,
                                 struct plim_error *err);
enum plim_status device_cuda_open(const struct context *context, int index, int threads, struct device **out,
                                  struct plim_error *err);
bool device_cuda_present(void);
bool device_cuda_peek(const struct context *context, int index,
                      struct device_facts *out); /* struct backend, peek */
/* Compute capability from which on the CUDA kernels run, 80 for 8.0. */
#define DEVICE_CUDA_LEAST 80

/* The CPU's kernels, by op kind: for ops that other devices leave to their host. */
const struct kernel *const *device_cpu_kernels(void);

/* Workspace of an op on this device, as the planner counts it. */
size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op);
/* The same by a table of kernels alone. */
size_t device_table_workspace(const struct kernel *const *kernels, const struct tape *tape,
                              const struct op *op, int threads);
/* Operands of an op as kernels get them: of in[0..], then of out[0..]; NULL when absent. */
void device_describe(const struct tape *tape, const struct op *op, const struct tensor **desc);

/* For backends: ledgers of all tiers in `own`, without a line; `unified`: host memory is on the device's. */
void device_ledgers_init(struct device *dev, struct ledger own[TIER_COUNT], bool unified);
void device_ledgers_destroy(struct device *dev);

#endif
