/* cuda_workspace.c - see cuda_workspace.h: a table by op kind, and the formulas behind it.
 *
 * Invariants
 *  1. Bytes depend on shapes, attributes and the card alone, never on what was timed or built: a plan is made before
 *     either.
 *  2. A kernel finds its places with the functions that are asked for its bytes here. */
#include "device/cuda/cuda_workspace.h"
#include "tape/quantised.h"
#include "tensor/f8_lines.h"

typedef size_t scratch(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op);

static int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* --- matrix products ------------------------------------------------------------------------------------- */

bool cuda_linear_is_few(const struct tensor *const *desc, const struct op *op)
{
    if (op->kind != OP_LINEAR || op->attr.lines[0].lines) return false; /* parts: several products */
    const struct tensor *x = desc[LINEAR_X], *w = desc[LINEAR_W];
    int64_t k = w->dim[op->attr.weight_kn ? 0 : 1];
    return x->type == w->type && x->type == desc[OP_MAX_IN + LINEAR_Y]->type && k > 0 &&
           tensor_count(x) / k <= CUDA_FEW_ROWS;
}

static size_t matmul(const struct cuda_card *, const struct tensor *const *desc, const struct op *op)
{
    if (cuda_linear_is_few(desc, op)) return 0;
    const struct tensor *bias = op->kind == OP_LINEAR_DW ? desc[OP_MAX_IN + LINEAR_DW_DBIAS] : NULL;
    if (!bias) return CUDA_MATMUL_BYTES;
    int64_t width = tensor_count(bias), rows = tensor_count(desc[LINEAR_DW_DY]) / width;
    return CUDA_MATMUL_BYTES + (size_t)(parts_of(rows, CUDA_SUM_SLICE) * width) * sizeof(float);
}

/* The largest number of each block. */
static size_t quantise8(const struct cuda_card *, const struct tensor *const *, const struct op *)
{
    return CUDA_QUANTISE8_BLOCKS * sizeof(uint32_t);
}

bool cuda_linear_q_is_wide(const struct op *op)
{
    bool table = false;
    for (int i = 0; i < OP_LINE_PARTS && op->attr.lines[i].lines; i++)
        table = table || block_type_of((uint32_t)op->attr.lines[i].type)->table;
    return op->kind == OP_LINEAR_Q_DX || (op->kind == OP_LINEAR_Q && (table || op->attr.keep_x));
}

/* The whole weight as numbers. */
static size_t linear_q_wide(const struct cuda_card *, const struct tensor *const *desc, const struct op *op)
{
    bool dx = op->kind == OP_LINEAR_Q_DX;
    int64_t k = quantised_columns(&op->attr, tensor_bytes(desc[dx ? LINEAR_Q_DX_W : LINEAR_Q_W]));
    size_t size = dtype_size(desc[dx ? LINEAR_Q_DX_DY : LINEAR_Q_X]->type);
    return CUDA_MATMUL_BYTES + (size_t)(quantised_lines(&op->attr) * k) * size;
}

static size_t q_rows_bytes(int64_t rows, int64_t k)
{
    return (size_t)(rows * parts_of(k, CUDA_Q_CHUNK)) * CUDA_Q_RECORD;
}

int64_t cuda_q_rows(int64_t rows, int64_t experts)
{
    int64_t tile = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
    return experts ? (rows / 8 + experts + 9) * 8 : parts_of(rows, tile) * tile;
}

int64_t cuda_wide_lines(int64_t lines, int64_t k, enum dtype type)
{
    int64_t most = (int64_t)(CUDA_WIDE_BYTES / dtype_size(type)) / k, whole = most / 128 * 128;
    most = whole ? whole : PANEL_LINES;
    return lines < most ? lines : most;
}

/* One row of 16 bits: more cost every block of threads longer than a kernel before it. Beside it there must be room for
 * weights in the shared memory that 9.0 has, or the least of 8.0 and later. */
bool cuda_q_in_shared(bool warpgroups, enum dtype type, int64_t rows, int64_t k)
{
    return rows == 1 && type != DT_F32 && (int64_t)q_rows_bytes(1, k) <= ((warpgroups ? 227 : 99) - 80) << 10;
}

bool cuda_q_gates_apart(int64_t k) { return k > 4096; }

static int64_t linear_q_rows(const struct tensor *const *desc, const struct op *op)
{
    return tensor_count(desc[OP_MAX_IN + LINEAR_Q_Y]) / quantised_lines(&op->attr);
}

bool cuda_linear_q_is_few(const struct tensor *const *desc, const struct op *op)
{
    return op->kind == OP_LINEAR_Q && !cuda_linear_q_is_wide(op) && linear_q_rows(desc, op) <= CUDA_Q_ROWS;
}

static size_t linear_q(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op)
{
    if (cuda_linear_q_is_wide(op)) return linear_q_wide(card, desc, op);
    int64_t rows = linear_q_rows(desc, op), k = rows ? tensor_count(desc[LINEAR_Q_X]) / rows : 0;
    enum dtype type = desc[LINEAR_Q_X]->type;
    if (cuda_q_in_shared(card->warpgroups, type, rows, k))
        return cuda_q_gates_apart(k) ? q_rows_bytes(1, k) : 0; /* whose row it is, is known when it runs */
    if (cuda_linear_q_is_few(desc, op)) return q_rows_bytes(cuda_q_rows(rows, 0), k);
    int64_t lines = cuda_wide_lines(quantised_lines(&op->attr), k, type);
    return CUDA_MATMUL_BYTES + (size_t)(lines * k) * dtype_size(type);
}

static size_t expert_linear_q(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    const struct tensor *x = desc[EXPERT_LINEAR_Q_X];
    return q_rows_bytes(cuda_q_rows(x->dim[0], desc[EXPERT_LINEAR_Q_ENDS]->dim[0]), x->dim[1]);
}

static size_t take(size_t *end, int64_t bytes)
{
    size_t at = *end;
    *end += (size_t)parts_of(bytes, 256) * 256;
    return at;
}

struct cuda_f8_places cuda_f8_places(int64_t rows, int64_t m, int64_t k)
{
    bool few = rows <= CUDA_F8_ROWS;
    struct cuda_f8_places p = {.bytes = few ? 0 : CUDA_MATMUL_BYTES};
    int64_t most = (int64_t)(CUDA_F8_SUMS / sizeof(float)) / (rows + 1) / 128 * 128;
    p.lines = most < 128 ? 128 : most;
    p.lines = p.lines < m ? p.lines : m;
    p.codes = take(&p.bytes, rows * k);
    p.scales = take(&p.bytes, rows * (int64_t)sizeof(float));
    p.sums = take(&p.bytes, few ? 0 : rows * p.lines * (int64_t)sizeof(float));
    return p;
}

static int64_t linear_f8_rows(const struct tensor *const *desc, const struct op *op)
{
    return tensor_count(desc[OP_MAX_IN + LINEAR_F8_Y]) / op->attr.lines[0].lines;
}

bool cuda_linear_f8_is_few(const struct tensor *const *desc, const struct op *op)
{
    return op->kind == OP_LINEAR_F8 && linear_f8_rows(desc, op) <= CUDA_F8_ROWS;
}

static size_t linear_f8(const struct cuda_card *, const struct tensor *const *desc, const struct op *op)
{
    int64_t m = op->attr.lines[0].lines;
    return cuda_f8_places(linear_f8_rows(desc, op), m, f8_columns(tensor_bytes(desc[LINEAR_F8_W]), m)).bytes;
}

/* --- embedding, norm, loss ------------------------------------------------------------------------------- */

struct cuda_embed_places cuda_embed_places(int64_t count, int64_t columns)
{
    struct cuda_embed_places p = {0};
    int64_t rows = parts_of(count, CUDA_EMBED_TILE);
    for (int i = 0; i < 2; i++) p.order[i] = take(&p.bytes, count * 4);
    p.counts = take(&p.bytes, parts_of(count, CUDA_EMBED_CHUNK) * CUDA_EMBED_DIGITS * 4);
    p.head = take(&p.bytes, rows * columns * 4);
    p.tail = take(&p.bytes, rows * columns * 4);
    return p;
}

static size_t embed_bwd(const struct cuda_card *, const struct tensor *const *desc, const struct op *op)
{
    int64_t columns = desc[OP_MAX_IN + EMBED_BWD_DW]->dim[op->attr.weight_kn ? 0 : 1];
    return cuda_embed_places(tensor_count(desc[EMBED_BWD_IDS]), columns).bytes;
}

static size_t norm_bwd(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    int64_t columns = tensor_count(desc[NORM_BWD_W]), rows = tensor_count(desc[NORM_BWD_X]) / columns;
    int64_t blocks = rows < CUDA_NORM_BLOCKS ? rows : CUDA_NORM_BLOCKS,
            sums = desc[OP_MAX_IN + NORM_BWD_DBIAS] ? 2 : 1;
    return (size_t)(blocks * sums * columns) * sizeof(float);
}

static size_t xent(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return (size_t)tensor_count(desc[XENT_TARGETS]) * sizeof(double) * (desc[OP_MAX_IN + XENT_HITS] ? 2 : 1);
}

static size_t preference(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return (size_t)desc[PREFERENCE_IN_LOGP]->dim[0] * sizeof(struct preference_rows);
}

/* Sums of rows in f32; what dy has of y for each row. */
static size_t pool(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return (size_t)tensor_count(desc[OP_MAX_IN + POOL_Y]) * sizeof(float);
}

static size_t pool_bwd(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return (size_t)tensor_count(desc[POOL_BWD_STAT]) * sizeof(float);
}

struct cuda_route_places cuda_route_places(int64_t rows, int64_t experts)
{
    struct cuda_route_places p = {0};
    int64_t blocks = parts_of(rows, CUDA_ROUTE_ROWS);
    take(&p.bytes, blocks * experts * 8);
    p.squares = take(&p.bytes, blocks * 8);
    p.lse = take(&p.bytes, rows * 4);
    p.begin = take(&p.bytes, blocks * experts * 4);
    p.load = take(&p.bytes, blocks * experts * 4);
    return p;
}

static size_t route(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return cuda_route_places(desc[OP_MAX_IN + ROUTE_WEIGHT]->dim[0],
                             tensor_count(desc[OP_MAX_IN + ROUTE_ENDS]))
        .bytes;
}

int64_t cuda_expert_chunk(int64_t m, int64_t k, int64_t rows)
{
    int64_t tiles = parts_of(m, 2 * CUDA_EXPERT_ROWS) * parts_of(k, CUDA_EXPERT_COLUMNS),
            chunk = CUDA_EXPERT_CHUNK;
    while (chunk < rows && rows / (2 * chunk) * tiles >= CUDA_EXPERT_TILES) chunk *= 2;
    return chunk;
}

size_t cuda_expert_turns(int64_t experts, int64_t m, int64_t k, int64_t rows)
{
    if (rows <= cuda_expert_chunk(m, k, rows)) return 0;
    return (size_t)(experts * parts_of(m, CUDA_EXPERT_ROWS) * parts_of(k, CUDA_EXPERT_COLUMNS)) *
           sizeof(int32_t);
}

static size_t expert_dw(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    const struct tensor *w = desc[OP_MAX_IN + EXPERT_LINEAR_DW_DW];
    int64_t rows = tensor_count(desc[EXPERT_LINEAR_DW_DY]) / w->dim[1];
    return w->type == DT_F32 ? cuda_expert_turns(w->dim[0], w->dim[1], w->dim[2], rows) : 0;
}

/* --- update ---------------------------------------------------------------------------------------------- */

static size_t sumsq(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    return (size_t)parts_of(tensor_count(desc[SUMSQ_GRAD]), CUDA_SUMSQ_BLOCK) * sizeof(double);
}

struct cuda_factor_places cuda_factor_places(int64_t rows, int64_t columns, bool matrix)
{
    struct cuda_factor_places p = {.across = parts_of(columns, CUDA_FACTOR_EDGE),
                                   .down = parts_of(rows, CUDA_FACTOR_EDGE)};
    int64_t squares = matrix ? p.across * p.down : parts_of(rows, CUDA_FACTOR_FLAT);
    p.row_sums = (size_t)squares * sizeof(double);
    p.col_sums = p.row_sums + (matrix ? (size_t)(p.across * rows) * sizeof(float) : 0);
    p.bytes = p.col_sums + (matrix ? (size_t)(p.down * columns) * sizeof(float) : 0);
    return p;
}

static size_t factor_stat(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    int64_t rows = tensor_count(desc[FACTOR_STAT_ROW]);
    return cuda_factor_places(rows, rows ? tensor_count(desc[FACTOR_STAT_G]) / rows : 0,
                              desc[FACTOR_STAT_COL] != NULL)
        .bytes;
}

/* --- attention ------------------------------------------------------------------------------------------- */

/* Limits for a split cache: most blocks, fewest keys per piece. */
enum { BLOCKS_WANTED = 512, LEAST_KEYS = 256, PARTS_MOST = 32768, PAGED_GROUP_MOST = 128 };

struct shape {
    int64_t batch, time, heads, size, keys, kv_heads;
    enum dtype type;
};

static struct shape shape_of(const struct tensor *const *desc, bool backward)
{
    const struct tensor *q = desc[backward ? ATTN_BWD_Q : ATTN_Q], *k = desc[backward ? ATTN_BWD_K : ATTN_K];
    return (struct shape){q->dim[0], q->dim[1], q->dim[2], q->dim[3], k->dim[1], k->dim[2], q->type};
}

bool cuda_attn_on_tensor_cores(enum dtype type, int64_t size)
{
    return dtype_is_narrow(type) && size % 8 == 0 && size <= ATTN_MMA_SIZE;
}

static int splits_of(const struct shape *s, int64_t rows, const struct op *op)
{
    if (!op->attr.cached || rows > ATTN_DECODE_ROWS || !cuda_attn_on_tensor_cores(s->type, s->size)) return 0;
    int64_t blocks = s->batch * s->kv_heads * parts_of(rows, 16);
    int64_t want = blocks ? BLOCKS_WANTED / blocks : 1, most = parts_of(s->keys, LEAST_KEYS);
    if (most > ATTN_MAX_SPLITS) most = ATTN_MAX_SPLITS;
    return (int)(want < 1 ? 1 : want > most ? most : want);
}

struct cuda_attn_parts cuda_attn_parts(const struct tensor *const *desc, const struct op *op)
{
    struct shape s = shape_of(desc, false);
    int64_t rows = s.time * (s.heads / s.kv_heads); /* of one key head */
    struct cuda_attn_parts p = {.splits = op_attn_is_simple(op) ? splits_of(&s, rows, op) : 0};
    size_t all = (size_t)(s.batch * s.kv_heads * p.splits * rows);
    p.stat = all * (size_t)s.size * sizeof(float);
    p.bytes = p.splits > 1 ? p.stat + all * 2 * sizeof(float) : 0;
    if (desc[ATTN_BIAS]) p.bytes = (size_t)(s.heads * cuda_attn_span(s.time, s.keys)) * sizeof(float);
    return p;
}

/* Tiles of the plain kernels: 32 rows, 16 of wide heads. Those of the tensor cores are larger. */
int64_t cuda_attn_bias_tiles(int64_t time, int64_t size) { return parts_of(time, size > 128 ? 16 : 32); }

struct cuda_attn_places cuda_attn_bwd_places(const struct tensor *const *desc, const struct op *op)
{
    struct shape s = shape_of(desc, true);
    size_t queries = (size_t)(s.batch * parts_of(s.time, ATTN_PAD) * ATTN_PAD);
    struct cuda_attn_places p = {.delta = queries * (size_t)s.heads * sizeof(float)};
    p.range = 2 * p.delta;
    p.spans = p.range + queries * 2 * sizeof(int32_t);
    p.drop_lines = p.spans + queries / ATTN_GRAIN * 4 * sizeof(int32_t);
    p.lines = p.drop_lines + (op->attr.dropout > 0 ? p.delta : 0);
    p.bytes = p.bucket_sums = p.lines;
    if (!desc[ATTN_BWD_BIAS]) return p;
    p.bucket_sums += (size_t)(s.heads * cuda_attn_span(s.time, s.keys)) * sizeof(float);
    int64_t sums = s.batch * s.heads * cuda_attn_bias_tiles(s.time, s.size) * desc[ATTN_BWD_BIAS]->dim[0];
    p.bytes = p.bucket_sums + (size_t)sums * sizeof(float);
    return p;
}

/* Short rows are over before cuDNN's kernels are worth their launch. */
#define TIME_LEAST 128

/* Measured on an H200: with shared key heads of 64 our own two passes are as fast as cuDNN's, which first makes the
 * gradients of every head; and ours repeat bit for bit. */
static bool own_is_as_fast(const struct cuda_card *card, const struct shape *s)
{
    return card->warpgroups && s->size == 64 && s->kv_heads < s->heads;
}

bool cuda_attn_is_cudnns(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op)
{
    struct shape s = shape_of(desc, op->kind == OP_ATTN_BWD);
    bool type = dtype_is_narrow(s.type);
    bool size = (s.size == 64 || s.size == 128) && s.time >= TIME_LEAST;
    bool plain = op->attr.whole_rows && !op->attr.cached && !op->attr.repeatable && op_attn_is_simple(op);
    return card->cudnn && type && size && plain && !own_is_as_fast(card, &s);
}

/* Scratch of cuDNN 9 in backward: dq summed in f32, one sum per query and, where several query heads share a key
 * head, the gradients of every head before they are summed. */
size_t cuda_attn_cudnn_bytes(const struct tensor *const *desc, const struct op *op)
{
    size_t slack = (size_t)1 << 20;
    if (op->kind == OP_ATTN) return slack;
    struct shape s = shape_of(desc, true);
    size_t rows = (size_t)(s.batch * s.heads * parts_of(s.time, 128) * 128);
    size_t bytes = rows * (size_t)s.size * 4 + rows * 4;
    if (s.kv_heads < s.heads) bytes += 2 * rows * (size_t)s.size * 2;
    return bytes + slack;
}

/* Our own kernels stand by where cuDNN's refuse. */
static size_t attn(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op)
{
    size_t own = op->kind == OP_ATTN ? cuda_attn_parts(desc, op).bytes : cuda_attn_bwd_places(desc, op).bytes;
    size_t theirs = cuda_attn_is_cudnns(card, desc, op) ? cuda_attn_cudnn_bytes(desc, op) : 0;
    return theirs > own ? theirs : own;
}

bool cuda_paged_on_tensor_cores(const struct tensor *const *desc)
{
    const struct tensor *q = desc[ATTN_PAGED_Q], *pool = desc[ATTN_PAGED_POOL];
    return cuda_attn_on_tensor_cores(q->type, q->dim[3]) && (pool->type == q->type || pool->type == DT_U8) &&
           q->dim[2] / pool->dim[2] <= PAGED_GROUP_MOST;
}

/* Tokens, or rows that may be one token, of which each has results of its pieces. */
static int64_t paged_items(const struct tensor *const *desc)
{
    int64_t tokens = desc[ATTN_PAGED_Q]->dim[0] * desc[ATTN_PAGED_Q]->dim[1],
            rows = desc[ATTN_PAGED_BLOCKS]->dim[0];
    return cuda_paged_on_tensor_cores(desc) && rows < tokens ? rows : tokens;
}

/* Few tokens over long contexts: pieces of keys are work of their own, as long as their results are few. */
int cuda_paged_splits(const struct tensor *const *desc)
{
    int64_t lines = paged_items(desc) * desc[ATTN_PAGED_POOL]->dim[2];
    int64_t pieces = parts_of(desc[ATTN_PAGED_BLOCKS]->dim[1] * KV_BLOCK, CUDA_PAGED_PIECE);
    bool worth = pieces > (cuda_paged_on_tensor_cores(desc) ? 2 : 1);
    return worth && lines < BLOCKS_WANTED && lines * pieces <= PARTS_MOST ? (int)pieces : 1;
}

static size_t attn_paged(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    const struct tensor *q = desc[ATTN_PAGED_Q];
    int splits = cuda_paged_splits(desc);
    size_t lines = (size_t)(paged_items(desc) * q->dim[2]) * (size_t)splits;
    if (splits == 1) return 0;
    return cuda_paged_on_tensor_cores(desc)
               ? lines * CUDA_PAGED_WARPS * (size_t)(q->dim[3] + CUDA_PAGED_STAT) * sizeof(float)
               : lines * (size_t)(q->dim[3] + 2) * sizeof(float);
}

/* Lines that are not the tensor cores' have one warp each. */
static size_t attn_paged8(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op)
{
    return cuda_paged_on_tensor_cores(desc) ? attn_paged(card, desc, op) : 0;
}

/* A logit and its token for each part. */
static size_t sample(const struct cuda_card *, const struct tensor *const *desc, const struct op *)
{
    const struct tensor *logits = desc[SAMPLE_LOGITS];
    return (size_t)(tensor_count(logits) / logits->dim[logits->ndim - 1]) * CUDA_SAMPLE_PARTS * 8;
}

/* --- the table ------------------------------------------------------------------------------------------- */

static scratch *const table[OP_KIND_COUNT] = {
    [OP_LINEAR] = matmul,
    [OP_LINEAR_Q] = linear_q,
    [OP_EXPERT_LINEAR_Q] = expert_linear_q,
    [OP_LINEAR_F8] = linear_f8,
    [OP_LINEAR_Q_DX] = linear_q_wide,
    [OP_DORA_NORM_Q] = linear_q_wide,
    [OP_LINEAR_DX] = matmul,
    [OP_LINEAR_DW] = matmul,
    [OP_LINEAR8] = matmul,
    [OP_LINEAR8_DW] = matmul,
    [OP_QUANTISE8] = quantise8,
    [OP_ATTN] = attn,
    [OP_ATTN_BWD] = attn,
    [OP_XENT] = xent,
    [OP_PREFERENCE] = preference,
    [OP_EMBED_BWD] = embed_bwd,
    [OP_NORM_BWD] = norm_bwd,
    [OP_SUMSQ] = sumsq,
    [OP_FACTOR_STAT] = factor_stat,
    [OP_POOL] = pool,
    [OP_POOL_BWD] = pool_bwd,
    [OP_ATTN_PAGED] = attn_paged,
    [OP_ATTN_PAGED8] = attn_paged8,
    [OP_SAMPLE] = sample,
    [OP_ROUTE] = route,
    [OP_EXPERT_LINEAR_DW] = expert_dw,
};

bool cuda_has_workspace(int kind) { return table[kind] != NULL; }

size_t cuda_workspace(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op)
{
    return table[op->kind] ? table[op->kind](card, desc, op) : 0;
}
