/* run-tests: not=tsan */
/* test_serve_full.c - the schedule at full load: who is let in, what that costs, and what is foreseen. The device is a clock that
 * takes a fixed time for a step and for each token, so nothing here depends on the machine. */
#include "base/rng.h"
#include "serve/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t drawn;
static int64_t below(int64_t n) { return (int64_t)rng_below(17, 9, drawn++, (uint64_t)n); }

/* --- the forecast ----------------------------------------------------------------------------------------- */

enum { MANY = 60 };

/* The same by going through time. */
static int64_t peak_of(const int64_t *left, const int64_t *own, int n, int64_t longest)
{
    int64_t peak = 0;
    for (int64_t t = 0; t <= longest; t++) {
        int64_t all = 0;
        for (int i = 0; i < n; i++)
            if (left[i] >= t) all += own[i] + t;
        if (all > peak) peak = all;
    }
    return peak;
}

static void test_forecast(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        int64_t left[MANY], own[MANY], longest = 1 + below(round % 2 ? 3000 : 200), same = below(2);
        struct forecast f;
        forecast_begin(&f, longest, 7);
        for (int i = 0; i < MANY; i++) left[i] = same ? longest : below(longest + 1), own[i] = below(500);
        for (int i = 0; i + 1 < MANY; i++) forecast_add(&f, left[i], own[i]);
        int64_t truth = 7 + peak_of(left, own, MANY, longest);
        int64_t told = forecast_with(&f, left[MANY - 1], own[MANY - 1]);
        assert_true(told >= truth);
        if (same || f.width == 1) assert_int_equal(told, truth);
        int64_t most = 0;
        for (int i = 0; i < MANY; i++) most += own[i] > most ? own[i] : 0;
        assert_true(told <= truth + MANY * f.width + MANY * 500); /* those of a bucket stay until its end */
        forecast_add(&f, left[MANY - 1], own[MANY - 1]);
        assert_true(forecast_with(&f, 0, 0) >= truth);
    }
}

/* --- full load -------------------------------------------------------------------------------------------- */

struct load {
    int requests, prompt, least, most; /* answers have least to most tokens */
    int promised;                      /* tokens that an answer may have */
    bool whole;                        /* which is what it has */
    bool blind;                        /* nothing is expected of answers */
    int blocks, rows, step;
    int others; /* requests of another kind, before each of these */
    int limit;  /* tokens of their answers, which always reach it */
    bool known; /* and nothing else can end them */
};

struct user {
    struct sequence q; /* first */
    int64_t wanted;
};

struct outcome {
    int64_t steps, tokens, needed, ahead, preempted;
    double running; /* mean over steps */
};

static void add_users(struct schedule *s, struct user *users, const struct load *l, struct outcome *out)
{
    struct plim_error err = {0};
    for (int i = 0; i < l->requests; i++) {
        struct user *u = &users[i];
        bool other = l->others && i % (l->others + 1) < l->others;
        int64_t promised = other ? l->limit : l->promised;
        u->wanted = l->prompt + (other ? l->limit : l->least + below(l->most - l->least + 1));
        u->q =
            (struct sequence){.known = l->prompt, .prompt = l->prompt, .whole = other ? l->known : l->whole};
        u->q.most = l->prompt + promised - 1;
        u->q.table = malloc((size_t)blocks_for(l->prompt + promised) * sizeof *u->q.table);
        out->needed += u->wanted - 1;
        assert_int_equal(schedule_add(s, &u->q, &err), PLIM_OK);
    }
}

static void end_step(struct schedule *s, const struct step_row *rows, int n)
{
    schedule_done(s, rows, n);
    for (int k = 0; k < n; k++) {
        struct user *u = (struct user *)(void *)rows[k].sequence;
        if (!rows[k].last || ++u->q.known < u->wanted) continue;
        schedule_learn(s, &u->q, u->q.known > u->q.most);
        schedule_remove(s, &u->q);
    }
}

/* A foretold step must be the one that comes. */
static void check_foretold(const struct step_row *rows, int n, const struct step_row *next, int ahead)
{
    if (!ahead) return;
    assert_int_equal(n, ahead);
    for (int k = 0; k < n; k++)
        assert_true(rows[k].sequence == next[k].sequence && rows[k].first == next[k].first);
}

static struct outcome run_load(const struct load *l)
{
    struct outcome out = {0};
    struct blocks pool;
    struct plim_error err = {0};
    struct schedule s = {.blocks = &pool, .tokens = l->step, .rows = l->rows, .answer = l->blind ? -1 : 256};
    struct user *users = calloc((size_t)l->requests, sizeof *users);
    struct step_row *rows = calloc((size_t)l->rows, sizeof *rows),
                    *next = calloc((size_t)l->rows, sizeof *next);
    int ahead = 0;
    assert_int_equal(blocks_init(&pool, l->blocks, &err), PLIM_OK);
    add_users(&s, users, l, &out);
    while (s.count) {
        int n = schedule_step(&s, rows), count = s.count;
        check_foretold(rows, n, next, ahead);
        ahead = schedule_next(&s, rows, n, next);
        for (int k = 0; k < n; k++) out.tokens += rows[k].count;
        out.steps++, out.running += n;
        end_step(&s, rows, n);
        if (s.count != count) ahead = 0;
        out.ahead += ahead > 0;
        assert_true(out.steps < 100000);
    }
    assert_int_equal(blocks_left(&pool), pool.count);
    assert_int_equal(s.running, 0);
    out.preempted = s.preemptions, out.running /= (double)out.steps;
    for (int i = 0; i < l->requests; i++) free(users[i].q.table);
    schedule_release(&s);
    blocks_release(&pool);
    free(users), free(rows), free(next);
    return out;
}

/* Prompts of 32, answers of 512: 34 blocks each in the end, so 30 requests and no more fit from beginning to end. */
static const struct load known = {.requests = 200,
                                  .prompt = 32,
                                  .least = 512,
                                  .most = 512,
                                  .promised = 512,
                                  .whole = true,
                                  .blocks = 1024,
                                  .rows = 256,
                                  .step = 512};

static void test_known_lengths(void **state)
{
    (void)state;
    struct load blind = known;
    blind.blind = true;
    struct outcome good = run_load(&known), old = run_load(&blind);
    assert_int_equal(good.preempted, 0);
    assert_int_equal(good.tokens, good.needed);
    assert_true(good.ahead > good.steps * 9 / 10); /* others wait all the time */
    assert_true(good.running > 24);
    assert_true(old.preempted > 100 && old.tokens > old.needed * 5 / 4);
}

/* The same, but an answer might end early: the first ones tell that they do not. */
static void test_limits_are_learnt(void **state)
{
    (void)state;
    struct load unsure = known;
    unsure.whole = false, unsure.requests = 400;
    struct outcome got = run_load(&unsure);
    assert_true(got.preempted < 160 && got.tokens < got.needed * 115 / 100);
}

/* Answers may have 4,096 tokens and have 60 on average: those who come later are expected to be like those before. */
static void test_early_ends(void **state)
{
    (void)state;
    const struct load l = {.requests = 2000,
                           .prompt = 32,
                           .least = 1,
                           .most = 119,
                           .promised = 4096,
                           .blocks = 1024,
                           .rows = 512,
                           .step = 1024};
    struct outcome got = run_load(&l);
    assert_true(got.running > 120);                   /* of the 178 that the pool would hold of mean age */
    assert_true(got.tokens < got.needed * 102 / 100); /* little is computed again */
}

/* Requests for a single token, or with ignore_eos, say nothing about the chats between them. If chats were expected to reach their
 * limits, four of them would fill the pool. */
static void test_other_requests(void **state)
{
    (void)state;
    struct load l = {.requests = 1000,
                     .prompt = 32,
                     .least = 1,
                     .most = 399,
                     .promised = 4096,
                     .blocks = 1024,
                     .rows = 256,
                     .step = 1024,
                     .others = 9,
                     .limit = 1};
    struct outcome got = run_load(&l);
    assert_true(got.steps < 1000 && got.preempted < 10);
    l.others = 1, l.limit = 256, l.known = true;
    got = run_load(&l);
    assert_true(got.running > 50 && got.tokens < got.needed * 102 / 100);
}

/* One prompt in the pool of many requests: they share its blocks, and are not refused for the room that they do not need. */
static void test_shared_beginning(void **state)
{
    (void)state;
    enum { USERS = 64, PROMPT = 480, ANSWER = 32 };
    static int32_t tokens[PROMPT + ANSWER];
    struct user users[USERS] = {{{0}}};
    struct step_row rows[USERS];
    struct blocks pool;
    struct plim_error err = {0};
    int most = 0;
    assert_int_equal(blocks_init(&pool, 256, &err), PLIM_OK); /* eight whole ones */
    struct schedule s = {.blocks = &pool, .tokens = 512, .rows = USERS, .share = true, .answer = 256};
    for (int i = 0; i < USERS; i++) {
        users[i].wanted = PROMPT + ANSWER;
        users[i].q = (struct sequence){.tokens = tokens,
                                       .known = PROMPT,
                                       .prompt = PROMPT,
                                       .most = PROMPT + ANSWER - 1,
                                       .whole = true,
                                       .table = malloc(blocks_for(PROMPT + ANSWER) * sizeof(int32_t))};
        assert_int_equal(schedule_add(&s, &users[i].q, &err), PLIM_OK);
    }
    while (s.count) {
        int n = schedule_step(&s, rows);
        end_step(&s, rows, n);
        most = n > most ? n : most;
    }
    assert_true(most > 40);
    for (int i = 0; i < USERS; i++) free(users[i].q.table);
    schedule_release(&s);
    blocks_release(&pool);
}

/* A prompt takes the blocks of a younger request that decodes. A third one that arrives in the same step
 * waits behind it. */
static void test_nobody_overtakes(void **state)
{
    (void)state;
    enum { OLD, YOUNG, LATE, USERS, BLOCKS = 8 };
    static const int64_t prompts[USERS] = {(BLOCKS - 1) * KV_BLOCK, KV_BLOCK, KV_BLOCK};
    struct user users[USERS] = {{{0}}};
    struct step_row rows[USERS];
    struct blocks pool;
    struct plim_error err = {0};
    assert_int_equal(blocks_init(&pool, BLOCKS, &err), PLIM_OK);
    struct schedule s = {.blocks = &pool, .tokens = 64, .rows = USERS, .chunk = KV_BLOCK, .answer = -1};
    for (int i = 0; i < USERS; i++) {
        users[i].wanted = prompts[i] + 9;
        users[i].q = (struct sequence){.known = prompts[i], .prompt = prompts[i]};
        users[i].q.table = malloc(BLOCKS * sizeof(int32_t));
    }
    assert_int_equal(schedule_add(&s, &users[OLD].q, &err), PLIM_OK);
    assert_int_equal(schedule_add(&s, &users[YOUNG].q, &err), PLIM_OK);
    for (int step = 1; step < BLOCKS - 1; step++) end_step(&s, rows, schedule_step(&s, rows));
    assert_true(users[YOUNG].q.running && s.preemptions == 0 && blocks_left(&pool) == 0);
    assert_int_equal(schedule_add(&s, &users[LATE].q, &err), PLIM_OK);
    end_step(&s, rows, schedule_step(&s, rows));
    assert_int_equal(s.preemptions, 1);
    assert_true(users[OLD].q.running && !users[YOUNG].q.running && !users[LATE].q.running);
    while (s.count) {
        assert_true(!users[LATE].q.running || users[YOUNG].q.running ||
                    users[YOUNG].q.known == users[YOUNG].wanted);
        end_step(&s, rows, schedule_step(&s, rows));
    }
    for (int i = 0; i < USERS; i++) free(users[i].q.table);
    schedule_release(&s);
    blocks_release(&pool);
}

/* The queue keeps its order whoever leaves it, and its memory does not grow with those who have gone. */
static void test_queue(void **state)
{
    (void)state;
    enum { USERS = 40 };
    struct user users[USERS] = {{{0}}};
    struct sequence *order[USERS];
    struct blocks pool;
    struct plim_error err = {0};
    int count = 0;
    assert_int_equal(blocks_init(&pool, 4, &err), PLIM_OK);
    struct schedule s = {.blocks = &pool, .tokens = 8, .rows = 4};
    for (int i = 0; i < 5000; i++) {
        struct user *u = &users[below(USERS)];
        int at = 0;
        while (at < count && order[at] != &u->q) at++;
        if (at == count) {
            assert_int_equal(schedule_add(&s, &u->q, &err), PLIM_OK);
            order[count++] = &u->q;
        } else {
            schedule_remove(&s, &u->q);
            memmove(order + at, order + at + 1, (size_t)(--count - at) * sizeof *order);
        }
        assert_int_equal(s.count, count);
        assert_memory_equal(s.queue, order, (size_t)count * sizeof *order);
    }
    assert_true(s.room <= 2 * USERS + 48);
    schedule_release(&s);
    blocks_release(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forecast),         cmocka_unit_test(test_known_lengths),
        cmocka_unit_test(test_early_ends),       cmocka_unit_test(test_limits_are_learnt),
        cmocka_unit_test(test_other_requests),   cmocka_unit_test(test_shared_beginning),
        cmocka_unit_test(test_nobody_overtakes), cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
