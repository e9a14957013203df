/* build.h - building blocks of architectures: each function appends one op and returns the tensor it produces.
 *
 * A builder carries the spec, the shape and the current layer; tensors and ops get their layer from it. Failures are
 * recorded in the tape: ids become -1 and tape->failed is set, so emitters need no checks.
 */
#pragma once

#include "model/arch.h"
#include "tape/op.h"

struct builder {
    const struct model_spec *spec;
    const struct model_shape *shape;
    struct tape *tape;
    int layer; /* -1 outside layers */
    int below; /* layers of earlier stacks; added to the layer of ops and activations, not of parameters */
    enum op_part part;
    int ids, pos;                                        /* i32 [B,T] */
    int slots, rows, blocks, last, sampling, seen, next; /* inputs of a flat shape */
    int pool;                                            /* of a flat shape: keys and values of all layers */
    /* f32 [B,T,rotary size] per set of frequencies; -1: no layer uses the set. */
    int rope_table[MODEL_ROPE_SETS];
    int types;   /* i32 [B,T]; -1: segments are not distinguished */
    int lengths; /* i32 [B], -1: rows are not padded */
    int bias;    /* [buckets,H] of relative positions; -1: none */
    bool full;   /* attention sees whole rows, as in encoders */
    double attention_dropout;
    uint32_t streams; /* ops with dropout so far */
};

/* Declares ids, pos and, for rotary architectures, the tables of angles. */
void build_inputs(struct builder *b);

/* Declares the inputs of an encoder: ids, pos and lengths, plus types where the model has segments. */
void build_encoder_inputs(struct builder *b);

/* An i32 tensor filled by the host: [rows,columns], or [rows] when columns is 0. */
int build_feed(struct builder *b, const char *label, int64_t rows, int64_t columns);

/* "step.scalars", declared once. */
int build_scalars(struct builder *b);

/* The parameter of that row for the current layer; -1: this spec does not have it. */
int build_param(struct builder *b, int row);

/* Activations [B,T,last] and [B,T,heads,D]. */
int build_act(struct builder *b, const char *label, int64_t last);
int build_heads(struct builder *b, const char *label, int heads);

int build_embed(struct builder *b, const char *label, int ids, int weight, int add);

/* x [B,T,C] times the factor; returns x itself if the factor is 0 or 1. */
int build_scaled(struct builder *b, const char *label, int x, double factor);

/* y = dropout(x) + add; add may be -1. For training tapes only. */
int build_dropout(struct builder *b, const char *label, int x, double dropout, int add);

/* RMSNorm of x [B,T,C], or LayerNorm when bias >= 0. With heads, x is [B,T,heads,D] and the norm covers as
 * many numbers as the weight has. */
struct build_norm {
    const char *label, *stat_label;
    int weight, bias;
    int heads;
};
int build_norm(struct builder *b, const struct build_norm *n, int x);

/* y = x W' + bias + add into the declared tensor y. Returns y. */
struct build_linear {
    int weight, bias, add; /* bias and add may be -1 */
    bool weight_kn;
};
int build_linear(struct builder *b, int x, const struct build_linear *l, int y);

/* Attention: o [B,T,H,D] from qkv [B,T,(H+2K)D]. Rotates q and k if the architecture has rotary positions. If
 * the shape has a cache, k and v go through it. */
int build_attention(struct builder *b, int qkv);

/* Flat shapes (build_flat.c): inputs, attention over blocks, and the rows whose logits are wanted. */
struct build_parts {
    int q, k, v;
};
void build_flat_inputs(struct builder *b);
int build_paged(struct builder *b, const struct build_parts *p, struct op_attr attr);
int build_flat_last(struct builder *b, int x);
void build_flat_sample(struct builder *b, int logits); /* if the shape samples */

/* build_attention with norms of queries and keys before rotation; pass their weights, or -1 for none. */
int build_attention_normed(struct builder *b, int qkv, int q_norm, int k_norm);

/* Cross-attention: o of queries [B,T,H,D] over keys and values [B,S,H,D] of another row, of which the first
 * lengths [B] are seen. */
struct build_cross {
    int q, k, v, lengths;
};
int build_cross(struct builder *b, const struct build_cross *c);

/* Writes keys and values [B,..,K,D] at their positions of the layer's cache [B,length,K,D] and returns the
 * cache. */
struct build_cache {
    const char *k_label, *v_label;
    int64_t length;
    int pos;
};
struct build_pair {
    int k, v;
};
struct build_pair build_cache(struct builder *b, const struct build_cache *c, struct build_pair new);
/* Returns the cache as an earlier pass left it. */
struct build_pair build_cached(struct builder *b, const struct build_cache *c);

/* Logits of the final hidden x [B,T,C], soft-capped if the spec says so, and their cross-entropy for
 * HEAD_LOSS. */
void build_head(struct builder *b, int x, int weight);

/* build_head with any projection to `width` numbers; also serves HEAD_LABELS. */
void build_logits(struct builder *b, int x, const struct build_linear *l, int64_t width);

/* One vector per row of x [B,T,C] and, for HEAD_PAIRS, the loss over pairs (heads.c). */
void build_vectors(struct builder *b, int x);

/* build_first_tokens returns the first token of each row of x [B,T,C] as [B,C]; build_row_tensor declares f32
 * [B,width] (heads.c). */
int build_first_tokens(struct builder *b, int x);
int build_row_tensor(struct builder *b, const char *label, int64_t width, unsigned flags);

/* For heads: the cross-entropy of logits [..,V]; an op or tensor with the builder's layer and part. */
void build_loss(struct builder *b, int logits, int targets);

/* True if the tape ends with a loss over tokens. */
static inline bool build_learns(const struct builder *b)
{
    return b->shape->head == HEAD_LOSS || b->shape->head == HEAD_PREFERENCE;
}
struct op build_op(const struct builder *b, int kind);
int build_tensor(struct builder *b, struct tensor t);
