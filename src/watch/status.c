/* status.c - see status.h. */
#include "watch/status.h"

#include <math.h>

static const char *const names[MEMORY_STATUSES] = {"normal", "warning", "critical", "emergency"};
const char *memory_status_name(enum memory_status status) { return names[status]; }

static void set_lines(struct gauge *g, double whole, const struct profile *p)
{
    const double share[LINES] = {p->target, p->warning, p->critical, p->emergency};
    for (int i = 0; i < LINES; i++) g->line[i] = (int64_t)(whole * share[i]);
}

struct gauge gauge_of(const char *name, int64_t used, int64_t total, int64_t ours,
                      const struct profile *profile)
{
    struct gauge g = {.name = name, .used = used, .total = total, .ours = ours};
    set_lines(&g, (double)total, profile);
    return g;
}

struct gauge gauge_of_budget(int64_t used, int64_t budget, const struct profile *profile)
{
    struct gauge g = {.name = "budget", .used = used, .total = budget, .ours = used};
    set_lines(&g, 1.01 * (double)budget / profile->target, profile);
    return g;
}

enum memory_status gauge_status(const struct gauge *g)
{
    if (g->total <= 0) return MEMORY_NORMAL;
    if (g->used >= g->line[LINE_EMERGENCY]) return MEMORY_EMERGENCY;
    if (g->used >= g->line[LINE_CRITICAL]) return MEMORY_CRITICAL;
    return g->used >= g->line[LINE_WARNING] ? MEMORY_WARNING : MEMORY_NORMAL;
}

/* One decimal behind a point in every locale: programs read this line. */
static void add_tenths(struct strbuf *out, double x)
{
    long long tenths = llround(10 * x);
    strbuf_addf(out, "%lld.%lld", tenths / 10, tenths % 10);
}

void status_line(struct strbuf *out, int64_t step, const struct gauge *g, enum memory_status status,
                 const char *action)
{
    bool large = g->total >= 1 << 30;
    double unit = large ? 1 << 30 : 1 << 20;
    strbuf_addf(out, "[Step %lld] Memory: ", (long long)step);
    add_tenths(out, (double)g->used / unit);
    strbuf_addc(out, '/');
    add_tenths(out, (double)g->total / unit);
    strbuf_addf(out, " %s (%.0f%%), Status: %s", large ? "GB" : "MB",
                g->total > 0 ? 100 * (double)g->used / (double)g->total : 0.0, memory_status_name(status));
    if (action && *action) strbuf_addf(out, " - %s", action);
}
