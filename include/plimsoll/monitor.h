/* plimsoll/monitor.h - compares memory with thresholds, and says what to do.
 *
 *     struct plim_monitor_options options = {.size = sizeof options, .device = device, .warning = 0.92};
 *     plim_monitor_open(context, &options, &monitor, &err);
 *     struct plim_health health = {.size = sizeof health};
 *     plim_monitor_check(monitor, 12, &health, &err);
 *     if (health.status >= PLIM_MEMORY_CRITICAL) puts(health.recommendations[0]);
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
    enum plim_memory_status status;
    double utilization; /* of the fullest memory that is watched, 0 to 1 */
    uint64_t used, total;
    double trend;       /* bytes per second over the last samples */
    int count;          /* of recommendations */
    const char *recommendations[PLIM_RECOMMENDATIONS]; /* static text */
    /* "[Step 300] Memory: 22.8/24.0 GB (95%), Status: critical - reducing batch size" */
    char line[160];
    int leaking;        /* memory outside plans and allocators keeps growing */
};

struct plim_monitor_options {
    size_t size;
    struct plim_device *device; /* must stay open */
    /* Shares of memory; 0: 0.90, 0.92, 0.95, 0.97. */
    double target, warning, critical, emergency;
    uint64_t budget;  /* also watched, for the whole process; 0: none */
    double interval;  /* seconds between samples; 0: a sample with each check */
    /* Called when the status changes. On the sampling thread if there is an interval. */
    void (*changed)(void *arg, const struct plim_health *health);
    void *arg;
};
PLIM_API enum plim_status plim_monitor_open(struct plim_context *context,
                                            const struct plim_monitor_options *options,
                                            struct plim_monitor **out, struct plim_error *err);
PLIM_API void plim_monitor_close(struct plim_monitor *monitor);

/* batch_size, if positive, is named in recommendations. Each check also counts as a step for the leak report. */
PLIM_API enum plim_status plim_monitor_check(struct plim_monitor *monitor, int64_t batch_size,
                                             struct plim_health *out, struct plim_error *err);

/* Memory by class and fragmentation as JSON. */
PLIM_API char *plim_monitor_breakdown(struct plim_monitor *monitor);
/* One line about growth and who holds it; NULL: nothing leaks. */
PLIM_API char *plim_monitor_leaks(struct plim_monitor *monitor);

#ifdef __cplusplus
}
#endif
#endif
