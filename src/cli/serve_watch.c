/* serve_watch.c - see serve_watch.h. */
#include "cli/serve_watch.h"
#include "base/clock.h"

#include <stdio.h>

#define SAMPLE_SECONDS 1.0

static void tell(struct serve_watch *w, const struct monitor_state *s, const struct engine_stats *now)
{
    struct strbuf line = STRBUF_INIT;
    char busy[80];
    const char *advice[ADVICE_MAX];
    enum log_level level = s->status == MEMORY_NORMAL ? LOG_LEVEL_INFO : LOG_LEVEL_WARN;
    snprintf(busy, sizeof busy, "running %d, waiting %d", now->running, now->waiting);
    status_line(&line, now->steps, &s->gauge[s->worst], s->status, busy);
    log_say(w->how.log, level, "%s", strbuf_text(&line));
    int n = monitor_recommend(s, advice, ADVICE_MAX);
    for (int i = 0; i < n; i++) log_say(w->how.log, level, "%s", advice[i]);
    strbuf_release(&line);
    w->told = true, w->status = s->status, w->at = clock_seconds();
}

static void hear(void *watch, const struct monitor_state *s)
{
    struct serve_watch *w = watch;
    struct engine_stats now;
    engine_stats(w->engine, &now);
    monitor_tell(w->monitor, &(struct monitor_own){.step = now.steps,
                                                   .budget = engine_plan_now(w->engine).budget,
                                                   .serves = true});
    bool due = w->how.every > 0 && clock_seconds() - w->at >= w->how.every;
    if (s->gauges && (!w->told || due || s->status != w->status)) tell(w, s, &now);
}

void serve_watch_open(struct serve_watch *w, struct engine *engine, struct device *device,
                      const struct serve_watch_how *how)
{
    struct plim_error err = {0};
    struct monitor_options options = {.source = {.root = os_machine_root(), .device = device},
                                      .thresholds = how->thresholds,
                                      .interval = SAMPLE_SECONDS,
                                      .hear = hear,
                                      .arg = w};
    *w = (struct serve_watch){.how = *how, .engine = engine};
    if (monitor_open(&options, &w->monitor, &err) != PLIM_OK)
        log_warn(how->log, "the server runs without a monitor: %s", err.text);
}

void serve_watch_close(struct serve_watch *w)
{
    monitor_close(w->monitor);
    w->monitor = NULL;
}
