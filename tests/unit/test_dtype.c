/* run-tests: not=tsan */
/* Element types: every half and every bf16 there is, rounding at and around every midpoint, one rounding from
 * fp64, the block converter against the scalar functions, and the split master weight bit for bit. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "tensor/dtype.h"
#include "tensor/stochastic.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* What a half means, from its definition. */
static double half_value(uint32_t h)
{
    int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
}

static bool half_is_nan(uint32_t h) { return (h & 0x7fff) > 0x7c00; }

static void test_every_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (half_is_nan(h)) {
            assert_true(isnan(f));
            assert_true(half_is_nan(f32_to_f16(f)));
            continue;
        }
        if ((h & 0x7fff) == 0x7c00) {
            assert_true(isinf(f) && (signbit(f) != 0) == (h >> 15 != 0));
        } else {
            assert_true((double)f == half_value(h) && (signbit(f) != 0) == (h >> 15 != 0));
        }
        assert_int_equal(f32_to_f16(f), h);
    }
}

/* Between neighbours: below the middle, the middle (to even), above the middle. The upper neighbour of 0x7bff
 * would be 65536: from the middle on it is infinity. */
static void test_half_midpoints(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = half_value(h), high = h == 0x7bff ? 65536.0 : half_value(h + 1);
        float middle = (float)((low + high) / 2);
        assert_true((double)middle == (low + high) / 2);
        uint32_t even = h & 1 ? h + 1 : h;
        for (uint32_t sign = 0; sign < 2; sign++) {
            float m = sign ? -middle : middle;
            assert_int_equal(f32_to_f16(m), sign << 15 | even);
            assert_int_equal(f32_to_f16(float_of(bits_of(m) - 1)), sign << 15 | h);
            assert_int_equal(f32_to_f16(float_of(bits_of(m) + 1)), sign << 15 | (h + 1));
        }
    }
    assert_int_equal(f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(f32_to_f16(1e-30f), 0);
}

static void test_every_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        if ((h & 0x7fff) > 0x7f80) {
            assert_true(isnan(f) && isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(f32_to_bf16(f), h);
        if ((h & 0x7fff) == 0x7f80) continue;
        uint32_t bits = h << 16;
        assert_int_equal(f32_to_bf16(float_of(bits | 0x7fff)), h);
        assert_int_equal(f32_to_bf16(float_of(bits | 0x8000)), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_bf16(float_of(bits | 0x8001)), h + 1);
    }
}

static const enum dtype floats[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
enum { FLOATS = 4, N = 1037 };

static double scalar_get(const void *at, enum dtype type, int64_t i)
{
    const uint16_t *half = at;
    if (type == DT_BF16) return (double)bf16_to_f32(half[i]);
    if (type == DT_F16) return (double)f16_to_f32(half[i]);
    return type == DT_F32 ? (double)((const float *)at)[i] : ((const double *)at)[i];
}

/* All pairs, odd lengths, values of many sizes: reading the result back gives the source rounded once. */
static void test_convert(void **state)
{
    (void)state;
    static double wide[N];
    static uint64_t src[N], dst[N], again[N];
    uint64_t seed = 11;
    for (int i = 0; i < N; i++)
        wide[i] = ldexp((double)(int32_t)next_random(&seed), (int)(next_random(&seed) % 60) - 60);
    for (int s = 0; s < FLOATS; s++) {
        dtype_convert(src, floats[s], wide, DT_F64, N);
        for (int d = 0; d < FLOATS; d++) {
            enum dtype from = floats[s], to = floats[d];
            dtype_convert(dst, to, src, from, N);
            for (int i = 0; i < N; i++) {
                double x = scalar_get(src, from, i), y = scalar_get(dst, to, i);
                if (to == DT_F64) assert_true(x == y);
                if (to == DT_F32) assert_true((float)x == (float)y);
                if (to == DT_BF16 && from != DT_F64) {
                    assert_int_equal(((uint16_t *)dst)[i], f32_to_bf16((float)x));
                }
                if (to == DT_F16 && from != DT_F64)
                    assert_int_equal(((uint16_t *)dst)[i], f32_to_f16((float)x));
            }
            for (int n = 0; n < 40; n++) {
                memset(again, 0x5a, sizeof again);
                dtype_convert(again, to, src, from, n);
                assert_int_equal(memcmp(again, dst, (size_t)n * dtype_size(to)), 0);
                assert_int_equal(((unsigned char *)again)[(size_t)n * dtype_size(to)], 0x5a);
            }
        }
    }
}

/* The block converter, which may use the machine's instructions, against the scalar functions: every half,
 * and random fp32 bits with all the NaNs, infinities and subnormals among them. */
static void test_convert_bits(void **state)
{
    (void)state;
    enum { COUNT = 65536 };
    float *wide = malloc(COUNT * sizeof *wide);
    uint16_t *half = malloc(COUNT * sizeof *half);
    uint64_t seed = 21;
    assert_true(wide && half);
    for (int i = 0; i < COUNT; i++) half[i] = (uint16_t)i;
    dtype_convert(wide, DT_F32, half, DT_F16, COUNT);
    for (int i = 0; i < COUNT; i++) assert_int_equal(bits_of(wide[i]), bits_of(f16_to_f32((uint16_t)i)));
    for (int turn = 0; turn < 16; turn++) {
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits = next_random(&seed);
            wide[i] = float_of(turn & 1 ? bits : (bits & 0x8fffffffu) | 0x30000000u); /* or near the halves */
        }
        dtype_convert(half, DT_BF16, wide, DT_F32, COUNT);
        for (int i = 0; i < COUNT; i++) assert_int_equal(half[i], f32_to_bf16(wide[i]));
        dtype_convert(half, DT_F16, wide, DT_F32, COUNT);
        for (int i = 0; i < COUNT; i++) assert_int_equal(half[i], f32_to_f16(wide[i]));
    }
    free(wide);
    free(half);
}

/* Just off a midpoint by less than fp32 can tell: rounding through fp32 would land on it and go wrong. */
static void test_one_rounding(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 20000; i++) {
        uint32_t r = next_random(&seed);
        uint32_t half = 0x0401 + r % 0x7700, bf = 0x3000 + r % 0x1800;
        double middle = (half_value(half) + half_value(half + 1)) / 2;
        double wide = ((double)bf16_to_f32((uint16_t)bf) + (double)bf16_to_f32((uint16_t)(bf + 1))) / 2;
        double above[4] = {middle * (1 + 0x1p-40), middle * (1 - 0x1p-40), -middle * (1 + 0x1p-40), middle};
        uint16_t got[4];
        dtype_convert(got, DT_F16, above, DT_F64, 4);
        assert_int_equal(got[0], half + 1);
        assert_int_equal(got[1], half);
        assert_int_equal(got[2], 0x8000 | (half + 1));
        assert_int_equal(got[3], half & 1 ? half + 1 : half);
        double about[4] = {wide * (1 + 0x1p-40), wide * (1 - 0x1p-40), -wide * (1 + 0x1p-40), wide};
        dtype_convert(got, DT_BF16, about, DT_F64, 4);
        assert_int_equal(got[0], bf + 1);
        assert_int_equal(got[1], bf);
        assert_int_equal(got[2], 0x8000 | (bf + 1));
        assert_int_equal(got[3], bf & 1 ? bf + 1 : bf);
    }
    double odd[5] = {1e300, -1e300, INFINITY, NAN, 1e-320};
    uint16_t got[5];
    dtype_convert(got, DT_BF16, odd, DT_F64, 5);
    assert_int_equal(got[0], 0x7f80);
    assert_int_equal(got[1], 0xff80);
    assert_int_equal(got[2], 0x7f80);
    assert_true(isnan(bf16_to_f32(got[3])));
    assert_int_equal(got[4], 0);
}

static void test_in_place(void **state)
{
    (void)state;
    uint16_t x[700], want[700];
    for (int i = 0; i < 700; i++) {
        x[i] = f32_to_bf16((float)i - 350.0f);
        want[i] = f32_to_f16(bf16_to_f32(x[i]));
    }
    dtype_convert(x, DT_F16, x, DT_BF16, 700);
    assert_int_equal(memcmp(x, want, sizeof x), 0);
}

static void test_master(void **state)
{
    (void)state;
    uint64_t seed = 99;
    for (int i = 0; i < 4000000; i++) {
        uint32_t bits = i < 65536 * 4 ? (uint32_t)i << 14 : next_random(&seed);
        uint16_t weight, low;
        master_split(float_of(bits), &weight, &low);
        if (bits_of(master_join(weight, low)) != bits) fail_msg("master %08x does not come back", bits);
        uint32_t size = bits & 0x7fffffffu;
        if (size < 0x7f7f8000u) { /* nearest, ties away: never further than half a step */
            double step =
                (double)float_of((bits & 0xffff0000u) + 0x10000u) - (double)float_of(bits & 0xffff0000u);
            double off = (double)bf16_to_f32(weight) - (double)float_of(bits);
            assert_true(fabs(off) <= fabs(step) / 2);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    static const size_t sizes[DT_COUNT] = {4, 2, 2, 8, 4, 2, 1, 1, 1};
    for (int t = 0; t < DT_COUNT; t++) {
        assert_int_equal(dtype_size((enum dtype)t), sizes[t]);
        const char *name = dtype_safetensors((enum dtype)t);
        if (name) assert_int_equal(dtype_from_safetensors(name), t);
    }
    assert_string_equal(dtype_name(DT_BF16), "bf16");
    assert_string_equal(dtype_safetensors(DT_F16), "F16");
    assert_int_equal(dtype_from_safetensors("F8_E4M3"), DT_COUNT);
}

/* The table against what the types' own bits and conversions say. */
static void test_properties(void **state)
{
    (void)state;
    for (int t = 0; t < DT_COUNT; t++) {
        enum dtype type = (enum dtype)t;
        bool real = type == DT_F32 || type == DT_BF16 || type == DT_F16 || type == DT_F64,
             fp8 = type == DT_E4M3 || type == DT_E5M2;
        assert_int_equal(dtype_is_float(type), real || fp8);
        assert_int_equal(dtype_is_compute(type), real && type != DT_F64);
        assert_int_equal(dtype_is_narrow(type), type == DT_BF16 || type == DT_F16);
    }
    for (int i = 0; i < 4; i++) {
        double infinity = INFINITY, least = dtype_smallest_normal(floats[i]), half = least / 2, back;
        uint64_t bits = 0, below = 0;
        dtype_convert(&bits, floats[i], &infinity, DT_F64, 1);
        assert_true(bits == dtype_infinity(floats[i]));
        dtype_convert(&bits, floats[i], &least, DT_F64, 1);
        dtype_convert(&below, floats[i], &half, DT_F64, 1);
        dtype_convert(&back, DT_F64, &bits, floats[i], 1);
        assert_true(back == least && (bits & dtype_infinity(floats[i])) != 0 &&
                    (below & dtype_infinity(floats[i])) == 0);
    }
    assert_true(dtype_master(DT_BF16) == DT_U16 && dtype_master(DT_F16) == DT_F32);
    assert_string_equal(dtype_torch(DT_BF16), "bfloat16");
    assert_string_equal(dtype_torch(DT_F64), "float64");
}

/* Numbers, and the codes that PyTorch's casts to float8_e4m3fn and float8_e5m2 give. */
#define FP8_CASES                                                                                            \
    {0x0p+0f, 0x00, 0x00}, {0x1p-10f, 0x00, 0x14}, {0x1.8p-10f, 0x01, 0x16}, {0x1p-17f, 0x00, 0x00},         \
        {0x1.4p-17f, 0x00, 0x01}, {0x1.0624dep-10f, 0x01, 0x14}, {0x1.eecbfcp-7f, 0x08, 0x24},               \
        {0x1.333334p-2f, 0x2a, 0x35}, {1.0625f, 0x38, 0x3c}, {0x1.921fb4p+1f, 0x45, 0x42}, {17, 0x58, 0x4c}, \
        {100, 0x6c, 0x56}, {240, 0x77, 0x5c}, {448, 0x7e, 0x5f}, {464, 0x7e, 0x5f},                          \
        {0x1.d0199ap+8f, 0x7f, 0x5f}, {480, 0x7f, 0x60}, {1000, 0x7f, 0x64}, {57344, 0x7f, 0x7b},            \
        {0x1.dfffccp+15f, 0x7f, 0x7b}, {61440, 0x7f, 0x7c}, {65536, 0x7f, 0x7c}, {1e10f, 0x7f, 0x7c},        \
        {1e-30f, 0x00, 0x00},                                                                                \
    {                                                                                                        \
        INFINITY, 0x7f, 0x7c                                                                                 \
    }

/* Both fp8 types: their numbers by definition, and the codes of others. */
static void test_fp8_values(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint8_t e4m3, e5m2;
    } cases[] = {FP8_CASES};
    for (int code = 0; code < 256; code++) {
        int rest = code & 0x7f, sign = code & 0x80 ? -1 : 1, e = rest >> 3, f = rest & 7;
        double four = e ? ldexp(8 + f, e - 10) : ldexp(f, -9),
               five = ldexp((rest >> 2 ? 4 : 0) + (rest & 3), (rest >> 2 ? rest >> 2 : 1) - 17);
        if (rest < 0x7f)
            assert_true((double)e4m3_to_f32((uint8_t)code) == sign * four &&
                        f32_to_e4m3((float)(sign * four)) == code);
        else
            assert_true(isnan(e4m3_to_f32((uint8_t)code)));
        if (rest < 0x7c)
            assert_true((double)e5m2_to_f32((uint8_t)code) == sign * five &&
                        f32_to_e5m2((float)(sign * five)) == code);
        else
            assert_true(rest == 0x7c ? isinf(e5m2_to_f32((uint8_t)code)) : isnan(e5m2_to_f32((uint8_t)code)));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(f32_to_e4m3(cases[i].x), cases[i].e4m3);
        assert_int_equal(f32_to_e5m2(cases[i].x), cases[i].e5m2);
        assert_int_equal(f32_to_e4m3(-cases[i].x), cases[i].e4m3 | 0x80);
        assert_int_equal(f32_to_e5m2(-cases[i].x), cases[i].e5m2 | 0x80);
    }
    assert_true(f32_to_e4m3(NAN) == 0x7f && f32_to_e5m2(NAN) == 0x7f);
}

/* Nearest, ties to even, between every two numbers of a type that follow each other. */
static void test_fp8_rounding(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7e; code++)
        for (int wide = 0; wide < 2 && (!wide || code < 0x7b); wide++) {
            float low = wide ? e5m2_to_f32((uint8_t)code) : e4m3_to_f32((uint8_t)code),
                  high = wide ? e5m2_to_f32((uint8_t)(code + 1)) : e4m3_to_f32((uint8_t)(code + 1)),
                  half = (low + high) / 2;
            const float x[] = {nextafterf(half, 0), half, nextafterf(half, INFINITY)};
            const int want[] = {code, code % 2 ? code + 1 : code, code + 1};
            for (int i = 0; i < 3; i++)
                assert_int_equal(wide ? f32_to_e5m2(x[i]) : f32_to_e4m3(x[i]), want[i]);
        }
}

/* Found wherever it is, in every type, with either sign: what is no number, and infinities. */
static void test_find_nonfinite(void **state)
{
    (void)state;
    enum { MANY = 9000 };
    static const struct {
        enum dtype type;
        uint64_t nan, infinity, largest;
    } types[] = {{DT_F64, 0xfff0000000000001, 0x7ff0000000000000, 0xffefffffffffffff},
                 {DT_F32, 0xff800001, 0x7f800000, 0x7f7fffff},
                 {DT_BF16, 0xff81, 0x7f80, 0xff7f},
                 {DT_F16, 0x7c01, 0xfc00, 0x7bff},
                 {DT_E4M3, 0xff, 0x7f, 0xfe},
                 {DT_E5M2, 0xfd, 0x7c, 0xfb}};
    static uint64_t x[MANY];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t size = dtype_size(types[i].type);
        for (int at = 0; at < MANY; at += 1 + at / 3) {
            memset(x, 0, sizeof x);
            memcpy((char *)x + (size_t)(MANY - 1) * size, &types[i].largest, size);
            assert_int_equal(dtype_find_nonfinite(types[i].type, x, MANY), -1);
            memcpy((char *)x + (size_t)at * size, at % 2 ? &types[i].nan : &types[i].infinity, size);
            assert_int_equal(dtype_find_nonfinite(types[i].type, x, MANY), at);
            assert_int_equal(dtype_find_nonfinite(types[i].type, x, at), -1);
        }
    }
    assert_int_equal(dtype_find_nonfinite(DT_I32, x, MANY), -1);
}

/* Whatever is added to its bits, a NaN stays one. */
static void test_stochastic_nan(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
        for (uint32_t bits = 0; bits <= 0xffff; bits += 0xff)
            assert_true(isnan(bf16_to_f32(stochastic_bf16(float_of(nans[i]), bits))));
    assert_int_equal(stochastic_bf16(INFINITY, 0xffff), 0x7f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp8_values),     cmocka_unit_test(test_fp8_rounding),
        cmocka_unit_test(test_find_nonfinite), cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_half_midpoints), cmocka_unit_test(test_every_bf16),
        cmocka_unit_test(test_convert),        cmocka_unit_test(test_convert_bits),
        cmocka_unit_test(test_one_rounding),   cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_master),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_stochastic_nan), cmocka_unit_test(test_properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
