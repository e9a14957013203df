/* corpus_remedies.c - when nothing fits: a data loader whose keys are changed. See corpus.h.
 *
 * job_plan has already made the loader as small as its open keys allow. What is left changes a key that was given, the
 * order of rows, or what is accepted. A change is measured on the data as they are, and offered when the smallest plan
 * fits with what it saves. */
#include "train/corpus.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *value, *cost;
} rows[] = {
    {"data.prefetch_factor", "1", "less is read ahead"},
    {"data.workers", "0", "training waits for reading and tokenising"},
    {"data.shuffle_bytes", "64KiB", "rows in another order, shuffled in smaller blocks"},
    {"data.shuffle_buffer", "256", "rows in another order, fewer shuffled together"},
    {"data.max_line_bytes", "64KiB", "longer lines are refused"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* What the loader gives up after the changes in `which`, by bit; 0: nothing. */
static int64_t saved_by(const struct job *job, unsigned which)
{
    struct job changed = *job;
    struct origin_recorder recorder;
    changed.store = (struct bump){0};
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < ROWS && status == PLIM_OK; i++)
        if (which >> i & 1)
            status = schema_set(&job_schema, rows[i].key, rows[i].value, &changed, &changed.store,
                                origin_record(&recorder, &changed, ORIGIN_SET, NULL), NULL);
    bool missing;
    changed.loader_bytes = INT64_MAX;
    if (status == PLIM_OK) corpus_measure(&changed, false, &missing, NULL);
    bump_free(&changed.store);
    /* Counted even where a line turns out to be too long for it. */
    return changed.loader_bytes < job->loader_bytes ? job->loader_bytes - changed.loader_bytes : 0;
}

static void put_first(struct plan_report *report, int at, const struct remedy *remedy)
{
    if (report->nremedies == REMEDIES_MAX) report->nremedies--;
    memmove(&report->remedies[at + 1], &report->remedies[at],
            (size_t)(report->nremedies - at) * sizeof *remedy);
    report->remedies[at] = *remedy;
    report->nremedies++;
}

static bool offer(struct plan_report *report, int at, unsigned which, int64_t saved)
{
    const struct plan *p = report->plan;
    bool on_device = report->request->facts->unified_memory;
    struct remedy r = {.step_seconds = p->step_seconds};
    size_t used = 0;
    r.total = p->total - (on_device ? saved : 0), r.host = p->host - saved;
    if (saved <= 0 || !plan_within(report->request, r.total, r.host)) return false;
    for (int i = 0; i < ROWS; i++) {
        if (!(which >> i & 1)) continue;
        if (used < sizeof r.cost)
            used +=
                (size_t)snprintf(r.cost + used, sizeof r.cost - used, "%s%s", used ? "; " : "", rows[i].cost);
        r.keys[r.nkeys].key = rows[i].key;
        snprintf(r.keys[r.nkeys].value, sizeof r.keys[0].value, "%s", rows[i].value);
        r.nkeys++;
    }
    put_first(report, at, &r);
    return true;
}

/* Each alone; where none is enough, one more after the other. */
void corpus_remedies(struct plan_report *report)
{
    int count = 0;
    unsigned useful = 0;
    if (report->plan->fits) return;
    for (int i = 0; i < ROWS; i++) {
        int64_t saved = saved_by(report->job, 1u << i);
        if (saved > 0) useful |= 1u << i;
        count += offer(report, count, 1u << i, saved);
    }
    for (int i = 0; i < ROWS && count == 0; i++) {
        unsigned which = useful & ((2u << i) - 1);
        if (useful >> i & 1 && which & (which - 1))
            count += offer(report, 0, which, saved_by(report->job, which));
    }
}
