/* run-tests: not=tsan */
/* Properties of code points, normal forms and grapheme clusters. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/utf8.h"
#include "text/unicode.h"
#include <string.h>

static void test_classes(void **state)
{
    (void)state;
    static const struct {
        uint32_t point, mask;
    } cases[] = {
        {'A', UNICODE_LU | UNICODE_WORD | UNICODE_ALPHA},
        {'a', UNICODE_LL | UNICODE_WORD | UNICODE_ALPHA},
        {'7', UNICODE_ND | UNICODE_WORD},
        {'_', UNICODE_P | UNICODE_WORD},
        {'+', UNICODE_S},
        {' ', UNICODE_Z | UNICODE_SPACE},
        {'\n', UNICODE_CC | UNICODE_SPACE},
        {0x85, UNICODE_CC | UNICODE_SPACE},
        {0x1c5, UNICODE_LT | UNICODE_WORD | UNICODE_ALPHA},
        {0x300, UNICODE_MN | UNICODE_WORD},
        {0x200b, UNICODE_CF},
        {0x4e00, UNICODE_LO | UNICODE_WORD | UNICODE_ALPHA | UNICODE_HAN},
        {0x3042, UNICODE_LO | UNICODE_WORD | UNICODE_ALPHA | UNICODE_HIRAGANA},
        {0x30a2, UNICODE_LO | UNICODE_WORD | UNICODE_ALPHA | UNICODE_KATAKANA},
        {0x2160, UNICODE_NL | UNICODE_WORD | UNICODE_ALPHA},
        {0x1f600, UNICODE_S},
        {0xd800, UNICODE_CS},
        {0xe000, UNICODE_CO},
        {0x10ffff, UNICODE_CN},
        {0x110000, UNICODE_CN},
        {UINT32_MAX, UNICODE_CN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(unicode_classes(cases[i].point), cases[i].mask);
}

/* Every code point has exactly one category. */
static void test_one_category_each(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint32_t category = unicode_classes(c) & ((1u << 19) - 1);
        assert_true(category && !(category & (category - 1)));
    }
}

static void test_predicates_of_different_versions(void **state)
{
    (void)state;
    assert_true(unicode_is_bert_punctuation('$') && unicode_is_bert_punctuation(0x2014));
    assert_false(unicode_is_bert_punctuation(0x61d)); /* newer than those tables, though \p{P} has it */
    assert_true(unicode_classes(0x61d) & UNICODE_P);
    assert_true(unicode_is_numeric(0x11de0)); /* newer than the regular expressions' tables */
    assert_false(unicode_classes(0x11de0) & UNICODE_N);
    assert_true(unicode_is_word(0x200d));
    assert_false(unicode_classes(0x200d) & UNICODE_WORD);
    assert_true(unicode_is_bert_control(0) && unicode_is_bert_control(0xfffd) && unicode_is_bert_space('\t'));
    assert_false(unicode_is_bert_space(0x85));
    assert_true(unicode_is_bert_ideograph(0x4e00) && !unicode_is_bert_ideograph(0x3042));
    assert_true(unicode_is_accent(0x903) && !unicode_is_bert_accent(0x903)); /* a spacing mark */
}

static void test_lower(void **state)
{
    (void)state;
    static const struct {
        uint32_t point;
        size_t count;
        uint32_t lower[2];
    } cases[] = {{'A', 1, {'a'}},     {'z', 1, {'z'}},   {0xc4, 1, {0xe4}},     {0x130, 2, {'i', 0x307}},
                 {0x3a3, 1, {0x3c3}}, {0xdf, 1, {0xdf}}, {0x1c89, 1, {0x1c8a}}, {0x10ffff, 1, {0x10ffff}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t lower[UNICODE_LOWER_MOST];
        assert_int_equal(unicode_lower(cases[i].point, lower), cases[i].count);
        for (size_t j = 0; j < cases[i].count; j++) assert_int_equal(lower[j], cases[i].lower[j]);
    }
}

/* Writers reserve two bytes for one. */
static void test_lower_never_doubles(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        uint32_t lower[UNICODE_LOWER_MOST];
        char bytes[4];
        size_t sum = 0;
        if (unicode_classes(c) & UNICODE_CS) continue;
        for (size_t i = 0, count = unicode_lower(c, lower); i < count; i++)
            sum += utf8_encode(lower[i], bytes);
        assert_true(sum <= 2 * utf8_encode(c, bytes));
    }
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text, *form[4]; /* NFC, NFD, NFKC, NFKD */
    } cases[] = {
        {"plain", {"plain", "plain", "plain", "plain"}},
        {"\xc3\xa9", {"\xc3\xa9", "e\xcc\x81", "\xc3\xa9", "e\xcc\x81"}}, /* composed */
        {"\xe1\xbf\xae",
         {"\xce\x85", "\xc2\xa8\xcc\x81", "\x20\xcc\x88\xcc\x81",
          "\x20\xcc\x88\xcc\x81"}}, /* one that is a pair */
        {"\xe1\xbf\xbd",
         {"\xc2\xb4", "\xc2\xb4", "\x20\xcc\x81",
          "\x20\xcc\x81"}}, /* one that only the compatible forms go on with */
        {"\xef\xb7\xba",
         {"\xef\xb7\xba", "\xef\xb7\xba",
          "\xd8\xb5\xd9\x84\xd9\x89\x20\xd8\xa7\xd9\x84\xd9\x84\xd9\x87\x20\xd8\xb9\xd9\x84\xd9\x8a\xd9\x87"
          "\x20\xd9\x88\xd8\xb3\xd9\x84\xd9\x85",
          "\xd8\xb5\xd9\x84\xd9\x89\x20\xd8\xa7\xd9\x84\xd9\x84\xd9\x87\x20\xd8\xb9\xd9\x84\xd9\x8a\xd9\x87"
          "\x20\xd9\x88\xd8\xb3\xd9\x84\xd9\x85"}},                        /* the longest */
        {"e\xcc\x81", {"\xc3\xa9", "e\xcc\x81", "\xc3\xa9", "e\xcc\x81"}}, /* decomposed */
        {"\xe1\xb9\xa9",
         {"\xe1\xb9\xa9", "s\xcc\xa3\xcc\x87", "\xe1\xb9\xa9", "s\xcc\xa3\xcc\x87"}}, /* two marks */
        {"s\xcc\x87\xcc\xa3",
         {"\xe1\xb9\xa9", "s\xcc\xa3\xcc\x87", "\xe1\xb9\xa9",
          "s\xcc\xa3\xcc\x87"}}, /* two marks in the wrong order */
        {"\xef\xac\x81\xe2\x91\xa0",
         {"\xef\xac\x81\xe2\x91\xa0", "\xef\xac\x81\xe2\x91\xa0", "fi1",
          "fi1"}}, /* ligature and circled digit */
        {"\xea\xb0\x81",
         {"\xea\xb0\x81", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81",
          "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"}}, /* Hangul */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8",
         {"\xea\xb0\x81", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81",
          "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"}}, /* conjoining Jamo */
        {"\xea\xb0\x80\xe1\x86\xa8x",
         {"\xea\xb0\x81x", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8x", "\xea\xb0\x81x",
          "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8x"}}, /* syllable and a trailing Jamo */
        {"\xe2\x84\xab",
         {"\xc3\x85", "A\xcc\x8a", "\xc3\x85", "A\xcc\x8a"}}, /* the Angstrom sign does not come back */
        {"\xe0\xa5\x98",
         {"\xe0\xa4\x95\xe0\xa4\xbc", "\xe0\xa4\x95\xe0\xa4\xbc", "\xe0\xa4\x95\xe0\xa4\xbc",
          "\xe0\xa4\x95\xe0\xa4\xbc"}}, /* excluded from composition */
    };
    struct strbuf out = STRBUF_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int form = 0; form < 4; form++) {
            strbuf_clear(&out);
            unicode_normalize((enum unicode_form)form, cases[i].text, strlen(cases[i].text), &out);
            assert_string_equal(strbuf_text(&out), cases[i].form[form]);
        }
    strbuf_release(&out);
}

/* Thousands of marks behind one letter are sorted, and not in the square of their number. */
static void test_many_marks(void **state)
{
    (void)state;
    enum { PAIRS = 100000 };
    struct strbuf text = STRBUF_INIT, out = STRBUF_INIT;
    strbuf_add(&text, "a");
    for (int i = 0; i < PAIRS; i++) strbuf_add(&text, "\xcc\x81\xcc\xa7"); /* acute (230), cedilla (202) */
    unicode_normalize(UNICODE_NFD, text.data, text.len, &out);
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.data + 1, "\xcc\xa7\xcc\xa7", 4);
    assert_memory_equal(out.data + out.len - 4, "\xcc\x81\xcc\x81", 4);
    strbuf_release(&text);
    strbuf_release(&out);
}

static void test_graphemes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t first; /* bytes of the first cluster */
    } cases[] = {
        {"ab", 1},
        {"\x0d\x0ax", 2},
        {"\x0a\xcc\x81", 1}, /* nothing joins a control */
        {"e\xcc\x81\xcc\xa7x", 5},
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8x", 9},
        {"\xf0\x9f\x87\xa6\xf0\x9f\x87\xa7\xf0\x9f\x87\xa8", 8}, /* flags are pairs */
        {"\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7x", 18}, /* a family */
        {"\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd!", 8},                                          /* a skin tone */
        {"\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7x", 9}, /* consonant, linker, consonant */
        {"\xd8\x80"
         "1x",
         3}, /* a number sign stays with its digit */
        {"\xc3\xa9", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(unicode_grapheme(cases[i].text, strlen(cases[i].text)), cases[i].first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_one_category_each),
        cmocka_unit_test(test_predicates_of_different_versions),
        cmocka_unit_test(test_lower),
        cmocka_unit_test(test_lower_never_doubles),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_many_marks),
        cmocka_unit_test(test_graphemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
