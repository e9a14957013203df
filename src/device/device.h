/* device.h - a backend is one struct of functions: memory, kernels, facts.
 *
 *     struct device *dev;
 *     device_cpu_open(threads, &dev, &err);
 *     dev->ops->commit(dev, bytes, ledger, &err);                    // the arena: [0, bytes) is usable
 *     dev->ops->run(dev, &call);                                     // one op, operands already resolved
 *     dev->ops->close(dev);
 *
 * Kernels never allocate: scratch comes with the call and its size is the backend's workspace() fact, which the
 * planner has counted. A kernel missing from the table is an error at planning time.
 */
#ifndef PLIM_DEVICE_DEVICE_H
#define PLIM_DEVICE_DEVICE_H

#include "base/threads.h"
#include "mem/ledger.h"
#include "plan/facts.h"
#include "tape/op.h"

/* One op with its operands' addresses. */
struct kernel_call {
    const struct op *op;
    const struct tensor *desc[OP_MAX_IN + OP_MAX_OUT]; /* of in[0..], then of out[0..]; NULL when absent */
    void *in[OP_MAX_IN];
    void *out[OP_MAX_OUT];
    bool accumulate; /* resolved: outputs marked acc are added to */
    void *work;      /* workspace() bytes, 64-byte aligned */
    struct threads *team;
};

typedef void kernel_run(const struct kernel_call *call);
typedef size_t kernel_workspace(const struct tensor *const *desc, const struct op *op, int threads);

struct kernel {
    kernel_run *run;
    kernel_workspace *workspace; /* NULL: needs none */
};

/* Classes of a device's ledger: the arena, and what the process takes beside it. */
enum { DEVICE_LEDGER_ARENA, DEVICE_LEDGER_OVERHEAD, DEVICE_LEDGER_CLASSES };

struct device;

struct device_ops {
    const char *name;
    /* Grow or shrink the arena; shrinking gives the pages back to the system. Contents of what stays are kept. */
    enum plim_status (*commit)(struct device *, size_t bytes, struct plim_error *err);
    void *(*base)(struct device *);
    /* Copies between the arena and host memory, by arena offset. */
    void (*read)(struct device *, size_t offset, void *host, size_t bytes);
    void (*write)(struct device *, size_t offset, const void *host, size_t bytes);
    void (*run)(struct device *, struct kernel_call *call);
    void (*sync)(struct device *);
    void (*close)(struct device *);
};

struct device {
    const struct device_ops *ops;
    struct device_facts facts;
    const struct kernel *kernels; /* by op kind */
    struct ledger *ledger;        /* of the device tier, owned by the device */
    struct threads *team;         /* NULL on devices without host threads */
};

/* The CPU: `threads` 0 means one per online CPU. */
enum plim_status device_cpu_open(int threads, struct device **out, struct plim_error *err);

/* Workspace of an op on this device, as the planner counts it. */
size_t device_workspace(const struct device *dev, const struct tape *tape, const struct op *op);

#endif
