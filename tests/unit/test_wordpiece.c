/* run-tests: not=tsan */
/* The WordPiece model: longest matches, continuations, unknown words. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/json.h"
#include "text/tokenizer/part.h"
#include <string.h>

#define VOCAB                                                                                                \
    "\"vocab\":{\"[UNK]\":0,\"un\":1,\"##aff\":2,\"##able\":3,\"##a\":4,\"want\":5,\"##ed\":6,\"\xc3\xa9\":" \
    "7,"                                                                                                     \
    "\"##\xc3\xa9t\":8,\"affable\":9}"

static const struct {
    const char *options, *word;
    int32_t ids[4];
    size_t count;
} cases[] = {
    {"", "unaffable", {1, 2, 3}, 3},
    {"", "wanted", {5, 6}, 2},
    {"", "\xc3\xa9\xc3\xa9t", {7, 8}, 2},
    {"", "affable", {9}, 1},
    {"", "unwanted", {0}, 1}, /* "want" begins words only */
    {"", "wantedx", {0}, 1},  /* nothing of a word that does not come out even */
    {"", "x", {0}, 1},
    {"\"max_input_chars_per_word\":6,", "wanted", {5, 6}, 2},
    {"\"max_input_chars_per_word\":5,", "wanted", {0}, 1},
    {"\"max_input_chars_per_word\":3,", "\xc3\xa9\xc3\xa9t", {7, 8}, 2}, /* code points, not bytes */
    {"\"continuing_subword_prefix\":\"\",", "unwant", {1, 5}, 2},
    {"\"continuing_subword_prefix\":\"@@\",", "wanted", {0}, 1},
    {"\"unk_token\":\"want\",", "x", {5}, 1},
};

static enum plim_status build(const char *options, struct doc **doc, struct token_vocab **vocab,
                              struct token_model **model, struct plim_error *err)
{
    struct strbuf spec = STRBUF_INIT;
    strbuf_addf(&spec, "{%s" VOCAB "}", options);
    assert_int_equal(json_parse(spec.data, spec.len, "t", doc, err), PLIM_OK);
    strbuf_release(&spec);
    assert_int_equal(token_vocab_build(node_get(&(*doc)->root, "vocab"), "t", NULL, vocab, err), PLIM_OK);
    return model_wordpiece_build(&(*doc)->root, "t", *vocab, NULL, model, err);
}

static void test_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct doc *doc;
        struct token_vocab *vocab;
        struct token_model *model;
        struct token_list ids = {0};
        struct plim_error err = {0};
        assert_int_equal(build(cases[i].options, &doc, &vocab, &model, &err), PLIM_OK);
        assert_true(model->ops->encode(model, NULL, cases[i].word, strlen(cases[i].word), &ids));
        assert_int_equal(ids.count, cases[i].count);
        assert_memory_equal(ids.id, cases[i].ids, ids.count * sizeof *ids.id);
        token_list_release(&ids);
        model->ops->free(model);
        token_vocab_free(vocab);
        doc_free(doc);
    }
}

static void test_unknown_must_be_a_token(void **state)
{
    (void)state;
    struct doc *doc;
    struct token_vocab *vocab;
    struct token_model *model;
    struct plim_error err = {0};
    assert_int_equal(build("\"unk_token\":\"?\",", &doc, &vocab, &model, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "unk_token '?'"));
    assert_null(model);
    token_vocab_free(vocab);
    doc_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_unknown_must_be_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
