/* t5.c - T5, and T5 1.1, of which FLAN-T5 is one: an encoder of the source and a decoder of the target.
 *
 *     encoder     x = embed(source)
 *     per layer:  x = x + o(attention(q, k, v)),       q, k, v = linear(norm(x)); every key is seen
 *                 x = x + wo(ff(norm(x))),             ff = relu(wi(x)), or gelu(wi_0(x)) * wi_1(x)
 *     memory      m = norm(x)
 *     decoder     x = embed(ids), and per layer as above with causal attention and between the two
 *                 x = x + o(attention(q, k, v)),       q = linear(norm(x)), k, v = linear(m)
 *     logits      = head(norm(x)), with the shared embedding as head head(norm(x) / sqrt(C))
 *
 * Products of queries and keys are not scaled. Self attention adds a bias by distance, a table of its own for each stack that
 * all its layers share. On a tape that trains, numbers are dropped of embeddings, probabilities, inside the
 * feed-forward, of what joins the residual, and behind the last norms.
 */
#include "model/build.h"

#include <math.h>
#include <string.h>

/* Rows of one stack, by place behind its first. */
enum {
    STACK_NORM1,
    STACK_QKV,
    STACK_O,
    STACK_BIAS,
    STACK_NORM2,
    STACK_WI,
    STACK_WI_0,
    STACK_WI_1,
    STACK_WO,
    STACK_NORM,
    STACK_ROWS
};
enum { CROSS_NORM, CROSS_Q, CROSS_K, CROSS_V, CROSS_O, CROSS_ROWS };

enum {
    T5_SHARED,
    T5_ENCODER,
    T5_DECODER = T5_ENCODER + STACK_ROWS,
    T5_CROSS = T5_DECODER + STACK_ROWS,
    T5_HEAD = T5_CROSS + CROSS_ROWS,
    T5_PARAMS
};

#define STACK(first, stack, ff)                                                                              \
    [first + STACK_NORM1] = {stack ".block.%d.layer.0.layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},  \
             [first + STACK_QKV] = {stack ".block.%d.layer.0.SelfAttention.{q,k,v}.weight",                  \
                                    {DIM_QKV, DIM_C},                                                        \
                                    RULE_QUERIES_BY_WIDTH,                                                   \
                                    WHEN_ALWAYS},                                                            \
             [first + STACK_O] = {stack ".block.%d.layer.0.SelfAttention.o.weight",                          \
                                  {DIM_C, DIM_HD},                                                           \
                                  RULE_BY_WIDTH,                                                             \
                                  WHEN_ALWAYS},                                                              \
             [first + STACK_BIAS] = {stack ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",  \
                                     {DIM_BUCKETS, DIM_H},                                                   \
                                     RULE_BY_HIDDEN,                                                         \
                                     WHEN_ALWAYS},                                                           \
             [first + STACK_NORM2] = {stack ".block.%d.layer." ff ".layer_norm.weight",                      \
                                      {DIM_C},                                                               \
                                      RULE_ONES,                                                             \
                                      WHEN_ALWAYS},                                                          \
             [first + STACK_WI] = {stack ".block.%d.layer." ff ".DenseReluDense.wi.weight",                  \
                                   {DIM_F, DIM_C},                                                           \
                                   RULE_BY_WIDTH,                                                            \
                                   WHEN_PLAIN},                                                              \
             [first + STACK_WI_0] = {stack ".block.%d.layer." ff ".DenseReluDense.wi_0.weight",              \
                                     {DIM_F, DIM_C},                                                         \
                                     RULE_BY_WIDTH,                                                          \
                                     WHEN_GATED},                                                            \
             [first + STACK_WI_1] = {stack ".block.%d.layer." ff ".DenseReluDense.wi_1.weight",              \
                                     {DIM_F, DIM_C},                                                         \
                                     RULE_BY_WIDTH,                                                          \
                                     WHEN_GATED},                                                            \
             [first + STACK_WO] = {stack ".block.%d.layer." ff ".DenseReluDense.wo.weight",                  \
                                   {DIM_C, DIM_F},                                                           \
                                   RULE_BY_WIDTH,                                                            \
                                   WHEN_ALWAYS},                                                             \
             [first + STACK_NORM] = {stack ".final_layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS}

#define CROSS "decoder.block.%d.layer.1."

static const struct param_row params[T5_PARAMS] = {
    [T5_SHARED] = {"shared.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_ALWAYS},
    STACK(T5_ENCODER, "encoder", "1"),
    STACK(T5_DECODER, "decoder", "2"),
    [T5_CROSS + CROSS_NORM] = {CROSS "layer_norm.weight", {DIM_C}, RULE_ONES, WHEN_ALWAYS},
    [T5_CROSS +
        CROSS_Q] = {CROSS "EncDecAttention.q.weight", {DIM_HD, DIM_C}, RULE_QUERIES_BY_WIDTH, WHEN_ALWAYS},
    [T5_CROSS + CROSS_K] = {CROSS "EncDecAttention.k.weight", {DIM_HD, DIM_C}, RULE_BY_WIDTH, WHEN_ALWAYS},
    [T5_CROSS + CROSS_V] = {CROSS "EncDecAttention.v.weight", {DIM_HD, DIM_C}, RULE_BY_WIDTH, WHEN_ALWAYS},
    [T5_CROSS + CROSS_O] = {CROSS "EncDecAttention.o.weight", {DIM_C, DIM_HD}, RULE_BY_WIDTH, WHEN_ALWAYS},
    [T5_HEAD] = {"lm_head.weight", {DIM_V, DIM_C}, RULE_NORMAL, WHEN_UNTIED},
};

static void defaults(struct model_spec *spec)
{
    spec->max_positions = INT64_C(1) << 30; /* distances have buckets, and positions no end */
    spec->norm_eps = 1e-6;
    spec->initializer_range = 1;
    spec->tie_embeddings = true;
    spec->dropout[0] = 0.1;
    spec->bias_buckets = 32, spec->bias_reach = 128;
    spec->pad_token_id = 0, spec->start_token_id = -1; /* as padding */
    spec->eos_token_ids[0] = 1, spec->eos_count = 1;
}

static enum plim_status check(const struct model_spec *spec, struct plim_error *err)
{
    if (spec->decoder_layers < 1 || model_layers(spec) > MODEL_MAX_LAYERS)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'num_decoder_layers': %d and 'num_layers' %d must be from 1 to %d together",
                         spec->decoder_layers, spec->num_layers, MODEL_MAX_LAYERS);
    if (spec->bias_buckets < 4 || spec->bias_buckets > 128 || spec->bias_buckets % 4)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'relative_attention_num_buckets': %d; only multiples of 4 up to 128 are "
                         "supported, usual is 32",
                         spec->bias_buckets);
    if (spec->bias_reach <= spec->bias_buckets / 2)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'relative_attention_max_distance': %d must be above %d, half the buckets",
                         spec->bias_reach, spec->bias_buckets / 2);
    if (spec->start_token_id < 0 || spec->start_token_id >= spec->vocab_size)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'decoder_start_token_id': %lld is no token of a vocabulary of %lld; usual is 0",
                         (long long)spec->start_token_id, (long long)spec->vocab_size);
    return PLIM_OK;
}

static double dropped(const struct builder *b) { return b->shape->training ? b->spec->dropout[0] : 0; }

static int drop(struct builder *b, int x, const char *label)
{
    return dropped(b) > 0 ? build_dropout(b, label, x, dropped(b), -1) : x;
}

static int norm(struct builder *b, int row, const char *label, const char *stat_label, int x)
{
    struct build_norm n = {
        .label = label, .stat_label = stat_label, .weight = build_param(b, row), .bias = -1};
    return build_norm(b, &n, x);
}

static int project(struct builder *b, int x, int row, int y)
{
    struct build_linear l = {.weight = build_param(b, row), .bias = -1, .add = -1};
    return build_linear(b, x, &l, y);
}

/* x + linear(h), of which a share is dropped. */
static int residual(struct builder *b, int h, int row, int x, const char *const labels[2])
{
    int64_t width = b->spec->hidden_size;
    bool drops = dropped(b) > 0;
    struct build_linear l = {.weight = build_param(b, row), .bias = -1, .add = drops ? -1 : x};
    int y = build_linear(b, h, &l, build_act(b, labels[drops], width));
    return drops ? build_dropout(b, labels[0], y, dropped(b), x) : y;
}

static int self_attention(struct builder *b, int stack, int x)
{
    static const char *const labels[2] = {"attn.residual[%d]", "attn.o[%d]"};
    int h = norm(b, stack + STACK_NORM1, "attn.norm[%d]", "attn.norm.rstd[%d]", x);
    int64_t width = param_dim_size(b->spec, DIM_QKV);
    int qkv = project(b, h, stack + STACK_QKV, build_act(b, "attn.qkv[%d]", width));
    return residual(b, build_attention(b, qkv), stack + STACK_O, x, labels);
}

static int inner(struct builder *b, int stack, int h)
{
    int64_t width = b->spec->intermediate_size;
    struct op op = build_op(b, b->spec->gated ? OP_GLU : OP_ACT);
    if (b->spec->gated) {
        op.attr.activation = ACTIVATION_GELU_TANH;
        op.in[GLU_GATE] = project(b, h, stack + STACK_WI_0, build_act(b, "mlp.gate[%d]", width));
        op.in[GLU_UP] = project(b, h, stack + STACK_WI_1, build_act(b, "mlp.up[%d]", width));
    } else {
        op.attr.activation = ACTIVATION_RELU;
        op.in[ACT_X] = project(b, h, stack + STACK_WI, build_act(b, "mlp.wi[%d]", width));
    }
    op.out[0] = build_act(b, "mlp.h[%d]", width); /* GLU_H, ACT_Y */
    tape_append(b->tape, &op);
    return op.out[0];
}

static int feed_forward(struct builder *b, int stack, int x)
{
    static const char *const labels[2] = {"mlp.residual[%d]", "mlp.wo[%d]"};
    int h = inner(b, stack, norm(b, stack + STACK_NORM2, "mlp.norm[%d]", "mlp.norm.rstd[%d]", x));
    return residual(b, drop(b, h, "mlp.h.dropped[%d]"), stack + STACK_WO, x, labels);
}

/* --- the source ------------------------------------------------------------------------------------------- */

struct source {
    struct model_shape shape; /* the encoder's: T is S */
    int64_t cache;            /* positions of what is kept of it */
    int lengths, pos;
};

/* The encoder's last norm of the source, [B,S,C]. */
static int encode(struct builder *b, const struct source *s, int words)
{
    const struct model_shape *target = b->shape;
    b->shape = &s->shape, b->full = true, b->lengths = s->lengths;
    int ids = build_feed(b, "source.ids", s->shape.batch, s->shape.time);
    b->bias = build_param(b, T5_ENCODER + STACK_BIAS);
    int x = drop(b, build_embed(b, "source.embed", ids, words, -1), "source.embed.dropped");
    for (b->layer = 0; b->layer < b->spec->num_layers; b->layer++)
        x = feed_forward(b, T5_ENCODER, self_attention(b, T5_ENCODER, x));
    b->layer = -1;
    x = norm(b, T5_ENCODER + STACK_NORM, "source.norm", "source.norm.rstd", x);
    x = drop(b, x, "source.norm.dropped");
    b->shape = target, b->full = false, b->lengths = -1;
    return x;
}

/* Keys and values that a decoder's layer has of the encoded source. */
static struct build_pair memory(struct builder *b, const struct source *s, int encoded)
{
    const struct model_shape *target = b->shape;
    int heads = b->spec->num_heads;
    b->shape = &s->shape;
    int k = project(b, encoded, T5_CROSS + CROSS_K, build_heads(b, "cross.keys[%d]", heads));
    int v = project(b, encoded, T5_CROSS + CROSS_V, build_heads(b, "cross.values[%d]", heads));
    b->shape = target;
    return (struct build_pair){k, v};
}

static struct build_cache memory_cache(const struct source *s)
{
    return (struct build_cache){"cross.k", "cross.v", s->cache, s->pos};
}

/* One row for all of its layers. */
static void declare_row(struct builder *b, int row)
{
    int copies = param_copies(b->spec, &params[row]);
    if (!strstr(params[row].label, "%d")) build_param(b, row);
    for (b->layer = 0; b->layer < copies && strstr(params[row].label, "%d"); b->layer++) build_param(b, row);
    b->layer = -1;
}

/* Parameters that only the pass over the source reads: the pass over a token owns them all. */
static void declare_encoder(struct builder *b)
{
    for (int i = 0; i < STACK_ROWS; i++) declare_row(b, T5_ENCODER + i);
    declare_row(b, T5_CROSS + CROSS_K);
    declare_row(b, T5_CROSS + CROSS_V);
}

/* --- the target ------------------------------------------------------------------------------------------- */

static int cross_attention(struct builder *b, const struct source *s, int encoded, int x)
{
    static const char *const labels[2] = {"cross.residual[%d]", "cross.o[%d]"};
    struct build_cache cache = memory_cache(s);
    int h = norm(b, T5_CROSS + CROSS_NORM, "cross.norm[%d]", "cross.norm.rstd[%d]", x);
    struct build_pair m = encoded < 0 ? build_cached(b, &cache) : memory(b, s, encoded);
    struct build_cross c = {.k = m.k, .v = m.v, .lengths = s->lengths};
    c.q = project(b, h, T5_CROSS + CROSS_Q, build_heads(b, "cross.q[%d]", b->spec->num_heads));
    return residual(b, build_cross(b, &c), T5_CROSS + CROSS_O, x, labels);
}

/* encoded: -1 where the source is in the cache. */
static void decode(struct builder *b, const struct source *s, int encoded, int words)
{
    b->bias = build_param(b, T5_DECODER + STACK_BIAS);
    int x = drop(b, build_embed(b, "embed", b->ids, words, -1), "embed.dropped");
    b->below = b->spec->num_layers;
    for (b->layer = 0; b->layer < b->spec->decoder_layers; b->layer++) {
        x = self_attention(b, T5_DECODER, x);
        x = cross_attention(b, s, encoded, x);
        x = feed_forward(b, T5_DECODER, x);
    }
    b->layer = -1;
    x = norm(b, T5_DECODER + STACK_NORM, "norm", "norm.rstd", x);
    x = drop(b, x, "norm.dropped");
    if (b->spec->tie_embeddings && !b->spec->unscaled_head) /* which is wide for what a norm makes */
        x = build_scaled(b, "norm.scaled", x, 1 / sqrt((double)b->spec->hidden_size));
    int head = build_param(b, T5_HEAD);
    build_head(b, x, head >= 0 ? head : words);
}

/* The source into the caches of the decoder's layers. */
static void keep_source(struct builder *b, const struct source *s, int encoded)
{
    struct build_cache cache = memory_cache(s);
    b->below = b->spec->num_layers;
    for (b->layer = 0; b->layer < b->spec->decoder_layers; b->layer++)
        build_cache(b, &cache, memory(b, s, encoded));
    b->layer = -1;
}

static void emit(struct builder *b)
{
    const struct model_shape *shape = b->shape;
    bool cached = shape->kv_length > 0, target = shape->head != HEAD_SOURCE;
    struct source s = {.shape = *shape, .pos = -1};
    s.shape.time = shape->source_time;
    s.cache = shape->source_cache ? shape->source_cache : shape->source_time;
    b->attention_dropout = dropped(b);
    if (target) build_inputs(b);
    s.lengths = build_feed(b, "source.lengths", shape->batch, 0);
    if (!target) s.pos = build_feed(b, "source.pos", shape->batch, shape->source_time);
    if (cached && target) declare_encoder(b);
    int words = build_param(b, T5_SHARED);
    int encoded = cached && target ? -1 : encode(b, &s, words);
    if (target)
        decode(b, &s, encoded, words);
    else
        keep_source(b, &s, encoded);
}

const struct architecture arch_t5 = {
    .name = "t5",
    .hf_class = "T5ForConditionalGeneration",
    .activation = "relu",
    .prefix = "",
    .keys = {[FIELD_HIDDEN] = "d_model",
             [FIELD_INNER] = "d_ff",
             [FIELD_LAYERS] = "num_layers",
             [FIELD_HEADS] = "num_heads",
             [FIELD_NORM_EPS] = "layer_norm_epsilon",
             [FIELD_GATED] = "feed_forward_proj",
             [FIELD_HEAD_DIM] = "d_kv",
             [FIELD_RANGE] = "initializer_factor",
             [FIELD_DROPOUT_1] = "dropout_rate",
             HAS(UNSCALED),
             HAS(SOURCE),
             HAS(DECODER_LAYERS),
             HAS(BUCKETS),
             HAS(REACH),
             HAS(START)},
    .params = params,
    .nparams = T5_PARAMS,
    .source = true,
    .demands = {{"is_encoder_decoder", "true"}},
    .defaults = defaults,
    .check = check,
    .emit = emit,
};
