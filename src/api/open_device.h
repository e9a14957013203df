/* open_device.h - opens the device that a job or a caller names.
 *
 *     struct device_wish wish = {.where = "serve", .name = "auto", .cpu = "--device cpu", .budget = budget};
 *     open_device(context, &wish, &device, &err);
 */
#pragma once

#include "api/device_line.h"
#include "device/device.h"
#include "job/job.h"

struct device_wish {
    const char *where; /* errors begin with this */
    const char *name;  /* device_name_read */
    const char *cpu;   /* how to ask for the CPU, for errors: "training.device: cpu" */
    int threads;       /* of the host; 0: all cores */
    uint64_t budget;   /* "auto" skips a GPU whose driver alone takes this much; 0: no limit */
};

/* "auto" is the first GPU that works and leaves room in the budget, else the CPU; the log says why a GPU is not used. */
enum plim_status open_device(const struct context *context, const struct device_wish *wish,
                             struct device **out, struct plim_error *err);

/* Opens the device and then, by `open`, a model on it. "auto" leaves a GPU that has no room for the model, and takes the CPU; the
 * log says so. *device is the caller's to close, even after an error. */
typedef enum plim_status model_opener(void *arg, struct device *device, struct plim_error *err);
enum plim_status open_model(const struct context *context, const struct device_wish *wish,
                            const struct device_line *line, model_opener *open, void *arg,
                            struct device **device, struct plim_error *err);

struct device_wish device_wish_of(const struct job *job);
enum plim_status open_job_device(const struct context *context, const struct job *job, struct device **out,
                                 struct plim_error *err);
