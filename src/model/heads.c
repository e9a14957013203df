/* heads.c - vectors of rows, and the loss of pairs of them. See build.h and model.h.
 *
 * A pair's anchor is row i and its positive row B/2 + i. Cosines of all anchors with all positives are one product of two
 * slices of the vectors, and the loss is the cross-entropy in which anchor i must choose positive i. Vectors are made
 * sqrt(pair_scale) long, so that their products are the scaled cosines.
 */
#include "model/build.h"

#include <math.h>

int build_row_tensor(struct builder *b, const char *label, int64_t width, unsigned flags)
{
    return build_tensor(b, (struct tensor){.label = label,
                                           .type = DT_F32,
                                           .cls = CLASS_ACT,
                                           .flags = flags,
                                           .ndim = 2,
                                           .dim = {b->shape->batch, width}});
}

static int pooled(struct builder *b, int x, struct op_attr attr, unsigned flags)
{
    struct op op = build_op(b, OP_POOL);
    op.attr = attr;
    op.in[POOL_X] = x, op.in[POOL_LENGTHS] = b->lengths;
    op.out[POOL_Y] = build_row_tensor(b, "embedding", b->spec->hidden_size, flags);
    op.out[POOL_STAT] = build_tensor(b, (struct tensor){.label = "embedding.stat",
                                                        .type = DT_F32,
                                                        .cls = CLASS_ACT,
                                                        .flags = TENSOR_STAT,
                                                        .ndim = 1,
                                                        .dim = {b->shape->batch}});
    tape_append(b->tape, &op);
    return op.out[POOL_Y];
}

int build_first_tokens(struct builder *b, int x)
{
    return pooled(b, x, (struct op_attr){.pooling = POOLING_FIRST}, 0);
}

static void build_pairs(struct builder *b, int vectors)
{
    int64_t pairs = b->shape->batch / 2;
    int targets = build_feed(b, "targets", pairs, 0);
    b->part = PART_HEAD;
    int anchors = tape_view_rows(b->tape, vectors, 0, pairs);
    struct build_linear l = {.weight = tape_view_rows(b->tape, vectors, pairs, pairs), .bias = -1, .add = -1};
    int cosines = build_tensor(
        b, (struct tensor){
               .label = "logits", .type = DT_F32, .cls = CLASS_ACT, .ndim = 2, .dim = {pairs, pairs}});
    build_loss(b, build_linear(b, anchors, &l, cosines), targets);
}

void build_vectors(struct builder *b, int x)
{
    const struct model_spec *spec = b->spec;
    struct op_attr attr = {.pooling = spec->pooling, .normalize = spec->normalize};
    if (b->shape->head == HEAD_EMBEDDING) {
        pooled(b, x, attr, TENSOR_OUTPUT | TENSOR_STAT);
        return;
    }
    attr.normalize = true, attr.scale = (float)sqrt(spec->pair_scale);
    build_pairs(b, pooled(b, x, attr, 0));
}
