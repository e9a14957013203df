/* attention_bwd_block.c - see attention_bwd_block.h.
 *
 * For a panel of nr queries against a key block, all arrays being [keys][nr]:
 *
 *     scores = K Q'    dp = V dO'                       products over size, mr keys at a time
 *     P = 2^(scale * scores - lse)   dS = P (dp - delta)  in place; also turned into panels whose lines are
 * keys dQ' += K' dS'                                     [size][nr]
 *
 * and when all panels have met the block, for every panel of nr keys, over the queries that see it:
 *
 *     dV' += dO' P    dK' += Q' dS                      [size][nr keys]
 *
 * A pair (query panel, key panel) is either worked on in full, with masks, or known to be empty.
 */
#include "device/cpu/attention_bwd_block.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t lines_bytes(const struct attn *a, int width)
{
    return attn_packed(a, width, a->block, a->size);
}

static size_t turned_bytes(const struct attn *a) { return attn_packed(a, a->kernel->mr, a->size, a->block); }

size_t query_side_bytes(const struct attn *a)
{
    return 2 * lines_bytes(a, a->kernel->nr) + 2 * turned_bytes(a);
}

size_t key_side_bytes(const struct attn *a) { return 2 * lines_bytes(a, a->kernel->mr) + turned_bytes(a); }

size_t block_gradient_bytes(const struct attn *a) { return (size_t)attn_up(a->block * a->size * 4, 64); }

/* Scores of a block, with room for the last tile. */
static size_t scores_bytes(const struct attn *a)
{
    return (size_t)attn_up((a->block + a->kernel->mr) * a->kernel->nr * 4 + GEMM_SLACK, 64);
}

static size_t pairs_bytes(const struct attn *a)
{
    return (size_t)attn_up(a->block * a->block * (int64_t)dtype_size(a->kernel->type) + GEMM_SLACK, 64);
}

static size_t rows_bytes(const struct attn *a)
{
    return (size_t)attn_up(a->kernel->nr * attn_up(a->size, 4) * 4, 64);
}

size_t meeting_bytes(const struct attn *a)
{
    size_t arrays = 2 + (a->kernel->kg > 1) + (a->cap > 0) + (a->dropout > 0) + a->biased;
    return arrays * scores_bytes(a) + 2 * pairs_bytes(a) + rows_bytes(a);
}

void query_side_place(const struct attn *a, struct query_side *s, char *at)
{
    size_t lines = lines_bytes(a, a->kernel->nr), turned = turned_bytes(a);
    s->q = at;
    s->d_o = at + lines;
    s->q_turned = at + 2 * lines;
    s->do_turned = at + 2 * lines + turned;
}

void key_side_place(const struct attn *a, struct key_side *s, char *at)
{
    size_t lines = lines_bytes(a, a->kernel->mr);
    s->k = at;
    s->v = at + lines;
    s->k_turned = at + 2 * lines;
}

struct meeting meeting_place(const struct backward *w, char *at)
{
    const struct attn *a = &w->a;
    struct meeting m = {.w = w};
    m.scores = (float *)(void *)at, at += scores_bytes(a);
    m.dp = (float *)(void *)at, at += scores_bytes(a);
    if (a->kernel->kg > 1) m.packed = at, at += scores_bytes(a);
    if (a->cap > 0) m.slope = (float *)(void *)at, at += scores_bytes(a);
    if (a->dropout > 0) m.keep = (float *)(void *)at, at += scores_bytes(a);
    if (a->biased) m.raw = (float *)(void *)at, at += scores_bytes(a);
    m.p_turned = at, at += pairs_bytes(a);
    m.ds_turned = at, at += pairs_bytes(a);
    m.rows = (float *)(void *)at;
    return m;
}

/* ---- sides ----------------------------------------------------------------------------------- */

void query_side_see(const struct backward *w, struct query_side *s, int64_t b, int64_t h, int64_t block)
{
    const struct attn *a = &w->a;
    int64_t nr = a->kernel->nr;
    s->b = b;
    s->h = h;
    s->first = block * a->block;
    s->count = attn_least(a->block, a->time - s->first);
    s->low = a->keys;
    s->high = s->hole_most = -1;
    s->hole_least = a->keys;
    for (int64_t i = 0; i < s->count; i += nr) {
        struct attn_panel *p = &s->panels[i / nr];
        attn_see(a, b, s->first + i, attn_least(nr, s->count - i), 1, p);
        s->low = attn_least(s->low, p->low);
        s->high = attn_most(s->high, p->high);
        s->hole_most = attn_most(s->hole_most, p->hole_most);
        s->hole_least = attn_least(s->hole_least, p->hole_least);
    }
}

/* Lines that do not exist get P = 0 from an infinite lse. */
void query_side_pack(const struct backward *w, struct query_side *s, bool for_keys)
{
    const struct attn *a = &w->a;
    const struct gemm_kernel *kernel = a->kernel;
    int64_t stride = a->heads * a->size, at = attn_query(a, s->b, s->first, s->h);
    int64_t stat = (s->b * a->heads + s->h) * a->time + s->first;
    const void *q = attn_at(a, w->q, at), *d_o = attn_at(a, w->d_o, at);
    gemm_pack_side(kernel, false, s->q, q, a->type, stride, 1, s->count, a->size);
    gemm_pack_side(kernel, false, s->d_o, d_o, a->type, stride, 1, s->count, a->size);
    if (for_keys) {
        gemm_pack_side(kernel, true, s->q_turned, q, a->type, 1, stride, a->size, s->count);
        gemm_pack_side(kernel, true, s->do_turned, d_o, a->type, 1, stride, a->size, s->count);
    }
    for (int64_t i = 0; i < a->block; i++) {
        bool there = i < s->count;
        s->lse[i] = there ? w->lse[stat + i] * 1.44269504f : __builtin_inff();
        s->delta[i] = there ? w->delta[stat + i] : 0;
    }
}

void key_side_pack(const struct backward *w, struct key_side *s, int64_t b, int64_t kv, int64_t block)
{
    const struct attn *a = &w->a;
    s->b = b;
    s->kv = kv;
    s->first = block * a->block;
    s->count = attn_least(a->block, a->keys - s->first);
    int64_t stride = a->kv_heads * a->size, at = attn_key(a, b, s->first, kv);
    const void *k = attn_at(a, w->k, at), *v = attn_at(a, w->v, at);
    gemm_pack_side(a->kernel, true, s->k, k, a->type, stride, 1, s->count, a->size);
    gemm_pack_side(a->kernel, true, s->v, v, a->type, stride, 1, s->count, a->size);
    gemm_pack_side(a->kernel, true, s->k_turned, k, a->type, 1, stride, a->size, s->count);
}

/* ---- a meeting ------------------------------------------------------------------------------- */

/* Products of a panel become scores, and what P and dS are multiplied with is made. */
static void score_panel(const struct meeting *m, const struct query_side *qs, const struct key_side *ks,
                        int p, struct attn_cut cut)
{
    const struct attn *a = &m->w->a;
    int64_t nr = a->kernel->nr;
    struct attn_lanes lanes = {qs->b, qs->h, p * nr, attn_least(nr, qs->count - p * nr), 1};
    if (a->modified)
        attn_score_panel(a, &m->w->score, &qs->panels[p], &lanes, ks->first, cut, m->scores, m->slope);
    if (m->keep) attn_keep_panel(a, &m->w->score, &qs->panels[p], &lanes, ks->first, cut, m->keep);
}

/* One panel of queries; returns the rows worked on, in whole panels of keys. */
static struct attn_cut meet_panel(const struct meeting *m, const struct query_side *qs,
                                  const struct key_side *ks, int p)
{
    const struct attn *a = &m->w->a;
    int nr = a->kernel->nr, kg = a->kernel->kg;
    struct attn_cut cut = attn_cut(&qs->panels[p], ks->first, ks->count, nr);
    if (cut.from >= cut.end) return cut;
    int64_t line = p * gemm_panel(a->kernel, nr, a->size);
    attn_products(a, m->scores, ks->k, attn_packed_at(a, qs->q, line), cut.from, cut.end);
    attn_products(a, m->dp, ks->v, attn_packed_at(a, qs->d_o, line), cut.from, cut.end);
    score_panel(m, qs, ks, p, cut);
    struct attn_cut made = cut;
    bool whole = cut.end % nr == 0;
    cut.end = (int)attn_up(cut.end, nr);
    int32_t room[4 * GEMM_MAX_NR];
    struct attn_grad grad = {.score = m->scores,
                             .dp = m->dp,
                             .packed = m->packed,
                             .width = nr,
                             .from = cut.from,
                             .end = cut.end,
                             .scale = a->scale2,
                             .lse = qs->lse + p * nr,
                             .delta = qs->delta + p * nr,
                             .panel_step = a->block * nr,
                             .keep = m->keep,
                             .slope = m->slope,
                             .raw = m->raw};
    if (cut.masked || !whole) grad.mask = attn_mask(a, &qs->panels[p], ks->first, room);
    if (ks->dk) {
        grad.p_turned = attn_packed_at(a, m->p_turned, p * nr * nr);
        grad.ds_turned = attn_packed_at(a, m->ds_turned, p * nr * nr);
    }
    a->rows->grad(&grad);
    if (qs->line) attn_grad_panel(a, &qs->panels[p], qs->first, ks->first, made, m->raw, qs->line);
    if (qs->dq) {
        int64_t n = attn_least(cut.end, attn_up(ks->count, kg)) - cut.from;
        const void *ds = attn_packed_at(a, kg > 1 ? m->packed : (void *)m->dp, cut.from * nr);
        attn_collect(a, qs->dq + p * nr * a->size, ks->k_turned, ks->count, cut.from, ds, n);
    }
    return cut;
}

/* One panel of keys against the query panels that worked on it. */
static void collect_keys(const struct meeting *m, const struct query_side *qs, const struct key_side *ks,
                         int panel, const struct attn_cut *cuts, int ncuts)
{
    const struct attn *a = &m->w->a;
    int nr = a->kernel->nr, from = ncuts, end = 0;
    for (int p = 0; p < ncuts; p++) {
        if (panel * nr < cuts[p].from || panel * nr >= cuts[p].end) continue;
        from = p < from ? p : from;
        end = p + 1;
    }
    if (from >= end) return;
    int64_t base = (int64_t)panel * a->block * nr, size = (int64_t)dtype_size(a->kernel->type);
    for (int p = from; p < end; p++) { /* holes come from positions out of order */
        if (panel * nr >= cuts[p].from && panel * nr < cuts[p].end) continue;
        memset(attn_packed_at(a, m->p_turned, base + p * nr * nr), 0, (size_t)(nr * nr * size));
        memset(attn_packed_at(a, m->ds_turned, base + p * nr * nr), 0, (size_t)(nr * nr * size));
    }
    int64_t first = from * nr, n = attn_least(end * nr, attn_up(qs->count, a->kernel->kg)) - first;
    int64_t out = (int64_t)panel * nr * a->size, at = base + first * nr;
    attn_collect(a, ks->dv + out, qs->do_turned, qs->count, first, attn_packed_at(a, m->p_turned, at), n);
    attn_collect(a, ks->dk + out, qs->q_turned, qs->count, first, attn_packed_at(a, m->ds_turned, at), n);
}

void attn_bwd_meet(const struct meeting *m, const struct query_side *qs, const struct key_side *ks)
{
    int nr = m->w->a.kernel->nr, npanels = (int)((qs->count + nr - 1) / nr);
    struct attn_cut cuts[ATTN_BLOCK_PANELS];
    for (int p = 0; p < npanels; p++) cuts[p] = meet_panel(m, qs, ks, p);
    if (!ks->dk) return;
    for (int panel = 0; panel * nr < ks->count; panel++) collect_keys(m, qs, ks, panel, cuts, npanels);
}

void gradient_put(const struct meeting *m, const float *panels, int64_t count, float scale, void *x,
                  int64_t index, int64_t stride)
{
    const struct attn *a = &m->w->a;
    int64_t nr = a->kernel->nr, ld = attn_up(a->size, 4);
    float by[GEMM_MAX_NR];
    for (int i = 0; i < GEMM_MAX_NR; i++) by[i] = scale;
    for (int64_t i = 0; i < count; i++) {
        if (i % nr == 0) a->rows->turn(m->rows, ld, panels + i * a->size, a->size, (int)nr, by);
        dtype_convert(attn_at(a, x, index + i * stride), a->type, m->rows + i % nr * ld, DT_F32, a->size);
    }
}
