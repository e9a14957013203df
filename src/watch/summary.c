/* summary.c - see summary.h. */
#include "watch/summary.h"
#include "base/bytes.h"

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

static void put_row(struct strbuf *out, const char *name, int64_t bytes)
{
    char text[BYTES_TEXT];
    strbuf_addf(out, "  %-14s %10s\n", name, bytes_format(text, (uint64_t)(bytes > 0 ? bytes : 0)));
}

void summary_text(const struct memory_summary *s, struct strbuf *out)
{
    put_row(out, "budget", s->budget);
    put_row(out, "allocated", s->allocated);
    put_row(out, "reserved", s->reserved);
    put_row(out, "free", s->free);
    put_row(out, "peak", s->peak);
    strbuf_addf(out, "  %-14s %9.1f%%\n  %-14s %9.1f%%\n", "utilisation", 100 * summary_utilisation(s),
                "fragmentation", 100 * summary_fragmentation(s));
    for (int i = 0; i < CLASS_COUNT; i++)
        if (s->by_class[i]) put_row(out, tensor_class_name((enum tensor_class)i), s->by_class[i]);
    put_row(out, "overhead", s->overhead);
}
