/* pass_spread.c - fetches earlier, stores later.
 *
 * Every op gets a key: computing ops their number among themselves, copies the number of the computing op they stand
 * before, moved by lead or lag. Sorting by key keeps everything else in its order. Two things bound a copy: its part
 * of the tape, and other copies of the same far tensor or slice, which must not change their order. */
#include "tape/pass.h"

#include <stdlib.h>

struct placed {
    int64_t key;
    int index; /* in the old order */
};

static bool moves(const struct op *op) { return op->kind == OP_FETCH || op->kind == OP_STORE; }

static int by_key(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->index - y->index;
}

/* Keys of ops [begin, end). `least` holds, by tensor, the key of the last copy of it so far. A near buffer that a
 * computing op fills piece by piece is stored after its last writer, so lag never passes a write. */
static void find_keys(const struct tape *tape, int begin, int end, int lead, int lag, int64_t *least,
                      struct placed *out)
{
    int64_t computed = 0, all = 0;
    for (int i = begin; i < end; i++) all += !moves(&tape->ops[i]);
    for (int i = begin; i < end; i++) {
        const struct op *op = &tape->ops[i];
        int64_t key = 2 * computed;
        if (!moves(op)) {
            out[i] = (struct placed){2 * computed++ + 1, i};
            continue;
        }
        int far = op->kind == OP_FETCH ? op->in[0] : op->out[0]; /* slices of one tensor are each their own */
        key += op->kind == OP_FETCH ? -2 * (int64_t)lead : 2 * (int64_t)lag;
        if (key < 0) key = 0;
        if (key > 2 * all) key = 2 * all;
        if (key < least[far]) key = least[far];
        least[far] = key;
        out[i] = (struct placed){key, i};
    }
}

enum plim_status pass_spread(struct tape *tape, const struct spread_options *o, struct plim_error *err)
{
    struct placed *order = malloc(((size_t)tape->nops + 1) * sizeof *order);
    struct op *ops = malloc(((size_t)tape->nops + 1) * sizeof *ops);
    int64_t *least = calloc((size_t)tape->ntensors + 1, sizeof *least);
    enum plim_status status = PLIM_OK;
    if (!order || !ops || !least) {
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while copies were spread");
        goto out;
    }
    int parts[3] = {0, tape->loop_end, tape->nops};
    for (int p = 0; p < 2; p++) {
        int begin = parts[p], end = parts[p + 1];
        for (int i = 0; i < tape->ntensors; i++) least[i] = 0;
        find_keys(tape, begin, end, p == 0 ? o->loop_lead : 0, p == 0 ? o->loop_lag : o->update_lag, least,
                  order);
        qsort(order + begin, (size_t)(end - begin), sizeof *order, by_key);
    }
    for (int i = 0; i < tape->nops; i++) ops[i] = tape->ops[order[i].index];
    for (int i = 0; i < tape->nops; i++) tape->ops[i] = ops[i];
out:
    free(order);
    free(ops);
    free(least);
    return status;
}
