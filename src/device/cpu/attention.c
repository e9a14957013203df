/* attention.c - attention forward: softmax(scale Q K') V over visible keys, in memory that does not grow with
 * the square of anything.
 *
 * A worker takes a block of rows, packs its queries, and walks over key blocks: K and V' are packed once per
 * block and then meet every panel of queries. For a panel,
 *
 *     scores [keys][nr] = K Q'         by the matrix kernel, mr keys at a time, only those the panel sees
 *     probabilities in place           (attention_rows.h); running maximum and sum per query
 *     sums [size][nr] = sums * fade + V' P'
 *
 * All of it stays in the first-level cache, and size is on the side of the matrix kernel whose tile height
 * divides it. At the end sums are turned into rows and divided.
 *
 * A row's result does not depend on the rows beside it (attention_common.h), so the size of a block may
 * follow the number of threads.
 */
#include "device/cpu/attention_forward.h"
#include "device/cpu/attention_standard.h"
#include "device/cpu/kernels.h"

#include <math.h>

enum {
    KEYS = 256,       /* of a key block */
    PIECE = 2 * KEYS, /* keys of a piece, when there are pieces */
    FEW_ROWS = 64,    /* rows up to which a long cache is cut into pieces */
};

/* ---- how the work is cut --------------------------------------------------------------------- */

/* Rows up to which packing keys costs more than it saves, as measured. */
static int64_t single_rows(const struct attn *a) { return a->kernel->kg > 1 ? 1 : 5; }

/* Large blocks pack keys less often; small ones keep many threads busy. */
static int64_t choose_rows(const struct forward *f, int threads)
{
    int64_t nr = f->a.kernel->nr, heads = f->a.batch * f->a.kv_heads;
    int64_t rows = attn_up(attn_least(f->rows, ATTN_BLOCK), nr);
    while (rows > 4 * nr && heads * ((f->rows + rows - 1) / rows) < 4 * threads) rows = attn_up(rows / 2, nr);
    return rows;
}

/* Offsets in a worker's scratch. */
struct forward_room {
    size_t panels, queries, sums, tops, totals, keys, values, scores, packed, turned, keep;
    size_t bytes;
};

static struct forward_room forward_room(const struct forward *f)
{
    const struct attn *a = &f->a;
    int64_t nr = a->kernel->nr, mr = a->kernel->mr, panels = f->block_rows / nr,
            keys = attn_least(KEYS, a->keys);
    size_t scores = (size_t)((attn_up(keys, mr) + mr) * nr) * 4;
    struct forward_room r = {0};
    r.panels = attn_room(&r.bytes, (size_t)panels * sizeof(struct attn_panel));
    r.queries = attn_room(&r.bytes, attn_packed(a, (int)nr, f->block_rows, a->size));
    r.sums = attn_room(&r.bytes, (size_t)(f->block_rows * a->size) * 4);
    r.tops = attn_room(&r.bytes, (size_t)f->block_rows * 4);
    r.totals = attn_room(&r.bytes, (size_t)f->block_rows * 4);
    r.keys = attn_room(&r.bytes, attn_packed(a, (int)mr, keys, a->size));
    r.values = attn_room(&r.bytes, attn_packed(a, (int)mr, a->size, keys));
    r.scores = attn_room(&r.bytes, scores + GEMM_SLACK);
    r.packed = attn_room(&r.bytes, a->kernel->kg > 1 ? scores / 2 + GEMM_SLACK : 0);
    r.turned = attn_room(&r.bytes, (size_t)(nr * attn_up(a->size, 4)) * 4);
    r.keep = attn_room(&r.bytes, a->dropout > 0 ? scores : 0);
    return r;
}

static void forward_cut(struct forward *f, int threads)
{
    const struct attn *a = &f->a;
    f->rows = a->time * a->group;
    f->single = f->rows <= single_rows(a);
    f->block_rows = f->single ? f->rows : choose_rows(f, threads);
    f->blocks = (f->rows + f->block_rows - 1) / f->block_rows;
    bool cut = a->cached && f->rows <= FEW_ROWS && a->keys > PIECE;
    f->piece_keys = cut ? PIECE : a->keys;
    f->pieces = cut ? (a->keys + PIECE - 1) / PIECE : 1;
    int64_t parts = a->batch * a->kv_heads * f->pieces * f->rows * (a->size + 2);
    f->parts_bytes = cut ? (size_t)attn_up(parts * 4, 64) : 0;
    f->lines_bytes = attn_lines_bytes(a);
    f->worker_bytes = f->single ? forward_single_bytes(a) : forward_room(f).bytes;
}

/* Later blocks of a causal row are dearer: they go first. */
static struct forward_item item_at(const struct forward *f, int64_t index)
{
    struct forward_item item = {.piece = index % f->pieces};
    int64_t rest = index / f->pieces;
    item.row = (f->blocks - 1 - rest % f->blocks) * f->block_rows;
    item.lines = attn_least(f->block_rows, f->rows - item.row);
    item.kv = rest / f->blocks % f->a.kv_heads;
    item.b = rest / f->blocks / f->a.kv_heads;
    item.key = item.piece * f->piece_keys;
    item.end = attn_least(item.key + f->piece_keys, f->a.keys);
    return item;
}

/* ---- one block of rows ----------------------------------------------------------------------- */

struct block {
    const struct forward *f;
    struct forward_item item;
    struct attn_panel *panels;
    int64_t npanels;
    void *queries, *keys, *values, *packed;
    float *sums, *tops, *totals, *scores, *turned, *keep;
};

static struct block block_of(const struct forward *f, const struct forward_item *item, char *scratch)
{
    struct forward_room r = forward_room(f);
    return (struct block){.f = f,
                          .item = *item,
                          .panels = (struct attn_panel *)(void *)(scratch + r.panels),
                          .npanels = (item->lines + f->a.kernel->nr - 1) / f->a.kernel->nr,
                          .queries = scratch + r.queries,
                          .keys = scratch + r.keys,
                          .values = scratch + r.values,
                          .packed = scratch + r.packed,
                          .sums = (float *)(void *)(scratch + r.sums),
                          .tops = (float *)(void *)(scratch + r.tops),
                          .totals = (float *)(void *)(scratch + r.totals),
                          .scores = (float *)(void *)(scratch + r.scores),
                          .turned = (float *)(void *)(scratch + r.turned),
                          .keep = (float *)(void *)(scratch + r.keep)};
}

/* With several query heads to a kv head, rows are first put under each other, in the room of sums. */
static void pack_queries(const struct block *k)
{
    const struct attn *a = &k->f->a;
    const struct forward_item *it = &k->item;
    const void *src = attn_at(a, k->f->q, attn_query(a, it->b, it->row, it->kv));
    int64_t stride = a->heads * a->size;
    if (a->group > 1) {
        for (int64_t i = 0; i < it->lines; i++) {
            int64_t row = it->row + i, h = it->kv * a->group + row % a->group;
            memcpy(attn_at(a, k->sums, i * a->size),
                   attn_at(a, k->f->q, attn_query(a, it->b, row / a->group, h)),
                   (size_t)a->size * dtype_size(a->type));
        }
        src = k->sums;
        stride = a->size;
    }
    gemm_pack_side(a->kernel, false, k->queries, src, a->type, stride, 1, it->lines, a->size);
}

static void start(const struct block *k)
{
    const struct attn *a = &k->f->a;
    int64_t nr = a->kernel->nr;
    pack_queries(k);
    memset(k->sums, 0, (size_t)(k->npanels * nr * a->size) * 4);
    memset(k->totals, 0, (size_t)(k->npanels * nr) * 4);
    for (int64_t i = 0; i < k->npanels * nr; i++) k->tops[i] = ATTN_TOP_START;
    for (int64_t p = 0; p < k->npanels; p++) {
        attn_see(a, k->item.b, k->item.row + p * nr, attn_least(nr, k->item.lines - p * nr), a->group,
                 &k->panels[p]);
    }
}

/* Scores of panel p become probabilities; what it has summed so far follows its new maximum. */
static void soften(const struct block *k, int64_t p, int64_t key, struct attn_cut cut)
{
    const struct attn *a = &k->f->a;
    int nr = a->kernel->nr;
    int32_t room[4 * GEMM_MAX_NR];
    float fade[GEMM_MAX_NR];
    struct attn_lanes lanes = {k->item.b, k->item.kv * a->group, k->item.row + p * nr,
                               attn_least(nr, k->item.lines - p * nr), a->group};
    struct attn_softmax soft = {.score = k->scores,
                                .packed = k->packed,
                                .width = nr,
                                .from = cut.from,
                                .end = cut.end,
                                .scale = a->scale2,
                                .top = k->tops + p * nr,
                                .sum = k->totals + p * nr,
                                .fade = fade};
    if (cut.masked) soft.mask = attn_mask(a, &k->panels[p], key, room);
    if (a->modified) attn_score_panel(a, &k->f->score, &k->panels[p], &lanes, key, cut, k->scores, NULL);
    if (k->f->score.drop.below) {
        attn_keep_panel(a, &k->f->score, &k->panels[p], &lanes, key, cut, k->keep);
        soft.keep = k->keep;
    }
    if (a->rows->softmax(&soft)) a->rows->fade(k->sums + p * nr * a->size, a->size, nr, fade);
}

/* Rows in fours, keys in tiles of mr. */
static int key_step(const struct attn *a)
{
    int mr = a->kernel->mr;
    return mr % 4 == 0 ? mr : mr % 2 == 0 ? 2 * mr : 4 * mr;
}

/* Panel p meets the key block that is packed. */
static void meet(const struct block *k, int64_t p, int64_t key, int64_t count)
{
    const struct attn *a = &k->f->a;
    int nr = a->kernel->nr, kg = a->kernel->kg;
    struct attn_cut cut = attn_cut(&k->panels[p], key, count, key_step(a));
    if (cut.from >= cut.end) return;
    int64_t query = p * gemm_panel(a->kernel, nr, a->size);
    attn_products(a, k->scores, k->keys, attn_packed_at(a, k->queries, query), cut.from, cut.end);
    soften(k, p, key, cut);
    const void *weights = attn_packed_at(a, kg > 1 ? k->packed : k->scores, cut.from * nr);
    attn_collect(a, k->sums + p * nr * a->size, k->values, count, cut.from, weights,
                 attn_up(cut.end, kg) - cut.from);
}

/* Whether some panel sees some of these keys. */
static bool is_seen(const struct block *k, int64_t key, int64_t count)
{
    for (int64_t p = 0; p < k->npanels; p++) {
        struct attn_cut cut = attn_cut(&k->panels[p], key, count, key_step(&k->f->a));
        if (cut.from < cut.end) return true;
    }
    return false;
}

static void walk_keys(const struct block *k)
{
    const struct attn *a = &k->f->a;
    const struct forward_item *it = &k->item;
    int64_t low = a->keys, high = -1, stride = a->kv_heads * a->size;
    for (int64_t p = 0; p < k->npanels; p++) {
        low = attn_least(low, k->panels[p].low);
        high = attn_most(high, k->panels[p].high);
    }
    int64_t end = attn_least(it->end, high + 1);
    for (int64_t key = attn_most(it->key, low / KEYS * KEYS); key < end; key += KEYS) {
        int64_t count = attn_least(KEYS, end - key), at = attn_key(a, it->b, key, it->kv);
        if (!is_seen(k, key, count)) continue;
        gemm_pack_side(a->kernel, true, k->keys, attn_at(a, k->f->k, at), a->type, stride, 1, count, a->size);
        gemm_pack_side(a->kernel, true, k->values, attn_at(a, k->f->v, at), a->type, 1, stride, a->size,
                       count);
        for (int64_t p = 0; p < k->npanels; p++) meet(k, p, key, count);
    }
}

/* ---- results --------------------------------------------------------------------------------- */

static float *part_at(const struct forward *f, int64_t b, int64_t kv, int64_t piece, int64_t row)
{
    int64_t index = ((b * f->a.kv_heads + kv) * f->pieces + piece) * f->rows + row;
    return f->parts + index * (f->a.size + 2);
}

static void put_row(const struct forward *f, int64_t b, int64_t kv, int64_t row, float *sums, float top,
                    float sum)
{
    const struct attn *a = &f->a;
    int64_t t = row / a->group, h = kv * a->group + row % a->group;
    bool blind = sum == 0; /* it sees no key: zeroes */
    float by = blind ? 0 : 1.0f / sum;
    for (int64_t i = 0; i < a->size; i++) sums[i] *= by;
    dtype_convert(attn_at(a, f->o, attn_query(a, b, t, h)), a->type, sums, DT_F32, a->size);
    f->lse[(b * a->heads + h) * a->time + t] = blind ? 0 : top * a->top_scale + logf(sum);
}

void forward_finish(const struct forward *f, const struct forward_item *item, int64_t row, float *sums,
                    float top, float sum)
{
    if (!f->parts_bytes) {
        put_row(f, item->b, item->kv, row, sums, top, sum);
        return;
    }
    float *part = part_at(f, item->b, item->kv, item->piece, row);
    memcpy(part, sums, (size_t)f->a.size * 4);
    part[f->a.size] = top;
    part[f->a.size + 1] = sum;
}

static void finish(const struct block *k)
{
    const struct attn *a = &k->f->a;
    int64_t nr = a->kernel->nr, ld = attn_up(a->size, 4);
    float one[GEMM_MAX_NR];
    for (int i = 0; i < GEMM_MAX_NR; i++) one[i] = 1;
    for (int64_t i = 0; i < k->item.lines; i++) {
        if (i % nr == 0) a->rows->turn(k->turned, ld, k->sums + i * a->size, a->size, (int)nr, one);
        forward_finish(k->f, &k->item, k->item.row + i, k->turned + i % nr * ld, k->tops[i], k->totals[i]);
    }
}

/* The pieces of one row, in order of their keys; a piece whose keys are all out of sight has no sum. */
static void join_row(const struct forward *f, int64_t b, int64_t kv, int64_t row)
{
    int64_t size = f->a.size;
    float sums[ATTN_MAX_SIZE] = {0}, top = ATTN_TOP_START, sum = 0;
    for (int64_t i = 0; i < f->pieces; i++) {
        const float *part = part_at(f, b, kv, i, row);
        if (part[size + 1] > 0 && part[size] > top) top = part[size];
    }
    for (int64_t i = 0; i < f->pieces; i++) {
        const float *part = part_at(f, b, kv, i, row);
        if (part[size + 1] == 0) continue;
        float by = exp2f((part[size] - top) * f->a.scale2);
        for (int64_t j = 0; j < size; j++) sums[j] += by * part[j];
        sum += by * part[size + 1];
    }
    put_row(f, b, kv, row, sums, top, sum);
}

static void join_rows(void *arg, int64_t begin, int64_t end, int)
{
    const struct forward *f = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / f->rows;
        join_row(f, head / f->a.kv_heads, head % f->a.kv_heads, i % f->rows);
    }
}

static void run_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct forward *f = arg;
    char *scratch = f->work + (size_t)worker * f->worker_bytes;
    for (int64_t i = begin; i < end; i++) {
        struct forward_item item = item_at(f, i);
        if (f->single) {
            forward_single(f, &item, scratch);
            continue;
        }
        struct block k = block_of(f, &item, scratch);
        start(&k);
        walk_keys(&k);
        finish(&k);
    }
}

size_t cpu_attn_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    if (op->attr.standard) return attn_standard_workspace(desc, op, threads);
    struct forward f = {.a = attn_of(desc[ATTN_Q], desc[ATTN_K], op, desc[ATTN_BIAS] != NULL)};
    forward_cut(&f, threads);
    return f.lines_bytes + f.parts_bytes + (size_t)threads * f.worker_bytes;
}

void cpu_attn(const struct kernel_call *call)
{
    if (call->op->attr.standard) {
        attn_standard(call);
        return;
    }
    struct forward f = {
        .a = attn_of(call_in(call, ATTN_Q), call_in(call, ATTN_K), call->op, call->in[ATTN_BIAS] != NULL),
        .score = {.lines = call->work, .drop = dropout_of(&call->op->attr, call->in[ATTN_SCALARS])},
        .q = call->in[ATTN_Q],
        .k = call->in[ATTN_K],
        .v = call->in[ATTN_V],
        .o = call->out[ATTN_O],
        .lse = call->out[ATTN_LSE]};
    f.a.pos = call->in[ATTN_POS], f.a.lengths = call->in[ATTN_LENGTHS];
    forward_cut(&f, threads_count(call->team));
    f.parts = (float *)(void *)((char *)call->work + f.lines_bytes);
    f.work = (char *)f.parts + f.parts_bytes;
    attn_lines_fill(&f.a, call->work, call, ATTN_BIAS);
    int64_t heads = f.a.batch * f.a.kv_heads;
    threads_each(call->team, heads * f.blocks * f.pieces, 1, run_items, &f);
    if (f.parts_bytes) threads_each(call->team, heads * f.rows, 4, join_rows, &f);
}

CPU_KERNEL(attn, cpu_attn_workspace);
