/* run-tests: not=tsan */
/* test_serve_blocks.c - blocks and the schedule under random operations: the invariants of blocks.h and schedule.h. */
#include "base/rng.h"
#include "serve/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t drawn;
static int64_t below(int64_t n) { return (int64_t)rng_below(11, 5, drawn++, (uint64_t)n); }

static void good(const struct blocks *b)
{
    struct plim_error err = {0};
    if (blocks_check(b, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static struct block_name name_of(int64_t i)
{
    int32_t tokens[KV_BLOCK] = {(int32_t)i};
    return block_name_of((uint64_t)i % 3, tokens);
}

/* A model of the pool: who owns which block how often. */
enum { MOST = 40 };

static void test_blocks(void **state)
{
    (void)state;
    struct blocks b;
    struct plim_error err = {0};
    int owners[2 * MOST] = {0};
    int32_t to[2 * MOST];
    assert_int_equal(blocks_init(&b, MOST, &err), PLIM_OK);
    for (int i = 0; i < 20000; i++) {
        int64_t owned = 0, pick = below(b.count), what = below(100);
        for (int64_t k = 0; k < b.count; k++) owned += owners[k] > 0;
        assert_int_equal(owned, b.count - blocks_left(&b));
        if (what < 35) {
            int32_t id = blocks_take(&b);
            assert_true(id >= 0 || owned == b.count);
            if (id >= 0) assert_int_equal(owners[id]++, 0);
        } else if (what < 70 && owners[pick]) {
            blocks_drop(&b, (int32_t)pick), owners[pick]--;
        } else if (what < 85 && owners[pick] == 1) {
            struct block_name name = name_of(below(30));
            blocks_name(&b, (int32_t)pick, &name);
        } else if (what < 97) {
            struct block_name name = name_of(below(30));
            int32_t id = blocks_find(&b, &name);
            if (id >= 0) owners[id]++, assert_memory_equal(&b.block[id].name, &name, sizeof name);
        } else {
            int64_t count = 1 + below(2 * MOST - 1), had = b.count;
            int moved[2 * MOST] = {0};
            enum plim_status status = blocks_resize(&b, count, to, &err);
            assert_int_equal(status, owned > count ? PLIM_NO_FIT : PLIM_OK);
            if (status != PLIM_OK) continue;
            for (int64_t k = 0; k < had; k++) {
                if (owners[k]) assert_true(to[k] >= 0 && to[k] < count && (k >= count || to[k] == k));
                if (to[k] >= 0 && owners[k]) moved[to[k]] += owners[k];
            }
            memcpy(owners, moved, sizeof owners);
        }
        if (i % 16 == 0) good(&b);
    }
    blocks_release(&b);
}

/* The same tokens after others are another block, however far back the others differ. */
static void test_names(void **state)
{
    (void)state;
    struct blocks b;
    struct plim_error err = {0};
    int32_t same[KV_BLOCK] = {7, 8, 9}, first[2][KV_BLOCK] = {{1}, {2}};
    struct block_name chain[2][4];
    for (int c = 0; c < 2; c++) {
        chain[c][0] = block_name_of(5, first[c]);
        for (int i = 1; i < 4; i++) chain[c][i] = block_name_of(chain[c][i - 1].hash, same);
    }
    assert_int_equal(blocks_init(&b, 8, &err), PLIM_OK);
    for (int i = 0; i < 4; i++) {
        int32_t id = blocks_take(&b);
        blocks_name(&b, id, &chain[0][i]);
        assert_int_equal(blocks_find(&b, &chain[0][i]), id);
        assert_int_equal(blocks_find(&b, &chain[1][i]), -1);
    }
    /* A hash alone is no name: one that is equal by chance has other tokens, or others before them. */
    struct block_name forged = chain[0][2];
    forged.before++;
    assert_int_equal(blocks_find(&b, &forged), -1);
    forged = chain[0][2], forged.tokens[KV_BLOCK - 1]++;
    assert_int_equal(blocks_find(&b, &forged), -1);
    blocks_release(&b);
}

/* What nobody has had for longest goes first. */
static void test_eviction(void **state)
{
    (void)state;
    struct blocks b;
    struct plim_error err = {0};
    int32_t id[4];
    assert_int_equal(blocks_init(&b, 4, &err), PLIM_OK);
    for (int i = 0; i < 4; i++) {
        struct block_name name = name_of(i);
        id[i] = blocks_take(&b);
        blocks_name(&b, id[i], &name);
    }
    for (int i = 0; i < 4; i++) blocks_drop(&b, id[(i + 1) % 4]); /* 1 2 3 0 */
    struct block_name one = name_of(1), two = name_of(2);
    assert_int_equal(blocks_find(&b, &one), id[1]);
    blocks_drop(&b, id[1]); /* 2 3 0 1 */
    assert_int_equal(blocks_take(&b), id[2]);
    assert_int_equal(blocks_find(&b, &two), -1);
    assert_int_equal(blocks_take(&b), id[3]);
    assert_int_equal(blocks_take(&b), id[0]);
    assert_int_equal(blocks_take(&b), id[1]);
    assert_int_equal(blocks_take(&b), -1);
    blocks_release(&b);
}

/* --- the schedule ----------------------------------------------------------------------------------------- */

enum { SEQUENCES = 12, LONG = 90, POOL = 8 }; /* blocks for one of the longest and little more */

struct one {
    struct sequence q; /* first */
    int32_t tokens[LONG], table[LONG];
    int64_t wanted;
};

static void fresh(struct one *o)
{
    memset(o, 0, sizeof *o);
    int64_t text = below(3);
    /* Texts differ in their first block alone: what follows is equal, and is not the same. */
    for (int64_t i = 0; i < LONG; i++) o->tokens[i] = (int32_t)((i < KV_BLOCK ? text * 7 : 0) + i % 5);
    o->q = (struct sequence){.tokens = o->tokens, .table = o->table};
    o->q.known = o->q.prompt = 1 + below(LONG - 10);
    o->q.every = below(6) == 0;
    o->wanted = o->q.known + 1 + below(LONG - o->q.known);
}

/* Invariants 2 and 4, and that a step is within its limits. */
static void check_step(const struct schedule *s, const struct step_row *rows, int n)
{
    int64_t tokens = 0, logits = 0;
    bool oldest = false;
    for (int k = 0; k < n; k++) {
        const struct sequence *q = rows[k].sequence;
        tokens += rows[k].count, logits += q->every ? rows[k].count : 1;
        oldest = oldest || q == s->queue[0];
        assert_true(q->running && rows[k].first == q->computed &&
                    q->held >= blocks_for(q->computed + rows[k].count));
        assert_int_equal(rows[k].last, q->computed + rows[k].count == q->known);
        if (s->chunk) assert_true(rows[k].count <= s->chunk);
        for (int64_t i = rows[k].first / KV_BLOCK; i < blocks_for(rows[k].first + rows[k].count); i++)
            assert_int_equal(s->blocks->block[q->table[i]].owners, 1);
        for (int j = 0; j < k; j++) assert_true(rows[j].sequence != q);
    }
    assert_true(n <= s->rows && tokens <= s->tokens && logits <= s->rows);
    assert_true(oldest || !s->count);
}

/* Keys and values of a position stand for all tokens up to it. */
static int32_t written(const struct sequence *q, int64_t p)
{
    uint32_t all = 2166136261u;
    for (int64_t i = 0; i <= p; i++) all = (all ^ (uint32_t)q->tokens[i]) * 16777619u;
    return (int32_t)all;
}

/* Blocks say which tokens they were written with: what a sequence reads is what it wrote, or somebody with the same text. */
static void write_blocks(int32_t wrote[][KV_BLOCK], const struct step_row *rows, int n)
{
    for (int k = 0; k < n; k++)
        for (int64_t p = rows[k].first; p < rows[k].first + rows[k].count; p++)
            wrote[rows[k].sequence->table[p / KV_BLOCK]][p % KV_BLOCK] = written(rows[k].sequence, p);
    for (int k = 0; k < n; k++)
        for (int64_t p = 0; p < rows[k].first + rows[k].count; p++)
            assert_int_equal(wrote[rows[k].sequence->table[p / KV_BLOCK]][p % KV_BLOCK],
                             written(rows[k].sequence, p));
}

/* The step that was foretold, in any order. */
static void check_same(const struct step_row *rows, int n, const struct step_row *next, int ahead)
{
    assert_int_equal(n, ahead);
    for (int k = 0; k < n; k++) {
        int i = 0;
        while (i < n && next[i].sequence != rows[k].sequence) i++;
        assert_true(i < n && next[i].first == rows[k].first && rows[k].count == 1 && rows[k].last);
    }
}

static void run_schedule(int64_t tokens, int64_t most, int64_t chunk, bool share)
{
    static struct one one[SEQUENCES];
    struct blocks b;
    struct plim_error err = {0};
    struct step_row rows[SEQUENCES], next[SEQUENCES];
    int32_t wrote[4 * POOL][KV_BLOCK], to[4 * POOL];
    int finished = 0, ahead = 0, told = 0;
    assert_int_equal(blocks_init(&b, POOL, &err), PLIM_OK);
    struct schedule s = {
        .blocks = &b, .tokens = tokens, .rows = most, .chunk = chunk, .seed = 5, .share = share};
    for (int i = 0; i < SEQUENCES; i++)
        fresh(&one[i]), assert_int_equal(schedule_add(&s, &one[i].q, &err), PLIM_OK);
    for (int step = 0; step < 3000 && s.count; step++) {
        int n = schedule_step(&s, rows);
        check_step(&s, rows, n);
        good(&b);
        if (ahead) check_same(rows, n, next, ahead);
        ahead = schedule_next(&s, rows, n, next);
        told += ahead;
        good(&b);
        if (below(10) == 0) { /* the device failed: the same once more */
            ahead = 0;
            continue;
        }
        write_blocks(wrote, rows, n);
        schedule_done(&s, rows, n);
        for (int k = 0; k < n; k++) {
            struct one *o = (struct one *)(void *)rows[k].sequence;
            if (rows[k].last) o->q.known++;
            if (o->q.known <= o->wanted && below(60)) continue;
            schedule_remove(&s, &o->q);
            finished++, ahead = 0;
            if (finished > 60) continue;
            fresh(o);
            assert_int_equal(schedule_add(&s, &o->q, &err), PLIM_OK);
        }
        if (below(20)) continue;
        ahead = 0;
        int64_t count = POOL + below(3 * POOL), had = b.count;
        int32_t old[4 * POOL][KV_BLOCK];
        memcpy(old, wrote, sizeof old);
        schedule_shrink(&s, count);
        assert_int_equal(blocks_resize(&b, count, to, &err), PLIM_OK);
        for (int64_t i = 0; i < had; i++)
            if (to[i] >= 0) memcpy(wrote[to[i]], old[i], sizeof old[i]);
        schedule_renumber(&s, to);
    }
    assert_int_equal(s.count, 0);
    assert_int_equal(blocks_left(&b), b.count);
    assert_true(finished >= 60 && told > 0);
    schedule_release(&s);
    blocks_release(&b);
}

static void test_schedule(void **state)
{
    (void)state;
    run_schedule(64, 8, 0, true);
    run_schedule(64, 8, 0, false);
    run_schedule(9, 4, 3, true);
    run_schedule(1, 1, 0, true);
    run_schedule(200, SEQUENCES, 17, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks), cmocka_unit_test(test_eviction),
                                       cmocka_unit_test(test_names), cmocka_unit_test(test_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
