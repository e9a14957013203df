/* run-tests: not=tsan */
/* The checksum of checkpoints: pieces do not matter, every byte does, and the value never changes. */
#include "base/checksum.h"
#include "base/file.h"
#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1000 };

static uint64_t in_pieces(const unsigned char *bytes, size_t n, size_t piece)
{
    struct checksum sum;
    checksum_begin(&sum, 0);
    for (size_t at = 0; at < n; at += piece) checksum_add(&sum, bytes + at, n - at < piece ? n - at : piece);
    return checksum_end(&sum);
}

static void pieces_do_not_matter(void **state)
{
    unsigned char bytes[BYTES];
    (void)state;
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (unsigned char)(i * 7 + i / 13);
    for (size_t n = 0; n < BYTES; n += 17)
        for (size_t piece = 1; piece < 80; piece++)
            assert_true(in_pieces(bytes, n, piece) == hash64(bytes, n, 0));
}

static void every_byte_matters(void **state)
{
    unsigned char bytes[BYTES] = {0};
    uint64_t plain = hash64(bytes, BYTES, 0);
    (void)state;
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] ^= 1;
        assert_true(hash64(bytes, BYTES, 0) != plain);
        bytes[i] ^= 1;
    }
    for (size_t n = 0; n < BYTES; n++) assert_true(hash64(bytes, n, 0) != plain);
}

/* The values are part of formats on disk. */
static void values_stay(void **state)
{
    unsigned char bytes[100];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)i;
    assert_true(hash64("", 0, 0) == UINT64_C(4247419859669015343));
    assert_true(hash64(bytes, 31, 0) == UINT64_C(8544868219871263374));
    assert_true(hash64(bytes, 100, 5) == UINT64_C(15957235196567481231));
}

static void files_are_read_whole(void **state)
{
    char path[512], *bytes = calloc(1, 200001);
    uint64_t value, size;
    struct plim_error err = {0};
    (void)state;
    assert_non_null(bytes);
    snprintf(path, sizeof path, "%s/checksum.bin", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    memset(bytes, 3, 200001);
    assert_int_equal(file_write_atomic(path, bytes, 200001, &err), PLIM_OK);
    assert_int_equal(checksum_file(path, &value, &size, &err), PLIM_OK);
    assert_true(size == 200001 && value == hash64(bytes, 200001, 0));
    unlink(path);
    assert_int_equal(checksum_file(path, &value, &size, &err), PLIM_IO);
    assert_int_equal(checksum_file("/", &value, &size, &err), PLIM_BAD_INPUT);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(every_byte_matters),
        cmocka_unit_test(values_stay),
        cmocka_unit_test(files_are_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
