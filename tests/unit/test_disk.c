/* test_disk.c - the disk tier's file: both engines, past the page cache and through it, hold the same bytes whatever is asked
 * of them; failures are told and kept; and how fast a disk is, is remembered by its file system. */
#include "base/fault.h"
#include "base/rng.h"
#include "exec/disk.h"
#include "exec/disk_speed.h"
#include "mem/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

extern char **environ;

static struct plim_error err;

enum { BYTES = 3 << 20, MOST = 700 << 10, ROUNDS = 120, READS = 6 };

/* Engines, and ways to the file; pieces so small that requests have many, and larger than some requests. */
static const struct disk_options ways[] = {
    {.depth = 0, .piece = 0},    {.no_uring = true},
    {.no_direct = true},         {.no_uring = true, .no_direct = true},
    {.depth = 1, .piece = 4096}, {.depth = 7, .piece = 8192, .no_uring = true},
};
enum { WAYS = sizeof ways / sizeof *ways };

static struct disk_store *open_way(const struct disk_options *way, uint64_t bytes)
{
    struct disk_store *disk;
    if (disk_open(".", bytes, way, &disk, &err) != PLIM_OK) fail_msg("%s", err.text);
    return disk;
}

static uint64_t pick(uint64_t round, uint64_t index, uint64_t below)
{
    return rng_below(5, round, index, below);
}

/* Writes and reads ahead at any offset and of any length, held against a copy in memory. */
static void check_way(const struct disk_options *way, unsigned char *want, unsigned char *got)
{
    struct disk_store *disk = open_way(way, BYTES);
    memset(want, 0, BYTES);
    assert_int_equal(disk_write(disk, want, BYTES, 0, &err), PLIM_OK);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t n = 1 + pick(round, 0, round % 3 ? 9000 : MOST), at = pick(round, 1, BYTES - n + 1);
        for (uint64_t i = 0; i < n; i++) want[at + i] = (unsigned char)(round * 37 + i * 11 + (i >> 8));
        assert_int_equal(disk_write(disk, want + at, n, at, &err), PLIM_OK);
        uint64_t tickets[READS], from[READS], length[READS];
        for (int k = 0; k < READS; k++) { /* some of what has just been written, some beside it */
            length[k] = 1 + pick(round, 10 + (uint64_t)k, 20000);
            from[k] = k % 2 ? pick(round, 20 + (uint64_t)k, BYTES - length[k]) : at;
            if (from[k] + length[k] > BYTES) length[k] = BYTES - from[k];
            tickets[k] = disk_prefetch(disk, got + k * 20000, length[k], from[k]);
        }
        for (int k = READS - 1; k >= 0; k--) {
            assert_int_equal(disk_wait(disk, tickets[k], &err), PLIM_OK);
            assert_memory_equal(got + k * 20000, want + from[k], length[k]);
        }
    }
    assert_int_equal(disk_settle(disk, &err), PLIM_OK);
    assert_int_equal(disk_read(disk, got, BYTES, 0, &err), PLIM_OK);
    assert_memory_equal(got, want, BYTES);
    disk_close(disk);
}

static void test_engines_agree(void **state)
{
    unsigned char *want = malloc(BYTES), *got = malloc(BYTES);
    (void)state;
    assert_true(want && got);
    for (int w = 0; w < WAYS; w++) check_way(&ways[w], want, got);
    free(want), free(got);
}

/* Every request has its own time, whatever its size; one that nobody asks about writes none. */
static void test_times(void **state)
{
    (void)state;
    enum { REQUESTS = 40 };
    static const size_t sizes[] = {100, MOST, 5000};
    unsigned char *buf = calloc(1, BYTES);
    assert_non_null(buf);
    for (int w = 0; w < WAYS; w++) {
        struct clock_span when[REQUESTS];
        struct disk_store *disk = open_way(&ways[w], BYTES);
        for (int i = 0; i < REQUESTS; i++) {
            when[i].ended = -1;
            if (i % 7) disk_time_next(disk, &when[i]);
            if (i % 2)
                disk_prefetch(disk, buf, sizes[i % 3], 0);
            else
                assert_int_equal(disk_write(disk, buf, sizes[i % 3], 0, &err), PLIM_OK);
        }
        assert_int_equal(disk_settle(disk, &err), PLIM_OK);
        double now = clock_seconds();
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(when[i].ended >= 0, i % 7 != 0);
            if (i % 7)
                assert_true(when[i].began > 0 && when[i].ended >= when[i].began && when[i].ended <= now);
        }
        disk_close(disk);
    }
    free(buf);
}

static void test_description(void **state)
{
    (void)state;
    struct disk_store *disk = open_way(&ways[3], 4096);
    assert_string_equal(disk_describe(disk), "threads, 4 x 64 KiB, through the page cache (asked for)");
    disk_close(disk);
    disk = open_way(&ways[0], 4096);
    assert_non_null(strstr(disk_describe(disk), "4 x 64 KiB"));
    disk_close(disk);
    assert_int_equal(disk_buffer_bytes(0, 0), 256 << 10);
    assert_int_equal(disk_buffer_bytes(8, 4096), 32768);
}

/* What is read into aligned memory or written behind from it is not copied where the file is read directly; what a store has done is
 * told. */
static void test_aligned_memory(void **state)
{
    enum { N = 600 << 10, SHIFT = 64 };
    char *memory = aligned_alloc(DISK_BLOCK, N + DISK_BLOCK), *want = malloc(N);
    (void)state;
    assert_true(memory && want);
    for (int i = 0; i < N; i++) want[i] = (char)(i * 5 + (i >> 10));
    for (int w = 0; w < WAYS; w++) {
        struct disk_store *disk = open_way(&ways[w], 2 * N + DISK_BLOCK);
        bool direct = !strstr(disk_describe(disk), "through the page cache");
        assert_int_equal(disk_write(disk, want, N, DISK_BLOCK, &err), PLIM_OK);
        assert_int_equal(disk_settle(disk, &err), PLIM_OK);
        assert_int_equal(disk_use_of(disk).copied, N);
        for (int shift = 0; shift <= SHIFT;
             shift += SHIFT) { /* few disks take memory at any multiple of 64 */
            memset(memory, 0, N + DISK_BLOCK);
            assert_int_equal(disk_read(disk, memory + shift, N, DISK_BLOCK, &err), PLIM_OK);
            assert_memory_equal(memory + shift, want, N);
            struct disk_use use = disk_use_of(disk);
            if (!shift) assert_int_equal(use.copied, direct ? N : 2 * N);
            assert_int_equal(use.read, shift ? 2 * N : N);
            assert_int_equal(use.written, N);
            assert_true(use.idle >= 0 && use.waited >= 0);
        }
        memcpy(memory, want, N);
        uint64_t copied = disk_use_of(disk).copied;
        uint64_t ticket = disk_write_behind(disk, memory, N, N + DISK_BLOCK);
        assert_int_equal(disk_wait(disk, ticket, &err), PLIM_OK);
        assert_int_equal(disk_use_of(disk).copied - copied, direct ? 0 : N);
        memset(memory, 0, N);
        assert_int_equal(disk_read(disk, memory, N, N + DISK_BLOCK, &err), PLIM_OK);
        assert_memory_equal(memory, want, N);
        /* A read may be done before it is waited for, not every time. */
        for (int i = 0; i < 10000 && disk_use_of(disk).waited <= 0; i++)
            assert_int_equal(disk_read(disk, memory, N, DISK_BLOCK, &err), PLIM_OK);
        assert_true(disk_use_of(disk).waited > 0);
        disk_close(disk);
    }
    free(memory), free(want);
}

/* A piece of which only half came, or went, is carried to its end. */
static void test_short_pieces(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        enum { N = 600000 };
        static unsigned char want[N], got[N];
        struct disk_store *disk = open_way(&ways[w], N);
        for (int i = 0; i < N; i++) want[i] = (unsigned char)(i * 7 + (i >> 9));
        for (int nth = 1; nth < 4; nth++) {
            fault_set(fault_process(), FAULT_SHORT, nth);
            assert_int_equal(disk_write(disk, want, N, 0, &err), PLIM_OK);
            assert_int_equal(disk_settle(disk, &err), PLIM_OK);
            memset(got, 0, N);
            fault_set(fault_process(), FAULT_SHORT, nth);
            assert_int_equal(disk_read(disk, got, N, 0, &err), PLIM_OK);
            assert_memory_equal(got, want, N);
        }
        disk_close(disk);
    }
    fault_set(fault_process(), FAULT_SHORT, 0);
}

/* An error of the device is told with the file's name to whoever waits, a write's to whoever asks next; and it stays. */
static void test_errors_of_the_device(void **state)
{
    (void)state;
    static unsigned char data[300000];
    for (int w = 0; w < WAYS; w++)
        for (int nth = 1; nth <= 3; nth++) {
            struct disk_store *disk = open_way(&ways[w], sizeof data);
            fault_set(fault_process(), FAULT_IO, nth);
            disk_write(disk, data, sizeof data, 0, &err);
            enum plim_status status = disk_settle(disk, &err);
            if (status == PLIM_OK) status = disk_read(disk, data, sizeof data, 0, &err);
            if (status == PLIM_OK) status = disk_read(disk, data, sizeof data, 0, &err);
            assert_int_equal(status, PLIM_IO);
            assert_non_null(strstr(err.text, ".disk-"));
            assert_int_equal(disk_read(disk, data, 10, 0, &err), PLIM_IO);
            assert_int_equal(disk_write(disk, data, 10, 0, &err), PLIM_IO);
            disk_close(disk);
        }
    fault_set(fault_process(), FAULT_IO, 0);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct disk_store *disk = open_way(&ways[0], 8192);
    fault_set(fault_process(), FAULT_WRITE, 1);
    assert_int_equal(disk_write(disk, "abc", 3, 5, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "No space"));
    disk_close(disk);
    assert_int_not_equal(disk_open(".", UINT64_C(1) << 60, &ways[0], &disk, &err), PLIM_OK);
    assert_non_null(strstr(err.text, "no room for"));
}

/* The ledger has the bytes that were asked for, and what is below both sizes stays. */
static void test_resize(void **state)
{
    (void)state;
    static const char *const classes[] = {"disk"};
    struct ledger ledger;
    struct disk_store *disk;
    unsigned char want[10000], got[10000];
    ledger_init(&ledger, "disk", 20000, classes, 1);
    struct disk_options options = {.ledger = &ledger};
    assert_int_equal(disk_open(".", 10000, &options, &disk, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 10000);
    for (int i = 0; i < 10000; i++) want[i] = (unsigned char)(i * 3);
    assert_int_equal(disk_write(disk, want, 10000, 0, &err), PLIM_OK);
    assert_int_equal(disk_resize(disk, 6000, &err), PLIM_OK);
    assert_int_equal(ledger_current(&ledger), 6000);
    assert_int_equal(disk_resize(disk, 30000, &err), PLIM_NO_MEMORY);
    assert_int_equal(disk_resize(disk, 20000, &err), PLIM_OK);
    assert_int_equal(disk_read(disk, got, 6000, 0, &err), PLIM_OK);
    assert_memory_equal(got, want, 6000);
    disk_close(disk);
    assert_int_equal(ledger_current(&ledger), 0);
    ledger_destroy(&ledger);
}

/* Measured once for a file system, kept for every folder of it, and not at all where that is not wanted. */
static void test_speed_is_remembered(void **state)
{
    (void)state;
    char folder[] = "./speed-XXXXXX", inside[64], command[64];
    struct disk_speed first, second;
    struct device_facts facts = {0};
    assert_non_null(mkdtemp(folder));
    assert_false(disk_speed_recall(&(struct context){.environment = environ}, folder,
                                   &first)); /* PLIMSOLL_CALIBRATE=0 */
    assert_false(disk_speed_wanted(&(struct context){.environment = environ}));
    assert_true(first.bandwidth == FACTS_DISK_ASSUMED && first.depth == DISK_DEPTH &&
                first.piece == DISK_PIECE);
    char *cache = realpath(folder, NULL);
    unsetenv("PLIMSOLL_CALIBRATE");
    setenv("XDG_CACHE_HOME", cache, 1);
    assert_false(disk_speed_recall(&(struct context){.environment = environ}, folder, &first));
    assert_int_equal(disk_speed_measure(&(struct context){.environment = environ}, folder, &first, &err),
                     PLIM_OK);
    assert_true(first.bandwidth > 0 && first.read > 0 && first.write > 0 && first.depth > 0 &&
                first.piece > 0);
    snprintf(inside, sizeof inside, "%s/not/there/yet", folder);
    assert_true(disk_speed_recall(&(struct context){.environment = environ}, inside, &second));
    assert_true(second.depth == first.depth && second.piece == first.piece && second.bandwidth > 0);
    assert_int_not_equal(
        disk_speed_measure(&(struct context){.environment = environ}, "/proc/1", &second, &err), PLIM_OK);
    assert_true(second.bandwidth == FACTS_DISK_ASSUMED);
    setenv("PLIMSOLL_CALIBRATE", "0", 1);
    unsetenv("XDG_CACHE_HOME");
    disk_speed_apply(&first, &facts);
    assert_true(facts.disk_bandwidth == first.bandwidth && facts.lower_bandwidth == 0);
    facts.unified_memory = true;
    disk_speed_apply(&first, &facts);
    assert_true(facts.lower_bandwidth == first.bandwidth);
    assert_int_equal(facts_disk_buffers(&facts), first.depth * (int64_t)first.piece);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    free(cache);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    if (tmp && chdir(tmp)) return 1;
    setenv("PLIMSOLL_CALIBRATE", "0", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engines_agree),  cmocka_unit_test(test_description),
        cmocka_unit_test(test_short_pieces),   cmocka_unit_test(test_errors_of_the_device),
        cmocka_unit_test(test_full_disk),      cmocka_unit_test(test_resize),
        cmocka_unit_test(test_times),          cmocka_unit_test(test_speed_is_remembered),
        cmocka_unit_test(test_aligned_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
