/* run-tests: not=tsan */
/* test_metrics.c - numbers of metrics.h against those of seqeval and scipy, worked out by hand or by those libraries. */
#include "train/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const char *const names[] = {"O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-PER"};
enum { O, BP, IP, BL, IL, EL, SP, NAMES };

static struct f1 score(const int32_t *predicted, const int32_t *wanted, size_t n)
{
    struct entity_score s = {0};
    entity_score_add(&s, names, NAMES, predicted, wanted, n);
    return entity_f1(&s);
}

static void near(double a, double b) { assert_true(fabs(a - b) < 1e-12); }

static void test_entities(void **state)
{
    (void)state;
    /* one entity right, one too long, one missed, one invented */
    int32_t wanted[] = {BP, IP, O, BL, O, O, BP, O}, predicted[] = {BP, IP, O, BL, IL, O, O, BL};
    struct f1 f = score(predicted, wanted, 8);
    near(f.precision, 1.0 / 3), near(f.recall, 1.0 / 3), near(f.f1, 1.0 / 3), near(f.accuracy, 5.0 / 8);
    f = score(wanted, wanted, 8);
    assert_true(f.f1 == 1 && f.accuracy == 1);
}

/* An I- that follows nothing of its type begins an entity; two B- in a row are two. */
static void test_loose_labels(void **state)
{
    (void)state;
    int32_t loose[] = {IP, IP, O, IL, IP}, strict[] = {BP, IP, O, BL, BP};
    near(score(loose, strict, 5).f1, 1);
    int32_t two[] = {BP, BP}, one[] = {BP, IP};
    near(score(two, one, 2).f1, 0);
    int32_t single[] = {SP, BL, EL, IL}, plain[] = {BP, BL, IL, BL};
    near(score(single, plain, 4).f1, 1);
    int32_t change[] = {BP, IL}, apart[] = {BP, BL};
    near(score(change, apart, 2).f1, 1);
}

/* Pieces of words are passed over: an entity goes on behind them. */
static void test_uncounted(void **state)
{
    (void)state;
    int32_t wanted[] = {-1, BP, -1, IP, -1, O, -1}, predicted[] = {BL, BP, O, IP, BL, O, BP};
    struct f1 f = score(predicted, wanted, 7);
    assert_true(f.f1 == 1 && f.accuracy == 1);
    f = score(predicted, wanted, 0);
    assert_true(f.f1 == 0 && f.precision == 0 && f.recall == 0 && f.accuracy == 0);
    int32_t beyond[] = {99, -5}, outside[] = {O, O};
    assert_true(score(beyond, outside, 2).precision == 0);
}

static void test_sentences_add_up(void **state)
{
    (void)state;
    struct entity_score s = {0};
    int32_t a[] = {O, BP}, b[] = {IP, O};
    entity_score_add(&s, names, NAMES, a, a, 2);
    entity_score_add(&s, names, NAMES, b, b, 2); /* no entity crosses from one sentence to the next */
    assert_true(s.wanted == 2 && s.right == 2 && s.labels == 4);
}

static void test_correlations(void **state)
{
    (void)state;
    double a[] = {1, 2, 3, 4, 5}, b[] = {5, 6, 7, 8, 7}, same[] = {2, 2, 2, 2, 2}, r;
    assert_true(metric_spearman(a, b, 5, &r));
    near(r, 0.8207826816681233); /* scipy.stats.spearmanr */
    near(metric_pearson(a, b, 5), 0.8320502943378437);
    assert_true(metric_spearman(a, same, 5, &r) && isnan(r));
    double falls[] = {9, 7, 3, 1, -4};
    assert_true(metric_spearman(a, falls, 5, &r));
    near(r, -1);
}

static void test_cosine(void **state)
{
    (void)state;
    float a[] = {1, 2, 2}, b[] = {2, 4, 4}, c[] = {-2, 1, 0}, zero[3] = {0};
    near(metric_cosine(a, b, 3), 1);
    near(metric_cosine(a, c, 3), 0);
    near(metric_cosine(a, zero, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entities),     cmocka_unit_test(test_loose_labels),
        cmocka_unit_test(test_uncounted),    cmocka_unit_test(test_sentences_add_up),
        cmocka_unit_test(test_correlations), cmocka_unit_test(test_cosine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
