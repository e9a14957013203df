/* What ranks make of each other's bytes: the order of sums, pieces with a short end, errors that all of them get. The ranks are
 * arrays of this process: each call is made for one of them, and its backend sees all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/lane.h"
#include "comm/link.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern char **environ;

enum { RANKS = 3, MOST = 4096 };

static struct world {
    char data[RANKS][MOST]; /* what each rank sends */
    const char *fails;
    int calls; /* of gather */
} world;

static const char *gather(struct comm *comm, const void *piece, size_t piece_bytes, void *whole,
                          size_t whole_bytes)
{
    world.calls++;
    memcpy(world.data[comm->rank], piece, piece_bytes);
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < piece_bytes && r * piece_bytes + i < whole_bytes; i++)
            ((char *)whole)[r * piece_bytes + i] = world.data[r][i];
    return world.fails;
}

static size_t at; /* where in every rank's data the present chunk begins */

static const char *exchange(struct comm *comm, const char *from, size_t whole, size_t stride, size_t bytes,
                            char *to)
{
    (void)from;
    size_t first = (size_t)comm->rank * stride;
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < bytes && first + i < whole; i++)
            to[r * bytes + i] = world.data[r][at + first + i];
    at += bytes;
    return world.fails;
}

static const char *broadcast(struct comm *comm, void *data, size_t bytes, int root)
{
    if (root != comm->rank) memcpy(data, world.data[root], bytes);
    return world.fails;
}

static const struct comm_ops ops = {
    .name = "test", .gather = gather, .exchange = exchange, .broadcast = broadcast};

static struct comm rank(int r) { return (struct comm){.ops = &ops, .rank = r, .ranks = RANKS}; }

static void sums_run_in_the_order_of_ranks(void **state)
{
    (void)state;
    /* (1e8 + 1) - 1e8 is 0 in fp32, 1e8 - 1e8 + 1 is 1: the order shows. */
    static const float parts[RANKS][4] = {{1e8f, 1, 2, 3}, {1, 1, 2, 3}, {-1e8f, 1, 2, 3}};
    for (int r = 0; r < RANKS; r++) memcpy(world.data[r], parts[r], sizeof parts[r]);
    for (int r = 0; r < RANKS; r++) {
        struct comm c = rank(r);
        float piece[2] = {100, 100}, work[64];
        at = 0;
        assert_int_equal(comm_reduce(&c, parts[r], 4, piece, 2, DT_F32, false, work, NULL), PLIM_OK);
        static const float want[RANKS][2] = {{0, 3}, {6, 9}, {0, 0}}; /* the third has nothing of four */
        assert_memory_equal(piece, want[r], sizeof piece);
        at = 0;
        assert_int_equal(comm_reduce(&c, parts[r], 4, piece, 2, DT_F32, true, work, NULL), PLIM_OK);
        assert_true(piece[1] == 2 * want[r][1]);
    }
}

static void narrow_sums_are_rounded_once(void **state)
{
    (void)state;
    uint16_t one = f32_to_bf16(1), small = f32_to_bf16(0.0039f), parts[RANKS] = {one, small, small};
    for (int r = 0; r < RANKS; r++) memcpy(world.data[r], &parts[r], 2);
    struct comm c = rank(0);
    uint16_t piece, work[64];
    at = 0;
    assert_int_equal(comm_reduce(&c, &parts[0], 1, &piece, 1, DT_BF16, false, work, NULL), PLIM_OK);
    assert_int_equal(piece, f32_to_bf16(1 + 2 * bf16_to_f32(small)));
    assert_int_not_equal(piece, one); /* rounded in between, it would be */
}

static void all_ranks_have_the_sum(void **state)
{
    (void)state;
    for (int r = 0; r < RANKS; r++) {
        double mine[2] = {r + 1, 0.5};
        memcpy(world.data[r], mine, sizeof mine);
    }
    for (int r = 0; r < RANKS; r++) {
        struct comm c = rank(r);
        double numbers[2] = {r + 1, 0.5};
        assert_int_equal(comm_sum_numbers(&c, numbers, 2, NULL), PLIM_OK);
        assert_true(numbers[0] == 6 && numbers[1] == 1.5);
    }
}

/* More numbers than are exchanged at a time; of one rank, whose sums are its numbers. */
static void many_numbers_are_summed(void **state)
{
    (void)state;
    double numbers[200];
    struct comm c = {.ops = &ops, .ranks = 1};
    for (int i = 0; i < 200; i++) numbers[i] = i;
    assert_int_equal(comm_sum_numbers(&c, numbers, 200, NULL), PLIM_OK);
    for (int i = 0; i < 200; i++) assert_true(numbers[i] == i);
}

static void a_piece_behind_the_end_is_zeros(void **state)
{
    (void)state;
    static const char whole[] = {1, 2, 3, 4, 5};
    static const char want[RANKS][3] = {{1, 2, 3}, {4, 5, 0}, {0, 0, 0}};
    for (int r = 0; r < RANKS; r++) {
        struct comm c = rank(r);
        char piece[3] = {9, 9, 9};
        comm_piece(&c, whole, 5, piece, 3);
        assert_memory_equal(piece, want[r], 3);
    }
}

/* --- ranks that are threads ---------------------------------------------------------------------------------- */

static pthread_barrier_t meeting;
static const char *sent[RANKS]; /* by rank: what it gives to the others at present */

static const char *thread_gather(struct comm *comm, const void *piece, size_t bytes, void *whole, size_t all)
{
    sent[comm->rank] = piece;
    pthread_barrier_wait(&meeting);
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < bytes && r * bytes + i < all; i++) ((char *)whole)[r * bytes + i] = sent[r][i];
    pthread_barrier_wait(&meeting);
    return NULL;
}

static const char *thread_exchange(struct comm *comm, const char *from, size_t whole, size_t stride,
                                   size_t bytes, char *to)
{
    size_t first = (size_t)comm->rank * stride;
    sent[comm->rank] = from;
    pthread_barrier_wait(&meeting);
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < bytes && first + i < whole; i++) to[r * bytes + i] = sent[r][first + i];
    pthread_barrier_wait(&meeting);
    return NULL;
}

static const struct comm_ops thread_ops = {
    .name = "threads", .gather = thread_gather, .exchange = thread_exchange};

enum { MANY = (64 << 10) / 4 + 41 }; /* floats: more than are summed whole, and no multiple of anything */
static float large[RANKS][MANY];

static float part_of(int r, int i) { return (r == 0 ? 1e8f : r == 1 ? (float)(i % 97) : -1e8f); }

static void *sum_on_the_lane(void *arg)
{
    int r = *(int *)arg;
    struct comm c = {.ops = &thread_ops, .rank = r, .ranks = RANKS};
    void *work = malloc(comm_work(RANKS, sizeof large[r]));
    assert_non_null(work);
    assert_int_equal(lane_open(&c, NULL), PLIM_OK);
    for (int i = 0; i < MANY; i++) large[r][i] = part_of(r, i);
    uint64_t ticket = comm_begin(
        &c, &(struct comm_exchange){COMM_SUM, large[r], large[r], MANY, MANY, DT_F32, false, work});
    assert_int_equal(comm_wait(&c, ticket, NULL), PLIM_OK);
    lane_close(c.lane);
    free(work);
    return NULL;
}

/* Of many elements every rank adds a piece; the order is that of few. */
static void large_sums_run_in_the_order_of_ranks(void **state)
{
    (void)state;
    pthread_t threads[RANKS];
    int numbers[RANKS] = {0, 1, 2};
    pthread_barrier_init(&meeting, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) pthread_create(&threads[r], NULL, sum_on_the_lane, &numbers[r]);
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
    for (int i = 0; i < MANY; i++) {
        float want = part_of(0, i) + part_of(1, i);
        want += part_of(2, i);
        for (int r = 0; r < RANKS; r++) assert_true(large[r][i] == want);
    }
    pthread_barrier_destroy(&meeting);
}

static void the_lane_keeps_the_order(void **state)
{
    (void)state;
    enum { COUNT = 100 }; /* more than wait in its ring */
    struct comm c = rank(0);
    static int64_t all[COUNT][RANKS], mine[COUNT];
    uint64_t ticket = 0;
    memset(&world, 0, sizeof world);
    assert_int_equal(lane_open(&c, NULL), PLIM_OK);
    for (int i = 0; i < COUNT; i++) {
        mine[i] = i;
        ticket = comm_begin(&c, &(struct comm_exchange){COMM_GATHER, &mine[i], all[i], 1, RANKS, DT_F64});
    }
    assert_int_equal(comm_wait(&c, ticket - 1, NULL), PLIM_OK);
    assert_true(all[COUNT - 2][0] == COUNT - 2);
    double number[1] = {4};
    assert_int_equal(comm_sum_numbers(&c, number, 1, NULL), PLIM_OK); /* behind the lane's last */
    assert_int_equal(world.calls, COUNT + 1);
    for (int i = 0; i < COUNT; i++) assert_true(all[i][0] == i);
    lane_close(c.lane);
}

static void the_lanes_first_error_is_everybodys(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct comm c = rank(0);
    int64_t all[RANKS], mine = 1;
    struct comm_exchange x = {COMM_GATHER, &mine, all, 1, RANKS, DT_F64};
    memset(&world, 0, sizeof world);
    world.fails = "some rank did not answer";
    assert_int_equal(lane_open(&c, NULL), PLIM_OK);
    comm_begin(&c, &x);
    uint64_t second = comm_begin(&c, &x);
    assert_int_equal(comm_wait(&c, second, &err), PLIM_LINK);
    assert_string_equal(err.text, "rank 0 of 3: gather: some rank did not answer");
    world.fails = NULL;
    assert_int_equal(comm_agree(&c, PLIM_OK, &err), PLIM_LINK);
    assert_int_equal(comm_gather(&c, &mine, 8, all, sizeof all, &err), PLIM_LINK);
    assert_int_equal(world.calls, 1); /* nobody waits for that rank twice */
    lane_close(c.lane);
}

static void differences_and_failures_are_everybodys(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct comm c = rank(0);
    uint64_t other = 7;
    memset(&world, 0, sizeof world);
    memcpy(world.data[1], &other, sizeof other), memcpy(world.data[2], &other, sizeof other);
    assert_int_equal(comm_same(&c, "a", 1, "the job", &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text,
                        "rank 1: the job is not that of rank 0; start every rank with the same files");
    for (int r = 1; r < RANKS; r++) {
        int64_t code = PLIM_NO_FIT;
        memset(&world, 0, sizeof world);
        memcpy(world.data[r], &code, sizeof code);
        assert_int_equal(comm_agree(&c, PLIM_OK, &err), PLIM_NO_FIT);
        code = PLIM_LINK; /* the other rank's: this one can still tell */
        memcpy(world.data[r], &code, sizeof code);
        assert_int_equal(comm_agree(&c, PLIM_OK, &err), PLIM_IO);
    }
    memset(&world, 0, sizeof world);
    assert_int_equal(comm_agree(&c, PLIM_OK, &err), PLIM_OK);
    world.fails = "some rank did not answer";
    assert_int_equal(comm_agree(&c, PLIM_OK, &err), PLIM_LINK);
    assert_string_equal(err.text, "rank 0 of 3: agree: some rank did not answer");
    world.fails = NULL;
    assert_int_equal(comm_agree(NULL, PLIM_NO_FIT, &err), PLIM_NO_FIT);
}

/* --- how fast it is ------------------------------------------------------------------------------------------------ */

static const char *nap(void) { return nanosleep(&(struct timespec){0, 100000}, NULL) ? "interrupted" : NULL; }

static const char *slow_gather(struct comm *comm, const void *piece, size_t bytes, void *whole, size_t all)
{
    for (int r = 0; r < comm->ranks && (size_t)r * bytes < all; r++)
        memcpy((char *)whole + (size_t)r * bytes, piece,
               (size_t)(r + 1) * bytes <= all ? bytes : all % bytes);
    return nap();
}

static const char *slow_exchange(struct comm *comm, const char *from, size_t whole, size_t stride,
                                 size_t bytes, char *to)
{
    (void)comm, (void)from, (void)whole, (void)stride, (void)bytes, (void)to;
    return nap();
}

static const struct comm_ops slow_ops = {
    .name = "slow", .gather = slow_gather, .exchange = slow_exchange, .broadcast = broadcast};

/* Measured once beside so many threads, and once without; remembered for each. */
static void links_are_remembered(void **state)
{
    (void)state;
    char folder[] = "/tmp/plimsoll-link-XXXXXX", remove[96];
    struct comm c = {.ops = &slow_ops, .rank = 0, .ranks = 2};
    struct threads *team = NULL;
    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("PLIMSOLL_CALIBRATE");
    struct context context = {.environment = environ};
    c.context = &context;
    assert_int_equal(threads_start(1, &team, NULL), PLIM_OK);
    assert_int_equal(lane_open(&c, NULL), PLIM_OK);
    for (int beside = 0; beside < 2; beside++) {
        struct link_rates first, again;
        bool known = false;
        assert_int_equal(link_recall(&c, beside, &again, &known, NULL), PLIM_OK);
        assert_false(known);
        assert_int_equal(link_measure(&c, beside ? team : NULL, &first, NULL), PLIM_OK);
        assert_true(first.bandwidth > 0 && first.reduce_share > 0 && first.load >= 0);
        assert_true(first.beside > 0 && first.beside <= 1);
        assert_true(first.seconds >= 1e-4 && first.load < 1);
        if (!beside) assert_true(first.load == 0);
        assert_int_equal(link_recall(&c, beside, &again, &known, NULL), PLIM_OK);
        assert_true(known && again.seconds > 0);
        assert_true(link_recall_here(&context, 2, beside, &again) && again.bandwidth == first.bandwidth);
        assert_true(again.load < first.load + 1e-3 && again.load > first.load - 1e-3);
    }
    setenv("PLIMSOLL_CALIBRATE", "0", 1);
    context.environment = environ;
    struct link_rates fixed;
    assert_int_equal(link_measure(&c, team, &fixed, NULL), PLIM_UNSUPPORTED);
    assert_false(link_recall_here(&context, 2, 1, &fixed));
    lane_close(c.lane);
    threads_free(team);
    snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    assert_int_equal(system(remove), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_run_in_the_order_of_ranks),
        cmocka_unit_test(narrow_sums_are_rounded_once),
        cmocka_unit_test(all_ranks_have_the_sum),
        cmocka_unit_test(many_numbers_are_summed),
        cmocka_unit_test(a_piece_behind_the_end_is_zeros),
        cmocka_unit_test(large_sums_run_in_the_order_of_ranks),
        cmocka_unit_test(the_lane_keeps_the_order),
        cmocka_unit_test(the_lanes_first_error_is_everybodys),
        cmocka_unit_test(differences_and_failures_are_everybodys),
        cmocka_unit_test(links_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
