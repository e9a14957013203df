/* run_words.c - a run's events as lines for people. See run_state.h. */
#include "base/bytes.h"
#include "watch/run_state.h"

#include <math.h>
#include <string.h>

static const char *size_of(char buf[BYTES_TEXT], const struct node *bytes)
{
    int64_t n = node_int(bytes, 0);
    return bytes_format(buf, (uint64_t)(n > 0 ? n : 0));
}

static const char *text_of(const struct node *e, const char *key)
{
    return node_string(node_get(e, key), "");
}

static long long step_of(const struct node *e) { return (long long)node_int(node_get(e, "step"), 0); }

static void say_plan(const struct node *e, int64_t, struct strbuf *out)
{
    char total[BYTES_TEXT], budget[BYTES_TEXT];
    const struct node *knobs = node_get(e, "knobs");
    bool again = !strcmp(text_of(e, "event"), "replan");
    if (again) strbuf_addf(out, "step %lld: re-", step_of(e));
    strbuf_addf(out, "planned %s of %s: micro-batch %lld x %lld, recompute %s",
                size_of(total, node_get(e, "planned_total")), size_of(budget, node_get(e, "budget_bytes")),
                (long long)node_int(node_get(knobs, "micro_batch"), 0),
                (long long)node_int(node_get(knobs, "accumulation"), 0),
                node_string(node_get(knobs, "recompute"), "?"));
    if (again)
        strbuf_addf(out, ", %s moved in %.0f ms", size_of(total, node_get(e, "moved_bytes")),
                    node_float(node_get(e, "move_ms"), 0));
}

static void say_step(const struct node *e, int64_t steps, struct strbuf *out)
{
    char used[BYTES_TEXT], budget[BYTES_TEXT];
    const struct node *memory = node_get(e, "memory");
    const char *status = text_of(memory, "status");
    strbuf_addf(out, "step %lld", step_of(e));
    if (steps > 0) strbuf_addf(out, "/%lld", (long long)steps);
    strbuf_addf(out, "  loss %.4f  lr %.3g  %.0f tok/s  %s of %s", node_float(node_get(e, "loss"), NAN),
                node_float(node_get(e, "lr"), NAN), node_float(node_get(e, "tokens_per_s"), NAN),
                size_of(used, node_get(memory, "used")), size_of(budget, node_get(memory, "budget")));
    if (*status && strcmp(status, "normal") != 0) strbuf_addf(out, " (%s)", status);
}

static void say_eval(const struct node *e, int64_t, struct strbuf *out)
{
    strbuf_addf(out, "step %lld: evaluation, loss %.4f", step_of(e), node_float(node_get(e, "loss"), NAN));
}

static void say_resume(const struct node *e, int64_t, struct strbuf *out)
{
    strbuf_addf(out, "going on after step %lld from %s", step_of(e), text_of(e, "path"));
}

static void say_checkpoint(const struct node *e, int64_t, struct strbuf *out)
{
    strbuf_addf(out, "step %lld: saved %s", step_of(e), text_of(e, "path"));
}

static void say_text(const struct node *e, int64_t, struct strbuf *out)
{
    strbuf_add(out, text_of(e, "text"));
}

static void say_epoch(const struct node *e, int64_t, struct strbuf *out)
{
    double all = node_float(node_get(e, "epochs"), 0);
    strbuf_addf(out, "starting epoch %lld", (long long)node_int(node_get(e, "epoch"), 0));
    if (all > 0) strbuf_addf(out, "/%g", ceil(all));
}

static void say_refused(const struct node *e, int64_t, struct strbuf *out)
{
    strbuf_addf(out, "memory was refused (%s): %s", text_of(e, "cause"), text_of(e, "error"));
}

static void say_end(const struct node *e, int64_t, struct strbuf *out)
{
    char planned[BYTES_TEXT], ledger[BYTES_TEXT], process[BYTES_TEXT];
    strbuf_addf(out, "ended after step %lld and %.1f s: planned %s, ledger %s, process %s at its peak",
                step_of(e), node_float(node_get(e, "seconds"), 0),
                size_of(planned, node_get(e, "planned_peak")), size_of(ledger, node_get(e, "ledger_peak")),
                size_of(process, node_get(e, "rss_peak")));
}

static const struct {
    const char *event;
    void (*say)(const struct node *e, int64_t steps, struct strbuf *out);
} rows[] = {{"plan", say_plan},     {"replan", say_plan},           {"step", say_step},  {"eval", say_eval},
            {"resume", say_resume}, {"checkpoint", say_checkpoint}, {"note", say_text},  {"memory", say_text},
            {"end", say_end},       {"refused", say_refused},       {"epoch", say_epoch}};

/* A text of the log may hold anything; a terminal takes some of it for orders. */
static void disarm(struct strbuf *out, size_t from)
{
    for (size_t i = from; i < out->len; i++)
        if ((unsigned char)out->data[i] < ' ' || out->data[i] == 127) out->data[i] = ' ';
}

void run_event_text(const struct node *event, int64_t steps, struct strbuf *out)
{
    const char *kind = text_of(event, "event");
    size_t from = out->len;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(kind, rows[i].event)) rows[i].say(event, steps, out);
    disarm(out, from);
}
