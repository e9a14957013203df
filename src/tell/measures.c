/* measures.c - see measures.h. */
#include "tell/measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void add(struct measures *m, const char *group, const char *name, double value)
{
    if (!isfinite(value) || m->count == MEASURES_MOST) return;
    struct measure *next = &m->at[m->count++];
    snprintf(next->name, sizeof next->name, "%s/%s", group, name);
    next->value = value;
}

static void add_router(struct measures *m, const struct train_event *e)
{
    if (!e->router) return;
    add(m, "train", "token_loss", e->token_loss);
    add(m, "train", "router_balance_loss", e->router->balance);
    add(m, "train", "router_z_loss", e->router->z);
}

struct sink {
    struct measures *measures;
    const char *group;
};

static void add_preference(void *arg, const char *name, double value)
{
    struct sink *s = arg;
    add(s->measures, s->group, name, value);
}

static void add_preferences(struct measures *m, const char *group, const struct preferences *p)
{
    if (p) preferences_each(p, add_preference, &(struct sink){m, group});
}

/* Adds the process's memory, the plan's memory, and the plan's peak by class. */
static void add_memory(struct measures *m, const struct train_event *e)
{
    const struct memory_summary *s = e->memory;
    add(m, "memory", "used", (double)e->used);
    add(m, "memory", "budget", (double)e->budget);
    if (e->monitor && e->monitor->gauges) add(m, "memory", "machine", (double)e->monitor->gauge[0].used);
    if (!s) return;
    add(m, "memory", "allocated", (double)s->allocated);
    add(m, "memory", "reserved", (double)s->reserved);
    for (int i = 0; i < CLASS_COUNT; i++)
        if (s->by_class[i]) add(m, "memory", tensor_class_name((enum tensor_class)i), (double)s->by_class[i]);
    add(m, "memory", "overhead", (double)s->overhead);
    if (s->host) add(m, "memory", "host", (double)s->host);
    if (s->disk) add(m, "memory", "disk", (double)s->disk);
}

static void add_step(struct measures *m, const struct train_event *e)
{
    add(m, "train", "loss", e->loss);
    add(m, "train", "learning_rate", e->lr);
    if (e->grad_norm >= 0) add(m, "train", "grad_norm", e->grad_norm);
    add(m, "train", "tokens_per_second", e->tokens_per_s);
    add(m, "train", "step_seconds", e->seconds);
    if (e->positions) add(m, "train", "padding", (double)e->padding / (double)e->positions);
    if (e->scale != 1) add(m, "train", "loss_scale", e->scale);
    if (e->plan) add(m, "train", "micro_batch", (double)e->plan->knobs.micro_batch);
    add_router(m, e);
    add_preferences(m, "train", e->preferences);
    add_memory(m, e);
}

static void add_eval(struct measures *m, const struct train_event *e)
{
    const struct scores *s = &e->scores;
    add(m, "eval", "loss", e->loss);
    if (s->kind <= SCORE_TOKENS) add(m, "eval", "perplexity", exp(e->loss));
    if (s->kind == SCORE_TOKENS) add(m, "eval", "accuracy", s->accuracy);
    if (s->kind == SCORE_ENTITIES) {
        add(m, "eval", "precision", s->entities.precision);
        add(m, "eval", "recall", s->entities.recall);
        add(m, "eval", "f1", s->entities.f1);
        add(m, "eval", "accuracy", s->entities.accuracy);
    }
    if (s->kind == SCORE_PAIRS) {
        add(m, "eval", "cosine", s->cosine);
        add(m, "eval", "retrieval_accuracy", s->retrieval);
    }
    if (s->kind == SCORE_PREFERENCES) add_preferences(m, "eval", &s->preferences);
    if (s->scored) add(m, "eval", "spearman", s->spearman), add(m, "eval", "pearson", s->pearson);
}

void measures_of(const struct train_event *event, struct measures *out)
{
    out->count = 0;
    if (event->kind == TRAIN_STEP) add_step(out, event);
    if (event->kind == TRAIN_EVAL) add_eval(out, event);
}

double measures_find(const struct measures *m, const char *name, double fallback)
{
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->at[i].name, name)) return m->at[i].value;
    return fallback;
}
