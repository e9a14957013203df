/* test_gguf.c - weights in blocks come out as the gguf package reads them; metadata as it wrote them.
 *
 * gguf/blocks.gguf is made by gguf/make_gguf.py: NAME.weight in blocks, NAME.f32 its values. */
#include "store/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { VALUES_MOST = 3 * 512 };

static struct gguf *file;

static int open_file(void **state)
{
    (void)state;
    char path[600];
    struct plim_error err = {0};
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/gguf/blocks.gguf", src ? src : ".");
    if (gguf_open(path, &file, &err) == PLIM_OK) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int close_file(void **state)
{
    (void)state;
    gguf_close(file);
    return 0;
}

static enum plim_status keep(void *arg, int64_t first, const void *elements, int64_t n,
                             struct plim_error *err)
{
    (void)err;
    assert_true(first + n <= VALUES_MOST);
    memcpy((float *)arg + first, elements, (size_t)n * sizeof(float));
    return PLIM_OK;
}

static int64_t read_values(const char *name, const char *kind, float *out)
{
    char whole[64];
    struct plim_error err = {0};
    snprintf(whole, sizeof whole, "%s.%s", name, kind);
    const struct gguf_tensor *t = gguf_find(file, whole);
    assert_non_null(t);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->dim[0], 3);
    assert_int_equal(gguf_read(file, t, DT_F32, keep, out, &err), PLIM_OK);
    return t->count;
}

static void test_every_block_type(void **state)
{
    (void)state;
    static const char *const names[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"};
    static float got[VALUES_MOST], want[VALUES_MOST];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t n = read_values(names[i], "weight", got);
        assert_int_equal(n, read_values(names[i], "f32", want));
        for (int64_t k = 0; k < n; k++) {
            float off = got[k] - want[k], most = 2e-6f * (want[k] < 0 ? -want[k] : want[k]) + 1e-7f;
            if (off > most || off < -most)
                fail_msg("%s element %d: %g, wanted %g", names[i], (int)k, (double)got[k], (double)want[k]);
        }
    }
}

static void test_metadata(void **state)
{
    (void)state;
    const struct node *map = gguf_metadata(file), *tokens = node_get(map, "tokenizer.ggml.tokens");
    assert_string_equal(node_string(node_get(map, "general.architecture"), ""), "llama");
    assert_int_equal(node_int(node_get(map, "llama.block_count"), 0), 3);
    assert_true(node_float(node_get(map, "llama.rope.freq_base"), 0) == 5e5);
    assert_true(node_bool(node_get(map, "tokenizer.ggml.add_bos_token"), false));
    assert_int_equal(node_count(tokens), 3);
    assert_string_equal(node_string(node_item(tokens, 1), ""), "▁ship");
    assert_true(node_float(node_item(node_get(map, "tokenizer.ggml.scores"), 2), 0) == -2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_block_type),
                                       cmocka_unit_test(test_metadata)};
    return cmocka_run_group_tests(tests, open_file, close_file);
}
