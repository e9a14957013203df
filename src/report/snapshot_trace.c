/* snapshot_trace.c - a snapshot in the Trace Event Format, for Perfetto (ui.perfetto.dev) and chrome://tracing. See snapshot.h.
 *
 * Time is in microseconds and begins with the step. Processes of the trace are
 *
 *     planned, measured        ops as complete events (X), a lane each for what works at the same time; phases of the step
 *                              as async events (b, e); of a run also its passes
 *     memory                   counters (C): live bytes of the arena by class, the budget, bytes as they were measured
 *     arena, kept, host, disk  a complete event for each tensor, as long as it lives. Lanes are in the order of
 *                              addresses, so this is address x time: a lane has tensors that follow each other, and the next one
 *                              what lies above them
 *
 * Tensors and counters go by the measured clock where there is one. */
#include "report/facts_table.h"
#include "report/snapshot.h"
#include "tape/phase.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum process { PLANNED = 1, MEASURED, MEMORY, ARENA, KEPT, HOST, DISK, PROCESSES };
enum { TIDS = 1000000, TID_PASSES = LANES + 1 }; /* of a process, at most */

struct trace {
    const struct snapshot *s;
    struct json_writer w;
    struct snapshot_moment *at; /* snapshot_clock */
    int *order;                 /* blocks by process and address */
    int *taken;                 /* by op: lane that has a tensor there */
    int phases;                 /* told so far: ids of async events */
};

/* --- events --------------------------------------------------------------------------------------------------------- */

static void begin_event(struct trace *t, const char *phase, const char *name, enum process process, int tid)
{
    json_begin_object(&t->w, NULL);
    json_str(&t->w, "ph", phase);
    json_str(&t->w, "name", name);
    json_int(&t->w, "pid", process);
    json_int(&t->w, "tid", (int)process * TIDS + tid);
}

static void end_event(struct trace *t)
{
    json_end_object(&t->w);
    strbuf_addc(t->w.out, '\n');
    snapshot_pause(t->s, t->w.out);
}

/* Microseconds in eighths: whole nanoseconds, and exact as numbers. What follows without a gap does so in every reader, too:
 * Perfetto leaves out an event that begins a nanosecond before the one before it ends. */
static double microseconds(double seconds) { return rint(8e6 * seconds) / 8; }

static void put_start(struct trace *t, double at) { json_double(&t->w, "ts", microseconds(at)); }

static void put_time(struct trace *t, double start, double end)
{
    put_start(t, start);
    json_double(&t->w, "dur", microseconds(end) - microseconds(start));
}

/* process_name, thread_name, and what sorts them. */
static void put_name(struct trace *t, const char *what, enum process process, int tid, const char *name)
{
    begin_event(t, "M", what, process, tid);
    json_begin_object(&t->w, "args");
    json_str(&t->w, "name", name);
    json_end_object(&t->w);
    end_event(t);
}

static void put_sort(struct trace *t, const char *what, enum process process, int tid, int place)
{
    begin_event(t, "M", what, process, tid);
    json_begin_object(&t->w, "args");
    json_int(&t->w, "sort_index", place);
    json_end_object(&t->w);
    end_event(t);
}

static void name_process(struct trace *t, enum process process, const char *name)
{
    put_name(t, "process_name", process, 0, name);
    put_sort(t, "process_sort_index", process, 0, (int)process);
}

static void name_thread(struct trace *t, enum process process, int tid, const char *name)
{
    put_name(t, "thread_name", process, tid, name);
    put_sort(t, "thread_sort_index", process, tid, tid);
}

/* --- ops ------------------------------------------------------------------------------------------------------------ */

static void put_shapes(struct trace *t, int i)
{
    STRBUF_AUTO text = STRBUF_INIT;
    tape_print_shapes(&t->s->plan->tape, i, &text);
    json_str(&t->w, "shapes", strbuf_text(&text));
}

static void put_op(struct trace *t, enum process process, const struct op_span *span, int i)
{
    char name[SNAPSHOT_NAME];
    const struct op *op = &t->s->plan->tape.ops[i];
    if (op->kind == OP_HOLD || span->seconds < 0) return;
    begin_event(t, "X", snapshot_op_name(t->s, i, name), process, 1 + (int)t->s->span[i].lane);
    json_str(&t->w, "cat", op_name(op->kind));
    put_time(t, span->start, span->start + span->seconds);
    json_begin_object(&t->w, "args");
    json_int(&t->w, "op", i);
    json_str(&t->w, "part", snapshot_part_name(op->part));
    json_str(&t->w, "lane", snapshot_lane_name(t->s->span[i].lane));
    if (op->layer >= 0) json_int(&t->w, "layer", op->layer);
    if (process == MEASURED) json_double(&t->w, "planned_us", 1e6 * t->s->span[i].seconds);
    if (process == MEASURED || !t->s->run) put_shapes(t, i);
    json_end_object(&t->w);
    end_event(t);
}

static const char *phase_name(const struct tape *tape, int i)
{
    static const char *const names[PHASES] = {"forward", "loss", "backward"};
    return i < tape->loop_end ? names[phase_of(&tape->ops[i])] : "update";
}

static void put_phase(struct trace *t, enum process process, const char *name, double start, double end)
{
    char id[16];
    for (int i = 0; i < 2; i++) {
        begin_event(t, i ? "e" : "b", name, process, 0);
        json_str(&t->w, "cat", "phase");
        json_begin_object(&t->w, "id2"); /* of this process, which shows it then */
        snprintf(id, sizeof id, "0x%x", (unsigned)t->phases);
        json_str(&t->w, "local", id);
        json_end_object(&t->w);
        put_start(t, i ? end : start);
        end_event(t);
    }
    t->phases++;
}

/* Ops of one phase in a row; computing is what tells when the next one begins. */
static void put_phases(struct trace *t, enum process process, const struct op_span *spans)
{
    const struct tape *tape = &t->s->plan->tape;
    double start = 0, end = 0;
    const char *name = NULL;
    for (int i = 0; i < tape->nops; i++) {
        if (spans[i].seconds <= 0 || t->s->span[i].lane != LANE_COMPUTE) continue;
        const char *here = phase_name(tape, i);
        if (name && here != name) {
            put_phase(t, process, name, start, end);
            name = NULL;
        }
        if (!name) name = here, start = spans[i].start;
        end = spans[i].start + spans[i].seconds;
    }
    if (name) put_phase(t, process, name, start, end);
}

static void put_ops(struct trace *t, enum process process, const struct op_span *spans)
{
    const struct tape *tape = &t->s->plan->tape;
    bool used[LANES] = {false};
    for (int i = 0; i < tape->nops; i++) used[t->s->span[i].lane] |= spans[i].seconds >= 0;
    for (int lane = 0; lane < LANES; lane++)
        if (used[lane]) name_thread(t, process, 1 + lane, snapshot_lane_name((enum lane)lane));
    for (int i = 0; i < tape->nops; i++) put_op(t, process, &spans[i], i);
    put_phases(t, process, spans);
}

static void put_passes(struct trace *t, const struct snapshot_run *run)
{
    char name[48];
    name_thread(t, MEASURED, TID_PASSES, "passes");
    for (int i = 0; i < run->passes; i++) {
        const struct snapshot_pass *p = &run->pass[i];
        if (t->s->trains)
            snprintf(name, sizeof name, "micro-batch %d of %d", i + 1, run->passes - 1);
        else
            snprintf(name, sizeof name, "step %lld", (long long)run->step);
        begin_event(t, "X", p->update ? "update" : name, MEASURED, TID_PASSES);
        json_str(&t->w, "cat", "pass");
        put_time(t, p->start, p->start + p->seconds);
        end_event(t);
    }
}

/* --- counters ------------------------------------------------------------------------------------------------------- */

static void begin_counter(struct trace *t, const char *name, double at)
{
    begin_event(t, "C", name, MEMORY, 0);
    put_start(t, at);
    json_begin_object(&t->w, "args");
}

static void end_counter(struct trace *t)
{
    json_end_object(&t->w);
    end_event(t);
}

static void put_count(struct trace *t, const char *name, const char *series, double at, int64_t bytes)
{
    begin_counter(t, name, at);
    json_int(&t->w, series, bytes);
    end_counter(t);
}

/* Bytes of each class. */
struct sums {
    int64_t of[CLASS_COUNT];
};

static void put_sums(struct trace *t, const struct sums *live, double at)
{
    begin_counter(t, "live bytes", at);
    for (int c = 0; c < CLASS_COUNT; c++)
        json_int(&t->w, tensor_class_name((enum tensor_class)c), live->of[c]);
    end_counter(t);
}

/* Whether one of them is not 0. */
static bool add_sums(struct sums *to, const struct sums *more, int sign)
{
    bool any = false;
    for (int c = 0; c < CLASS_COUNT; c++) to->of[c] += sign * more->of[c], any |= more->of[c] != 0;
    return any;
}

/* A counter at each op where live bytes change; what ends with an op goes with what begins with the next, if that follows at
 * once. */
static void put_changes(struct trace *t, const struct sums *begins, const struct sums *ends)
{
    struct sums live = {{0}};
    int nops = t->s->plan->tape.nops;
    bool changed = false;
    for (int i = 0; i < nops; i++) {
        if (changed && t->at[i].begin > t->at[i - 1].end) put_sums(t, &live, t->at[i - 1].end);
        changed |= add_sums(&live, &begins[i], 1);
        if (changed) put_sums(t, &live, t->at[i].begin);
        changed = add_sums(&live, &ends[i], -1);
    }
    put_sums(t, &live, t->at[nops - 1].end);
}

/* Kept blocks stay. */
static bool put_live(struct trace *t)
{
    const struct snapshot *s = t->s;
    size_t nops = (size_t)s->plan->tape.nops;
    struct sums *begins = calloc(2 * nops, sizeof *begins);
    if (!begins) return false;
    struct sums *ends = begins + nops;
    for (int i = 0; i < s->blocks; i++) {
        const struct snapshot_block *b = &s->block[i];
        if (b->tier != TIER_DEVICE) continue;
        begins[b->kept ? 0 : b->first].of[b->cls] += b->taken;
        if (!b->kept) ends[b->last].of[b->cls] += b->taken;
    }
    put_changes(t, begins, ends);
    free(begins);
    return true;
}

/* The line, what is planned against it, and what the system or the driver told. */
static void put_lines(struct trace *t)
{
    const struct snapshot *s = t->s;
    double ends[] = {0, t->at[s->plan->tape.nops].end};
    for (int i = 0; i < 2; i++) {
        put_count(t, "budget", "bytes", ends[i], s->plan->budget);
        put_count(t, "planned total", "bytes", ends[i], s->plan->total);
    }
    if (!s->run) return;
    put_count(t, "measured total", "bytes", 0, s->run->used);
    for (int i = 0; i < s->run->passes; i++)
        put_count(t, "measured total", "bytes", s->run->pass[i].start + s->run->pass[i].seconds,
                  s->run->pass[i].used);
}

/* --- address x time ------------------------------------------------------------------------------------------------- */

static enum process process_of(const struct snapshot_block *b)
{
    return b->tier == TIER_HOST ? HOST : b->tier == TIER_DISK ? DISK : b->kept ? KEPT : ARENA;
}

struct placed {
    enum process process;
    int64_t offset;
    int first, block;
};

static int by_place(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->process != y->process) return x->process < y->process ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->first - y->first;
}

static int *order_blocks(const struct snapshot *s)
{
    size_t n = (size_t)s->blocks;
    struct placed *placed = malloc((n + 1) * sizeof *placed);
    int *order = malloc((n + 1) * sizeof *order);
    for (size_t i = 0; i < n && placed && order; i++) {
        const struct snapshot_block *b = &s->block[i];
        placed[i] = (struct placed){process_of(b), b->offset, b->first, (int)i};
    }
    if (placed && order) qsort(placed, n, sizeof *placed, by_place);
    for (size_t i = 0; i < n && placed && order; i++) order[i] = placed[i].block;
    if (!placed) free(order), order = NULL;
    free(placed);
    return order;
}

static void put_tensor(struct trace *t, const struct snapshot_block *b, int lane)
{
    char name[SNAPSHOT_NAME];
    double start = b->kept ? 0 : t->at[b->first].begin;
    double end = b->kept ? t->at[t->s->plan->tape.nops].end : t->at[b->last].end;
    begin_event(t, "X", snapshot_block_name(t->s, b, name), process_of(b), lane);
    json_str(&t->w, "cat", tensor_class_name(b->cls));
    put_time(t, start, end);
    json_begin_object(&t->w, "args");
    json_int(&t->w, "offset", b->offset);
    json_int(&t->w, "bytes", b->bytes);
    json_int(&t->w, "first", b->first);
    json_int(&t->w, "last", b->last);
    json_end_object(&t->w);
    end_event(t);
}

/* A lane is full for a block that lives with one of its blocks. */
static bool joins(const struct trace *t, const struct snapshot_block *b, int lane)
{
    for (int i = b->first; i <= b->last; i++)
        if (t->taken[i] == lane) return false;
    return true;
}

/* Blocks come by address; each goes to the lane of the one before it, if both are never there at once. Kept ones always are.
 * Lanes are numbered through all processes, so that none is taken for another one's. */
static void put_tensors(struct trace *t)
{
    const struct snapshot *s = t->s;
    enum process process = 0;
    bool full = true;
    char name[32];
    for (int i = 0, lane = 0; i < s->blocks; i++) {
        const struct snapshot_block *b = &s->block[t->order[i]];
        bool next = full || b->kept || process_of(b) != process || !joins(t, b, lane);
        if (next) {
            snprintf(name, sizeof name, "0x%012llx", (unsigned long long)b->offset);
            name_thread(t, process = process_of(b), ++lane, name);
        }
        full = b->kept;
        for (int op = b->first; op <= b->last && !b->kept; op++) t->taken[op] = lane;
        put_tensor(t, b, lane);
    }
}

/* --- all of it ------------------------------------------------------------------------------------------------------ */

static void put_head(struct trace *t)
{
    const struct snapshot *s = t->s;
    json_str(&t->w, "displayTimeUnit", "ms");
    json_begin_object(&t->w, "otherData");
    json_str(&t->w, "made_by", "plimsoll");
    json_str(&t->w, "device", s->facts->name);
    json_int(&t->w, "budget", s->plan->budget);
    json_int(&t->w, "total", s->plan->total);
    json_int(&t->w, "arena_bytes", s->plan->layout.arena_bytes);
    json_int(&t->w, "peak_bytes", s->plan->layout.lower_bound);
    json_int(&t->w, "micro_batch", s->plan->knobs.micro_batch);
    json_int(&t->w, "accumulation", s->plan->knobs.accumulation);
    json_int(&t->w, "loop_end", s->plan->tape.loop_end);
    json_double(&t->w, "step_us", 1e6 * s->plan->step_seconds);
    facts_json(s->facts, &t->w, "facts");
    if (s->run) {
        json_double(&t->w, "measured_step_us", 1e6 * s->run->seconds);
        json_str(&t->w, s->trains ? "job" : "model", s->run->job);
        json_int(&t->w, "step", s->run->step);
        if (s->trains) json_double(&t->w, "loss", s->run->loss);
    }
    json_end_object(&t->w);
}

static void name_processes(struct trace *t)
{
    static const char *const names[PROCESSES] = {[PLANNED] = "planned: one micro-batch, then the update",
                                                 [MEASURED] = "measured: one step",
                                                 [MEMORY] = "memory",
                                                 [ARENA] = "arena, address x time: what moves",
                                                 [KEPT] = "arena: what is kept from step to step",
                                                 [HOST] = "host memory, address x time",
                                                 [DISK] = "disk, address x time"};
    bool used[PROCESSES] = {[PLANNED] = true, [MEASURED] = t->s->run != NULL, [MEMORY] = true};
    for (int i = 0; i < t->s->blocks; i++) used[process_of(&t->s->block[i])] = true;
    for (int i = PLANNED; i < PROCESSES; i++)
        if (used[i])
            name_process(t, (enum process)i, i == PLANNED && !t->s->trains ? "planned: one step" : names[i]);
}

static bool put_events(struct trace *t)
{
    const struct snapshot_run *run = t->s->run;
    name_processes(t);
    if (!t->s->span) return true;
    put_ops(t, PLANNED, t->s->span);
    if (run && run->ops) put_ops(t, MEASURED, run->ops);
    if (run) put_passes(t, run);
    put_lines(t);
    put_tensors(t);
    return put_live(t);
}

void snapshot_trace(const struct snapshot *s, struct strbuf *out)
{
    size_t ops = (size_t)s->plan->tape.nops + 1;
    struct trace t = {.s = s,
                      .at = malloc(ops * sizeof *t.at),
                      .order = order_blocks(s),
                      .taken = calloc(ops, sizeof *t.taken)};
    bool good = t.at && t.order && t.taken;
    if (good) {
        snapshot_clock(s, t.at);
        json_writer_init(&t.w, out, 0);
        json_begin_object(&t.w, NULL);
        put_head(&t);
        json_begin_array(&t.w, "traceEvents");
        good = put_events(&t);
        json_end_array(&t.w);
        json_end_object(&t.w);
        strbuf_addc(out, '\n');
    }
    if (!good) out->failed = true;
    free(t.at);
    free(t.order);
    free(t.taken);
}
