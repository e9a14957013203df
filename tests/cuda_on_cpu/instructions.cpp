/* instructions.cpp - instructions that move and multiply matrices of a warp or a warpgroup; attention_ptx.cuh and attention_wgmma.cuh show
 * which lane has what. */
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

/* --- warpgroups ------------------------------------------------------------------------------------------------- */

enum { THREADS = 1024, UNDER_WAY = 64 };

static struct {
    int count, group; /* the group that is open */
    wide_product list[UNDER_WAY];
} products[THREADS];

/* The 16 bytes of piece p of row r of a tile, where the descriptor begins: rows of 128 bytes, pieces exchanged by the row; behind eight
 * pieces follows the next block. */
static const char *piece_of(uint64_t tile, int r, int p)
{
    const uint32_t at = (uint32_t)(tile & 0x3fff) << 4, next = (uint32_t)(tile >> 16 & 0x3fff) << 4,
                   linear = at + p / 8 * next + r * 128 + p % 8 * 16;
    return cuda_cpu::at_address(linear ^ (linear >> 7 & 7) << 4);
}

static void check_tile(uint64_t tile, const cuda_cpu::site &where)
{
    const bool swizzled = tile >> 62 == 1, rows_of_8 = (tile >> 32 & 0x3fff) << 4 == 1024;
    if (!swizzled || !rows_of_8) cuda_cpu::stop_at("a tile of another layout than this one knows", where);
}

static float number_at(const wide_product *p, const char *piece, int i)
{
    const uint32_t x = ((const uint16_t *)piece)[i];
    return p->half ? half_of(x, 0) : __uint_as_float(x << 16);
}

/* What a warp reads of A and B is told for races, when the instruction is given and when it is done. */
static void touch_tiles(void *const args[32], unsigned)
{
    const wide_product *p = (const wide_product *)args[0];
    for (int r = 0; r < (p->turned ? 16 : 64); r++)
        for (int i = 0; i < (p->turned ? p->tiles : 2); i++)
            cuda_cpu::touch(piece_of(p->b_tile, r, i), 16, false);
    for (int r = 0; p->a_shared && r < 16; r++)
        for (int i = 0; i < 2; i++) cuda_cpu::touch(piece_of(p->a_tile, p->warp * 16 + r, i), 16, false);
}

static void multiply_tiles(void *const args[32], unsigned lanes)
{
    const wide_product *any = (const wide_product *)args[0];
    double a[16][16], b[16][128];
    touch_tiles(args, lanes);
    for (int lane = 0; lane < 32 && !any->a_shared; lane++) {
        const wide_product *p = (const wide_product *)args[lane];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++)
                a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + j] =
                    p->half ? half_of(p->a[i], j) : __uint_as_float(p->a[i] >> 16 * j << 16);
    }
    for (int r = 0; r < 16 && any->a_shared; r++)
        for (int k = 0; k < 16; k++)
            a[r][k] = number_at(any, piece_of(any->a_tile, any->warp * 16 + r, k / 8), k % 8);
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 8 * any->tiles; n++)
            b[k][n] = any->turned ? number_at(any, piece_of(any->b_tile, k, n / 8), n % 8)
                                  : number_at(any, piece_of(any->b_tile, n, k / 8), k % 8);
    for (int lane = 0; lane < 32; lane++) {
        const wide_product *p = (const wide_product *)args[lane];
        for (int tile = 0; tile < p->tiles; tile++)
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, column = tile * 8 + lane % 4 * 2 + i % 2;
                double all = p->add ? p->c[tile][i] : 0;
                for (int k = 0; k < 16; k++) all += a[row][k] * b[k][column];
                p->c[tile][i] = (float)all;
            }
    }
}

void wide_begin(const wide_product &p)
{
    auto &mine = products[cuda_cpu::current_thread()];
    if (mine.count == UNDER_WAY) cuda_cpu::stop_at("more products than there is room for", p.where);
    check_tile(p.b_tile, p.where);
    if (p.a_shared) check_tile(p.a_tile, p.where);
    wide_product &own = mine.list[mine.count++] = p;
    own.group = mine.group, own.warp = cuda_cpu::current_thread() / 32 % 4;
    cuda_cpu::together(0xffffffffu, true, touch_tiles, &own, p.where);
}

void wgmma_fence_sync_aligned(void) {}
void wgmma_commit_group_sync_aligned(void) { products[cuda_cpu::current_thread()].group++; }

void wide_wait(int left, const cuda_cpu::site &where)
{
    auto &mine = products[cuda_cpu::current_thread()];
    int kept = 0;
    for (int i = 0; i < mine.count; i++) {
        if (mine.list[i].group < mine.group - left)
            cuda_cpu::together(0xffffffffu, true, multiply_tiles, &mine.list[i], where);
        else
            mine.list[kept++] = mine.list[i];
    }
    mine.count = kept;
}

} // namespace ptx

void cuda_cpu::end_products(int thread)
{
    auto &mine = ptx::products[thread];
    if (mine.count) stop_at("a product that nobody waits for", mine.list[0].where);
    mine.group = 0;
}
