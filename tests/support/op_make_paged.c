/* op_make_paged.c - makers of cases with keys and values in blocks. */
#include "support/op_make.h"

#include "tensor/kv8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    int64_t tokens, heads, kv_heads, size, blocks, layers;
    bool coded; /* in 8 bits */
};

/* Heads that are whole steps of kernels and that are not. */
static struct pool any_pool(struct op_case *c, bool coded)
{
    struct pool s = {
        .tokens = PICK(c, 1, 2, 5, 16, 33, 70, 140), .kv_heads = PICK(c, 1, 2, 3), .coded = coded};
    s.heads = s.kv_heads * PICK(c, 1, 1, 2, 4, 7);
    s.size = PICK(c, 16, 20, 32, 64, 64, 80, 96, 100, 128, 256);
    s.layers = PICK(c, 1, 1, 2, 3);
    c->op.layer = (int)case_below(c, s.layers);
    return s;
}

/* Bytes and their scales: elements of about the sizes that other pools have. */
static void fill_coded(struct op_case *c, int slot, const struct pool *s)
{
    uint8_t *bytes = c->in[slot];
    int64_t codes = KV_BLOCK * s->size, chunks = s->blocks * 2 * s->layers * s->kv_heads;
    for (int64_t i = 0; i < chunks; i++, bytes += codes + KV_BLOCK * KV8_SCALE) {
        for (int64_t j = 0; j < codes; j++)
            bytes[j] = (uint8_t)(case_below(c, 2) * 128 + case_below(c, c->op.attr.e4m3 ? 127 : 128));
        for (int64_t p = 0; p < KV_BLOCK; p++) {
            float scale = (float)(case_below(c, 9) ? case_uniform(c, 0.001, 0.02) : 0);
            if (c->op.attr.e4m3 && scale > 0) scale = ldexpf(1, ilogbf(scale) - 1); /* as kv8.h makes them */
            memcpy(bytes + codes + p * KV8_SCALE, &scale, sizeof scale);
        }
    }
}

static void pool_in(struct op_case *c, int slot, const struct pool *s)
{
    int64_t chunk = s->coded ? kv8_bytes(KV_BLOCK, s->size) : KV_BLOCK * s->size;
    case_in(c, slot, s->coded ? DT_U8 : c->type, DIMS(s->blocks, 2 * s->layers, s->kv_heads, chunk));
    if (s->coded) fill_coded(c, slot, s);
}

/* Numbers below `blocks` in a random order. */
static int32_t *shuffled(struct op_case *c, int64_t blocks)
{
    int32_t *order = malloc((size_t)blocks * sizeof *order);
    if (!order) abort();
    for (int64_t i = 0; i < blocks; i++) {
        int64_t j = case_below(c, i + 1);
        order[i] = order[j], order[j] = (int32_t)i;
    }
    return order;
}

/* Every token somewhere else, or one behind the other, as those of a prompt; some nowhere. */
static void make_put(struct op_case *c, bool coded)
{
    struct pool s = any_pool(c, coded);
    bool scattered = case_below(c, 2);
    s.blocks = s.tokens / KV_BLOCK + 1 + case_below(c, 5);
    int32_t *order = shuffled(c, s.blocks * KV_BLOCK);
    for (int i = KV_PUT_K; i <= KV_PUT_V; i++) case_in(c, i, c->type, DIMS(1, s.tokens, s.kv_heads, s.size));
    case_in(c, KV_PUT_SLOTS, DT_I32, DIMS(s.tokens));
    for (int64_t n = 0; n < s.tokens; n++) {
        int64_t slot = scattered ? order[n] : s.blocks * KV_BLOCK - s.tokens + n;
        case_set_int(c, KV_PUT_SLOTS, n, case_below(c, 8) ? (int32_t)slot : -1);
    }
    pool_in(c, KV_PUT_POOL, &s);
    case_same(c, KV_PUT_NEW_POOL, KV_PUT_POOL);
    c->exact = true;
    free(order);
}

void make_kv_put(struct op_case *c) { make_put(c, false); }
void make_kv_put8(struct op_case *c)
{
    c->op.attr.e4m3 = c->index % 2; /* the first case is for every device */
    make_put(c, true);
}

/* Rows of the tokens, in any order of their contexts; the last tokens and some rows are padding. */
static int64_t any_rows(struct op_case *c, const struct pool *s, int64_t rows, int64_t furthest)
{
    int64_t at = 0, most = 1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t left = s->tokens - at, count = left ? 1 + case_below(c, left < 4 || r % 2 ? left : 3) : 0;
        if (r && case_below(c, 9) == 0) count = 0;
        int64_t context = case_below(c, furthest);
        case_set_int(c, ATTN_PAGED_ROWS, 3 * r, (int32_t)(count ? at : 0));
        case_set_int(c, ATTN_PAGED_ROWS, 3 * r + 1, (int32_t)count);
        case_set_int(c, ATTN_PAGED_ROWS, 3 * r + 2, (int32_t)(count ? context : 0));
        at += count;
        if (count && context + count > most) most = context + count;
    }
    return most;
}

static void make_paged(struct op_case *c, bool coded)
{
    struct pool s = any_pool(c, coded);
    int64_t rows = 1 + case_below(c, 5), furthest = PICK(c, 1, 40, 200, 200, 700, 1500);
    double limit = 3e6;
    while (s.heads > s.kv_heads && (double)(s.tokens * s.heads * s.size * furthest) > limit)
        s.heads -= s.kv_heads;
    while (s.tokens > 1 && (double)(s.tokens * s.heads * s.size * furthest) > limit)
        s.tokens = (s.tokens + 1) / 2;
    double heat = (double)PICK(c, 1, 1, 3, 10);
    struct op_attr *attr = &c->op.attr;
    attr->heads = (int)s.heads, attr->kv_heads = (int)s.kv_heads, attr->head_dim = (int)s.size;
    attr->scale = (float)(1 / sqrt((double)s.size));
    attr->window = case_below(c, 3) ? 0 : (int)PICK(c, 1, 4, 17, 64, 100, 1000);
    attr->cap = case_below(c, 4) ? 0 : (float)PICK(c, 2, 20, 50);
    case_in(c, ATTN_PAGED_Q, c->type, DIMS(1, s.tokens, s.heads, s.size));
    case_fill(c, ATTN_PAGED_Q, 0, heat);
    case_in(c, ATTN_PAGED_ROWS, DT_I32, DIMS(rows, 3));
    int64_t reach = (any_rows(c, &s, rows, furthest) + KV_BLOCK - 1) / KV_BLOCK + case_below(c, 3);
    s.blocks = reach + case_below(c, 9);
    int32_t *order = shuffled(c, s.blocks);
    case_in(c, ATTN_PAGED_BLOCKS, DT_I32, DIMS(rows, reach));
    for (int64_t i = 0; i < rows * reach; i++) /* rows may share blocks, which are only read */
        case_set_int(c, ATTN_PAGED_BLOCKS, i, order[(i + i / reach * 3) % s.blocks]);
    free(order);
    pool_in(c, ATTN_PAGED_POOL, &s);
    case_out(c, ATTN_PAGED_O, c->type, DIMS(1, s.tokens, s.heads, s.size));
    c->inner[ATTN_PAGED_O] = 2 * dtype_unit(c->type) + sum_error(s.size) * (1 + heat) + sum_error(furthest);
    c->scale[ATTN_PAGED_O] = 0.5;
    case_note(c, "%s%d rows up to %d layer %d window %d cap %g heat %.0f", attr->e4m3 ? "e4m3, " : "",
              (int)rows, (int)furthest, c->op.layer, attr->window, (double)attr->cap, heat);
}

void make_attn_paged(struct op_case *c) { make_paged(c, false); }
void make_attn_paged8(struct op_case *c)
{
    c->op.attr.e4m3 = c->index % 2; /* the first case is for every device */
    make_paged(c, true);
}
