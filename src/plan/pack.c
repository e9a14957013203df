/* pack.c - the packer's front: jobs are packed one by one, the highest decides.
 *
 * A job that is an independent stretch of time needs no packing better than the lower bound of the whole,
 * which is why all jobs share one target. Greedy passes come first; the search gets what is above the target,
 * each job its share of the time that is left.
 */
#include "plan/pack.h"
#include "base/clock.h"
#include "plan/pack_internal.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>

static enum plim_status check_limits(int n, const struct pack_limits *limits, struct plim_error *err)
{
    if (n < 0) return plim_fail(err, PLIM_BAD_INPUT, "%d items cannot be packed", n);
    if (limits->align < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "an alignment of %" PRId64 " bytes makes no sense",
                         limits->align);
    if (limits->capacity < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "a capacity of %" PRId64 " bytes makes no sense",
                         limits->capacity);
    return PLIM_OK;
}

static int unfinished_jobs(const struct pack_problem *p)
{
    int count = 0;
    for (int j = 0; j < p->jobs; j++) count += p->job[j].height > p->job[j].target;
    return count;
}

static void search_jobs(struct pack_problem *p, const struct pack_limits *limits)
{
    double end = limits->effort_ms > 0 ? clock_seconds() + (double)limits->effort_ms / 1000 : INFINITY;
    int dives = limits->effort_ms > 0 ? INT_MAX : limits->dives;
    int left = unfinished_jobs(p);
    for (int j = 0; j < p->jobs && left; j++) {
        struct pack_job *job = &p->job[j];
        if (job->height <= job->target) continue;
        double now = clock_seconds();
        pack_search(job, now + (end - now) / left--, dives);
    }
}

/* A packing that exists always fits into int64_t unless sizes come near its end. */
static enum plim_status collect(const struct pack_problem *p, struct pack_item *items,
                                struct pack_result *result, struct plim_error *err)
{
    for (int j = 0; j < p->jobs; j++) {
        const struct pack_job *job = &p->job[j];
        if (job->height > INT64_MAX / p->unit)
            return plim_fail(err, PLIM_NO_FIT, "no packing was found that ends below 2^63 bytes");
        for (int i = 0; i < job->n; i++) items[job->item[i]].offset = job->best[i] * p->unit;
        if (job->height * p->unit <= result->height) continue;
        result->height = job->height * p->unit;
        result->method = job->method;
    }
    return PLIM_OK;
}

enum plim_status pack_items(struct pack_item *items, int n, const struct pack_limits *limits,
                            struct pack_result *result, struct plim_error *err)
{
    static const struct pack_limits none = {0};
    if (!limits) limits = &none;
    struct pack_problem problem;
    *result = (struct pack_result){.method = "nothing to pack"};
    enum plim_status status = check_limits(n, limits, err);
    if (status != PLIM_OK) return status;
    int64_t align = limits->align ? limits->align : 1;
    status = pack_problem_build(&problem, items, n, align, limits->capacity, err);
    if (status != PLIM_OK) return status;
    for (int i = 0; i < n; i++) items[i].offset = 0;
    result->lower_bound = problem.lower_bound * problem.unit;
    for (int j = 0; j < problem.jobs; j++)
        if (!pack_greedy(&problem.job[j])) {
            status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while %d items were being packed", n);
            goto out;
        }
    bool hopeless = limits->capacity && limits->capacity < result->lower_bound;
    if ((limits->effort_ms > 0 || limits->dives > 0) && !hopeless) search_jobs(&problem, limits);
    status = collect(&problem, items, result, err);
    if (status == PLIM_OK && limits->capacity && result->height > limits->capacity)
        status = plim_fail(err, PLIM_NO_FIT,
                           "the best packing needs %" PRId64 " bytes, %" PRId64
                           " more than there are; none can need "
                           "less than %" PRId64,
                           result->height, result->height - limits->capacity, result->lower_bound);
out:
    pack_problem_release(&problem);
    return status;
}
