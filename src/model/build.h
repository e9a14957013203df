/* build.h - the bricks architectures are built of: each appends one op and returns the tensor it makes.
 *
 * A builder carries the spec, the shape and the layer being built; tensors and ops take their layer from it.
 * Failure is the tape's: ids become -1 and tape->failed is set, so emitters read as straight lines.
 */
#ifndef PLIM_MODEL_BUILD_H
#define PLIM_MODEL_BUILD_H

#include "model/arch.h"
#include "tape/op.h"

struct builder {
    const struct model_spec *spec;
    const struct model_shape *shape;
    struct tape *tape;
    int layer; /* -1 outside layers */
    enum op_part part;
    int ids, pos;                  /* i32 [B,T] */
    int slots, rows, blocks, last; /* of a flat shape */
    int pool;                      /* likewise: keys and values of all layers */
    int rope_table;                /* f32 [B,T,D], -1 without rotary positions */
    double attention_dropout;
    uint32_t streams; /* ops that drop numbers so far */
};

/* Declares ids, pos and, for rotary architectures, the table of angles. */
void build_inputs(struct builder *b);

/* "step.scalars", declared once. */
int build_scalars(struct builder *b);

/* The parameter of that row for the current layer, or -1 when this spec does not have it. */
int build_param(struct builder *b, int row);

/* Activations [B,T,last] and [B,T,heads,D]. */
int build_act(struct builder *b, const char *label, int64_t last);
int build_heads(struct builder *b, const char *label, int heads);

int build_embed(struct builder *b, const char *label, int ids, int weight, int add);

/* y = x with numbers dropped (+ add, which may be -1). Only for tapes that train. */
int build_dropout(struct builder *b, const char *label, int x, double dropout, int add);

/* RMSNorm, or LayerNorm when bias >= 0. */
struct build_norm {
    const char *label, *stat_label;
    int weight, bias;
};
int build_norm(struct builder *b, const struct build_norm *n, int x);

/* y = x W' + bias + add into the declared tensor y. Returns y. */
struct build_linear {
    int weight, bias, add; /* bias and add may be -1 */
    bool weight_kn;
};
int build_linear(struct builder *b, int x, const struct build_linear *l, int y);

/* o [B,T,H,D] of qkv [B,T,(H+2K)D]; q and k are rotated where the architecture has rotary positions, k and v go
 * through the layer's cache when the shape has one. */
int build_attention(struct builder *b, int qkv);

/* The same parts of a flat shape (build_flat.c): its inputs, attention over blocks, the rows whose logits are wanted. */
struct build_parts {
    int q, k, v;
};
void build_flat_inputs(struct builder *b);
int build_paged(struct builder *b, const struct build_parts *p, struct op_attr attr);
int build_flat_last(struct builder *b, int x);

/* logits of the final hidden x [B,T,C] and, for HEAD_LOSS, their cross-entropy. */
void build_head(struct builder *b, int x, int weight);

#endif
