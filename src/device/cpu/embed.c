/* embed.c - rows of the embedding table by token, and their gradients.
 *
 * Backward, several rows may add to the same row of the table, so threads share the columns, not the rows:
 * each strip of columns sees all rows in order, whoever does it. A narrow gradient is rounded once per call, so its rows
 * are made one token at a time, in fp32: rows are first linked into one list per token, in order.
 *
 * A table that lies the other way (attr.weight_kn) is a low-rank adapter's: it has few columns, and a thread has one of them. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"
#include <assert.h>
#include <string.h>

static void embed_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *table = call_in(call, EMBED_W);
    const struct row_ops *rows = row_ops();
    const int32_t *ids = call->in[EMBED_IDS];
    int64_t columns = table->dim[1], first = call->op->attr.first;
    float scale = dtype_round(table->type, call->op->attr.scale);
    for (int64_t r = begin; r < end; r++) {
        assert(ids[r] >= 0 && ids[r] < table->dim[0] - first);
        const void *from = in_at(call, EMBED_W, (first + ids[r]) * columns),
                   *add = in_at(call, EMBED_ADD, r * columns);
        void *to = out_at(call, EMBED_Y, r * columns);
        if (scale != 0)
            rows->scale_add(table->type, to, from, scale, add, columns);
        else if (add)
            rows->add(table->type, to, from, add, columns);
        else
            memcpy(to, from, (size_t)columns * dtype_size(table->type));
    }
}

static void turned_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *table = call_in(call, EMBED_W);
    const int32_t *ids = call->in[EMBED_IDS];
    int64_t columns = table->dim[0], vocabulary = table->dim[1], first = call->op->attr.first;
    float scale = dtype_round(table->type, call->op->attr.scale);
    for (int64_t i = begin * columns; i < end * columns; i++) {
        float y, add = 0;
        int64_t at = i % columns * vocabulary + first + ids[i / columns];
        dtype_convert(&y, DT_F32, in_at(call, EMBED_W, at), table->type, 1);
        if (call->in[EMBED_ADD]) dtype_convert(&add, DT_F32, in_at(call, EMBED_ADD, i), table->type, 1);
        y = (scale != 0 ? y * scale : y) + add;
        dtype_convert(out_at(call, EMBED_Y, i), table->type, &y, DT_F32, 1);
    }
}

void cpu_embed(const struct kernel_call *call)
{
    if (call->op->attr.weight_kn) {
        call_each(call, tensor_count(call_in(call, EMBED_IDS)), row_grain(call_in(call, EMBED_W)->dim[0]),
                  turned_body);
        return;
    }
    call_each(call, tensor_count(call_in(call, EMBED_IDS)), row_grain(call_in(call, EMBED_W)->dim[1]),
              embed_body);
}

struct embed_bwd {
    const struct row_ops *rows;
    enum dtype type;
    const int32_t *ids;
    const void *dy; /* [R,C] */
    void *dw;       /* [V,C] */
    int64_t count, columns, vocabulary;
    float scale; /* 0: none */
};

static void add_row(const struct embed_bwd *e, float *sum, const void *row, int64_t width)
{
    if (e->scale != 0)
        e->rows->add_scaled(e->type, sum, row, e->scale, width);
    else
        e->rows->add_to(e->type, sum, row, width);
}

static void clear_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct embed_bwd *e = arg;
    memset((float *)e->dw + begin * e->columns, 0, (size_t)((end - begin) * e->columns) * sizeof(float));
}

static void strip_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct embed_bwd *e = arg;
    for (int64_t r = 0; r < e->count; r++) {
        assert(e->ids[r] >= 0 && e->ids[r] < e->vocabulary);
        const void *from = element(e->dy, e->type, r * e->columns + begin);
        add_row(e, (float *)e->dw + e->ids[r] * e->columns + begin, from, end - begin);
    }
}

static void wide_bwd(const struct embed_bwd *e, const struct kernel_call *call)
{
    struct embed_bwd all = *e;
    if (!call->accumulate) threads_each(call->team, e->vocabulary, row_grain(e->columns), clear_body, &all);
    /* Two strips per thread, in whole cache lines of 16 floats. */
    int64_t strip = blocks_of(e->columns, 2 * threads_count(call->team));
    threads_each(call->team, e->columns, blocks_of(strip, 16) * 16, strip_body, &all);
}

enum { STRIP = 512 };

/* Rows of each token as lists: first[token] and next[row], -1 at the end. */
struct narrow_bwd {
    struct embed_bwd e;
    enum dtype grad_type;
    int32_t *first, *next;
    bool accumulate;
};

static void token_strip(const struct narrow_bwd *n, int64_t token, int64_t at, int64_t width)
{
    float sum[STRIP] = {0};
    void *dw = element(n->e.dw, n->grad_type, token * n->e.columns + at);
    if (n->accumulate) dtype_convert(sum, DT_F32, dw, n->grad_type, width);
    for (int32_t r = n->first[token]; r >= 0; r = n->next[r])
        add_row(&n->e, sum, element(n->e.dy, n->e.type, r * n->e.columns + at), width);
    dtype_convert(dw, n->grad_type, sum, DT_F32, width);
}

/* begin and end count tokens */
static void token_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct narrow_bwd *n = arg;
    for (int64_t token = begin; token < end; token++) {
        if (n->first[token] < 0 && n->accumulate) continue;
        for (int64_t at = 0; at < n->e.columns; at += STRIP)
            token_strip(n, token, at, lesser(STRIP, n->e.columns - at));
    }
}

static void narrow_bwd(const struct embed_bwd *e, const struct kernel_call *call)
{
    struct narrow_bwd n = {.e = *e,
                           .grad_type = call_out(call, EMBED_BWD_DW)->type,
                           .first = call->work,
                           .accumulate = call->accumulate};
    n.next = n.first + e->vocabulary;
    for (int64_t i = 0; i < e->vocabulary; i++) n.first[i] = -1;
    for (int64_t r = e->count - 1; r >= 0; r--) { /* from the end, so that lists ascend */
        assert(e->ids[r] >= 0 && e->ids[r] < e->vocabulary);
        n.next[r] = n.first[e->ids[r]];
        n.first[e->ids[r]] = (int32_t)r;
    }
    threads_each(call->team, e->vocabulary, row_grain(e->columns), token_body, &n);
}

/* begin and end count columns. The sum of a token is rounded once: sums of all tokens of a column lie in scratch. */
static void turned_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    const struct tensor *dw = call_out(call, EMBED_BWD_DW), *dy = call_in(call, EMBED_BWD_DY);
    const int32_t *ids = call->in[EMBED_BWD_IDS];
    int64_t columns = dw->dim[0], vocabulary = dw->dim[1], count = tensor_count(call_in(call, EMBED_BWD_IDS));
    float scale = dtype_round(dy->type, call->op->attr.scale);
    for (int64_t c = begin; c < end; c++) {
        void *out = out_at(call, EMBED_BWD_DW, c * vocabulary);
        float *sum = dw->type == DT_F32 ? out : (float *)call->work + c * vocabulary;
        if (!call->accumulate)
            memset(sum, 0, (size_t)vocabulary * sizeof *sum);
        else if (dw->type != DT_F32)
            dtype_convert(sum, DT_F32, out, dw->type, vocabulary);
        for (int64_t r = 0; r < count; r++) {
            float x;
            dtype_convert(&x, DT_F32, in_at(call, EMBED_BWD_DY, r * columns + c), dy->type, 1);
            sum[call->op->attr.first + ids[r]] += scale != 0 ? x * scale : x;
        }
        if (dw->type != DT_F32) dtype_convert(out, dw->type, sum, DT_F32, vocabulary);
    }
}

void cpu_embed_bwd(const struct kernel_call *call)
{
    if (call->op->attr.weight_kn) {
        call_each(call, call_out(call, EMBED_BWD_DW)->dim[0], 1, turned_bwd_body);
        return;
    }
    const struct tensor *dw = call_out(call, EMBED_BWD_DW);
    int64_t first = call->op->attr.first; /* rows before it have no ids and no gradient */
    struct embed_bwd e = {
        .rows = row_ops(),
        .type = call_in(call, EMBED_BWD_DY)->type,
        .ids = call->in[EMBED_BWD_IDS],
        .dy = call->in[EMBED_BWD_DY],
        .dw = element(call->out[EMBED_BWD_DW], dw->type, first * dw->dim[1]),
        .count = tensor_count(call_in(call, EMBED_BWD_IDS)),
        .columns = dw->dim[1],
        .vocabulary = dw->dim[0] - first,
        .scale = dtype_round(call_in(call, EMBED_BWD_DY)->type, call->op->attr.scale),
    };
    if (!call->accumulate)
        memset(call->out[EMBED_BWD_DW], 0, (size_t)(first * dw->dim[1]) * dtype_size(dw->type));
    if (dw->type == DT_F32)
        wide_bwd(&e, call);
    else
        narrow_bwd(&e, call);
}

static size_t cpu_embed_bwd_workspace(const struct tensor *const *desc, const struct op *op, int)
{
    const struct tensor *dw = desc[OP_MAX_IN + EMBED_BWD_DW];
    if (dw->type == DT_F32) return 0;
    if (op->attr.weight_kn) return (size_t)tensor_count(dw) * sizeof(float);
    return (size_t)(dw->dim[0] + tensor_count(desc[EMBED_BWD_IDS])) * sizeof(int32_t);
}

CPU_KERNEL(embed, NULL);
CPU_KERNEL(embed_bwd, cpu_embed_bwd_workspace);
