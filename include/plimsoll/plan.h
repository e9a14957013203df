/* plimsoll/plan.h - jobs, and the plan that a job would have: every byte, before anything runs.
 *
 *     struct plim_job *job;
 *     plim_job_open(context, "small.yaml", &job, &err);            // or NULL: start from defaults
 *     plim_job_set(job, "budget=64MiB", &err);                     // the keys of the job file
 *     struct plim_plan *plan;
 *     enum plim_status fits = plim_plan_open(job, NULL, &plan, &err); // PLIM_NO_FIT: plan says what is missing
 *     struct plim_plan_figures figures = {.size = sizeof figures};
 *     plim_plan_figures(plan, &figures);
 *     char *json = plim_plan_json(plan);
 *     plim_free(json), plim_plan_close(plan), plim_job_close(job);
 */
#ifndef PLIMSOLL_PLAN_H
#define PLIMSOLL_PLAN_H

#include <plimsoll/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_job;
struct plim_plan;

/* Reads a job file (docs/configuration.md). path NULL: all keys have their defaults. */
PLIM_API enum plim_status plim_job_open(struct plim_context *context, const char *path, struct plim_job **out,
                                        struct plim_error *err);
/* Reads a job from YAML or JSON text instead of a file. Relative paths start at the working directory. */
PLIM_API enum plim_status plim_job_parse(struct plim_context *context, const char *text,
                                         struct plim_job **out, struct plim_error *err);
PLIM_API void plim_job_close(struct plim_job *job);
/* "training.batch_size=8". PLIM_BAD_INPUT names the key and what it takes. */
PLIM_API enum plim_status plim_job_set(struct plim_job *job, const char *assignment, struct plim_error *err);
/* The resolved job as YAML, with the origin of each value; NULL: out of memory. */
PLIM_API char *plim_job_yaml(struct plim_job *job);

/* Plans the job. device NULL: the job's own. PLIM_NO_FIT: nothing fits, and *out is the smallest plan with the missing
 * bytes and the remedies; it must be closed as well. Any other error: *out is NULL. The job may be closed afterwards; a
 * given device must stay open until the plan is closed. */
PLIM_API enum plim_status plim_plan_open(struct plim_job *job, struct plim_device *device,
                                         struct plim_plan **out, struct plim_error *err);
PLIM_API void plim_plan_close(struct plim_plan *plan);

struct plim_plan_figures {
    size_t size;
    int fits;
    uint64_t budget;           /* 0: none */
    uint64_t total_bytes;      /* what the run takes on the device */
    uint64_t missing_bytes;    /* beyond the budget; 0 if it fits */
    uint64_t parameter_bytes, gradient_bytes, optimizer_bytes, activation_bytes, overhead_bytes;
    uint64_t host_bytes, disk_bytes; /* below the device */
    int64_t parameters;
    int64_t micro_batch, accumulation;
    double tokens_per_second;  /* predicted */
    double step_seconds;       /* predicted */
};
PLIM_API enum plim_status plim_plan_figures(const struct plim_plan *plan, struct plim_plan_figures *out);

/* The whole plan, as `plimsoll plan --json`, as text for people, and as a self-contained page with a picture of the arena.
 * Savings (bytes saved by each technique in use) and remedies (plans that would fit) are parts of the JSON. */
PLIM_API char *plim_plan_json(const struct plim_plan *plan);
PLIM_API char *plim_plan_text(const struct plim_plan *plan);
PLIM_API char *plim_plan_html(const struct plim_plan *plan);

/* Memory of one micro-batch's activations, from a plan for a model of this shape. */
struct plim_activation_query {
    size_t size;
    int64_t batch_size, sequence_length, hidden_size, num_layers, num_attention_heads;
    int64_t vocab_size;              /* 0: 32000 */
    int use_gradient_checkpointing, use_flash_attention;
};
struct plim_activation_memory {
    size_t size;
    uint64_t effective_bytes; /* as asked */
    uint64_t full_bytes;      /* without checkpointing */
    uint64_t saved_bytes;     /* full - effective */
};
PLIM_API enum plim_status plim_activation_memory(struct plim_context *context,
                                                 const struct plim_activation_query *query,
                                                 struct plim_activation_memory *out, struct plim_error *err);

/* The plan that plim_engine_open would commit (plimsoll/engine.h), in the form of `plimsoll plan --serve --json`;
 * server_bytes is 0, since a program has no HTTP server. The device may be a preset. Free *json with plim_free. */
struct plim_engine_options;
PLIM_API enum plim_status plim_plan_serving(struct plim_context *context,
                                            const struct plim_engine_options *options, char **json,
                                            struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
