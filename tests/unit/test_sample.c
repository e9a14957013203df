/* test_sample.c - sampling from logits, and bytes becoming text. */
#include "text/byte_text.h"
#include "serve/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define VOCAB 12

static int32_t draw(const struct sampling *s, const float *logits, uint64_t step)
{
    struct sampler sampler;
    struct plim_error err;
    assert_int_equal(sampler_init(&sampler, VOCAB, s, &err), PLIM_OK);
    int32_t token = sampler_draw(&sampler, logits, step);
    sampler_release(&sampler);
    return token;
}

static const float slope[VOCAB] = {0.0f, 3.0f,  1.0f, 2.5f, -1.0f, 3.0f,
                                   2.0f, -8.0f, 0.5f, 1.5f, -3.0f, 2.75f};

static void test_greedy(void **state)
{
    (void)state;
    assert_int_equal(draw(&(struct sampling){.temperature = 0}, slope, 0),
                     1); /* of two equals the smaller id */
    assert_int_equal(draw(&(struct sampling){.temperature = 1, .top_k = 1}, slope, 7), 1);
    assert_int_equal(draw(&(struct sampling){.temperature = 1, .top_p = 1e-9}, slope, 7), 1);
    assert_int_equal(draw(&(struct sampling){.temperature = 1e-6, .top_p = 1}, slope, 3) % 4, 1); /* 1 or 5 */
}

static void test_seed_names_the_token(void **state)
{
    (void)state;
    int differ = 0;
    for (uint64_t step = 0; step < 50; step++) {
        struct sampling a = {.temperature = 1, .seed = 5}, b = {.temperature = 1, .seed = 6};
        assert_int_equal(draw(&a, slope, step), draw(&a, slope, step));
        differ += draw(&a, slope, step) != draw(&b, slope, step);
    }
    assert_true(differ > 10);
}

/* How often each token comes, over many steps. */
static void count(const struct sampling *s, int n, double *share)
{
    struct sampler sampler;
    struct plim_error err;
    memset(share, 0, VOCAB * sizeof *share);
    assert_int_equal(sampler_init(&sampler, VOCAB, s, &err), PLIM_OK);
    for (int i = 0; i < n; i++) share[sampler_draw(&sampler, slope, (uint64_t)i)] += 1.0 / n;
    sampler_release(&sampler);
}

static void test_shares(void **state)
{
    (void)state;
    double share[VOCAB], want[VOCAB], total = 0;
    for (int i = 0; i < VOCAB; i++) total += want[i] = exp((double)slope[i] / 0.7);
    count(&(struct sampling){.temperature = 0.7, .seed = 9}, 20000, share);
    for (int i = 0; i < VOCAB; i++) assert_true(fabs(share[i] - want[i] / total) < 0.015);
}

static void test_top_k(void **state)
{
    (void)state;
    double share[VOCAB];
    static const int in[] = {1, 5, 11, 3}; /* the four likeliest */
    double left = 1;
    count(&(struct sampling){.temperature = 2, .top_k = 4}, 5000, share);
    for (int i = 0; i < 4; i++) {
        assert_true(share[in[i]] > 0.15);
        left -= share[in[i]];
    }
    assert_true(fabs(left) < 1e-9);
}

static void test_top_p(void **state)
{
    (void)state;
    double share[VOCAB];
    /* At temperature 1 the two likeliest have 0.24 each, the third 0.19: 0.5 needs three of them. */
    count(&(struct sampling){.temperature = 1, .top_p = 0.5}, 5000, share);
    assert_true(share[1] > 0.2 && share[5] > 0.2 && share[11] > 0.1);
    assert_true(fabs(share[1] + share[5] + share[11] - 1) < 1e-9);
    /* Of what top-k left: 1 and 5 have half each, so 0.4 needs one. */
    count(&(struct sampling){.temperature = 1, .top_k = 2, .top_p = 0.4}, 500, share);
    assert_true(fabs(share[1] - 1) < 1e-9);
}

static void test_bad_numbers(void **state)
{
    (void)state;
    struct plim_error err;
    static const struct sampling bad[] = {{.temperature = -1},
                                          {.temperature = NAN},
                                          {.temperature = 1, .top_k = -1},
                                          {.temperature = 1, .top_p = 1.5}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sampling_check(&bad[i], &err), PLIM_BAD_INPUT);
    float poison[VOCAB] = {0};
    poison[3] = NAN, poison[4] = INFINITY;
    int32_t token = draw(&(struct sampling){.temperature = 1, .top_k = 3}, poison, 1);
    assert_in_range(token, 0, VOCAB - 1);
}

/* All bytes through the stream, as text. */
static const char *text_of(const int32_t *tokens, size_t n)
{
    static char text[256];
    struct byte_text stream = {0};
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += byte_text_add(&stream, tokens[i], text + used);
    used += byte_text_end(&stream, text + used);
    text[used] = '\0';
    return text;
}
#define TEXT(...)                                                                                            \
    text_of((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

#define BAD "\xEF\xBF\xBD"

static void test_text(void **state)
{
    (void)state;
    assert_string_equal(TEXT('a', 'b'), "ab");
    assert_string_equal(TEXT(0xC3, 0xBC), "\xC3\xBC");
    assert_string_equal(TEXT(0xF0, 0x9F, 0x9A, 0xA2, '!'), "\xF0\x9F\x9A\xA2!");
    assert_string_equal(TEXT(0xC3, 'x'), BAD "x");
    assert_string_equal(TEXT(0xE2, 0x82), BAD BAD);
    assert_string_equal(TEXT(0x80, 0xFF), BAD BAD);
    assert_string_equal(TEXT(0xF0, 0x80, 0x80, 0x80), BAD BAD BAD BAD); /* overlong */
    assert_string_equal(TEXT(0xED, 0xA0, 0x80), BAD BAD BAD);           /* a surrogate */
    assert_string_equal(TEXT('a', 300, 0xC3, 300, 'b'), "a" BAD BAD BAD "b");
}

static void test_text_waits(void **state)
{
    (void)state;
    struct byte_text stream = {0};
    char out[BYTE_TEXT_MAX];
    assert_int_equal(byte_text_add(&stream, 0xE2, out), 0);
    assert_int_equal(byte_text_add(&stream, 0x82, out), 0);
    assert_int_equal(byte_text_add(&stream, 0xAC, out), 3);
    assert_memory_equal(out, "\xE2\x82\xAC", 3);
    assert_int_equal(byte_text_end(&stream, out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy), cmocka_unit_test(test_seed_names_the_token),
        cmocka_unit_test(test_shares), cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),  cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_text),   cmocka_unit_test(test_text_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
