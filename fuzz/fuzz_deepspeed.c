/* fuzz_deepspeed.c - any bytes as DeepSpeed's JSON. What is taken has to be a job whose YAML our own reader takes, with the same
 * values; what is refused is one line. */
#include "base/json.h"
#include "base/schema_value.h"
#include "base/yaml.h"
#include "job/deepspeed.h"
#include "job/job.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *what, const char *text)
{
    fprintf(stderr, "%s: %s\n", what, text);
    abort();
}

static void compare(const struct job *a, const struct job *b)
{
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        struct strbuf x = STRBUF_INIT, y = STRBUF_INIT;
        if (row->alias || row->kind == SCHEMA_NOTHING) continue;
        schema_exact(row, a, &x);
        schema_exact(row, b, &y);
        if (strcmp(strbuf_text(&x), strbuf_text(&y))) fail(row->path, strbuf_text(&y));
        strbuf_release(&x);
        strbuf_release(&y);
    }
}

static void read_back(const struct job *job)
{
    struct strbuf yaml = STRBUF_INIT;
    struct plim_error err = {0};
    struct doc *doc = NULL;
    struct job again;
    job_settings_yaml(job, false, &yaml);
    job_init(&again);
    enum plim_status status = yaml_parse(strbuf_text(&yaml), yaml.len, "shown", &doc, &err);
    if (status == PLIM_OK) status = schema_defaults(&job_schema, &again, &again.store, &err);
    if (status == PLIM_OK)
        status = schema_read(&job_schema, &doc->root, "shown", &again, &again.store, NULL, &err);
    if (status == PLIM_BAD_INPUT) fail(err.text, strbuf_text(&yaml));
    if (status == PLIM_OK) compare(job, &again);
    job_release(&again);
    doc_free(doc);
    strbuf_release(&yaml);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plim_error err = {0};
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct job job;
    job_init(&job);
    enum plim_status status = schema_defaults(&job_schema, &job, &job.store, &err);
    if (status == PLIM_OK) status = json_parse((const char *)data, size, "fuzz", &doc, &err);
    if (status == PLIM_OK) status = deepspeed_take(&job, &doc->root, "fuzz", "", NULL, &err);
    if (status != PLIM_OK && strchr(err.text, '\n')) fail("more than a line", err.text);
    if (status == PLIM_OK) read_back(&job);
    if (status == PLIM_OK && job_settle_batch(&job, 3, &err) == PLIM_OK) deepspeed_auto_text(&job, 3, &text);
    strbuf_release(&text);
    job_release(&job);
    doc_free(doc);
    return 0;
}
