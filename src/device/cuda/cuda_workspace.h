/* cuda_workspace.h - scratch sizes of the CUDA kernels, in plain C that is part of every build.
 *
 * A plan for an absent card, made by a program without CUDA, counts the same bytes as the backend that will run it: both
 * call cuda_workspace(). The layout of each kernel's scratch is defined here too, so that sizes and offsets cannot differ.
 *
 *     struct cuda_card card = {.warpgroups = true, .cudnn = true};
 *     size_t bytes = cuda_workspace(&card, desc, op);     // size of call->work
 */
#pragma once

#include "device/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Properties of the card, other than shapes, that decide scratch sizes; known once the card is open. If unknown, use
 * false and true: these never give a size that is too small. */
struct cuda_card {
    bool warpgroups; /* our attention uses them: capability 9.0, and code compiled for it */
    bool cudnn;      /* cuDNN is installed */
};

/* desc: of in[0..], then of out[0..], as in a kernel_call. */
bool cuda_has_workspace(int kind); /* false: ops of this kind never need any */
size_t cuda_workspace(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op);

enum {
    CUDA_SUM_SLICE = 256,    /* column_sum.cu: rows per partial sum */
    CUDA_NORM_BLOCKS = 320,  /* norm.cu: maximum blocks of the backward pass; each writes a row */
    CUDA_SUMSQ_BLOCK = 8192, /* optimizer.cu: elements per partial sum */
    CUDA_EMBED_TILE = 32,    /* embed.cu: sorted positions that produce a first and a last row */
    CUDA_EMBED_DIGITS = 512, /* of the radix sort, counted for every */
    CUDA_EMBED_CHUNK = 2048, /* positions */
    CUDA_FACTOR_EDGE = 256,  /* adafactor.cu: tiles of a matrix */
    CUDA_FACTOR_FLAT = 2048, /* and pieces of a vector */
    ATTN_MMA_SIZE = 128,     /* attention.cu: maximum head size on the tensor cores */
    ATTN_GRAIN = 32,         /* queries that share a span in the backward passes */
    ATTN_PAD = 128,          /* prepared statistics are padded to a multiple of it */
    ATTN_BEYOND = 192,       /* rows of the largest tile: so far it may reach beyond queries or keys */
    ATTN_MAX_SPLITS = 64,
    ATTN_DECODE_ROWS = 64,  /* rows (queries times heads of a group) up to which keys are split */
    CUDA_ROUTE_ROWS = 256,  /* route.cu: rows counted together */
    CUDA_SAMPLE_PARTS = 32, /* sample.cu: parts of a row of logits */
    CUDA_FEW_ROWS = 8,      /* maximum rows for matmul_few.cu */
    CUDA_F8_ROWS = 16,      /* linear_f8.cu: maximum rows that it multiplies itself */
    CUDA_Q_ROWS = 128,      /* quantised_product.cu: maximum rows, except of experts */
    CUDA_Q_CHUNK = 256,     /* of k, of which each row of x */
    CUDA_Q_RECORD = 320,    /* has so many bytes (quantised_rows.cuh) */
};

/* Weights in blocks, more rows: bytes of W that are dequantised at once, at most; at least one panel is. */
#define CUDA_WIDE_BYTES ((size_t)64 << 20)
int64_t cuda_wide_lines(int64_t lines, int64_t k, enum dtype type);

/* Rows of x in 8 bits with which the product has whole tiles; experts: their number, 0: none. */
int64_t cuda_q_rows(int64_t rows, int64_t experts);
/* True if every block of threads may round x for itself, in shared memory; otherwise a kernel leaves it in scratch. */
bool cuda_q_in_shared(bool warpgroups, enum dtype type, int64_t rows, int64_t k);
/* True if a gated unit's single row is made by a kernel all the same: every block would make a long one in the time of its product. */
bool cuda_q_gates_apart(int64_t k);
/* True if a linear_q is computed by quantised_product.cu. */
bool cuda_linear_q_is_few(const struct tensor *const *desc, const struct op *op);

/* Matrix products: cuBLASLt may use this much; the sums of the bias gradient follow. */
#define CUDA_MATMUL_BYTES ((size_t)32 << 20)

/* Blocks of threads that look for the largest number, at most. */
enum { CUDA_QUANTISE8_BLOCKS = 1024 };

/* True if the weight in blocks becomes numbers as a whole before it is multiplied: for gradients, for types with a table and
 * where x may not be rounded (quantised_wide.cu). */
bool cuda_linear_q_is_wide(const struct op *op);

/* Scratch of linear_f8: cuBLASLt's own, at 0, where there are more than CUDA_F8_ROWS rows; rounded rows; their scales; sums of some lines
 * at a time, for cards whose cuBLASLt has no scales of rows. */
#define CUDA_F8_SUMS ((size_t)64 << 20)
struct cuda_f8_places {
    size_t codes, scales, sums, bytes;
    int64_t lines; /* whose sums have room */
};
struct cuda_f8_places cuda_f8_places(int64_t rows, int64_t m, int64_t k);
/* True if a linear_f8 is computed by linear_f8.cu alone. */
bool cuda_linear_f8_is_few(const struct tensor *const *desc, const struct op *op);

/* True if linear is computed by matmul_few.cu, which needs no scratch. */
bool cuda_linear_is_few(const struct tensor *const *desc, const struct op *op);

/* Offsets in bytes; parts that are not named begin at 0. */

struct cuda_embed_places {
    size_t order[2], counts, head, tail, bytes;
};
struct cuda_embed_places cuda_embed_places(int64_t count, int64_t columns);

struct cuda_factor_places {
    int64_t across, down; /* tiles of the matrix */
    size_t row_sums, col_sums, bytes;
};
/* A vector is a matrix with one column, with `matrix` false. */
struct cuda_factor_places cuda_factor_places(int64_t rows, int64_t columns, bool matrix);

struct cuda_route_places {
    size_t squares, lse, begin, load, bytes;
};
struct cuda_route_places cuda_route_places(int64_t rows, int64_t experts);

/* Products of experts: rows whose gradient is one sum. If there are more, the sums of such chunks are added
 * in turn; an fp32 gradient then has a counter per 64 rows by 256 columns in its scratch. 0: no expert can
 * have that many. The chunk length is chosen so that one expert with all rows has CUDA_EXPERT_TILES tiles. */
enum { CUDA_EXPERT_CHUNK = 4096, CUDA_EXPERT_TILES = 512, CUDA_EXPERT_ROWS = 64, CUDA_EXPERT_COLUMNS = 256 };
int64_t cuda_expert_chunk(int64_t m, int64_t k, int64_t rows);
size_t cuda_expert_turns(int64_t experts, int64_t m, int64_t k, int64_t rows);

/* True if heads of this kind use the tensor cores. */
bool cuda_attn_on_tensor_cores(enum dtype type, int64_t size);

struct cuda_attn_parts {
    int splits; /* pieces of a cache for few queries; 0: the keys are not split */
    size_t stat, bytes;
};
struct cuda_attn_parts cuda_attn_parts(const struct tensor *const *desc, const struct op *op);

/* Attention over blocks: keys per piece, and the number of pieces processed separately; 1: no split. */
enum { CUDA_PAGED_PIECE = 256, CUDA_PAGED_WARPS = 4, CUDA_PAGED_STAT = 4 };
int cuda_paged_splits(const struct tensor *const *desc);
bool cuda_paged_on_tensor_cores(const struct tensor *const *desc);

struct cuda_attn_places {
    size_t delta, range, spans, drop_lines, lines, bucket_sums, bytes;
};
struct cuda_attn_places cuda_attn_bwd_places(const struct tensor *const *desc, const struct op *op);

/* For attention's bias: elements per head's line, with room for tiles that reach beyond queries and keys, and the most tiles
 * of queries that leave partial sums of its gradient. */
static inline int cuda_attn_span(int64_t time, int64_t keys)
{
    return (int)((time > keys ? time : keys) + keys) + 2 * ATTN_BEYOND;
}
int64_t cuda_attn_bias_tiles(int64_t time, int64_t size);

/* True if attn or attn_bwd uses cuDNN on this card, provided cuDNN accepts the shape; otherwise our own
 * kernel is used. The only place that decides this: for planning, for building cuDNN's plans and for
 * running. */
bool cuda_attn_is_cudnns(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op);
/* Maximum workspace of cuDNN; a plan that needs more is not used. */
size_t cuda_attn_cudnn_bytes(const struct tensor *const *desc, const struct op *op);

#ifdef __cplusplus
}
#endif
