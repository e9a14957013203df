/* op_make_quantised.c - makers of cases with weights in blocks: every type, one or several in a matrix. */
#include "support/op_make.h"
#include "tape/quantised.h"

#include <math.h>
#include <string.h>

/* Of elements of W to the type of x or dy; elements of Q6_K reach 60. */
static const double rounding[DT_COUNT] = {[DT_BF16] = 0x1p-7, [DT_F16] = 0x1p-10};

/* Random bytes in a block, with scales that are numbers of about 1 / 64. */
static void fill_block(struct op_case *c, const struct block_type *type, unsigned char *block)
{
    for (int i = 0; i < type->bytes; i++) block[i] = (unsigned char)case_below(c, 256);
    for (int i = 0; i < type->scales.count; i++) {
        float wide = (float)((type->table ? 0.5 : 0.015) * case_normal(c));
        uint16_t half = f32_to_f16(wide);
        unsigned char *at = block + type->scales.at + i * (type->scales.wide ? 4 : 2);
        memcpy(at, type->scales.wide ? (void *)&wide : (void *)&half, type->scales.wide ? 4 : 2);
    }
}

/* Lines of random types: one, or two. */
static void choose_lines(struct op_case *c, int64_t lines, int64_t k, bool parts)
{
    static const int types[] = {BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_NF4,    BLOCK_FP4,   BLOCK_Q4_K,
                                BLOCK_Q5_K, BLOCK_Q6_K, BLOCK_NF4_DQ, BLOCK_FP4_DQ};
    int64_t cut = parts && lines > 2 ? 1 + case_below(c, lines - 2) : lines, given[] = {cut, lines - cut};
    int64_t fit = k % 64 ? 2 : k % 256 ? 4 : 9;
    for (int i = 0; i < 2 && given[i]; i++)
        c->op.attr.lines[i] = (struct op_lines){types[case_below(c, fit)], given[i]};
}

/* One matrix at w. */
static void fill_lines(struct op_case *c, int64_t k, unsigned char *w)
{
    unsigned char rows[PANEL_LINES * 34 * 80];
    struct quantised_part p;
    for (int i = 0; quantised_part(&c->op.attr, k, i, &p); i++)
        for (int64_t line = 0; line < p.lines; line += PANEL_LINES) {
            int64_t bytes = panel_bytes(p.type, k), left = p.lines - line;
            memset(rows, 0, (size_t)bytes);
            for (int64_t b = 0; b < k / p.type->elements * (left < PANEL_LINES ? left : PANEL_LINES); b++)
                fill_block(c, p.type, rows + b * p.type->bytes);
            panel_pack(p.type, k, rows, w + p.offset + line / PANEL_LINES * bytes);
        }
}

/* The bytes of W in slot `slot`. */
static void make_lines(struct op_case *c, int slot, int64_t lines, int64_t k, bool parts)
{
    choose_lines(c, lines, k, parts);
    case_in(c, slot, DT_U8, DIMS(quantised_bytes(&c->op.attr, k)));
    fill_lines(c, k, c->in[slot]);
}

/* Numbers that 8 bits hold exactly under a scale that is a power of two, with the largest in every block. */
static void fill_exact(struct op_case *c, int slot)
{
    for (int64_t i = 0; i < case_count(c, slot); i++) {
        double scale = ldexp(1, -6 - (int)(i / 32 % 3));
        case_set(c, slot, i, scale * (i % 32 == i / 32 % 32 ? 127 : (double)case_below(c, 255) - 127));
    }
}

/* A few cases have a weight that a backend may decode piece by piece, and few rows. */
static bool is_large(const struct op_case *c) { return c->index % 40 == 39; }

void make_linear_q(struct op_case *c)
{
    struct lead lead = case_lead(c, PICK(c, 8, 70, 200)); /* more than CUDA_Q_ROWS too */
    int64_t m = PICK(c, 1, 3, 16, 17, 37, 64, 101), k = PICK(c, 32, 96, 256, 512, 544, 1024, 2560);
    if (is_large(c)) lead = case_lead(c, 3), m = 1700, k = 2560;
    bool bias = case_flip(c), add = case_flip(c), exact = case_below(c, 4) > 0;
    c->op.attr.keep_x = case_below(c, 4) == 0;
    make_lines(c, LINEAR_Q_W, m, k, case_flip(c) && !is_large(c));
    case_in_rows(c, LINEAR_Q_X, c->type, lead, k);
    if (exact) fill_exact(c, LINEAR_Q_X);
    if (bias) case_in(c, LINEAR_Q_BIAS, c->type, DIMS(m));
    if (add) case_in_rows(c, LINEAR_Q_ADD, c->type, lead, m);
    case_out_rows(c, LINEAR_Q_Y, c->type, lead, m);
    /* Sums are exact within a block; rounding x to 8 bits of its block's largest takes up to 1/250 of it. Elements of W may be
     * rounded to the type of x. */
    c->inner[LINEAR_Q_Y] = exact || c->op.attr.keep_x ? sum_error(k) + rounding[c->type] : 0.03;
    c->scale[LINEAR_Q_Y] = 20 * sqrt((double)k); /* elements of Q6_K are of that size */
    case_note(c, "%s and %s, k %lld, x %s", block_type_of((uint32_t)c->op.attr.lines[0].type)->name,
              c->op.attr.lines[1].lines ? block_type_of((uint32_t)c->op.attr.lines[1].type)->name : "none",
              (long long)k, exact ? "of 8 bits" : "rounded");
}

void make_linear_q_dx(struct op_case *c)
{
    struct lead lead = case_lead(c, case_flip(c) ? 8 : 70);
    int64_t m = PICK(c, 1, 3, 16, 17, 37, 64, 101), k = PICK(c, 32, 64, 96, 256, 512, 544, 1024);
    if (is_large(c)) lead = case_lead(c, 3), m = 4200, k = 1024;
    make_lines(c, LINEAR_Q_DX_W, m, k, case_flip(c) && !is_large(c));
    case_in_rows(c, LINEAR_Q_DX_DY, c->type, lead, m);
    if (case_flip(c)) case_in_rows(c, LINEAR_Q_DX_ADD, c->type, lead, k);
    case_out_rows(c, LINEAR_Q_DX_DX, c->type, lead, k);
    c->inner[LINEAR_Q_DX_DX] = sum_error(m) + rounding[c->type];
    c->scale[LINEAR_Q_DX_DX] = 20 * sqrt((double)m);
    case_note(c, "%s, m %lld, k %lld", block_type_of((uint32_t)c->op.attr.lines[0].type)->name, (long long)m,
              (long long)k);
}

/* All rows of a weight, or one of its two parts. */
void make_dora_norm_q(struct op_case *c)
{
    int64_t lines = PICK(c, 1, 3, 16, 17, 37, 64, 101), k = PICK(c, 32, 96, 256, 512, 544, 1024),
            rank = PICK(c, 1, 3, 8, 16);
    case_in(c, DORA_NORM_Q_A, c->type, DIMS(rank, k));
    make_lines(c, DORA_NORM_Q_W, lines, k, case_flip(c));
    int64_t first = c->op.attr.lines[0].lines, rows = lines;
    if (first < lines && case_flip(c)) {
        bool second = case_flip(c);
        c->op.attr.first = second ? first : 0, rows = second ? lines - first : first;
    }
    c->op.attr.scale = (float)PICK(c, 1, 2, 4) / 2;
    case_in(c, DORA_NORM_Q_B, c->type, DIMS(rows, rank));
    case_out(c, DORA_NORM_Q_Y, DT_F32, DIMS(rows));
    /* Elements of W may be rounded to the type of A. */
    c->inner[DORA_NORM_Q_Y] = sum_error(rank) + 8 * F32_UNIT + rounding[c->type];
    c->scale[DORA_NORM_Q_Y] = 20 * sqrt((double)k);
    case_note(c, "%s, rows %lld of %lld, k %lld", block_type_of((uint32_t)c->op.attr.lines[0].type)->name,
              (long long)rows, (long long)lines, (long long)k);
}

void make_embed_q(struct op_case *c)
{
    struct lead lead = case_lead(c, 60);
    int64_t vocab = PICK(c, 1, 7, 53, 200), width = PICK(c, 32, 96, 256, 512);
    make_lines(c, EMBED_Q_W, vocab, width, case_flip(c));
    case_in(c, EMBED_Q_IDS, DT_I32, lead.ndim, lead.dim);
    for (int64_t i = 0; i < case_count(c, EMBED_Q_IDS); i++)
        case_set_int(c, EMBED_Q_IDS, i, (int32_t)case_below(c, vocab));
    case_out_rows(c, EMBED_Q_Y, c->type, lead, width);
    if (case_below(c, 3) == 0) c->op.attr.scale = (float)sqrt((double)width) * 1.1f;
    c->inner[EMBED_Q_Y] = 4 * F32_UNIT;
    case_note(c, "%s scale %g", block_type_of((uint32_t)c->op.attr.lines[0].type)->name,
              (double)c->op.attr.scale);
}

/* Experts' matrices [m,k] in slot w, and rows in their order; some have none. */
struct expert_lines {
    int64_t experts, rows, m, k;
};

static struct expert_lines make_experts(struct op_case *c, int w, int ends)
{
    struct expert_lines s = {PICK(c, 1, 2, 5, 9), PICK(c, 1, 3, 20, 77), PICK(c, 1, 16, 37),
                             PICK(c, 32, 64, 256, 544)};
    int64_t at = 0;
    choose_lines(c, s.m, s.k, case_flip(c));
    int64_t bytes = quantised_bytes(&c->op.attr, s.k);
    case_in(c, w, DT_U8, DIMS(s.experts * bytes));
    for (int64_t e = 0; e < s.experts; e++) fill_lines(c, s.k, (unsigned char *)c->in[w] + e * bytes);
    case_in(c, ends, DT_I32, DIMS(s.experts));
    for (int64_t e = 0; e < s.experts; e++) {
        at = e + 1 == s.experts ? s.rows : at + case_below(c, s.rows - at + 1) * (case_below(c, 3) > 0);
        case_set_int(c, ends, e, (int32_t)at);
    }
    case_note(c, "%s, %lld experts, k %lld", block_type_of((uint32_t)c->op.attr.lines[0].type)->name,
              (long long)s.experts, (long long)s.k);
    return s;
}

void make_expert_linear_q(struct op_case *c)
{
    struct expert_lines s = make_experts(c, EXPERT_LINEAR_Q_W, EXPERT_LINEAR_Q_ENDS);
    case_in(c, EXPERT_LINEAR_Q_X, c->type, DIMS(s.rows, s.k));
    fill_exact(c, EXPERT_LINEAR_Q_X);
    case_out(c, EXPERT_LINEAR_Q_Y, c->type, DIMS(s.rows, s.m));
    c->inner[EXPERT_LINEAR_Q_Y] = sum_error(s.k) + rounding[c->type];
    c->scale[EXPERT_LINEAR_Q_Y] = 20 * sqrt((double)s.k);
}

void make_expert_linear_q_dx(struct op_case *c)
{
    struct expert_lines s = make_experts(c, EXPERT_LINEAR_Q_DX_W, EXPERT_LINEAR_Q_DX_ENDS);
    case_in(c, EXPERT_LINEAR_Q_DX_DY, c->type, DIMS(s.rows, s.m));
    if (case_flip(c)) case_in(c, EXPERT_LINEAR_Q_DX_ADD, c->type, DIMS(s.rows, s.k));
    case_out(c, EXPERT_LINEAR_Q_DX_DX, c->type, DIMS(s.rows, s.k));
    c->inner[EXPERT_LINEAR_Q_DX_DX] = sum_error(s.m) + rounding[c->type];
    c->scale[EXPERT_LINEAR_Q_DX_DX] = 20 * sqrt((double)s.m);
}
