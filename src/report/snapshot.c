/* snapshot.c - the blocks of a plan and its ops on the planner's clock, and their form as JSON. See snapshot.h. */
#include "report/snapshot.h"
#include "base/file.h"
#include "report/facts_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- formats -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *ending;
} formats[SNAPSHOT_FORMATS] = {[SNAPSHOT_JSON] = {"json", ".json"},
                               [SNAPSHOT_TRACE] = {"trace", ".trace.json"},
                               [SNAPSHOT_MEMORY_VIZ] = {"memory_viz", ".pickle"}};

const char *snapshot_format_name(enum snapshot_format format) { return formats[format].name; }
const char *snapshot_format_ending(enum snapshot_format format) { return formats[format].ending; }

enum plim_status snapshot_format_parse(const char *text, enum snapshot_format *out, struct plim_error *err)
{
    for (int i = 0; i < SNAPSHOT_FORMATS; i++)
        if (!strcmp(text, formats[i].name)) return *out = (enum snapshot_format)i, PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "unknown snapshot format '%.40s'; write json, trace or memory_viz",
                     text);
}

/* The longest ending of a format that the path has; *bytes: of it, 0 where there is none. */
static enum snapshot_format find_ending(const char *path, size_t *bytes)
{
    size_t len = strlen(path);
    enum snapshot_format best = SNAPSHOT_JSON;
    *bytes = 0;
    for (int i = 0; i < SNAPSHOT_FORMATS; i++) {
        size_t n = strlen(formats[i].ending);
        if (n <= *bytes || n > len || strcmp(path + len - n, formats[i].ending) != 0) continue;
        *bytes = n, best = (enum snapshot_format)i;
    }
    return best;
}

enum snapshot_format snapshot_format_of(const char *path)
{
    size_t bytes;
    return find_ending(path, &bytes);
}

void snapshot_rank_path(const char *path, int rank, char out[SNAPSHOT_PATH])
{
    size_t ending;
    find_ending(path, &ending);
    int stem = (int)(strlen(path) - ending);
    if (rank == 0)
        snprintf(out, SNAPSHOT_PATH, "%s", path);
    else
        snprintf(out, SNAPSHOT_PATH, "%.*s.rank-%d%s", stem, path, rank, path + stem);
}

enum plim_status snapshot_wish_read(const struct node *message, struct snapshot_wish *out,
                                    struct plim_error *err)
{
    const char *file = node_string(node_get(message, "file"), "");
    enum plim_status status =
        snapshot_format_parse(node_string(node_get(message, "format"), "json"), &out->format, err);
    if (status != PLIM_OK) return status;
    if ((*file && *file != '/') || strlen(file) >= sizeof out->file)
        return plim_fail(err, PLIM_BAD_INPUT, "\"file\" must be an absolute path of fewer than %d bytes",
                         SNAPSHOT_PATH);
    strcpy(out->file, file);
    return PLIM_OK;
}

/* --- blocks --------------------------------------------------------------------------------------------------------- */

/* The last op of each tensor with bytes of its own: of those that take each other's bytes over, the one before the next. */
static void find_ends(const struct tape *tape, const struct layout *l, int *last, int *holder)
{
    for (int i = 0; i < tape->ntensors; i++) last[i] = l->life[i].last, holder[i] = i;
    for (int i = 0; i < tape->nops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            int id = tape->ops[i].out[k];
            if (id < 0 || l->buffer[id] == id || l->life[id].first != i) continue;
            int root = l->buffer[id];
            last[id] = last[holder[root]];
            last[holder[root]] = i - 1;
            holder[root] = id;
        }
}

static void add_block(struct snapshot *s, struct snapshot_block block)
{
    int64_t align = (int64_t)s->facts->align;
    block.taken = (block.bytes + align - 1) & -align;
    s->block[s->blocks++] = block;
}

static void add_tensors(struct snapshot *s, const int *last)
{
    const struct tape *tape = &s->plan->tape;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool kept = t->flags & TENSOR_KEPT, used = last[i] >= 0;
        bool placed = used || kept || t->tier != TIER_DEVICE;
        if (t->view_of >= 0 || !placed) continue;
        int first = used ? s->plan->layout.life[i].first : 0;
        add_block(s, (struct snapshot_block){.tensor = i,
                                             .op = first,
                                             .cls = t->cls,
                                             .tier = t->tier,
                                             .kept = kept,
                                             .offset = s->plan->layout.offset[i],
                                             .bytes = tensor_bytes(t),
                                             .first = first,
                                             .last = used ? last[i] : tape->nops - 1});
    }
}

/* Scratch lives as long as the group of its op. */
static void add_scratch(struct snapshot *s)
{
    const struct layout *l = &s->plan->layout;
    for (int group = 0, end; group < l->nops; group = end) {
        end = layout_group_end(l, group);
        for (int i = group; i < end; i++)
            if (l->work_bytes[i])
                add_block(s, (struct snapshot_block){.tensor = -1,
                                                     .op = i,
                                                     .cls = CLASS_WORK,
                                                     .tier = TIER_DEVICE,
                                                     .offset = l->work_offset[i],
                                                     .bytes = l->work_bytes[i],
                                                     .first = group,
                                                     .last = end - 1});
    }
}

/* Exchanges beside computing have one scratch for the loop and one for the update. */
static void add_lane_scratch(struct snapshot *s)
{
    const struct layout *l = &s->plan->layout;
    const int begin[3] = {0, s->plan->tape.loop_end, l->nops};
    for (int part = 0; part < 2; part++) {
        int op = begin[part];
        if (!l->lane_bytes[part]) continue;
        while (!op_collects(&s->plan->tape.ops[op])) op++;
        add_block(s, (struct snapshot_block){.tensor = -1,
                                             .op = op,
                                             .cls = CLASS_WORK,
                                             .tier = TIER_DEVICE,
                                             .offset = l->lane_offset[part],
                                             .bytes = l->lane_bytes[part],
                                             .first = begin[part],
                                             .last = begin[part + 1] - 1});
    }
}

static enum plim_status find_spans(struct snapshot *s, struct plim_error *err)
{
    const struct tape *tape = &s->plan->tape;
    struct tape_time time;
    enum plim_status status =
        tape_spans_of(tape, s->facts, s->plan->knobs.accumulation == 1, s->span, &time, err);
    if (status != PLIM_OK) return status;
    for (int i = tape->loop_end; i < tape->nops; i++) s->span[i].start += time.loop_seconds;
    s->seconds = time.loop_seconds + time.update_seconds;
    return PLIM_OK;
}

/* A plan that could not be made has neither ops nor places. */
enum plim_status snapshot_init(struct snapshot *s, const struct plan *plan, const struct device_facts *facts,
                               const struct snapshot_run *run, struct plim_error *err)
{
    size_t tensors = (size_t)plan->tape.ntensors, ops = (size_t)plan->tape.nops;
    *s = (struct snapshot){.plan = plan, .facts = facts, .run = run};
    for (size_t i = 0; i < ops; i++) s->trains |= plan->tape.ops[i].part == PART_UPDATE;
    if (!plan->layout.offset || !ops) return PLIM_OK;
    s->span = calloc(ops + 1, sizeof *s->span);
    s->block = malloc((tensors + ops + 3) * sizeof *s->block); /* two scratches of exchanges */
    int *ends = malloc((2 * tensors + 1) * sizeof *ends);
    enum plim_status status = s->span && s->block && ends
                                  ? find_spans(s, err)
                                  : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a snapshot");
    if (status == PLIM_OK) {
        find_ends(&plan->tape, &plan->layout, ends, ends + tensors);
        add_tensors(s, ends);
        add_scratch(s);
        add_lane_scratch(s);
    }
    free(ends);
    if (status != PLIM_OK) snapshot_release(s);
    return status;
}

void snapshot_release(struct snapshot *s)
{
    free(s->span);
    free(s->block);
    *s = (struct snapshot){0};
}

/* --- words and time ------------------------------------------------------------------------------------------------- */

const char *snapshot_lane_name(enum lane lane)
{
    static const char *const names[LANES] = {
        [LANE_COMPUTE] = "compute", [LANE_COPY_IN] = "fetch",   [LANE_COPY_OUT] = "store",
        [LANE_HOST] = "host",       [LANE_LINK] = "collective", [LANE_DISK] = "disk"};
    return names[lane];
}

const char *snapshot_part_name(enum op_part part)
{
    static const char *const names[PART_COUNT] = {[PART_FORWARD] = "forward",
                                                  [PART_HEAD] = "loss",
                                                  [PART_BACKWARD] = "backward",
                                                  [PART_RECOMPUTE] = "recompute",
                                                  [PART_UPDATE] = "update"};
    return names[part];
}

const char *snapshot_op_name(const struct snapshot *s, int index, char buf[SNAPSHOT_NAME])
{
    const struct op *op = &s->plan->tape.ops[index];
    int id = -1;
    for (int k = 0; k < OP_MAX_OUT && id < 0; k++) id = op->out[k];
    for (int k = 0; k < OP_MAX_IN && id < 0; k++) id = op->in[k];
    int n = snprintf(buf, SNAPSHOT_NAME, "%s ", op_name(op->kind));
    if (id >= 0) tape_tensor_name(&s->plan->tape, id, buf + n, SNAPSHOT_NAME - (size_t)n);
    return buf;
}

const char *snapshot_block_name(const struct snapshot *s, const struct snapshot_block *block,
                                char buf[SNAPSHOT_NAME])
{
    char op[SNAPSHOT_NAME];
    if (block->tensor >= 0) return tape_tensor_name(&s->plan->tape, block->tensor, buf, SNAPSHOT_NAME);
    snprintf(buf, SNAPSHOT_NAME, "scratch of %.*s", SNAPSHOT_NAME - 16, snapshot_op_name(s, block->op, op));
    return buf;
}

void snapshot_clock(const struct snapshot *s, struct snapshot_moment *at)
{
    const struct op_span *spans = s->run && s->run->ops ? s->run->ops : s->span;
    int nops = s->span ? s->plan->tape.nops : 0;
    bool in_turn = !s->facts->async_copies;
    double now = 0, last = spans == s->span ? s->seconds : 0;
    for (int i = 0; i < nops; i++) {
        double end = spans[i].start + spans[i].seconds;
        bool known = spans[i].seconds >= 0, moves = known && (in_turn || spans[i].lane == LANE_COMPUTE);
        if (known && end > last) last = end;
        if (moves && spans[i].start > now) now = spans[i].start;
        at[i].begin = now;
        if (moves && end > now) now = end;
        at[i].end = now;
    }
    at[nops].begin = at[nops].end = last > now ? last : now;
}

/* --- JSON ----------------------------------------------------------------------------------------------------------- */

static double microseconds(double seconds) { return 1e6 * seconds; }

static void put_head(const struct snapshot *s, struct json_writer *w)
{
    const struct plan *p = s->plan;
    json_str(w, "format", "plimsoll-snapshot");
    json_int(w, "version", 1);
    json_int(w, "total", p->total);
    json_int(w, "budget", p->budget);
    json_int(w, "overhead", p->total - p->layout.arena_bytes);
    json_str(w, "device", s->facts->name);
    json_int(w, "align", (int64_t)s->facts->align);
    json_int(w, "micro_batch", p->knobs.micro_batch);
    json_int(w, "accumulation", p->knobs.accumulation);
    json_double(w, "step_us", microseconds(p->step_seconds));
    json_int(w, "loop_end", p->tape.loop_end);
    json_int(w, "peak_op", p->layout.peak_op);
    json_int(w, "peak_bytes", p->layout.lower_bound);
    json_begin_array(w, "tiers");
    for (int i = 0; i < TIER_COUNT; i++) {
        json_begin_object(w, NULL);
        json_str(w, "name", tier_name((enum tier)i));
        json_int(w, "bytes", i == TIER_DEVICE ? p->layout.arena_bytes : p->layout.tier_bytes[i]);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_array(w, "classes");
    for (int i = 0; i < CLASS_COUNT; i++) json_str(w, NULL, tensor_class_name((enum tensor_class)i));
    json_end_array(w);
    facts_json(s->facts, w, "facts");
}

static void put_op(const struct snapshot *s, int i, struct json_writer *w)
{
    char name[SNAPSHOT_NAME];
    STRBUF_AUTO shapes = STRBUF_INIT;
    const struct op *op = &s->plan->tape.ops[i];
    const struct op_span *measured = s->run && s->run->ops ? &s->run->ops[i] : NULL;
    json_begin_object(w, NULL);
    json_str(w, "name", snapshot_op_name(s, i, name));
    json_str(w, "kind", op_name(op->kind));
    json_str(w, "part", snapshot_part_name(op->part));
    if (op->layer >= 0) json_int(w, "layer", op->layer);
    json_str(w, "lane", snapshot_lane_name(s->span[i].lane));
    json_double(w, "start_us", microseconds(s->span[i].start));
    json_double(w, "us", microseconds(s->span[i].seconds));
    tape_print_shapes(&s->plan->tape, i, &shapes);
    json_str(w, "shapes", strbuf_text(&shapes));
    if (measured && measured->seconds >= 0) {
        json_double(w, "measured_start_us", microseconds(measured->start));
        json_double(w, "measured_us", microseconds(measured->seconds));
    }
    json_end_object(w);
    snapshot_pause(s, w->out);
}

static void put_block(const struct snapshot *s, const struct snapshot_block *b, struct json_writer *w)
{
    char name[SNAPSHOT_NAME];
    json_begin_object(w, NULL);
    json_str(w, "name", snapshot_block_name(s, b, name));
    json_int(w, "class", b->cls);
    json_int(w, "tier", b->tier);
    json_int(w, "offset", b->offset);
    json_int(w, "bytes", b->bytes);
    json_int(w, "first", b->first);
    json_int(w, "last", b->last);
    json_end_object(w);
    snapshot_pause(s, w->out);
}

static void put_pass(const struct snapshot *s, const struct snapshot_pass *p, struct json_writer *w)
{
    json_begin_object(w, NULL);
    json_str(w, "what", p->update ? "update" : s->trains ? "micro-batch" : "step");
    json_double(w, "start_us", microseconds(p->start));
    json_double(w, "us", microseconds(p->seconds));
    json_int(w, "used", p->used);
    json_end_object(w);
}

static void put_run(const struct snapshot *s, struct json_writer *w)
{
    const struct snapshot_run *run = s->run;
    json_begin_object(w, "run");
    json_str(w, s->trains ? "job" : "model", run->job);
    json_int(w, "step", run->step);
    if (s->trains) {
        json_int(w, "steps", run->steps);
        json_double(w, "loss", run->loss);
        json_double(w, "lr", run->lr);
        json_double(w, "tokens_per_s", run->tokens_per_s);
    }
    json_begin_object(w, "measured");
    json_double(w, "step_us", microseconds(run->seconds));
    if (run->last_seconds > 0) json_double(w, "last_step_us", microseconds(run->last_seconds));
    json_int(w, "used", run->used);
    json_begin_array(w, "passes");
    for (int i = 0; i < run->passes; i++) put_pass(s, &run->pass[i], w);
    json_end_array(w);
    json_end_object(w);
    json_end_object(w);
    if (run->more) run->more(run->arg, w);
}

void snapshot_json(const struct snapshot *s, struct json_writer *w)
{
    put_head(s, w);
    json_begin_array(w, "ops");
    for (int i = 0; s->span && i < s->plan->tape.nops; i++) put_op(s, i, w);
    json_end_array(w);
    json_begin_array(w, "tensors");
    for (int i = 0; i < s->blocks; i++) put_block(s, &s->block[i], w);
    json_end_array(w);
    if (s->run) put_run(s, w);
}

/* --- files ---------------------------------------------------------------------------------------------------------- */

#define PIECE ((size_t)64 << 10) /* bytes that are written at once */

struct drained {
    struct file_atomic file;
    uint64_t bytes;
    enum plim_status status;
    struct plim_error *err;
};

static void write_all(struct drained *d, struct strbuf *out)
{
    if (d->status == PLIM_OK) d->status = strbuf_status(out, d->err);
    if (d->status == PLIM_OK)
        d->status = file_pwrite_full(d->file.fd, out->data, out->len, d->bytes, d->file.path, d->err);
    d->bytes += out->len;
    strbuf_truncate(out, 0);
}

static void write_piece(void *arg, struct strbuf *out)
{
    if (out->len >= PIECE) write_all(arg, out);
}

static void put_document(const struct snapshot *s, struct strbuf *out)
{
    struct json_writer w = json_object(out, 1);
    snapshot_json(s, &w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

enum plim_status snapshot_save(struct snapshot *s, enum snapshot_format format, const char *path,
                               struct plim_error *err)
{
    static void (*const put[SNAPSHOT_FORMATS])(const struct snapshot *, struct strbuf *) = {
        [SNAPSHOT_JSON] = put_document,
        [SNAPSHOT_TRACE] = snapshot_trace,
        [SNAPSHOT_MEMORY_VIZ] = snapshot_memory_viz};
    struct drained d = {.err = err};
    struct strbuf out = STRBUF_INIT;
    enum plim_status status = file_atomic_begin(&d.file, path, err);
    if (status != PLIM_OK) return status;
    s->drain = write_piece, s->drain_arg = &d;
    put[format](s, &out);
    write_all(&d, &out);
    s->drain = NULL;
    strbuf_release(&out);
    if (d.status == PLIM_OK) return file_atomic_commit(&d.file, err);
    file_atomic_abandon(&d.file);
    return d.status;
}
