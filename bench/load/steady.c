/* steady.c - see steady.h. */
#include "load/steady.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "serve/engine_snapshot.h"
#include "serve/schedule.h"

#include <stdio.h>

enum { STEPS_TRACED = 6 };

void steady_begin(struct steady *s, const struct engine *e, int64_t prompt, int64_t tokens)
{
    const struct engine_plan *p = engine_plan(e);
    int64_t fit = p->blocks / blocks_for(prompt + tokens / 2); /* at their mean age */
    s->first = min64(min64(fit, p->parallel), STEADY_FIRST);
    if (s->first < 1) s->first = 1;
    s->prompt = prompt, s->tokens = tokens, s->read = 0;
    double steps = 0; /* from when request i begins to write until all prompts have been read */
    for (int64_t i = s->first - 1; i >= 0; i--) {
        int64_t left = max64(tokens * (i + 1) / s->first, 1);
        s->answer[i] = min64(left + (int64_t)steps, prompt + tokens - 1);
        int64_t own = steady_size(s, i).prompt, room = p->step_tokens - i; /* beside those that write */
        s->read += own, steps += (double)own / (double)max64(room, p->step_tokens / 8 + 1);
    }
}

struct steady_size steady_size(const struct steady *s, int64_t number)
{
    if (number >= s->first) return (struct steady_size){s->prompt, s->tokens};
    return (struct steady_size){s->prompt + s->tokens - s->answer[number], s->answer[number]};
}

/* A trace is of the step after it was asked for. Returns false when all are written. */
static bool trace_steps(struct steady *s, struct engine *e)
{
    struct engine_orders orders;
    struct plim_error err = {0};
    struct snapshot_wish wish = {.format = SNAPSHOT_JSON};
    engine_orders(e, &orders);
    if (orders.done < s->traced) return true;
    if (s->traced && !orders.good) fprintf(stderr, "bench_serve: %s\n", orders.text);
    if (s->traced == STEPS_TRACED) return false;
    snprintf(wish.file, sizeof wish.file, "%s/%lld+%lld-%lld.json", s->trace, (long long)s->prompt,
             (long long)s->tokens, (long long)s->traced + 1);
    enum plim_status status = engine_snapshot(e, &wish, &s->traced, &err);
    if (status != PLIM_OK) fprintf(stderr, "bench_serve: %s\n", err.text);
    return status == PLIM_OK;
}

bool steady_look(struct steady *s, struct engine *e, bool full)
{
    struct engine_stats stats;
    double now = clock_seconds();
    if (s->to) return s->trace && trace_steps(s, e);
    engine_stats(e, &stats);
    if (!s->from && stats.prompt_tokens >= s->read) s->from = now, s->before = stats;
    if (s->from && now >= s->from + s->seconds) s->to = now, s->after = stats;
    return s->to ? s->trace != NULL : full;
}

double steady_rate(const struct steady *s)
{
    if (!s->to) return 0;
    return (double)(s->after.generated_tokens - s->before.generated_tokens) / (s->to - s->from);
}

double steady_balance(const struct steady *s)
{
    double read = (double)(s->after.prompt_tokens - s->before.prompt_tokens) / (double)s->prompt;
    double written = (double)(s->after.generated_tokens - s->before.generated_tokens) / (double)s->tokens;
    return written > 0 ? read / written : 0;
}
