/* plan_file.c - see plan_file.h. */
#include "runtime/plan_file.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/schema_value.h"
#include "runtime/runtime_part.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT    "plimsoll plan 1"
#define FILE_MOST (4 << 20)
#define AGAIN     "; make it again with plimsoll plan -o"

/* Keys that change no byte of a plan. A name that ends with a point stands for all keys below it. */
static const char *const left_out[] = {"budget",
                                       "host_budget",
                                       "output.",
                                       "monitoring.",
                                       "training.steps",
                                       "training.epochs",
                                       "training.seed",
                                       "training.save_every",
                                       "training.log_every",
                                       "training.run_name",
                                       "training.report_to",
                                       "training.logging_dir",
                                       "training.threads",
                                       "training.learning_rate"};

static bool is_left_out(const char *key)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
        size_t n = strlen(left_out[i]);
        if (left_out[i][n - 1] == '.' ? !strncmp(left_out[i], key, n) : !strcmp(left_out[i], key))
            return true;
    }
    return false;
}

void plan_file_settings(const struct job *job, struct strbuf *out)
{
    struct json_writer w = json_object(out, 0);
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        STRBUF_AUTO value = STRBUF_INIT;
        if (row->alias || row->kind == SCHEMA_NOTHING || is_left_out(row->path)) continue;
        schema_exact(row, job, &value);
        json_str(&w, row->path, strbuf_text(&value));
    }
    json_end_object(&w);
}

/* Numbers of the file by name. */
static const struct number {
    const char *name;
    size_t offset;
} numbers[] = {
#define NUMBER(member)                                                                                       \
    {                                                                                                        \
#member, offsetof(struct plan_file, member)                                                          \
    }
    NUMBER(budget),
    NUMBER(host_budget),
    NUMBER(overhead),
    NUMBER(planning),
    NUMBER(total),
    NUMBER(host),
    NUMBER(device),
    NUMBER(disk),
    NUMBER(arena),
    NUMBER(workers),
    NUMBER(prefetch_factor),
    NUMBER(max_line_bytes),
    NUMBER(threads),
    NUMBER(ranks),
    NUMBER(disk_depth),
    NUMBER(disk_piece)
#undef NUMBER
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int64_t *number_at(struct plan_file *k, int i)
{
    return (int64_t *)(void *)((char *)k + numbers[i].offset);
}

static struct plan_file describe(const struct job *job, const struct loader_size *loader,
                                 const struct plan_request *r, const struct plan *p)
{
    const struct device_facts *f = r->facts;
    return (struct plan_file){.knobs = p->knobs,
                              .budget = r->budget,
                              .host_budget = r->host_budget,
                              .overhead = r->overhead,
                              .planning = p->planning,
                              .total = p->total,
                              .host = p->host,
                              .device = p->device,
                              .disk = p->disk,
                              .arena = p->layout.arena_bytes,
                              .workers = loader->workers,
                              .prefetch_factor = job->data.prefetch_factor,
                              .max_line_bytes = loader->max_line_bytes,
                              .threads = f->threads,
                              .ranks = f->ranks > 1 ? f->ranks : 1,
                              .disk_depth = f->disk_depth,
                              .disk_piece = (int64_t)f->disk_piece};
}

enum plim_status plan_file_save(const char *path, const char *settings, const struct job *job,
                                const struct loader_size *loader, const struct plan_request *request,
                                const struct plan *plan, struct plim_error *err)
{
    struct plan_file k = describe(job, loader, request, plan);
    STRBUF_AUTO body = STRBUF_INIT, text = STRBUF_INIT;
    struct json_writer w = json_object(&body, 0);
    json_str(&w, "version", PLIMSOLL_VERSION);
    json_str(&w, "device_name", request->facts->name);
    for (int i = 0; i < NUMBERS; i++) json_int(&w, numbers[i].name, *number_at(&k, i));
    json_begin_object(&w, "knobs");
    for (int i = 0; i < KNOB_COUNT; i++) json_int(&w, knob_rows[i].name, knob_get(&k.knobs, i));
    json_end_object(&w);
    json_str(&w, "settings", settings);
    json_end_object(&w);
    strbuf_addc(&body, '\n');
    strbuf_addf(&text, FORMAT " %016" PRIx64 "\n%s", hash64(body.data, body.len, 0), strbuf_text(&body));
    enum plim_status status = strbuf_status(&body, err);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    return status;
}

/* The text behind the first line, when that is ours and its hash is right. */
static enum plim_status check_text(const struct strbuf *text, const char *path, const char **body,
                                   struct plim_error *err)
{
    const char *all = strbuf_text(text), *line = strchr(all, '\n');
    char wanted[64];
    if (strncmp(all, FORMAT " ", strlen(FORMAT " ")) || !line)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a plan file" AGAIN, path);
    *body = line + 1;
    snprintf(wanted, sizeof wanted, FORMAT " %016" PRIx64,
             hash64(*body, text->len - (size_t)(*body - all), 0));
    if (strlen(wanted) == (size_t)(line - all) && !strncmp(all, wanted, strlen(wanted))) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: is damaged: its checksum does not match" AGAIN, path);
}

enum plim_status plan_file_load(const char *path, struct plan_file *out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    const char *body = NULL;
    *out = (struct plan_file){0};
    snprintf(out->path, sizeof out->path, "%s", path);
    enum plim_status status = file_read(path, FILE_MOST, &text, err);
    if (status == PLIM_OK) status = check_text(&text, path, &body, err);
    if (status == PLIM_OK) status = json_parse(body, strlen(body), path, &out->doc, err);
    strbuf_release(&text);
    if (status != PLIM_OK) return status;
    const struct node *root = &out->doc->root, *knobs = node_get(root, "knobs");
    for (int i = 0; i < NUMBERS; i++) *number_at(out, i) = node_int(node_get(root, numbers[i].name), 0);
    for (int i = 0; i < KNOB_COUNT; i++)
        knob_set(&out->knobs, i, node_int(node_get(knobs, knob_rows[i].name), 0));
    const char *version = node_string(node_get(root, "version"), "");
    if (!strcmp(version, PLIMSOLL_VERSION)) return PLIM_OK;
    status = plim_fail(err, PLIM_BAD_INPUT, "%s: was made by plimsoll %s, this is %s" AGAIN, path, version,
                       PLIMSOLL_VERSION);
    plan_file_release(out);
    return status;
}

void plan_file_release(struct plan_file *kept)
{
    if (kept->doc) doc_free(kept->doc);
    *kept = (struct plan_file){0};
}

/* --- is everything as it was? --------------------------------------------------------------------------------- */

static enum plim_status compare_settings(const struct plan_file *k, const struct node *then,
                                         const struct node *now, struct plim_error *err)
{
    for (size_t i = 0; i < node_count(now); i++) {
        const struct node *item = node_item(now, i);
        const char *value = node_string(item, ""), *before = node_string(node_get(then, item->key), "");
        if (strcmp(value, before))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key '%s' is now '%.100s', the plan was made with '%.100s'" AGAIN, k->path,
                             item->key, value, before);
    }
    return PLIM_OK;
}

static enum plim_status check_budget(const struct plan_file *k, const char *key, uint64_t now, int64_t then,
                                     struct plim_error *err)
{
    char a[BYTES_TEXT], b[BYTES_TEXT];
    if (!now || (int64_t)now == then) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: %s is now %s (%lld bytes), the plan was made for %s (%lld bytes); leave it out, or "
                     "make the plan again",
                     k->path, key, bytes_format(a, now), (long long)now, bytes_format(b, (uint64_t)then),
                     (long long)then);
}

enum plim_status plan_file_meet(const struct plan_file *k, struct job *job, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *now = NULL, *then = NULL;
    const char *kept = node_string(node_get(&k->doc->root, "settings"), "");
    plan_file_settings(job, &text);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, job->name, &now, err);
    if (status == PLIM_OK) status = json_parse(kept, strlen(kept), k->path, &then, err);
    if (status == PLIM_OK) status = compare_settings(k, &then->root, &now->root, err);
    if (now) doc_free(now);
    if (then) doc_free(then);
    strbuf_release(&text);
    if (status == PLIM_OK) status = check_budget(k, "the budget", job->budget, k->budget, err);
    if (status == PLIM_OK) status = check_budget(k, "host_budget", job->host_budget, k->host_budget, err);
    if (status == PLIM_OK) job->budget = (uint64_t)k->budget;
    return status;
}

static enum plim_status check_device(const struct plan_file *k, const struct device_facts *facts,
                                     struct plim_error *err)
{
    const char *name = node_string(node_get(&k->doc->root, "device_name"), "");
    int ranks = facts->ranks > 1 ? facts->ranks : 1;
    if (strcmp(name, facts->name))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: was made for %s, this is %s" AGAIN, k->path, name,
                         facts->name);
    if (facts->threads != k->threads)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: was made for %lld threads, there are %d; set training.threads=%lld, or make "
                         "the plan again",
                         k->path, (long long)k->threads, facts->threads, (long long)k->threads);
    if (ranks != k->ranks)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: was made for %lld rank%s, there %s %d" AGAIN, k->path,
                         (long long)k->ranks, k->ranks == 1 ? "" : "s", ranks == 1 ? "is" : "are", ranks);
    return PLIM_OK;
}

/* The loader that the plan counts. */
static enum plim_status choose_loader(const struct plan_file *k, const struct job *job,
                                      struct loader_sizes *s, struct plim_error *err)
{
    while (s->at[s->chosen].workers != k->workers || job->data.prefetch_factor != k->prefetch_factor ||
           s->at[s->chosen].max_line_bytes != k->max_line_bytes)
        if (!loader_sizes_shrink(s, 0))
            return plim_fail(err, PLIM_BAD_INPUT, "%s: the data loader differs from the plan's" AGAIN,
                             k->path);
    return PLIM_OK;
}

/* The plan made again is the one that was kept, to the byte. */
static enum plim_status check_totals(const struct plan_file *k, const struct plan *p, struct plim_error *err)
{
    if (p->total == k->total && p->host == k->host && p->device == k->device && p->disk == k->disk &&
        p->layout.arena_bytes == k->arena)
        return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: its %lld bytes (%lld of the arena, %lld on disk) have become %lld (%lld, %lld)" AGAIN, k->path,
        (long long)k->total, (long long)k->arena, (long long)k->disk, (long long)p->total,
        (long long)p->layout.arena_bytes, (long long)p->disk);
}

static enum plim_status make_again(struct runtime *rt, const struct plan_file *k, struct plim_error *err)
{
    struct plan_request *r = &rt->request;
    struct plan *p = &rt->plan;
    int64_t least = r->overhead - rt->reserve;
    char more[BYTES_TEXT];
    if (least > k->overhead)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: program and data take %s more than when the plan was made" AGAIN, k->path,
                         bytes_format(more, (uint64_t)(least - k->overhead)));
    r->overhead = k->overhead, rt->reserve = 0;
    enum plim_status status = plan_make(r, &k->knobs, p, err);
    if (status != PLIM_OK) return status;
    p->planning = k->planning;
    p->total += p->planning, p->host += p->planning, p->overhead += p->planning;
    p->fits = plan_within(r, p->total, p->host);
    return check_totals(k, p, err);
}

enum plim_status runtime_plan_kept(struct runtime *rt, struct device *device, const struct job *job,
                                   struct loader_sizes *loader, struct overhead overhead,
                                   const struct plan_file *k, struct plim_error *err)
{
    enum plim_status status = check_device(k, &device->facts, err);
    device->facts.disk_depth = (int)k->disk_depth, device->facts.disk_piece = (size_t)k->disk_piece;
    if (status == PLIM_OK) status = choose_loader(k, job, loader, err);
    overhead.bytes += loader_sizes_bytes(loader);
    status = comm_agree(device->comm, status, err);
    if (status == PLIM_OK) status = runtime_ask(rt, device, job, overhead, err);
    if (status == PLIM_OK) status = comm_agree(device->comm, make_again(rt, k, err), err);
    if (status == PLIM_OK) status = runtime_same_plan(rt, &rt->plan, err);
    if (status != PLIM_OK) return status;
    rt->arena = rt->plan.layout.arena_bytes;
    rt->state = RUNTIME_PLANNED;
    return PLIM_OK;
}
