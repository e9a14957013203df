/* cudnn_attention.c - the formulas of attention, written as graphs that cuDNN's fused engines recognise.
 *
 * Forward:   S = scale q k'; masked where a key is not visible; m = rowmax S; e = exp(S - m); l = rowsum e;
 *            lse = m + log l; P = e / l; o = P v.
 * Backward:  c = rowsum(do o); P = exp(masked(scale q k' - lse)); dv = P' do; dP = do v'; dS = P (dP - c) scale;
 *            dk = dS' q; dq = dS k. With fewer kv heads, dk and dv are summed over the heads of a group.
 * The engines match the graph by its topology: which op follows which, which tensors are virtual, and the types of
 * the operands of the matmuls are part of the pattern, so the order of the lines below is not free.
 *
 * Invariants:
 *  1. A plan's tensor numbers depend only on the order of creation; struct plan_entry remembers them.
 *  2. The workspace is cuDNN's own bytes, then what the graph wants as real tensors: c [B,H,T] f32 and dq summed in
 *     f32 [B,H,T,D] by atomics, which is why gradients do not repeat their bits. (A graph whose dq comes straight from
 *     a matmul does, but cuDNN then keeps dS, [B,H,T,T] in the compute type.)
 *  3. Entries are never evicted: a pointer to a plan stays good until _close.
 */
#include "device/cuda/cudnn_attention.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>
#include "device/cuda/cudnn_graph.h"

enum { MAX_PLANS = 64, WORK_ALIGN = 256 };

/* 9.6 clears the dq sum itself; before, that was the caller's part. */
enum { OLDEST_VERSION = 90600, FIRST_WITH_ANY_LENGTH = 91600 };

enum slot { Q, K, V, O, LSE, D_O, DQ, DK, DV, C_SUM, DQ_SUM, SLOTS };

struct plan_entry {
    struct attention_shape shape;
    enum attention_pass pass;
    struct cudnn_plan plan;
    int tensor[SLOTS];    /* number in the graph, -1 when the pass does not have it */
    size_t c_sum, dq_sum; /* offsets in the workspace */
    size_t workspace;
};

struct cudnn_attention {
    struct cudnn_api api;
    void *handle;
    size_t version;
    int plans;
    struct plan_entry plan[MAX_PLANS];
};

/* A graph in the making, with the shapes its tensors share. */
struct draft {
    struct cudnn_graph g;
    const struct attention_shape *s;
    enum dnn_type type;
    struct dnn_shape scores, row, full; /* [B,H,T,T], [B,H,T,1], [B,H,T,D], contiguous */
    int tensor[SLOTS];
};

static struct dnn_shape packed(int64_t b, int64_t h, int64_t t, int64_t d)
{
    return (struct dnn_shape){{b, h, t, d}, {h * t * d, t * d, d, 1}};
}

/* A [B,T,heads,D] tensor in cuDNN's order of dimensions. */
static struct dnn_shape bthd(const struct attention_shape *s, int64_t heads)
{
    return (struct dnn_shape){{s->batch, heads, s->time, s->head_size},
                              {s->time * heads * s->head_size, s->head_size, heads * s->head_size, 1}};
}

static struct dnn_shape transposed(struct dnn_shape shape)
{
    int64_t dim = shape.dim[2], stride = shape.stride[2];
    shape.dim[2] = shape.dim[3], shape.stride[2] = shape.stride[3];
    shape.dim[3] = dim, shape.stride[3] = stride;
    return shape;
}

static void draft_begin(struct draft *d, struct cudnn_attention *attention, const struct attention_shape *s)
{
    cudnn_graph_begin(&d->g, &attention->api, attention->handle);
    d->s = s;
    d->type = s->type == DT_BF16 ? DNN_BF16 : DNN_F16;
    d->scores = packed(s->batch, s->heads, s->time, s->time);
    d->row = packed(s->batch, s->heads, s->time, 1);
    d->full = packed(s->batch, s->heads, s->time, s->head_size);
    for (int i = 0; i < SLOTS; i++) d->tensor[i] = -1;
}

static int io(struct draft *d, enum slot slot, enum dnn_type type, struct dnn_shape shape)
{
    return d->tensor[slot] = cudnn_graph_tensor(&d->g, DNN_REAL, type, &shape);
}

static int inner(struct draft *d, enum dnn_type type, struct dnn_shape shape)
{
    return cudnn_graph_tensor(&d->g, DNN_VIRTUAL, type, &shape);
}

static bool windowed(const struct attention_shape *s) { return s->window > 0 && s->window < s->time; }

/* scores where the key is visible, a very small number elsewhere. */
static int masked(struct draft *d, int scores)
{
    struct cudnn_graph *g = &d->g;
    int row = cudnn_graph_index(g, scores, 2), col = cudnn_graph_index(g, scores, 3);
    int mask = cudnn_graph_compare(g, DNN_CMP_GE, row, col);
    int out = cudnn_graph_select(g, mask, scores, cudnn_graph_f32(g, -FLT_MAX));
    if (!windowed(d->s)) return out;
    row = cudnn_graph_index(g, out, 2), col = cudnn_graph_index(g, out, 3);
    int end = inner(d, DNN_I32, d->scores);
    cudnn_graph_pointwise(g, DNN_ADD, DNN_I32, col, cudnn_graph_i32(g, (int32_t)d->s->window), end);
    mask = cudnn_graph_compare(g, DNN_CMP_GT, end, row);
    return cudnn_graph_select(g, mask, out, cudnn_graph_f32(g, -FLT_MAX));
}

static void draft_forward(struct draft *d)
{
    struct cudnn_graph *g = &d->g;
    const struct attention_shape *s = d->s;
    int q = io(d, Q, d->type, bthd(s, s->heads));
    int k = io(d, K, d->type, transposed(bthd(s, s->kv_heads)));
    int v = io(d, V, d->type, bthd(s, s->kv_heads));
    int scores = inner(d, DNN_F32, d->scores);
    cudnn_graph_matmul(g, q, k, scores);
    scores = cudnn_graph_apply(g, DNN_MUL, scores, cudnn_graph_f32(g, s->scale));
    scores = masked(d, scores);
    int most = inner(d, DNN_F32, d->row), sum = inner(d, DNN_F32, d->row);
    cudnn_graph_reduce(g, DNN_REDUCE_MAX, scores, most);
    int e = cudnn_graph_apply(g, DNN_EXP, cudnn_graph_apply(g, DNN_SUB, scores, most), -1);
    cudnn_graph_reduce(g, DNN_REDUCE_ADD, e, sum);
    int log = cudnn_graph_apply(g, DNN_LOG, sum, -1);
    cudnn_graph_pointwise(g, DNN_ADD, DNN_F32, most, log, io(d, LSE, DNN_F32, d->row));
    int p = inner(d, d->type, d->scores);
    cudnn_graph_pointwise(g, DNN_DIV, DNN_F32, e, sum, p);
    cudnn_graph_matmul(g, p, v, io(d, O, d->type, bthd(s, s->heads)));
}

/* out[B,K,T,D] = x' y summed over the heads of each group; x [B,H,T,T] is virtual. */
static void transposed_matmul(struct draft *d, int x, int y, int out)
{
    struct cudnn_graph *g = &d->g;
    int xt = inner(d, d->type, transposed(d->scores));
    cudnn_graph_reshape(g, x, xt);
    if (d->s->heads == d->s->kv_heads) {
        cudnn_graph_matmul(g, xt, y, out);
        return;
    }
    int per_head = inner(d, d->type, d->full);
    cudnn_graph_matmul(g, xt, y, per_head);
    cudnn_graph_reduce(g, DNN_REDUCE_ADD, per_head, out);
}

static void draft_dq(struct draft *d, int ds, int k)
{
    struct cudnn_graph *g = &d->g;
    const struct attention_shape *s = d->s;
    int rows = inner(d, d->type, bthd(s, s->kv_heads));
    cudnn_graph_reshape(g, k, rows);
    int dq = io(d, DQ, d->type, bthd(s, s->heads));
    int sum = io(d, DQ_SUM, DNN_F32, d->full);
    cudnn_graph_matmul(g, ds, rows, sum);
    cudnn_graph_pointwise(g, DNN_IDENTITY, DNN_F32, sum, -1, dq);
}

static void draft_backward(struct draft *d)
{
    struct cudnn_graph *g = &d->g;
    const struct attention_shape *s = d->s;
    struct dnn_shape query = bthd(s, s->heads), key = bthd(s, s->kv_heads);
    int q = io(d, Q, d->type, query), k = io(d, K, d->type, transposed(key)),
        v = io(d, V, d->type, transposed(key));
    int o = io(d, O, d->type, query), d_o = io(d, D_O, d->type, query), lse = io(d, LSE, DNN_F32, d->row);
    int scale = cudnn_graph_f32(g, s->scale), one = cudnn_graph_f32(g, 1.0f);

    int row = inner(d, DNN_F32, d->row), c = io(d, C_SUM, DNN_F32, d->row);
    cudnn_graph_reduce(g, DNN_REDUCE_ADD, cudnn_graph_apply(g, DNN_MUL, d_o, o), row);
    cudnn_graph_pointwise(g, DNN_MUL, DNN_F32, row, one,
                          c); /* where dropout would rescale; part of the pattern */

    int scores = inner(d, DNN_F32, d->scores);
    cudnn_graph_matmul(g, q, k, scores);
    scores = cudnn_graph_apply(g, DNN_MUL, scores, scale);
    scores = masked(d, cudnn_graph_apply(g, DNN_SUB, scores, lse));
    int p = cudnn_graph_apply(g, DNN_EXP, scores, -1);
    transposed_matmul(d, p, d_o, io(d, DV, d->type, key));

    int dp = inner(d, DNN_F32, d->scores);
    cudnn_graph_matmul(g, d_o, v, dp);
    int ds = cudnn_graph_apply(g, DNN_MUL, cudnn_graph_apply(g, DNN_SUB, dp, c), p);
    ds = cudnn_graph_apply(g, DNN_MUL, ds, scale);
    transposed_matmul(d, ds, q, io(d, DK, d->type, key));
    draft_dq(d, ds, k);
}

static enum plim_status attention_new(struct cudnn_attention **out, struct plim_error *err)
{
    struct cudnn_attention *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a) return plim_fail(err, PLIM_NO_MEMORY, "cuDNN: no host memory for %zu bytes", sizeof *a);
    enum plim_status status = cudnn_api_open(&a->api, err);
    if (status == PLIM_OK) {
        a->version = a->api.version();
        if (a->version < OLDEST_VERSION || a->version >= 100000)
            status = plim_fail(err, PLIM_UNSUPPORTED,
                               "cuDNN %zu is not supported; install 9.6 or a later 9.x", a->version);
    }
    if (status == PLIM_OK)
        *out = a;
    else
        cudnn_attention_close(a);
    return status;
}

enum plim_status cudnn_attention_open(void *stream, struct cudnn_attention **out, struct plim_error *err)
{
    struct cudnn_attention *a;
    enum plim_status status = attention_new(&a, err);
    *out = NULL;
    if (status != PLIM_OK) return status;
    int rc = a->api.handle_create(&a->handle);
    if (!rc) rc = a->api.set_stream(a->handle, stream);
    if (rc) {
        status =
            plim_fail(err, PLIM_UNSUPPORTED, "cuDNN failed to start: %s (%d)", a->api.status_text(rc), rc);
        cudnn_attention_close(a);
        return status;
    }
    *out = a;
    return PLIM_OK;
}

void cudnn_attention_close(struct cudnn_attention *a)
{
    if (!a) return;
    for (int i = 0; i < a->plans; i++) cudnn_plan_release(&a->plan[i].plan);
    if (a->handle) a->api.handle_destroy(a->handle);
    cudnn_api_close(&a->api);
    free(a);
}

size_t cudnn_attention_version(const struct cudnn_attention *a) { return a->version; }

bool cudnn_attention_supports(const struct cudnn_attention *a, const struct attention_shape *s)
{
    if (!dtype_is_narrow(s->type)) return false;
    if (s->batch < 1 || s->time < 2 || s->kv_heads < 1 || s->heads % s->kv_heads) return false;
    if (s->head_size % 8 || s->head_size < 8 || s->head_size > 256) return false;
    if (a->version == 91000 || a->version == 91001) return false; /* 9.10.0 and 9.10.1 compute wrong values */
    return s->time % 128 == 0 || a->version >= FIRST_WITH_ANY_LENGTH;
}

/* The mask as the graph sees it. */
static int64_t window_of(const struct attention_shape *s) { return windowed(s) ? s->window : 0; }

static bool same(const struct attention_shape *a, const struct attention_shape *b)
{
    return a->batch == b->batch && a->time == b->time && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->type == b->type && a->scale == b->scale &&
           window_of(a) == window_of(b);
}

static const struct plan_entry *find(const struct cudnn_attention *a, const struct attention_shape *shape,
                                     enum attention_pass pass)
{
    for (int i = 0; i < a->plans; i++)
        if (a->plan[i].pass == pass && same(&a->plan[i].shape, shape)) return &a->plan[i];
    return NULL;
}

static size_t align(size_t bytes) { return (bytes + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN; }

/* Where the real tensors that only the backward graph has lie, behind cuDNN's own bytes. */
static void lay_out(struct plan_entry *e)
{
    const struct attention_shape *s = &e->shape;
    size_t rows = (size_t)(s->batch * s->heads * s->time), end = align(e->plan.workspace);
    e->c_sum = end;
    if (e->tensor[C_SUM] >= 0) end += align(rows * sizeof(float));
    e->dq_sum = end;
    if (e->tensor[DQ_SUM] >= 0) end += align(rows * (size_t)s->head_size * sizeof(float));
    e->workspace = end;
}

enum plim_status cudnn_attention_prepare(struct cudnn_attention *a, const struct attention_shape *shape,
                                         enum attention_pass pass, size_t *workspace, struct plim_error *err)
{
    static void (*const drafts[])(struct draft *) = {draft_forward, draft_backward};
    const struct plan_entry *known = find(a, shape, pass);
    if (known) {
        *workspace = known->workspace;
        return PLIM_OK;
    }
    if (!cudnn_attention_supports(a, shape))
        return plim_fail(err, PLIM_UNSUPPORTED, "cuDNN %zu has no attention of this shape", a->version);
    if (a->plans == MAX_PLANS)
        return plim_fail(err, PLIM_NO_MEMORY, "cuDNN: more than %d shapes of attention in one run",
                         MAX_PLANS);
    struct draft *d = malloc(sizeof *d);
    if (!d) return plim_fail(err, PLIM_NO_MEMORY, "cuDNN: no host memory for %zu bytes", sizeof *d);
    struct plan_entry *e = &a->plan[a->plans];
    *e = (struct plan_entry){.shape = *shape, .pass = pass};
    draft_begin(d, a, &e->shape);
    drafts[pass](d);
    enum plim_status status = cudnn_graph_plan(&d->g, SIZE_MAX, &e->plan, err);
    cudnn_graph_end(&d->g);
    if (status == PLIM_OK) {
        memcpy(e->tensor, d->tensor, sizeof e->tensor);
        lay_out(e);
        *workspace = e->workspace;
        a->plans++;
    }
    free(d);
    return status;
}

int64_t cudnn_attention_engine(const struct cudnn_attention *a, const struct attention_shape *shape,
                               enum attention_pass pass, bool *nondeterministic)
{
    const struct plan_entry *e = find(a, shape, pass);
    *nondeterministic = e && e->plan.nondeterministic;
    return e ? e->plan.engine : -1;
}

/* pointer[slot] for every slot of the pass, then run. */
static enum plim_status run(const struct plan_entry *e, void *const pointer[SLOTS], void *work,
                            struct plim_error *err)
{
    struct cudnn_binding bind[SLOTS];
    int count = 0;
    if (!e) return plim_fail(err, PLIM_BUG, "cuDNN attention runs a shape that was not prepared");
    for (int i = 0; i < SLOTS; i++)
        if (e->tensor[i] >= 0) bind[count++] = (struct cudnn_binding){e->tensor[i], pointer[i]};
    return cudnn_plan_run(&e->plan, bind, count, work, err);
}

enum plim_status cudnn_attention_forward(struct cudnn_attention *a, const struct attention_shape *shape,
                                         const struct attention_forward *f, void *work,
                                         struct plim_error *err)
{
    void *const pointer[SLOTS] = {
        [Q] = (void *)f->q, [K] = (void *)f->k, [V] = (void *)f->v, [O] = f->o, [LSE] = f->lse};
    return run(find(a, shape, ATTENTION_FORWARD), pointer, work, err);
}

enum plim_status cudnn_attention_backward(struct cudnn_attention *a, const struct attention_shape *shape,
                                          const struct attention_backward *b, void *work,
                                          struct plim_error *err)
{
    const struct plan_entry *e = find(a, shape, ATTENTION_BACKWARD);
    char *bytes = work;
    void *const pointer[SLOTS] = {[Q] = (void *)b->q,
                                  [K] = (void *)b->k,
                                  [V] = (void *)b->v,
                                  [O] = (void *)b->o,
                                  [LSE] = (void *)b->lse,
                                  [D_O] = (void *)b->d_o,
                                  [DQ] = b->dq,
                                  [DK] = b->dk,
                                  [DV] = b->dv,
                                  [C_SUM] = e ? bytes + e->c_sum : NULL,
                                  [DQ_SUM] = e ? bytes + e->dq_sum : NULL};
    return run(e, pointer, work, err);
}
