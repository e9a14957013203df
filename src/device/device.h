/* device.h - a backend is one struct of functions: memory, kernels, facts.
 *
 *     struct device *dev;
 *     device_cpu_open(threads, &dev, &err);
 *     dev->ops->commit(dev, bytes, &err);                            // the arena: [0, bytes) is usable
 *     dev->ops->run(dev, &call);                                     // one op, operands already resolved
 *     dev->ops->close(dev);
 *
 * Kernels never allocate: scratch comes with the call and its size is the backend's workspace() fact, which the
 * planner has counted. A kernel missing from the table is an error at planning time.
 */
#ifndef PLIM_DEVICE_DEVICE_H
#define PLIM_DEVICE_DEVICE_H

#include "base/threads.h"
#include "device/kernel.h"
#include "mem/ledger.h"
#include "plan/facts.h"

/* Classes of a device's ledger: the arena, and what the process takes beside it. */
enum { DEVICE_LEDGER_ARENA, DEVICE_LEDGER_OVERHEAD, DEVICE_LEDGER_CLASSES };

struct device;

enum device_fill { FILL_ZERO, FILL_NOISE };

struct device_ops {
    const char *name;
    /* Grow or shrink the arena; shrinking gives the pages back to the system. Contents of what stays are kept. */
    enum plim_status (*commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*base)(struct device *);
    /* [offset, offset + bytes) of the arena become zero or, as noise, numbers of ordinary sizes whatever their type.
     * NULL: what the arena grows by is zero, and nothing is timed on it. */
    void (*fill)(struct device *, size_t offset, size_t bytes, enum device_fill with);
    /* Copies between the arena and host memory, by arena offset; done when they return. They wait for what computes
     * and for fetches and stores of these bytes. Any thread may call these two and sync, while none gives ops. */
    enum plim_status (*read)(struct device *, size_t offset, void *host, size_t bytes,
                             struct plim_error *err);
    enum plim_status (*write)(struct device *, size_t offset, const void *host, size_t bytes,
                              struct plim_error *err);
    /* One op. A device that computes asynchronously only takes note; what goes wrong, sync tells. */
    void (*run)(struct device *, struct kernel_call *call);
    /* Optional: several ops of one kind, none of which touches what another writes (tape/group.h), at most
     * TAPE_GROUP_MOST; the same bits as one by one. NULL: run them one by one. */
    void (*run_many)(struct device *, struct kernel_call *calls, int count);
    /* Scratch of an op where it depends on more than shapes and threads; NULL: the table of kernels says it. */
    size_t (*workspace)(const struct device *, const struct tensor *const *desc, const struct op *op);
    /* Learn how best to run this op, or NULL. Writes its outputs and workspace: nothing of value may be in them. */
    void (*tune)(struct device *, struct kernel_call *call);
    /* Everything so far is done. PLIM_IO: the device failed, and how. */
    enum plim_status (*sync)(struct device *, struct plim_error *err);
    /* What the driver says this process takes on the device; NULL: device memory is the process's own. */
    size_t (*used)(struct device *);
    /* Optional, all or none: ops between begin and end are recorded instead of run, and recordings are run
     * again at the price of one launch. Operand addresses are part of a recording. end: its number, or -1 when
     * the device cannot record (run them one by one then). forget: all recordings, before the plan changes. */
    void (*record_begin)(struct device *);
    int (*record_end)(struct device *);
    void (*replay)(struct device *, int recording);
    void (*forget)(struct device *);
    /* The tier below, for devices with their own memory: NULL on the CPU, whose lower tier is the disk. host_commit
     * sizes it (content up to the smaller size is kept), fetch and store copy between it and the arena beside what
     * computes; ops that write what a copy under way reads, or touch what it writes, wait for it by themselves. run_host computes an op on
     * operands in the host tier with the CPU's kernel, beside what the device computes: it waits for copies of its bytes,
     * and copies of its bytes wait for it. */
    enum plim_status (*host_commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*host_base)(struct device *);
    void (*fetch)(struct device *, size_t host_offset, void *to, size_t bytes);
    void (*store)(struct device *, const void *from, size_t host_offset, size_t bytes);
    void (*run_host)(struct device *, struct kernel_call *call);
    void (*close)(struct device *);
};

struct device {
    const struct device_ops *ops;
    struct device_facts facts;
    const struct kernel *kernels; /* by op kind */
    struct ledger *ledger;        /* of the device tier, owned by the device */
    struct threads *team;         /* the host's: computes on the CPU, makes weights for every device */
};

/* The CPU: `threads` 0 means one per online CPU. */
enum plim_status device_cpu_open(int threads, struct device **out, struct plim_error *err);

/* The CPU's kernels, by op kind: for ops that other devices leave to their host. */
const struct kernel *device_cpu_kernels(void);

/* An NVIDIA GPU by its number; `threads` as above, for updates that its host makes. PLIM_UNSUPPORTED says what is
 * missing: this build's CUDA part, a driver, a card, a card this build has code for, cuBLASLt. PLIM_NO_MEMORY: the card
 * has too little free for the context. */
enum plim_status device_cuda_open(int index, int threads, struct device **out, struct plim_error *err);

/* Whether this build has CUDA and this machine a driver and a card (or a driver too old to say), usable or not. */
bool device_cuda_present(void);

/* Workspace of an op on this device, as the planner counts it. */
size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op);

/* Compute capability from which on the CUDA kernels run, 80 for 8.0. */
#define DEVICE_CUDA_LEAST 80

/* What facts of a device that is not here lack: the scratch of the kernels that would run there, in every build, and
 * where this program has none (facts->no_kernels), why. name, unified_memory, threads and capability are set. Of a card the
 * usual build and cuDNN are assumed, of a CPU the kernels of this one. */
void device_absent_facts(struct device_facts *facts);

#endif
