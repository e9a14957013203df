/* run-tests: not=tsan */
/* test_pack.c - the packer: correct for every input, exact where it can be proved, close to the bound on
 * tapes. */
#include "pack_tapes.h"
#include "plan/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* --- chance ----------------------------------------------------------------------------------------- */

static uint64_t chance_state;

static int64_t below(int64_t n)
{
    chance_state = chance_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((chance_state >> 33) % (uint64_t)n);
}

/* --- what must hold for every packing ---------------------------------------------------------------- */

static int64_t round_up(int64_t size, int64_t align) { return (size + (align - 1)) / align * align; }

/* The peak of live bytes; it is where something begins. */
static int64_t live_peak(const struct pack_item *items, int n, int64_t align)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        int64_t live = 0, at = items[i].lower;
        for (int k = 0; k < n; k++)
            if (items[k].lower <= at && at < items[k].upper) live += round_up(items[k].size, align);
        if (live > most) most = live;
    }
    return most;
}

static void check_packing(const struct pack_item *items, int n, int64_t align, const struct pack_result *r)
{
    int a, b;
    int64_t top = 0;
    assert_false(pack_conflict(items, n, &a, &b));
    for (int i = 0; i < n; i++) {
        assert_true(items[i].offset >= 0);
        assert_int_equal(items[i].offset % align, 0);
        if (items[i].size == 0) assert_int_equal(items[i].offset, 0);
        int64_t end = items[i].offset + round_up(items[i].size, align);
        if (items[i].size && end > top) top = end;
    }
    assert_int_equal(r->height, top);
    assert_int_equal(r->lower_bound, live_peak(items, n, align));
    assert_true(r->height >= r->lower_bound);
    assert_non_null(r->method);
}

/* For searches that end by themselves, on machines of any speed. */
enum { AN_HOUR_MS = 3600 * 1000 };

static struct pack_result pack(struct pack_item *items, int n, int64_t align, int64_t effort_ms)
{
    struct pack_result r;
    struct plim_error err = {0};
    struct pack_limits limits = {.align = align, .effort_ms = effort_ms};
    enum plim_status status = pack_items(items, n, &limits, &r, &err);
    if (status != PLIM_OK) fail_msg("%s", err.text);
    check_packing(items, n, align ? align : 1, &r);
    return r;
}

static struct pack_item *random_items(int n, int64_t times, int64_t sizes)
{
    struct pack_item *items = calloc((size_t)n + 1, sizeof *items);
    assert_non_null(items);
    for (int i = 0; i < n; i++) {
        items[i].lower = below(times);
        items[i].upper = items[i].lower + 1 + below(times);
        items[i].size = below(sizes + 1);
    }
    return items;
}

/* --- corners ------------------------------------------------------------------------------------------ */

static void test_nothing(void **state)
{
    (void)state;
    struct pack_result r = pack(NULL, 0, 0, 0);
    assert_int_equal(r.height, 0);
    struct pack_item empty[] = {{0, 5, 0, 77}, {2, 3, 0, 78}};
    r = pack(empty, 2, 64, 10);
    assert_int_equal(r.height, 0);
    assert_int_equal(empty[0].offset, 0);
}

static void test_one(void **state)
{
    (void)state;
    struct pack_item one = {-5, 5, 100, 9};
    assert_int_equal(pack(&one, 1, 0, 0).height, 100);
    assert_int_equal(one.offset, 0);
    assert_int_equal(pack(&one, 1, 64, 5).height, 128);
}

static void test_touching_lives_share(void **state)
{
    (void)state;
    struct pack_item items[] = {{0, 3, 64, 0}, {3, 6, 64, 0}, {6, 9, 64, 0}};
    assert_int_equal(pack(items, 3, 1, 0).height, 64);
}

static void test_identical(void **state)
{
    (void)state;
    struct pack_item items[50];
    for (int i = 0; i < 50; i++) items[i] = (struct pack_item){3, 4, 10, 0};
    assert_int_equal(pack(items, 50, 1, 0).height, 500);
    assert_int_equal(pack(items, 50, 16, 0).height, 800);
}

static void test_huge(void **state)
{
    (void)state;
    int64_t big = INT64_C(1) << 62;
    struct pack_item apart[] = {{0, 1, big, 0}, {1, 2, big, 0}, {2, 3, big, 0}, {0, 3, big - 3, 0}};
    struct pack_result r = pack(apart, 4, 1, 20);
    assert_int_equal(r.height, r.lower_bound);
    struct pack_item together[] = {{0, 2, big, 0}, {1, 3, big, 0}};
    struct plim_error err = {0};
    assert_int_equal(pack_items(together, 2, NULL, &r, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "2^63-1"));
    struct pack_item widest = {INT64_MIN, INT64_MAX, INT64_MAX, 0};
    assert_int_equal(pack(&widest, 1, 1, 0).height, INT64_MAX);
    assert_int_equal(pack_items(&widest, 1, &(struct pack_limits){.align = 4096}, &r, NULL), PLIM_BAD_INPUT);
}

static void test_bad_input(void **state)
{
    (void)state;
    struct pack_result r;
    struct plim_error err = {0};
    struct pack_item items[] = {{0, 4, 8, 5}, {2, 2, 8, 6}};
    assert_int_equal(pack_items(items, 2, NULL, &r, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "item 1"));
    assert_int_equal(items[0].offset, 5);
    items[1] = (struct pack_item){2, 3, -8, 6};
    assert_int_equal(pack_items(items, 2, NULL, &r, &err), PLIM_BAD_INPUT);
    assert_int_equal(pack_items(items, 1, &(struct pack_limits){.align = -1}, &r, NULL), PLIM_BAD_INPUT);
    assert_int_equal(pack_items(items, 1, &(struct pack_limits){.capacity = -1}, &r, NULL), PLIM_BAD_INPUT);
    assert_int_equal(pack_items(items, -1, NULL, &r, NULL), PLIM_BAD_INPUT);
}

static void test_capacity(void **state)
{
    (void)state;
    struct pack_result r;
    struct plim_error err = {0};
    struct pack_item items[] = {{0, 4, 60, 0}, {2, 6, 40, 0}, {5, 9, 30, 0}};
    assert_int_equal(pack_items(items, 3, &(struct pack_limits){.capacity = 100}, &r, &err), PLIM_OK);
    assert_int_equal(pack_items(items, 3, &(struct pack_limits){.capacity = 99, .effort_ms = 20}, &r, &err),
                     PLIM_NO_FIT);
    assert_non_null(strstr(err.text, "100"));
    check_packing(items, 3, 1, &r);
    assert_int_equal(r.height, 100);
}

/* --- every packing is correct -----------------------------------------------------------------------------
 */

static void test_random(void **state)
{
    (void)state;
    chance_state = 1;
    for (int round = 0; round < 400; round++) {
        int n = 1 + (int)below(round % 10 ? 60 : 700);
        int64_t align = INT64_C(1) << below(9), times = 1 + below(3 * n),
                sizes = 1 + below(round % 3 ? 2000 : 4);
        struct pack_item *items = random_items(n, times, sizes);
        pack(items, n, align, round % 8 ? 0 : 3);
        free(items);
    }
}

static void test_same_every_time(void **state)
{
    (void)state;
    chance_state = 2;
    struct pack_item *items = random_items(500, 300, 5000), *again = calloc(500, sizeof *again);
    assert_non_null(again);
    memcpy(again, items, 500 * sizeof *again);
    pack(items, 500, 8, 0);
    pack(again, 500, 8, 0);
    assert_memory_equal(items, again, 500 * sizeof *again);
    free(items);
    free(again);
}

static void test_parts_in_time(void **state)
{
    (void)state;
    chance_state = 3;
    struct pack_item *items = random_items(200, 20, 100);
    for (int i = 0; i < 200; i++) items[i].lower += i % 5 * 1000, items[i].upper += i % 5 * 1000;
    items[7].size = 100000; /* the part it is in decides; the others need no effort */
    struct pack_result r = pack(items, 200, 1, 50);
    assert_int_equal(r.height, r.lower_bound);
    free(items);
}

/* --- the best packing, where it is known
 * ---------------------------------------------------------------------- */

/* Every packing that cannot be pushed down comes from dropping the items in some order. */
static int64_t best_by_force(struct pack_item *items, int n, int placed)
{
    int64_t best = INT64_MAX;
    if (placed == n) {
        best = 0;
        for (int i = 0; i < n; i++)
            if (items[i].offset + items[i].size > best) best = items[i].offset + items[i].size;
        return best;
    }
    for (int i = placed; i < n; i++) {
        struct pack_item pick = items[i];
        items[i] = items[placed];
        pick.offset = 0;
        for (int k = 0; k < placed; k++) {
            const struct pack_item *x = &items[k];
            bool meets = x->lower < pick.upper && pick.lower < x->upper;
            if (meets && x->offset + x->size > pick.offset) pick.offset = x->offset + x->size;
        }
        items[placed] = pick;
        int64_t height = best_by_force(items, n, placed + 1);
        if (height < best) best = height;
        items[placed] = items[i];
        items[i] = pick;
    }
    return best;
}

static void test_small_ones_are_best(void **state)
{
    (void)state;
    chance_state = 4;
    for (int round = 0; round < 100; round++) {
        int n = 6 + (int)below(3);
        struct pack_item *items = random_items(n, 7, 4);
        for (int i = 0; i < n; i++) items[i].upper = items[i].lower + 1 + below(4);
        int64_t best = best_by_force(items, n, 0);
        assert_int_equal(pack(items, n, 1, AN_HOUR_MS).height, best);
        free(items);
    }
}

/* Small problems whose best packing is above the bound are rare. The search must see that this one is, and
 * not use up its hour. */
static void test_search_knows_when_to_stop(void **state)
{
    (void)state;
    struct pack_item items[] = {
        {4, 5, 4, 0}, {2, 5, 2, 0}, {3, 4, 2, 0}, {0, 2, 4, 0}, {1, 3, 3, 0},
        {3, 5, 2, 0}, {0, 4, 1, 0}, {2, 4, 1, 0}, {0, 1, 2, 0},
    };
    assert_int_equal(best_by_force(items, 9, 0), 9);
    struct pack_result r = pack(items, 9, 1, AN_HOUR_MS);
    assert_int_equal(r.lower_bound, 8);
    assert_int_equal(r.height, 9);
}

/* A rectangle cut into pieces: the pieces fill it without a hole, in one of very few ways. */
static int cut(struct pack_item *items, int n, struct pack_item whole, int pieces)
{
    int64_t life = whole.upper - whole.lower;
    bool across = life > 1 && (whole.size < 2 || below(2));
    if (pieces < 2 || (life < 2 && whole.size < 2)) {
        items[n] = whole;
        return n + 1;
    }
    struct pack_item low = whole, high = whole;
    if (across)
        low.upper = high.lower = whole.lower + 1 + below(life - 1);
    else
        low.size = 1 + below(whole.size - 1), high.size = whole.size - low.size;
    int first = 1 + (int)below(pieces - 1);
    n = cut(items, n, low, first);
    return cut(items, n, high, pieces - first);
}

static void test_search_fits_without_a_hole(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct pack_item items[80];
        struct pack_result r;
        struct plim_error err = {0};
        chance_state = (uint64_t)round;
        int n = cut(items, 0, (struct pack_item){0, 1000, 1000, 0}, 80);
        struct pack_limits limits = {.capacity = 1000, .effort_ms = AN_HOUR_MS};
        if (pack_items(items, n, &limits, &r, &err) != PLIM_OK) fail_msg("round %d: %s", round, err.text);
        check_packing(items, n, 1, &r);
    }
}

/* --- tapes
 * ---------------------------------------------------------------------------------------------------- */

static struct pack_tape_shape random_shape(void)
{
    struct pack_tape_shape s = {
        .layers = 2 + (int)below(40),
        .batch = 1 + (int)below(8),
        .time = 128 << below(6),
        .channels = 64 * (4 + (int)below(60)),
        .vocabulary = 32000 + (int)below(90000),
        .micro_batches = below(3) ? 1 : 1 + (int)below(4),
        .loss_chunks = below(2) ? 1 : 1 + (int)below(16),
        .recompute = (enum pack_tape_recompute)below(3),
        .offload_weights = below(3) == 0,
        .offload_activations = below(3) == 0,
        .update_early = below(2) == 0,
        .resident = below(2) == 0,
    };
    s.kv_channels = below(2) ? s.channels : s.channels / 4;
    s.hidden = s.channels * (2 + (int)below(3)) + 64 * (int)below(8);
    if (s.micro_batches > 1) s.update_early = false;
    return s;
}

static void test_tapes(void **state)
{
    (void)state;
    chance_state = 5;
    int exact = 0, rounds = 100;
    for (int round = 0; round < rounds; round++) {
        struct pack_tape_shape shape = random_shape();
        struct pack_tape tape = {0};
        pack_tape_step(&tape, &shape);
        struct pack_result r = pack(tape.items, tape.n, 256, 0);
        if (r.height > r.lower_bound + r.lower_bound / 50)
            fail_msg("tape %d of %d items: %.4f times the lower bound", round, tape.n,
                     (double)r.height / (double)r.lower_bound);
        exact += r.height == r.lower_bound;
        pack_tape_release(&tape);
    }
    assert_true(exact >= rounds * 85 / 100);
}

/* The plain cases are at the bound, always: nothing dropped, all layers recomputed, a streamed model. */
static void test_plain_tapes_are_exact(void **state)
{
    (void)state;
    struct pack_tape_shape base = {
        .layers = 32, .batch = 4, .time = 1024, .channels = 2048, .kv_channels = 512};
    base.hidden = 5632, base.vocabulary = 32000, base.micro_batches = 1, base.loss_chunks = 8;
    for (int i = 0; i < 12; i++) {
        struct pack_tape_shape shape = base;
        struct pack_tape tape = {0};
        shape.recompute = (enum pack_tape_recompute)(i % 3);
        shape.resident = i / 3 % 2, shape.update_early = i / 6;
        pack_tape_step(&tape, &shape);
        struct pack_result r = pack(tape.items, tape.n, 256, 0);
        assert_int_equal(r.height, r.lower_bound);
        pack_tape_release(&tape);
    }
}

/* --- the checker and the bound against their definitions
 * --------------------------------------------------------- */

static bool clash(const struct pack_item *x, const struct pack_item *y)
{
    return x->size && y->size && x->lower < y->upper && y->lower < x->upper &&
           x->offset < y->offset + y->size && y->offset < x->offset + x->size;
}

static void test_checker(void **state)
{
    (void)state;
    chance_state = 6;
    int clean = 0;
    for (int round = 0; round < 2000; round++) {
        int n = 2 + (int)below(round % 20 ? 12 : 200), a = -1, b = -1;
        struct pack_item *items = random_items(n, 1 + below(40), 1 + below(6));
        for (int i = 0; i < n; i++) items[i].offset = below(round % 2 ? 30 : 3000);
        bool expected = false;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < i; k++) expected = expected || clash(&items[i], &items[k]);
        assert_int_equal(pack_conflict(items, n, &a, &b), expected);
        if (expected) {
            assert_true(a < b);
            assert_true(clash(&items[a], &items[b]));
        }
        clean += !expected;
        free(items);
    }
    assert_true(clean > 100 && clean < 1900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_one),
        cmocka_unit_test(test_touching_lives_share),
        cmocka_unit_test(test_identical),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_same_every_time),
        cmocka_unit_test(test_parts_in_time),
        cmocka_unit_test(test_small_ones_are_best),
        cmocka_unit_test(test_search_knows_when_to_stop),
        cmocka_unit_test(test_search_fits_without_a_hole),
        cmocka_unit_test(test_tapes),
        cmocka_unit_test(test_plain_tapes_are_exact),
        cmocka_unit_test(test_checker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
