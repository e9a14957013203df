/* pack_problem.c - from items to rectangles over columns, cut into independent jobs.
 *
 * The events (every lower, every upper) are walked in time; at equal times ends come before starts, because
 * lifetimes are half-open. A start that follows an end opens a new column. All rectangles of the walk are
 * kept in one array ordered by job, so that a job is a slice of it.
 */
#include "plan/pack_internal.h"
#include <inttypes.h>
#include <string.h>

struct builder {
    const struct pack_item *items;
    int n; /* items of a size above 0 */
    int *item;
    struct pack_key *starts, *ends, *tmp;
    struct pack_rect *rect; /* in item order, columns of the whole problem */
    int64_t *load, *cross;  /* [columns + 1]; cross[c]: rectangles that cover both column c-1 and c */
    int *job_of;            /* [columns] */
    int columns;
};

static uint64_t time_key(int64_t t)
{
    return (uint64_t)t ^ (uint64_t)1 << 63; /* negative times sort before positive ones */
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

static enum plim_status check_item(const struct pack_item *it, int i, int64_t align, struct plim_error *err)
{
    if (it->lower >= it->upper)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "item %d: its lifetime [%" PRId64 ",%" PRId64
                         ") is empty; lower must be below upper",
                         i, it->lower, it->upper);
    if (it->size < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "item %d: its size %" PRId64 " is negative", i, it->size);
    if (it->size > INT64_MAX - (align - 1))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "item %d: its size %" PRId64 " is too large to be aligned to %" PRId64, i, it->size,
                         align);
    return PLIM_OK;
}

static bool builder_alloc(struct builder *b, struct bump *store, int n)
{
    size_t room = (size_t)n + 1;
    b->item = bump_alloc(store, room * sizeof *b->item);
    b->starts = bump_alloc(store, room * sizeof *b->starts);
    b->ends = bump_alloc(store, room * sizeof *b->ends);
    b->tmp = bump_alloc(store, room * sizeof *b->tmp);
    b->rect = bump_alloc(store, room * sizeof *b->rect);
    b->load = bump_alloc(store, room * sizeof *b->load);
    b->cross = bump_alloc(store, room * sizeof *b->cross);
    b->job_of = bump_alloc(store, room * sizeof *b->job_of);
    return b->item && b->starts && b->ends && b->tmp && b->rect && b->load && b->cross && b->job_of;
}

/* Rounded sizes, and their greatest common divisor as the unit. */
static enum plim_status take_items(struct builder *b, struct pack_problem *p, int n, int64_t align,
                                   struct plim_error *err)
{
    p->unit = 0;
    for (int i = 0; i < n; i++) {
        const struct pack_item *it = &b->items[i];
        enum plim_status status = check_item(it, i, align, err);
        if (status != PLIM_OK) return status;
        if (it->size == 0) continue;
        int64_t size = (it->size + (align - 1)) / align * align;
        p->unit = common_divisor(size, p->unit);
        b->item[b->n] = i;
        b->rect[b->n].size = size;
        b->starts[b->n] = (struct pack_key){time_key(it->lower), b->n};
        b->ends[b->n] = (struct pack_key){time_key(it->upper), b->n};
        b->n++;
    }
    if (!p->unit) p->unit = align;
    for (int i = 0; i < b->n; i++) b->rect[i].size /= p->unit;
    return PLIM_OK;
}

static enum plim_status find_columns(struct builder *b, struct pack_problem *p, struct plim_error *err)
{
    pack_sort(b->starts, b->tmp, b->n);
    pack_sort(b->ends, b->tmp, b->n);
    bool ended = true;
    int64_t live = 0;
    for (int s = 0, e = 0; e < b->n;) {
        if (s < b->n && b->starts[s].key < b->ends[e].key) {
            struct pack_rect *r = &b->rect[b->starts[s++].index];
            if (ended) b->columns++;
            ended = false;
            r->a = b->columns - 1;
            if (r->size > INT64_MAX / p->unit - live)
                return plim_fail(err, PLIM_BAD_INPUT,
                                 "the items alive at one time add up to more than 2^63-1 bytes");
            live += r->size;
            b->load[b->columns - 1] = live;
            if (live > p->lower_bound) p->lower_bound = live;
        } else {
            struct pack_rect *r = &b->rect[b->ends[e++].index];
            ended = true;
            r->b = b->columns;
            live -= r->size;
        }
    }
    return PLIM_OK;
}

static int find_jobs(struct builder *b)
{
    for (int i = 0; i < b->n; i++) b->cross[b->rect[i].a + 1]++, b->cross[b->rect[i].b]--;
    int jobs = 0;
    for (int c = 0; c < b->columns; c++) {
        if (c) b->cross[c] += b->cross[c - 1];
        if (!b->cross[c]) jobs++;
        b->job_of[c] = jobs - 1;
    }
    return jobs;
}

/* Slices of the common arrays; the rectangles are dealt out in item order. */
static bool cut_jobs(struct builder *b, struct pack_problem *p, int64_t target)
{
    size_t n = (size_t)b->n;
    struct pack_rect *rect = bump_alloc(&p->store, n * sizeof *rect);
    int *item = bump_alloc(&p->store, n * sizeof *item);
    int64_t *offset = bump_alloc(&p->store, n * sizeof *offset),
            *best = bump_alloc(&p->store, n * sizeof *best);
    p->job = bump_alloc(&p->store, (size_t)p->jobs * sizeof *p->job);
    if (!rect || !item || !offset || !best || !p->job) return false;
    for (int i = 0; i < b->n; i++) p->job[b->job_of[b->rect[i].a]].n++;
    for (int c = 0; c < b->columns; c++) p->job[b->job_of[c]].columns++;
    int at = 0, column = 0;
    for (int j = 0; j < p->jobs; j++) {
        struct pack_job *job = &p->job[j];
        int count = job->n, columns = job->columns;
        *job = (struct pack_job){
            .columns = columns, .rect = rect + at, .item = item + at, .load = b->load + column};
        job->offset = offset + at, job->best = best + at, job->store = &p->store;
        job->target = target, job->height = PACK_NONE, job->method = "none";
        at += count, column += columns;
    }
    for (int i = 0; i < b->n; i++) {
        struct pack_job *job = &p->job[b->job_of[b->rect[i].a]];
        int first = (int)(job->load - b->load), k = job->n++;
        job->rect[k] = (struct pack_rect){b->rect[i].a - first, b->rect[i].b - first, b->rect[i].size};
        job->item[k] = b->item[i];
    }
    return true;
}

enum plim_status pack_problem_build(struct pack_problem *p, const struct pack_item *items, int n,
                                    int64_t align, int64_t capacity, struct plim_error *err)
{
    struct builder b = {.items = items};
    *p = (struct pack_problem){.store = BUMP_INIT};
    if (!builder_alloc(&b, &p->store, n)) goto no_memory;
    enum plim_status status = take_items(&b, p, n, align, err);
    if (status == PLIM_OK) status = find_columns(&b, p, err);
    if (status != PLIM_OK) goto out;
    int64_t target = capacity / p->unit > p->lower_bound ? capacity / p->unit : p->lower_bound;
    p->jobs = find_jobs(&b);
    if (cut_jobs(&b, p, target)) return PLIM_OK;
no_memory:
    status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while %d items were to be packed", n);
out:
    pack_problem_release(p);
    return status;
}

void pack_problem_release(struct pack_problem *p)
{
    bump_free(&p->store);
    *p = (struct pack_problem){.store = BUMP_INIT};
}

bool pack_job_offer(struct pack_job *job, int64_t height, const char *method)
{
    if (height < job->height) {
        memcpy(job->best, job->offset, (size_t)job->n * sizeof *job->best);
        job->height = height;
        job->method = method;
    }
    return job->height <= job->target;
}
