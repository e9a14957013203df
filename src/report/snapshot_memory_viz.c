/* snapshot_memory_viz.c - a snapshot as the dictionary that torch.cuda.memory._snapshot() gives. See snapshot.h.
 *
 * A tier is a device of memory_viz: 0 the device, 1 the host, 2 the disk. Its arena is one segment, and what the plan counts
 * outside the arena a segment of its own, so that what device 0 has reserved is the plan's total. The trace is one
 * step: kept tensors are allocated when it begins, everything else when the tape reaches its first op, and freed behind
 * its last. Segments have what is left at the end, which is where memory_viz begins to play the trace backwards. Frames
 * are what tensor, at which op, of which class; memory_viz prints file, line and name of each.
 *
 * Sizes are rounded up to the device's alignment: the most that is allocated at once is the plan's lower bound. */
#include "base/pickle.h"
#include "report/snapshot.h"

#include <stdlib.h>

#define ARENA_ADDRESS    ((int64_t)1 << 44)
#define OVERHEAD_ADDRESS ((int64_t)1 << 43)

struct viz {
    const struct snapshot *s;
    struct pickle_writer w;
    struct snapshot_moment *at; /* snapshot_clock */
    int *begins, *ends;         /* blocks, in the order in which they do */
};

static int64_t tier_bytes(const struct snapshot *s, enum tier tier)
{
    const struct layout *l = &s->plan->layout;
    return tier == TIER_DEVICE ? l->arena_bytes : l->tier_bytes[tier];
}

/* A block at the very end may be rounded up beyond it. */
static int64_t size_of(const struct snapshot *s, const struct snapshot_block *b)
{
    int64_t room = tier_bytes(s, b->tier) - b->offset;
    return b->taken < room ? b->taken : room;
}

static int64_t overhead_of(const struct snapshot *s) { return s->plan->total - s->plan->layout.arena_bytes; }

/* --- order ---------------------------------------------------------------------------------------------------------- */

/* A block and what it is sorted by: its first op or its last, and for one op its address. */
struct keyed {
    int key, block;
    int64_t offset;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* NULL: no memory. Kept blocks come first and end last. */
static int *order_blocks(const struct snapshot *s, bool ends)
{
    size_t n = (size_t)s->blocks;
    struct keyed *keyed = malloc((n + 1) * sizeof *keyed);
    int *order = malloc((n + 1) * sizeof *order);
    if (keyed && order) {
        for (size_t i = 0; i < n; i++) {
            const struct snapshot_block *b = &s->block[i];
            int key = ends ? b->kept ? s->plan->tape.nops : b->last : b->kept ? -1 : b->first;
            keyed[i] = (struct keyed){key, (int)i, b->offset};
        }
        qsort(keyed, n, sizeof *keyed, by_key);
        for (size_t i = 0; i < n; i++) order[i] = keyed[i].block;
    } else {
        free(order);
        order = NULL;
    }
    free(keyed);
    return order;
}

/* --- frames --------------------------------------------------------------------------------------------------------- */

static void put_frame(struct pickle_writer *w, const char *name, const char *file, int line)
{
    pickle_begin_dict(w, NULL);
    pickle_str(w, "name", name);
    pickle_str(w, "filename", file);
    pickle_int(w, "line", line);
    pickle_end_dict(w);
}

/* Innermost first. A block's frames are written when it is allocated, and remembered by its number. */
static void put_frames(struct viz *v, int block)
{
    const struct snapshot *s = v->s;
    const struct snapshot_block *b = &s->block[block];
    const char *cls = tensor_class_name(b->cls);
    char name[SNAPSHOT_NAME];
    pickle_begin_list(&v->w, "frames");
    put_frame(&v->w, snapshot_block_name(s, b, name), cls, b->tensor >= 0 ? b->tensor : b->op);
    if (!b->kept)
        put_frame(&v->w, snapshot_op_name(s, b->op, name), snapshot_part_name(s->plan->tape.ops[b->op].part),
                  b->op);
    put_frame(&v->w, cls, b->kept ? "kept" : "plimsoll", 0);
    pickle_end_list(&v->w);
    pickle_remember(&v->w, (uint32_t)block);
}

static void put_overhead_frames(struct viz *v)
{
    pickle_begin_list(&v->w, "frames");
    put_frame(&v->w, "outside the arena: program, libraries, loader", "overhead", 0);
    pickle_end_list(&v->w);
}

/* --- the trace ------------------------------------------------------------------------------------------------------ */

static void begin_event(struct viz *v, const char *action, int64_t address, int64_t size, double seconds)
{
    pickle_begin_dict(&v->w, NULL);
    pickle_str(&v->w, "action", action);
    pickle_int(&v->w, "addr", address);
    pickle_int(&v->w, "size", size);
    pickle_int(&v->w, "stream", 0);
    pickle_int(&v->w, "time_us", (int64_t)(seconds * 1e6));
}

static void end_event(struct viz *v)
{
    pickle_end_dict(&v->w);
    snapshot_pause(v->s, v->w.out);
}

static void put_alloc(struct viz *v, int block)
{
    const struct snapshot_block *b = &v->s->block[block];
    begin_event(v, "alloc", ARENA_ADDRESS + b->offset, size_of(v->s, b), b->kept ? 0 : v->at[b->first].begin);
    pickle_str(&v->w, "category", tensor_class_name(b->cls));
    put_frames(v, block);
    end_event(v);
}

static void put_free(struct viz *v, int block)
{
    static const char *const actions[] = {"free_requested", "free_completed"};
    const struct snapshot_block *b = &v->s->block[block];
    for (int i = 0; i < 2; i++) {
        begin_event(v, actions[i], ARENA_ADDRESS + b->offset, size_of(v->s, b), v->at[b->last].end);
        pickle_recall(&v->w, "frames", (uint32_t)block);
        end_event(v);
    }
}

static void put_segment_alloc(struct viz *v, int64_t address, int64_t bytes)
{
    if (!bytes) return;
    begin_event(v, "segment_alloc", address, bytes, 0);
    pickle_begin_list(&v->w, "frames");
    pickle_end_list(&v->w);
    end_event(v);
}

/* Writes the trace. A tensor that ends after an op is freed before the next op's results are allocated. */
static void put_trace(struct viz *v, enum tier tier)
{
    const struct snapshot *s = v->s;
    pickle_begin_list(&v->w, NULL);
    put_segment_alloc(v, ARENA_ADDRESS, tier_bytes(s, tier));
    if (tier == TIER_DEVICE && overhead_of(s) > 0) {
        put_segment_alloc(v, OVERHEAD_ADDRESS, overhead_of(s));
        begin_event(v, "alloc", OVERHEAD_ADDRESS, overhead_of(s), 0);
        pickle_str(&v->w, "category", "overhead");
        put_overhead_frames(v);
        end_event(v);
    }
    for (int b = 0, e = 0; b < s->blocks || e < s->blocks;) {
        const struct snapshot_block *ends = e < s->blocks ? &s->block[v->ends[e]] : NULL;
        const struct snapshot_block *begins = b < s->blocks ? &s->block[v->begins[b]] : NULL;
        if (!begins && ends->kept) break;
        if (begins && (begins->kept || !ends || ends->kept || ends->last >= begins->first)) {
            if (begins->tier == tier) put_alloc(v, v->begins[b]);
            b++;
        } else {
            if (ends->tier == tier) put_free(v, v->ends[e]);
            e++;
        }
    }
    pickle_end_list(&v->w);
}

/* --- segments ------------------------------------------------------------------------------------------------------- */

static void begin_segment(struct viz *v, enum tier tier, int64_t address, int64_t total, int64_t active,
                          int64_t asked)
{
    pickle_begin_dict(&v->w, NULL);
    pickle_int(&v->w, "device", tier);
    pickle_int(&v->w, "address", address);
    pickle_int(&v->w, "total_size", total);
    pickle_int(&v->w, "allocated_size", active);
    pickle_int(&v->w, "active_size", active);
    pickle_int(&v->w, "requested_size", asked);
    pickle_int(&v->w, "stream", 0);
    pickle_str(&v->w, "segment_type", "large");
    pickle_pair(&v->w, "segment_pool_id", 0, 0);
    pickle_bool(&v->w, "is_expandable", false);
    pickle_begin_list(&v->w, "frames");
    pickle_end_list(&v->w);
    pickle_begin_list(&v->w, "blocks");
}

static void end_segment(struct viz *v)
{
    pickle_end_list(&v->w);
    pickle_end_dict(&v->w);
}

static void begin_block(struct viz *v, int64_t address, int64_t size, int64_t asked, const char *state)
{
    pickle_begin_dict(&v->w, NULL);
    pickle_int(&v->w, "address", address);
    pickle_int(&v->w, "size", size);
    pickle_int(&v->w, "requested_size", asked);
    pickle_str(&v->w, "state", state);
}

static void put_gap(struct viz *v, int64_t from, int64_t to)
{
    if (from >= to) return;
    begin_block(v, ARENA_ADDRESS + from, to - from, to - from, "inactive");
    pickle_begin_list(&v->w, "frames");
    pickle_end_list(&v->w);
    pickle_end_dict(&v->w);
}

/* Kept blocks begin first and by address. */
static void put_arena(struct viz *v, enum tier tier)
{
    const struct snapshot *s = v->s;
    int64_t active = 0, asked = 0, end = 0;
    if (!tier_bytes(s, tier)) return;
    for (int i = 0; i < s->blocks; i++)
        if (s->block[i].kept && s->block[i].tier == tier)
            active += size_of(s, &s->block[i]), asked += s->block[i].bytes;
    begin_segment(v, tier, ARENA_ADDRESS, tier_bytes(s, tier), active, asked);
    for (int i = 0; i < s->blocks && s->block[v->begins[i]].kept; i++) {
        const struct snapshot_block *b = &s->block[v->begins[i]];
        if (b->tier != tier) continue;
        put_gap(v, end, b->offset);
        begin_block(v, ARENA_ADDRESS + b->offset, size_of(s, b), b->bytes, "active_allocated");
        pickle_recall(&v->w, "frames", (uint32_t)v->begins[i]);
        end_event(v);
        end = b->offset + size_of(s, b);
    }
    put_gap(v, end, tier_bytes(s, tier));
    end_segment(v);
}

static void put_overhead(struct viz *v)
{
    int64_t bytes = overhead_of(v->s);
    if (bytes <= 0) return;
    begin_segment(v, TIER_DEVICE, OVERHEAD_ADDRESS, bytes, bytes, bytes);
    begin_block(v, OVERHEAD_ADDRESS, bytes, bytes, "active_allocated");
    put_overhead_frames(v);
    pickle_end_dict(&v->w);
    end_segment(v);
}

/* Writes the settings that memory_viz shows. */
static void put_settings(struct viz *v)
{
    const struct plan *p = v->s->plan;
    pickle_begin_dict(&v->w, "allocator_settings");
    pickle_str(&v->w, "allocator", "plimsoll: planned arena");
    pickle_str(&v->w, "device", v->s->facts->name);
    pickle_int(&v->w, "budget", p->budget);
    pickle_int(&v->w, "planned", p->total);
    if (v->s->run) {
        pickle_str(&v->w, v->s->trains ? "job" : "model", v->s->run->job);
        pickle_int(&v->w, "step", v->s->run->step);
        if (v->s->trains) pickle_double(&v->w, "loss", v->s->run->loss);
    }
    pickle_end_dict(&v->w);
}

static void put_all(struct viz *v)
{
    int tiers = TIER_DEVICE + 1;
    for (int i = 0; i < TIER_COUNT; i++)
        if (tier_bytes(v->s, (enum tier)i)) tiers = i + 1;
    pickle_begin_dict(&v->w, NULL);
    pickle_begin_list(&v->w, "device_traces");
    for (int i = 0; i < tiers; i++) put_trace(v, (enum tier)i);
    pickle_end_list(&v->w);
    pickle_begin_list(&v->w, "segments");
    put_overhead(v);
    for (int i = 0; i < tiers; i++) put_arena(v, (enum tier)i);
    pickle_end_list(&v->w);
    put_settings(v);
    pickle_begin_list(&v->w, "external_annotations");
    pickle_end_list(&v->w);
    pickle_end_dict(&v->w);
}

void snapshot_memory_viz(const struct snapshot *s, struct strbuf *out)
{
    struct viz v = {.s = s,
                    .at = malloc(((size_t)s->plan->tape.nops + 1) * sizeof *v.at),
                    .begins = order_blocks(s, false),
                    .ends = order_blocks(s, true)};
    if (v.at && v.begins && v.ends) {
        snapshot_clock(s, v.at);
        pickle_writer_init(&v.w, out);
        put_all(&v);
        pickle_end(&v.w);
    } else {
        out->failed = true;
    }
    free(v.at);
    free(v.begins);
    free(v.ends);
}
