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
    size_t field; /* of struct loader_size */
    int64_t number;
} rows[] = {
    {"data.prefetch_factor", "1", "less is read ahead", offsetof(struct loader_size, pieces), 1},
    {"data.workers", "0", "training waits for reading and tokenising", offsetof(struct loader_size, workers),
     0},
    {"data.shuffle_bytes", "64KiB", "rows in another order, shuffled in smaller blocks",
     offsetof(struct loader_size, shuffle_bytes), 64 << 10},
    {"data.shuffle_buffer", "256", "rows in another order, fewer shuffled together",
     offsetof(struct loader_size, shuffle_samples), 256},
    {"data.max_line_bytes", "64KiB", "longer lines are refused", offsetof(struct loader_size, max_line_bytes),
     64 << 10},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Bytes that the loader saves with the changes in `which`, one bit each; 0: none. */
static int64_t saved_by(const struct corpus *c, const struct loader_size *now, unsigned which)
{
    struct loader_size changed = *now;
    for (int i = 0; i < ROWS; i++)
        if (which >> i & 1) *(int64_t *)(void *)((char *)&changed + rows[i].field) = rows[i].number;
    if (which & 1) changed.pieces = corpus_pieces(c->job, 1); /* the first row counts batches */
    int64_t bytes = corpus_bytes(c, &changed);
    return bytes < now->bytes ? now->bytes - bytes : 0;
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
    const struct loader_size *now = &report->loader->at[report->loader->chosen];
    struct corpus corpus;
    bool missing;
    if (report->plan->fits || corpus_ask(report->job, false, &missing, &corpus, NULL) != PLIM_OK) return;
    for (int i = 0; i < ROWS; i++) {
        int64_t saved = saved_by(&corpus, now, 1u << i);
        if (saved > 0) useful |= 1u << i;
        count += offer(report, count, 1u << i, saved);
    }
    for (int i = 0; i < ROWS && count == 0; i++) {
        unsigned which = useful & ((2u << i) - 1);
        if (useful >> i & 1 && which & (which - 1))
            count += offer(report, 0, which, saved_by(&corpus, now, which));
    }
    corpus_close(&corpus);
}
