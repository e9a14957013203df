/* run-tests: not=tsan */
/* The Unigram model: best cuts, unknown text, bytes, long pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/json.h"
#include "text/tokenizer/part.h"
#include <string.h>

struct fixture {
    struct doc *doc;
    struct token_vocab *vocab;
    struct token_model *model;
    void *scratch;
    struct scratch_limit limit;
    struct token_list ids;
};

static enum plim_status open_model(struct fixture *f, const char *spec, struct plim_error *err)
{
    static const struct encoder_room room = {1 << 20, 128 << 10};
    *f = (struct fixture){0};
    assert_int_equal(json_parse(spec, strlen(spec), "t", &f->doc, err), PLIM_OK);
    enum plim_status status = token_vocab_build(node_get(&f->doc->root, "vocab"), "t", NULL, &f->vocab, err);
    if (status == PLIM_OK) status = model_unigram_build(&f->doc->root, "t", f->vocab, NULL, &f->model, err);
    if (status == PLIM_OK) f->scratch = f->model->ops->scratch_open(f->model, &room, &f->limit);
    return status;
}

static void close_model(struct fixture *f)
{
    if (f->scratch) f->model->ops->scratch_close(f->scratch);
    if (f->model) f->model->ops->free(f->model);
    token_vocab_free(f->vocab);
    token_list_release(&f->ids);
    doc_free(f->doc);
}

static void check(struct fixture *f, const char *piece, const int32_t *want, size_t count)
{
    for (int round = 0; round < 2; round++) { /* the second time from the cache */
        f->ids.count = 0;
        assert_true(f->model->ops->encode(f->model, f->scratch, piece, strlen(piece), &f->ids));
        assert_int_equal(f->ids.count, count);
        assert_memory_equal(f->ids.id, want, count * sizeof *want);
    }
}

#define VOCAB                                                                                                \
    "\"vocab\":[[\"<unk>\",0.0],[\"a\",0.0],[\"b\",0.0],[\"c\",0.0],[\"d\",0.0],[\"cd\",1.0],[\"ab\",2.0],"  \
    "[\"abc\",5.0],[\"abcd\",10.0]"

static void test_best_cut(void **state)
{
    (void)state;
    struct fixture f;
    struct plim_error err = {0};
    assert_int_equal(open_model(&f, "{\"unk_id\":0," VOCAB "]}", &err), PLIM_OK);
    check(&f, "abcd", (const int32_t[]){8}, 1);
    check(&f, "abcdacdxx", (const int32_t[]){8, 1, 5, 0}, 4); /* neighbouring unknowns are one */
    check(&f, "xay", (const int32_t[]){0, 1, 0}, 3);
    check(&f, "\xe6\xbc\xa2", (const int32_t[]){0}, 1);
    close_model(&f);
}

static void test_bytes_for_the_unknown(void **state)
{
    (void)state;
    struct fixture f;
    struct plim_error err = {0};
    const char *spec = "{\"unk_id\":0,\"byte_fallback\":true," VOCAB
                       ",[\"<0xC3>\",-9.0],[\"<0xA9>\",-9.0],[\"<0x78>\",-9.0]]}";
    assert_int_equal(open_model(&f, spec, &err), PLIM_OK);
    check(&f, "a\xc3\xa9x", (const int32_t[]){1, 9, 10, 11}, 4);
    check(&f, "a\xc3\xa9y", (const int32_t[]){1, 0}, 2); /* one byte has no token: all of it is unknown */
    close_model(&f);
}

/* Of equal ways the one whose last token begins first. */
static void test_ties(void **state)
{
    (void)state;
    struct fixture f;
    struct plim_error err = {0};
    const char *spec = "{\"unk_id\":0,\"vocab\":[[\"<unk>\",-9.0],[\"a\",-1.0],[\"aa\",-1.0]]}";
    assert_int_equal(open_model(&f, spec, &err), PLIM_OK);
    check(&f, "aaa", (const int32_t[]){1, 2}, 2);
    close_model(&f);
}

/* A piece of many windows is cut as if it were one. */
static void test_long_piece(void **state)
{
    (void)state;
    enum { TIMES = 20000 };
    struct fixture f;
    struct plim_error err = {0};
    struct strbuf text = STRBUF_INIT;
    assert_int_equal(open_model(&f, "{\"unk_id\":0," VOCAB "]}", &err), PLIM_OK);
    for (int i = 0; i < TIMES; i++) strbuf_add(&text, "abcdx");
    assert_true(f.model->ops->encode(f.model, f.scratch, text.data, text.len, &f.ids));
    assert_int_equal(f.ids.count, 2 * TIMES);
    for (size_t i = 0; i < f.ids.count; i++) assert_int_equal(f.ids.id[i], i % 2 ? 0 : 8);
    f.ids.count = 0;
    strbuf_clear(&text);
    strbuf_pad(&text, 'x', 3 * TIMES); /* one unknown over all windows */
    assert_true(f.model->ops->encode(f.model, f.scratch, text.data, text.len, &f.ids));
    assert_int_equal(f.ids.count, 1);
    strbuf_release(&text);
    close_model(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        enum plim_status status;
    } cases[] = {
        {"{\"unk_id\":3,\"vocab\":[[\"a\",0.0]]}", PLIM_BAD_INPUT},
        {"{\"unk_id\":-1,\"vocab\":[[\"a\",0.0]]}", PLIM_BAD_INPUT},
        {"{\"unk_id\":\"x\",\"vocab\":[[\"a\",0.0]]}", PLIM_BAD_INPUT},
        {"{\"unk_id\":0,\"vocab\":[[\"a\"]]}", PLIM_BAD_INPUT},
        {"{\"unk_id\":0,\"vocab\":[[\"a\",\"b\"]]}", PLIM_BAD_INPUT},
        {"{\"unk_id\":0,\"vocab\":{\"a\":0}}", PLIM_BAD_INPUT},
        {"{\"unk_id\":0,\"alpha\":0.1,\"vocab\":[[\"a\",0.0]]}", PLIM_UNSUPPORTED},
        {"{\"unk_id\":null,\"vocab\":[]}", PLIM_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture f;
        struct plim_error err = {0};
        assert_int_equal(open_model(&f, cases[i].spec, &err), cases[i].status);
        close_model(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_cut), cmocka_unit_test(test_bytes_for_the_unknown),
        cmocka_unit_test(test_ties),     cmocka_unit_test(test_long_piece),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
