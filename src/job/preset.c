/* preset.c - see preset.h; data/devices.yaml and data/profiles.yaml. */
#include "job/preset.h"
#include "base/bytes.h"
#include "base/embedded.h"
#include "base/nearest.h"
#include "base/yaml.h"
#include "job/job.h"
#include "tape/pass.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAMES 64

static enum plim_status load(const char *file, struct doc **out, struct plim_error *err)
{
    const struct plim_data *data = embedded_find(file);
    if (!data) return plim_fail(err, PLIM_BUG, "data/%s.yaml is not part of this build", file);
    return yaml_parse(data->text, data->size, file, out, err);
}

/* The map called `name` in an embedded file, or an error that names the nearest one. */
static enum plim_status find_entry(const char *file, const char *kind, const char *name, struct doc **doc,
                                   const struct node **out, struct plim_error *err)
{
    enum plim_status status = load(file, doc, err);
    if (status != PLIM_OK) return status;
    *out = node_get(&(*doc)->root, name);
    if (*out) return PLIM_OK;
    const char *names[MAX_NAMES];
    size_t n = node_count(&(*doc)->root);
    if (n > MAX_NAMES) n = MAX_NAMES;
    for (size_t i = 0; i < n; i++) names[i] = node_item(&(*doc)->root, i)->key;
    const char *near = nearest_word(name, names, n);
    status = plim_fail(err, PLIM_BAD_INPUT, "%s '%s' is not known; %s%s%s", kind, name,
                       near ? "did you mean '" : "see plimsoll plan --list-devices", near ? near : "",
                       near ? "'?" : "");
    doc_free(*doc);
    return status;
}

static uint64_t bytes_of(const struct node *node)
{
    uint64_t n = 0;
    if (node && node->kind == NODE_INT) return (uint64_t)node->as.integer;
    bytes_parse(node_string(node, "0"), &n, NULL);
    return n;
}

enum plim_status preset_find(const char *name, struct preset *out, struct plim_error *err)
{
    struct doc *doc;
    const struct node *d;
    enum plim_status status = find_entry("devices", "device", name, &doc, &d, err);
    if (status != PLIM_OK) return status;
    *out = (struct preset){.batch = node_int(node_get(d, "batch"), 1),
                           .accumulation = node_int(node_get(d, "accumulation"), 1)};
    struct device_facts *f = &out->facts;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(out->profile, sizeof out->profile, "%s", node_string(node_get(d, "profile"), "balanced"));
    f->is_host = node_bool(node_get(d, "host"), false);
    f->memory_bytes = bytes_of(node_get(d, "memory"));
    f->overhead_bytes = bytes_of(node_get(d, "overhead"));
    f->align = f->is_host ? 64 : 256;
    f->threads = 1;
    f->flops[DT_F32] = node_float(node_get(d, "f32"), 1e12);
    f->flops[DT_BF16] = node_float(node_get(d, "bf16"), 1e12);
    f->flops[DT_F16] = node_float(node_get(d, "f16"), 1e12);
    for (int t = 0; t < DT_COUNT; t++) f->attn_flops[t] = f->flops[t] / 2;
    f->bandwidth = node_float(node_get(d, "bandwidth"), 1e11);
    f->far_bandwidth = node_float(node_get(d, "far"), 1e9);
    f->host_bandwidth = f->is_host ? 0 : node_float(node_get(d, "host_memory"), 40e9);
    f->op_seconds = f->is_host ? 2e-6 : 4e-6;
    for (int p = 0; p < PRECISION_COUNT; p++)
        if (!strcmp(node_string(node_get(d, "precision"), "fp32"), precision_name((enum precision)p)))
            out->precision = p;
    doc_free(doc);
    return PLIM_OK;
}

void preset_list(struct strbuf *out)
{
    struct doc *doc;
    if (load("devices", &doc, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        const struct node *d = node_item(&doc->root, i);
        char memory[BYTES_TEXT];
        bytes_format(memory, bytes_of(node_get(d, "memory")));
        strbuf_addf(out, "%-12s %9s  %s  batch %lld x %lld\n", d->key, memory,
                    node_string(node_get(d, "precision"), ""), (long long)node_int(node_get(d, "batch"), 1),
                    (long long)node_int(node_get(d, "accumulation"), 1));
    }
    doc_free(doc);
}

enum plim_status profile_find(const char *name, struct profile *out, struct plim_error *err)
{
    struct doc *doc;
    const struct node *p;
    enum plim_status status = find_entry("profiles", "profile", name, &doc, &p, err);
    if (status != PLIM_OK) return status;
    *out = (struct profile){node_float(node_get(p, "target"), 0.9), node_float(node_get(p, "warning"), 0.92),
                            node_float(node_get(p, "critical"), 0.95),
                            node_float(node_get(p, "emergency"), 0.97)};
    doc_free(doc);
    return PLIM_OK;
}

void job_thresholds(const struct job *job, struct profile *out)
{
    static const char *const names[] = {"aggressive", "balanced", "conservative"};
    if (profile_find(names[job->profile], out, NULL) != PLIM_OK)
        *out = (struct profile){0.90, 0.92, 0.95, 0.97};
    if (job->target > 0) out->target = job->target;
    if (job->warning > 0) out->warning = job->warning;
    if (job->critical > 0) out->critical = job->critical;
    if (job->emergency > 0) out->emergency = job->emergency;
}

int64_t job_budget(const struct job *job, int64_t memory)
{
    if (job->budget_given) return (int64_t)job->budget;
    struct profile profile;
    job_thresholds(job, &profile);
    return (int64_t)((double)memory * profile.target);
}
