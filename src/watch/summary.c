/* summary.c - see summary.h. */
#include "watch/summary.h"

void summary_of(const struct runtime *rt, struct memory_summary *out)
{
    const struct plan *plan = &rt->plan;
    const struct layout *layout = &plan->layout;
    *out = (struct memory_summary){.budget = rt->request.budget,
                                   .reserved = plan->total,
                                   .allocated = plan->total - layout->arena_bytes + layout->lower_bound,
                                   .free = rt->request.budget > 0 ? rt->request.budget - plan->total : 0,
                                   .peak = runtime_ledger_peak(rt, TIER_DEVICE),
                                   .overhead = plan->total - layout->arena_bytes,
                                   .host = runtime_planned(rt, plan, TIER_HOST),
                                   .disk = plan->disk};
    for (int i = 0; i < CLASS_COUNT; i++) out->by_class[i] = layout->by_class[i];
}

double summary_utilisation(const struct memory_summary *s)
{
    return s->budget > 0 ? (double)s->reserved / (double)s->budget : 0;
}

double summary_fragmentation(const struct memory_summary *s)
{
    int64_t arena = s->reserved - s->overhead;
    return arena > 0 ? (double)(s->reserved - s->allocated) / (double)arena : 0;
}

void summary_json(const struct memory_summary *s, struct json_writer *w, const char *key)
{
    json_begin_object(w, key);
    json_int(w, "budget", s->budget);
    json_int(w, "allocated", s->allocated);
    json_int(w, "reserved", s->reserved);
    json_int(w, "free", s->free);
    json_int(w, "peak", s->peak);
    json_double(w, "utilisation", summary_utilisation(s));
    json_double(w, "fragmentation", summary_fragmentation(s));
    json_int(w, "host", s->host);
    json_int(w, "disk", s->disk);
    json_begin_object(w, "by_class");
    for (int i = 0; i < CLASS_COUNT; i++)
        if (s->by_class[i]) json_int(w, tensor_class_name((enum tensor_class)i), s->by_class[i]);
    json_int(w, "overhead", s->overhead);
    json_end_object(w);
    json_end_object(w);
}
