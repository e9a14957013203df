/* run_metrics.c - see run_page.h. */
#include "watch/run_page.h"

#include <math.h>
#include <string.h>

#define PREFIX "plimsoll_train_"

/* Numbers of their own: one row each. */
static double up(const struct run_state *s) { return run_state_live(s); }
static double step(const struct run_state *s) { return (double)s->step; }
static double steps(const struct run_state *s) { return (double)s->steps; }
static double loss(const struct run_state *s) { return s->curve ? s->loss : NAN; }
static double eval_loss(const struct run_state *s) { return s->has_eval ? s->eval_loss : NAN; }
static double rate(const struct run_state *s) { return s->curve ? s->lr : NAN; }
static double norm(const struct run_state *s) { return s->curve ? s->grad_norm : NAN; }
static double speed(const struct run_state *s) { return s->curve ? s->tokens_per_s : NAN; }
static double tokens(const struct run_state *s) { return (double)s->tokens; }
static double seconds(const struct run_state *s) { return s->curve ? s->step_seconds : NAN; }
static double planned(const struct run_state *s) { return (double)s->planned; }
static double plans(const struct run_state *s) { return (double)s->plans; }
static double checkpoints(const struct run_state *s) { return (double)s->checkpoints; }
static double micro_batch(const struct run_state *s) { return (double)s->micro_batch; }
static double status(const struct run_state *s)
{
    for (int i = 0; i < MEMORY_STATUSES; i++)
        if (!strcmp(s->status, memory_status_name((enum memory_status)i))) return i;
    return NAN;
}

static const struct {
    const char *name, *type, *help;
    double (*value)(const struct run_state *s);
} rows[] = {
    {"up", "gauge", "1: the run is under way.", up},
    {"step", "gauge", "Optimizer steps done.", step},
    {"steps", "gauge", "Optimizer steps of the whole run.", steps},
    {"loss", "gauge", "Loss of the last step.", loss},
    {"eval_loss", "gauge", "Loss of the last evaluation.", eval_loss},
    {"learning_rate", "gauge", "Learning rate of the last step.", rate},
    {"gradient_norm", "gauge", "Norm of the last step's gradient.", norm},
    {"tokens_per_second", "gauge", "Tokens a second in the last step.", speed},
    {"tokens_total", "counter", "Tokens of the steps in the log.", tokens},
    {"step_seconds", "gauge", "Seconds of the last step.", seconds},
    {"micro_batch", "gauge", "Rows of a micro-batch.", micro_batch},
    {"planned_bytes", "gauge", "What the plan takes.", planned},
    {"plans_total", "counter", "Plans and re-plans.", plans},
    {"checkpoints_total", "counter", "Checkpoints saved.", checkpoints},
    {"memory_status", "gauge", "0 normal, 1 warning, 2 critical, 3 emergency.", status},
};

static void put_head(struct strbuf *out, const char *name, const char *type, const char *help)
{
    strbuf_addf(out, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

/* Labels are quoted as Prometheus wants it: backslash, quote and line break escaped. */
static void put_label(struct strbuf *out, const char *name, const char *text)
{
    strbuf_addf(out, "%s=\"", name);
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') strbuf_addc(out, '\\');
        if (*text == '\n')
            strbuf_add(out, "\\n");
        else
            strbuf_addc(out, *text);
    }
    strbuf_addc(out, '"');
}

static void put_value(struct strbuf *out, const char *name, const char *run, const char *labels[][2],
                      double value)
{
    strbuf_addf(out, PREFIX "%s{", name);
    put_label(out, "run", run);
    for (int i = 0; labels && labels[i][0]; i++)
        strbuf_addc(out, ','), put_label(out, labels[i][0], labels[i][1]);
    strbuf_addf(out, value == floor(value) && fabs(value) < 1e15 ? "} %.0f\n" : "} %.17g\n", value);
}

static void put_gauges(const struct run_state *s, const char *run, struct strbuf *out)
{
    static const char *const lines[LINES] = {"target", "warning", "critical", "emergency"};
    put_head(out, "memory_used_bytes", "gauge", "Bytes in use of each memory that is watched.");
    for (int i = 0; i < s->gauges; i++)
        put_value(out, "memory_used_bytes", run, (const char *[][2]){{"memory", s->gauge[i].name}, {NULL}},
                  (double)s->gauge[i].gauge.used);
    put_head(out, "memory_total_bytes", "gauge", "Bytes there are; of the budget, the budget.");
    for (int i = 0; i < s->gauges; i++)
        put_value(out, "memory_total_bytes", run, (const char *[][2]){{"memory", s->gauge[i].name}, {NULL}},
                  (double)s->gauge[i].gauge.total);
    put_head(out, "memory_line_bytes", "gauge", "The four lines of each memory.");
    for (int i = 0; i < s->gauges; i++)
        for (int k = 0; k < LINES; k++)
            put_value(out, "memory_line_bytes", run,
                      (const char *[][2]){{"memory", s->gauge[i].name}, {"line", lines[k]}, {NULL}},
                      (double)s->gauge[i].gauge.line[k]);
    put_head(out, "memory_class_bytes", "gauge", "Bytes at the plan's peak by what they are for.");
    for (int i = 0; i < s->classes; i++)
        put_value(out, "memory_class_bytes", run, (const char *[][2]){{"class", s->by_class[i].name}, {NULL}},
                  (double)s->by_class[i].bytes);
}

void run_metrics(const struct run_state *s, const char *name, struct strbuf *out)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double value = rows[i].value(s);
        if (!isfinite(value)) continue; /* nothing is known yet */
        put_head(out, rows[i].name, rows[i].type, rows[i].help);
        put_value(out, rows[i].name, name, NULL, value);
    }
    put_gauges(s, name, out);
}
