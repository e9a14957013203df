/* run-tests: not=tsan */
/* test_dataset.c - rows of bytes, their order and the position a run goes on from. */
#include "data/loader.h"
#include "data/order.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct plim_error err;
static const struct codec bytes = {.vocab_size = 256, .eos = -1};

/* Every sample once, for awkward n and several epochs; epochs and seeds differ. */
static void test_order_is_a_bijection(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4096, 4097, 65537};
    static unsigned char seen[65537];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            uint64_t n = sizes[s], moved = 0, other = 0, reseeded = 0;
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t x = order_sample(7, epoch, i, n);
                assert_true(x < n && !seen[x]);
                seen[x] = 1;
                moved += x != i;
                other += x != order_sample(7, epoch + 1, i, n);
                reseeded += x != order_sample(8, epoch, i, n);
            }
            if (n >= 1000) assert_true(moved > n / 2 && other > n / 2 && reseeded > n / 2);
        }
    uint64_t huge = (uint64_t)1 << 40; /* constant memory: any size will do */
    assert_true(order_sample(1, 0, huge - 1, huge) < huge);
}

#define TIME 10

/* Files of 31, 2 and 20 bytes: rows of 10, 10, 10 | 1 | 10, 9 targets. */
static struct dataset *open_three(char names[3][64])
{
    static const int sizes[] = {31, 2, 20};
    const char *paths[3];
    struct dataset *data;
    for (int f = 0; f < 3; f++) {
        strcpy(names[f], "/tmp/plimsoll-data-XXXXXX");
        int fd = mkstemp(names[f]);
        assert_true(fd >= 0);
        for (int i = 0; i < sizes[f]; i++) {
            unsigned char c = (unsigned char)(f * 64 + i);
            assert_int_equal(write(fd, &c, 1), 1);
        }
        close(fd);
        paths[f] = names[f];
    }
    struct data_options options = {.paths = paths, .count = 3, .time = TIME, .format = DATA_TEXT};
    if (dataset_open(&options, &bytes, &data, &err) != PLIM_OK) fail_msg("%s", err.text);
    return data;
}

static void close_three(struct dataset *data, char names[3][64])
{
    dataset_close(data);
    for (int f = 0; f < 3; f++) unlink(names[f]);
}

static struct loader *open_loader(struct dataset *data, const struct loader_options *options)
{
    struct loader *loader;
    if (loader_open(data, options, &loader, &err) != PLIM_OK) fail_msg("%s", err.text);
    return loader;
}

static enum plim_status fill(struct loader *loader, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos)
{
    struct rows rows = {.count = n, .time = TIME, .ids = ids, .pos = pos, .targets = targets};
    return loader_fill(loader, n, &rows, &err);
}

/* A window of n rows at once; its targets. */
static int64_t take(struct loader *loader, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos)
{
    struct loader_window window;
    if (loader_window(loader, n, &window, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(window.rows, n);
    if (fill(loader, n, ids, targets, pos) != PLIM_OK) fail_msg("%s", err.text);
    return window.targets;
}

static void test_rows_and_targets(void **state)
{
    (void)state;
    static const int64_t counts[] = {10, 10, 10, 1, 10, 9}, first[] = {0, 10, 20, 64, 128, 138};
    char names[3][64];
    struct dataset *data = open_three(names);
    assert_int_equal(dataset_samples(data), 6);
    assert_int_equal(dataset_time(data), TIME);
    struct loader *loader = open_loader(data, &(struct loader_options){.in_order = true});
    for (int64_t r = 0; r < 6; r++) {
        int32_t ids[TIME], targets[TIME], pos[TIME];
        assert_int_equal(take(loader, 1, ids, targets, pos), counts[r]);
        for (int t = 0; t < TIME; t++) {
            assert_int_equal(ids[t], t < counts[r] ? first[r] + t : 0);
            assert_int_equal(targets[t], t < counts[r] ? first[r] + t + 1 : -1);
            assert_int_equal(pos[t], t);
        }
    }
    loader_close(loader);
    close_three(data, names);
}

/* Every row once per epoch; the targets promised are the targets given; any split sees the same rows. */
static void test_order_of_rows(void **state)
{
    (void)state;
    char names[3][64];
    struct dataset *data = open_three(names);
    int32_t whole[24][TIME], piece[4][TIME], targets[24 * TIME], pos[24 * TIME];
    struct loader *a = open_loader(data, &(struct loader_options){.seed = 3});
    struct loader *b = open_loader(data, &(struct loader_options){.seed = 3});
    assert_int_equal(take(a, 24, whole[0], targets, pos), 200);
    for (int64_t first = 0; first < 24; first += 4) {
        struct loader *resumed = open_loader(data, &(struct loader_options){.seed = 3});
        assert_int_equal(loader_restore(resumed, NULL, (uint64_t)first, &err), PLIM_OK);
        take(b, 4, piece[0], targets, pos);
        assert_memory_equal(piece, whole[first], sizeof piece);
        take(resumed, 4, piece[0], targets, pos);
        assert_memory_equal(piece, whole[first], sizeof piece);
        loader_close(resumed);
    }
    for (int epoch = 0; epoch < 4; epoch++) {
        int starts = 0;
        for (int r = 0; r < 6; r++) starts += whole[6 * epoch + r][0];
        assert_int_equal(starts, 0 + 10 + 20 + 64 + 128 + 138);
    }
    loader_close(a);
    loader_close(b);
    close_three(data, names);
}

/* A window that is given up begins again; one that is half filled is saved as not begun. */
static void test_rewind(void **state)
{
    (void)state;
    char names[3][64];
    struct dataset *data = open_three(names);
    int32_t a[4][TIME], b[4][TIME], targets[4 * TIME], pos[4 * TIME];
    struct loader *loader = open_loader(data, &(struct loader_options){.seed = 3});
    struct loader_window window;
    struct loader_state start, now;
    take(loader, 3, a[0], targets, pos);
    loader_state(loader, &start);
    assert_int_equal(start.rows, 3);
    assert_int_equal(loader_window(loader, 4, &window, &err), PLIM_OK);
    assert_int_equal(fill(loader, 2, a[0], targets, pos), PLIM_OK);
    loader_state(loader, &now);
    assert_memory_equal(&now, &start, sizeof now);
    assert_int_equal(fill(loader, 3, a[2], targets, pos), PLIM_BUG); /* only two are left */
    assert_int_equal(fill(loader, 2, a[2], targets, pos), PLIM_OK);
    loader_state(loader, &now);
    assert_int_equal(now.rows, 7);
    assert_int_equal(loader_seek(loader, &start, &err), PLIM_OK);
    assert_int_equal(loader_window(loader, 4, &window, &err), PLIM_OK);
    assert_int_equal(fill(loader, 1, b[0], targets, pos), PLIM_OK);
    loader_rewind(loader);
    take(loader, 4, b[0], targets, pos);
    assert_memory_equal(a, b, sizeof a);
    loader_close(loader);
    close_three(data, names);
}

static enum plim_status open_paths(const char *const *paths, int count, struct dataset **data)
{
    struct data_options options = {.paths = paths, .count = count, .time = TIME};
    return dataset_open(&options, &bytes, data, &err);
}

static void test_bad_files(void **state)
{
    (void)state;
    struct dataset *data = NULL;
    char name[] = "/tmp/plimsoll-data-XXXXXX", folder[] = "/tmp/plimsoll-empty-XXXXXX";
    const char *paths[] = {name, "/tmp/plimsoll-none"}, *folders[] = {mkdtemp(folder)},
               *none[] = {"/tmp/plimsoll-none-*"};
    int fd = mkstemp(name);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(open_paths(paths, 1, &data), PLIM_BAD_INPUT); /* one byte has no target */
    assert_non_null(strstr(err.text, name));
    assert_int_equal(write(fd, "yz", 2), 2);
    assert_int_equal(open_paths(paths, 2, &data), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "plimsoll-none"));
    assert_int_equal(open_paths(folders, 1, &data), PLIM_BAD_INPUT);
    assert_int_equal(open_paths(none, 1, &data), PLIM_BAD_INPUT);
    assert_int_equal(open_paths(paths, 0, &data), PLIM_BAD_INPUT);
    assert_null(data);
    /* A file that shrinks while it is in use is an error, not garbage. */
    int32_t ids[TIME], targets[TIME], pos[TIME];
    struct loader_window window;
    assert_int_equal(open_paths(paths, 1, &data), PLIM_OK);
    struct loader *loader = open_loader(data, &(struct loader_options){0});
    assert_int_equal(ftruncate(fd, 1), 0);
    assert_int_equal(loader_window(loader, 1, &window, &err), PLIM_OK);
    assert_int_not_equal(fill(loader, 1, ids, targets, pos), PLIM_OK);
    loader_close(loader);
    dataset_close(data);
    close(fd);
    unlink(name);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_a_bijection),
        cmocka_unit_test(test_rows_and_targets),
        cmocka_unit_test(test_order_of_rows),
        cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
