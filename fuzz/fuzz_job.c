/* fuzz_job.c - any bytes as a job file: YAML, then every key of the table, then the cross-checks. */
#include "base/yaml.h"
#include "job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct doc *doc = NULL;
    struct job job;
    struct plim_error err = {0};
    struct origin_recorder given;
    if (yaml_parse((const char *)data, size, "fuzz", &doc, &err) != PLIM_OK) return 0;
    job_init(&job);
    if (schema_defaults(&job_schema, &job, &job.store, &err) == PLIM_OK &&
        schema_read(&job_schema, &doc->root, "fuzz", &job, &job.store,
                    origin_record(&given, &job, ORIGIN_FILE, NULL), &err) == PLIM_OK &&
        !job.model.path)
        job_finish(&job, &err);
    job_release(&job);
    doc_free(doc);
    return 0;
}
