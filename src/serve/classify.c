/* classify.c - see classify.h. */
#include "serve/classify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const label_function_names[LABEL_FUNCTIONS + 1] = {"default", "sigmoid", "softmax", "none", NULL};

static enum plim_status number_names(struct classifier *c, struct plim_error *err)
{
    for (int64_t i = 0; i < c->spec->num_labels; i++) {
        char name[32];
        int len = snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        const char *kept = bump_copy(&c->names.store, name, (size_t)len);
        if (!kept || !string_list_add(&c->names.store, &c->names.list, kept))
            return plim_fail(err, PLIM_NO_MEMORY, "out of memory for labels");
    }
    return PLIM_OK;
}

enum plim_status classifier_open(struct classifier *c, const char *dir, const struct model_spec *spec,
                                 const struct tokenizer *tok, struct plim_error *err)
{
    *c = (struct classifier){.spec = spec, .tok = tok};
    if (!model_has_labels(spec)) return plim_fail(err, PLIM_UNSUPPORTED, "%s: the model has no labels", dir);
    enum plim_status status = labels_load(dir, &c->names, err);
    if (status == PLIM_OK && !c->names.list.count) status = number_names(c, err);
    if (status != PLIM_OK) classifier_close(c);
    return status;
}

void classifier_close(struct classifier *c) { labels_release(&c->names); }

static enum label_function usual(const struct model_spec *spec)
{
    if (spec->problem == PROBLEM_REGRESSION) return FUNCTION_NONE;
    return spec->problem == PROBLEM_MULTI_LABEL || spec->num_labels == 1 ? FUNCTION_SIGMOID
                                                                         : FUNCTION_SOFTMAX;
}

void classifier_scores(const struct classifier *c, enum label_function function, float *logits)
{
    size_t n = (size_t)c->spec->num_labels;
    if (function == FUNCTION_DEFAULT) function = usual(c->spec);
    if (function == FUNCTION_SOFTMAX) scores_softmax(logits, n);
    for (size_t i = 0; i < n && function == FUNCTION_SIGMOID; i++)
        logits[i] = (float)(1 / (1 + exp(-(double)logits[i])));
}

size_t classifier_best(const struct classifier *c, const float *scores)
{
    size_t best = 0;
    for (size_t i = 1; i < (size_t)c->spec->num_labels; i++)
        if (scores[i] > scores[best]) best = i;
    return best;
}

/* The label that comes after `last` in the order of scores, of equal ones by number. -1: the first of all. */
static int64_t next_best(const struct classifier *c, const float *scores, int64_t last)
{
    int64_t next = -1;
    for (int64_t i = 0; i < c->spec->num_labels; i++) {
        bool after = last < 0 || scores[i] < scores[last] || (!(scores[i] > scores[last]) && i > last);
        if (after && (next < 0 || scores[i] > scores[next])) next = i;
    }
    return next;
}

void classifier_write_labels(const struct classifier *c, const float *scores, int64_t top, const char *key,
                             struct json_writer *w)
{
    int64_t label = -1, count = top > 0 && top < c->spec->num_labels ? top : c->spec->num_labels;
    json_begin_array(w, key);
    for (int64_t i = 0; i < count && (label = next_best(c, scores, label)) >= 0; i++) {
        json_begin_object(w, NULL);
        json_str(w, "label", c->names.list.items[label]);
        json_float(w, "score", scores[label]);
        json_end_object(w);
    }
    json_end_array(w);
}

void classifier_write_entity(const struct entity_list *list, size_t i, enum aggregation aggregation,
                             struct json_writer *w)
{
    const struct entity *e = &list->items[i];
    json_begin_object(w, NULL);
    json_str(w, aggregation == AGGREGATE_NONE ? "entity" : "entity_group", e->name);
    json_float(w, "score", e->score);
    if (aggregation == AGGREGATE_NONE) json_uint(w, "index", e->index);
    json_strn(w, "word", strbuf_text(&list->words) + e->word_at, e->word_len);
    json_uint(w, "start", e->begin);
    json_uint(w, "end", e->end);
    json_end_object(w);
}

struct entity_how classifier_how(const struct classifier *c, enum aggregation aggregation,
                                 const struct string_list *ignored)
{
    static const char *const outside[] = {"O"};
    return (struct entity_how){.tok = c->tok,
                               .aggregation = aggregation,
                               .labels = c->names.list.items,
                               .nlabels = (size_t)c->spec->num_labels,
                               .ignored = ignored ? ignored->items : outside,
                               .nignored = ignored ? ignored->count : 1};
}
