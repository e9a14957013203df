/* run-tests: not=tsan */
/* Normalizers: what each does to a few texts, and what malformed ones are told. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/json.h"
#include "text/tokenizer/part.h"
#include <string.h>

/* A character map of three rules: A becomes a, B nothing, a with an acute becomes Z. */
#define MAP                                                                                                  \
    "PAMAAAAEAAAAAACAAAAAgAAAAIADAACAAgAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIBBGQEAAAAAgAAAAIBCGQEAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgGGIAQAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAICBGQIAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACA"       \
    "AAAAgAAAAIAAAACAAAAAgAAAAIAAAACAAAAAgAAAAIAAAACAzDQDAGEAAFoA"

#define ACUTE "\xcc\x81"
#define MARK  "\xe2\x96\x81" /* U+2581 */

static enum plim_status build(const char *spec, struct normalizer **n, struct plim_error *err)
{
    struct doc *doc;
    assert_int_equal(json_parse(spec, strlen(spec), "t", &doc, err), PLIM_OK);
    enum plim_status status = normalizer_build(&doc->root, "t", n, err);
    doc_free(doc);
    return status;
}

static void test_runs(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *text, *want;
    } cases[] = {
        {"null", "as it is", "as it is"},
        {"{\"type\":\"NFC\"}", "e" ACUTE "x", "\xc3\xa9x"},
        {"{\"type\":\"NFD\"}", "\xc3\xa9x", "e" ACUTE "x"},
        {"{\"type\":\"NFKC\"}", "\xef\xac\x81", "fi"},
        {"{\"type\":\"NFKD\"}", "\xef\xac\x81", "fi"},
        {"{\"type\":\"Lowercase\"}", "ABC \xc3\x84", "abc \xc3\xa4"},
        {"{\"type\":\"StripAccents\"}", "e" ACUTE "\xc3\xa9", "e\xc3\xa9"},
        {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " \xc2\xa0 a b \n", "a b"},
        {"{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", " a ", " a"},
        {"{\"type\":\"Strip\"}", " \n ", ""},
        {"{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}", "a", MARK "a"},
        {"{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}", "", ""},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}", "a b",
         "a" MARK "b"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"aa\"},\"content\":\"b\"}", "aaaaa", "bba"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"-\"}", "ab", "-a-b-"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}", "a   b c", "a b c"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[ab]+\"},\"content\":\"_\"}", "cabbac", "c_c"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"_\"}", "axxb", "_a_b_"},
        {"{\"type\":\"Nmt\"}",
         "a\tb\x01"
         "c\xe2\x80\x8b",
         "a bc "},
        {"{\"type\":\"BertNormalizer\"}", "\xc3\x84\tb\x01\xe4\xb8\x80", "a b \xe4\xb8\x80 "},
        {"{\"type\":\"BertNormalizer\",\"lowercase\":false}", "\xc3\x84", "\xc3\x84"},
        {"{\"type\":\"BertNormalizer\",\"lowercase\":false,\"strip_accents\":true}", "\xc3\x84", "A"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" MAP "\"}", "ABC", "aC"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" MAP "\"}", "xa" ACUTE "x", "xZx"},
        /* the shortest key decides for the whole grapheme */
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" MAP "\"}", "A" ACUTE "x", "ax"},
        /* six bytes and more: one code point at a time */
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" MAP "\"}", "A" ACUTE ACUTE ACUTE,
         "a" ACUTE ACUTE ACUTE},
        {"{\"type\":\"Sequence\",\"normalizers\":[]}", "a", "a"},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"Sequence\",\"normalizers\":["
         "{\"type\":\"StripAccents\"},{\"type\":\"Lowercase\"}]}]}",
         "\xc3\x89"
         "A",
         "ea"},
    };
    struct strbuf out = STRBUF_INIT, spare = STRBUF_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plim_error err = {0};
        struct normalizer *n;
        assert_int_equal(build(cases[i].spec, &n, &err), PLIM_OK);
        size_t len = strlen(cases[i].text);
        normalizer_run(n, cases[i].text, len, &out, &spare);
        assert_string_equal(strbuf_text(&out), cases[i].want);
        if (strcmp(cases[i].text, cases[i].want) != 0)
            assert_false(normalizer_is_identity(n, cases[i].text, len));
        normalizer_free(n);
    }
    strbuf_release(&out);
    strbuf_release(&spare);
}

/* Plain English costs no copy. */
static void test_ascii_is_left_alone(void **state)
{
    (void)state;
    static const char *const specs[] = {
        "{\"type\":\"NFC\"}",
        "{\"type\":\"NFKD\"}",
        "{\"type\":\"Lowercase\"}",
        "{\"type\":\"BertNormalizer\"}",
        "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" MAP "\"}",
        "{\"type\":\"Strip\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}",
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"StripAccents\"}]}"};
    static const char text[] = "the tide turned, and 12 barges with it";
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        struct plim_error err = {0};
        struct normalizer *n;
        assert_int_equal(build(specs[i], &n, &err), PLIM_OK);
        assert_true(normalizer_is_identity(n, text, strlen(text)));
        normalizer_free(n);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        enum plim_status status;
        const char *part;
    } cases[] = {
        {"{\"type\":\"Foo\"}", PLIM_UNSUPPORTED, "t:1: normalizer type 'Foo' is not supported"},
        {"{}", PLIM_BAD_INPUT, "'type'"},
        {"[1]", PLIM_BAD_INPUT, "'type'"},
        {"{\"type\":\"Sequence\"}", PLIM_BAD_INPUT, "'normalizers'"},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Bar\"}]}", PLIM_UNSUPPORTED,
         "'Bar'"},
        {"{\"type\":\"Prepend\"}", PLIM_BAD_INPUT, "'prepend'"},
        {"{\"type\":\"Replace\",\"pattern\":\"a\",\"content\":\"b\"}", PLIM_BAD_INPUT, "pattern"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"b\"}", PLIM_BAD_INPUT,
         "t:1: normalizer Replace"},
        {"{\"type\":\"Precompiled\"}", PLIM_BAD_INPUT, "'precompiled_charsmap'"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}", PLIM_BAD_INPUT, "malformed"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}", PLIM_BAD_INPUT, "malformed"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A!==\"}", PLIM_BAD_INPUT, "malformed"},
        {"{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}", PLIM_BAD_INPUT, "malformed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plim_error err = {0};
        struct normalizer *n;
        assert_int_equal(build(cases[i].spec, &n, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].part));
        assert_null(n);
    }
}

/* Tries whose units point anywhere: whatever comes out, nothing outside is read. */
static void test_lying_tries(void **state)
{
    (void)state;
    static const char *const maps[] = {
        "AAAAAA==",             /* no unit at all */
        "BAAAAP////8=",         /* the root points far away */
        "CAAAAAAEAAD///9/YQA=", /* a unit beyond the end */
        "BAAAAAAAAAA=",
    };
    struct strbuf out = STRBUF_INIT, spare = STRBUF_INIT;
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        char spec[128];
        struct plim_error err = {0};
        struct normalizer *n;
        strcpy(spec, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        strcat(strcat(spec, maps[i]), "\"}");
        assert_int_equal(build(spec, &n, &err), PLIM_OK);
        normalizer_run(n, "abc\x01\xc3\xa9", 6, &out, &spare);
        assert_string_equal(strbuf_text(&out), "abc\x01\xc3\xa9");
        normalizer_free(n);
    }
    strbuf_release(&out);
    strbuf_release(&spare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_ascii_is_left_alone),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lying_tries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
