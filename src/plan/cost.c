/* cost.c - a tape's ops on the lanes of a device, in order, from the rates in its facts.
 *
 * An op takes the longer of computing and moving, plus a part of the shorter one that does not overlap. Moving is at cache
 * speed when an op's operands fit half of the last-level cache, since the op before has just written most of them.
 *
 * Where the host is another memory, there are lanes for computing, copies in, copies out, ops of the host, and the disk below
 * the host; where exchanges between ranks run beside computing, there is one for them, which is slower while something
 * computes and has the link to itself while computing waits for it. Each does one thing at a time and in order. What is put on another lane begins when everything that computes before it is done and
 * its own operands are there; computing goes on beside it and waits when it needs what is not there yet. That is how the
 * CUDA backend queues them (device/cuda/cuda_transfer.c). A disk below a CPU's memory has a lane, too: reads run ahead on it, and what
 * is stored is written beside computing until it is held or, where nothing holds it, but for the last bytes, which wait in buffers
 * (exec/disk.h). */
#include "plan/cost.h"

#include <stdlib.h>
#include <string.h>

#define UNHIDDEN 0.3 /* share of the shorter of an op's computing and moving that the longer does not hide */

/* When a lane has done something. The link's own time is as if computing never waited: `ahead` of the clock tells how much earlier it is. */
struct moment {
    double at;
    bool on_link;
};

struct clock {
    const struct tape *tape;
    const struct device_facts *facts;
    double free[LANES]; /* when a lane has done what it was given; the link's in its own time */
    double busy[LANES]; /* what it was given */
    double ahead;       /* what the link has gained while computing waited for it */
    struct piece_time {
        struct moment ready; /* when a copy or the host has written it */
        struct moment read;  /* when the last copy has read it */
        bool sent;           /* and that is an exchange between ranks, or a disk's */
    } * times;               /* by piece */
    double *bytes;           /* by tensor; NULL where there is one lane */
    int *piece;              /* by tensor */
    double host_bytes;       /* moved by other lanes than computing, at the host's end */
    bool once;               /* there is one micro-batch: nothing is fetched to be added to */
    bool later;              /* a micro-batch after the first: updates inside the loop do not run */
    double forward;          /* when the last op of forward was done */
    struct op_span *spans;   /* by op; NULL: nobody asks */
};

static void note_span(struct op_span *spans, int index, enum lane lane, double start, double end)
{
    if (spans) spans[index] = (struct op_span){lane, start, end - start};
}

static bool is_of_experts(int kind)
{
    return kind == OP_EXPERT_LINEAR || kind == OP_EXPERT_LINEAR_DX || kind == OP_EXPERT_LINEAR_DW;
}

static double matmul_rate(const struct device_facts *facts, const struct op *op, enum dtype type)
{
    if (type == DT_F32 && op->attr.tf32 && facts->tf32_flops > 0) return facts->tf32_flops;
    bool share = dtype_is_narrow(type) && facts->expert_share > 0 && is_of_experts(op->kind);
    return facts->flops[type] * (share ? facts->expert_share : 1);
}

/* Ops that follow one of their kind and may run together with it are part of its launch. */
static bool joins_last(const struct tape *tape, int i)
{
    const struct op *op = &tape->ops[i];
    return i > 0 && i != tape->loop_end && op_row(op->kind)->together && op[-1].kind == op->kind &&
           !op->attr.on_host && !op[-1].attr.on_host;
}

/* Heads of 128 fill tensor cores better than those of 64, backward's less, and long rows have less of a causal mask's ragged edge. */
static double attn_shape_share(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    bool back = op->kind == OP_ATTN_BWD;
    const struct tensor *k = &tape->tensors[op->in[back ? ATTN_BWD_K : ATTN_K]];
    double wide = facts->attn_wide_share, far = facts->attn_long_share, share = 1;
    if (k->type == DT_F32 || op->attr.head_dim <= 64) return 1;
    if (wide > 0) share *= back ? 1 + (wide - 1) / 3 : wide;
    if (far > 0 && k->dim[1] > FACTS_ATTN_TIME)
        share *= 1 + (far - 1) * (1 - FACTS_ATTN_TIME / (double)k->dim[1]);
    return share;
}

static double attn_rate(const struct device_facts *facts, const struct tape *tape, const struct op *op,
                        enum dtype type)
{
    double rate = facts->attn_flops[type];
    bool paged = op->kind != OP_ATTN && op->kind != OP_ATTN_BWD;
    if (!paged) rate *= attn_shape_share(facts, tape, op);
    if (facts->attn_bwd_share > 0 && op->kind == OP_ATTN_BWD) rate *= facts->attn_bwd_share;
    if (facts->attn_general_share > 0 && !paged && !op_attn_is_simple(op)) rate *= facts->attn_general_share;
    return rate;
}

static double longer(double a, double b) { return a > b ? a : b; }
static double shorter(double a, double b) { return a < b ? a : b; }

/* Share of an exchange that a rank sends and receives: all but its own piece. */
static double sent_share(const struct device_facts *facts, const struct op *op)
{
    int ranks = facts_among(facts, op->attr.among);
    return ranks > 1 ? (double)(ranks - 1) / ranks : 0;
}

/* Seconds of an exchange between ranks while nothing computes. */
static double link_time(const struct clock *c, const struct op *op)
{
    const struct device_facts *facts = c->facts;
    struct op_cost cost = op_cost_of(c->tape, op, c->bytes);
    bool near = op->attr.among == AMONG_NODE;
    double rate = near ? facts->node_bandwidth : facts->link_bandwidth;
    if (cost.link_bytes <= 0 || rate <= 0) return cost.bytes / facts->bandwidth;
    if (facts->reduce_share > 0 && op->kind != OP_GATHER) rate *= facts->reduce_share;
    return (near ? facts->node_seconds : facts->link_seconds) +
           sent_share(facts, op) * cost.link_bytes / rate;
}

double tape_link_bytes(const struct tape *tape, const struct device_facts *facts, int64_t accumulation)
{
    double sum = 0;
    for (int i = 0; i < tape->nops && facts->ranks > 1; i++) {
        const struct op *op = &tape->ops[i];
        double times = i < tape->loop_end ? (double)accumulation : 1;
        if (op_collects(op)) sum += op_cost_of(tape, op, NULL).link_bytes * times * sent_share(facts, op);
    }
    return sum;
}

static double overlapped(const struct device_facts *facts, double compute, double move)
{
    return longer(compute, move) + UNHIDDEN * shorter(compute, move) + facts->op_seconds;
}

/* A weight in blocks becomes numbers before its product begins. */
static double widening(const struct device_facts *facts, const struct op_cost *cost)
{
    bool widens = facts->widens_blocks && cost->widened > 0;
    return widens ? cost->widened / facts->bandwidth + facts->op_seconds : 0;
}

/* Seconds of an op that computes on the device. */
static double compute_seconds(const struct clock *c, const struct op *op)
{
    const struct device_facts *facts = c->facts;
    struct op_cost cost = op_cost_of(c->tape, op, c->bytes);
    double compute = 0;
    if (cost.matmul_flops > 0) compute += cost.matmul_flops / matmul_rate(facts, op, cost.type);
    if (cost.attn_flops > 0) compute += cost.attn_flops / attn_rate(facts, c->tape, op, cost.type);
    if (facts->coded_rate > 0) compute += cost.coded / facts->coded_rate;
    if (facts->curve_rate > 0) compute += cost.curved / facts->curve_rate;
    if (facts->score_rate > 0) compute += cost.scores / facts->score_rate;
    if (facts->score_row_rate > 0) compute += cost.score_rows / facts->score_row_rate;
    if (facts->pack_bandwidth > 0) compute += cost.packed / facts->pack_bandwidth;
    if (facts->plain_rate > 0) compute += cost.plain / facts->plain_rate;
    if (facts->update_rate > 0) compute += cost.updated / facts->update_rate;
    compute += cost.products * facts->matmul_seconds;
    bool cached = facts->cache_bytes && cost.bytes < 0.5 * (double)facts->cache_bytes;
    double move = cost.bytes / (cached ? facts->cache_bandwidth : facts->bandwidth);
    return overlapped(facts, compute, move) + widening(facts, &cost);
}

static double moved_bytes(const struct clock *c, const struct op *move)
{
    int from = move->in[MOVE_FROM];
    return c->bytes ? c->bytes[from] : (double)tensor_bytes(&c->tape->tensors[from]);
}

/* Seconds of an op that nothing else runs beside. */
static double alone_seconds(const struct clock *c, const struct op *op)
{
    if (op_moves(op)) return moved_bytes(c, op) / c->facts->lower_bandwidth + c->facts->op_seconds;
    return op_collects(op) ? link_time(c, op) : compute_seconds(c, op);
}

static enum lane lane_of(const struct tape *tape, const struct op *op)
{
    if (op_moves(op) && tape->tensors[move_far(op)].tier == TIER_DISK) return LANE_DISK;
    if (op_moves(op)) return op->kind == OP_FETCH ? LANE_COPY_IN : LANE_COPY_OUT;
    if (op_collects(op) && op->kind != OP_PIECE) return LANE_LINK; /* a piece is copied where the whole is */
    return op->attr.on_host ? LANE_HOST : LANE_COMPUTE;
}

/* The lane that it takes up: that of computing where nothing runs beside it. */
static enum lane busy_lane(const struct tape *tape, const struct op *op, const struct device_facts *facts)
{
    enum lane lane = lane_of(tape, op);
    bool beside = op_moves(op) ? facts->async_copies || lane == LANE_DISK : facts->async_exchanges;
    return (op_moves(op) || op_collects(op)) && !beside ? LANE_COMPUTE : lane;
}

/* Slices of offloaded tensors come and go on their own; all else is one piece. */
static int piece_of(const struct tape *tape, int id)
{
    int root = tape_root(tape, id);
    return tape->tensors[id].tier == TIER_DEVICE || tape->tensors[root].cls == CLASS_WORK ? root : id;
}

static double time_of(const struct clock *c, struct moment m) { return m.at - (m.on_link ? c->ahead : 0); }
static struct moment free_at(const struct clock *c, enum lane lane)
{
    return (struct moment){c->free[lane], lane == LANE_LINK};
}

static void later(double *time, double than) { *time = longer(*time, than); }
static void put_off(const struct clock *c, struct moment *m, struct moment to)
{
    if (time_of(c, to) > time_of(c, *m)) *m = to;
}

/* An exchange is faster while computing waits for it: its time then, relative to its time beside computing. */
static double waited_share(const struct device_facts *facts)
{
    return facts->link_beside > 0 ? facts->link_beside : 1;
}

static void wait_until(struct clock *c, struct moment m)
{
    double wait = time_of(c, m) - c->free[LANE_COMPUTE];
    if (wait <= 0) return;
    double gained = m.on_link ? wait * (1 - waited_share(c->facts)) : 0;
    c->ahead += gained;
    c->free[LANE_COMPUTE] += wait - gained;
}

/* When an op's operands are there and may be written; what computes waits for each of them. */
static double operands_ready(struct clock *c, const struct op *op, bool computes)
{
    const struct op_row *row = op_row(op->kind);
    struct moment last = {0};
    for (int i = 0; i < OP_MAX_IN && row->in[i]; i++) {
        if (op->in[i] < 0) continue;
        put_off(c, &last, c->times[c->piece[op->in[i]]].ready);
        /* of a gradient that has just come, whole */
        if (op->attr.guesses) put_off(c, &last, c->times[tape_root(c->tape, op->in[i])].ready);
    }
    for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++) {
        if (op->out[i] < 0) continue;
        const struct piece_time *t = &c->times[c->piece[op->out[i]]];
        put_off(c, &last, t->ready), put_off(c, &last, t->read);
    }
    if (computes) wait_until(c, last);
    return time_of(c, last);
}

/* Updates inside backward have no such op. */
static bool serves_norm(const struct op *op) { return op->kind == OP_SUMSQ || op->kind == OP_CLIP; }

/* Seconds lost because some of the computing processors carry the bytes of an exchange while it lasts. */
static double lost_to_link(const struct clock *c, double start, double seconds)
{
    double load = c->facts->link_load, beside = time_of(c, free_at(c, LANE_LINK)) - start;
    return load > 0 && beside > 0 ? load * shorter(beside, seconds / (1 - load)) : 0;
}

/* A byte each way by turns takes as long as was measured; of that, each way has the share that it would have by itself. */
static double disk_seconds(const struct device_facts *facts, double bytes, bool writes)
{
    double rate = facts->unified_memory ? facts->lower_bandwidth : facts->disk_bandwidth, share = 0.5;
    double read = facts->disk_read, write = facts->disk_write;
    if (read > 0 && write > 0) share = (writes ? read : write) / (read + write);
    return 2 * share * bytes / rate;
}

/* Bytes that an op of the host moves in its memory. Lines that are written in another place than they were read from are read first, unless
 * stores go past the caches, and what is made again where clipping binds is left out: it seldom does. */
static double host_op_bytes(const struct clock *c, const struct op *op)
{
    double bytes = op_cost_of(c->tape, op, c->bytes).bytes;
    for (int i = 0; i < OP_MAX_OUT && op->attr.guesses && !c->facts->host_uncached_stores; i++)
        if (op->out[i] >= 0) bytes += c->bytes[op->out[i]];
    return op->attr.redoes ? 0 : bytes;
}

static void run_op(struct clock *c, int index)
{
    const struct op *op = &c->tape->ops[index];
    const struct op_row *row = op_row(op->kind);
    enum lane lane = busy_lane(c->tape, op, c->facts);
    double ready = operands_ready(c, op, lane == LANE_COMPUTE), start = time_of(c, free_at(c, lane)), end;
    later(&start, c->free[LANE_COMPUTE]), later(&start, ready), end = start;
    if (lane == LANE_COMPUTE) {
        double seconds = alone_seconds(c, op);
        if (c->facts->async_copies && joins_last(c->tape, index)) seconds -= c->facts->op_seconds;
        if (!serves_norm(op)) c->busy[LANE_COMPUTE] += seconds;
        end += seconds + lost_to_link(c, start, seconds);
        c->free[LANE_COMPUTE] = end;
        note_span(c->spans, index, lane_of(c->tape, op), start, end);
        return;
    }
    double bytes = op_moves(op) ? moved_bytes(c, op) : 0; /* at the host's end */
    if (lane == LANE_HOST) {
        bytes = host_op_bytes(c, op);
        end +=
            c->facts->host_op_seconds + (c->facts->host_bandwidth > 0 ? bytes / c->facts->host_bandwidth : 0);
        c->busy[lane] += end - start;
    } else if (lane == LANE_DISK) {
        end += disk_seconds(c->facts, bytes, op->kind == OP_STORE) +
               (c->facts->unified_memory ? c->facts->op_seconds : 0);
        c->busy[lane] += end - start;
        if (c->facts->unified_memory && op->kind == OP_STORE && !op->attr.behind) /* its end is in buffers */
            later(&c->free[LANE_COMPUTE],
                  end - disk_seconds(c->facts, (double)facts_disk_buffers(c->facts), true));
    } else if (lane == LANE_LINK) {
        double seconds = link_time(c, op);
        end += seconds / waited_share(c->facts);
        c->busy[lane] += seconds;
    } else { /* both ways at once are a little slower */
        double other = c->free[lane == LANE_COPY_IN ? LANE_COPY_OUT : LANE_COPY_IN];
        end += bytes / c->facts->lower_bandwidth;
        c->busy[lane] += end - start;
        end += c->facts->duplex_cost * longer(0, shorter(end, other) - start);
    }
    note_span(c->spans, index, lane, start, end);
    struct moment done = {end + (lane == LANE_LINK ? c->ahead : 0), lane == LANE_LINK};
    c->free[lane] = done.at;
    c->host_bytes += bytes;
    for (int i = 0; i < OP_MAX_IN && row->in[i]; i++) {
        if (op->in[i] < 0) continue;
        struct piece_time *t = &c->times[c->piece[op->in[i]]];
        put_off(c, &t->read, done);
        t->sent = lane == LANE_LINK || op->attr.behind;
    }
    for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++) {
        if (op->out[i] < 0) continue;
        put_off(c, &c->times[c->piece[op->out[i]]].ready, done);
        put_off(c, &c->times[tape_root(c->tape, op->out[i])].ready,
                done); /* the whole waits for its slices */
    }
}

static bool is_idle(const struct clock *c, const struct op *op)
{
    bool later =
        !c->once && op->kind == OP_QUANTISE8 && op->accumulate == ACC_AFTER_FIRST; /* few are the first */
    return op->kind == OP_HOLD || op->attr.primes || op->attr.half == HALF_AWAY || later ||
           (c->later && op->part == PART_UPDATE) ||
           (c->once && op->kind == OP_FETCH && op->accumulate == ACC_AFTER_FIRST);
}

/* Offloaded activations, and what is sent to other ranks or written behind, are held until their bytes are wanted: the next op waits for the
 * copy that reads them. */
static void release(struct clock *c, const struct op *hold)
{
    for (int i = 0; i < OP_MAX_IN; i++) {
        int id = hold->in[i];
        const struct piece_time *t = id >= 0 ? &c->times[c->piece[id]] : NULL;
        if (t && (c->tape->tensors[id].cls == CLASS_ACT || t->sent)) wait_until(c, t->read);
    }
}

/* Ops [begin, end) on empty lanes. */
static double run_part(struct clock *c, int begin, int end, double busy[LANES])
{
    for (int i = 0; i < LANES; i++) c->free[i] = c->busy[i] = 0;
    memset(c->times, 0, (size_t)c->tape->ntensors * sizeof *c->times);
    c->host_bytes = c->ahead = c->forward = 0;
    for (int i = begin; i < end; i++) {
        const struct op *op = &c->tape->ops[i];
        if (op->kind == OP_HOLD) release(c, op);
        if (is_idle(c, op))
            note_span(c->spans, i, lane_of(c->tape, op), c->free[LANE_COMPUTE], c->free[LANE_COMPUTE]);
        else
            run_op(c, i);
        if (op->part == PART_FORWARD) c->forward = c->free[LANE_COMPUTE];
    }
    double rate = c->facts->host_total, last = rate > 0 ? c->host_bytes / rate : 0;
    wait_until(c, free_at(c, LANE_LINK));
    for (enum lane i = 0; i < LANES; i++) {
        last = longer(last, time_of(c, free_at(c, i)));
        busy[i] = c->busy[i];
    }
    return last;
}

/* One lane: everything in turn. */
static double add_part(struct clock *c, int begin, int end, double *busy)
{
    double sum = 0, norm = 0;
    for (int i = begin; i < end; i++) {
        const struct op *op = &c->tape->ops[i];
        double seconds = is_idle(c, op) ? 0 : alone_seconds(c, op);
        if (c->spans) note_span(c->spans, i, lane_of(c->tape, op), sum, sum + seconds);
        sum += seconds;
        if (op->part == PART_FORWARD) c->forward = sum;
        if (serves_norm(op)) norm += seconds;
    }
    *busy = sum - norm;
    return sum;
}

/* Does anything run beside computing? */
static bool has_lanes(const struct tape *tape, const struct device_facts *facts)
{
    if (facts->async_copies || (facts->async_exchanges && facts->ranks > 1)) return true;
    for (int i = 0; i < tape->ntensors; i++)
        if (tape->tensors[i].tier == TIER_DISK) return true;
    return false;
}

/* All lists are one allocation, which begins with `times`. */
static bool clock_alloc(struct clock *c)
{
    size_t tensors = (size_t)c->tape->ntensors + 1;
    c->times = malloc(tensors * (sizeof *c->times + sizeof *c->bytes + sizeof *c->piece));
    if (!c->times) return false;
    c->bytes = (double *)(c->times + tensors);
    c->piece = (int *)(c->bytes + tensors);
    for (int i = 0; i < c->tape->ntensors; i++)
        c->bytes[i] = (double)tensor_bytes(&c->tape->tensors[i]), c->piece[i] = piece_of(c->tape, i);
    return true;
}

static double time_part(struct clock *c, int begin, int end, double busy[LANES])
{
    return c->times ? run_part(c, begin, end, busy) : add_part(c, begin, end, &busy[LANE_COMPUTE]);
}

/* Do updates of the step before run in the loop? */
static bool has_pending(const struct tape *tape)
{
    for (int i = 0; i < tape->loop_end; i++)
        if (tape->ops[i].part == PART_UPDATE) return true;
    return false;
}

enum plim_status tape_spans_of(const struct tape *tape, const struct device_facts *facts, bool once,
                               struct op_span *spans, struct tape_time *out, struct plim_error *err)
{
    int begin = tape->loop_end, end = tape->nops;
    double first = 0, busy[LANES]; /* what the first micro-batch takes longer, for the updates in it */
    struct clock c = {.tape = tape, .facts = facts, .once = once, .spans = spans};
    *out = (struct tape_time){0};
    if (has_lanes(tape, facts) && !clock_alloc(&c))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a tape was timed");
    c.later = !once && has_pending(tape);
    if (begin > 0) out->loop_seconds = time_part(&c, 0, begin, out->loop_busy);
    out->forward_seconds = c.forward;
    if (c.later) {
        c.later = false;
        first = time_part(&c, 0, begin, busy) - out->loop_seconds;
    }
    if (begin < end) out->update_seconds = time_part(&c, begin, end, out->update_busy);
    out->update_seconds += first;
    free(c.times);
    return PLIM_OK;
}

enum plim_status tape_time_of(const struct tape *tape, const struct device_facts *facts, bool once,
                              struct tape_time *out, struct plim_error *err)
{
    return tape_spans_of(tape, facts, once, NULL, out, err);
}
