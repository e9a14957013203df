/* test_dataset.c - rows, their order and the position a run goes on from. */
#include "data/dataset.h"
#include "data/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct plim_error err;

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
    static const int bytes[] = {31, 2, 20};
    const char *paths[3];
    struct dataset *data;
    for (int f = 0; f < 3; f++) {
        strcpy(names[f], "/tmp/plimsoll-data-XXXXXX");
        int fd = mkstemp(names[f]);
        assert_true(fd >= 0);
        for (int i = 0; i < bytes[f]; i++) {
            unsigned char c = (unsigned char)(f * 64 + i);
            assert_int_equal(write(fd, &c, 1), 1);
        }
        close(fd);
        paths[f] = names[f];
    }
    if (dataset_open(paths, 3, TIME, &data, &err) != PLIM_OK) fail_msg("%s", err.text);
    return data;
}

static void close_three(struct dataset *data, char names[3][64])
{
    dataset_close(data);
    for (int f = 0; f < 3; f++) unlink(names[f]);
}

static void test_rows_and_tokens(void **state)
{
    (void)state;
    static const int64_t tokens[] = {10, 10, 10, 1, 10, 9}, first[] = {0, 10, 20, 64, 128, 138};
    char names[3][64];
    struct dataset *data = open_three(names);
    assert_int_equal(dataset_rows(data), 6);
    assert_int_equal(dataset_time(data), TIME);
    for (int64_t r = 0; r < 6; r++) {
        int32_t ids[TIME], targets[TIME], pos[TIME];
        int64_t counted;
        assert_int_equal(dataset_row(data, r, ids, targets, pos, &counted, &err), PLIM_OK);
        assert_int_equal(counted, tokens[r]);
        for (int t = 0; t < TIME; t++) {
            assert_int_equal(ids[t], t < counted ? first[r] + t : 0);
            assert_int_equal(targets[t], t < counted ? first[r] + t + 1 : -1);
            assert_int_equal(pos[t], t);
        }
    }
    close_three(data, names);
}

/* Every row once per epoch; the tokens promised are the tokens given; any split sees the same rows. */
static void test_loader(void **state)
{
    (void)state;
    char names[3][64];
    struct dataset *data = open_three(names);
    int32_t whole[24][TIME], piece[4][TIME], targets[24 * TIME], pos[24 * TIME];
    int64_t tokens, sum;
    struct loader a = {.data = data, .seed = 3}, b = a;
    assert_int_equal(loader_tokens_ahead(&a, 6), 50);
    assert_int_equal(loader_fill(&a, 24, whole[0], targets, pos, &tokens, &err), PLIM_OK);
    assert_true(tokens == 200 && a.position == 24);
    for (int64_t first = 0; first < 24; first += 4) {
        struct loader resumed = {.data = data, .seed = 3, .position = (uint64_t)first};
        sum = loader_tokens_ahead(&b, 4);
        assert_int_equal(loader_fill(&b, 4, piece[0], targets, pos, &tokens, &err), PLIM_OK);
        assert_int_equal(sum, tokens);
        assert_memory_equal(piece, whole[first], sizeof piece);
        assert_int_equal(loader_fill(&resumed, 4, piece[0], targets, pos, &tokens, &err), PLIM_OK);
        assert_memory_equal(piece, whole[first], sizeof piece);
    }
    for (int epoch = 0; epoch < 4; epoch++) {
        int starts = 0;
        for (int r = 0; r < 6; r++) starts += whole[6 * epoch + r][0];
        assert_int_equal(starts, 0 + 10 + 20 + 64 + 128 + 138);
    }
    struct loader in_order = {.data = data, .in_order = true, .position = 5};
    assert_int_equal(loader_fill(&in_order, 2, piece[0], targets, pos, &tokens, &err), PLIM_OK);
    assert_true(piece[0][0] == 138 && piece[1][0] == 0 && tokens == 19);
    close_three(data, names);
}

static void test_bad_files(void **state)
{
    (void)state;
    struct dataset *data = NULL;
    char name[] = "/tmp/plimsoll-data-XXXXXX";
    const char *paths[] = {name, "/tmp/plimsoll-none"}, *folder[] = {"/tmp"};
    int fd = mkstemp(name);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(dataset_open(paths, 1, TIME, &data, &err), PLIM_BAD_INPUT); /* one byte has no target */
    assert_non_null(strstr(err.text, name));
    assert_int_equal(write(fd, "yz", 2), 2);
    assert_int_equal(dataset_open(paths, 2, TIME, &data, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "plimsoll-none"));
    assert_int_equal(dataset_open(folder, 1, TIME, &data, &err), PLIM_BAD_INPUT);
    assert_int_equal(dataset_open(paths, 0, TIME, &data, &err), PLIM_BAD_INPUT);
    assert_null(data);
    /* A file that shrinks while it is in use is an error, not garbage. */
    int32_t ids[TIME], targets[TIME], pos[TIME];
    int64_t tokens;
    assert_int_equal(dataset_open(paths, 1, TIME, &data, &err), PLIM_OK);
    assert_int_equal(ftruncate(fd, 1), 0);
    assert_int_not_equal(dataset_row(data, 0, ids, targets, pos, &tokens, &err), PLIM_OK);
    dataset_close(data);
    close(fd);
    unlink(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_a_bijection),
        cmocka_unit_test(test_rows_and_tokens),
        cmocka_unit_test(test_loader),
        cmocka_unit_test(test_bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
