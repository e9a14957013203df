/* report_ranks.c - what several ranks add to a plan: how much they send, and what that costs. See report.h. */
#include "plan/cost.h"
#include "report/report.h"

int report_ranks(const struct plan_report *r)
{
    return r->request->facts->ranks > 1 ? r->request->facts->ranks : 1;
}

double report_link_bytes(const struct plan_report *r)
{
    return tape_link_bytes(&r->plan->tape, r->request->facts, r->plan->knobs.accumulation);
}

static double step_seconds(const struct plan_report *r, const struct device_facts *facts)
{
    struct tape_time time;
    int64_t passes = r->plan->knobs.accumulation;
    if (tape_time_of(&r->plan->tape, facts, passes == 1, &time, NULL) != PLIM_OK) return 0;
    return (double)passes * time.loop_seconds + time.update_seconds;
}

double report_link_efficiency(const struct plan_report *r)
{
    struct device_facts without = *r->request->facts;
    without.link_bandwidth = without.node_bandwidth = 1e18, without.link_seconds = without.node_seconds = 0;
    double with = step_seconds(r, r->request->facts);
    return with > 0 ? step_seconds(r, &without) / with : 1;
}
