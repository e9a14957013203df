/* fuzz_training_args.c - any bytes as the configuration of another trainer. A conversion has to be YAML that our own reader
 * takes, with keys that are known and values in their range, whatever names and texts the file has. */
#include "base/json.h"
#include "base/yaml.h"
#include "job/convert.h"
#include "job/job.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_back(const struct strbuf *yaml)
{
    struct doc *doc = NULL;
    struct job job;
    struct plim_error err = {0};
    job_init(&job);
    enum plim_status status = yaml_parse(yaml->data, yaml->len, "converted", &doc, &err);
    if (status == PLIM_OK) status = schema_defaults(&job_schema, &job, &job.store, &err);
    if (status == PLIM_OK)
        status = schema_read(&job_schema, &doc->root, "converted", &job, &job.store, NULL, &err);
    if (status == PLIM_BAD_INPUT) {
        fprintf(stderr, "%s\n%s", err.text, strbuf_text(yaml));
        abort();
    }
    job_release(&job);
    doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plim_error err = {0};
    for (int json = 0; json < 2; json++) {
        struct doc *doc = NULL;
        struct conversion c;
        enum plim_status status = json ? json_parse((const char *)data, size, "fuzz", &doc, &err)
                                       : yaml_parse((const char *)data, size, "fuzz", &doc, &err);
        if (status == PLIM_OK && job_convert(&doc->root, "fuzz", &c, &err) == PLIM_OK) {
            read_back(&c.yaml);
            conversion_release(&c);
        }
        doc_free(doc);
    }
    return 0;
}
