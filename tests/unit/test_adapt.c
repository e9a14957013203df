/* run-tests: not=tsan */
/* test_adapt.c - the state machine of adaptation, with made-up memories: it gives way, it takes back, it does not swing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/adapt.h"

static const struct profile balanced = {0.90, 0.92, 0.95, 0.97};

/* A machine of 1000 units, a run whose plan takes `full` at most, in `micro` rows of 16. */
struct world {
    struct adapt adapt;
    int64_t others, total, ours, full, kept, micro;
    int64_t step, sample, shrinks, tightens, restores;
    bool stuck; /* no change works */
};

static struct world world_of(bool smooth, int64_t every)
{
    struct world w = {.total = 1000, .full = 400, .ours = 400, .kept = 80, .micro = 16, .others = 300};
    w.adapt.rules =
        (struct adapt_rules){.enabled = true, .smooth = smooth, .every = every, .least = 1, .calm = 3};
    return w;
}

static int64_t bytes_at(const struct world *w, int64_t micro)
{
    return w->kept + (w->full - w->kept) * micro / 16;
}

/* What the trainer does, in small. */
static bool apply(struct world *w, enum adapt_act act, const struct adapt_look *look, bool *whole)
{
    *whole = true;
    if (w->stuck) return false;
    if (act == ADAPT_SHRINK) {
        double share = 1 - (double)look->over / (double)(w->ours - w->kept);
        int64_t next = adapt_smaller(16, w->micro, w->adapt.rules.least, w->adapt.rules.smooth ? 1 : share);
        if (!next) return false;
        w->micro = next, w->ours = bytes_at(w, next), w->shrinks++;
    } else if (act == ADAPT_TIGHTEN) {
        int64_t next = w->ours - look->over < w->kept ? w->kept : w->ours - look->over;
        if (next >= w->ours) return false;
        w->ours = next, w->tightens++;
    } else {
        int64_t next = w->adapt.rules.smooth ? adapt_larger(16, w->micro, 16) : 16;
        *whole = next == 16 || w->adapt.level == ADAPT_TIGHT;
        w->micro = *whole ? 16 : next, w->ours = bytes_at(w, w->micro), w->restores++;
    }
    return true;
}

/* One step, with a sample before it. */
static enum adapt_act step(struct world *w)
{
    struct gauge g = gauge_of("machine", w->others + w->ours, w->total, w->ours, &balanced);
    struct adapt_look look = {.step = ++w->step,
                              .sample = ++w->sample,
                              .status = gauge_status(&g),
                              .over = g.used - g.line[LINE_TARGET],
                              .room = g.line[LINE_WARNING] - g.used,
                              .ours = w->ours,
                              .more = w->full - w->ours};
    enum adapt_act act = adapt_decide(&w->adapt, &look);
    bool whole;
    if (act != ADAPT_STAY) {
        bool worked = apply(w, act, &look, &whole);
        adapt_done(&w->adapt, act, w->step, w->sample, worked, whole);
    }
    return act;
}

static void steps(struct world *w, int n)
{
    while (n--) step(w);
}

static void gives_way_and_takes_back(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    steps(&w, 10);
    assert_int_equal(w.shrinks + w.restores, 0);
    w.others = 560; /* 96 % */
    steps(&w, 50);
    assert_int_equal(w.shrinks, 1);
    assert_int_equal(w.adapt.level, ADAPT_REDUCED);
    assert_true(w.others + w.ours <= 900);
    w.others = 300;
    steps(&w, 50);
    assert_int_equal(w.restores, 1);
    assert_int_equal(w.micro, 16);
    assert_int_equal(w.adapt.level, ADAPT_FULL);
}

/* Whatever others take, and for however long: a cause changes the plan at most twice, and there is no way back into it. */
static void does_not_swing(void **state)
{
    (void)state;
    for (int64_t others = 300; others <= 990; others += 3) {
        struct world w = world_of(false, 1);
        steps(&w, 10);
        w.others = others;
        steps(&w, 300);
        int64_t changes = w.shrinks + w.tightens;
        assert_true(changes <= 2);
        assert_int_equal(w.restores, 0);
        w.others = 300;
        steps(&w, 300);
        assert_int_equal(w.shrinks + w.tightens, changes);
        assert_true(w.restores <= 1);
        assert_int_equal(w.ours, w.full);
    }
}

/* A neighbour that comes and goes every few samples makes the run small once and leaves it so. */
static void waits_for_calm(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    for (int i = 0; i < 300; i++) {
        w.others = i / 2 % 2 ? 300 : 560;
        step(&w);
    }
    assert_int_equal(w.shrinks, 1);
    assert_int_equal(w.restores, 0);
}

static void goes_by_divisors_when_smooth(void **state)
{
    (void)state;
    struct world w = world_of(true, 1);
    w.others = 720;
    w.adapt.rules.smooth = true;
    enum adapt_act first = step(&w);
    assert_int_equal(first, ADAPT_TIGHTEN); /* an emergency does not wait */
    w = world_of(true, 1);
    w.others = 555;
    steps(&w, 40);
    assert_int_equal(w.micro, 8);
    w.others = 715; /* critical again, with less */
    steps(&w, 40);
    assert_int_equal(w.micro, 4);
    w.others = 300;
    steps(&w, 60);
    assert_int_equal(w.micro, 16);
    assert_int_equal(w.restores, 2);
}

static void keeps_to_its_frequency(void **state)
{
    (void)state;
    struct world w = world_of(true, 25);
    w.others = 555;
    steps(&w, 5);
    assert_int_equal(w.micro, 8);
    w.others = 300;
    steps(&w, 15);
    assert_int_equal(w.micro, 8); /* normal for long, but the last change is too near */
    steps(&w, 15);
    assert_int_equal(w.micro, 16);
}

static void stays_above_the_least(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    w.adapt.rules.least = 8;
    w.others = 565;
    steps(&w, 30);
    assert_int_equal(w.micro, 8);
    assert_int_equal(adapt_smaller(16, 8, 8, 1), 0);
    assert_int_equal(adapt_smaller(12, 12, 1, 0.5), 6);
    assert_int_equal(adapt_smaller(12, 12, 1, 0.01), 1);
    assert_int_equal(adapt_larger(12, 4, 12), 6);
    assert_int_equal(adapt_larger(12, 12, 12), 0);
}

static void does_not_insist(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    int tries = 0;
    w.stuck = true, w.others = 560;
    for (int i = 0; i < 100; i++) tries += step(&w) != ADAPT_STAY;
    assert_int_equal(tries, 1);
    w.others = 590; /* worse: once more */
    for (int i = 0; i < 100; i++) tries += step(&w) != ADAPT_STAY;
    assert_int_equal(tries, 2);
}

/* Invariant 4: what failed is tried again once things have been normal, or the budget was set anew. */
static void tries_again_after_calm(void **state)
{
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct world w = world_of(false, 1);
        int tries = 0;
        w.stuck = true, w.others = 560;
        for (int i = 0; i < 50; i++) tries += step(&w) != ADAPT_STAY;
        assert_int_equal(tries, 1);
        if (reset)
            adapt_reset(&w.adapt, w.sample);
        else
            w.others = 300;
        steps(&w, reset ? 0 : 10);
        w.others = 560, w.stuck = false;
        for (int i = 0; i < 50; i++) tries += step(&w) != ADAPT_STAY;
        assert_int_equal(tries, 2);
        assert_int_equal(w.shrinks, 1);
    }
}

/* And a run that gave way and took back gives way again, as often as it is asked to. */
static void gives_way_every_time(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    for (int i = 1; i <= 5; i++) {
        w.others = 560;
        steps(&w, 50);
        assert_int_equal(w.shrinks, i);
        w.others = 300;
        steps(&w, 50);
        assert_int_equal(w.restores, i);
        assert_int_equal(w.micro, 16);
    }
}

static void leaves_hopeless_things_alone(void **state)
{
    (void)state;
    struct world w = world_of(false, 1);
    w.ours = w.full = 4, w.kept = 1, w.others = 990; /* nothing that four of a thousand could do */
    steps(&w, 50);
    assert_int_equal(w.shrinks + w.tightens, 0);
    w = world_of(false, 1);
    w.adapt.rules.enabled = false, w.others = 600;
    steps(&w, 50);
    assert_int_equal(w.shrinks + w.tightens, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_way_and_takes_back), cmocka_unit_test(does_not_swing),
        cmocka_unit_test(waits_for_calm),           cmocka_unit_test(goes_by_divisors_when_smooth),
        cmocka_unit_test(keeps_to_its_frequency),   cmocka_unit_test(stays_above_the_least),
        cmocka_unit_test(does_not_insist),          cmocka_unit_test(leaves_hopeless_things_alone),
        cmocka_unit_test(tries_again_after_calm),   cmocka_unit_test(gives_way_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
