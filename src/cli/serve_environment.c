/* serve_environment.c - see serve_environment.h. The variables are read as for a job, so that they are checked alike. */
#include "cli/cli.h"
#include "cli/serve_environment.h"

enum { MOST_PARALLEL = 4096 }; /* as --parallel */

enum plim_status serve_environment_read(struct serve_environment *out, struct plim_error *err)
{
    static const char precision[] = "training.mixed_precision";
    struct job job;
    job_init(&job);
    *out = (struct serve_environment){0};
    enum plim_status status = schema_defaults(&job_schema, &job, &job.store, err);
    if (status == PLIM_OK) status = job_take_process_environment(&job, cli_context(), err);
    if (status == PLIM_OK) {
        int64_t most = job.training.max_micro_batch;
        bool said = job_origin(&job, precision)->kind != ORIGIN_DEFAULT;
        out->parallel = most < MOST_PARALLEL ? (int)most : MOST_PARALLEL;
        out->fraction = job.wishes.cuda_fraction;
        out->mixed = said && job.training.precision == PRECISION_AUTO;
        out->exact = said && !out->mixed;
        job_thresholds(&job, &out->thresholds);
    }
    job_release(&job);
    return status;
}

enum plim_status serve_environment_check(const struct serve_environment *env, enum precision precision,
                                         const struct device_facts *facts, struct plim_error *err)
{
    bool narrow = precision != PRECISION_F32;
    bool denied =
        (env->exact && narrow) || (env->mixed && !narrow && job_automatic_precision(facts) != PRECISION_F32);
    if (!denied) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "environment: variable ENABLE_MIXED_PRECISION: %s is not possible: this model is computed in "
        "%s, as its weights are; unset it, or convert the weights",
        env->exact ? "false" : "true", precision_name(precision));
}
