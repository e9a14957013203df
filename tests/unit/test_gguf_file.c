/* run-tests: not=tsan */
/* test_gguf_file.c - a GGUF file that lies, ends too early or wants too much is refused with one line; any byte of it may
 * be another. */
#include "base/file.h"
#include "store/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct strbuf whole = STRBUF_INIT;
static char place[600];

static int load(void **state)
{
    (void)state;
    char path[600];
    const char *src = getenv("SRC_DIR"), *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/tests/golden/gguf/blocks.gguf", src ? src : ".");
    snprintf(place, sizeof place, "%s/lie-%d.gguf", tmp ? tmp : "/tmp", (int)getpid());
    return file_read(path, 1 << 20, &whole, NULL) == PLIM_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    unlink(place);
    strbuf_release(&whole);
    return 0;
}

/* Opens bytes[0..n) as a file; what is said is in err. */
static enum plim_status open_bytes(const char *bytes, size_t n, struct plim_error *err)
{
    struct gguf *file = NULL;
    FILE *f = fopen(place, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    enum plim_status status = gguf_open(place, &file, err);
    assert_true((status == PLIM_OK) == (file != NULL));
    if (status != PLIM_OK) assert_true(err->text[0] && !strchr(err->text, '\n'));
    gguf_close(file);
    return status;
}

static void test_cut_anywhere(void **state)
{
    (void)state;
    struct plim_error err = {0};
    assert_int_equal(open_bytes(whole.data, whole.len, &err), PLIM_OK);
    for (size_t n = 0; n < whole.len; n += n < 2000 ? 7 : 1501)
        assert_int_not_equal(open_bytes(whole.data, n, &err), PLIM_OK);
}

static void test_other_bytes(void **state)
{
    (void)state;
    struct plim_error err = {0};
    for (size_t at = 0; at < 1800; at += 3) {
        char kept = whole.data[at];
        whole.data[at] = (char)(kept ^ 0xff);
        open_bytes(whole.data, whole.len, &err); /* refused or not: it ends, with one line or none */
        whole.data[at] = kept;
    }
}

/* A header alone: version, counts, and `more` behind them. */
static enum plim_status open_header(uint32_t version, uint64_t tensors, uint64_t pairs, const void *more,
                                    size_t n, struct plim_error *err)
{
    char bytes[256] = "GGUF";
    memcpy(bytes + 4, &version, 4);
    memcpy(bytes + 8, &tensors, 8);
    memcpy(bytes + 16, &pairs, 8);
    memcpy(bytes + 24, more, n);
    return open_bytes(bytes, 24 + n, err);
}

static void test_counts_that_no_file_holds(void **state)
{
    (void)state;
    struct plim_error err = {0};
    static const unsigned char list[] = {1,   0,   0,   0,   0,   0,   0,   0,  'k',
                                         9,   0,   0,   0,   0,   0,   0,   0, /* k: list of u8 */
                                         255, 255, 255, 255, 255, 255, 255, 255};
    assert_int_equal(open_header(3, UINT64_MAX, 0, "", 0, &err), PLIM_BAD_INPUT);
    assert_int_equal(open_header(3, 0, UINT64_MAX, "", 0, &err), PLIM_BAD_INPUT);
    assert_int_equal(open_header(3, 0, 1, list, sizeof list, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "list is longer than the file"));
    assert_int_equal(open_header(1, 0, 0, "", 0, &err), PLIM_UNSUPPORTED);
    assert_int_equal(open_header(3, 0, 0, "", 0, &err), PLIM_OK);
    assert_int_equal(open_bytes("GGML", 4, &err), PLIM_BAD_INPUT);
}

/* Two tensors of 32 bytes in 64 bytes of data, the second at `offset`. */
static enum plim_status open_two(uint64_t offset, struct plim_error *err)
{
    char bytes[256] = {0}, *at = bytes;
    for (uint64_t i = 0; i < 2; i++) {
        const uint64_t name = 1, count = 8, begin = i * offset;
        const uint32_t dimensions = 1, f32 = 0;
        memcpy(at, &name, 8), at[8] = (char)('a' + i);
        memcpy(at + 9, &dimensions, 4), memcpy(at + 13, &count, 8);
        memcpy(at + 21, &f32, 4), memcpy(at + 25, &begin, 8);
        at += 33;
    }
    return open_header(3, 2, 0, bytes, 96 - 24 + 64, err);
}

static void test_overlaps(void **state)
{
    (void)state;
    struct plim_error err = {0};
    assert_int_equal(open_two(32, &err), PLIM_OK);
    assert_int_equal(open_two(31, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "overlap"));
    assert_int_equal(open_two(33, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "truncated"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_anywhere), cmocka_unit_test(test_other_bytes),
        cmocka_unit_test(test_counts_that_no_file_holds), cmocka_unit_test(test_overlaps)};
    return cmocka_run_group_tests(tests, load, unload);
}
