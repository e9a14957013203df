/* test_sample.c - sampling from logits, and bytes becoming text. */
#include "text/byte_text.h"
#include "base/rng.h"
#include "serve/draw.h"
#include "tensor/sample.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* What a device draws by itself: a row carries all that sampler_pick needs, over memory of the caller's. */
static void test_row(void **state)
{
    (void)state;
    static double memory[64];
    struct sampling s = {.temperature = 0.7, .top_k = 5, .top_p = 0.9, .min_p = 0.01, .seed = 3};
    struct sampler sampler;
    struct sample_row row;
    struct seen_token room[4];
    struct draw_seen none = {0}, some = {room, 1, 4};
    assert_true(sampler_bytes(VOCAB) <= (int64_t)sizeof memory);
    for (uint64_t step = 0; step < 50; step++) {
        struct draw w = {.sampling = &s, .step = step, .given = -1, .logprobs = -1};
        assert_true(draw_ask(&w, VOCAB, &none, &row) && row.mode == SAMPLE_DRAWN);
        assert_true(row.vocab == VOCAB && row.top_k == 5);
        sampler_bind(&sampler, VOCAB, memory);
        sampler.sampling = s;
        assert_int_equal(sampler_pick(&sampler, slope, sample_double(row.number)), draw(&s, slope, step));
    }
    s.temperature = 0;
    struct draw likeliest = {.sampling = &s, .given = -1, .logprobs = -1};
    assert_true(draw_ask(&likeliest, VOCAB, &none, &row) && row.mode == SAMPLE_LIKELIEST);
    assert_int_equal(row.wanted, 0);
    struct draw given = {.sampling = &s, .given = 4, .logprobs = 2};
    assert_true(draw_ask(&given, VOCAB, &none, &row) && row.mode == SAMPLE_AS_GIVEN);
    assert_true(row.given == 4 && row.wanted == 3);
    s.presence_penalty = 1;
    struct seen seen;
    assert_true(seen_init(&seen, 3, (const int32_t[]){9, 4, 9}, 3));
    seen_add(&seen, 4), seen_add(&seen, 5), seen_add(&seen, 4);
    assert_true(seen.count == 3 && seen.token[0].token == 4 && seen.token[0].times == 2);
    assert_true(seen.token[1].token == 5 && seen.token[2].token == 9 && seen.token[2].times == 0);
    likeliest.seen = &seen;
    assert_true(draw_ask(&likeliest, VOCAB, &some, &row) && some.used == 4 && room[1].token == 4);
    assert_true(row.seen_first == 1 && row.seen_count == 3);
    assert_false(draw_ask(&likeliest, VOCAB, &some, &row) || row.mode != SAMPLE_NONE);
    seen_release(&seen);
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

/* --- as the header says it, without a short cut --- */

enum { LARGE = 5000 };
static float all_weights[LARGE];

static int by_weight(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (all_weights[x] != all_weights[y]) return all_weights[x] > all_weights[y] ? -1 : 1;
    return x - y;
}

static int32_t plain_draw(const struct sampling *s, const float *logits, uint64_t step)
{
    static int32_t order[LARGE];
    int32_t best = 0, kept = LARGE;
    double whole = 0, total = 0, sum = 0, u = rng_uniform(s->seed, UINT64_C(0x73616d706c65), step);
    for (int32_t i = 0; i < LARGE; i++) order[i] = i, best = logits[i] > logits[best] ? i : best;
    if (s->temperature <= 0) return best;
    for (int32_t i = 0; i < LARGE; i++)
        all_weights[i] = (float)exp(((double)logits[i] - (double)logits[best]) / s->temperature);
    bool top_k = s->top_k > 0 && s->top_k<LARGE, top_p = s->top_p> 0 && s->top_p < 1;
    if (top_k || top_p) qsort(order, LARGE, sizeof *order, by_weight);
    if (top_k) kept = (int32_t)s->top_k;
    for (int32_t i = 0; i < kept; i++) whole += (double)all_weights[top_k ? order[i] : i];
    if (top_p)
        for (kept = 0; total < s->top_p * whole; kept++) total += (double)all_weights[order[kept]];
    else
        total = whole;
    int32_t i = 0;
    while (i < kept && !((sum += (double)all_weights[order[i]]) > u * total)) i++;
    return order[i < kept ? i : kept - 1];
}

/* Every short cut draws what the plain way draws: flat, steep and tied logits, with and without a team. */
static void test_short_cuts(void **state)
{
    (void)state;
    static const struct sampling kinds[] = {
        {.temperature = 0},
        {.temperature = 0.8},
        {.temperature = 1, .top_k = 40},
        {.temperature = 1, .top_k = 4000, .top_p = 0.9},
        {.temperature = 0.7, .top_p = 0.95},
        {.temperature = 3, .top_p = 0.999},
        {.temperature = 1, .top_k = 64, .top_p = 0.5},
    };
    static float logits[LARGE];
    struct threads *team;
    struct plim_error err;
    assert_int_equal(threads_start(2, &team, &err), PLIM_OK);
    for (uint64_t round = 0; round < 24; round++) {
        static const float spread[] = {0.01f, 2, 40};
        for (int i = 0; i < LARGE; i++) {
            logits[i] = (float)(rng_uniform(3, round, (uint64_t)i) - 0.5) * spread[round % 3];
            if (round % 4 == 3) logits[i] = roundf(4 * logits[i]) / 4;
        }
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct sampler sampler;
            assert_int_equal(sampler_init(&sampler, LARGE, &kinds[k], &err), PLIM_OK);
            sampler.team = round % 2 ? team : NULL;
            for (uint64_t step = 0; step < 8; step++)
                assert_int_equal(sampler_draw(&sampler, logits, step), plain_draw(&kinds[k], logits, step));
            sampler_release(&sampler);
        }
    }
    threads_free(team);
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
        cmocka_unit_test(test_greedy),     cmocka_unit_test(test_seed_names_the_token),
        cmocka_unit_test(test_shares),     cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),      cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_short_cuts), cmocka_unit_test(test_text),
        cmocka_unit_test(test_text_waits), cmocka_unit_test(test_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
