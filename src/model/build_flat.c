/* build_flat.c - the bricks of a flat shape: one row of tokens of many requests. See model.h and build.h.
 *
 * All inputs are views of one tensor, so that a step costs one copy to a device with its own memory. Where the device draws tokens
 * it writes them over the first ids, too: a step in which each of those rows goes on needs no ids from the host. The tensor
 * lives as long as the pass, because sampling reads it last. */
#include "model/build.h"
#include "tensor/kv8.h"

static int declare(struct builder *b, struct tensor t)
{
    t.layer = -1, t.owner = -1;
    return tape_tensor(b->tape, &t);
}

/* The next `rows` x `columns` numbers of the input, columns 0: of one dimension. */
static int part(struct builder *b, int root, int64_t *at, const char *label, int64_t rows, int64_t columns)
{
    struct tensor t = {.label = label,
                       .type = DT_I32,
                       .cls = CLASS_IO,
                       .flags = TENSOR_INPUT,
                       .ndim = columns ? 2 : 1,
                       .dim = {rows, columns},
                       .view_of = root,
                       .view_offset = *at * (int64_t)sizeof(int32_t)};
    *at += rows * (columns ? columns : 1);
    return declare(b, t);
}

static int64_t numbers(const struct model_flat *f)
{
    int64_t drawn = f->samples ? f->rows * SAMPLE_WORDS + 2 * f->seen : 0;
    return (3 + f->adapted) * f->tokens + f->rows * (3 + f->reach + 1) + drawn;
}

static int pool(struct builder *b)
{
    const struct model_spec *spec = b->spec;
    bool coded = b->shape->flat.coded;
    int64_t head = coded ? kv8_bytes(KV_BLOCK, spec->head_dim) : (int64_t)KV_BLOCK * spec->head_dim;
    return declare(
        b, (struct tensor){.label = "kv.pool",
                           .type = coded ? DT_U8 : DT_F32,
                           .cls = CLASS_KV,
                           .flags = TENSOR_KEPT,
                           .ndim = 4,
                           .dim = {b->shape->flat.blocks, 2 * spec->num_layers, spec->num_kv_heads, head},
                           .view_of = -1});
}

void build_flat_inputs(struct builder *b)
{
    const struct model_flat *f = &b->shape->flat;
    int64_t at = 0;
    int root = declare(b, (struct tensor){.label = "flat",
                                          .type = DT_I32,
                                          .cls = CLASS_IO,
                                          .flags = TENSOR_INPUT,
                                          .ndim = 1,
                                          .dim = {numbers(f)},
                                          .view_of = -1});
    b->ids = part(b, root, &at, "ids", 1, f->tokens);
    b->pos = part(b, root, &at, "pos", 1, f->tokens);
    b->slots = part(b, root, &at, "slots", f->tokens, 0);
    if (f->adapted) part(b, root, &at, "adapters", f->tokens, 0);
    b->rows = part(b, root, &at, "rows", f->rows, 3);
    b->blocks = part(b, root, &at, "blocks", f->rows, f->reach);
    b->last = part(b, root, &at, "last", f->rows, 0);
    b->sampling = f->samples ? part(b, root, &at, "sampling", f->rows, SAMPLE_WORDS) : -1;
    b->seen = f->samples && f->seen ? part(b, root, &at, "seen", f->seen, 2) : -1;
    at = 0;
    b->next = f->samples ? part(b, root, &at, "next", f->rows, 0) : -1;
    b->pool = pool(b);
}

int build_paged(struct builder *b, const struct build_parts *p, struct op_attr attr)
{
    bool coded = b->shape->flat.coded;
    struct op put = tape_op(coded ? OP_KV_PUT8 : OP_KV_PUT, b->layer);
    struct op op = tape_op(coded ? OP_ATTN_PAGED8 : OP_ATTN_PAGED, b->layer);
    put.part = op.part = b->part;
    put.attr = op.attr = attr;
    put.attr.e4m3 = op.attr.e4m3 = b->shape->flat.e4m3;
    put.in[KV_PUT_K] = p->k, put.in[KV_PUT_V] = p->v, put.in[KV_PUT_SLOTS] = b->slots;
    put.in[KV_PUT_POOL] = put.out[KV_PUT_NEW_POOL] = b->pool;
    tape_append(b->tape, &put);
    op.in[ATTN_PAGED_Q] = p->q, op.in[ATTN_PAGED_POOL] = b->pool;
    op.in[ATTN_PAGED_ROWS] = b->rows, op.in[ATTN_PAGED_BLOCKS] = b->blocks;
    op.out[ATTN_PAGED_O] = build_heads(b, "attn.out[%d]", b->spec->num_heads);
    tape_append(b->tape, &op);
    return op.out[ATTN_PAGED_O];
}

int build_flat_last(struct builder *b, int x)
{
    if (x < 0) return -1;
    struct tensor t = b->tape->tensors[x];
    t.label = "head.tokens";
    t.ndim = 2, t.dim[0] = b->shape->flat.tokens, t.dim[1] = b->spec->hidden_size;
    t.view_of = tape_root(b->tape, x);
    struct op op = tape_op(OP_EMBED, b->layer);
    op.part = b->part;
    op.in[EMBED_IDS] = b->last, op.in[EMBED_W] = tape_tensor(b->tape, &t);
    op.out[EMBED_Y] = declare(b, (struct tensor){.label = "head.last",
                                                 .type = DT_F32,
                                                 .cls = CLASS_ACT,
                                                 .ndim = 2,
                                                 .dim = {b->shape->flat.rows, b->spec->hidden_size},
                                                 .view_of = -1});
    tape_append(b->tape, &op);
    return op.out[EMBED_Y];
}

/* Numbers of what a step tells, as views of one tensor: one read out. */
static int told(struct builder *b, const char *label, enum dtype type, int64_t columns, int root, int64_t *at)
{
    const struct model_flat *f = &b->shape->flat;
    struct tensor t = {.label = label,
                       .type = type,
                       .cls = CLASS_ACT,
                       .flags = TENSOR_STAT,
                       .ndim = columns ? 2 : 1,
                       .dim = {f->rows, columns},
                       .view_of = root,
                       .view_offset = *at * (int64_t)sizeof(int32_t)};
    *at += f->rows * (columns ? columns : 1);
    return declare(b, t);
}

void build_flat_sample(struct builder *b, int logits)
{
    const struct model_flat *f = &b->shape->flat;
    struct op op = tape_op(OP_SAMPLE, b->layer);
    int64_t at = 0;
    if (!f->samples || logits < 0) return;
    int root = declare(b, (struct tensor){.label = "drawn",
                                          .type = DT_I32,
                                          .cls = CLASS_ACT,
                                          .flags = TENSOR_OUTPUT,
                                          .ndim = 1,
                                          .dim = {f->rows * (2 + 2 * f->top)},
                                          .view_of = -1});
    op.part = b->part;
    op.in[SAMPLE_LOGITS] = logits, op.in[SAMPLE_ROWS] = b->sampling, op.in[SAMPLE_SEEN] = b->seen;
    op.out[SAMPLE_TOKEN] = told(b, "tokens", DT_I32, 0, root, &at);
    op.out[SAMPLE_NEXT] = b->next;
    if (f->top) {
        op.out[SAMPLE_TOP] = told(b, "top", DT_I32, f->top, root, &at);
        op.out[SAMPLE_LOGPROB] = told(b, "logprob", DT_F32, f->top + 1, root, &at);
    }
    tape_append(b->tape, &op);
}
