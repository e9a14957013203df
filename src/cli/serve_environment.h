/* serve_environment.h - variables of the environment that serve obeys: MAX_BATCH_SIZE, ENABLE_MIXED_PRECISION,
 * CUDA_MEMORY_FRACTION and PyTorch's allocator options. Flags are stronger. */
#ifndef PLIM_CLI_SERVE_ENVIRONMENT_H
#define PLIM_CLI_SERVE_ENVIRONMENT_H

#include "job/job.h"
#include "job/preset.h"

struct serve_environment {
    int parallel;              /* requests at once at most; 0: not said */
    double fraction;           /* of a GPU's memory; 0: not said */
    bool exact, mixed;         /* fp32; 16 bits where the device gains by it */
    struct profile thresholds; /* of memory: those of a job that says nothing */
};

/* PLIM_BAD_INPUT names a variable whose value cannot be read. */
enum plim_status serve_environment_read(struct serve_environment *out, struct plim_error *err);

/* PLIM_UNSUPPORTED: the model is computed in another precision than ENABLE_MIXED_PRECISION asks for. */
enum plim_status serve_environment_check(const struct serve_environment *env, enum precision precision,
                                         const struct device_facts *facts, struct plim_error *err);

#endif
