/* search_jobs.h - jobs whose plans are compared from version to version: models and budgets people ask for, on the fixed
 * facts of presets.
 *
 *     for (int i = 0; i < search_job_count(); i++) {
 *         struct job job;
 *         struct plan_request request;
 *         struct preset preset;
 *         search_job_open(i, name, sizeof name, &job, &preset, &request);
 *         ... plan_search(&request, ...)
 *         job_release(&job);
 *     }
 */
#ifndef PLIM_TESTS_SEARCH_JOBS_H
#define PLIM_TESTS_SEARCH_JOBS_H

#include "job/job.h"
#include "job/preset.h"

int search_job_count(void);

/* Sets up job i and what the planner is asked; returns its name ("llama-1b/h200/24") in buf. Ends the program where a key is
 * refused. The facts are in *preset, which must outlive the request. */
const char *search_job_open(int i, char *buf, size_t size, struct job *job, struct preset *preset,
                            struct plan_request *request);

#endif
