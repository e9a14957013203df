/* op_make_attn.c - makers of cases with heads: attention, rotary embedding, the key/value cache, qkv
 * splitting. */
#include "support/op_make.h"

#include <math.h>

struct heads {
    int64_t batch, time, keys, heads, kv_heads, size;
};

/* Fewer rows and heads, until the reference costs at most `limit` multiplications of query with key. */
static void fit_heads(struct op_case *c, struct heads *s, double limit)
{
    double each = (double)(s->time * s->keys * s->size);
    while (s->batch > 1 && (double)(s->batch * s->heads) * each > limit) s->batch--;
    while (s->heads > s->kv_heads && (double)s->heads * each > limit) s->heads -= s->kv_heads;
    c->op.attr.heads = (int)s->heads, c->op.attr.kv_heads = (int)s->kv_heads;
    c->op.attr.head_dim = (int)s->size;
    c->op.attr.scale = (float)(1 / sqrt((double)s->size));
}

/* Sizes on both sides of what kernels cut by: rings of tiles that come round (257 rows and more), caches that are split
 * (257 keys and more), heads that are padded, wider than tensor cores take them, or not a multiple of what a load is. */
static struct heads any_heads(struct op_case *c, bool cached, double limit)
{
    struct heads s = {.batch = PICK(c, 1, 2, 3),
                      .time = PICK(c, 1, 2, 5, 13, 31, 64, 67, 128, 131, 200, 257, 333, 520)};
    s.kv_heads = PICK(c, 1, 2, 3);
    s.heads = s.kv_heads * PICK(c, 1, 1, 2, 3, 4);
    s.size = PICK(c, 16, 20, 24, 32, 64, 64, 80, 96, 100, 128, 128, 160, 256);
    if (cached) s.time = PICK(c, 1, 1, 2, 7, 33);
    s.keys = cached ? s.time + PICK(c, 0, 1, 12, 64, 150, 600, 2000) : s.time;
    fit_heads(c, &s, limit);
    c->op.attr.cached = cached;
    return s;
}

/* Rows of one sample each, in shapes that libraries have kernels of their own for: rows of 128 and more, heads of 64
 * and 128, key heads that are shared for the latter. */
static struct heads whole_heads(struct op_case *c, double limit)
{
    struct heads s = {
        .batch = PICK(c, 1, 2), .time = PICK(c, 128, 128, 131, 200, 256), .kv_heads = PICK(c, 1, 2)};
    s.size = PICK(c, 64, 128);
    if ((double)(s.kv_heads * s.time * s.time * s.size) > limit) s.kv_heads = 1;
    s.heads = s.kv_heads * (s.size == 128 ? PICK(c, 1, 2) : 1);
    s.keys = s.time;
    fit_heads(c, &s, limit);
    c->op.attr.whole_rows = true;
    return s;
}

/* One case in five. */
static bool is_whole(const struct op_case *c) { return c->index % 5 == 4; }

/* One case in eight has a bias unless it is whole, in backward with heads that tensor cores take and rows that reach beyond the
 * largest distance. */
static bool is_biased(const struct op_case *c) { return c->index % 8 == 5 && !is_whole(c); }

static struct heads biased_heads(struct op_case *c, double limit)
{
    struct heads s = {.batch = PICK(c, 1, 2, 3), .time = PICK(c, 33, 67, 131, 200, 257, 300)};
    s.kv_heads = PICK(c, 1, 2);
    s.heads = s.kv_heads * PICK(c, 1, 2, 3);
    s.size = PICK(c, 40, 64, 64, 80, 96, 128);
    s.keys = s.time;
    fit_heads(c, &s, limit);
    return s;
}

static void heads_in(struct op_case *c, int slot, const struct heads *s, bool query, bool keys)
{
    case_in(c, slot, c->type,
            DIMS(s->batch, keys ? s->keys : s->time, query ? s->heads : s->kv_heads, s->size));
}

static void heads_out(struct op_case *c, int slot, const struct heads *s, bool query, bool keys)
{
    case_out(c, slot, c->type,
             DIMS(s->batch, keys ? s->keys : s->time, query ? s->heads : s->kv_heads, s->size));
}

/* With a cache: consecutive, from wherever the row has got to. Without: from 0, restarting where samples are
 * packed into one row. */
static void fill_pos(struct op_case *c, int slot, const struct heads *s, bool packed)
{
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t pos = c->op.attr.cached ? case_below(c, s->keys - s->time + 1) : 0;
        for (int64_t t = 0; t < s->time; t++, pos++) {
            if (packed && case_below(c, 9) == 0) pos = 0;
            case_set_int(c, slot, b * s->time + t, (int32_t)pos);
        }
    }
}

/* Slots of either op. */
struct attn_case {
    int q, k, pos, lengths, bias, scalars;
};
static const struct attn_case forward = {ATTN_Q, ATTN_K, ATTN_POS, ATTN_LENGTHS, ATTN_BIAS, ATTN_SCALARS},
                              backward = {ATTN_BWD_Q,       ATTN_BWD_K,    ATTN_BWD_POS,
                                          ATTN_BWD_LENGTHS, ATTN_BWD_BIAS, ATTN_BWD_SCALARS};

/* Lengths from nothing to all of it. */
static void any_lengths(struct op_case *c, int slot, const struct heads *s)
{
    case_in(c, slot, DT_I32, DIMS(s->batch));
    for (int64_t b = 0; b < s->batch; b++) {
        int64_t length = case_below(c, 3) ? 1 + case_below(c, s->keys) : PICK(c, 0, 1, s->keys);
        case_set_int(c, slot, b, (int32_t)length);
    }
}

static void any_bias(struct op_case *c, int slot, const struct heads *s)
{
    c->op.attr.two_sided = case_flip(c);
    c->op.attr.bias_reach = (int)PICK(c, 20, 64, 128);
    case_in(c, slot, c->type, DIMS(PICK(c, 4, 8, 32, 32), s->heads));
}

static void any_dropout(struct op_case *c, int slot)
{
    c->op.attr.dropout = (float)case_uniform(c, 0.05, 0.6);
    case_scalars(c, slot);
}

/* Mask, packing, what scores go through and heat (how far they spread), which forward and backward share. */
static double any_mask(struct op_case *c, const struct heads *s, const struct attn_case *at)
{
    struct op_attr *attr = &c->op.attr;
    bool special = !attr->whole_rows && c->index % 2;
    attr->mask = !special ? MASK_CAUSAL : attr->cached ? PICK(c, MASK_CAUSAL, MASK_BLOCKS) : attr->mask;
    bool causal = attr->mask == MASK_CAUSAL || attr->mask == MASK_BLOCKS;
    bool packed = causal && !attr->cached && case_flip(c) && !attr->whole_rows;
    int64_t window = case_flip(c) ? 0 : PICK(c, 1, 4, 17, 64, 100, 1000);
    double heat = (double)PICK(c, 1, 1, 3, 10);
    attr->window = attr->mask == MASK_CAUSAL ? (int)window : 0;
    attr->sparse_block = (int)PICK(c, 1, 5, 16, 64), attr->local_blocks = (int)PICK(c, 1, 2, 3);
    attr->global_blocks = (int)PICK(c, 0, 1, 2);
    case_fill(c, at->q, 0, heat);
    if (causal) case_in(c, at->pos, DT_I32, DIMS(s->batch, s->time)), fill_pos(c, at->pos, s, packed);
    if (special && case_flip(c)) any_lengths(c, at->lengths, s);
    bool alone = is_biased(c) && case_below(c, 3); /* the bias, without what other kernels are for */
    if (special && !alone && case_below(c, 3) == 0) attr->cap = (float)PICK(c, 2, 20, 50);
    if (special && (is_biased(c) || case_below(c, 3) == 0)) any_bias(c, at->bias, s);
    if (special && !alone && case_below(c, 4) == 0) any_dropout(c, at->scalars);
    attr->standard = c->index % 7 == 3 && !alone;
    static const char *const names[MASK_COUNT] = {"causal", "full", "cross", "blocks"};
    case_note(c, "%s%s%s%s window %d block %d %d %d cap %g drop %.2g %sheat %.0f",
              attr->cached ? "cached " : "", attr->whole_rows ? "whole rows " : "",
              attr->standard ? "standard " : "", names[attr->mask], attr->window, attr->sparse_block,
              attr->local_blocks, attr->global_blocks, (double)attr->cap, (double)attr->dropout,
              packed ? "packed " : "", heat);
    return heat;
}

/* Kernels may round probabilities to the compute type before they multiply with them. */
static double attn_error(const struct op_case *c, const struct heads *s, double heat)
{
    double kept = 1 / (1 - (double)c->op.attr.dropout);
    return (2 * dtype_unit(c->type) + sum_error(s->size) * (1 + heat) + sum_error(s->keys)) * kept;
}

/* Other masks than the causal one come with every second case; across rows there are as many keys as there happen to be. */
static void any_kind(struct op_case *c, struct heads *s, double limit)
{
    if (is_whole(c) || c->op.attr.cached || c->index % 2 == 0) return;
    c->op.attr.mask = (enum mask_kind)PICK(c, MASK_CAUSAL, MASK_FULL, MASK_FULL, MASK_CROSS, MASK_BLOCKS);
    if (is_biased(c) && c->op.attr.mask == MASK_BLOCKS) c->op.attr.mask = MASK_CAUSAL;
    if (c->op.attr.mask != MASK_CROSS) return;
    s->keys = PICK(c, 1, 3, 64, 67, 130, 300);
    fit_heads(c, s, limit);
}

void make_attn(struct op_case *c)
{
    struct heads s = is_whole(c) ? whole_heads(c, 9e6) : any_heads(c, case_below(c, 3) == 0, 4e6);
    any_kind(c, &s, 4e6);
    heads_in(c, ATTN_Q, &s, true, false);
    heads_in(c, ATTN_K, &s, false, true);
    heads_in(c, ATTN_V, &s, false, true);
    double heat = any_mask(c, &s, &forward);
    heads_out(c, ATTN_O, &s, true, false);
    case_out(c, ATTN_LSE, DT_F32, DIMS(s.batch, s.heads, s.time));
    c->inner[ATTN_O] = attn_error(c, &s, heat);
    c->scale[ATTN_O] = 0.5; /* queries that see few keys have larger outputs than most */
    c->inner[ATTN_LSE] = sum_error(s.size);
    c->scale[ATTN_LSE] = 1 + 3 * heat;
}

void make_attn_bwd(struct op_case *c)
{
    static const int from[] = {ATTN_BWD_Q,       ATTN_BWD_K,    ATTN_BWD_V,       ATTN_BWD_POS,
                               ATTN_BWD_LENGTHS, ATTN_BWD_BIAS, ATTN_BWD_SCALARS, -1},
                     to[] = {ATTN_BWD_O, ATTN_BWD_LSE, -1};
    struct heads s = is_whole(c)    ? whole_heads(c, 5e6)
                     : is_biased(c) ? biased_heads(c, 4e6)
                                    : any_heads(c, false, 2e6);
    any_kind(c, &s, is_biased(c) ? 4e6 : 2e6);
    for (int i = ATTN_BWD_DO; i <= ATTN_BWD_O; i++) {
        bool query = i != ATTN_BWD_K && i != ATTN_BWD_V;
        heads_in(c, i, &s, query, !query);
    }
    case_in(c, ATTN_BWD_LSE, DT_F32, DIMS(s.batch, s.heads, s.time));
    double heat = any_mask(c, &s, &backward);
    case_forward(c, OP_ATTN, from, to);
    heads_out(c, ATTN_BWD_DQ, &s, true, false);
    heads_out(c, ATTN_BWD_DK, &s, false, true);
    heads_out(c, ATTN_BWD_DV, &s, false, true);
    for (int i = ATTN_BWD_DQ; i <= ATTN_BWD_DV; i++) c->inner[i] = 2 * attn_error(c, &s, heat);
    /* Where a row has few visible keys, dp - delta is the difference of two equal numbers of size sqrt(D). */
    c->scale[ATTN_BWD_DQ] = c->op.attr.scale * sqrt((double)s.size),
    c->scale[ATTN_BWD_DK] = c->scale[ATTN_BWD_DQ] * heat * sqrt(fmax(1, (double)s.time / (double)s.keys));
    c->scale[ATTN_BWD_DV] = 0.5; /* keys that many queries see have larger gradients than most */
    if (!c->in[ATTN_BWD_BIAS]) return;
    case_acc(c, ATTN_BWD_DBIAS, case_below(c, 3) ? DT_F32 : c->type,
             DIMS(op_case_in(c, ATTN_BWD_BIAS)->dim[0], s.heads));
    c->inner[ATTN_BWD_DBIAS] = 2 * attn_error(c, &s, heat);
    /* A bucket's sum is what is left of as many terms of size sqrt(D) as there are queries. */
    c->scale[ATTN_BWD_DBIAS] = sqrt((double)s.size) * sqrt((double)(s.batch * s.time));
}

void make_rope_table(struct op_case *c)
{
    int64_t batch = PICK(c, 1, 2, 3), time = PICK(c, 1, 7, 64, 131), half = PICK(c, 1, 8, 16, 40, 64);
    int64_t furthest = PICK(c, 10, 200, 4096, 100000);
    case_in(c, ROPE_TABLE_POS, DT_I32, DIMS(batch, time));
    for (int64_t i = 0; i < batch * time; i++)
        case_set_int(c, ROPE_TABLE_POS, i, (int32_t)case_below(c, furthest));
    case_in(c, ROPE_TABLE_INV_FREQ, DT_F32, DIMS(half));
    for (int64_t j = 0; j < half; j++)
        case_set(c, ROPE_TABLE_INV_FREQ, j, pow(10000, -(double)j / (double)half));
    case_out(c, ROPE_TABLE_TABLE, DT_F32, DIMS(batch, time, 2 * half));
    if (case_flip(c)) c->op.attr.scale = (float)case_uniform(c, 0.5, 2);
    /* The angle is a product in fp32: its rounding grows with the position. */
    c->inner[ROPE_TABLE_TABLE] = F32_UNIT;
    c->scale[ROPE_TABLE_TABLE] =
        (4 + (double)furthest) * (c->op.attr.scale > 1 ? (double)c->op.attr.scale : 1);
    case_note(c, "positions below %d, scale %g", (int)furthest, (double)c->op.attr.scale);
}

void make_kv_append(struct op_case *c)
{
    struct heads s = any_heads(c, true, 1e6);
    for (int i = KV_APPEND_K; i <= KV_APPEND_V; i++) heads_in(c, i, &s, false, false);
    case_in(c, KV_APPEND_POS, DT_I32, DIMS(s.batch, s.time));
    for (int i = KV_APPEND_KC; i <= KV_APPEND_VC; i++) heads_in(c, i, &s, false, true);
    fill_pos(c, KV_APPEND_POS, &s, false);
    case_same(c, KV_APPEND_NEW_KC, KV_APPEND_KC);
    case_same(c, KV_APPEND_NEW_VC, KV_APPEND_VC);
    c->exact = true;
}

/* Sizes of a split with or without a rotation; odd ones can only be moved. */
static struct heads any_split(struct op_case *c, bool *turned)
{
    struct heads s = any_heads(c, false, 1e6);
    *turned = case_flip(c);
    s.size = *turned ? PICK(c, 2, 6, 16, 64, 80, 128) : PICK(c, 1, 3, 16, 80);
    case_note(c, "%s", *turned ? "rotated" : "");
    return s;
}

static int64_t joint_width(const struct heads *s) { return (s->heads + 2 * s->kv_heads) * s->size; }

static void angles_in(struct op_case *c, int slot, const struct heads *s)
{
    int64_t turned =
        case_below(c, 3) ? s->size : 2 + 2 * case_below(c, s->size / 2); /* all or some of a head */
    case_in(c, slot, DT_F32, DIMS(s->batch, s->time, turned));
    for (int64_t r = 0; r < s->batch * s->time; r++) {
        for (int64_t j = 0; j < turned / 2; j++) {
            double angle = case_uniform(c, 0, 100);
            case_set(c, slot, r * turned + j, cos(angle));
            case_set(c, slot, r * turned + turned / 2 + j, sin(angle));
        }
    }
    case_note(c, "%d of a head", (int)turned);
}

void make_split3(struct op_case *c)
{
    bool turned;
    struct heads s = any_split(c, &turned);
    case_in(c, SPLIT3_X, c->type, DIMS(s.batch, s.time, joint_width(&s)));
    if (turned) angles_in(c, SPLIT3_TABLE, &s);
    for (int i = SPLIT3_Q; i <= SPLIT3_V; i++) heads_out(c, i, &s, i == SPLIT3_Q, false);
    for (int i = SPLIT3_Q; i <= SPLIT3_V; i++) c->inner[i] = 4 * F32_UNIT;
    c->exact = !turned;
}

void make_join3(struct op_case *c)
{
    bool turned;
    struct heads s = any_split(c, &turned);
    for (int i = JOIN3_Q; i <= JOIN3_V; i++) heads_in(c, i, &s, i == JOIN3_Q, false);
    if (turned) angles_in(c, JOIN3_TABLE, &s);
    case_out(c, JOIN3_X, c->type, DIMS(s.batch, s.time, joint_width(&s)));
    c->inner[JOIN3_X] = 4 * F32_UNIT;
    c->exact = !turned;
}

void make_rope(struct op_case *c)
{
    struct heads s = any_heads(c, false, 1e6);
    s.size = PICK(c, 2, 6, 16, 64, 80, 128);
    c->op.attr.back = case_flip(c);
    heads_in(c, ROPE_X, &s, true, false);
    angles_in(c, ROPE_TABLE, &s);
    heads_out(c, ROPE_Y, &s, true, false);
    c->inner[ROPE_Y] = 4 * F32_UNIT;
    case_note(c, "%s", c->op.attr.back ? "back" : "");
}
