/* run-tests: not=tsan */
/* test_json_fields.c - fields of a line, escapes, and where a bad line is wrong. */
#include "data/json_fields.h"
#include "data/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The line in memory of exactly its size, so that a sanitizer sees every step too far. */
static char *copy_of(const char *text, size_t *len)
{
    *len = strlen(text);
    char *copy = malloc(*len ? *len : 1);
    memcpy(copy, text, *len);
    return copy;
}

static void expect_text(const char *line, const char *text)
{
    for (int undo = 0; undo < 2; undo++) {
        struct json_field f = {.name = "text", .undo = undo};
        struct json_problem problem = {0};
        size_t len;
        char *copy = copy_of(line, &len);
        if (!json_fields(copy, len, &f, 1, &problem)) fail_msg("%s: %s", line, problem.what);
        assert_int_equal(f.kind, JSON_TEXT);
        assert_false(undo && f.escaped);
        if (!undo) assert_memory_equal(copy, line, len); /* as it was */
        if (f.escaped) f.len = json_unescape(f.at, f.len);
        if (f.len != strlen(text) || memcmp(f.at, text, f.len))
            fail_msg("%s: '%.*s'", line, (int)f.len, f.at);
        free(copy);
    }
}

static void test_texts(void **state)
{
    (void)state;
    expect_text("{\"text\":\"\"}", "");
    expect_text(" { \"a\" : [ 1 , { \"text\" : \"inner\" } ] , \"text\" : \"outer\" } \r", "outer");
    expect_text("{\"text\":\"first\",\"text\":\"last\"}", "last");
    expect_text("{\"te\\u0078t\":\"by another name\"}", "by another name");
    expect_text("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    expect_text("{\"text\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"}",
                "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    expect_text("{\"text\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 plain text of more than eight bytes\"}",
                "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 plain text of more than eight bytes");
    expect_text("{\"n\":-0.5e-7,\"m\":0,\"t\":true,\"f\":false,\"z\":null,\"l\":[],\"o\":{},\"text\":\"x\"}",
                "x");
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Texts from parts whose meaning is known: escapes at every distance from each other and at every place in a line. */
static void test_many_texts(void **state)
{
    (void)state;
    static const char long_run[] = "sixty-four bytes or more in a row without anything that needs a look";
    static const char *const parts[][2] = {{"\\n", "\n"},
                                           {"a", "a"},
                                           {"\\\"", "\""},
                                           {"some words, ", "some words, "},
                                           {"\\\\", "\\"},
                                           {long_run, long_run},
                                           {"\\u0001", "\x01"},
                                           {"\xc3\xa9", "\xc3\xa9"},
                                           {"\\u00E9", "\xc3\xa9"},
                                           {"\xe4\xb8\xad\xe6\x96\x87", "\xe4\xb8\xad\xe6\x96\x87"},
                                           {"\\ud83d\\ude00", "\xf0\x9f\x98\x80"},
                                           {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}};
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char line[4096], text[4096] = "";
        int n = sprintf(line, "{\"n\":%u,\"text\":\"", 1u << draw(&seed) % 30), m = 0;
        uint32_t kinds = 1 + draw(&seed) % 12;
        for (uint32_t left = draw(&seed) % 40; left; left--) {
            const char *const *part = parts[draw(&seed) % kinds];
            n += sprintf(line + n, "%s", part[0]), m += sprintf(text + m, "%s", part[1]);
        }
        sprintf(line + n, "\"%s}", draw(&seed) % 2 ? "" : ",\"more\":[\"\\n\", \"text\"]");
        expect_text(line, text);
    }
}

/* Two fields that are undone, one of them twice, and one between them that is not. */
static void test_neighbours(void **state)
{
    (void)state;
    struct json_field f[] = {{.name = "p", .undo = true}, {.name = "raw"}, {.name = "r", .undo = true}};
    struct json_problem problem;
    size_t len;
    char *line = copy_of(
        "{\"p\":\"a\\tb\",\"raw\":\"c\\td\",\"l\":[\"e\\tf\"],\"r\":\"\\n\\n\",\"p\":\"g\\th\"}", &len);
    assert_true(json_fields(line, len, f, 3, &problem));
    assert_true(f[0].len == 3 && !memcmp(f[0].at, "g\th", 3) && !f[0].escaped);
    assert_true(f[1].len == 4 && !memcmp(f[1].at, "c\\td", 4) && f[1].escaped);
    assert_true(f[2].len == 2 && !memcmp(f[2].at, "\n\n", 2) && !f[2].escaped);
    free(line);
}

static void test_kinds(void **state)
{
    (void)state;
    struct json_field f[] = {{.name = "a"}, {.name = "b"}, {.name = "c"},
                             {.name = "d"}, {.name = "e"}, {.name = "f"}};
    struct json_problem problem;
    size_t len;
    char *line = copy_of("{\"a\":[1, 2],\"b\":{\"x\":1},\"c\":-1.5,\"d\":true,\"e\":null}", &len);
    assert_true(json_fields(line, len, f, 6, &problem));
    static const enum json_kind kinds[] = {JSON_LIST, JSON_OBJECT, JSON_NUMBER,
                                           JSON_BOOL, JSON_NULL,   JSON_ABSENT};
    for (int i = 0; i < 6; i++) assert_int_equal(f[i].kind, kinds[i]);
    assert_true(f[0].len == 6 && !memcmp(f[0].at, "[1, 2]", 6) && f[2].len == 4);
    free(line);
}

/* Where in the line it is wrong, at every length of what comes before. */
static void test_places(void **state)
{
    (void)state;
    for (size_t pad = 0; pad < 90; pad++) {
        char line[128];
        static const char digits[] =
            "012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
        size_t n = (size_t)sprintf(line, "{\"k\":\"%.*s\x01\"}", (int)pad, digits);
        struct json_problem problem = {0};
        struct json_field f = {.name = "k", .undo = true};
        char *copy = malloc(n);
        memcpy(copy, line, n);
        assert_false(json_fields(copy, n, NULL, 0, &problem));
        assert_int_equal(problem.column, 7 + pad);
        if (pad > 1) { /* the same when there was something to undo before it */
            memcpy(copy + 6, "\\n", 2);
            assert_false(json_fields(copy, n, &f, 1, &problem));
            assert_int_equal(problem.column, 7 + pad);
        }
        for (size_t cut = 0; cut < n; cut++) { /* no beginning of it is valid */
            char *part = malloc(cut ? cut : 1);
            memcpy(part, line, cut);
            assert_false(json_fields(part, cut, NULL, 0, &problem));
            free(part);
        }
        free(copy);
    }
    char deep[600];
    struct json_problem problem;
    for (int levels = 126; levels < 130; levels++) {
        int n = sprintf(deep, "{\"k\":");
        for (int i = 0; i < levels; i++) deep[n++] = '[';
        for (int i = 0; i < levels; i++) deep[n++] = ']';
        deep[n++] = '}';
        assert_int_equal(json_fields(deep, (size_t)n, NULL, 0, &problem), levels < 128);
    }
}

/* Cut where a line ends, never inside a character. */
static void test_cuts(void **state)
{
    (void)state;
    assert_int_equal(text_cut("aaaa bbbb\ncccc dddd", 19), 10);
    assert_int_equal(text_cut("aaaa bbbb\n\ncccc dddd", 20), 11); /* better than none */
    assert_int_equal(text_cut("aaaaaaaaaa bbbb cccc", 20), 15);
    assert_int_equal(text_cut("aaaaaaaa\xe2\x82\xac", 11), 11 - 3);
    assert_int_equal(text_cut("aaaaaaaa\xe2\x82", 10), 8);
    assert_int_equal(text_cut("a", 1), 1);
    assert_true(text_cut("\x80\x80\x80\x80\x80\x80", 6) >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts), cmocka_unit_test(test_many_texts), cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_kinds), cmocka_unit_test(test_places),     cmocka_unit_test(test_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
