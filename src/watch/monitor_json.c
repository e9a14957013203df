/* monitor_json.c - a monitor's newest sample for programs. See monitor.h. */
#include "watch/monitor.h"

static void put_gauge(struct json_writer *w, const struct gauge *g)
{
    json_begin_object(w, NULL);
    json_str(w, "name", g->name);
    json_int(w, "used", g->used);
    json_int(w, "total", g->total);
    json_int(w, "ours", g->ours);
    json_int(w, "target", g->line[LINE_TARGET]);
    json_int(w, "warning", g->line[LINE_WARNING]);
    json_int(w, "critical", g->line[LINE_CRITICAL]);
    json_int(w, "emergency", g->line[LINE_EMERGENCY]);
    json_str(w, "status", memory_status_name(gauge_status(g)));
    json_end_object(w);
}

void monitor_json(const struct monitor_state *s, struct json_writer *w, const char *key)
{
    const char *advice[ADVICE_MAX];
    json_begin_object(w, key);
    json_str(w, "status", memory_status_name(s->status));
    json_str(w, "strain", strain_name(s->strain));
    json_double(w, "trend_bytes_per_s", s->trend);
    json_double(w, "stall_percent", s->now.pressure.full);
    json_int(w, "rss", (int64_t)s->now.process.rss);
    json_int(w, "outside_plan", (int64_t)s->now.process.rss - s->now.arena);
    if (s->leak.found) json_str(w, "leak", leak_part_name(s->leak.who));
    json_begin_array(w, "gauges");
    for (int i = 0; i < s->gauges; i++) put_gauge(w, &s->gauge[i]);
    json_end_array(w);
    json_begin_array(w, "recommendations");
    int n = monitor_recommend(s, advice, ADVICE_MAX);
    for (int i = 0; i < n; i++) json_str(w, NULL, advice[i]);
    json_end_array(w);
    json_end_object(w);
}
