/* encoder.c - forward ops of the shared encoder. See encoder.h.
 *
 *     x = norm(words[ids] + types[types] + positions[pos])
 *     per layer:  x = norm(x + o(attention(q, k, v))),        q, k, v = linear(x)
 *                 x = norm(x + proj(gelu(fc(x))))
 *     tokens      logits = head(norm(gelu(transform(x))))
 *     labels      logits = classifier(x)
 *     row labels  logits = classifier(act(row(x of the first token)))
 *     vectors     pooled x (heads.c)
 *
 * On a tape that trains, numbers are dropped after the first norm, in attention, and of what joins the residual.
 */
#include "model/encoder.h"
#include "model/build.h"

void encoder_defaults(struct model_spec *spec)
{
    spec->max_positions = 512;
    spec->norm_eps = 1e-12;
    spec->tie_embeddings = true;
    spec->qkv_bias = spec->o_bias = spec->mlp_bias = true;
    spec->dropout[ENCODER_DROP_HIDDEN] = spec->dropout[ENCODER_DROP_ATTENTION] = 0.1;
    spec->pad_token_id = 0;
}

static double dropped(const struct builder *b, int which)
{
    return b->shape->training ? b->spec->dropout[which] : 0;
}

static struct build_linear projection(struct builder *b, int row, int add)
{
    struct build_linear l = {.weight = build_param(b, row), .bias = build_param(b, row + 1), .add = add};
    return l;
}

static int project(struct builder *b, int x, int row, const char *label, int64_t width)
{
    struct build_linear l = projection(b, row, -1);
    return build_linear(b, x, &l, build_act(b, label, width));
}

static int layer_norm(struct builder *b, int row, const char *label, const char *stat_label, int x)
{
    struct build_norm n = {.label = label,
                           .stat_label = stat_label,
                           .weight = build_param(b, row),
                           .bias = build_param(b, row + 1)};
    return build_norm(b, &n, x);
}

static int gelu(struct builder *b, int x, const char *label, int64_t width)
{
    struct op op = build_op(b, OP_ACT);
    op.attr.activation = ACTIVATION_GELU;
    op.in[ACT_X] = x, op.out[ACT_Y] = build_act(b, label, width);
    tape_append(b->tape, &op);
    return op.out[ACT_Y];
}

/* x + linear(h), of which a share is dropped. */
static int residual(struct builder *b, int h, int row, int x, double drop, const char *const labels[2])
{
    int64_t width = b->spec->hidden_size;
    struct build_linear l = projection(b, row, drop > 0 ? -1 : x);
    if (!(drop > 0)) return build_linear(b, h, &l, build_act(b, labels[0], width));
    int y = build_linear(b, h, &l, build_act(b, labels[1], width));
    return build_dropout(b, labels[0], y, drop, x);
}

static int attention_block(struct builder *b, int x, bool drops)
{
    static const char *const labels[2] = {"attn.residual[%d]", "attn.o[%d]"};
    int qkv = project(b, x, ENCODER_QKV, "attn.qkv[%d]", 3 * b->spec->hidden_size);
    int o = build_attention(b, qkv);
    int y = residual(b, o, ENCODER_O, x, drops ? dropped(b, ENCODER_DROP_HIDDEN) : 0, labels);
    return layer_norm(b, ENCODER_NORM1, "attn.norm[%d]", "attn.norm.stat[%d]", y);
}

static int mlp_block(struct builder *b, int x)
{
    static const char *const labels[2] = {"mlp.residual[%d]", "mlp.proj[%d]"};
    int64_t inner = b->spec->intermediate_size;
    int h = gelu(b, project(b, x, ENCODER_FC, "mlp.fc[%d]", inner), "mlp.h[%d]", inner);
    int y = residual(b, h, ENCODER_PROJ, x, dropped(b, ENCODER_DROP_HIDDEN), labels);
    return layer_norm(b, ENCODER_NORM2, "mlp.norm[%d]", "mlp.norm.stat[%d]", y);
}

static int embeddings(struct builder *b, int words)
{
    int types = build_param(b, ENCODER_TYPES);
    int x = build_embed(b, "embed.token", b->ids, words, -1);
    if (types >= 0) x = build_embed(b, "embed.type", b->types, types, x);
    x = build_embed(b, "embed.sum", b->pos, build_param(b, ENCODER_POSITIONS), x);
    x = layer_norm(b, ENCODER_NORM, "embed", "embed.stat", x);
    double drop = dropped(b, ENCODER_DROP_HIDDEN);
    return drop > 0 ? build_dropout(b, "embed.dropped", x, drop, -1) : x;
}

static void token_head(struct builder *b, int x, int words)
{
    int64_t width = b->spec->hidden_size;
    int h = gelu(b, project(b, x, ENCODER_TRANSFORM, "head.transform", width), "head.h", width);
    h = layer_norm(b, ENCODER_HEAD_NORM, "head.norm", "head.norm.stat", h);
    struct build_linear l = projection(b, ENCODER_HEAD, -1);
    if (l.weight < 0) l.weight = words;
    build_logits(b, h, &l, b->spec->vocab_size);
}

static void label_head(struct builder *b, int x)
{
    bool own = b->spec->arch->keys[FIELD_DROPOUT_1 + ENCODER_DROP_LABELS] != NULL;
    double drop = dropped(b, own ? ENCODER_DROP_LABELS : ENCODER_DROP_HIDDEN);
    if (drop > 0) x = build_dropout(b, "head.dropped", x, drop, -1);
    struct build_linear l = projection(b, ENCODER_LABELS, -1);
    build_logits(b, x, &l, b->spec->num_labels);
}

static void row_label_head(struct builder *b, int x)
{
    int64_t width = b->spec->hidden_size;
    struct build_linear row = projection(b, ENCODER_ROW, -1);
    struct op act = build_op(b, OP_ACT);
    act.attr.activation = b->spec->arch->row_act, act.attr.cap = 1;
    int h = build_row_tensor(b, "head.row", width, 0);
    act.in[ACT_X] = build_linear(b, build_first_tokens(b, x), &row, h);
    act.out[ACT_Y] = build_row_tensor(b, "head.row.act", width, 0);
    tape_append(b->tape, &act);
    struct build_linear l = projection(b, ENCODER_ROW_LABELS, -1);
    if (l.weight < 0) l = projection(b, ENCODER_LABELS, -1);
    build_linear(b, act.out[ACT_Y], &l, build_row_tensor(b, "logits", b->spec->num_labels, TENSOR_OUTPUT));
}

void encoder_emit(struct builder *b, bool drops_attention)
{
    enum model_head head = b->shape->head;
    build_encoder_inputs(b);
    b->attention_dropout = dropped(b, ENCODER_DROP_ATTENTION);
    int words = build_param(b, ENCODER_WORDS);
    int x = embeddings(b, words);
    for (b->layer = 0; b->layer < b->spec->num_layers; b->layer++) {
        x = attention_block(b, x, drops_attention);
        x = mlp_block(b, x);
    }
    b->layer = -1;
    if (head == HEAD_EMBEDDING || head == HEAD_PAIRS)
        build_vectors(b, x);
    else if (head == HEAD_LABELS || head == HEAD_LABEL_LOGITS)
        label_head(b, x);
    else if (head == HEAD_ROW_LOGITS)
        row_label_head(b, x);
    else
        token_head(b, x, words);
}
