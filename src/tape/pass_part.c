/* pass_part.c - one part of a training tape by itself, for questions about time and bytes.
 *
 * The loop and the update hand each other gradients and, where those are offloaded, their squares: a gradient that leaves
 * is squared before (pass_offload). Without the update they are outputs, alive to the end; without the loop they are
 * inputs, alive from the beginning. What the loop leaves for the host is there throughout the update. So each part alone has the peak and the time that it has in the whole tape. */
#include "tape/pass.h"

#include <stdlib.h>
#include <string.h>

enum { BY_LOOP = 1, BY_UPDATE = 2 };

/* Is an op the square of a gradient that may leave the device? Small ones stay (TENSOR_NEAR). */
static bool squares_leaving(const struct tape *tape, const struct op *op)
{
    if (op->kind != OP_SUMSQ) return false;
    int owner = tape->tensors[op->in[SUMSQ_GRAD]].owner;
    return owner < 0 || !(tape->tensors[owner].flags & TENSOR_NEAR);
}

/* `squared`: squares of gradients that leave are the loop's too. */
static void mark(const struct tape *tape, char *seen, bool squared)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        const struct op_row *row = op_row(op->kind);
        char by = i < tape->loop_end ? BY_LOOP : BY_UPDATE;
        if (squared && squares_leaving(tape, op)) by = BY_LOOP | BY_UPDATE;
        for (int k = 0; k < OP_MAX_IN && row->in[k]; k++)
            if (op->in[k] >= 0) seen[op->in[k]] |= by, seen[tape_root(tape, op->in[k])] |= by;
        for (int k = 0; k < OP_MAX_OUT && row->out[k]; k++)
            if (op->out[k] >= 0) seen[op->out[k]] |= by, seen[tape_root(tape, op->out[k])] |= by;
    }
}

/* The update's ops are gone but for squares, which pass_offload looks for. */
static void keep_loop(struct tape *tape, bool squared)
{
    int end = tape->loop_end;
    for (int i = end; i < tape->nops && squared; i++)
        if (squares_leaving(tape, &tape->ops[i])) tape->ops[end++] = tape->ops[i];
    tape->nops = end;
}

static void keep_update(struct tape *tape)
{
    tape->nops -= tape->loop_end;
    memmove(tape->ops, tape->ops + tape->loop_end, (size_t)tape->nops * sizeof *tape->ops);
    tape->loop_end = 0;
}

static int moved(const int *to, int id) { return id < 0 ? id : to[id]; }

/* Activations are most of a tape's tensors, and the update has none of them: what it does not touch goes, unless it is
 * kept. `to`: by tensor, its new id or -1. */
static void drop_untouched(struct tape *tape, const char *seen, int *to)
{
    int n = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        unsigned flags = tape->tensors[i].flags, rests = TENSOR_INPUT | TENSOR_OUTPUT;
        bool stays = (seen[i] & BY_UPDATE) || (flags & TENSOR_KEPT) || (flags & rests) == rests;
        to[i] = stays ? n++ : -1;
        if (stays) tape->tensors[to[i]] = tape->tensors[i];
    }
    tape->ntensors = n;
    for (int i = 0; i < n; i++) {
        struct tensor *t = &tape->tensors[i];
        t->view_of = moved(to, t->view_of), t->owner = moved(to, t->owner);
    }
    for (int i = 0; i < tape->nops; i++) {
        struct op *op = &tape->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++) op->in[k] = moved(to, op->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++) op->out[k] = moved(to, op->out[k]);
    }
}

enum plim_status pass_part(struct tape *tape, enum tape_part part, bool grads_offloaded,
                           struct plim_error *err)
{
    if (part == TAPE_WHOLE) return PLIM_OK;
    char *seen = calloc((size_t)tape->ntensors + 1, 1);
    int *to = malloc(((size_t)tape->ntensors + 1) * sizeof *to);
    if (!seen || !to) {
        free(seen), free(to);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while a tape was parted");
    }
    mark(tape, seen, grads_offloaded);
    for (int i = 0; i < tape->ntensors; i++) {
        struct tensor *t = &tape->tensors[i];
        if ((seen[i] == BY_UPDATE) == (part == TAPE_LOOP)) t->flags |= TENSOR_ELSEWHERE;
        bool crosses = seen[i] == (BY_LOOP | BY_UPDATE) && t->view_of < 0 && !(t->flags & TENSOR_KEPT);
        if (crosses) t->flags |= part == TAPE_LOOP ? TENSOR_OUTPUT : TENSOR_INPUT;
        bool rests = seen[i] == BY_LOOP && t->view_of < 0 && (t->flags & TENSOR_OUTPUT);
        if (rests && part == TAPE_UPDATE) t->flags |= TENSOR_INPUT;
    }
    if (part == TAPE_LOOP) {
        keep_loop(tape, grads_offloaded);
    } else {
        keep_update(tape);
        drop_untouched(tape, seen, to);
    }
    free(seen), free(to);
    return PLIM_OK;
}
