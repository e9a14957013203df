/* labels.c - the names of a job's labels: from data.labels, from the config.json of a model that has them, or all that the
 * training data have, sorted by name as reference scripts do. Data that number their labels get the names that
 * transformers gives: LABEL_0 and so on. */
#include "job/job.h"
#include "base/json.h"
#include "data/json_fields.h"
#include "data/lines.h"
#include "model/labels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MEMORY 64 /* of a list's bytes, as record_parts.c has it */
#define LIST_FIXED  ((size_t)64 << 10)
#define MOST_LABELS 65536

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for labels");
}

static bool add_name(struct job *job, struct string_list *list, const char *name)
{
    name = bump_copy(&job->store, name, strlen(name));
    return name && string_list_add(&job->store, list, name);
}

/* --- from the data ------------------------------------------------------------------------------------------------ */

struct gathering {
    struct job *job;
    struct string_list names; /* sorted */
    int64_t numbers;          /* one more than the largest */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum plim_status gather_one(struct gathering *g, const struct node *label, struct plim_error *err)
{
    int64_t number;
    if (label->kind == NODE_STRING) {
        const char *name = label->as.string.text;
        struct string_list *all = &g->names;
        if (all->count && bsearch(&name, all->items, all->count, sizeof *all->items, by_name)) return PLIM_OK;
        if (all->count >= MOST_LABELS)
            return plim_fail(err, PLIM_BAD_INPUT, "there are more than %d labels; is this the right field?",
                             MOST_LABELS);
        if (!add_name(g->job, all, name)) return no_memory(err);
        qsort(all->items, all->count, sizeof *all->items, by_name);
        return PLIM_OK;
    }
    if (!node_is_whole(label, &number) || number >= MOST_LABELS)
        return plim_fail(err, PLIM_BAD_INPUT, "a label is neither a name nor a small whole number");
    if (number >= g->numbers) g->numbers = number + 1;
    return PLIM_OK;
}

static enum plim_status gather_line(struct gathering *g, const struct line *line, struct plim_error *err)
{
    const char *second = g->job->data.second_field;
    bool named = second && *second;
    struct json_field fields[] = {{.name = named ? second : "labels"}, {.name = named ? second : "ner_tags"}};
    struct json_problem problem;
    struct doc *doc = NULL;
    if (!json_fields(line->text, line->len, fields, 2, &problem))
        return plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    const struct json_field *f = &fields[fields[0].kind == JSON_ABSENT];
    if (f->kind != JSON_LIST)
        return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not a list of labels", fields[0].name,
                         json_kind_name(f->kind));
    struct quota quota = {.most = LIST_MEMORY * f->len + LIST_FIXED,
                          .why = "the memory for a record's labels"};
    enum plim_status status = json_parse_record(f->at, f->len, f->name, &quota, &doc, err);
    for (size_t i = 0; status == PLIM_OK && i < node_count(&doc->root); i++)
        status = gather_one(g, node_item(&doc->root, i), err);
    doc_free(doc);
    return status;
}

static enum plim_status gather_lines(struct gathering *g, struct plim_error *err)
{
    const struct job *job = g->job;
    struct lines *lines = NULL;
    struct line line;
    enum plim_status status = lines_open(job->train.items, (int)job->train.count, job->data.format,
                                         (size_t)job->data.max_line_bytes, &lines, err);
    if (status != PLIM_OK) return status;
    while ((status = lines_next(lines, &line, err)) == PLIM_OK && line.text) {
        if (!line.len) continue;
        status = gather_line(g, &line, err);
        if (status == PLIM_BAD_INPUT && job->data.skip_bad) continue;
        if (status == PLIM_BAD_INPUT)
            plim_error_prefix(err, "%s:%llu", line.path, (unsigned long long)line.number);
        if (status != PLIM_OK) break;
    }
    lines_close(lines);
    return status;
}

/* transformers' own names. */
static enum plim_status number_names(struct job *job, int64_t count, struct string_list *out,
                                     struct plim_error *err)
{
    char name[32];
    for (int64_t i = 0; i < count; i++) {
        snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        if (!add_name(job, out, name)) return no_memory(err);
    }
    return PLIM_OK;
}

static enum plim_status gather(struct job *job, struct string_list *out, struct plim_error *err)
{
    struct gathering g = {.job = job};
    enum plim_status status = job->train.count ? gather_lines(&g, err) : PLIM_OK;
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s: the label names are read from data.train; fix it, or write data.labels",
                          job->name);
        return status;
    }
    if (g.numbers && g.names.count)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'data.train': some labels are names and some are numbers; write data.labels "
            "in the order of the numbers",
            job->name);
    if (g.numbers) return number_names(job, g.numbers, out, err);
    *out = g.names;
    return PLIM_OK;
}

/* --- and from the model ------------------------------------------------------------------------------------------- */

static enum plim_status check_same(const struct job *job, const struct string_list *own,
                                   struct plim_error *err)
{
    const struct string_list *asked = &job->data.labels;
    if (asked->count != own->count)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'data.labels': %zu names, but %s/config.json has %zu labels; remove the key, "
            "or take a model without a label head",
            job->name, asked->count, job->model.path, own->count);
    for (size_t i = 0; i < own->count; i++)
        if (strcmp(asked->items[i], own->items[i]) && strncmp(own->items[i], "LABEL_", 6))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key 'data.labels': label %zu is '%s', but %s/config.json has '%s'; remove "
                             "the key or write the same order",
                             job->name, i, asked->items[i], job->model.path, own->items[i]);
    return PLIM_OK;
}

/* Names that a model has; without any, numbers. */
static enum plim_status names_of_model(struct job *job, struct string_list *out, struct plim_error *err)
{
    struct label_names names;
    enum plim_status status = labels_load(job->model.path, &names, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < names.list.count && status == PLIM_OK; i++)
        if (!add_name(job, out, names.list.items[i])) status = no_memory(err);
    labels_release(&names);
    if (status == PLIM_OK && !out->count) status = number_names(job, job->spec.num_labels, out, err);
    if (status == PLIM_OK && job->data.labels.count) status = check_same(job, out, err);
    return status;
}

static enum plim_status check_names(const struct job *job, struct plim_error *err)
{
    const struct string_list *l = &job->data.labels;
    if (l->count < 2)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'data.labels': %s; write all names, e.g. [O, B-PER, I-PER]", job->name,
                         l->count ? "there must be at least two labels" : "there are no labels");
    for (size_t i = 0; i < l->count; i++)
        for (size_t k = i + 1; k < l->count; k++)
            if (!strcmp(l->items[i], l->items[k]))
                return plim_fail(err, PLIM_BAD_INPUT, "%s: key 'data.labels': '%s' occurs twice", job->name,
                                 l->items[i]);
    return PLIM_OK;
}

enum plim_status job_settle_labels(struct job *job, bool of_model, struct plim_error *err)
{
    struct string_list names = {0};
    enum plim_status status = PLIM_OK;
    if (of_model && job->model.path)
        status = names_of_model(job, &names, err);
    else if (!job->data.labels.count)
        status = gather(job, &names, err);
    if (status != PLIM_OK) return status;
    if (!job->data.labels.count) job->data.labels = names;
    status = check_names(job, err);
    job->spec.num_labels = (int64_t)job->data.labels.count, job->spec.labels = job->data.labels.items;
    return status;
}
