/* cpu_device.c - the CPU as a device: an arena, a ledger, a team of threads and the table of kernels.
 *
 * Device memory is host memory, so read and write are copies, and nothing is ever in flight: every
 * function has finished its work when it returns. */
#include "device/cpu/calibrate.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_model.h"
#include "device/cpu/kernels.h"
#include "device/device.h"
#include "mem/arena.h"
#include "mem/os.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

/* Made of the list of ops; each kernel's file has its CPU_KERNEL. */
#define ROW_KERNEL(kind, name)   [OP_##kind] = &cpu_kernel_##name,
#define ROW_CPU_ONLY(kind, name) [OP_##kind] = &cpu_kernel_##name,
#define ROW_COPY(kind, name)     [OP_##kind] = &cpu_kernel_copy,
#define ROW_NONE(kind, name)
#define ROW(kind, name, kernels) ROW_##kernels(kind, name)
static const struct kernel *const kernels[OP_KIND_COUNT] = {OP_KINDS(ROW)};

const struct kernel *const *device_cpu_kernels(void) { return kernels; }
bool device_cpu_uncached_stores(void) { return cpu_has(CPU_AVX2); }

/* Below this there is no point in starting. */
#define LEAST_ADDRESSES ((size_t)8 << 20)

struct cpu {
    struct device device; /* first: a struct device * is a struct cpu * */
    struct ledger ledgers[TIER_COUNT];
    struct arena arena; /* one reservation; what is inside it, by tensor class, is the plan's business */
};

static struct cpu *cpu_of(struct device *dev) { return (struct cpu *)dev; }

static enum plim_status cpu_commit(struct device *dev, size_t bytes, struct plim_error *err)
{
    return arena_commit(&cpu_of(dev)->arena, bytes, dev->team, err);
}

static void *cpu_base(struct device *dev) { return arena_base(&cpu_of(dev)->arena); }

static enum plim_status cpu_read(struct device *dev, size_t offset, void *host, size_t bytes,
                                 struct plim_error *)
{
    memcpy(host, arena_base(&cpu_of(dev)->arena) + offset, bytes);
    return PLIM_OK;
}

static enum plim_status cpu_write(struct device *dev, size_t offset, const void *host, size_t bytes,
                                  struct plim_error *)
{
    memcpy(arena_base(&cpu_of(dev)->arena) + offset, host, bytes);
    return PLIM_OK;
}

static void cpu_run(struct device *dev, struct kernel_call *call)
{
    call->team = dev->team;
    kernels[call->op->kind]->run(call);
}

static enum plim_status cpu_sync(struct device *, struct plim_error *) { return PLIM_OK; }

static void cpu_close(struct device *dev)
{
    if (!dev) return;
    struct cpu *cpu = cpu_of(dev);
    arena_release(&cpu->arena);
    device_ledgers_destroy(dev);
    threads_free(dev->team);
    free(cpu);
}

static const struct device_ops ops = {
    .name = "cpu",
    .commit = cpu_commit,
    .base = cpu_base,
    .read = cpu_read,
    .write = cpu_write,
    .run = cpu_run,
    .sync = cpu_sync,
    .close = cpu_close,
};

static size_t workspace(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    return device_workspace(facts->backend, tape, op);
}

/* Facts that are known before anything runs. */
static enum plim_status find_memory(struct device_facts *facts, struct plim_error *err)
{
    struct os_allowance may;
    enum plim_status status = os_allowance(&may, err);
    if (status != PLIM_OK) return status;
    cpu_model_name(facts->name, sizeof facts->name);
    facts_set_memory(facts, MEMORY_PROCESS);
    facts->memory_bytes = may.total;
    facts->memory_limited = may.limited;
    facts->free_bytes = may.bytes;
    facts->align = ALIGN;
    return PLIM_OK;
}

bool device_cpu_peek(const struct context *context, int index, struct device_facts *out)
{
    (void)context;
    *out = (struct device_facts){0};
    return !index && find_memory(out, NULL) == PLIM_OK;
}

/* Everything the planner asks. The process as it stands now is what the arena has beside it. */
static enum plim_status find_facts(struct cpu *cpu, struct plim_error *err)
{
    struct device_facts *facts = &cpu->device.facts;
    struct calibration speed;
    enum plim_status status = find_memory(facts, err);
    if (status == PLIM_OK) status = calibrate_cpu(cpu->device.context, cpu->device.team, &speed, err);
    if (status != PLIM_OK) return status;
    facts->threads = threads_count(cpu->device.team);
    facts->cache_bytes = calibrate_cache_bytes(cpu->device.context);
    calibration_apply(&speed, facts);
    facts->workspace = workspace;
    facts->backend = &cpu->device;
    return PLIM_OK;
}

enum plim_status device_cpu_open(const struct context *context, int threads, struct device **out,
                                 struct plim_error *err)
{
    *out = NULL;
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the CPU device");
    struct device *dev = &cpu->device;
    dev->ops = &ops;
    dev->context = context;
    dev->kernels = kernels;
    enum plim_status status = threads_start(threads, &dev->team, err);
    if (status == PLIM_OK) status = find_facts(cpu, err);
    if (status != PLIM_OK) goto out;
    device_ledgers_init(dev, cpu->ledgers, true);
    /* Addresses cost nothing, but some processes have few of them (sanitizers, ulimit -v): then fewer will do. */
    for (size_t most = dev->facts.memory_bytes; most >= LEAST_ADDRESSES; most /= 2) {
        status = arena_reserve(&cpu->arena, most, dev->ledger[TIER_DEVICE], DEVICE_LEDGER_ARENA, err);
        if (status == PLIM_OK) break;
    }
    if (status != PLIM_OK)
        plim_fail(
            err, status,
            "the system gives this process too few addresses for an arena; raise its limit (ulimit -v)");
    if (status == PLIM_OK) *out = dev;
out:
    if (status != PLIM_OK) cpu_close(dev);
    return status;
}
