/* readers.c - see readers.h. */
#include "watch/readers.h"
#include "base/clock.h"

static void read_process(const struct watch_source *, struct watch_reading *out)
{
    os_process_memory(&out->process, NULL);
}

static void read_machine(const struct watch_source *source, struct watch_reading *out)
{
    os_machine_memory_at(source->root, source->groups, &out->machine, NULL);
}

static void read_pressure(const struct watch_source *source, struct watch_reading *out)
{
    os_memory_pressure_at(source->root, source->groups, &out->pressure);
}

static void read_device(const struct watch_source *source, struct watch_reading *out)
{
    struct device *device = source->device;
    if (device && device->ops->memory) device->ops->memory(device, &out->device);
}

static int64_t tensors_on(const struct device *device, enum tier tier)
{
    struct ledger_state state;
    ledger_read(device->ledger[tier], &state);
    return (int64_t)state.by_class[DEVICE_LEDGER_ARENA];
}

static void read_ledgers(const struct watch_source *source, struct watch_reading *out)
{
    const struct device *device = source->device;
    if (!device) return;
    out->arena = tensors_on(device, TIER_HOST);
    if (!device->facts.unified_memory) out->device_arena = tensors_on(device, TIER_DEVICE);
}

watch_reader *const watch_readers[] = {read_process, read_machine, read_pressure,
                                       read_device,  read_ledgers, NULL};

void watch_read(watch_reader *const *readers, const struct watch_source *source, struct watch_reading *out)
{
    *out = (struct watch_reading){.seconds = clock_seconds()};
    for (; *readers; readers++) (*readers)(source, out);
}
