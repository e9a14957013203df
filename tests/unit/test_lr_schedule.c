/* run-tests: not=tsan */
/* test_lr_schedule.c - GreedyLR against a plain transcription of its definition, and the ends of the others. */
#include "base/json.h"
#include "train/lr_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* The definition, line by line, with a plain list as its window. */
struct greedy {
    const struct job_schedule *c;
    double lr, best, list[20000];
    int64_t good, bad, cool, warm, rs, n;
};

static void plain_init(struct greedy *g, const struct job_schedule *c)
{
    memset(g, 0, sizeof *g);
    g->c = c, g->lr = c->learning_rate, g->best = INFINITY, g->rs = c->reset_start;
}

static void plain_step(struct greedy *g, double x)
{
    const struct job_schedule *c = g->c;
    if (c->smooth) {
        g->list[g->n++] = x;
        int64_t first = g->n > c->window_size ? g->n - c->window_size : 0;
        x = 0;
        for (int64_t i = first; i < g->n; i++) x += g->list[i];
        x /= (double)(g->n - first);
    }
    if (g->cool > 0) {
        g->cool--, g->good = 0, g->bad = 0;
    } else if (g->warm > 0) {
        g->warm--, g->good = 0, g->bad = 0;
    } else {
        bool better = c->relative ? x < g->best * (1 - c->threshold) : x < g->best - c->threshold;
        if (better)
            g->best = x, g->good++, g->bad = 0;
        else
            g->bad++, g->good = 0;
        if (g->good > c->patience) {
            double n = fmin(g->lr / c->factor, c->max_lr);
            if (n - g->lr > c->eps) g->lr = n;
            g->rs = c->reset_start, g->warm = c->warmup, g->good = 0;
        } else if (g->bad > c->patience) {
            double n = fmax(g->lr * c->factor, c->min_lr);
            if (g->lr - n > c->eps) g->lr = n;
            if (g->lr <= c->min_lr) {
                g->rs--;
                if (g->rs <= 0) {
                    g->lr = c->learning_rate, g->best = INFINITY, g->n = 0, g->rs = c->reset_start;
                    g->good = g->bad = g->cool = g->warm = 0;
                }
            }
            g->cool = c->cooldown, g->bad = 0;
        }
    }
}

/* Losses that fall, stall, jump and rise again; multiples of 1/1024, so that means are exact in any order. */
static double loss_at(int64_t i, int64_t pattern)
{
    uint64_t noise = ((uint64_t)i * 2654435761u + (uint64_t)pattern * 97) % 64;
    int64_t phase = i / 150 % 4, base = phase == 0   ? 6000 - i % 150 * 20
                                        : phase == 1 ? 3000
                                        : phase == 2 ? 7000
                                                     : 2000;
    return (double)(base + (pattern % 2 ? (int64_t)noise : 0)) / 1024;
}

static const struct job_schedule configs[] = {
    {.factor = 0.95,
     .patience = 10,
     .threshold = 1e-6,
     .min_lr = 1e-3,
     .max_lr = 1,
     .eps = 1e-8,
     .window_size = 50,
     .reset_start = 500,
     .learning_rate = 3e-4}, /* the floor lies above the rate: it can never fall */
    {.factor = 0.9,
     .patience = 2,
     .threshold = 1e-6,
     .min_lr = 1e-7,
     .max_lr = 1,
     .eps = 1e-8,
     .window_size = 50,
     .reset_start = 3,
     .learning_rate = 1e-5},
    {.factor = 0.5,
     .patience = 0,
     .threshold = 1e-6,
     .min_lr = 1e-5,
     .max_lr = 1e-2,
     .eps = 1e-8,
     .window_size = 50,
     .reset_start = 4,
     .learning_rate = 1e-3,
     .cooldown = 3,
     .warmup = 2},
    {.factor = 0.5,
     .patience = 3,
     .threshold = 0.01,
     .min_lr = 1e-5,
     .max_lr = 1e-2,
     .eps = 1e-8,
     .window_size = 8,
     .reset_start = 0,
     .learning_rate = 1e-3,
     .smooth = true,
     .relative = true},
    {.factor = 0.7,
     .patience = 1,
     .threshold = 1e-6,
     .min_lr = 1e-4,
     .max_lr = 2e-3,
     .eps = 1e-4,
     .window_size = 16,
     .reset_start = 2,
     .learning_rate = 1e-3,
     .smooth = true,
     .cooldown = 5},
};
#define NCONFIGS (sizeof configs / sizeof *configs)

static void restore_copy(struct lr_schedule *to, const struct lr_schedule *from)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct plim_error err = {0};
    lr_schedule_save(from, &text);
    if (json_parse(text.data, text.len, "saved", &doc, &err) != PLIM_OK)
        fail_msg("%s: %s", err.text, text.data);
    lr_schedule_init(to, &from->config, from->total_steps);
    lr_schedule_restore(to, &doc->root);
    doc_free(doc);
    strbuf_release(&text);
}

static void test_greedy_step_by_step(void **state)
{
    (void)state;
    static struct greedy plain;
    static struct lr_schedule s, other;
    for (size_t c = 0; c < NCONFIGS; c++)
        for (int64_t pattern = 0; pattern < 4; pattern++) {
            struct job_schedule config = configs[c];
            config.kind = SCHEDULE_GREEDY;
            plain_init(&plain, &config);
            lr_schedule_init(&s, &config, 1000);
            double low = s.lr, high = s.lr;
            for (int64_t i = 0; i < 3000; i++) {
                plain_step(&plain, loss_at(i, pattern));
                lr_schedule_observe(&s, SCHEDULE_ON_STEP, loss_at(i, pattern));
                if (lr_schedule_rate(&s, i) != plain.lr || s.best != plain.best || s.good != plain.good ||
                    s.bad != plain.bad || s.cool != plain.cool || s.warm != plain.warm ||
                    s.resets_left != plain.rs)
                    fail_msg("config %zu, pattern %d, step %d: rate %.17g, not %.17g", c, (int)pattern,
                             (int)i, s.lr, plain.lr);
                low = fmin(low, s.lr), high = fmax(high, s.lr);
                if (i % 97 == 0) { /* a checkpoint in between is not noticed */
                    restore_copy(&other, &s);
                    s = other;
                }
            }
            assert_true(c == 0 ? low == configs[0].learning_rate : low < configs[c].learning_rate);
            assert_true(high <= config.max_lr);
        }
}

static void test_greedy_hears_only_its_event(void **state)
{
    (void)state;
    static struct lr_schedule s;
    struct job_schedule config = configs[1];
    config.kind = SCHEDULE_GREEDY, config.on = SCHEDULE_ON_EVAL;
    lr_schedule_init(&s, &config, 100);
    for (int i = 0; i < 50; i++) lr_schedule_observe(&s, SCHEDULE_ON_STEP, 1);
    assert_true(s.lr == config.learning_rate && isinf(s.best));
    for (int i = 0; i < 50; i++) lr_schedule_observe(&s, SCHEDULE_ON_EVAL, 1);
    assert_true(s.lr < config.learning_rate && s.best == 1);
}

/* A loss that is not a number is not heard, so that the state can always be saved as JSON. */
static void test_not_finite(void **state)
{
    (void)state;
    static struct lr_schedule s, other;
    struct job_schedule config = configs[3];
    config.kind = SCHEDULE_GREEDY;
    lr_schedule_init(&s, &config, 100);
    lr_schedule_observe(&s, SCHEDULE_ON_STEP, 2);
    lr_schedule_observe(&s, SCHEDULE_ON_STEP, NAN);
    lr_schedule_observe(&s, SCHEDULE_ON_STEP, INFINITY);
    restore_copy(&other, &s);
    assert_true(other.seen == 1 && other.best == 2 && other.window[0] == 2);
}

/* Another window in the resumed run's config: it fills anew instead of averaging zeros. */
static void test_window_of_another_size(void **state)
{
    (void)state;
    static struct lr_schedule s, other;
    struct job_schedule config = configs[3];
    config.kind = SCHEDULE_GREEDY;
    lr_schedule_init(&s, &config, 100);
    for (int i = 0; i < 20; i++) lr_schedule_observe(&s, SCHEDULE_ON_STEP, 4);
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct plim_error err = {0};
    lr_schedule_save(&s, &text);
    assert_int_equal(json_parse(text.data, text.len, "saved", &doc, &err), PLIM_OK);
    config.window_size = 12;
    lr_schedule_init(&other, &config, 100);
    lr_schedule_restore(&other, &doc->root);
    lr_schedule_observe(&other, SCHEDULE_ON_STEP, 4);
    assert_true(other.best == 4 && other.seen == 1);
    doc_free(doc);
    strbuf_release(&text);
}

static double rate(int kind, int64_t step, int64_t total, int64_t warmup, int64_t decay)
{
    static struct lr_schedule s;
    struct job_schedule config = {.kind = kind,
                                  .learning_rate = 1e-3,
                                  .min_lr = 1e-4,
                                  .warmup_steps = warmup,
                                  .decay_steps = decay,
                                  .stable_steps = -1,
                                  .cycles = 0.5,
                                  .factor = 0.9,
                                  .window_size = 1};
    lr_schedule_init(&s, &config, total);
    return lr_schedule_rate(&s, step);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-12)) fail_msg("%.17g, not %.17g", a, b);
}

static void test_ends(void **state)
{
    (void)state;
    for (int kind = 0; kind < SCHEDULE_COUNT; kind++) {
        near(rate(kind, 0, 100, 0, 0), 1e-3);
        near(rate(kind, 0, 100, 10, 0), 1e-4); /* the first step of ten is a tenth, not nothing */
        near(rate(kind, 9, 100, 10, 0), 1e-3);
        near(rate(kind, 10, 100, 10, 0), 1e-3);
        near(rate(kind, 4, 5, 10, 0), 5e-4); /* warm-up longer than the run */
        for (int64_t step = 0; step < 200;
             step++) { /* also beyond the end, as after a resume with fewer steps */
            double r = rate(kind, step, 100, 10, 0);
            assert_true(r >= 0.99e-4 && r <= 1.01e-3);
        }
    }
    near(rate(SCHEDULE_CONSTANT, 99, 100, 10, 0), 1e-3);
    near(rate(SCHEDULE_LINEAR, 55, 100, 10, 0), 5.5e-4);
    near(rate(SCHEDULE_COSINE, 55, 100, 10, 0), 5.5e-4);
    for (int kind = SCHEDULE_LINEAR; kind <= SCHEDULE_WSD; kind++) near(rate(kind, 100, 100, 10, 0), 1e-4);
    near(rate(SCHEDULE_WSD, 80, 100, 10, 0), 1e-3); /* a fifth decays when nothing is said */
    near(rate(SCHEDULE_WSD, 90, 100, 10, 0), 5.5e-4);
    near(rate(SCHEDULE_WSD, 95, 100, 10, 10), 5.5e-4);
}

/* The lambdas of transformers' optimization.py after warm-up, as shares of learning_rate. */
static double lambda_of(const struct job_schedule *c, int64_t step, int64_t total)
{
    const double pi = 3.14159265358979323846, lr = c->learning_rate;
    double span = fmax(1, (double)(total - c->warmup_steps)), p = (double)(step - c->warmup_steps) / span;
    double floor = c->min_lr_ratio > 0 ? c->min_lr_ratio : c->min_lr / lr;
    double cycles = c->cycles, end = c->min_lr;
    double timescale = (double)(c->timescale ? c->timescale : c->warmup_steps ? c->warmup_steps : 10000);
    int64_t into = step - c->warmup_steps - c->stable_steps;
    double q = (double)into / fmax(1, (double)c->decay_steps), f = 0;
    switch (c->kind) {
    case SCHEDULE_COSINE:
        return fmax(0, 0.5 * (1 + cos(pi * cycles * 2 * p)) * (1 - floor) + floor);
    case SCHEDULE_RESTARTS:
        return p >= 1 ? 0 : fmax(0, 0.5 * (1 + cos(pi * fmod(cycles * p, 1))));
    case SCHEDULE_POLYNOMIAL:
        return step > total ? end / lr : ((lr - end) * pow(1 - p, c->power) + end) / lr;
    case SCHEDULE_INVERSE_SQRT:
        return 1 / sqrt(((double)step + timescale - (double)c->warmup_steps) / timescale);
    default: /* warmup_stable_decay */
        if (into < 0) return 1;
        if (into >= c->decay_steps) return floor;
        if (c->decay_type == DECAY_LINEAR) f = 1 - q;
        if (c->decay_type == DECAY_COSINE) f = 0.5 * (1 + cos(pi * cycles * 2 * q));
        if (c->decay_type == DECAY_ROOT) f = 1 - sqrt(q);
        return fmax(0, f * (1 - floor) + floor);
    }
}

/* What a job with these keys of training makes of them. */
static struct job_schedule schedule_of(const char *const *keys, int count)
{
    struct job job;
    struct plim_error err = {0};
    job_init(&job);
    assert_int_equal(schema_defaults(&job_schema, &job, &job.store, &err), PLIM_OK);
    job.schedule.learning_rate = 1e-3;
    for (int i = 0; i < count && keys[i]; i++) {
        char key[80];
        snprintf(key, sizeof key, "training.%s", keys[i]);
        if (job_set(&job, key, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    }
    struct job_schedule config = job_schedule(&job);
    job_release(&job);
    return config;
}

static void test_arguments_as_in_transformers(void **state)
{
    (void)state;
    static struct lr_schedule s;
    static const struct {
        const char *keys[5];
        double cycles, floor; /* that follow; 0: not looked at */
    } cases[] = {
        {{"lr_scheduler=cosine"}, 0.5, 0},
        {{"lr_scheduler=cosine", "min_lr=2e-5"}, 0.5, 2e-5},
        {{"lr_scheduler=cosine", "min_lr_ratio=0.1"}, 0.5, 0},
        {{"lr_scheduler=cosine", "lr_cycles=1.5"}, 1.5, 0},
        {{"lr_scheduler=cosine_with_restarts"}, 1, 0},
        {{"lr_scheduler=cosine_with_restarts", "lr_cycles=4"}, 4, 0},
        {{"lr_scheduler=polynomial", "lr_power=1"}, 0, 1e-7},
        {{"lr_scheduler=polynomial", "lr_power=2.5", "min_lr=1e-5"}, 0, 1e-5},
        {{"lr_scheduler=inverse_sqrt"}, 0, 0},
        {{"lr_scheduler=inverse_sqrt", "lr_timescale=50"}, 0, 0},
        {{"lr_scheduler=wsd", "stable_steps=20", "decay_steps=30", "decay_type=linear"}, 0, 0},
        {{"lr_scheduler=wsd", "stable_steps=20", "decay_steps=30", "decay_type=cosine", "min_lr_ratio=0.2"},
         0.5,
         0},
        {{"lr_scheduler=wsd", "stable_steps=0", "decay_steps=90", "decay_type=1-sqrt"}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_schedule c = schedule_of(cases[i].keys, 5);
        if (cases[i].cycles > 0) assert_true(c.cycles == cases[i].cycles);
        if (cases[i].floor > 0) assert_true(c.min_lr == cases[i].floor);
        for (int64_t warmup = 0; warmup <= 10; warmup += 10)
            for (int64_t step = warmup; step <= 100; step++) {
                c.warmup_steps = warmup;
                lr_schedule_init(&s, &c, 100);
                double got = lr_schedule_rate(&s, step), want = 1e-3 * lambda_of(&c, step, 100);
                if (!(fabs(got - want) < 1e-15))
                    fail_msg("case %zu, step %lld: %.17g, not %.17g", i, (long long)step, got, want);
            }
    }
}

/* math.ceil(steps * ratio), as in transformers: never rounded down, nor to the nearest. */
static void test_warmup_ratio_rounds_up(void **state)
{
    (void)state;
    static struct lr_schedule s;
    static const struct {
        double ratio;
        int64_t total, steps;
    } cases[] = {{0.1, 15, 2}, {0.21, 10, 3}, {0.29, 10, 3}, {0.03, 100, 3}, {0.001, 100, 1}, {1, 7, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_schedule c = {.kind = SCHEDULE_LINEAR, .learning_rate = 1, .warmup_ratio = cases[i].ratio};
        lr_schedule_init(&s, &c, cases[i].total);
        assert_int_equal(s.config.warmup_steps, cases[i].steps);
        near(lr_schedule_rate(&s, cases[i].steps - 1), 1);
        if (cases[i].steps > 1) assert_true(lr_schedule_rate(&s, cases[i].steps - 2) < 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_step_by_step),
        cmocka_unit_test(test_greedy_hears_only_its_event),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_window_of_another_size),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_arguments_as_in_transformers),
        cmocka_unit_test(test_warmup_ratio_rounds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
