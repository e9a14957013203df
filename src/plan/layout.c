/* layout.c - lifetimes, in-place take-over, bottom of the arena, packing. See layout.h for the invariants. */
#include "plan/layout.h"
#include "plan/fuse.h"
#include "plan/pack.h"
#include "tape/group.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than any machine has, and far enough from INT64_MAX to be added to. */
#define HUGE_BYTES 1e18

/* align is a power of two. */
static int64_t align_up(int64_t n, int64_t align) { return (n + align - 1) & -align; }

/* Alignment of tensors on a tier. */
static int64_t tier_align(const struct device_facts *facts, enum tier tier)
{
    int64_t align = (int64_t)facts->align;
    return tier == TIER_DISK && align < DISK_BLOCK ? DISK_BLOCK : align;
}

static bool in_arena(const struct tensor *t) { return t->tier == TIER_DEVICE && t->view_of < 0; }
static bool is_transient(const struct tensor *t) { return in_arena(t) && !(t->flags & TENSOR_KEPT); }

/* Is this where a disk reads into memory without a buffer between? */
static bool begins_aligned(const struct device_facts *facts, const struct tensor *t)
{
    return facts->unified_memory && facts->align < DISK_MEMORY && t->flags & TENSOR_OF_DISK &&
           tensor_bytes(t) >= DISK_SMALL;
}

/* Bytes that a transient needs. The packer has one alignment for all, so some transients begin slightly after their
 * place. */
static int64_t packed_bytes(const struct device_facts *facts, const struct tensor *t)
{
    int64_t slack = begins_aligned(facts, t) ? DISK_MEMORY - (int64_t)facts->align : 0;
    return tensor_bytes(t) + slack;
}

void layout_release(struct layout *l)
{
    free(l->offset);
    free(l->work_offset);
    free(l->work_bytes);
    free(l->life);
    free(l->buffer);
    free(l->group_end);
    *l = (struct layout){0};
}

/* Offsets are needed by packing alone. */
static enum plim_status layout_alloc(struct layout *l, const struct tape *tape,
                                     const struct layout_options *options, bool offsets,
                                     struct plim_error *err)
{
    bool groups = options->facts->groups_ops;
    size_t n = (size_t)tape->ntensors + 1, m = (size_t)tape->nops + 1;
    *l = (struct layout){.ntensors = tape->ntensors, .nops = tape->nops};
    l->offset = offsets ? calloc(n, sizeof *l->offset) : NULL;
    l->life = malloc(n * sizeof *l->life);
    l->buffer = malloc(n * sizeof *l->buffer);
    l->work_offset = offsets ? calloc(m, sizeof *l->work_offset) : NULL;
    l->work_bytes = malloc(m * sizeof *l->work_bytes);
    l->group_end = groups ? malloc(m * sizeof *l->group_end) : NULL;
    bool good = l->life && l->buffer && l->work_bytes && (l->group_end || !groups);
    if (good && ((l->offset && l->work_offset) || !offsets)) return PLIM_OK;
    layout_release(l);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a layout was made");
}

static void extend(struct lifetime *life, int first, int last)
{
    if (first < life->first) life->first = first;
    if (last > life->last) life->last = last;
}

/* Ops [first, last] touch a tensor, and its root. */
static void touch(struct layout *l, const struct tape *tape, int id, int first, int last)
{
    for (; id >= 0; id = tape->tensors[id].view_of) extend(&l->life[id], first, last);
}

/* Invariant 2: what is added to is carried from micro-batch to micro-batch. */
static void carry(struct layout *l, const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_OUT; k++) {
        if (op->out[k] < 0) continue;
        int root = tape_root(tape, op->out[k]);
        bool adds = tape->tensors[root].cls == CLASS_GRAD ||
                    (tape->tensors[root].flags & (TENSOR_OUTPUT | TENSOR_CARRIED));
        if (adds) extend(&l->life[root], 0, tape->loop_end - 1);
    }
}

/* Invariant 5: written in one pass and read in another one or in the update. Where the update is a tape by itself, it is
 * what comes in. */
static bool is_carried(const struct layout *l, const struct tape *tape, int id)
{
    const struct tensor *t = &tape->tensors[id];
    if (!is_transient(t) || l->life[id].last < 0) return false;
    if (tape->loop_end == 0) return t->flags & TENSOR_INPUT;
    return t->cls == CLASS_GRAD
               ? t->owner >= 0 && tape->tensors[t->owner].cls == CLASS_PARAM
               : (t->flags & (TENSOR_OUTPUT | TENSOR_CARRIED)) ||
                     (l->life[id].first < tape->loop_end && l->life[id].last >= tape->loop_end);
}

/* Parts of all ranks that are added up at once. */
static int64_t collective_work(const struct tape *tape, const struct op *op, const struct device_facts *facts)
{
    bool adds = op->kind == OP_REDUCE || op->kind == OP_SUM;
    int ranks = facts_among(facts, op->attr.among);
    return adds ? op_collective_work(tensor_bytes(&tape->tensors[op->in[MOVE_FROM]]), ranks) : 0;
}

static void add_collective(struct layout *l, const struct tape *tape, int i, const struct device_facts *facts)
{
    int64_t bytes = collective_work(tape, &tape->ops[i], facts), *lane = &l->lane_bytes[i >= tape->loop_end];
    if (!facts->async_exchanges)
        l->work_bytes[i] = bytes;
    else if (bytes > *lane)
        *lane = bytes;
}

/* Invariant 8: rounded rows lie in the scratch of the first product. A result that adds in place begins there. Heads that are split are read
 * until attention has its result. */
static void keep_apart(struct layout *l, const struct tape *tape, int begin)
{
    int last = fuse_kept_apart(tape, begin) - 1;
    const struct op *first = &tape->ops[begin];
    if (last == begin) return;
    for (int k = 0; k < OP_MAX_IN; k++)
        if (op_shares(first->kind, 0) != k) touch(l, tape, first->in[k], begin, last);
    for (int k = 0; k < OP_MAX_OUT; k++) touch(l, tape, first->out[k], begin, last);
    for (int i = begin + 2; i <= last; i++)
        if (tape->ops[i].kind == OP_LINEAR_F8 && tape->ops[i].in[LINEAR_F8_ADD] < 0)
            touch(l, tape, tape->ops[i].out[LINEAR_F8_Y], begin + 1, i);
}

/* Lifetimes by what ops touch, the first of a part of the tape by whether it is below loop_end. */
static void find_touches(struct layout *l, const struct tape *tape, const struct layout_options *options)
{
    const struct device_facts *facts = options->facts;
    for (int i = 0; i < tape->ntensors; i++) l->life[i] = (struct lifetime){INT_MAX, -1}, l->buffer[i] = i;
    for (int i = 0, group = 0, end = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        if (i >= end) group = i, end = l->group_end ? tape_group_end(tape, i) : i + 1;
        if (l->group_end) l->group_end[i] = end;
        for (int k = 0; k < OP_MAX_IN && row->in[k]; k++) touch(l, tape, op->in[k], i, i);
        for (int k = 0; k < OP_MAX_OUT && row->out[k];
             k++) /* invariant 4: not on bytes that end in the group */
            touch(l, tape, op->out[k], group, i);
        if (op->accumulate == ACC_AFTER_FIRST && options->accumulation > 1) carry(l, tape, op);
        if (l->group_end) keep_apart(l, tape, i);
        l->work_bytes[i] = 0;
        if (op_collects(op))
            add_collective(l, tape, i, facts);
        else if (facts->workspace && op_computes(op) && !op->attr.on_host)
            l->work_bytes[i] = (int64_t)facts->workspace(facts, tape, op);
    }
}

static void find_lifetimes(struct layout *l, const struct tape *tape, const struct layout_options *options)
{
    find_touches(l, tape, options);
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool rests = (t->flags & TENSOR_INPUT) && (t->flags & TENSOR_OUTPUT); /* see pass_part */
        bool touched = l->life[i].last >= 0;
        if (touched && !(t->flags & TENSOR_ELSEWHERE)) l->part_tensors[l->life[i].first >= tape->loop_end]++;
        if (t->view_of >= 0 || (!touched && !rests)) continue;
        if (t->flags & TENSOR_INPUT) l->life[i].first = 0;
        if (t->flags & TENSOR_OUTPUT) l->life[i].last = tape->nops - 1;
        if (options->facts->whole_programs && t->flags & (TENSOR_INPUT | TENSOR_OUTPUT))
            l->life[i] = (struct lifetime){0, tape->nops - 1};
        if (t->flags & TENSOR_KEPT || (options->carried_below && is_carried(l, tape, i)))
            l->life[i] = (struct lifetime){0, tape->nops - 1};
    }
}

static bool is_alone(const struct layout *l, int op)
{
    return layout_group_end(l, op) == op + 1 && (op == 0 || layout_group_end(l, op - 1) == op);
}

/* May output `out` of op `index` take over the bytes of input `in`? What most often forbids it is asked first. */
static bool can_take_over(const struct layout *l, const struct tape *tape, int index, int out, int in)
{
    if (out < 0 || in < 0 || out == in || l->life[out].first != index) return false;
    if (l->life[l->buffer[in]].last != index || !is_alone(l, index)) return false;
    const struct tensor *a = &tape->tensors[in], *b = &tape->tensors[out];
    if (!is_transient(a) || !is_transient(b) || (a->flags | b->flags) & (TENSOR_INPUT | TENSOR_OUTPUT))
        return false;
    if (tensor_bytes(a) != tensor_bytes(b)) return false;
    int uses = 0; /* the input must not come in through another slot as well */
    for (int k = 0; k < OP_MAX_IN; k++) {
        int id = tape->ops[index].in[k];
        if (id >= 0 && l->buffer[tape_root(tape, id)] == l->buffer[in]) uses++;
    }
    return uses == 1;
}

static void share_in_place(struct layout *l, const struct tape *tape)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        for (int o = 0; o < OP_MAX_OUT && row->out[o]; o++) {
            int slot = op_shares(op->kind, o);
            if (slot < 0) continue;
            int in = op->in[slot], out = op->out[o];
            if (!can_take_over(l, tape, i, out, in)) continue;
            int buffer = l->buffer[in];
            l->buffer[out] = buffer;
            l->life[buffer].last = l->life[out].last;
        }
    }
}

/* Places at the bottom of the arena: what never leaves the device, parameters, then each parameter's master and
 * moments together, then the rest. */
enum { RANK_NEAR, RANK_PARAM, RANK_STATE, RANK_REST, RANKS = RANK_REST + 5 };

static int kept_rank(const struct tensor *t)
{
    static const int ranks[CLASS_COUNT] = {
        [CLASS_PARAM] = RANK_PARAM,  [CLASS_MASTER] = RANK_STATE, [CLASS_STATE] = RANK_STATE,
        [CLASS_KV] = RANK_REST,      [CLASS_IO] = RANK_REST + 1,  [CLASS_GRAD] = RANK_REST + 2,
        [CLASS_ACT] = RANK_REST + 3, [CLASS_WORK] = RANK_REST + 4};
    return t->flags & TENSOR_NEAR ? RANK_NEAR : ranks[t->cls];
}

struct kept {
    int rank, owner, id;
};

static int kept_before(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->rank == RANK_STATE && x->owner != y->owner) return x->owner - y->owner;
    return x->id - y->id;
}

/* True if class, layer, label, tier and parameter are equal. */
static bool is_same(const struct tape *a, int i, const struct tape *b, int j)
{
    const struct tensor *t = &a->tensors[i], *u = &b->tensors[j];
    if (t->view_of >= 0 || u->view_of >= 0 || (t->owner < 0) != (u->owner < 0)) return false;
    if (t->cls != u->cls || t->layer != u->layer || t->tier != u->tier || strcmp(t->label, u->label))
        return false;
    if (t->owner < 0) return true;
    const struct tensor *of = &a->tensors[t->owner], *other = &b->tensors[u->owner];
    return of->layer == other->layer && !strcmp(of->label, other->label);
}

/* Tapes of one model have their tensors in about the same order: the search begins where `id` is. */
static bool inherit_offset(struct layout *l, const struct tape *tape, int id, const struct layout_options *o)
{
    if (!o->above) return false;
    int n = o->above_tape->ntensors;
    for (int k = 0; k < n; k++) {
        int i = (id + k) % n;
        const struct tensor *u = &o->above_tape->tensors[i];
        bool stands = u->flags & TENSOR_KEPT || u->tier != TIER_DEVICE || o->carried_below;
        if (stands && is_same(tape, id, o->above_tape, i)) return l->offset[id] = o->above->offset[i], true;
    }
    return false;
}

static bool is_placed(const struct tensor *t)
{
    return t->view_of < 0 && (t->flags & TENSOR_KEPT || t->tier != TIER_DEVICE);
}

/* Kept tensors and all that is on lower tiers, where nothing shares its bytes with anything. */
static int list_kept(const struct tape *tape, struct kept *list)
{
    int n = 0;
    int count[RANKS + 1] = {0};
    for (int i = 0; i < tape->ntensors; i++)
        if (is_placed(&tape->tensors[i])) count[kept_rank(&tape->tensors[i]) + 1]++, n++;
    for (int rank = 0; rank < RANKS; rank++) count[rank + 1] += count[rank];
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (is_placed(t)) list[count[kept_rank(t)]++] = (struct kept){kept_rank(t), t->owner, i};
    }
    for (int i = 1; i < n;
         i++) /* passes make state in the order of its parameters, so a rank is mostly in order */
        if (kept_before(&list[i - 1], &list[i]) > 0) {
            qsort(list, (size_t)n, sizeof *list, kept_before);
            break;
        }
    return n;
}

/* Lower tiers are filled in the order in which things leave: state, from the last parameter on, then parameters, also
 * from the last on, then the rest. A larger share adds to a smaller one's end. */
static void place_lower(struct layout *l, const struct tape *tape, const struct layout_options *options,
                        const struct kept *list, int n)
{
    for (int round = 0; round < 3; round++)
        for (int k = n - 1; k >= 0; k--) {
            const struct tensor *t = &tape->tensors[list[k].id];
            int turn = list[k].rank == RANK_STATE ? 0 : list[k].rank == RANK_PARAM ? 1 : 2;
            if (t->tier == TIER_DEVICE || turn != round || inherit_offset(l, tape, list[k].id, options))
                continue;
            l->offset[list[k].id] = l->tier_bytes[t->tier];
            l->tier_bytes[t->tier] += align_up(tensor_bytes(t), tier_align(options->facts, t->tier));
        }
}

/* Offsets of kept tensors in the arena and of everything on lower tiers. */
static enum plim_status place_kept(struct layout *l, const struct tape *tape,
                                   const struct layout_options *options, struct plim_error *err)
{
    int64_t align = (int64_t)options->facts->align;
    struct kept *list = malloc(((size_t)tape->ntensors + 1) * sizeof *list);
    if (!list) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a layout was made");
    int n = list_kept(tape, list);
    if (options->above) {
        l->kept_bytes = options->above->kept_bytes;
        memcpy(l->tier_bytes, options->above->tier_bytes, sizeof l->tier_bytes);
    }
    for (int k = 0; k < n; k++) {
        int i = list[k].id;
        if (tape->tensors[i].tier != TIER_DEVICE || inherit_offset(l, tape, i, options)) continue;
        l->offset[i] = l->kept_bytes;
        l->kept_bytes += align_up(tensor_bytes(&tape->tensors[i]), align);
    }
    place_lower(l, tape, options, list, n);
    free(list);
    return PLIM_OK;
}

/* Offsets of what is carried, above the kept tensors. */
static enum plim_status place_carried(struct layout *l, const struct tape *tape,
                                      const struct layout_options *options, struct plim_error *err)
{
    char name[160];
    int64_t align = (int64_t)options->facts->align;
    if (!options->carried_below) return PLIM_OK;
    if (options->above) l->carried_bytes = options->above->carried_bytes;
    for (int i = 0; i < tape->ntensors; i++) {
        if (!is_carried(l, tape, i) || inherit_offset(l, tape, i, options)) continue;
        if (options->above)
            return plim_fail(err, PLIM_BUG, "layout: %s is not carried by the tape below",
                             tape_tensor_name(tape, i, name, sizeof name));
        l->offset[i] = l->kept_bytes + l->carried_bytes;
        l->carried_bytes += align_up(tensor_bytes(&tape->tensors[i]), align);
    }
    return PLIM_OK;
}

/* How much place_kept would place. */
static void sum_kept(struct layout *l, const struct tape *tape, const struct device_facts *facts)
{
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (!is_placed(t)) continue;
        *(t->tier == TIER_DEVICE ? &l->kept_bytes : &l->tier_bytes[t->tier]) +=
            align_up(tensor_bytes(t), tier_align(facts, t->tier));
    }
}

/* Scratch of the group that begins at op i. */
static int64_t group_work(const struct layout *l, int i, int64_t align)
{
    int64_t bytes = 0;
    for (int end = layout_group_end(l, i); i < end; i++) bytes += align_up(l->work_bytes[i], align);
    return bytes;
}

/* Peak of live bytes by a sweep over op indices. */
static enum plim_status find_bound(struct layout *l, const struct tape *tape,
                                   const struct layout_options *options, struct plim_error *err)
{
    int64_t align = (int64_t)options->facts->align;
    double *delta =
        calloc((size_t)tape->nops + 2, sizeof *delta); /* exact to 2^53, and beyond that no overflow */
    if (!delta) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while lifetimes were summed");
    for (int i = 0; i < tape->ntensors; i++) {
        if (!is_transient(&tape->tensors[i]) || l->life[i].last < 0 || l->buffer[i] != i) continue;
        double bytes = (double)align_up(packed_bytes(options->facts, &tape->tensors[i]), align);
        delta[l->life[i].first] += bytes;
        delta[l->life[i].last + 1] -= bytes;
    }
    double live = 0, peak = -1, part_peak[2] = {0};
    for (int i = 0, end; i < tape->nops; i = end) {
        int64_t work = group_work(l, i, align) + align_up(l->lane_bytes[i >= tape->loop_end], align);
        end = layout_group_end(l, i);
        for (int op = i; op < end; op++) {
            live += delta[op];
            double here = live + (double)work;
            double *highest = &part_peak[op >= tape->loop_end];
            if (here > peak) peak = here, l->peak_op = op;
            if (here > *highest) *highest = here;
        }
    }
    free(delta);
    if (peak > HUGE_BYTES) peak = HUGE_BYTES;
    for (int part = 0; part < 2; part++) l->part_peak[part] = (int64_t)fmin(part_peak[part], HUGE_BYTES);
    l->lower_bound = l->kept_bytes + (peak < 0 ? 0 : (int64_t)peak);
    return PLIM_OK;
}

/* Finds the tensors that are live at the peak, by class. */
static void find_classes(struct layout *l, const struct tape *tape, const struct device_facts *facts)
{
    int64_t align = (int64_t)facts->align;
    int group = l->peak_op;
    while (group > 0 && layout_group_end(l, group - 1) > l->peak_op) group--;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool kept = in_arena(t) && (t->flags & TENSOR_KEPT);
        bool live_here = is_transient(t) && l->buffer[i] == i && l->life[i].first <= l->peak_op &&
                         l->life[i].last >= l->peak_op;
        if (kept || live_here)
            l->by_class[t->cls] += align_up(kept ? tensor_bytes(t) : packed_bytes(facts, t), align);
    }
    if (!tape->nops) return;
    l->by_class[CLASS_WORK] +=
        group_work(l, group, align) + align_up(l->lane_bytes[l->peak_op >= tape->loop_end], align);
}

/* `offsets`: of what is kept, too. */
static enum plim_status measure(const struct tape *tape, const struct layout_options *options, bool offsets,
                                struct layout *out, struct plim_error *err)
{
    enum plim_status status = layout_alloc(out, tape, options, offsets, err);
    if (status != PLIM_OK) return status;
    find_lifetimes(out, tape, options);
    share_in_place(out, tape);
    if (offsets) {
        status = place_kept(out, tape, options, err);
        if (status == PLIM_OK) status = place_carried(out, tape, options, err);
    } else
        sum_kept(out, tape, options->facts);
    if (status == PLIM_OK) status = find_bound(out, tape, options, err);
    if (status != PLIM_OK) layout_release(out);
    return status;
}

enum plim_status layout_bound(const struct tape *tape, const struct layout_options *options,
                              struct layout *out, struct plim_error *err)
{
    return measure(tape, options, false, out, err);
}

/* Scratch as the packer sees it; how many there are. Of an op `who` is -1 - op, and of a part's exchanges -1 - nops - part. */
static int list_work(const struct layout *l, const struct tape *tape, struct pack_item *items, int *who)
{
    int n = 0, begin[3] = {0, tape->loop_end, tape->nops};
    for (int part = 0; part < 2; part++) {
        if (!l->lane_bytes[part]) continue;
        items[n] =
            (struct pack_item){begin[part], begin[part + 1], l->lane_bytes[part], l->lane_offset[part]};
        if (who) who[n] = -1 - l->nops - part;
        n++;
    }
    for (int i = 0, end; i < l->nops; i = end) {
        end = layout_group_end(l, i);
        for (int op = i; op < end; op++) {
            if (!l->work_bytes[op]) continue;
            items[n] = (struct pack_item){i, end, l->work_bytes[op], l->work_offset[op]};
            if (who) who[n] = -1 - op;
            n++;
        }
    }
    return n;
}

static void resolve_shared(struct layout *l, const struct tape *tape)
{
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (is_transient(t) && l->buffer[i] != i) l->offset[i] = l->offset[l->buffer[i]];
    }
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->view_of >= 0) l->offset[i] = l->offset[t->view_of] + t->view_offset;
    }
}

enum plim_status layout_make(const struct tape *tape, const struct layout_options *options,
                             struct layout *out, struct plim_error *err)
{
    enum plim_status status = measure(tape, options, true, out, err);
    if (status != PLIM_OK) return status;
    find_classes(out, tape, options->facts);
    struct pack_item *items = calloc((size_t)tape->ntensors + (size_t)tape->nops + 3, sizeof *items);
    int *who = malloc(((size_t)tape->ntensors + (size_t)tape->nops + 3) * sizeof *who), n = 0;
    struct pack_result result = {0};
    if (!items || !who) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while a layout was packed");
        goto out;
    }
    for (int i = 0; i < tape->ntensors; i++) {
        if (!is_transient(&tape->tensors[i]) || out->life[i].last < 0 || out->buffer[i] != i) continue;
        if (options->carried_below && is_carried(out, tape, i)) continue;
        items[n] = (struct pack_item){out->life[i].first, out->life[i].last + 1,
                                      packed_bytes(options->facts, &tape->tensors[i]), 0};
        who[n++] = i;
    }
    n += list_work(out, tape, items + n, who + n);
    struct pack_limits limits = {.align = (int64_t)options->facts->align, .dives = options->dives};
    int64_t bottom = out->kept_bytes + out->carried_bytes;
    if (options->capacity) limits.capacity = options->capacity - bottom;
    status = pack_items(items, n, &limits, &result, err);
    if (status == PLIM_NO_FIT && options->capacity)
        status = PLIM_OK; /* the best there is; the caller compares */
    if (status != PLIM_OK) goto out;
    for (int i = 0; i < n; i++) {
        int64_t offset = bottom + items[i].offset;
        int op = -1 - who[i];
        if (who[i] >= 0 && begins_aligned(options->facts, &tape->tensors[who[i]]))
            offset = align_up(offset, DISK_MEMORY);
        *(who[i] >= 0      ? &out->offset[who[i]]
          : op < out->nops ? &out->work_offset[op]
                           : &out->lane_offset[op - out->nops]) = offset;
    }
    resolve_shared(out, tape);
    out->arena_bytes = bottom + result.height;
out:
    free(items);
    free(who);
    if (status != PLIM_OK) layout_release(out);
    return status;
}

/* Lists the items of a tier that must not overlap: transients and scratch during their lifetimes, everything else
 * throughout. */
static int list_tier(const struct tape *tape, const struct layout *l, enum tier tier, struct pack_item *items)
{
    int n = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->view_of >= 0 || t->tier != tier || l->buffer[i] != i) continue;
        bool throughout = tier != TIER_DEVICE;
        if (l->life[i].last < 0 && !throughout) continue;
        items[n++] = (struct pack_item){throughout ? 0 : l->life[i].first,
                                        throughout ? tape->nops + 1 : l->life[i].last + 1, tensor_bytes(t),
                                        l->offset[i]};
    }
    return tier == TIER_DEVICE ? n + list_work(l, tape, items + n, NULL) : n;
}

enum plim_status layout_verify(const struct tape *tape, const struct layout *l, struct plim_error *err)
{
    struct pack_item *items = calloc((size_t)tape->ntensors + (size_t)tape->nops + 3, sizeof *items);
    bool collides = false;
    if (!items) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a layout was verified");
    for (int tier = 0; tier < TIER_COUNT && !collides; tier++) {
        int a = 0, b = 0, n = list_tier(tape, l, (enum tier)tier, items);
        int64_t size = tier == TIER_DEVICE ? l->arena_bytes : l->tier_bytes[tier];
        collides = pack_conflict(items, n, &a, &b);
        for (int i = 0; i < n && !collides; i++)
            if (items[i].offset < 0 || items[i].offset + items[i].size > size) collides = true, a = b = i;
        if (collides)
            plim_fail(err, PLIM_BUG, "layout: bytes at offsets %lld and %lld of tier %s collide",
                      (long long)items[a].offset, (long long)items[b].offset, tier_name((enum tier)tier));
    }
    free(items);
    return collides ? PLIM_BUG : PLIM_OK;
}
