/* quantised_wide.cu - the whole weight in blocks as numbers in scratch, then linear, linear_dx or dora_norm with it.
 *
 * Types with a table (tensor/blocks_4bit.h) are widened here, the others by quantised.cu. Codes lie as units of [16 lines][4 bytes]: a
 * thread takes its line's bytes of four units, which are 32 neighbouring elements, low halves of all bytes first. */
#include "device/cuda/quantised.h"
#include "device/cuda/quantised_wide.h"
#include "device/cuda/vec.cuh"

extern "C" {
#include "tape/quantised.h"
#include "tensor/blocks_4bit.h"
}

namespace
{

enum {
    LINES = PANEL_LINES,
    SLICES = 16,
    THREADS = LINES * SLICES,
    HALF = BLOCK4_PART / 2,
    UNITS = 4 /* of a half */,
    PIECES = 4
};

struct numbers {
    float element[16];
};

ON_GPU float float_at(const unsigned char *p) { return *reinterpret_cast<const float *>(p); }

/* Magnitude of a part of a line's block. map: of codes, with double quantisation. */
template <bool DOUBLE>
ON_GPU float magnitude_of(const float *map, const unsigned char *group, int line, int part)
{
    float first = float_at(group + 4 * line);
    if (!DOUBLE) return first;
    unsigned char code = group[8 * LINES + 4 * line + part];
    return __fadd_rn(__fmul_rn(map[code], float_at(group + 4 * (LINES + line))), first);
}

/* Blocks of threads have a panel, or PIECES of them share its columns: out[lines][k]. Tables are in shared memory, where 16 numbers lie in 16 banks; among a
 * kernel's parameters lanes would read them one after the other. */
template <bool DOUBLE, class T>
__global__ void __launch_bounds__(THREADS)
    widen_table(const numbers t, const unsigned char *w, int64_t lines, int64_t k, T *out)
{
    constexpr int PARTS = DOUBLE ? 4 : 1, HEAD = DOUBLE ? 12 : 4,
                  BYTES = DOUBLE ? BLOCK4_DQ_BYTES : BLOCK4_BYTES;
    static_assert(!DOUBLE || THREADS == 256, "a thread has a code");
    __shared__ float element[16], map[DOUBLE ? 256 : 1];
    int line = threadIdx.x % LINES, slice = blockIdx.y * SLICES + threadIdx.x / LINES;
    int64_t at = (int64_t)blockIdx.x * LINES + line;
    const unsigned char *panel = w + blockIdx.x * (k / (PARTS * BLOCK4_PART)) * (LINES * BYTES);
    if (DOUBLE) map[threadIdx.x] = block4_map((int)threadIdx.x);
    if (threadIdx.x < 16) element[threadIdx.x] = t.element[threadIdx.x];
    __syncthreads();
    for (int64_t i = slice; i < k / HALF && at < lines; i += gridDim.y * SLICES) {
        int64_t whole = i / 2;
        int part = (int)(whole % PARTS);
        const unsigned char *group = panel + whole / PARTS * (LINES * BYTES);
        const unsigned char *codes = group + (HEAD + part * 32 + (int)(i % 2) * 16) * LINES + line * 4;
        float size = magnitude_of<DOUBLE>(map, group, line, part), v[4][8];
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            unsigned word = *reinterpret_cast<const unsigned *>(codes + unit * 4 * LINES);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int e = unit * 4 + n;
                v[e / 8][e % 8] = element[word >> 8 * n & 15] * size;
                v[2 + e / 8][e % 8] = element[word >> (8 * n + 4) & 15] * size;
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) save(out + at * k + i * HALF + n * 8, v[n]);
    }
}

/* Lines of one part of the weight. */
struct part_call {
    const struct cuda_queue *queue;
    int type;
    const unsigned char *w;
    int64_t lines, k;
    enum dtype to;
    void *out;
};

int widen_table_part(const part_call &p)
{
    const struct block_type *type = block_type_of((uint32_t)p.type);
    numbers t;
    for (int i = 0; i < 16; i++) t.element[i] = type->table[i];
    dim3 panels((unsigned)panels_count(p.lines), PIECES);
    return with_type(p.to, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return type->elements == BLOCK4_PART ? start(p.queue, widen_table<false, T>, panels, THREADS, 0, t,
                                                     p.w, p.lines, p.k, (T *)p.out)
                                             : start(p.queue, widen_table<true, T>, panels, THREADS, 0, t,
                                                     p.w, p.lines, p.k, (T *)p.out);
    });
}

int widen_part(const part_call &p)
{
    if (block_type_of((uint32_t)p.type)->table) return widen_table_part(p);
    struct cuda_q_part part = {};
    part.w = p.w, part.type = p.type, part.lines = p.lines;
    return cuda_quantised_widen(p.queue, &part, 0, p.lines, p.k, p.to, p.out);
}

/* Makes the weight in slot `slot` [m,k] numbers behind the product's own scratch, and calls `product` of that kind with it. */
int multiply(const struct cuda_queue *queue, const struct kernel_call *call, int slot, int kind,
             cuda_launch *product)
{
    const struct op_attr *attr = &call->op->attr;
    const unsigned char *bytes = (const unsigned char *)call->in[slot];
    int64_t k = quantised_columns(attr, tensor_bytes(call->desc[slot]));
    enum dtype type = call->desc[0]->type;
    char *numbers = (char *)call->work + CUDA_MATMUL_BYTES;
    struct quantised_part part;
    int code = 0;
    for (int i = 0; quantised_part(attr, k, i, &part) && !code; i++)
        code = widen_part({queue, attr->lines[i].type, bytes + part.offset, part.lines, k, type,
                           numbers + part.first * k * (int64_t)dtype_size(type)});
    struct kernel_call wide = *call;
    struct tensor w = *call->desc[slot];
    struct op op = *call->op;
    w.type = type, w.ndim = 2, w.dim[0] = quantised_lines(attr), w.dim[1] = k;
    op.kind = kind, op.attr.weight_kn = false;
    for (int i = 0; i < OP_LINE_PARTS; i++) op.attr.lines[i] = {}; /* a weight of numbers has no formats */
    wide.op = &op, wide.desc[slot] = &w, wide.in[slot] = numbers;
    return code ? code : product(queue, &wide);
}

} // namespace

static_assert((int)LINEAR_Q_W == (int)LINEAR_W && (int)LINEAR_Q_DX_W == (int)LINEAR_DX_W &&
                  (int)DORA_NORM_Q_W == (int)DORA_NORM_W && (int)DORA_NORM_Q_W == (int)LINEAR_Q_W,
              "slots are those of the op with numbers");

extern "C" int cuda_linear_q_wide(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return multiply(queue, call, LINEAR_Q_W, OP_LINEAR, cuda_linear);
}

extern "C" int cuda_linear_q_dx(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return multiply(queue, call, LINEAR_Q_DX_W, OP_LINEAR_DX, cuda_linear_dx);
}

extern "C" int cuda_dora_norm_q(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return multiply(queue, call, DORA_NORM_Q_W, OP_DORA_NORM, cuda_dora_norm);
}
