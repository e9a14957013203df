/* run_start.c - see run_start.h. */
#include "train/run_start.h"
#include "base/nearest.h"
#include "base/schema_value.h"
#include "train/run_facts.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MANIFEST    "manifest"
#define MICRO_BATCH "training.micro_batch_size"
#define LOSS_CHUNKS "training.loss_chunks"

/* One comparison of a checkpoint with the job that wants to go on from it. */
struct comparison {
    struct run_start *start;
    const struct run_options *options;
    char key[96], then[160], now[160]; /* the first difference that nobody accepted */
    struct strbuf others;              /* the keys of the rest of them */
    int count;
    bool shapes; /* one of them cannot be accepted */
};

static bool accepted(const struct run_options *options, const char *key)
{
    for (size_t i = 0; options->changes && i < options->changes->count; i++) {
        if (!strcmp(run_fact_name(options->changes->items[i]), key)) return true;
    }
    return false;
}

static void differ(struct comparison *c, const char *key, const char *then, const char *now)
{
    if (accepted(c->options, key) && !run_fact_shapes(key)) {
        strbuf_addf(&c->start->notes, "changed: %s was %s, is %s\n", key, then, now);
        c->start->order_changed |= run_fact_orders(key);
        return;
    }
    c->shapes |= run_fact_shapes(key);
    if (c->count++ == 0) {
        snprintf(c->key, sizeof c->key, "%s", key);
        snprintf(c->then, sizeof c->then, "%s", then);
        snprintf(c->now, sizeof c->now, "%s", now);
    } else {
        strbuf_addf(&c->others, "%s%s", c->others.len ? ", " : "", key);
    }
}

/* A key that is newer than the checkpoint, at the value that did not change what was there before. */
static bool is_news(const struct job *defaults, const struct node *then, const struct node *now)
{
    const struct schema_row *row = schema_find(&job_schema, now->key);
    STRBUF_AUTO value = STRBUF_INIT;
    if (!row || node_get(then, now->key)) return false;
    schema_exact(row, defaults, &value);
    return !strcmp(strbuf_text(&value), now->as.string.text);
}

static void compare_facts(struct comparison *c, const struct job *defaults, const struct node *then,
                          const struct node *now)
{
    for (size_t i = 0; i < node_count(now); i++) {
        const struct node *n = node_item(now, i);
        const char *was = node_string(node_get(then, n->key), "not recorded");
        if (is_news(defaults, then, n)) continue;
        bool free = !node_get(then, n->key) && !strcmp(n->as.string.text, "any"); /* decides nothing */
        if (!free && strcmp(was, n->as.string.text)) differ(c, n->key, was, n->as.string.text);
    }
    for (size_t i = 0; i < node_count(then); i++) {
        const struct node *t = node_item(then, i);
        if (!node_get(now, t->key)) differ(c, t->key, node_string(t, "?"), "absent");
    }
}

/* A pin of the job against what the checkpoint was made with. */
static void compare_pin(struct comparison *c, const char *key, int64_t then, bool given, int64_t now)
{
    char was[32], is[32];
    if (!given || then == now || then <= 0) return;
    snprintf(was, sizeof was, "%lld", (long long)then);
    snprintf(is, sizeof is, "%lld", (long long)now);
    differ(c, key, was, is);
}

static enum plim_status refuse(const struct comparison *c, const struct job *job, struct plim_error *err)
{
    char others[400] = "";
    const char *path = checkpoint_path(c->start->saved);
    if (c->count > 1)
        snprintf(others, sizeof others, " (and %d more: %.360s)", c->count - 1, strbuf_text(&c->others));
    if (c->shapes)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: %s is of another model: %s was %s, is %s%s; fix the config or choose another "
                         "output.dir",
                         job->name, path, c->key, c->then, c->now, others);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: %s was made with other settings: %s was %s, is %s%s; restore it, accept it with "
                     "--resume --change %s, or choose another output.dir",
                     job->name, path, c->key, c->then, c->now, others, c->key);
}

static enum plim_status compare(struct run_start *s, const struct job *job, const struct run_options *options,
                                struct plim_error *err)
{
    const struct node *manifest = checkpoint_manifest(s->saved);
    struct comparison c = {.start = s, .options = options, .others = STRBUF_INIT};
    const struct job_training *t = &job->training;
    struct job defaults;
    job_init(&defaults);
    enum plim_status status = schema_defaults(&job_schema, &defaults, &defaults.store, err);
    if (status == PLIM_OK) compare_facts(&c, &defaults, node_get(manifest, "run"), &s->facts->root);
    job_release(&defaults);
    if (status != PLIM_OK) return status;
    bool pairs = job_whole_passes(job); /* what a sample is compared with decides its loss */
    compare_pin(&c, MICRO_BATCH, node_int(node_path(manifest, "knobs.micro_batch"), 0),
                pairs || job_given(job, &t->micro_batch), pairs ? t->batch_size : t->micro_batch);
    if (t->grad_type)
        compare_pin(&c, LOSS_CHUNKS, node_int(node_path(manifest, "knobs.loss_chunks"), 0),
                    job_given(job, &t->loss_chunks), t->loss_chunks);
    if (c.count) status = refuse(&c, job, err);
    strbuf_release(&c.others);
    return status;
}

/* A change that names nothing would be a misspelt one. */
static enum plim_status check_names(const struct run_start *s, const struct run_options *options,
                                    struct plim_error *err)
{
    for (size_t i = 0; options->changes && i < options->changes->count; i++) {
        const char *name = options->changes->items[i];
        const char *key = run_fact_name(name);
        bool row = schema_find(&job_schema, name);
        if (!strcmp(key, MANIFEST) || !strcmp(key, MICRO_BATCH) || !strcmp(key, LOSS_CHUNKS) ||
            node_get(&s->facts->root, key))
            continue;
        struct nearest near = nearest_begin(name);
        for (size_t k = 0; k < node_count(&s->facts->root); k++)
            nearest_offer(&near, node_item(&s->facts->root, k)->key);
        return plim_fail(err, PLIM_BAD_INPUT, "--change %s: %s%s%s", name,
                         row ? "not needed: the key does not affect the result" : "no such key",
                         near.best && !row ? "; did you mean " : "", near.best && !row ? near.best : "");
    }
    return PLIM_OK;
}

/* From the newest checkpoint, if there is one. */
static enum plim_status go_on(struct run_start *s, const struct job *job, const struct device *device,
                              const struct run_options *options, struct plim_error *err)
{
    enum plim_status status = check_names(s, options, err);
    if (status == PLIM_OK) status = checkpoint_find(job->output_dir, device->comm, &s->saved, err);
    if (status != PLIM_OK || !s->saved) return status;
    const struct node *manifest = checkpoint_manifest(s->saved);
    s->free_micro_batch = accepted(options, MICRO_BATCH);
    s->free_loss_chunks = accepted(options, LOSS_CHUNKS);
    if (!manifest && accepted(options, MANIFEST)) return PLIM_OK;
    if (!manifest)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: was saved by an earlier version without a manifest, so it cannot be verified; "
                         "continue from it with --resume --change manifest",
                         checkpoint_path(s->saved));
    s->now = node_int(node_get(manifest, "now"), s->now);
    const char *machine = node_string(node_get(manifest, "machine"), "");
    if (strcmp(machine, device->facts.name))
        strbuf_addf(&s->notes, "the checkpoint was made on %s: losses may differ in the last digits\n",
                    machine);
    return compare(s, job, options, err);
}

/* Old checkpoints would win over the new run's wherever the newest one is asked for. */
static enum plim_status check_used(struct run_start *s, const struct job *job,
                                   const struct run_options *options, struct plim_error *err)
{
    char path[512];
    int64_t step = checkpoint_newest(job->output_dir, path, sizeof path);
    if (!options->saves || step == 0) return PLIM_OK;
    s->replaces = options->overwrite;
    if (s->replaces) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: key 'output.dir': %s has a run's checkpoints, up to step %lld; continue with "
                     "--resume, replace them with --overwrite, or choose another folder",
                     job->name, job->output_dir, (long long)step);
}

enum plim_status run_start_begin(struct run_start *s, const struct job *job, const struct job_length *length,
                                 const struct corpus *corpus, const struct device *device,
                                 const struct run_options *options, struct plim_error *err)
{
    *s = (struct run_start){.lock = RUN_LOCK_NONE, .notes = STRBUF_INIT};
    bool locks = options->saves && job->rank == 0;
    enum plim_status status = locks ? run_lock_take(&s->lock, job->output_dir, err) : PLIM_OK;
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s", job->name);
        return status;
    }
    if (locks && !s->lock.held)
        strbuf_addf(&s->notes, "%s: its file system has no locks: keep other runs out of it\n",
                    job->output_dir);
    if (corpus->chat) s->now = (int64_t)time(NULL);
    if (!options->resume) status = check_used(s, job, options, err);
    if (status == PLIM_OK) status = run_facts_make(job, length, corpus, device, &s->facts, err);
    if (status == PLIM_OK && options->resume) status = go_on(s, job, device, options, err);
    return status;
}

void run_start_end(struct run_start *s)
{
    checkpoint_close(s->saved);
    doc_free(s->facts);
    strbuf_release(&s->notes);
    run_lock_release(&s->lock);
    *s = (struct run_start){.lock = RUN_LOCK_NONE};
}

void run_start_pins(const struct run_start *s, const struct job *job, struct knobs *pins)
{
    const struct node *manifest = s->saved ? checkpoint_manifest(s->saved) : NULL;
    const struct job_training *t = &job->training;
    int64_t rows = node_int(node_path(manifest, "knobs.micro_batch"), 0);
    int64_t chunks = node_int(node_path(manifest, "knobs.loss_chunks"), 0);
    knobs_open(pins);
    if (job_whole_passes(job)) rows = 0; /* its batch is always whole */
    if (rows > 0 && job_rows(job) % rows == 0 && !job_given(job, &t->micro_batch) && !s->free_micro_batch)
        pins->micro_batch = rows;
    if (chunks > 0 && t->grad_type && !job_given(job, &t->loss_chunks) && !s->free_loss_chunks)
        pins->loss_chunks = chunks;
}
