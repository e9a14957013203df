/* plimsoll/monitor.h - compares memory with thresholds, and says what to do.
 *
 *     struct plim_monitor_options options = {.size = sizeof options, .device = device, .warning = 0.92};
 *     plim_monitor_open(context, &options, &monitor, &err);
 *     struct plim_health health = {.size = sizeof health};
 *     plim_monitor_check(monitor, 12, &health, &err);
 *     puts(health.line);
 *     if (health.status >= PLIM_MEMORY_CRITICAL) batch = health.batch_size;
 *     plim_monitor_close(monitor);
 *
 * The monitor reports; it changes nothing. With an interval it samples on a thread of its own and calls `changed` there.
 */
#ifndef PLIMSOLL_MONITOR_H
#define PLIMSOLL_MONITOR_H

#include <plimsoll/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_monitor;

enum plim_memory_status {
    PLIM_MEMORY_NORMAL = 0,
    PLIM_MEMORY_WARNING = 1,
    PLIM_MEMORY_CRITICAL = 2,
    PLIM_MEMORY_EMERGENCY = 3
};
PLIM_API const char *plim_memory_status_name(enum plim_memory_status status);

enum { PLIM_RECOMMENDATIONS = 4 };

struct plim_health {
    size_t size;
    int64_t step; /* in: number of the step for `line`; 0: checks are counted. out: that number */
    enum plim_memory_status status;
    int leaking;        /* plim_monitor_leaks has something to say */
    double utilization; /* of the fullest memory that is watched, 0 to 1 */
    uint64_t used, total;
    double trend; /* bytes per second over the last samples */
    /* For the next step, if the check was given one: half of it when critical or worse; doubled after five normal checks in
     * a row, up to the largest that was given. */
    int64_t batch_size;
    int count; /* of recommendations, the most urgent first */
    char recommendations[PLIM_RECOMMENDATIONS][128];
    /* "[Step 300] Memory: 22.8/24.0 GB (95%), Status: critical - reducing batch size", for callers that follow batch_size */
    char line[160];
};

struct plim_monitor_options {
    size_t size;
    struct plim_device *device; /* closed after the monitor */
    /* Shares of memory, in ascending order; 0: 0.90, 0.92, 0.95, 0.97. */
    double target, warning, critical, emergency;
    uint64_t budget;  /* also watched, for the memory of this process on the device; 0: none */
    double interval;  /* seconds between samples; 0: a sample with each check, and no thread */
    uint64_t leak_bytes; /* growth that is no leak yet; 0: 4 MiB */
    /* Called when the status changes, from the thread that took the sample. It must not close the monitor. */
    void (*changed)(void *arg, const struct plim_health *health);
    void *arg;
};
PLIM_API enum plim_status plim_monitor_open(struct plim_context *context,
                                            const struct plim_monitor_options *options,
                                            struct plim_monitor **out, struct plim_error *err);
PLIM_API void plim_monitor_close(struct plim_monitor *monitor);

/* batch_size: of the step that is checked; 0: unknown. Each check counts as a step for the leak report. */
PLIM_API enum plim_status plim_monitor_check(struct plim_monitor *monitor, int64_t batch_size,
                                             struct plim_health *out, struct plim_error *err);

/* Memory now as JSON, for plim_free: "status", "total", "fragmentation", "classes", "processes", and "owners" of an attached
 * allocator's blocks. */
PLIM_API char *plim_monitor_breakdown(struct plim_monitor *monitor);
/* One line for each memory that keeps growing (the process, its device memory, blocks of an attached allocator): by how much, in
 * how many checks, and whose it is; for plim_free. NULL: nothing leaks. Growth counts when five windows of four samples were each
 * larger than the one before, so a report needs twenty samples. */
PLIM_API char *plim_monitor_leaks(struct plim_monitor *monitor);

#ifdef __cplusplus
}
#endif
#endif
