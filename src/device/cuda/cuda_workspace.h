/* cuda_workspace.h - scratch of the CUDA kernels, in plain C that every build has in it.
 *
 * A plan for a card that is not here, made by a program without CUDA, counts the same bytes as the backend that will
 * run it: both ask cuda_workspace(). Where a kernel has what in its scratch is said here as well, so that sizes and
 * places cannot part.
 *
 *     struct cuda_card card = {.warpgroups = true, .cudnn = true};
 *     size_t bytes = cuda_workspace(&card, desc, op);     // what call->work must have
 */
#ifndef PLIM_DEVICE_CUDA_CUDA_WORKSPACE_H
#define PLIM_DEVICE_CUDA_CUDA_WORKSPACE_H

#include "device/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Properties of the card, other than shapes, that decide scratch sizes; known once the card is open. If unknown, use
 * false and true: these never give a size that is too small. */
struct cuda_card {
    bool warpgroups; /* our attention multiplies by them: capability 9.0, and code that was made for it */
    bool cudnn;      /* it is there */
};

/* desc: of in[0..], then of out[0..], as in a kernel_call. */
bool cuda_has_workspace(int kind); /* false: an op of this kind never has any */
size_t cuda_workspace(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op);

enum {
    CUDA_SUM_SLICE = 256,    /* column_sum.cu: rows that leave one row of partial sums */
    CUDA_NORM_BLOCKS = 320,  /* norm.cu: blocks of the backward pass at most; each leaves a row */
    CUDA_SUMSQ_BLOCK = 8192, /* optimizer.cu: elements that leave one sum */
    CUDA_EMBED_TILE = 32,    /* embed.cu: sorted positions that leave a first and a last row */
    CUDA_EMBED_DIGITS = 512, /* of the radix sort, counted for every */
    CUDA_EMBED_CHUNK = 2048, /* positions */
    CUDA_FACTOR_EDGE = 256,  /* adafactor.cu: tiles of a matrix */
    CUDA_FACTOR_FLAT = 2048, /* and pieces of a vector */
    ATTN_MMA_SIZE = 128,     /* attention.cu: of a head on the tensor cores */
    ATTN_GRAIN = 32,         /* queries that share a span in the backward passes */
    ATTN_PAD = 128,          /* prepared statistics are padded to a multiple of it */
    ATTN_MAX_SPLITS = 64,
    ATTN_DECODE_ROWS = 64,  /* rows (queries times heads of a group) up to which keys are split */
    CUDA_ROUTE_ROWS = 256,  /* route.cu: rows that are counted together */
    CUDA_SAMPLE_PARTS = 32, /* sample.cu: of a row of logits */
    CUDA_FEW_ROWS = 8,      /* rows up to which linear is matmul_few.cu's */
    CUDA_WIDE_LINES = 2048, /* quantised.cu: lines in blocks that are made into numbers at once */
};

/* Matrix products: cuBLASLt may take this much, the bias gradient's sums come after it. */
#define CUDA_MATMUL_BYTES ((size_t)32 << 20)

/* Whether linear is matmul_few.cu's, which needs no scratch. */
bool cuda_linear_is_few(const struct tensor *const *desc, const struct op *op);

/* Places are offsets in bytes; what is not named begins at 0. */

struct cuda_embed_places {
    size_t order[2], counts, head, tail, bytes;
};
struct cuda_embed_places cuda_embed_places(int64_t count, int64_t columns);

struct cuda_factor_places {
    int64_t across, down; /* tiles of the matrix */
    size_t row_sums, col_sums, bytes;
};
/* A vector is a matrix of one column whose `matrix` is false. */
struct cuda_factor_places cuda_factor_places(int64_t rows, int64_t columns, bool matrix);

struct cuda_route_places {
    size_t squares, lse, begin, load, bytes;
};
struct cuda_route_places cuda_route_places(int64_t rows, int64_t experts);

/* Products of experts: rows of one whose gradient is one sum. Where there are more, the sums of such chunks are added in turn:
 * an fp32 gradient has a count for every 64 rows by 256 columns in its scratch; 0: no expert can have as many. Chunks are
 * as long as leaves all rows on one expert CUDA_EXPERT_TILES tiles. */
enum { CUDA_EXPERT_CHUNK = 4096, CUDA_EXPERT_TILES = 512, CUDA_EXPERT_ROWS = 64, CUDA_EXPERT_COLUMNS = 256 };
int64_t cuda_expert_chunk(int64_t m, int64_t k, int64_t rows);
size_t cuda_expert_turns(int64_t experts, int64_t m, int64_t k, int64_t rows);

/* Whether heads of this kind are multiplied on the tensor cores. */
bool cuda_attn_on_tensor_cores(enum dtype type, int64_t size);

struct cuda_attn_parts {
    int splits; /* pieces of a cache for few queries; 0: the keys are not split */
    size_t stat, bytes;
};
struct cuda_attn_parts cuda_attn_parts(const struct tensor *const *desc, const struct op *op);

/* Attention over blocks: keys of a piece, and pieces that are work of their own; 1: none are. */
enum { CUDA_PAGED_PIECE = 256, CUDA_PAGED_WARPS = 4, CUDA_PAGED_STAT = 4 };
int cuda_paged_splits(const struct tensor *const *desc);
bool cuda_paged_on_tensor_cores(const struct tensor *const *desc);

struct cuda_attn_places {
    size_t delta, range, spans, drop_lines, lines, bucket_sums, bytes;
};
struct cuda_attn_places cuda_attn_bwd_places(const struct tensor *const *desc, const struct op *op);

/* For attention's bias: elements per head's line, and tiles of queries that leave partial sums of its gradient. */
static inline int cuda_attn_span(int64_t time, int64_t keys)
{
    return (int)((time > keys ? time : keys) + keys);
}
int64_t cuda_attn_bias_tiles(int64_t time, int64_t size);

/* Whether attn or attn_bwd is cuDNN's on this card, if cuDNN agrees to the shape; our own otherwise. The one place where
 * that is decided: for planning, for building cuDNN's plans and for running. */
bool cuda_attn_is_cudnns(const struct cuda_card *card, const struct tensor *const *desc, const struct op *op);
/* Then cuDNN may take this much; a plan of its that wants more is not used. */
size_t cuda_attn_cudnn_bytes(const struct tensor *const *desc, const struct op *op);

#ifdef __cplusplus
}
#endif

#endif
