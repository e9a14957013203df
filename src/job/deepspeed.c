/* deepspeed.c - see deepspeed.h. First every key of the file is looked for in the table (deepspeed_keys.c), so that a misspelt
 * one is an error before anything acts; then the rows act in the table's order, through our own keys and their checks. */
#include "job/deepspeed.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/schema_value.h"
#include "job/deepspeed_keys.h"
#include "job/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char section[] = "training.deepspeed.";

struct deepspeed_reading {
    struct job *job;
    const struct node *root;
    const char *name, *prefix; /* prefix: of keys, where they stand in a job file */
    const struct schema_listener *notes;
    bool *mine; /* by row of job_schema: given by this file */
    struct plim_error *err;
    struct strbuf *refused; /* NULL: the first refusal ends the reading */
    int *refusals;
};

/* The status to go on with after one key. */
static enum plim_status after_key(const struct deepspeed_reading *r, enum plim_status status)
{
    if (status == PLIM_OK || status == PLIM_NO_MEMORY || !r->refused) return status;
    strbuf_addf(r->refused, "%s\n", r->err->text);
    ++*r->refusals;
    return PLIM_OK;
}

/* ---- the table ---- */

static const struct deepspeed_row *find_row(const char *path)
{
    for (size_t i = 0; i < deepspeed_row_count; i++)
        if (!strcmp(deepspeed_rows[i].theirs, path)) return &deepspeed_rows[i];
    return NULL;
}

static bool is_section(const char *path)
{
    size_t len = strlen(path);
    for (size_t i = 0; i < deepspeed_row_count; i++)
        if (!strncmp(deepspeed_rows[i].theirs, path, len) && deepspeed_rows[i].theirs[len] == '.')
            return true;
    return false;
}

bool deepspeed_marks(const struct node *root)
{
    static const char *const marks[] = {"zero_optimization", "train_micro_batch_size_per_gpu",
                                        "train_batch_size", "zero_allow_untested_optimizer"};
    bool found = false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) found = found || node_get(root, marks[i]);
    return found && !node_get(root, "output_dir") && !node_get(root, "per_device_train_batch_size");
}

bool deepspeed_owns(const char *path, const struct node *node)
{
    size_t len = sizeof section - 1;
    if (strncmp(path, section, len)) return false;
    bool theirs = find_row(path + len) || is_section(path + len);
    return theirs && (node->kind == NODE_MAP || !schema_find(&job_schema, path));
}

/* ---- saying it ---- */

static const char *where_of(const struct deepspeed_reading *r, int line, char *buf, size_t size)
{
    if (line)
        snprintf(buf, size, "%.200s:%d", r->name, line);
    else
        snprintf(buf, size, "default of DeepSpeed");
    return buf;
}

/* "ds.json:3: optimizer.type: Lamb: why" */
static enum plim_status refuse(const struct deepspeed_reading *r, const struct deepspeed_row *row,
                               const struct node *value, const char *why)
{
    STRBUF_AUTO text = STRBUF_INIT, shown = STRBUF_INIT;
    char where[256];
    json_plain(&text, value);
    origin_put_comment(&shown, strbuf_text(&text), text.len);
    return plim_fail(r->err, PLIM_UNSUPPORTED, "%s: %s%s: %.80s%s is not possible: %s",
                     where_of(r, value->line, where, sizeof where), r->prefix, row->theirs,
                     strbuf_text(&shown), shown.len > 80 ? "..." : "", why);
}

static enum plim_status wrong(const struct deepspeed_reading *r, const struct deepspeed_row *row,
                              const struct node *value, const char *expected)
{
    STRBUF_AUTO number = STRBUF_INIT;
    char where[256];
    bool is_number = value->kind == NODE_INT || value->kind == NODE_FLOAT; /* it is beyond its range */
    if (is_number) json_plain(&number, value);
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s: %s%s: expected %s, found %s",
                     where_of(r, value->line, where, sizeof where), r->prefix, row->theirs, expected,
                     is_number ? strbuf_text(&number) : node_kind_name(value->kind));
}

static enum plim_status say(const struct deepspeed_reading *r, const struct deepspeed_row *row,
                            const struct node *value, const char *text)
{
    char where[256], path[160];
    snprintf(path, sizeof path, "%s%s", r->prefix, row->theirs);
    if (r->notes && r->notes->say)
        r->notes->say(r->notes->arg, where_of(r, value->line, where, sizeof where), path, text);
    return PLIM_OK;
}

/* ---- unknown keys ---- */

/* The section that a row is in, or itself. */
static void offer_section(struct nearest *near, const char *theirs, char *buf, size_t size)
{
    int before = near->distance;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(theirs, "."), theirs);
    nearest_offer(near, name);
    if (near->distance < before) snprintf(buf, size, "%s", name);
}

static enum plim_status unknown(const struct deepspeed_reading *r, const char *path, const struct node *value)
{
    struct nearest near = nearest_begin(path), whole = nearest_begin(path);
    STRBUF_AUTO shown = STRBUF_INIT;
    char where[256], part[64] = "";
    for (size_t i = 0; i < deepspeed_row_count; i++) {
        nearest_offer(&whole, deepspeed_rows[i].theirs);
        offer_section(&near, deepspeed_rows[i].theirs, part, sizeof part);
    }
    const char *best = whole.best ? whole.best : *part ? part : NULL;
    origin_put_comment(&shown, path, strlen(path)); /* one line, whatever the file holds */
    enum plim_status status =
        plim_fail(r->err, PLIM_BAD_INPUT, "%s: unknown key '%s%.120s' of DeepSpeed's%s%s%s",
                  where_of(r, value->line, where, sizeof where), r->prefix, strbuf_text(&shown),
                  best ? "; did you mean '" : "; remove it", best ? best : "", best ? "'?" : "");
    return status;
}

/* Names that begin with a low line are comments. */
static enum plim_status check_keys(const struct deepspeed_reading *r, const struct node *map,
                                   const char *above)
{
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < node_count(map) && status == PLIM_OK; i++) {
        const struct node *child = node_item(map, i);
        char path[200], where[256];
        snprintf(path, sizeof path, "%.100s%s%.90s", above, *above ? "." : "", child->key);
        if (child->key[0] == '_' || find_row(path)) continue;
        if (*r->prefix && !*above) {
            char full[256];
            snprintf(full, sizeof full, "%s%s", r->prefix, path);
            if (!deepspeed_owns(full, child)) continue; /* ours, and read with the job */
        }
        if (!is_section(path))
            status = unknown(r, path, child);
        else if (child->kind == NODE_MAP)
            status = check_keys(r, child, path);
        else if (child->kind != NODE_NULL)
            status = plim_fail(
                r->err, PLIM_BAD_INPUT, "%s: %s%s: expected a section with keys of its own, found a %s",
                where_of(r, child->line, where, sizeof where), r->prefix, path, node_kind_name(child->kind));
        status = after_key(r, status);
    }
    return status;
}

/* ---- setting a key of ours ---- */

static enum plim_status contradict(const struct deepspeed_reading *r, const char *label, const char *ours,
                                   const char *theirs_is, const struct origin *said, const char *is)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s is %s, but %s gives %s %s, which means the same; keep one",
                     label, theirs_is, said->where, said->name ? said->name : ours, is);
}

/* Keeps the job file's value, which must agree. */
static enum plim_status put(struct deepspeed_reading *r, const struct deepspeed_row *from, int line,
                            const char *ours, const char *text)
{
    const struct schema_row *row = schema_find(&job_schema, ours);
    STRBUF_AUTO before = STRBUF_INIT, after = STRBUF_INIT;
    struct origin said = *job_origin(r->job, ours);
    bool by_job = said.kind >= ORIGIN_FILE && !r->mine[row - job_schema.rows];
    char where[256], label[420], name[160];
    where_of(r, line, where, sizeof where);
    snprintf(label, sizeof label, "%s: %s%s", where, r->prefix, from->theirs);
    snprintf(name, sizeof name, "%s%s", r->prefix, from->theirs);
    schema_exact(row, r->job, &before);
    enum plim_status status =
        schema_set_from(&job_schema, label, ours, text, r->job, &r->job->store, NULL, r->err);
    if (status == PLIM_OK) schema_exact(row, r->job, &after);
    if (status == PLIM_OK && by_job && strcmp(strbuf_text(&before), strbuf_text(&after)))
        status = contradict(r, label, ours, strbuf_text(&after), &said, strbuf_text(&before));
    if (status == PLIM_OK && !by_job) {
        job_origin_set_as(r->job, ours, ORIGIN_FILE, where, name);
        r->mine[row - job_schema.rows] = true;
    }
    return status;
}

static enum plim_status put_number(struct deepspeed_reading *r, const struct deepspeed_row *from, int line,
                                   const char *ours, double number)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", number);
    return put(r, from, line, ours, text);
}

static enum plim_status set(struct deepspeed_reading *r, const struct deepspeed_row *row,
                            const struct node *value)
{
    struct strbuf text = STRBUF_INIT;
    if (value->kind == NODE_LIST || value->kind == NODE_MAP) return wrong(r, row, value, "a single value");
    const struct origin *said = job_origin(r->job, row->ours);
    if (row->yields && said->kind >= ORIGIN_FILE)
        return say(r, row, value, "the job says how often steps are told");
    json_plain(&text, value);
    for (size_t i = 0; i < text.len; i++) /* errors repeat it, on one line */
        if ((unsigned char)text.data[i] < ' ') return strbuf_release(&text), wrong(r, row, value, "one word");
    enum plim_status status = put(r, row, value->line, row->ours, strbuf_text(&text));
    strbuf_release(&text);
    return status;
}

static enum plim_status note_auto(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                  const struct node *value)
{
    struct job *job = r->job;
    char where[256], name[160];
    if (!job->autos) job->autos = bump_alloc(&job->store, sizeof *job->autos);
    if (!job->autos || job->autos->count == DEEPSPEED_AUTOS) return PLIM_OK;
    where_of(r, value->line, where, sizeof where);
    snprintf(name, sizeof name, "%s%s", r->prefix, row->theirs);
    struct deepspeed_auto one = {bump_copy(&job->store, name, strlen(name)),
                                 bump_copy(&job->store, where, strlen(where)), row->ours};
    if (one.theirs && one.where) job->autos->items[job->autos->count++] = one;
    return PLIM_OK;
}

/* Nothing is asked for, or less than two parts of it; of a section with a switch, the switch is off. */
static bool is_below(const struct node *v, double parts)
{
    const struct node *on = node_get(v, "enabled");
    const char *text = node_string(v, "none");
    bool off = true;
    switch (v->kind) {
    case NODE_BOOL:
        return !v->as.boolean;
    case NODE_INT:
    case NODE_FLOAT:
        return node_float(v, 2) == 0 || node_float(v, 2) == parts - 1;
    case NODE_STRING:
        return !*text || !strcmp(text, "none") || !strcmp(text, "auto");
    default:
        if (on) return is_below(on, 1);
        for (size_t i = 0; i < node_count(v); i++) off = off && is_below(node_item(v, i), parts);
        return off;
    }
}

static bool is_off(const struct node *v) { return is_below(v, 1); }

/* ---- keys that are more than a value ---- */

struct word {
    const char *theirs, *ours;
};

static const char *translate(const struct word *words, const struct node *value)
{
    const char *text = node_string(value, "");
    while (words->theirs && strcasecmp(words->theirs, text)) words++;
    return words->ours;
}

enum plim_status deepspeed_optimizer(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                     const struct node *value)
{
    static const struct word words[] = {
        {"Adam", "adamw"},           {"AdamW", "adamw"},         {"SGD", "sgd"}, {"Adafactor", "adafactor"},
        {"adamw_8bit", "adamw8bit"}, {"AdamW8bit", "adamw8bit"}, {NULL, NULL}};
    const char *ours = translate(words, value);
    if (!ours) return refuse(r, row, value, "write AdamW, AdamW8bit, SGD or Adafactor");
    return put(r, row, value->line, row->ours, ours);
}

enum plim_status deepspeed_betas(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                 const struct node *value)
{
    const struct node *first = node_item(value, 0), *second = node_item(value, 1);
    double one = node_float(first, -1), two = node_float(second, -1);
    if (value->kind != NODE_LIST || node_count(value) != 2 || one < 0 || two < 0)
        return wrong(r, row, value, "two numbers, e.g. [0.9, 0.999]");
    enum plim_status status = put_number(r, row, value->line, "training.beta1", one);
    return status == PLIM_OK ? put_number(r, row, value->line, "training.beta2", two) : status;
}

enum plim_status deepspeed_scheduler(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                     const struct node *value)
{
    static const struct word words[] = {
        {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}, {NULL, NULL}};
    const char *ours = translate(words, value);
    if (!ours)
        return refuse(r, row, value,
                      "write WarmupLR, WarmupDecayLR or WarmupCosineLR, or remove the scheduler and write "
                      "training.lr_scheduler in the job");
    return put(r, row, value->line, row->ours, ours);
}

/* WarmupDecayLR falls to where it began. */
enum plim_status deepspeed_warmup_min(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                      const struct node *value)
{
    static const struct deepspeed_row floor = {"scheduler.params.warmup_min_lr", DS_SET, "training.min_lr"};
    const char *type = node_string(node_path(r->root, "scheduler.type"), "");
    enum plim_status status = set(r, row, value);
    return status == PLIM_OK && !strcasecmp(type, "WarmupDecayLR") ? set(r, &floor, value) : status;
}

static bool is_floor(const struct deepspeed_row *row) { return !strcmp(row->ours, "training.min_lr"); }

/* A share of the highest rate, which a flag may still change. */
enum plim_status deepspeed_ratio(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                 const struct node *value)
{
    struct job_wishes *w = &r->job->wishes;
    double share = node_float(value, -1);
    if (share < 0 || share > 1) return wrong(r, row, value, "a number from 0 to 1");
    *(is_floor(row) ? &w->min_lr_ratio : &w->warmup_min_ratio) = share;
    return put_number(r, row, value->line, row->ours, share * r->job->schedule.learning_rate);
}

/* Does the lowest rate, or that of the warmup, still have the value that its row gave it? */
static bool is_from(const struct job *job, bool floor)
{
    for (size_t i = 0; i < deepspeed_row_count; i++) {
        const struct deepspeed_row *row = &deepspeed_rows[i];
        if (row->own != deepspeed_ratio || is_floor(row) != floor) continue;
        const struct origin *o = job_origin(job, row->ours);
        size_t len = strlen(row->theirs), given = o->name ? strlen(o->name) : 0;
        return given >= len && !strcmp(o->name + given - len, row->theirs);
    }
    return false;
}

void deepspeed_settle_ratios(struct job *job)
{
    struct job_schedule *s = &job->schedule;
    const struct job_wishes *w = &job->wishes;
    if (is_from(job, true)) s->min_lr = w->min_lr_ratio * s->learning_rate;
    if (is_from(job, false)) s->warmup_min_lr = w->warmup_min_ratio * s->learning_rate;
}

/* Above 0 the scale is that number and stays. */
enum plim_status deepspeed_loss_scale(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                      const struct node *value)
{
    double scale = node_float(value, -1);
    if (scale < 0) return wrong(r, row, value, "a number, 0 for a scale that moves");
    if (scale == 0) return PLIM_OK;
    enum plim_status status = put_number(r, row, value->line, row->ours, scale);
    return status == PLIM_OK ? put(r, row, value->line, "training.loss_scale_window", "0") : status;
}

enum plim_status deepspeed_scale_power(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                       const struct node *value)
{
    int64_t power = node_int(value, -1);
    if (power < 0 || power > 29) return wrong(r, row, value, "a whole number from 0 to 29, e.g. 16");
    return put_number(r, row, value->line, row->ours, ldexp(1, (int)power));
}

enum plim_status deepspeed_offload(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                   const struct node *value)
{
    static const struct word words[] = {{"none", "none"}, {"cpu", "cpu"}, {"nvme", "nvme"}, {NULL, NULL}};
    const char *ours = translate(words, value);
    return ours ? put(r, row, value->line, row->ours, ours)
                : refuse(r, row, value, "write none, cpu or nvme");
}

enum plim_status deepspeed_old_offload(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                       const struct node *value)
{
    bool params = strstr(row->theirs, "params");
    const char *newer = params ? "zero_optimization.offload_param" : "zero_optimization.offload_optimizer";
    if (value->kind != NODE_BOOL) return wrong(r, row, value, "true or false");
    if (!value->as.boolean && node_path(r->root, newer)) return PLIM_OK; /* the newer word counts */
    return put(r, row, value->line, row->ours, value->as.boolean ? "cpu" : "none");
}

enum plim_status deepspeed_nvme_path(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                     const struct node *value)
{
    char device[96];
    snprintf(device, sizeof device, "%.*sdevice", (int)(strlen(row->theirs) - strlen("nvme_path")),
             row->theirs);
    if (value->kind != NODE_STRING || !*value->as.string.text) return wrong(r, row, value, "a folder");
    if (strcasecmp(node_string(node_path(r->root, device), ""), "nvme"))
        return say(r, row, value, "nothing of it is offloaded to disk");
    return put(r, row, value->line, row->ours, value->as.string.text);
}

enum plim_status deepspeed_monitor(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                   const struct node *value)
{
    const struct schema_row *ours = schema_find(&job_schema, row->ours);
    STRBUF_AUTO list = STRBUF_INIT;
    const struct node *on = node_get(value, "enabled");
    if (!on || is_off(on)) return PLIM_OK;
    if (r->mine[ours - job_schema.rows]) schema_value(ours, r->job, &list), strbuf_addc(&list, ',');
    strbuf_add(&list, row->theirs);
    return put(r, row, value->line, row->ours, strbuf_text(&list));
}

/* A switch: what it sets where it is on. */
enum plim_status deepspeed_switch(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                  const struct node *value)
{
    if (is_off(value)) return PLIM_OK;
    enum plim_status status = put(r, row, value->line, row->ours, row->on);
    bool masters = !strcmp(row->ours, "training.master_weights");
    return status == PLIM_OK && masters ? put(r, row, value->line, "training.grad_dtype", "bf16") : status;
}

/* ---- all of them ---- */

static enum plim_status fixed(struct deepspeed_reading *r, const struct deepspeed_row *row,
                              const struct node *value)
{
    struct strbuf text = STRBUF_INIT;
    json_plain(&text, value);
    bool good = !strcmp(strbuf_text(&text), row->fallback);
    strbuf_release(&text);
    return good ? PLIM_OK : refuse(r, row, value, row->text);
}

/* Is the section of a row there, on, and of the row's type? */
static bool is_on(const struct deepspeed_reading *r, const struct deepspeed_row *row)
{
    const struct node *top = node_get_n(r->root, row->theirs, strcspn(row->theirs, "."));
    if (!top || top->kind != NODE_MAP) return false;
    const struct node *type = node_get(top, "type"), *on = node_get(top, "enabled");
    if (row->of) return !strcasecmp(node_string(type, ""), row->of);
    if (!strncmp(row->theirs, "scheduler.", 10)) return type && type->kind == NODE_STRING;
    return !on || !is_off(on);
}

/* Applies DeepSpeed's default for a missing key, unless the job sets it. */
static enum plim_status take_default(struct deepspeed_reading *r, const struct deepspeed_row *row)
{
    struct node value = {.kind = NODE_STRING, .key = row->theirs};
    bool sets = row->how == DS_SET || (row->own == deepspeed_ratio && is_floor(row));
    if (!row->fallback || !sets || !is_on(r, row)) return PLIM_OK;
    if (job_origin(r->job, row->ours)->kind >= ORIGIN_FILE) return PLIM_OK;
    value.as.string.text = row->fallback, value.as.string.len = strlen(row->fallback);
    if (row->how == DS_SET) return set(r, row, &value);
    value = (struct node){.kind = NODE_FLOAT, .as.real = strtod(row->fallback, NULL)};
    return row->own(r, row, &value);
}

static enum plim_status act(struct deepspeed_reading *r, const struct deepspeed_row *row)
{
    const struct node *value = node_path(r->root, row->theirs);
    if (!value) return take_default(r, row);
    if (value->kind == NODE_NULL) return PLIM_OK;
    bool leaves_open = !strcmp(node_string(value, ""), "auto");
    if (leaves_open && row->ours) return note_auto(r, row, value);
    switch (row->how) {
    case DS_SET:
        return set(r, row, value);
    case DS_NEEDLESS:
        return say(r, row, value, row->text);
    case DS_OFF:
        return is_off(value) ? PLIM_OK : refuse(r, row, value, row->text);
    case DS_PARTS:
        return is_below(value, 2) ? PLIM_OK : refuse(r, row, value, row->text);
    case DS_FIXED:
        return leaves_open ? PLIM_OK : fixed(r, row, value);
    case DS_OWN:
        break;
    }
    return row->own(r, row, value);
}

static enum plim_status take(struct job *job, const struct node *root, const char *name, const char *prefix,
                             const struct schema_listener *notes, struct strbuf *refused, int *refusals,
                             struct plim_error *err)
{
    struct deepspeed_reading r = {job, root, name, prefix, notes, NULL, err, refused, refusals};
    if (root->kind != NODE_MAP)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: expected DeepSpeed's keys and values, found a %s", name,
                         root->line, node_kind_name(root->kind));
    r.mine = bump_alloc(&job->store, job_schema.count * sizeof *r.mine);
    if (!r.mine) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    enum plim_status status = check_keys(&r, root, "");
    for (size_t i = 0; i < deepspeed_row_count && status == PLIM_OK; i++)
        status = after_key(&r, act(&r, &deepspeed_rows[i]));
    return status;
}

enum plim_status deepspeed_take(struct job *job, const struct node *root, const char *name,
                                const char *prefix, const struct schema_listener *notes,
                                struct plim_error *err)
{
    return take(job, root, name, prefix, notes, NULL, NULL, err);
}

enum plim_status deepspeed_take_all(struct job *job, const struct node *root, const char *name,
                                    const struct schema_listener *notes, struct strbuf *refused,
                                    int *refusals, struct plim_error *err)
{
    return take(job, root, name, "", notes, refused, refusals, err);
}

enum plim_status deepspeed_load(struct job *job, const char *path, const struct schema_listener *notes,
                                struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = json_load(path, &doc, err);
    if (status != PLIM_OK) return status == PLIM_IO ? (err->status = PLIM_BAD_INPUT) : status;
    status = deepspeed_take(job, &doc->root, path, "", notes, err);
    doc_free(doc);
    return status;
}

void deepspeed_auto_text(const struct job *job, int ranks, struct strbuf *out)
{
    for (int i = 0; job->autos && i < job->autos->count; i++) {
        const struct deepspeed_auto *a = &job->autos->items[i];
        const struct schema_row *row = schema_find(&job_schema, a->ours);
        const struct origin *o = job_origin(job, a->ours);
        strbuf_addf(out, "%s, %s: auto is ", a->where, a->theirs);
        if (!strcmp(a->ours, "training.train_batch_size") && !job->training.total_batch) {
            strbuf_addf(out, "%lld, %lld of each of %d rank%s\n", (long long)(job_rows(job) * ranks),
                        (long long)job_rows(job), ranks, ranks == 1 ? "" : "s");
            continue;
        }
        if (o->kind == ORIGIN_DEFAULT && !row->fallback) {
            strbuf_add(out, "the planner's choice\n");
            continue;
        }
        schema_value(row, job, out);
        strbuf_addf(out, " (%s%s%s)\n", o->where, o->name ? ", as " : "", o->name ? o->name : "");
    }
}
