/* memory.c - how much memory there is, which batch fits, and what to do when it becomes short.
 *
 *     cc memory.c $(pkg-config --cflags --libs plimsoll) -o memory && ./memory
 */
#include <plimsoll/plimsoll.h>

#include <stdio.h>
#include <stdlib.h>

extern char **environ;

static void check(enum plim_status status, const struct plim_error *err)
{
    if (status == PLIM_OK) return;
    fprintf(stderr, "%s: %s\n", plim_status_name(status), err->text);
    exit(1);
}

int main(void)
{
    struct plim_error err = {0};
    struct plim_context *context;
    struct plim_device *device;
    struct plim_monitor *monitor;

    /* The library reads no variable by itself. With the environment it obeys MAX_BATCH_SIZE and others. */
    struct plim_context_options co = {.size = sizeof co, .environment = environ};
    check(plim_context_open(&co, &context, &err), &err);
    check(plim_device_open(context, "auto", &device, &err), &err); /* a GPU that works, else the CPU */

    struct plim_memory memory = {.size = sizeof memory};
    check(plim_memory_summary(device, &memory, &err), &err);
    printf("allocated %.0f MB, free %.0f MB, %.0f %% of the device in use\n", memory.allocated / 1e6,
           memory.free / 1e6, 100 * memory.utilization);

    int batch;
    check(plim_batch_size(device, 32, 1000ull << 20, &batch, &err), &err); /* 32 rows of a model of 1000 MiB */
    printf("batch size %d\n", batch);

    /* One check per step. The monitor recommends; your program decides. */
    struct plim_monitor_options mo = {.size = sizeof mo, .device = device, .warning = 0.92};
    check(plim_monitor_open(context, &mo, &monitor, &err), &err);
    for (int step = 1; step <= 3; step++) {
        struct plim_health health = {.size = sizeof health, .step = step};
        check(plim_monitor_check(monitor, batch, &health, &err), &err);
        puts(health.line);
        for (int i = 0; i < health.count; i++) printf("  %s\n", health.recommendations[i]);
        batch = (int)health.batch_size;
    }
    check(plim_memory_snapshot(device, "memory.json", &err), &err); /* open it in ui.perfetto.dev */

    plim_monitor_close(monitor); /* objects before their context */
    plim_device_close(device);
    plim_context_close(context);
    return 0;
}
