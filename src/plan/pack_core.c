/* pack_core.c - the part of a job that matters.
 *
 * A tape of thousands of tensors is hard to pack only where it is nearly full, and that is in few columns.
 * The core is the job without the rectangles that touch none of these hot columns. A packing of the core is
 * completed by first fit. Where that ends above the target a column was missing: the fullest column of every
 * rectangle that came out too high becomes hot, and the core is built anew.
 */
#include "plan/pack_internal.h"

enum { GOOD_SIZE = 600 }; /* rectangles: a dive takes milliseconds */
static const double hot_from[] = {0, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999}; /* parts of the target */

/* How many rectangles go through a hot column. */
static int count_hot(struct pack_core *core)
{
    const struct pack_job *whole = core->whole;
    int count = 0;
    core->hot_before[0] = 0;
    for (int c = 0; c < whole->columns; c++) core->hot_before[c + 1] = core->hot_before[c] + core->hot[c];
    for (int r = 0; r < whole->n; r++)
        count += core->hot_before[whole->rect[r].a] < core->hot_before[whole->rect[r].b];
    return count;
}

static int mark_hot(struct pack_core *core, double share)
{
    const struct pack_job *whole = core->whole;
    for (int c = 0; c < whole->columns; c++)
        core->hot[c] = (double)whole->load[c] >= share * (double)whole->target;
    return count_hot(core);
}

bool pack_core_init(struct pack_core *core, struct pack_job *whole)
{
    *core = (struct pack_core){.whole = whole, .store = BUMP_INIT};
    size_t n = (size_t)whole->n, columns = (size_t)whole->columns;
    core->hot = bump_alloc(whole->store, columns * sizeof *core->hot);
    core->hot_before = bump_alloc(whole->store, (columns + 1) * sizeof *core->hot_before);
    core->order = bump_alloc(whole->store, n * sizeof *core->order);
    core->keys = bump_alloc(whole->store, 2 * n * sizeof *core->keys);
    core->fit = pack_fit_new(whole);
    if (!core->hot || !core->hot_before || !core->order || !core->keys || !core->fit) return false;
    for (size_t i = 0; i < sizeof hot_from / sizeof hot_from[0]; i++)
        if (mark_hot(core, hot_from[i]) <= GOOD_SIZE) break;
    return true;
}

void pack_core_release(struct pack_core *core)
{
    pack_tree_release(core->tree);
    bump_free(&core->store);
    core->tree = NULL;
}

static void take_rects(struct pack_core *core)
{
    struct pack_job *job = &core->job;
    for (int r = 0; r < core->whole->n; r++) {
        const struct pack_rect *x = &core->whole->rect[r];
        if (core->hot_before[x->a] == core->hot_before[x->b]) continue;
        core->rect[job->n] = r;
        job->rect[job->n++] = *x;
    }
}

/* The maximal sets among what was taken: a start that follows an end opens a column, as in pack_problem.c. */
static void take_columns(struct pack_core *core, int *starts, int *ends)
{
    struct pack_job *job = &core->job;
    bool ended = true;
    for (int k = 0; k < job->n; k++) starts[job->rect[k].a]++, ends[job->rect[k].b]++;
    for (int c = 0; c <= core->whole->columns; c++) {
        ended = ended || ends[c];
        ends[c] = job->columns;
        if (starts[c] && ended) job->columns++, ended = false;
        starts[c] = job->columns - 1;
    }
    for (int k = 0; k < job->n; k++) {
        struct pack_rect *x = &job->rect[k];
        x->a = starts[x->a], x->b = ends[x->b];
        for (int c = x->a; c < x->b; c++) job->load[c] += x->size;
    }
}

bool pack_core_build(struct pack_core *core)
{
    if (count_hot(core) > PACK_CORE_MOST) return core->tree != NULL;
    pack_core_release(core);
    const struct pack_job *whole = core->whole;
    size_t n = (size_t)whole->n, columns = (size_t)whole->columns + 1;
    int *starts = bump_alloc(&core->store, columns * sizeof *starts);
    int *ends = bump_alloc(&core->store, columns * sizeof *ends);
    core->rect = bump_alloc(&core->store, n * sizeof *core->rect);
    struct pack_job *job = &core->job;
    *job = (struct pack_job){.target = whole->target, .height = PACK_NONE, .store = &core->store};
    job->rect = bump_alloc(&core->store, n * sizeof *job->rect);
    job->load = bump_alloc(&core->store, columns * sizeof *job->load);
    job->offset = bump_alloc(&core->store, n * sizeof *job->offset);
    if (!starts || !ends || !core->rect || !job->rect || !job->load || !job->offset) return false;
    take_rects(core);
    take_columns(core, starts, ends);
    core->tree = pack_tree_new(job);
    return core->tree != NULL;
}

/* Rectangles outside the core, those through the fullest columns first. */
static int list_outside(struct pack_core *core)
{
    const struct pack_job *whole = core->whole;
    int count = 0;
    for (int r = 0, k = 0; r < whole->n; r++) {
        if (k < core->job.n && core->rect[k] == r) {
            k++;
            continue;
        }
        int64_t most = 0;
        for (int c = whole->rect[r].a; c < whole->rect[r].b; c++)
            most = whole->load[c] > most ? whole->load[c] : most;
        core->keys[count++] = (struct pack_key){(uint64_t)(INT64_MAX - most), r};
    }
    pack_sort(core->keys, core->keys + whole->n, count);
    for (int i = 0; i < count; i++) core->order[i] = core->keys[i].index;
    return count;
}

static bool heat(struct pack_core *core, int r)
{
    const struct pack_job *whole = core->whole;
    int fullest = whole->rect[r].a;
    for (int c = fullest; c < whole->rect[r].b; c++)
        if (whole->load[c] > whole->load[fullest]) fullest = c;
    if (core->hot[fullest]) return false;
    return core->hot[fullest] = true;
}

int64_t pack_core_complete(struct pack_core *core, bool *grown)
{
    struct pack_job *whole = core->whole;
    int64_t top = 0;
    *grown = false;
    pack_fit_clear(core->fit);
    for (int k = 0; k < core->job.n; k++) {
        int r = core->rect[k];
        whole->offset[r] = core->job.offset[k];
        if (whole->offset[r] + whole->rect[r].size > top) top = whole->offset[r] + whole->rect[r].size;
        pack_fit_add(core->fit, r);
    }
    int left = list_outside(core);
    for (int i = 0; i < left; i++) {
        int r = core->order[i];
        int64_t lo = pack_fit_lowest(core->fit, r), hi = lo + whole->rect[r].size;
        whole->offset[r] = lo;
        pack_fit_add(core->fit, r);
        if (hi > top) top = hi;
        if (hi > whole->target && heat(core, r)) *grown = true;
    }
    return top;
}
