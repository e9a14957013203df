/* linear_q_k_neon.h - panels of Q4_K, Q5_K and Q6_K for the levels of AArch64, 256 elements of 16 lines at a time.
 *
 * One row meets the codes as they lie in memory: bytes are taken apart in registers, two or four blocks of 32 at once. Sums of
 * Q6_K, whose codes are 32 too large, begin lower by 32 times the sum of x's codes.
 *
 * More rows meet 256 elements that were unpacked into the first-level cache. Included after linear_q_sdot.h. */
#pragma once

#if defined(LINEAR_Q_SDOT)

enum { K_BLOCK = 256, K_PARTS = K_BLOCK / X8_BLOCK };

/* Codes of scales become bits of a float from this on: the byte after the lowest of 32 bits, the lowest of 16. */
#if defined(LINEAR_Q_FMLAL)
enum { LIFT_TO = 1 << 10 };
#else
enum { LIFT_TO = 1 << 15 };
#endif

VEC_FN int k_bytes(enum source from) { return from == FROM_Q4_K ? 2304 : from == FROM_Q5_K ? 2816 : 3360; }

/* ---- scales ---- */

/* d of 16 lines. */
struct k_scale {
    float16x8_t half[2];
    float32x4_t d[4], less[4]; /* less: minus what times_codes has too much */
};

VEC_FN void scale_of(const unsigned char *in, bool with_sign, struct k_scale *out)
{
    const float much = (LIFT_TO + (with_sign ? 128 : 0)); /* 9 bits at most, and d has 11 */
    for (int i = 0; i < 4; i++) {
        uint16x4_t half;
        memcpy(&half, in + 8 * i, sizeof half);
        out->d[i] = vcvt_f32_f16(vreinterpret_f16_u16(half));
        out->less[i] = vmulq_n_f32(out->d[i], -much);
    }
    for (int i = 0; i < 2; i++) memcpy(&out->half[i], in + 16 * i, 16);
}

/* 16 codes without a sign times d. They become bits of a larger float, whose product with d less what is too much is
 * rounded once: the same as that of the code. Conversions are issued less often. */
#if defined(LINEAR_Q_FMLAL)
VEC_FN void times_codes(uint8x16_t codes, const struct k_scale *s, float32x4_t *out)
{
    const uint8x16_t base = vdupq_n_u8(0x64); /* 0x6400 | code is LIFT_TO + code as f16 */
    float16x8_t low = vreinterpretq_f16_u8(vzip1q_u8(codes, base)),
                high = vreinterpretq_f16_u8(vzip2q_u8(codes, base));
    out[0] = vfmlalq_low_f16(s->less[0], low, s->half[0]);
    out[1] = vfmlalq_high_f16(s->less[1], low, s->half[0]);
    out[2] = vfmlalq_low_f16(s->less[2], high, s->half[1]);
    out[3] = vfmlalq_high_f16(s->less[3], high, s->half[1]);
}
#else
VEC_FN void times_codes(uint8x16_t codes, const struct k_scale *s, float32x4_t *out)
{
    const uint8x16_t base = vreinterpretq_u8_u32(vdupq_n_u32(0x47000000)); /* LIFT_TO */
    for (int i = 0; i < 4; i++) {
        const uint8_t n = (uint8_t)(4 * i), no = 255;
        const uint8x16_t spread = {no, n, no, no, no, n + 1, no, no, no, n + 2, no, no, no, n + 3, no, no};
        float32x4_t lifted = vreinterpretq_f32_u8(vqtbx1q_u8(base, codes, spread));
        out[i] = vfmaq_f32(s->less[i], lifted, s->d[i]);
    }
}
#endif

/* 16 codes times d; in pairs: two lines twice, then the next two. */
VEC_FN void put_scales(uint8x16_t codes, bool with_sign, const struct k_scale *s, bool pairs, float *to)
{
    float32x4_t scale[4];
    if (with_sign) codes = veorq_u8(codes, vdupq_n_u8(128));
    times_codes(codes, s, scale);
    for (int i = 0; i < 4; i++) {
        float64x2_t four = vreinterpretq_f64_f32(scale[i]);
        if (pairs) {
            vst1q_f32(to + 8 * i, vreinterpretq_f32_f64(vzip1q_f64(four, four)));
            vst1q_f32(to + 8 * i + 4, vreinterpretq_f32_f64(vzip2q_f64(four, four)));
        } else {
            vst1q_f32(to + 4 * i, scale[i]);
        }
    }
}

/* Scales and minima of eight parts; see part_of in tensor/blocks.c. */
VEC_FN void scales_and_minima(const unsigned char *in, bool pairs, float *scale, float *least)
{
    const uint8x16_t six = vdupq_n_u8(63), two = vdupq_n_u8(0x30);
    const int each = (pairs ? 2 : 1) * PANEL_LINES;
    const unsigned char *packed = in + 4 * PANEL_LINES;
    struct k_scale d, dmin;
    scale_of(in, false, &d), scale_of(in + 2 * PANEL_LINES, false, &dmin);
    for (int j = 0; j < 4; j++) {
        uint8x16_t a = vld1q_u8(packed + j * PANEL_LINES), b = vld1q_u8(packed + (j + 4) * PANEL_LINES),
                   c = vld1q_u8(packed + (j + 8) * PANEL_LINES);
        put_scales(vandq_u8(a, six), false, &d, pairs, scale + j * each);
        put_scales(vandq_u8(b, six), false, &dmin, pairs, least + j * each);
        put_scales(vsliq_n_u8(c, vshrq_n_u8(a, 6), 4), false, &d, pairs, scale + (j + 4) * each);
        put_scales(vsriq_n_u8(vandq_u8(vshrq_n_u8(b, 2), two), c, 4), false, &dmin, pairs,
                   least + (j + 4) * each);
    }
}

VEC_FN void scales_of_q6(const unsigned char *in, bool pairs, float *scale)
{
    struct k_scale d;
    scale_of(in + 3328, true, &d);
    for (int j = 0; j < 2 * K_PARTS; j++)
        put_scales(vld1q_u8(in + 3072 + j * PANEL_LINES), true, &d, pairs,
                   scale + j * (pairs ? 2 : 1) * PANEL_LINES);
}

/* ---- one row ---- */

/* Asks for a quarter of the next 256 elements, where a row reads them in several short streams, which the processor's own prefetching does
 * not follow (Q6_K: 7 GB/s without, 12 with). */
VEC_FN void ask_ahead(const unsigned char *in, enum source from, int quarter)
{
    const int lines = (k_bytes(from) / 4 + 63) / 64;
    in += k_bytes(from) + quarter * lines * 64;
    for (int i = 0; i < lines; i++) __builtin_prefetch(in + 64 * i);
}

/* A row's block of 32. */
struct x_block {
    const int8_t *codes; /* eight every `step` bytes */
    float scale, total;
};

VEC_FN float32x4_t add_part(float32x4_t y, int32x4_t sum, const float *scale, float with)
{
    return vfmaq_f32(y, sum_as_float(sum), vmulq_n_f32(vld1q_f32(scale), with));
}

VEC_FN int32x4_t sdot_lane(int32x4_t sum, uint8x16_t w, int8x8_t x, int lane)
{
    if (lane)
        SDOT(sum, vreinterpretq_s8_u8(w), x, 1);
    else
        SDOT(sum, vreinterpretq_s8_u8(w), x, 0);
    return sum;
}

/* Two parts of Q4_K or, with their fifth bits, Q5_K. */
VEC_FN void four_or_five_bits(uint8x16_t both, bool fifth, uint8x16_t high, int pair, uint8x16_t *code)
{
    const uint8x16_t five = vdupq_n_u8(31);
    if (!fifth) {
        code[0] = vandq_u8(both, vdupq_n_u8(15)), code[1] = vshrq_n_u8(both, 4);
        return;
    }
    code[0] = vandq_u8(vsliq_n_u8(both, vshlq_u8(high, vdupq_n_s8((int8_t)(-2 * pair))), 4), five);
    code[1] = vandq_u8(vsriq_n_u8(vshlq_u8(high, vdupq_n_s8((int8_t)(3 - 2 * pair))), both, 4), five);
}

/* Parts 2 * pair and 2 * pair + 1 of Q4_K or Q5_K, which share their bytes. */
VEC_FN void one_row_pair(const unsigned char *in, bool fifth, int pair, const struct x_block *x, int64_t step,
                         const float *scale, const float *least, float32x4_t *y)
{
    const unsigned char *codes = in + (fifth ? 768 : 256) + pair * CODES, *high = in + 256;
    int32x4_t sum[2][4];
    for (int i = 0; i < 8; i++) sum[i / 4][i % 4] = vdupq_n_s32(SUM_START);
    VEC_UNROLL(8)
    for (int g = 0; g < PANEL8_GROUP; g++) {
        int8x8_t first = vld1_s8(x[0].codes + g / 2 * step), second = vld1_s8(x[1].codes + g / 2 * step);
        for (int i = 0; i < 4; i++) {
            uint8x16_t code[2], bits = vdupq_n_u8(0);
            if (fifth) bits = vld1q_u8(high + 64 * g + 16 * i);
            four_or_five_bits(vld1q_u8(codes + 64 * g + 16 * i), fifth, bits, pair, code);
            sum[0][i] = sdot_lane(sum[0][i], code[0], first, g % 2);
            sum[1][i] = sdot_lane(sum[1][i], code[1], second, g % 2);
        }
    }
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 4; i++) {
            const int at = (2 * pair + p) * PANEL_LINES + 4 * i;
            y[i] = add_part(y[i], sum[p][i], scale + at, x[p].scale);
            y[i] = vfmsq_f32(y[i], vld1q_f32(least + at), vdupq_n_f32(x[p].total));
        }
}

VEC_FN void one_row_minima(const unsigned char *in, bool fifth, const struct x_block *x, int64_t step,
                           float32x4_t *y)
{
    float scale[K_PARTS * PANEL_LINES], least[K_PARTS * PANEL_LINES];
    scales_and_minima(in, false, scale, least);
    for (int pair = 0; pair < K_PARTS / 2; pair++) {
        if (fifth) ask_ahead(in, FROM_Q5_K, pair);
        one_row_pair(in, fifth, pair, x + 2 * pair, step, scale, least, y);
    }
}

/* Four codes vectors of Q6_K, of the four blocks of 32 that share their bytes. */
VEC_FN void six_bits(uint8x16_t a, uint8x16_t b, uint8x16_t high, uint8x16_t *code)
{
    const uint8x16_t six = vdupq_n_u8(63);
    uint8x16_t shifted = vshrq_n_u8(high, 2);
    code[0] = vandq_u8(vsliq_n_u8(a, high, 4), six);
    code[1] = vandq_u8(vsliq_n_u8(b, shifted, 4), six);
    code[2] = vandq_u8(vsriq_n_u8(high, a, 4), six);
    code[3] = vsriq_n_u8(shifted, b, 4);
}

/* Sums of x's 16 codes from eight 2 * part on, -32 times; own: -32 where a load of 16 bytes has codes of this row. */
VEC_FN int32x4_t start_of_q6(const int8_t *codes, int64_t step, int part)
{
    int8x8_t own = vdup_n_s8(-32);
    int32x2_t sum = vdot_s32(vdup_n_s32(0), vld1_s8(codes + 2 * part * step), own);
    sum = vdot_s32(sum, vld1_s8(codes + (2 * part + 1) * step), own);
    sum = vpadd_s32(sum, sum);
    return vaddq_s32(vcombine_s32(sum, sum), vdupq_n_s32(SUM_START));
}

VEC_FN void one_row_q6(const unsigned char *in, const struct x_block *x, int64_t step, float32x4_t *y)
{
    float scale[2 * K_PARTS * PANEL_LINES];
    int32x4_t start[2 * K_PARTS];
    scales_of_q6(in, false, scale);
    for (int j = 0; j < 2 * K_PARTS; j++) start[j] = start_of_q6(x[j / 2].codes, step, j % 2);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 4; i++) {
            if (i % 2 == 0) ask_ahead(in, FROM_Q6_K, 2 * half + i / 2);
            const unsigned char *low = in + half * 1024 + 16 * i, *high = in + 2048 + half * 512 + 16 * i;
            int32x4_t sum[4][2];
            for (int j = 0; j < 8; j++) sum[j / 2][j % 2] = start[8 * half + j];
            VEC_UNROLL(8)
            for (int g = 0; g < PANEL8_GROUP; g++) {
                uint8x16_t code[4];
                six_bits(vld1q_u8(low + 64 * g), vld1q_u8(low + 512 + 64 * g), vld1q_u8(high + 64 * g), code);
                for (int p = 0; p < 4; p++) {
                    int8x8_t eight = vld1_s8(x[4 * half + p].codes + g / 2 * step);
                    sum[p][g / 4] = sdot_lane(sum[p][g / 4], code[p], eight, g % 2);
                }
            }
            for (int j = 0; j < 8; j++)
                y[i] = add_part(y[i], sum[j / 2][j % 2], scale + (8 * half + j) * PANEL_LINES + 4 * i,
                                x[4 * half + j / 2].scale);
        }
}

VEC_FN void one_row_k(const unsigned char *in, enum source from, const struct x_block *x, int64_t step,
                      float32x4_t *y)
{
    if (from == FROM_Q6_K)
        one_row_q6(in, x, step, y);
    else
        one_row_minima(in, from == FROM_Q5_K, x, step, y);
}

/* ---- unpacking ---- */

/* Two groups of four of k of four lines; in pairs: as two lines of eight of k and the two after them. */
VEC_FN uint8x16x2_t two_groups(const unsigned char *at, bool pairs)
{
    uint8x16x2_t two = {{vld1q_u8(at), vld1q_u8(at + 64)}};
    if (!pairs) return two;
    uint32x4_t a = vreinterpretq_u32_u8(two.val[0]), b = vreinterpretq_u32_u8(two.val[1]);
    two.val[0] = vreinterpretq_u8_u32(vzip1q_u32(a, b)), two.val[1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    return two;
}

/* Codes of 256 elements of 16 lines, 8 x CODES bytes. */
VEC_FN void unpack_codes_k(const unsigned char *in, enum source from, bool pairs, int8_t *codes)
{
    const bool six = from == FROM_Q6_K;
    const unsigned char *low = in + (six                 ? 0
                                     : from == FROM_Q5_K ? 768
                                                         : 256),
                        *high = in + (six ? 2048 : 256);
    for (int i = 0; i < 16; i++) {
        const int at = i / 4 * 128 + i % 4 * 16, to = pairs ? i / 4 * 128 + i % 4 * 32 : at,
                  next = pairs ? 16 : 64;
        uint8x16x2_t h[2] = {{{vdupq_n_u8(0)}}};
        if (from != FROM_Q4_K) h[0] = two_groups(high + at, pairs);
        if (six) h[1] = two_groups(high + CODES + at, pairs);
        for (int j = 0; j < K_PARTS; j += six ? 4 : 2) { /* blocks of 32 that share bytes */
            uint8x16x2_t a = two_groups(low + j / 2 * CODES + at, pairs), b = a;
            if (six) b = two_groups(low + (j / 2 + 1) * CODES + at, pairs);
            for (int n = 0; n < 2; n++) {
                uint8x16_t code[4];
                if (six)
                    six_bits(a.val[n], b.val[n], h[j / 4].val[n], code);
                else
                    four_or_five_bits(a.val[n], from == FROM_Q5_K, h[0].val[n], j / 2, code);
                for (int p = 0; p < (six ? 4 : 2); p++)
                    vst1q_s8(codes + (j + p) * CODES + to + n * next,
                             vsubq_s8(vreinterpretq_s8_u8(code[p]), vdupq_n_s8(six ? 32 : 0)));
            }
        }
    }
}

/* A panel of k elements to scratch. */
VEC_FN void unpack_panel_k(const unsigned char *in, enum source from, int64_t k, bool pairs, void *scratch,
                           struct panel8 *out)
{
    const int parts = from == FROM_Q6_K ? 2 : 1, each = (pairs ? 2 : 1) * PANEL_LINES;
    float *scale = (float *)((char *)scratch + k * PANEL_LINES), *least = scale + k / X8_BLOCK * each;
    *out = (struct panel8){scratch, CODES, scale, parts == 1 ? least : NULL, parts, pairs};
    for (int64_t b = 0; b < k / K_BLOCK; b++, in += k_bytes(from)) {
        unpack_codes_k(in, from, pairs, (int8_t *)scratch + b * K_PARTS * CODES);
        if (parts == 2)
            scales_of_q6(in, pairs, scale + b * K_PARTS * parts * each);
        else
            scales_and_minima(in, pairs, scale + b * K_PARTS * each, least + b * K_PARTS * each);
    }
}

#define LINEAR_Q_UNPACK_K_NEON(pairs)                                                                        \
    static void unpack_q4_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)           \
    {                                                                                                        \
        unpack_panel_k(in, FROM_Q4_K, k, pairs, scratch, out);                                               \
    }                                                                                                        \
    static void unpack_q5_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)           \
    {                                                                                                        \
        unpack_panel_k(in, FROM_Q5_K, k, pairs, scratch, out);                                               \
    }                                                                                                        \
    static void unpack_q6_k(const unsigned char *in, int64_t k, void *scratch, struct panel8 *out)           \
    {                                                                                                        \
        unpack_panel_k(in, FROM_Q6_K, k, pairs, scratch, out);                                               \
    }

/* Kernels of up to PANEL8_FEW rows: few_of_k(panel, source, x, out) is the level's. */
#define LINEAR_Q_FEW_K_NEON                                                                                  \
    static void few_q4_k(const unsigned char *panel, const struct x8 *x, float *out)                         \
    {                                                                                                        \
        few_of_k(panel, FROM_Q4_K, x, out);                                                                  \
    }                                                                                                        \
    static void few_q5_k(const unsigned char *panel, const struct x8 *x, float *out)                         \
    {                                                                                                        \
        few_of_k(panel, FROM_Q5_K, x, out);                                                                  \
    }                                                                                                        \
    static void few_q6_k(const unsigned char *panel, const struct x8 *x, float *out)                         \
    {                                                                                                        \
        few_of_k(panel, FROM_Q6_K, x, out);                                                                  \
    }
#define LINEAR_Q_FEW_ALL                                                                                     \
    {                                                                                                        \
        [BLOCK_Q8_0] = few_q8_0, [BLOCK_Q4_0] = few_q4_0, [BLOCK_Q4_K] = few_q4_k, [BLOCK_Q5_K] = few_q5_k,  \
        [BLOCK_Q6_K] = few_q6_k                                                                              \
    }

#endif
