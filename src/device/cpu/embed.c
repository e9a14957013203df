/* embed.c - rows of the embedding table by token, and their gradients.
 *
 * Backward, several rows may add to the same row of the table, so threads share the columns, not the rows:
 * each strip of columns sees all rows in order, whoever does it. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <assert.h>
#include <string.h>

struct embed {
    const struct row_ops *rows;
    enum dtype type;
    const int32_t *ids;
    const void *table; /* [V,C] */
    const void *add;   /* [R,C] or NULL */
    void *y;           /* [R,C] */
    int64_t columns, vocabulary;
};

static void embed_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct embed *e = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        assert(e->ids[r] >= 0 && e->ids[r] < e->vocabulary);
        const void *from = element(e->table, e->type, e->ids[r] * e->columns);
        void *to = element(e->y, e->type, r * e->columns);
        if (e->add)
            e->rows->add(e->type, to, from, element(e->add, e->type, r * e->columns), e->columns);
        else
            memcpy(to, from, (size_t)e->columns * dtype_size(e->type));
    }
}

void cpu_embed(const struct kernel_call *call)
{
    const struct tensor *table = call_in(call, 1);
    struct embed e = {row_ops(),   table->type,  call->in[0],   call->in[1],
                      call->in[2], call->out[0], table->dim[1], table->dim[0]};
    threads_each(call->team, tensor_count(call_in(call, 0)), row_grain(e.columns), embed_body, &e);
}

struct embed_bwd {
    const struct row_ops *rows;
    enum dtype type;
    const int32_t *ids;
    const void *dy; /* [R,C] */
    float *dw;      /* [V,C] */
    int64_t count, columns, vocabulary;
};

static void clear_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct embed_bwd *e = arg;
    (void)worker;
    memset(e->dw + begin * e->columns, 0, (size_t)((end - begin) * e->columns) * sizeof *e->dw);
}

static void strip_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct embed_bwd *e = arg;
    (void)worker;
    for (int64_t r = 0; r < e->count; r++) {
        assert(e->ids[r] >= 0 && e->ids[r] < e->vocabulary);
        const void *from = element(e->dy, e->type, r * e->columns + begin);
        e->rows->add_to(e->type, e->dw + e->ids[r] * e->columns + begin, from, end - begin);
    }
}

void cpu_embed_bwd(const struct kernel_call *call)
{
    const struct tensor *dw = call_out(call, 0);
    struct embed_bwd e = {
        .rows = row_ops(),
        .type = call_in(call, 1)->type,
        .ids = call->in[0],
        .dy = call->in[1],
        .dw = call->out[0],
        .count = tensor_count(call_in(call, 0)),
        .columns = dw->dim[1],
        .vocabulary = dw->dim[0],
    };
    if (!call->accumulate) threads_each(call->team, e.vocabulary, row_grain(e.columns), clear_body, &e);
    /* Two strips per thread, in whole cache lines of 16 floats. */
    int64_t strip = blocks_of(e.columns, 2 * threads_count(call->team));
    threads_each(call->team, e.columns, blocks_of(strip, 16) * 16, strip_body, &e);
}
