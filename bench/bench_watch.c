/* bench_watch - what watching costs, in CPU time: a sample, which the monitor's thread takes every interval, and what a step pays. */
#include "base/clock.h"
#include "device/registry.h"
#include "train/run_control.h"

#include <stdio.h>

static double each(double begin, int n) { return 1e6 * (clock_thread() - begin) / n; }

int main(void)
{
    enum { N = 2000 };
    struct plim_error err = {0};
    struct device *device;
    struct monitor *monitor;
    struct run_control *control;
    struct monitor_state state;
    struct run_facts facts = {0};
    struct os_process process;
    struct profile profile = {0.90, 0.92, 0.95, 0.97};
    struct monitor_options options = {.thresholds = profile};
    if (device_cpu_open(NULL, 1, &device, &err) != PLIM_OK) return 4;
    options.source.device = device;
    if (monitor_open(&options, &monitor, &err) != PLIM_OK) return 4;
    if (run_control_open(NULL, monitor, &control, &err) != PLIM_OK) return 4;
    double begin = clock_thread();
    for (int i = 0; i < N; i++) monitor_sample(monitor);
    printf("%-34s %8.2f us\n", "a sample (the monitor's thread)", each(begin, N));
    begin = clock_thread();
    for (int i = 0; i < N; i++) {
        struct run_order order;
        monitor_tell(monitor, &(struct monitor_own){.step = i, .budget = 1 << 30});
        monitor_look(monitor, &state);
        run_control_tell(control, &facts);
        run_control_next(control, &order);
        run_control_stopped(control);
        os_heap_bytes();
        os_heap_bytes();
    }
    printf("%-34s %8.2f us\n", "a step's part", each(begin, N));
    begin = clock_thread();
    for (int i = 0; i < N; i++) os_process_memory(&process, &err);
    printf("%-34s %8.2f us\n", "the process's memory, for its line", each(begin, N));
    run_control_close(control);
    monitor_close(monitor);
    device->ops->close(device);
    return 0;
}
