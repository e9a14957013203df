/* plan_file.h - saves a plan to a file, to be run later exactly as it is.
 *
 *     plan_file_settings(&job, &settings);                          // after the job was read, before anything is planned
 *     plan_file_save("job.plan", settings.data, &job, &loader, &request, &plan, &err);      // plimsoll plan -o
 *
 *     struct plan_file kept;
 *     plan_file_load("job.plan", &kept, &err);                      // plimsoll train --plan
 *     plan_file_meet(&kept, &job, &err);                            // checks the job and its budget against the plan
 *     runtime_plan_kept(&rt, device, &job, &loaders, overhead, &kept, &err);  // and the device and every total
 *     plan_file_release(&kept);
 *
 * The file holds what the plan depends on (the job's settings, the device, the overhead), the choices (knobs, the
 * loader's size, buffers of the disk tier) and the totals, but no tensors. The plan is made again from the knobs,
 * without a search. If its totals differ, or anything it depends on has changed, it is refused, and the error names
 * the difference. Rates may differ: they only influenced the choice.
 *
 * The first line names the format and the hash of the rest, which is JSON.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"
#include "runtime/runtime.h"

struct plan_file {
    char path[512];
    struct doc *doc;
    struct knobs knobs;
    int64_t budget, host_budget;
    int64_t overhead; /* of the request */
    int64_t planning; /* plan.planning */
    int64_t total, host, device, disk, arena;
    int64_t workers, prefetch_factor, max_line_bytes; /* of the data loader */
    int64_t threads, ranks, disk_depth, disk_piece;
};

/* Writes every key of the job that may change a plan, with its value, as a JSON object. */
void plan_file_settings(const struct job *job, struct strbuf *out);

enum plim_status plan_file_save(const char *path, const char *settings, const struct job *job,
                                const struct loader_size *loader, const struct plan_request *request,
                                const struct plan *plan, struct plim_error *err);

/* PLIM_BAD_INPUT: the file is missing, of another version, or damaged. */
enum plim_status plan_file_load(const char *path, struct plan_file *out, struct plim_error *err);
void plan_file_release(struct plan_file *kept); /* a zeroed one has nothing */

/* PLIM_BAD_INPUT names a key of the job, or the budget, that differs from the plan's. A job without a budget gets the
 * plan's. */
enum plim_status plan_file_meet(const struct plan_file *kept, struct job *job, struct plim_error *err);

/* runtime_plan with exactly this plan. PLIM_BAD_INPUT names the difference in device, process or data. */
enum plim_status runtime_plan_kept(struct runtime *rt, struct device *device, const struct job *job,
                                   struct loader_sizes *loader, struct overhead overhead,
                                   const struct plan_file *kept, struct plim_error *err);
