/* op_make_forward.c - makers of forward cases (attention and its kin are in op_make_attn.c). */
#include "support/op_make.h"

#include <math.h>

static int64_t any_width(struct op_case *c) { return PICK(c, 1, 2, 3, 7, 16, 31, 37, 64, 97, 129, 200, 257); }

static void fill_ids(struct op_case *c, int slot, int64_t vocab)
{
    for (int64_t i = 0; i < case_count(c, slot); i++) case_set_int(c, slot, i, (int32_t)case_below(c, vocab));
}

void make_embed(struct op_case *c)
{
    struct lead lead = case_lead(c, 200);
    int64_t vocab = PICK(c, 1, 7, 53, 1000), width = any_width(c);
    bool add = case_flip(c);
    case_in(c, EMBED_IDS, DT_I32, lead.ndim, lead.dim);
    c->op.attr.weight_kn = case_below(c, 4) == 0;
    if (c->op.attr.weight_kn)
        case_in(c, EMBED_W, c->type, DIMS(width, vocab));
    else
        case_in(c, EMBED_W, c->type, DIMS(vocab, width));
    if (add) case_in_rows(c, EMBED_ADD, c->type, lead, width);
    case_out_rows(c, EMBED_Y, c->type, lead, width);
    if (vocab > 1 && case_below(c, 3) == 0) c->op.attr.first = 1 + case_below(c, vocab - 1);
    fill_ids(c, EMBED_IDS, vocab - c->op.attr.first);
    if (case_below(c, 3) == 0) c->op.attr.scale = (float)sqrt((double)width) * 1.1f;
    c->inner[EMBED_Y] = 2 * F32_UNIT;
    c->exact = !add && c->op.attr.scale == 0;
    case_note(c, "scale %g first %lld%s", (double)c->op.attr.scale, (long long)c->op.attr.first,
              c->op.attr.weight_kn ? " [C,V]" : "");
}

void make_norm(struct op_case *c)
{
    bool layer = case_flip(c), bias = layer && case_flip(c); /* RMSNorm has no bias */
    struct lead lead = case_lead(c, 150);
    int64_t width =
        layer ? PICK(c, 2, 5, 16, 31, 64, 97, 257, 1000) : PICK(c, 1, 3, 16, 29, 64, 101, 257, 1000);
    double offset = case_flip(c) ? 0 : case_uniform(c, -2, 2), size = case_flip(c) ? 1 : 0.02;
    c->op.attr.layer_norm = layer, c->op.attr.plus_one = !layer && case_below(c, 3) == 0;
    c->op.attr.eps = case_flip(c) ? 1e-5f : 1e-6f;
    case_in_rows(c, NORM_X, c->type, lead, width);
    case_fill(c, NORM_X, offset * size, size);
    case_in(c, NORM_W, c->type, DIMS(width));
    if (bias) case_in(c, NORM_BIAS, c->type, DIMS(width));
    case_out_rows(c, NORM_Y, c->type, lead, width);
    case_out_rows(c, NORM_STAT, DT_F32, lead, layer ? 2 : 1);
    c->inner[NORM_Y] = c->inner[NORM_STAT] = sum_error(width);
    c->scale[NORM_Y] = case_magnified(c, NORM_X, width, layer);
    case_note(c, "%s mean %.2f deviation %.2f",
              layer                 ? "layer"
              : c->op.attr.plus_one ? "rms 1 + w"
                                    : "rms",
              offset * size, size);
}

/* Places in either column, in both and in none. */
void make_take(struct op_case *c)
{
    int64_t from = PICK(c, 1, 7, 60, 300), rows = PICK(c, 1, 9, 64, 201), width = any_width(c);
    case_in(c, TAKE_X, c->type, DIMS(from, width));
    case_in(c, TAKE_INDEX, DT_I32, DIMS(rows, 2));
    case_in(c, TAKE_BACK, DT_I32, DIMS(from, 2));
    for (int64_t i = 0; i < 2 * rows; i++)
        case_set_int(c, TAKE_INDEX, i, case_below(c, 3) ? (int32_t)case_below(c, from) : -1);
    for (int64_t i = 0; i < 2 * from; i++) case_set_int(c, TAKE_BACK, i, (int32_t)case_below(c, rows));
    c->op.attr.once = case_flip(c);
    case_out(c, TAKE_Y, c->type, DIMS(rows, width));
    c->inner[TAKE_Y] = 2 * F32_UNIT;
    c->exact = c->op.attr.once;
    case_note(c, c->op.attr.once ? "one place" : "two places");
}

/* Weights that lie either way, all rows or some; tiny and huge ones: squares must neither vanish nor overflow. */
void make_dora_norm(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 9, 64, 131), width = PICK(c, 1, 3, 8, 31, 64, 257, 1000, 4104);
    int64_t rank = PICK(c, 1, 3, 8, 16, 40), before = case_flip(c) ? PICK(c, 1, 16, 33) : 0,
            after = before / 3;
    double size = c->type == DT_F16 ? 1 : pow(10, (double)PICK(c, -15, -4, 0, 0, 15));
    int64_t all = before + rows + after;
    c->op.attr.weight_kn = case_flip(c), c->op.attr.first = before;
    c->op.attr.scale = (float)PICK(c, 1, 2, 4) / 2;
    case_in(c, DORA_NORM_A, c->type, DIMS(rank, width));
    if (c->op.attr.weight_kn)
        case_in(c, DORA_NORM_W, c->type, DIMS(width, all));
    else
        case_in(c, DORA_NORM_W, c->type, DIMS(all, width));
    case_in(c, DORA_NORM_B, c->type, DIMS(rows, rank));
    case_fill(c, DORA_NORM_W, 0, case_below(c, 8) ? size : 0);
    case_fill(c, DORA_NORM_B, 0, case_below(c, 8) ? size : 0);
    case_out(c, DORA_NORM_Y, DT_F32, DIMS(rows));
    c->inner[DORA_NORM_Y] = sum_error(rank) + 8 * F32_UNIT;
    c->scale[DORA_NORM_Y] = size * (1 + (double)c->op.attr.scale * sqrt((double)rank)) * sqrt((double)width);
    case_note(c, "deviation %g, %s, row %lld of %lld", size, c->op.attr.weight_kn ? "[in,out]" : "[out,in]",
              (long long)before, (long long)all);
}

/* Rows of several adapters and of none, some side by side. */
void make_adapter_linear(struct op_case *c)
{
    int64_t rows = 1 + case_below(c, case_flip(c) ? 6 : 60), slots = 1 + case_below(c, 5), lines = 0;
    bool narrow = case_flip(c); /* x A', else u B' */
    int64_t m = narrow ? PICK(c, 4, 8, 16, 48, 61) : PICK(c, 1, 16, 37, 64, 256, 515);
    int64_t k = narrow ? PICK(c, 5, 64, 72, 128, 257, 512, 1024) : PICK(c, 1, 4, 8, 16, 24, 64, 100);
    int parts = m >= 3 && case_flip(c) ? 3 : 1;
    for (int p = 0; p < parts && parts > 1; p++, lines += c->op.attr.lines[p - 1].lines)
        c->op.attr.lines[p].lines = p < 2 ? 1 + case_below(c, m / 3) : m - lines;
    case_in(c, ADAPTER_LINEAR_X, c->type, DIMS(rows, parts * k));
    case_in(c, ADAPTER_LINEAR_W, c->type, DIMS(slots, m, k));
    case_in(c, ADAPTER_LINEAR_SLOT, DT_I32, DIMS(rows));
    for (int64_t i = 0, slot = 0; i < rows; i++) {
        if (!i || case_flip(c)) slot = case_below(c, slots + 1) - 1;
        case_set_int(c, ADAPTER_LINEAR_SLOT, i, (int32_t)slot);
    }
    if (case_flip(c)) case_in(c, ADAPTER_LINEAR_ADD, c->type, DIMS(rows, m));
    case_out(c, ADAPTER_LINEAR_Y, c->type, DIMS(rows, m));
    c->inner[ADAPTER_LINEAR_Y] = sum_error(k);
    c->scale[ADAPTER_LINEAR_Y] = sqrt((double)k);
    case_note(c, "%d parts", parts);
}

void make_column_scale(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = PICK(c, 1, 3, 8, 31, 64, 257, 1000);
    case_in_rows(c, COLUMN_SCALE_X, c->type, lead, width);
    case_in(c, COLUMN_SCALE_M, c->type, DIMS(width));
    case_in(c, COLUMN_SCALE_NORM, DT_F32, DIMS(width));
    for (int64_t i = 0; i < width; i++) case_set(c, COLUMN_SCALE_NORM, i, case_uniform(c, 0.5, 3));
    if (case_flip(c)) case_in(c, COLUMN_SCALE_BIAS, c->type, DIMS(width));
    if (case_flip(c)) case_in_rows(c, COLUMN_SCALE_ADD, c->type, lead, width);
    case_out_rows(c, COLUMN_SCALE_Y, c->type, lead, width);
    c->inner[COLUMN_SCALE_Y] = 16 * F32_UNIT;
}

void make_linear(struct op_case *c)
{
    bool few = case_below(c, 3) == 0; /* few rows have kernels of their own, which read K in long steps */
    struct lead lead = case_lead(c, few ? 8 : 200);
    int64_t m = PICK(c, 1, 3, 16, 37, 64, 101, 131, 256), k = PICK(c, 1, 5, 16, 32, 67, 128, 257, 300, 523);
    if (few && case_flip(c)) m = PICK(c, 8, 24, 37, 72, 136), k = PICK(c, 72, 200, 517, 1024, 2056, 4160);
    if (c->op.attr.tf32 && case_flip(c)) m = PICK(c, 128, 256), k = PICK(c, 128, 300);
    bool adapter = case_adapter(c, &lead, &m, &k);
    int64_t parts = case_parts(c, m);
    bool kn = parts == 1 && case_flip(c), bias = case_flip(c) && !adapter, add = case_flip(c);
    c->op.attr.weight_kn = kn;
    case_in_rows(c, LINEAR_X, c->type, lead, parts * k);
    case_in(c, LINEAR_W, c->type, DIMS(kn ? k : m, kn ? m : k));
    if (bias) case_in(c, LINEAR_BIAS, c->type, DIMS(m));
    if (add) case_in_rows(c, LINEAR_ADD, c->type, lead, m);
    case_out_rows(c, LINEAR_Y, c->type, lead, m);
    c->inner[LINEAR_Y] = sum_error(k);
    c->scale[LINEAR_Y] = sqrt((double)k);
    case_note(c, "weight %s, %d parts", kn ? "[in,out]" : "[out,in]", (int)parts);
}

void case_activation(struct op_case *c)
{
    static const char *const names[ACTIVATION_COUNT] = {"silu", "gelu_tanh", "gelu", "relu", "tanh", "scale"};
    c->op.attr.activation = (enum activation)case_below(c, ACTIVATION_COUNT);
    if (c->op.attr.activation == ACTIVATION_TANH && case_flip(c)) c->op.attr.cap = (float)PICK(c, 2, 30);
    if (c->op.attr.activation == ACTIVATION_SCALE && case_flip(c)) c->op.attr.scale = 0.125f;
    case_note(c, "%s cap %g", names[c->op.attr.activation], (double)c->op.attr.cap);
}

void case_fill_gates(struct op_case *c, int slot, int64_t width)
{
    double spread = case_flip(c) ? 1 : 20;
    int64_t row = c->op.attr.joint ? 2 * width : width;
    for (int64_t i = 0; i < tensor_count(op_case_in(c, slot)); i++)
        if (i % row < width) case_set(c, slot, i, case_get(c, slot, i) * spread);
}

void make_glu(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    c->op.attr.joint = case_flip(c);
    case_in_rows(c, GLU_GATE, c->type, lead, c->op.attr.joint ? 2 * width : width);
    if (!c->op.attr.joint) case_in_rows(c, GLU_UP, c->type, lead, width);
    case_fill_gates(c, GLU_GATE, width);
    case_out_rows(c, GLU_H, c->type, lead, width);
    case_activation(c);
    c->inner[GLU_H] = 8 * F32_UNIT;
    c->scale[GLU_H] = 0.1; /* where the gate is shut, results are nothing beside what they are made from */
}

void make_act(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    case_in_rows(c, ACT_X, c->type, lead, width);
    case_fill(c, ACT_X, 0, case_flip(c) ? 1 : 10);
    case_out_rows(c, ACT_Y, c->type, lead, width);
    case_activation(c);
    c->inner[ACT_Y] = 8 * F32_UNIT;
    c->scale[ACT_Y] = 0.1; /* where the gate is shut, results are nothing beside what they are made from */
}

void make_dropout(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    case_in_rows(c, DROPOUT_X, c->type, lead, width);
    if (case_flip(c)) case_in_rows(c, DROPOUT_ADD, c->type, lead, width);
    case_scalars(c, DROPOUT_SCALARS);
    case_out_rows(c, DROPOUT_Y, c->type, lead, width);
    c->op.attr.dropout = case_below(c, 9) ? (float)case_uniform(c, 0.05, 0.9) : 0;
    c->inner[DROPOUT_Y] = 2 * F32_UNIT;
    case_note(c, "p %.2g", (double)c->op.attr.dropout);
}

void make_add(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t width = any_width(c);
    for (int i = ADD_A; i <= ADD_B; i++) case_in_rows(c, i, c->type, lead, width);
    case_out_rows(c, ADD_Y, c->type, lead, width);
    c->inner[ADD_Y] = 2 * F32_UNIT;
}

void make_xent(struct op_case *c)
{
    struct lead lead = case_lead(c, 70);
    int64_t vocab = PICK(c, 2, 17, 64, 101, 500, 1000, 4099);
    double heat = (double)PICK(c, 1, 5, 20), ignored = 0.5 * (double)PICK(c, 0, 0, 1, 2);
    bool grad = case_below(c, 4) != 0;
    case_in_rows(c, XENT_LOGITS, c->type, lead, vocab);
    case_fill(c, XENT_LOGITS, case_flip(c) ? 0 : heat, heat);
    case_in(c, XENT_TARGETS, DT_I32, lead.ndim, lead.dim);
    fill_ids(c, XENT_TARGETS, vocab);
    for (int64_t i = 0; i < lead.rows; i++)
        if (case_uniform(c, 0, 1) < ignored) case_set_int(c, XENT_TARGETS, i, case_flip(c) ? -1 : -100);
    case_in(c, XENT_SCALARS, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, XENT_SCALARS, SCALAR_LOSS_GRAD, (case_flip(c) ? 1 : 1024) / (double)lead.rows);
    case_acc(c, XENT_LOSS, DT_F64, DIMS(2));
    if (grad) case_out_rows(c, XENT_DLOGITS, c->type, lead, vocab);
    if (case_below(c, 3) == 0) c->op.attr.cap = (float)PICK(c, 5, 30);
    if (c->op.attr.cap == 0 && case_flip(c)) { /* behind a cap, unequal logits may round to equal ones */
        case_acc(c, XENT_HITS, DT_F64, DIMS(1));
        c->inner[XENT_HITS] = F32_UNIT, c->scale[XENT_HITS] = 1;
        const int32_t *targets = c->in[XENT_TARGETS];
        for (int64_t i = 0; i < lead.rows && !grad; i += 2)
            if (targets[i] >= 0) case_set(c, XENT_LOGITS, i * vocab + targets[i], 6 * heat);
    }
    c->inner[XENT_LOSS] = 4 * F32_UNIT * sqrt((double)lead.rows);
    c->scale[XENT_LOSS] = 1;
    c->inner[XENT_DLOGITS] = 8 * F32_UNIT * (1 + heat);
    c->scale[XENT_DLOGITS] =
        2 * case_get(c, XENT_SCALARS, SCALAR_LOSS_GRAD) / sqrt((double)vocab); /* p - 1 where p is nearly 1 */
    if (case_below(c, 3) == 0) {
        case_in(c, XENT_WEIGHT, DT_F32, lead.ndim, lead.dim);
        c->scale[XENT_DLOGITS] = 8 / sqrt((double)vocab);
    }
    if (case_below(c, 3) == 0) {
        case_out(c, XENT_LOGP, DT_F32, lead.ndim, lead.dim);
        c->inner[XENT_LOGP] = 8 * F32_UNIT * (1 + heat), c->scale[XENT_LOGP] = 1;
    }
    case_note(c, "heat %.0f ignored %.1f cap %g", heat, ignored, (double)c->op.attr.cap);
}

/* Targets of a row of a preference; `prompt` of them come first. Returns the sum of its other log-probabilities. */
static double fill_sequence(struct op_case *c, int64_t row, int64_t time, int64_t prompt)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t t = 0; t < time; t++) {
        bool target = case_flip(c) || (t == time - 1 && !count);
        double logp = -0.05 - fabs(case_normal(c));
        case_set(c, PREFERENCE_IN_LOGP, row * time + t, target ? logp : 0);
        case_set_int(c, PREFERENCE_IN_TARGETS, row * time + t, target ? 3 : -1);
        if (target && t >= prompt) sum += case_get(c, PREFERENCE_IN_LOGP, row * time + t), count++;
    }
    return sum;
}

void make_preference(struct op_case *c)
{
    int64_t half = PICK(c, 1, 2, 5), time = PICK(c, 1, 3, 17, 64, 300);
    enum preference_loss loss = (enum preference_loss)case_below(c, PREFERENCE_ORPO + 1);
    bool orpo = loss == PREFERENCE_ORPO, marks = loss >= PREFERENCE_LOSSES;
    c->type = DT_F32;
    c->op.attr.preference = (struct preference_rule){.loss = loss,
                                                     .beta = (float)case_uniform(c, 0.05, 0.5),
                                                     .smoothing = (float)PICK(c, 0, 1, 2) / 8,
                                                     .desirable = 1.5f,
                                                     .undesirable = 0.75f,
                                                     .nll = orpo ? 1 : (float)PICK(c, 0, 0, 1) / 4};
    case_in(c, PREFERENCE_IN_LOGP, DT_F32, DIMS(2 * half, time));
    case_in(c, PREFERENCE_IN_TARGETS, DT_I32, DIMS(2 * half, time));
    if (!orpo) case_in(c, PREFERENCE_IN_REFERENCE, DT_F32, DIMS(2 * half));
    if (marks) case_in(c, PREFERENCE_IN_MARKS, DT_I32, DIMS(2 * half));
    for (int64_t b = 0; b < 2 * half; b++) {
        int64_t prompt = orpo ? case_below(c, time) : 0;
        double sum = fill_sequence(c, b, time, prompt);
        if (!orpo) case_set(c, PREFERENCE_IN_REFERENCE, b, sum + 2 * case_normal(c));
        if (marks) case_set_int(c, PREFERENCE_IN_MARKS, b, (int32_t)(orpo ? prompt : case_flip(c)));
        for (int64_t t = 0; t < time && b < half - 1 && case_below(c, 40) == 0;
             t = time) /* an absent sample */
            for (int64_t k = 0; k < time; k++) case_set_int(c, PREFERENCE_IN_TARGETS, b * time + k, -1);
    }
    case_in(c, PREFERENCE_IN_SCALARS, DT_F32, DIMS(SCALAR_COUNT));
    case_set(c, PREFERENCE_IN_SCALARS, SCALAR_SAMPLE_GRAD, 1 / (double)half);
    case_set(c, PREFERENCE_IN_SCALARS, SCALAR_LOSS_GRAD, 1 / (double)time);
    case_acc(c, PREFERENCE_OUT_LOSS, DT_F64, DIMS(2));
    case_acc(c, PREFERENCE_OUT_STAT, DT_F64, DIMS(PREFERENCE_STATS));
    case_out(c, PREFERENCE_OUT_SUMS, DT_F32, DIMS(2 * half));
    if (case_below(c, 4)) case_out(c, PREFERENCE_OUT_WEIGHT, DT_F32, DIMS(2 * half, time));
    for (int i = 0; i < 4; i++) c->inner[i] = 64 * F32_UNIT, c->scale[i] = 1 + (double)time / 16;
    case_note(c, "loss %d", (int)loss);
}

void case_lengths(struct op_case *c, int slot, int64_t rows, int64_t time)
{
    case_in(c, slot, DT_I32, DIMS(rows));
    for (int64_t b = 0; b < rows; b++) {
        int64_t few = case_below(c, 2), length = case_below(c, 4) ? 1 + case_below(c, time) : few;
        case_set_int(c, slot, b, (int32_t)length);
    }
}

void case_pooling(struct op_case *c)
{
    c->op.attr.pooling = (enum pooling)case_below(c, POOLING_COUNT);
    c->op.attr.normalize = case_below(c, 3) != 0;
    if (case_flip(c)) c->op.attr.scale = 4.5f;
    case_note(c, "%s%s scale %g", c->op.attr.pooling == POOLING_MEAN ? "mean" : "first",
              c->op.attr.normalize ? " normalised" : "", (double)c->op.attr.scale);
}

void make_pool(struct op_case *c)
{
    int64_t rows = PICK(c, 1, 2, 3, 5, 8), time = PICK(c, 1, 2, 7, 16, 33, 130), width = any_width(c);
    case_pooling(c);
    case_in(c, POOL_X, c->type, DIMS(rows, time, width));
    if (case_flip(c)) case_lengths(c, POOL_LENGTHS, rows, time);
    case_out(c, POOL_Y, case_flip(c) ? DT_F32 : c->type, DIMS(rows, width));
    case_out(c, POOL_STAT, DT_F32, DIMS(rows));
    c->inner[POOL_Y] = c->inner[POOL_STAT] = sum_error(time) + sum_error(width);
    c->scale[POOL_Y] = 1;
}
