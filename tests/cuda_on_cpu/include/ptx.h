/* ptx.h - the machine instructions that src/device/cuda writes as assembly, each as a function of its operands in PTX's order.
 *
 * What is approximate on a card is exact here, and sums of a tile are rounded once. */
#pragma once

namespace ptx
{

/* --- registers and numbers --------------------------------------------------------------------------------- */

#define sreg_tid_x   ((int)threadIdx.x)
#define sreg_ctaid_x ((int)blockIdx.x)
static inline void mov_u32(int &d, int s) { d = s; }

static inline float without_subnormals(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline void ex2_approx_ftz_f32(float &d, float x)
{
    d = without_subnormals(exp2f(without_subnormals(x)));
}
static inline void rcp_approx_ftz_f32(float &d, float x)
{
    d = without_subnormals(1 / without_subnormals(x));
}
static inline void rsqrt_approx_ftz_f32(float &d, float x) { d = rsqrtf(without_subnormals(x)); }

/* The first operand is the upper half. */
static inline void cvt_rn_bf16x2_f32(uint32_t &d, float high, float low)
{
    d = (uint32_t)f32_to_bf16(high) << 16 | f32_to_bf16(low);
}
static inline void cvt_rn_f16x2_f32(uint32_t &d, float high, float low)
{
    d = (uint32_t)f32_to_f16(high) << 16 | f32_to_f16(low);
}
static inline void cvt_f32_f16(float &d, uint16_t x) { d = f16_to_f32(x); }
static inline void cvt_rn_f16x2_e4m3x2(uint32_t &d, uint16_t x)
{
    d = (uint32_t)f32_to_f16(e4m3_to_f32((uint8_t)(x >> 8))) << 16 | f32_to_f16(e4m3_to_f32((uint8_t)x));
}
static inline float half_of(uint32_t x, int i) { return f16_to_f32((uint16_t)(x >> 16 * i)); }
static inline void mul_rn_f16x2(uint32_t &d, uint32_t a, uint32_t b)
{
    cvt_rn_f16x2_f32(d, half_of(a, 1) * half_of(b, 1), half_of(a, 0) * half_of(b, 0));
}
static inline void sub_rn_f16x2(uint32_t &d, uint32_t a, uint32_t b)
{
    cvt_rn_f16x2_f32(d, half_of(a, 1) - half_of(b, 1), half_of(a, 0) - half_of(b, 0));
}

/* a and b, limited to 8 bits, below the lower half of c: a is the second byte. */
static inline void cvt_pack_sat_s8_s32_b32(uint32_t &d, int a, int b, uint32_t c)
{
    uint32_t high = (uint8_t)max(-128, min(a, 127)), low = (uint8_t)max(-128, min(b, 127));
    d = c << 16 | high << 8 | low;
}

/* --- memory -------------------------------------------------------------------------------------------------- */

void must_be_aligned(const void *at, size_t bytes, const cuda_cpu::site &where);

static inline void ld_global_L1_no_allocate_L2_128B_v4_u32(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,
                                                           const void *from, HERE_PARAMETERS)
{
    must_be_aligned(from, 16, HERE("ld.global.v4"));
    const uint32_t *at = (const uint32_t *)from;
    a = at[0], b = at[1], c = at[2], d = at[3];
}

/* Copies of a thread are done when it waits for their group, and shared memory holds no numbers until then. */
void copy_begin(uint32_t to, const void *from, int bytes, int have, const cuda_cpu::site &where);
void cp_async_commit_group(void);
void cp_async_wait_group(int left);
static inline void cp_async_cg_shared_global(uint32_t to, const void *from, int bytes, int have,
                                             HERE_PARAMETERS)
{
    copy_begin(to, from, bytes, have, HERE("cp.async"));
}

/* Barriers that count arrivals and bytes. */
void mbarrier_init_shared_cta_b64(uint32_t at, int count);
void mbarrier_expect(uint32_t at, int bytes, const cuda_cpu::site &where);
void mbarrier_wait(uint32_t at, uint32_t parity, const cuda_cpu::site &where);
void bulk_begin(uint32_t to, const void *from, int bytes, uint32_t barrier, const cuda_cpu::site &where);
static inline void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t at, int bytes, HERE_PARAMETERS)
{
    mbarrier_expect(at, bytes, HERE("mbarrier.arrive.expect_tx"));
}
void mbarrier_arrive(uint32_t at, const cuda_cpu::site &where);
static inline void mbarrier_arrive_shared_cta_b64(uint32_t at, HERE_PARAMETERS)
{
    mbarrier_arrive(at, HERE("mbarrier.arrive"));
}
static inline void mbarrier_wait_parity(uint32_t at, uint32_t parity, HERE_PARAMETERS)
{
    mbarrier_wait(at, parity, HERE("mbarrier.try_wait"));
}
static inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to,
                                                                                  const void *from, int bytes,
                                                                                  uint32_t barrier,
                                                                                  HERE_PARAMETERS)
{
    bulk_begin(to, from, bytes, barrier, HERE("cp.async.bulk"));
}
static inline void fence_mbarrier_init_release_cluster(void) {}

/* Kernels follow each other, so nothing is waited for. */
static inline void griddepcontrol_launch_dependents(void) {}
static inline void griddepcontrol_wait(void) {}

static inline void bar_sync(int number, int threads, HERE_PARAMETERS)
{
    cuda_cpu::barrier(number, threads, false, HERE("bar.sync"));
}

static inline void bar_arrive(int number, int threads, HERE_PARAMETERS)
{
    cuda_cpu::arrive(number, threads, HERE("bar.arrive"));
}

/* Threads have all registers they want. */
static inline void setmaxnreg_inc_sync_aligned_u32(int) {}
static inline void setmaxnreg_dec_sync_aligned_u32(int) {}

static inline void fence_proxy_async_shared_cta(void) {}

/* --- matrices of a warp ---------------------------------------------------------------------------------------- */

/* A lane's part of four 8x8 matrices: the row that it names, and what it gets. */
struct matrices {
    const char *row;
    uint32_t r[4];
    const cuda_cpu::site *where;
};
void load_matrices(void *const args[32], unsigned lanes);
void load_matrices_turned(void *const args[32], unsigned lanes);

static inline void load_four(bool turned, uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t row,
                             const cuda_cpu::site &where)
{
    matrices m = {cuda_cpu::at_address(row), {}, &where};
    cuda_cpu::together(0xffffffffu, true, turned ? load_matrices_turned : load_matrices, &m, where);
    a = m.r[0], b = m.r[1], c = m.r[2], d = m.r[3];
}
static inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                            uint32_t &d, uint32_t row, HERE_PARAMETERS)
{
    load_four(false, a, b, c, d, row, HERE("ldmatrix"));
}
static inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &a, uint32_t &b, uint32_t &c,
                                                                  uint32_t &d, uint32_t row, HERE_PARAMETERS)
{
    load_four(true, a, b, c, d, row, HERE("ldmatrix.trans"));
}

/* Two neighbours of a row of an 8x8 matrix in registers, and two of a column. */
struct turned {
    uint32_t x, y;
};
void turn_matrix(void *const args[32], unsigned lanes);

static inline void movmatrix_sync_aligned_m8n8_trans_b16(uint32_t &y, uint32_t x, HERE_PARAMETERS)
{
    turned m = {x, 0};
    cuda_cpu::together(0xffffffffu, true, turn_matrix, &m, HERE("movmatrix"));
    y = m.y;
}

/* A lane's part of D[16,8] = A B + C; words of A and B, of which m16n8k16 has four and two (of s8 two and one). */
template <class T> struct product {
    uint32_t a[4], b[2];
    T c[4];
};
void multiply_bf16(void *const args[32], unsigned lanes);
void multiply_f16(void *const args[32], unsigned lanes);
void multiply_s8_16(void *const args[32], unsigned lanes);
void multiply_s8_32(void *const args[32], unsigned lanes);

template <class T>
static inline void multiply(void (*how)(void *const args[32], unsigned), product<T> &p, T &d0, T &d1, T &d2,
                            T &d3, const cuda_cpu::site &where)
{
    cuda_cpu::together(0xffffffffu, true, how, &p, where);
    d0 = p.c[0], d1 = p.c[1], d2 = p.c[2], d3 = p.c[3];
}

#define PRODUCT_OF_FOUR(name, T, how)                                                                        \
    static inline void name(T &d0, T &d1, T &d2, T &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,  \
                            uint32_t b0, uint32_t b1, T c0, T c1, T c2, T c3, HERE_PARAMETERS)               \
    {                                                                                                        \
        product<T> p = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};                                       \
        multiply(how, p, d0, d1, d2, d3, HERE("mma.sync"));                                                  \
    }
PRODUCT_OF_FOUR(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, float, multiply_bf16)
PRODUCT_OF_FOUR(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, float, multiply_f16)
PRODUCT_OF_FOUR(mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32, int, multiply_s8_32)
#undef PRODUCT_OF_FOUR

static inline void mma_sync_aligned_m16n8k16_row_col_s32_s8_s8_s32(int &d0, int &d1, int &d2, int &d3,
                                                                   uint32_t a0, uint32_t a1, uint32_t b,
                                                                   int c0, int c1, int c2, int c3,
                                                                   HERE_PARAMETERS)
{
    product<int> p = {{a0, a1, 0, 0}, {b, 0}, {c0, c1, c2, c3}};
    multiply(multiply_s8_16, p, d0, d1, d2, d3, HERE("mma.sync"));
}

/* --- matrices of a warpgroup ------------------------------------------------------------------------------------ */

/* A lane's part of C[64,8 tiles] (+)= A B, k = 16, which is computed when its group is waited for, and not before. A: a warp's 16 rows in registers, or
 * a tile in shared memory. */
struct wide_product {
    float (*c)[4];
    uint32_t a[4];
    uint64_t a_tile, b_tile;
    bool half, turned, a_shared, add;
    int tiles, group, warp;
    cuda_cpu::site where;
};
void wide_begin(const wide_product &p);
void wgmma_fence_sync_aligned(void);
void wgmma_commit_group_sync_aligned(void);
void wide_wait(int left, const cuda_cpu::site &where);
static inline void wgmma_wait_group_sync_aligned(int left, HERE_PARAMETERS)
{
    wide_wait(left, HERE("wgmma.wait_group"));
}
static inline void wgmma_m64n64k16(float (*c)[4], const char *kind, const char *turned, uint32_t a0,
                                   uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int add,
                                   HERE_PARAMETERS)
{
    wide_begin(
        {c, {a0, a1, a2, a3}, 0, b, *kind == 'f', *turned == '1', false, add != 0, 8, 0, 0, HERE("wgmma")});
}
static inline void wgmma_m64n128k16(float (*c)[4], const char *kind, uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint64_t b, int add, HERE_PARAMETERS)
{
    wide_begin({c, {a0, a1, a2, a3}, 0, b, *kind == 'f', true, false, add != 0, 16, 0, 0, HERE("wgmma")});
}
static inline void wgmma_m64n64k16_shared(float (*c)[4], const char *kind, const char *turned, uint64_t a,
                                          uint64_t b, int add, HERE_PARAMETERS)
{
    wide_begin({c, {}, a, b, *kind == 'f', *turned == '1', true, add != 0, 8, 0, 0, HERE("wgmma")});
}

} // namespace ptx
