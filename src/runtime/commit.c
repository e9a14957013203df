/* commit.c - the memory of a plan, tier by tier, and the ledgers that carry it. See runtime_part.h.
 *
 * Arena, host tier and disk store reserve on their ledgers themselves, before they take anything. Overheads have no memory
 * of their own: they are only reserved. */
#include "runtime/runtime_part.h"
#include "exec/disk.h"

/* Bytes beside tensors on a tier's ledger, with the buffers of a disk store that is still open though the plan has none. Where
 * device memory is the process's own, its ledger is the device's. */
static int64_t overhead_of(const struct runtime *rt, const struct plan *plan, enum tier tier)
{
    const struct device_facts *facts = &rt->device->facts;
    int64_t left_open = plan->layout.tier_bytes[TIER_DISK] ? 0 : (int64_t)disk_held(rt->disk);
    int64_t device = plan->beside_arena, host = plan->overhead + left_open;
    if (tier == TIER_DEVICE) return facts->unified_memory ? device + host : device;
    return tier == TIER_HOST && !facts->unified_memory ? host : 0;
}

int64_t runtime_planned(const struct runtime *rt, const struct plan *plan, enum tier tier)
{
    if (tier == TIER_DEVICE) return plan->total;
    if (tier == TIER_DISK) return plan->disk;
    return rt->device->facts.unified_memory ? 0 : plan->host;
}

static uint64_t line_of(int64_t budget) { return budget > 0 ? (uint64_t)budget : LEDGER_UNLIMITED; }

void runtime_set_lines(struct runtime *rt, int64_t budget)
{
    ledger_set_budget(rt->device->ledger[TIER_DEVICE], line_of(budget));
    if (!rt->device->facts.unified_memory)
        ledger_set_budget(rt->device->ledger[TIER_HOST], line_of(rt->request.host_budget));
}

/* Overheads become the plan's: those that fall, or those that rise. A store that closes in between lets them fall again. */
static enum plim_status set_overheads(struct runtime *rt, const struct plan *plan, bool rise,
                                      struct plim_error *err)
{
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        struct ledger *ledger = rt->device->ledger[tier];
        int64_t more = overhead_of(rt, plan, (enum tier)tier) - rt->overhead[tier];
        if (more == 0 || (more > 0) != rise) continue;
        enum plim_status status = PLIM_OK;
        if (more > 0) status = ledger_reserve(ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)more, err);
        if (more < 0) ledger_release(ledger, DEVICE_LEDGER_OVERHEAD, (uint64_t)-more);
        if (status != PLIM_OK) return status;
        rt->overhead[tier] += more;
    }
    return PLIM_OK;
}

int64_t runtime_taken(const struct runtime *rt, enum tier tier)
{
    struct ledger_state state;
    if (tier == TIER_HOST && rt->device->ledger[tier] == rt->device->ledger[TIER_DEVICE]) return 0;
    ledger_read(rt->device->ledger[tier], &state);
    return (int64_t)state.by_class[DEVICE_LEDGER_ARENA];
}

static const char *disk_folder(const struct runtime *rt)
{
    return rt->job ? job_disk_dir(rt->job) : rt->scratch;
}

static enum plim_status resize_disk(struct runtime *rt, int64_t bytes, struct plim_error *err)
{
    if (rt->disk && bytes) return disk_resize(rt->disk, (uint64_t)bytes, err);
    if (bytes)
        return disk_open(disk_folder(rt), (uint64_t)bytes,
                         &(struct disk_options){.ledger = rt->device->ledger[TIER_DISK],
                                                .cls = DEVICE_LEDGER_ARENA,
                                                .depth = rt->device->facts.disk_depth,
                                                .piece = rt->device->facts.disk_piece},
                         &rt->disk, err);
    disk_close(rt->disk);
    rt->disk = NULL;
    return PLIM_OK;
}

static enum plim_status resize_host(struct runtime *rt, int64_t bytes, struct plim_error *err)
{
    const struct device_ops *ops = rt->device->ops;
    if (ops->host_commit) return ops->host_commit(rt->device, (size_t)bytes, err);
    if (bytes == 0) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "%s: device %s has no tier host below it; write disk for training.state_tier, grad_tier "
                     "and param_tier",
                     rt->job ? rt->job->name : "runtime", ops->name);
}

static enum plim_status resize_arena(struct runtime *rt, int64_t bytes, struct plim_error *err)
{
    return rt->device->ops->commit(rt->device, (size_t)bytes, err);
}

/* Tiers in the order in which they grow; they shrink the other way round. */
static const struct {
    enum tier tier;
    enum plim_status (*resize)(struct runtime *rt, int64_t bytes, struct plim_error *err);
} tiers[] = {{TIER_DISK, resize_disk}, {TIER_HOST, resize_host}, {TIER_DEVICE, resize_arena}};
enum { TIERS = sizeof tiers / sizeof *tiers };

/* Bytes that the plan lays out on a tier. */
static int64_t wanted(const struct plan *plan, enum tier tier, int64_t arena)
{
    return tier == TIER_DEVICE ? arena : plan->layout.tier_bytes[tier];
}

enum plim_status runtime_take(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err)
{
    enum plim_status status = set_overheads(rt, plan, false, err);
    for (int i = 0; i < TIERS && status == PLIM_OK; i++) {
        int64_t bytes = wanted(plan, tiers[i].tier, arena);
        if (bytes > runtime_taken(rt, tiers[i].tier)) status = tiers[i].resize(rt, bytes, err);
    }
    return status;
}

enum plim_status runtime_give(struct runtime *rt, const struct plan *plan, int64_t arena,
                              struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = TIERS - 1; i >= 0 && status == PLIM_OK; i--) {
        int64_t bytes = wanted(plan, tiers[i].tier, arena);
        if (bytes < runtime_taken(rt, tiers[i].tier)) status = tiers[i].resize(rt, bytes, err);
    }
    if (status == PLIM_OK) rt->arena = arena;
    if (status == PLIM_OK) status = set_overheads(rt, plan, false, err);
    return status == PLIM_OK ? set_overheads(rt, plan, true, err) : status;
}
