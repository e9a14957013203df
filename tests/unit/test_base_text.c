/* run-tests: not=tsan */
/* Texts: errors, byte amounts, numbers, UTF-8, growing strings, nearest words. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/bytes.h"
#include "base/nearest.h"
#include "base/number.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_fail_records_and_returns(void **state)
{
    (void)state;
    struct plim_error err = {0};
    assert_int_equal(plim_fail(&err, PLIM_IO, "%s: %d", "x", 7), PLIM_IO);
    assert_int_equal(err.status, PLIM_IO);
    assert_string_equal(err.text, "x: 7");
    assert_int_equal(plim_fail(NULL, PLIM_BUG, "unheard"), PLIM_BUG);
}

static void test_fail_may_quote_its_own_text(void **state)
{
    (void)state;
    struct plim_error err = {0};
    plim_fail(&err, PLIM_BAD_INPUT, "inner");
    plim_fail(&err, PLIM_BAD_INPUT, "outer (%s)", err.text);
    assert_string_equal(err.text, "outer (inner)");
    plim_error_prefix(&err, "file:%d", 3);
    assert_string_equal(err.text, "file:3: outer (inner)");
    plim_error_prefix(&err, "job");
    assert_string_equal(err.text + err.place, "outer (inner)");
    plim_fail(&err, PLIM_BAD_INPUT, "next");
    assert_int_equal(err.place, 0);
    plim_error_prefix(NULL, "x");
}

static void test_fail_cuts_long_texts(void **state)
{
    (void)state;
    struct plim_error err = {0};
    char text[3000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    plim_fail(&err, PLIM_IO, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_string_equal(err.text + sizeof err.text - 5, "a...");
    plim_error_prefix(&err, "%s", text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_true(err.place <= strlen(err.text));
}

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(plim_exit_code(PLIM_OK), 0);
    assert_int_equal(plim_exit_code(PLIM_BAD_INPUT), 2);
    assert_int_equal(plim_exit_code(PLIM_NO_FIT), 3);
    assert_int_equal(plim_exit_code(PLIM_NO_MEMORY), 4);
    assert_int_equal(plim_exit_code(PLIM_IO), 2);
    assert_int_equal(plim_exit_code(PLIM_UNSUPPORTED), 2);
    assert_int_equal(plim_exit_code(PLIM_INTERRUPTED), 130);
    assert_int_equal(plim_exit_code(PLIM_BUG), 70);
    assert_int_equal(plim_exit_code((enum plim_status)99), 70);
}

static void test_bytes_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t want;
    } cases[] = {
        {"0", 0},
        {"17", 17},
        {"17B", 17},
        {"1kB", 1000},
        {"1KB", 1000},
        {"1KiB", 1024},
        {"1K", 1024},
        {"64MiB", 64ull << 20},
        {"64 MiB ", 64ull << 20},
        {" 2M", 2ull << 20},
        {"3MB", 3000000},
        {"12GB", 12000000000ull},
        {"1.5GiB", 1610612736},
        {"0.5G", 1ull << 29},
        {"2T", 2ull << 40},
        {"2TiB", 2ull << 40},
        {"2TB", 2000000000000ull},
        {".5KiB", 512},
        {"1.KiB", 1024},
        {"9007199254740993", 9007199254740993ull},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t n = 1;
        assert_int_equal(bytes_parse(cases[i].text, &n, NULL), PLIM_OK);
        assert_true(n == cases[i].want);
    }
}

static void test_bytes_parse_refuses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       " ",       "-1",
                                      "-5GiB",  "GiB",     "1.2.3MiB",
                                      "12GiBx", "1 2",     "0x10",
                                      "1e3",    "+5",      "nan",
                                      "1,000",  "12 Gi B", "17000000TiB",
                                      ".",      "12gib",   "12 gb",
                                      "5mib",   "12bits",  "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct plim_error err = {0};
        uint64_t n;
        assert_int_equal(bytes_parse(bad[i], &n, &err), PLIM_BAD_INPUT);
        assert_null(strchr(err.text, '\n'));
        assert_non_null(strstr(err.text, bad[i]));
    }
}

static void test_bytes_parse_names_the_right_forms(void **state)
{
    (void)state;
    struct plim_error err = {0};
    uint64_t n;
    bytes_parse("12Gb", &n, &err);
    assert_string_equal(err.text,
                        "'12Gb': unknown unit 'Gb'; did you mean 12GB (12,000,000,000 bytes) or 12GiB?");
    bytes_parse("1.5mib", &n, &err);
    assert_non_null(strstr(err.text, "1.5MB (1,500,000 bytes) or 1.5MiB"));
    bytes_parse("7 apples", &n, &err);
    assert_non_null(strstr(err.text, "7MiB"));
    bytes_parse("-3", &n, &err);
    assert_non_null(strstr(err.text, "negative"));
}

static void test_bytes_format(void **state)
{
    (void)state;
    static const struct {
        uint64_t n;
        const char *want;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {412 * 1024, "412 KiB"},
        {1320702444, "1.23 GiB"},
        {1048575, "1.00 MiB"},
        {10234, "9.99 KiB"},
        {10239, "10.0 KiB"},
        {102390, "100 KiB"},
        {1023 * 1024, "1023 KiB"},
        {64ull << 20, "64.0 MiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buf[BYTES_TEXT];
        assert_string_equal(bytes_format(buf, cases[i].n), cases[i].want);
    }
    char buf[BYTES_TEXT];
    assert_string_equal(bytes_format_exact(buf, 0), "0");
    assert_string_equal(bytes_format_exact(buf, 999), "999");
    assert_string_equal(bytes_format_exact(buf, 1000), "1,000");
    assert_string_equal(bytes_format_exact(buf, UINT64_MAX), "18,446,744,073,709,551,615");
}

static bool parses_int(const char *text, int64_t *out) { return number_parse_int64(text, strlen(text), out); }

static void test_number_int(void **state)
{
    (void)state;
    int64_t n;
    assert_true(parses_int("9223372036854775807", &n) && n == INT64_MAX);
    assert_true(parses_int("-9223372036854775808", &n) && n == INT64_MIN);
    assert_true(parses_int("+12", &n) && n == 12);
    assert_true(parses_int("-0", &n) && n == 0);
    static const char *const bad[] = {
        "9223372036854775808", "-9223372036854775809", "", "-", "1x", " 1", "1.0", "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(parses_int(bad[i], &n));
}

static bool parses_double(const char *text, double *out)
{
    return number_parse_double(text, strlen(text), out);
}

static void test_number_double(void **state)
{
    (void)state;
    double d;
    assert_true(parses_double("3e-4", &d) && d == 3e-4);
    assert_true(parses_double("-.5", &d) && d == -0.5);
    assert_true(parses_double("1.", &d) && d == 1);
    assert_true(parses_double("1e-999", &d) && d == 0);
    static const char *const bad[] = {"",     ".",     "e5",    "1e", "1e+", "nan", "inf",
                                      "0x10", "1_000", "1e999", " 1", "1 ",  "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(parses_double(bad[i], &d));
    char digits[200];
    memset(digits, '1', sizeof digits);
    assert_true(number_parse_double(digits, sizeof digits, &d) && d > 1e198);
}

static void test_number_reads_back(void **state)
{
    (void)state;
    static const double values[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789012345678.0,
                                    2e22};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char buf[NUMBER_TEXT];
        double back = 99;
        number_format_double(buf, values[i]);
        assert_true(parses_double(buf, &back));
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    char buf[NUMBER_TEXT];
    assert_string_equal(number_format_double(buf, 0.1), "0.1");
    assert_string_equal(number_format_double(buf, NAN), "nan");
    assert_string_equal(number_format_double(buf, -INFINITY), "-inf");
}

static void test_number_ignores_the_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "C.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_NUMERIC, names[i])) break;
    char buf[NUMBER_TEXT];
    double d;
    assert_true(parses_double("1.5", &d) && d == 1.5);
    assert_string_equal(number_format_double(buf, 1.5), "1.5");
    char bytes[BYTES_TEXT];
    assert_string_equal(bytes_format(bytes, 1536), "1.50 KiB");
    setlocale(LC_NUMERIC, "C");
}

static void test_utf8(void **state)
{
    (void)state;
    static const uint32_t points[] = {0, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        char bytes[4];
        uint32_t back = 1;
        size_t n = utf8_encode(points[i], bytes);
        assert_int_equal(utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, points[i]);
        if (n > 1) assert_int_equal(utf8_decode(bytes, n - 1, &back), 0);
    }
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "\xc3("};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t point;
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &point), 0);
        assert_int_equal(utf8_valid_prefix(bad[i], strlen(bad[i])), 0);
    }
    assert_int_equal(utf8_valid_prefix("ab\xc3\xa9\xff", 5), 4);
}

static size_t width(const char *text) { return utf8_width(text, strlen(text)); }

static void test_utf8_width(void **state)
{
    (void)state;
    assert_int_equal(width(""), 0);
    assert_int_equal(width("abc"), 3);
    assert_int_equal(width("é█▏"), 3);
    assert_int_equal(width("e\xcc\x81"), 1);
    assert_int_equal(width("日本"), 4);
    assert_int_equal(width("\xf0\x9f\x9a\xa2"), 2);
    assert_int_equal(width("\033[31mred\033[0m"), 3);
    assert_int_equal(width("\xff"
                           "a"),
                     2);
}

static void test_strbuf(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    assert_string_equal(strbuf_text(&sb), "");
    for (int i = 0; i < 1000; i++) strbuf_addf(&sb, "%d,", i);
    assert_int_equal(sb.len, 3890);
    assert_memory_equal(sb.data + sb.len - 4, "999,", 5);
    strbuf_truncate(&sb, 4);
    strbuf_truncate(&sb, 100);
    strbuf_addc(&sb, '!');
    strbuf_pad(&sb, '-', 3);
    strbuf_addn(&sb, "a\0b", 3);
    assert_int_equal(sb.len, 11);
    assert_memory_equal(sb.data, "0,1,!---a\0b", 12);
    strbuf_clear(&sb);
    strbuf_add_html(&sb, "<a href=\"x\">&'</a>");
    assert_string_equal(strbuf_text(&sb), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
    size_t len;
    char *text = strbuf_detach(&sb, &len);
    assert_int_equal(strlen(text), len);
    free(text);
    assert_null(sb.data);
    text = strbuf_detach(&sb, NULL);
    assert_string_equal(text, "");
    free(text);
    strbuf_release(&sb);
}

static void test_strbuf_remembers_failure(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    struct plim_error err = {0};
    strbuf_add(&sb, "kept");
    assert_int_equal(strbuf_status(&sb, &err), PLIM_OK);
    assert_false(strbuf_reserve(&sb, SIZE_MAX - 2));
    strbuf_addf(&sb, "%s", "lost");
    strbuf_add(&sb, "lost");
    assert_string_equal(strbuf_text(&sb), "kept");
    assert_int_equal(strbuf_status(&sb, &err), PLIM_NO_MEMORY);
    assert_null(strbuf_detach(&sb, NULL));
    assert_int_equal(strbuf_status(&sb, &err), PLIM_OK);
}

static const char *nearest_word(const char *word, const char *const *table, size_t n)
{
    struct nearest near = nearest_begin(word);
    for (size_t i = 0; i < n; i++) nearest_offer(&near, table[i]);
    return near.best;
}

static void test_nearest(void **state)
{
    (void)state;
    static const char *const words[] = {"train", "serve", "plan", "version", "batch_size"};
    assert_string_equal(nearest_word("trian", words, 5), "train");
    assert_string_equal(nearest_word("TRAIN", words, 5), "train");
    assert_string_equal(nearest_word("serv", words, 5), "serve");
    assert_string_equal(nearest_word("plans", words, 5), "plan");
    assert_string_equal(nearest_word("batchsiez", words, 5), "batch_size");
    assert_null(nearest_word("zebra", words, 5));
    assert_null(nearest_word("", words, 5));
    assert_null(nearest_word("train", words, 0));
    char longest[300];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_null(nearest_word(longest, words, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_records_and_returns),
        cmocka_unit_test(test_fail_may_quote_its_own_text),
        cmocka_unit_test(test_fail_cuts_long_texts),
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_bytes_parse),
        cmocka_unit_test(test_bytes_parse_refuses),
        cmocka_unit_test(test_bytes_parse_names_the_right_forms),
        cmocka_unit_test(test_bytes_format),
        cmocka_unit_test(test_number_int),
        cmocka_unit_test(test_number_double),
        cmocka_unit_test(test_number_reads_back),
        cmocka_unit_test(test_number_ignores_the_locale),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_utf8_width),
        cmocka_unit_test(test_strbuf),
        cmocka_unit_test(test_strbuf_remembers_failure),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
