/* serve_environment.h - environment variables of serve: MAX_BATCH_SIZE, ENABLE_MIXED_PRECISION, CUDA_MEMORY_FRACTION and
 * PyTorch's allocator options. Flags override them. */
#pragma once

#include "job/job.h"
#include "job/preset.h"

struct serve_environment {
    int parallel;              /* maximum concurrent requests; 0: not given */
    double fraction;           /* of a GPU's memory; 0: not given */
    bool exact, mixed;         /* fp32; 16 bits where the device gains from it */
    struct profile thresholds; /* of memory, as in a job without settings */
};

/* PLIM_BAD_INPUT names a variable with an invalid value. */
enum plim_status serve_environment_read(struct serve_environment *out, struct plim_error *err);

/* PLIM_UNSUPPORTED: the model's precision differs from the one ENABLE_MIXED_PRECISION demands. */
enum plim_status serve_environment_check(const struct serve_environment *env, enum precision precision,
                                         const struct device_facts *facts, struct plim_error *err);
