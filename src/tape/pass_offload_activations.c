/* pass_offload_activations.c - activations of some layers wait in host memory between forward and backward.
 *
 * An activation belongs to the layer whose backward ops read it first. It is stored as soon as it is made and fetched into
 * a buffer of its own when backward comes near. Copying a layer takes longer than computing it, so both ends leave the
 * copies time, in whole layers and without knowing any rate:
 *
 *  1. With n layers offloaded, the first ones, what the first of them leaves free is wanted when forward has n layers to go,
 *     what the second leaves one layer later, and so on. Until then a hold keeps the bytes, for an op that took them would wait
 *     for the copy; but not longer than copying takes if a layer's copy is as long as `pace` layers.
 *  2. For every two layers that backward has done one comes back, the last first: what they leave is enough for it and for
 *     the gradients they make. Not earlier than copying needs, though, where backward takes twice as long as forward.
 *
 * Values are copied, never recomputed: results are bit-identical. */
#include "tape/offload.h"

#include <stdlib.h>
#include <string.h>

struct offload {
    struct tape *tape;
    int layers; /* of the model */
    int pace;   /* layers computed while one is copied */
    int offload_layers;
    int count;               /* tensors before the pass */
    int *layer;              /* by tensor: the layer it belongs to, -1: it stays */
    int *copy;               /* by tensor: its copy on the host, -1: none yet */
    int *back;               /* by tensor: what backward reads in its place, -1: not fetched yet */
    int *next;               /* by tensor: the one with the next higher id of its layer, -1: none */
    int *last;               /* by tensor: the one with the next lower id */
    int *forward, *backward; /* by layer: its first op there, -1: none */
    int *lowest, *highest;   /* by layer: of its tensors, -1: it has none */
};

static bool is_backward(const struct op *op)
{
    return op->part == PART_BACKWARD || op->part == PART_RECOMPUTE;
}

/* All lists are one allocation, which begins with `layer`. */
static bool offload_alloc(struct offload *p)
{
    size_t n = (size_t)p->count + 1, m = (size_t)p->layers, all = (5 * n + 4 * m) * sizeof(int);
    int *lists = malloc(all);
    if (!lists) return false;
    memset(lists, -1, all);
    p->layer = lists, p->copy = lists + n, p->back = lists + 2 * n;
    p->next = lists + 3 * n, p->last = lists + 4 * n, lists += 5 * n;
    p->forward = lists, p->backward = lists + m, p->lowest = lists + 2 * m, p->highest = lists + 3 * m;
    return true;
}

static int count_layers(const struct tape *tape)
{
    int layers = 0;
    for (int i = 0; i < tape->loop_end; i++)
        if (tape->ops[i].part == PART_FORWARD && tape->ops[i].layer >= layers)
            layers = tape->ops[i].layer + 1;
    return layers;
}

/* Activations that forward made and nothing looks at in part. */
static void choose(struct offload *p)
{
    const struct tape *tape = p->tape;
    enum { UNSEEN = -1, MADE = -2, STAYS = -3 };
    for (int i = 0; i < tape->ntensors; i++) /* a tensor with views stays whole */
        if (tape->tensors[i].view_of >= 0) p->layer[tape->tensors[i].view_of] = STAYS;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        for (int o = 0; o < OP_MAX_OUT && row->out[o] && op->part == PART_FORWARD; o++) {
            const struct tensor *t = op->out[o] < 0 ? NULL : &tape->tensors[op->out[o]];
            bool may = t && t->cls == CLASS_ACT && t->tier == TIER_DEVICE && t->view_of < 0 && !t->flags;
            if (may && p->layer[op->out[o]] == UNSEEN) p->layer[op->out[o]] = MADE;
        }
        for (int k = 0; k < OP_MAX_IN && row->in[k] && is_backward(op); k++)
            if (op->in[k] >= 0 && p->layer[op->in[k]] == MADE) p->layer[op->in[k]] = op->layer;
    }
    for (int i = 0; i < p->count; i++) {
        int layer = p->layer[i] < p->offload_layers ? p->layer[i] : -1;
        p->layer[i] = layer < 0 ? -1 : layer;
        if (layer < 0) continue;
        p->last[i] = p->highest[layer];
        *(p->last[i] < 0 ? &p->lowest[layer] : &p->next[p->last[i]]) = i;
        p->highest[layer] = i;
    }
}

static void find_layers(struct offload *p, const struct op *ops, int end)
{
    for (int i = end - 1; i >= 0; i--) {
        const struct op *op = &ops[i];
        if (op->layer < 0 || op->layer >= p->layers) continue;
        if (op->part == PART_FORWARD) p->forward[op->layer] = i;
        if (is_backward(op)) p->backward[op->layer] = i;
    }
}

/* Stores an op's forward results to the host. */
static void store_made(struct offload *p, const struct op *op)
{
    for (int o = 0; o < OP_MAX_OUT && op_row(op->kind)->out[o] && op->part == PART_FORWARD; o++) {
        int id = op->out[o];
        if (id < 0 || id >= p->count || p->layer[id] < 0 || p->copy[id] >= 0) continue;
        struct tensor t = p->tape->tensors[id];
        t.tier = TIER_HOST;
        p->copy[id] = tape_tensor(p->tape, &t);
        offload_move(p->tape, op, OP_STORE, id, p->copy[id]);
    }
}

/* All that belongs to an offloaded layer is held until here. */
static void hold_layer(struct offload *p, const struct op *like, int layer)
{
    struct op hold = tape_op(OP_HOLD, like->layer);
    int n = 0;
    hold.part = like->part;
    for (int id = p->lowest[layer]; id >= 0; id = p->next[id]) {
        if (p->copy[id] < 0) continue;
        hold.in[n++] = id;
        if (n < OP_MAX_IN) continue;
        tape_append(p->tape, &hold);
        while (n) hold.in[--n] = -1;
    }
    if (n) tape_append(p->tape, &hold);
}

static void fetch_layer(struct offload *p, const struct op *like, int layer)
{
    for (int id = p->highest[layer]; id >= 0;
         id = p->last[id]) { /* backward wants first what was made last */
        if (p->copy[id] < 0 || p->back[id] >= 0) continue;
        struct tensor t = p->tape->tensors[id];
        p->back[id] = tape_tensor(p->tape, &t);
        offload_move(p->tape, like, OP_FETCH, p->copy[id], p->back[id]);
    }
}

/* Forward begins this layer when the bytes of an offloaded one may be taken. */
static int held_until(const struct offload *p, int layer)
{
    int wanted = p->layers - p->offload_layers + layer, copied = p->pace * (layer + 1);
    int until = wanted < copied ? wanted : copied;
    return until > layer ? until : layer + 1;
}

/* It comes back when backward begins this layer. */
static int comes_with(const struct offload *p, int layer)
{
    int room = p->layers - 1 - 2 * (p->offload_layers - layer), slow = p->pace / 2 * (layer + 1);
    int with = room < slow ? room : slow;
    if (with <= layer) with = layer + 1;
    return with < p->layers ? with : p->layers - 1;
}

/* Emits what must precede op `index` of the old ops. */
static void before(struct offload *p, const struct op *op, int index)
{
    if (op->layer < 0 || op->layer >= p->layers) return;
    if (index != p->forward[op->layer] && index != p->backward[op->layer]) return;
    for (int layer = p->offload_layers - 1; layer >= 0; layer--) {
        if (index == p->forward[op->layer] && held_until(p, layer) == op->layer) hold_layer(p, op, layer);
        if (index == p->backward[op->layer] && comes_with(p, layer) == op->layer) fetch_layer(p, op, layer);
    }
}

static void rewrite(struct offload *p, const struct op *old, int nops)
{
    int loop_end = p->tape->loop_end;
    for (int i = 0; i < nops; i++) {
        if (i < loop_end) before(p, &old[i], i);
        tape_append(p->tape, &old[i]);
        if (p->tape->failed) return;
        struct op *op = &p->tape->ops[p->tape->nops - 1];
        const struct op_row *row = op_row(op->kind);
        for (int k = 0; k < OP_MAX_IN && row->in[k] && is_backward(op); k++)
            if (op->in[k] >= 0 && op->in[k] < p->count && p->back[op->in[k]] >= 0)
                op->in[k] = p->back[op->in[k]];
        if (i < loop_end) store_made(p, &old[i]);
        if (i + 1 == loop_end) p->tape->loop_end = p->tape->nops;
    }
}

enum plim_status pass_offload_activations(struct tape *tape, int layers, double pace, struct plim_error *err)
{
    if (layers <= 0) return PLIM_OK;
    struct offload p = {
        .tape = tape, .layers = count_layers(tape), .pace = (int)pace, .count = tape->ntensors};
    p.offload_layers = layers < p.layers ? layers : p.layers;
    if (p.offload_layers <= 0) return PLIM_OK;
    enum plim_status status = PLIM_NO_MEMORY;
    if (offload_alloc(&p)) {
        choose(&p);
        struct op_list old = tape_take_ops(tape);
        find_layers(&p, old.ops, tape->loop_end);
        rewrite(&p, old.ops, old.count);
        tape_drop_ops(tape, &old);
        if (!tape->failed) status = PLIM_OK;
    }
    free(p.layer);
    return status == PLIM_OK ? status
                             : plim_fail(err, status, "out of memory while activations were offloaded");
}
