/* instructions.cpp - instructions that move and multiply matrices of a warp; attention_ptx.cuh shows which lane has what. */
#include "cuda_runtime.h"
#include "inside.h"

namespace ptx
{

static void load(void *const args[32], bool turned)
{
    for (int j = 0; j < 4; j++) {
        uint16_t m[8][8];
        for (int row = 0; row < 8; row++) {
            const matrices *names = (const matrices *)args[8 * j + row];
            must_be_aligned(names->row, 16, *names->where);
            cuda_cpu::touch(names->row, 16, false);
            memcpy(m[row], names->row, 16);
        }
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, c = lane % 4 * 2;
            ((matrices *)args[lane])->r[j] =
                turned ? m[c][g] | (uint32_t)m[c + 1][g] << 16 : m[g][c] | (uint32_t)m[g][c + 1] << 16;
        }
    }
}

void load_matrices(void *const args[32], unsigned) { load(args, false); }
void load_matrices_turned(void *const args[32], unsigned) { load(args, true); }

void turn_matrix(void *const args[32], unsigned)
{
    auto element = [&](int row, int column) {
        return ((const turned *)args[row * 4 + column / 2])->x >> 16 * (column % 2) & 0xffff;
    };
    for (int lane = 0; lane < 32; lane++) {
        int column = lane / 4, row = 2 * (lane % 4);
        ((turned *)args[lane])->y = element(row, column) | element(row + 1, column) << 16;
    }
}

/* Numbers of a word, and the arithmetic of their sums. */
struct of_bf16 {
    enum { PER_WORD = 2 };
    typedef float sum;
    typedef double wide;
    static float number(uint32_t w, int i) { return __uint_as_float(w >> 16 * i << 16); }
};
struct of_f16 {
    enum { PER_WORD = 2 };
    typedef float sum;
    typedef double wide;
    static float number(uint32_t w, int i) { return half_of(w, i); }
};
struct of_s8 {
    enum { PER_WORD = 4 };
    typedef int sum;
    typedef int wide;
    static int number(uint32_t w, int i) { return (int8_t)(w >> 8 * i); }
};

/* K numbers of a row, or half as many: word i of a lane has those from 4 q PER_WORD / 4 on of half i. */
template <class type, int HALVES> static void multiply(void *const args[32])
{
    typedef typename type::sum sum;
    enum { N = type::PER_WORD, HALF = 4 * N, K = HALVES * HALF };
    typename type::wide a[16][K], b[8][K];
    for (int lane = 0; lane < 32; lane++) {
        const product<sum> *p = (const product<sum> *)args[lane];
        int g = lane / 4, q = lane % 4 * N;
        for (int h = 0; h < HALVES; h++)
            for (int i = 0; i < N; i++) {
                a[g][h * HALF + q + i] = type::number(p->a[2 * h], i);
                a[g + 8][h * HALF + q + i] = type::number(p->a[2 * h + 1], i);
                b[g][h * HALF + q + i] = type::number(p->b[h], i);
            }
    }
    for (int lane = 0; lane < 32; lane++) {
        product<sum> *p = (product<sum> *)args[lane];
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            typename type::wide all = p->c[i];
            for (int k = 0; k < K; k++) all += a[row][k] * b[column][k];
            p->c[i] = (sum)all;
        }
    }
}

void multiply_bf16(void *const args[32], unsigned) { multiply<of_bf16, 2>(args); }
void multiply_f16(void *const args[32], unsigned) { multiply<of_f16, 2>(args); }
void multiply_s8_16(void *const args[32], unsigned) { multiply<of_s8, 1>(args); }
void multiply_s8_32(void *const args[32], unsigned) { multiply<of_s8, 2>(args); }

} // namespace ptx
