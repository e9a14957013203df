/* run_state.c - see run_state.h. Events are data that others wrote: what is missing or of another kind is as if it were not there. */
#define _GNU_SOURCE
#include "watch/run_state.h"
#include "net/control.h"
#include "watch/run_log.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ASK_SECONDS 1.0

static const char *const line_names[LINES] = {"target", "warning", "critical", "emergency"};

static double number(const struct node *map, const char *key) { return node_float(node_get(map, key), NAN); }

static int64_t whole(const struct node *map, const char *key) { return node_int(node_get(map, key), 0); }

static void keep(char *to, size_t size, const struct node *map, const char *key)
{
    const char *text = node_string(node_get(map, key), NULL);
    if (text) snprintf(to, size, "%s", text);
}

/* --- memory --------------------------------------------------------------------------------------------------------- */

static struct run_gauge *gauge_named(struct run_state *s, const char *name)
{
    for (int i = 0; i < s->gauges; i++)
        if (!strcmp(s->gauge[i].name, name)) return &s->gauge[i];
    if (s->gauges == RUN_GAUGES) return NULL;
    struct run_gauge *g = &s->gauge[s->gauges++];
    *g = (struct run_gauge){0};
    snprintf(g->name, sizeof g->name, "%s", name);
    return g;
}

static void take_lines(struct gauge *g, const struct node *map)
{
    for (int i = 0; i < LINES; i++) g->line[i] = node_int(node_get(map, line_names[i]), g->line[i]);
}

/* Takes the two memories that every step's log line reports. */
static void take_memory(struct run_state *s, const struct node *memory)
{
    struct run_gauge *own, *machine;
    if (!memory) return;
    keep(s->status, sizeof s->status, memory, "status");
    keep(s->level, sizeof s->level, memory, "level");
    keep(s->strain, sizeof s->strain, memory, "strain");
    if (whole(memory, "budget") > 0 && (own = gauge_named(s, "budget")))
        own->gauge.used = own->gauge.ours = whole(memory, "used"), own->gauge.total = whole(memory, "budget");
    if (whole(memory, "machine_total") <= 0 || !(machine = gauge_named(s, "machine"))) return;
    machine->gauge.used = whole(memory, "machine_used"),
    machine->gauge.total = whole(memory, "machine_total");
    for (int i = 0; i < LINES; i++)
        machine->gauge.line[i] = (int64_t)(s->share[i] * (double)machine->gauge.total);
}

static void take_classes(struct run_state *s, const struct node *classes)
{
    if (node_count(classes)) s->classes = 0;
    for (size_t i = 0; i < node_count(classes) && s->classes < RUN_CLASSES; i++) {
        const struct node *c = node_item(classes, i);
        snprintf(s->by_class[s->classes].name, sizeof s->by_class[0].name, "%s", c->key ? c->key : "");
        s->by_class[s->classes++].bytes = node_int(c, 0);
    }
}

/* --- events --------------------------------------------------------------------------------------------------------- */

static void hear_plan(struct run_state *s, const struct node *e)
{
    struct run_gauge *own;
    const struct node *thresholds = node_get(e, "thresholds");
    if (!strcmp(node_string(node_get(e, "event"), ""), "plan")) {
        s->ended = s->refused = false, s->started = s->time;
        s->pid = whole(e, "pid");
        keep(s->host, sizeof s->host, e, "host");
    }
    s->begun = true, s->plans++;
    keep(s->device, sizeof s->device, e, "device");
    s->steps = node_int(node_get(e, "steps"), s->steps);
    s->planned = whole(e, "planned_total");
    s->host_bytes = whole(e, "host_bytes"), s->disk_bytes = whole(e, "disk_bytes");
    s->micro_batch = node_int(node_path(e, "knobs.micro_batch"), 0);
    s->accumulation = node_int(node_path(e, "knobs.accumulation"), 0);
    for (int i = 0; i < LINES; i++) s->share[i] = node_float(node_get(thresholds, line_names[i]), 0);
    if (whole(e, "budget_bytes") > 0 && (own = gauge_named(s, "budget"))) {
        own->gauge.total = whole(e, "budget_bytes");
        take_lines(&own->gauge, node_get(e, "lines"));
    }
    take_classes(s, node_get(e, "by_class"));
}

static void hear_step(struct run_state *s, const struct node *e)
{
    if (s->curve == RUN_CURVE) {
        memmove(s->losses, s->losses + 1, sizeof s->losses - sizeof *s->losses);
        memmove(s->speeds, s->speeds + 1, sizeof s->speeds - sizeof *s->speeds);
        s->curve--;
    }
    s->step = whole(e, "step"), s->tokens += whole(e, "tokens");
    s->loss = number(e, "loss"), s->lr = number(e, "lr"), s->grad_norm = number(e, "grad_norm");
    s->tokens_per_s = number(e, "tokens_per_s"), s->step_seconds = number(e, "step_ms") / 1e3;
    s->losses[s->curve] = s->loss, s->speeds[s->curve++] = s->tokens_per_s;
}

static void hear_eval(struct run_state *s, const struct node *e)
{
    s->has_eval = true, s->eval_loss = number(e, "loss");
}

static void hear_checkpoint(struct run_state *s, const struct node *e) { (void)e, s->checkpoints++; }
static void hear_end(struct run_state *s, const struct node *e) { (void)e, s->ended = true; }
static void hear_refused(struct run_state *s, const struct node *e) { (void)e, s->ended = s->refused = true; }
static void hear_resume(struct run_state *s, const struct node *e) { s->step = whole(e, "step"); }

static const struct {
    const char *event;
    void (*hear)(struct run_state *s, const struct node *e);
    bool line; /* people are told */
} rows[] = {{"plan", hear_plan, true},     {"replan", hear_plan, true},
            {"step", hear_step, false},    {"eval", hear_eval, true},
            {"resume", hear_resume, true}, {"checkpoint", hear_checkpoint, true},
            {"end", hear_end, true},       {"refused", hear_refused, true},
            {"note", NULL, true},          {"memory", NULL, true},
            {"epoch", NULL, true}};

static void tell(struct run_state *s, const struct node *e)
{
    STRBUF_AUTO line = STRBUF_INIT;
    run_event_text(e, s->steps, &line);
    if (line.len && s->ntold == RUN_TOLD)
        memmove(s->told, s->told + 1, sizeof s->told - sizeof *s->told), s->ntold--;
    if (line.len) {
        s->told[s->ntold].time = s->time;
        snprintf(s->told[s->ntold++].text, RUN_TEXT, "%s", strbuf_text(&line));
    }
}

void run_state_hear(void *arg, const struct node *e)
{
    struct run_state *s = arg;
    const char *kind = node_string(node_get(e, "event"), "");
    s->time = node_float(node_get(e, "time"), s->time);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(kind, rows[i].event) != 0) continue;
        if (rows[i].hear) rows[i].hear(s, e);
        if (rows[i].line) tell(s, e);
    }
    take_memory(s, node_get(e, "memory"));
}

/* --- asking --------------------------------------------------------------------------------------------------------- */

/* The newest sample's; of a budget that only the log knows, what the log said last. */
static void take_gauges(struct run_state *s, const struct node *gauges)
{
    if (!node_count(gauges)) return;
    gauge_named(s, "budget");
    s->gauges = 1;
    for (size_t i = 0; i < node_count(gauges); i++) {
        const struct node *n = node_item(gauges, i);
        struct run_gauge *g = gauge_named(s, node_string(node_get(n, "name"), "?"));
        if (!g) continue;
        g->gauge.used = whole(n, "used"), g->gauge.total = whole(n, "total"),
        g->gauge.ours = whole(n, "ours");
        take_lines(&g->gauge, n);
    }
}

static void take_status(struct run_state *s, const struct node *r)
{
    const struct node *monitor = node_get(r, "monitor");
    s->step = node_int(node_get(r, "step"), s->step);
    s->steps = node_int(node_get(r, "steps"), s->steps);
    s->micro_batch = node_int(node_get(r, "micro_batch"), s->micro_batch);
    s->accumulation = node_int(node_get(r, "accumulation"), s->accumulation);
    keep(s->level, sizeof s->level, r, "level");
    keep(s->status, sizeof s->status, monitor, "status");
    keep(s->strain, sizeof s->strain, monitor, "strain");
    take_classes(s, node_path(r, "memory.by_class"));
    take_gauges(s, node_get(monitor, "gauges"));
}

void run_state_ask(struct run_state *s, const char *folder, struct strbuf *reply)
{
    char path[RUN_PATH + 16];
    struct plim_error err;
    STRBUF_AUTO text = STRBUF_INIT;
    struct doc *doc;
    snprintf(path, sizeof path, "%s/" RUN_CONTROL, folder);
    s->answers = access(path, F_OK) == 0 &&
                 control_ask(path, "{\"do\":\"status\"}", ASK_SECONDS, &text, &err) == PLIM_OK &&
                 json_parse(strbuf_text(&text), text.len, path, &doc, &err) == PLIM_OK;
    if (s->answers) {
        take_status(s, &doc->root);
        if (reply) strbuf_addn(reply, text.data, text.len);
        doc_free(doc);
    }
}

/* A process number means something on the machine it is of alone; elsewhere the last word counts. */
bool run_state_live(const struct run_state *s)
{
    char here[sizeof s->host] = "";
    if (s->answers) return true;
    if (s->ended) return false;
    gethostname(here, sizeof here - 1);
    if (s->host[0] && strcmp(here, s->host) != 0) return true;
    return s->pid > 0 && (kill((pid_t)s->pid, 0) == 0 || errno == EPERM);
}
