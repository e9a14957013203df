/* run-tests: not=tsan */
/* The tree, the JSON parser and the JSON writer. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/json.h"
#include "base/rng.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct doc *parse(const char *text)
{
    struct plim_error err = {0};
    struct doc *doc;
    if (json_parse(text, strlen(text), "t.json", &doc, &err) != PLIM_OK) fail_msg("%s: %s", text, err.text);
    return doc;
}

static void test_values(void **state)
{
    (void)state;
    struct doc *doc =
        parse("{\"a\": {\"b\": {\"c\": 7}}, \"f\": 1.5e3, \"t\": true, \"n\": null, \"s\": \"x\",\n"
              " \"l\": [1, -2, 3.0], \"e\": {}, \"big\": 18446744073709551616}");
    const struct node *root = &doc->root;
    assert_int_equal(root->kind, NODE_MAP);
    assert_int_equal(node_int(node_path(root, "a.b.c"), 0), 7);
    assert_null(node_path(root, "a.x.c"));
    assert_null(node_path(root, "a.b.c.d"));
    assert_true(node_float(node_get(root, "f"), 0) == 1500);
    assert_int_equal(node_int(node_get(root, "f"), 0), 1500);
    assert_true(node_bool(node_get(root, "t"), false));
    assert_int_equal(node_get(root, "n")->kind, NODE_NULL);
    assert_string_equal(node_string(node_get(root, "s"), ""), "x");
    const struct node *list = node_get(root, "l");
    assert_int_equal(list->line, 2);
    assert_int_equal(node_count(list), 3);
    assert_int_equal(node_int(node_item(list, 1), 0), -2);
    assert_int_equal(node_item(list, 2)->kind, NODE_FLOAT);
    assert_null(node_item(list, 3));
    assert_int_equal(node_count(node_get(root, "e")), 0);
    assert_int_equal(node_get(root, "big")->kind, NODE_FLOAT);
    assert_int_equal(node_int(node_get(root, "big"), -1), -1);
    assert_string_equal(doc->name, "t.json");
    doc_free(doc);
}

/* Data may have a key twice: the last value counts, in the place of the first, in small maps and in indexed ones. */
static void test_last_wins(void **state)
{
    (void)state;
    for (int keys = 1; keys < 40; keys += 3) {
        struct strbuf text = STRBUF_INIT;
        struct plim_error err = {0};
        struct doc *doc;
        strbuf_addf(&text, "{\"k0\":-1");
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < keys; i++) strbuf_addf(&text, ",\"k%d\":%d", i, round * 100 + i);
        strbuf_add(&text, ",\"end\":7}");
        assert_int_equal(json_parse(text.data, text.len, "t", &doc, &err), PLIM_BAD_INPUT);
        assert_int_equal(json_parse_record(text.data, text.len, "t", NULL, &doc, &err), PLIM_OK);
        assert_int_equal(node_count(&doc->root), keys + 1);
        for (int i = 0; i < keys; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            assert_int_equal(node_int(node_get(&doc->root, key), -2), 100 + i);
            assert_string_equal(node_item(&doc->root, (size_t)i)->key, key);
        }
        assert_int_equal(node_int(node_get(&doc->root, "end"), 0), 7);
        assert_null(node_get(&doc->root, "none"));
        doc_free(doc);
        strbuf_release(&text);
    }
}

static void test_lookups_take_anything(void **state)
{
    (void)state;
    struct doc *doc = parse("[\"x\"]");
    const struct node *text = node_item(&doc->root, 0);
    assert_null(node_get(NULL, "a"));
    assert_null(node_get(text, "a"));
    assert_null(node_path(NULL, "a.b"));
    assert_int_equal(node_count(NULL), 0);
    assert_null(node_item(text, 0));
    assert_int_equal(node_int(text, 5), 5);
    assert_true(node_float(text, 2.5) == 2.5);
    assert_true(node_bool(text, true));
    assert_null(node_string(NULL, NULL));
    assert_string_equal(node_kind_name(NODE_INT), "whole number");
    doc_free(doc);
    doc_free(NULL);
}

static void test_strings(void **state)
{
    (void)state;
    struct doc *doc = parse(
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u00e9\\u20ac\\ud83d\\udea2\", \"\\u0000x\", \"é\", \"\"]");
    assert_string_equal(node_string(node_item(&doc->root, 0), 0), "\"\\/\b\f\n\r\t");
    assert_string_equal(node_string(node_item(&doc->root, 1), 0), "é€\xf0\x9f\x9a\xa2");
    assert_int_equal(node_item(&doc->root, 2)->as.string.len, 2);
    assert_memory_equal(node_string(node_item(&doc->root, 2), 0), "\0x", 3);
    assert_string_equal(node_string(node_item(&doc->root, 3), 0), "é");
    assert_string_equal(node_string(node_item(&doc->root, 4), 0), "");
    doc_free(doc);
    doc = parse("\xef\xbb\xbf 1 ");
    assert_int_equal(doc->root.as.integer, 1);
    doc_free(doc);
}

static void test_numbers(void **state)
{
    (void)state;
    struct doc *doc =
        parse("[0, -0, 9223372036854775807, -9223372036854775808, 9223372036854775808, 1e2, 0.1, -1.5E-3]");
    static const enum node_kind kinds[] = {NODE_INT,   NODE_INT,   NODE_INT,   NODE_INT,
                                           NODE_FLOAT, NODE_FLOAT, NODE_FLOAT, NODE_FLOAT};
    for (size_t i = 0; i < 8; i++) assert_int_equal(node_item(&doc->root, i)->kind, kinds[i]);
    assert_true(node_item(&doc->root, 3)->as.integer == INT64_MIN);
    assert_true(node_item(&doc->root, 4)->as.real == 9223372036854775808.0);
    assert_true(node_item(&doc->root, 7)->as.real == -1.5e-3);
    doc_free(doc);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "t.json:1: expected a value, found the end of the file"},
        {"{", "a key in double quotes"},
        {"[1,\n2,\n]", "t.json:3: a comma before"},
        {"{\"a\":1,}", "a comma before"},
        {"[1 2]", "expected ',' or ']', found '2'"},
        {"{\"a\" 1}", "':' after a key"},
        {"{a: 1}", "a key in double quotes, found 'a'"},
        {"{\"a\": 1,\n \"b\": 2,\n \"a\": 3}", "t.json:3: key 'a' appears twice (first in line 1)"},
        {"01", "malformed number"},
        {"-", "malformed number"},
        {"1.", "malformed number"},
        {".5", "expected a value"},
        {"1e", "malformed number"},
        {"+1", "expected a value"},
        {"1e999", "out of range"},
        {"NaN", "expected a value, found 'N'"},
        {"tru", "expected a value"},
        {"truex", "expected the end of the file, found 'x'"},
        {"// c\n1", "expected a value, found '/'"},
        {"\"abc", "ends inside a string"},
        {"\"abc\\", "ends inside a string"},
        {"\"a\nb\"", "control character"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\u12g4\"", "four hexadecimal"},
        {"\"\\u12", "four hexadecimal"},
        {"\"\\ud800\"", "high surrogate"},
        {"\"\\ud800\\u0041\"", "high surrogate"},
        {"\"\\ud800\\ue000\"", "high surrogate"},
        {"\"\\udc00\"", "low surrogate"},
        {"\"\xff\"", "not valid UTF-8"},
        {"\"\xed\xa0\x80\"", "not valid UTF-8"},
        {"1 2", "the end of the file"},
        {"\x01", "byte 0x01"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plim_error err = {0};
        struct doc *doc;
        assert_int_equal(json_parse(cases[i].text, strlen(cases[i].text), "t.json", &doc, &err),
                         PLIM_BAD_INPUT);
        assert_null(doc);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
    }
}

static void test_depth(void **state)
{
    (void)state;
    char text[2048];
    for (int depth = 128; depth <= 129; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        struct plim_error err = {0};
        struct doc *doc;
        enum plim_status status = json_parse(text, (size_t)depth * 2, "deep", &doc, &err);
        assert_int_equal(status, depth == 128 ? PLIM_OK : PLIM_BAD_INPUT);
        doc_free(doc);
    }
    struct strbuf flat = STRBUF_INIT; /* many lists beside each other are not deep */
    for (int i = 0; i < 300; i++) strbuf_add(&flat, i ? ",[{}]" : "[[{}]");
    strbuf_addc(&flat, ']');
    struct doc *wide;
    assert_int_equal(json_parse(strbuf_text(&flat), flat.len, "flat", &wide, NULL), PLIM_OK);
    doc_free(wide);
    strbuf_release(&flat);
    char *hostile = malloc(1 << 20);
    memset(hostile, '[', 1 << 20);
    struct doc *doc;
    assert_int_equal(json_parse(hostile, 1 << 20, "hostile", &doc, NULL), PLIM_BAD_INPUT);
    free(hostile);
}

static void test_large_map(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct strbuf sb = STRBUF_INIT;
    strbuf_addc(&sb, '{');
    for (int i = 0; i < N; i++) strbuf_addf(&sb, "%s\"key%d\":%d", i ? "," : "", i, i);
    strbuf_addc(&sb, '}');
    struct doc *doc = parse(strbuf_text(&sb));
    for (int i = 0; i < N; i++) {
        char key[32];
        snprintf(key, sizeof key, "key%d", i);
        assert_int_equal(node_int(node_get(&doc->root, key), -1), i);
    }
    assert_null(node_get(&doc->root, "key20000"));
    doc_free(doc);
    strbuf_truncate(&sb, sb.len - 1);
    strbuf_add(&sb, ",\"key77\":0}");
    struct plim_error err = {0};
    assert_int_equal(json_parse(sb.data, sb.len, "dup", &doc, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "'key77' appears twice"));
    strbuf_release(&sb);
}

/* Cut and mutated texts must fail or succeed, never misbehave (the sanitizers watch). */
static void test_mutations(void **state)
{
    (void)state;
    static const char seed[] =
        "{\"a\":[1,2.5e-3,true,null,\"\\ud83d\\udea2 \\u00e9\\n\"],\"b\":{\"c\":-7},\"d\":\"\xc3\xa9\"}";
    char text[sizeof seed];
    for (size_t len = 0; len < sizeof seed - 1; len++) {
        struct doc *doc;
        char *exact = malloc(len ? len : 1);
        memcpy(exact, seed, len);
        assert_int_not_equal(json_parse(exact, len, "cut", &doc, NULL), PLIM_OK);
        free(exact);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        struct doc *doc;
        memcpy(text, seed, sizeof seed);
        for (uint64_t k = 0; k < 3; k++) text[rng_below(1, k, i, sizeof seed - 1)] = (char)rng_u64(2, k, i);
        json_parse(text, sizeof seed - 1, "mutated", &doc, NULL);
        doc_free(doc);
    }
}

static void test_load(void **state)
{
    (void)state;
    char path[] = "/tmp/plimsoll-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\n\"x\": 1,,}", 11), 11);
    close(fd);
    struct doc *doc;
    struct plim_error err = {0};
    assert_int_equal(json_load(path, &doc, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, ":2: "));
    unlink(path);
    assert_int_equal(json_load(path, &doc, &err), PLIM_IO);
    assert_null(doc);
}

static void test_writer(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &sb, 0);
    json_begin_object(&w, NULL);
    json_int(&w, "i", -3);
    json_uint(&w, "u", UINT64_MAX);
    json_double(&w, "d", 0.1);
    json_double(&w, "whole", 2);
    json_double(&w, "nan", NAN);
    json_double(&w, "inf", INFINITY);
    json_bool(&w, "b", true);
    json_str(&w, "s", "q\"\\\n\x01é\x7f\xff");
    json_str(&w, "none", NULL);
    json_begin_array(&w, "empty");
    json_end_array(&w);
    json_begin_array(&w, "l");
    json_null(&w, NULL);
    json_begin_object(&w, NULL);
    json_end_object(&w);
    json_end_array(&w);
    json_end_object(&w);
    assert_string_equal(
        strbuf_text(&sb),
        "{\"i\":-3,\"u\":18446744073709551615,\"d\":0.1,\"whole\":2.0,\"nan\":null,\"inf\":null,"
        "\"b\":true,\"s\":\"q\\\"\\\\\\n\\u0001é\\u007f\xef\xbf\xbd\",\"none\":null,\"empty\":[],"
        "\"l\":[null,{}]}");
    doc_free(parse(strbuf_text(&sb)));
    strbuf_release(&sb);
}

/* Texts that begin alike: the beginning is written once, and copies of the writer go on after it. */
static void test_writer_goes_on(void **state)
{
    (void)state;
    struct strbuf head = STRBUF_INIT;
    struct json_writer behind = json_object(&head, 0);
    json_int(&behind, "least", INT64_MIN);
    json_int(&behind, "most", INT64_MAX);
    json_int(&behind, "none", 0);
    for (int i = 1; i <= 2; i++) {
        struct strbuf sb = STRBUF_INIT;
        struct json_writer w = behind;
        w.out = &sb;
        strbuf_addn(&sb, strbuf_text(&head), head.len);
        json_strn(&w, "a\tb", "\xc3\xa9 plain \x80\"", (size_t)(i == 1 ? 2 : 11));
        json_end_object(&w);
        assert_string_equal(strbuf_text(&sb),
                            i == 1
                                ? "{\"least\":-9223372036854775808,\"most\":9223372036854775807,\"none\":0,"
                                  "\"a\\tb\":\"\xc3\xa9\"}"
                                : "{\"least\":-9223372036854775808,\"most\":9223372036854775807,\"none\":0,"
                                  "\"a\\tb\":\"\xc3\xa9 plain \xef\xbf\xbd\\\"\"}");
        strbuf_release(&sb);
    }
    strbuf_release(&head);
}

static void test_writer_indents(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &sb, 2);
    json_begin_object(&w, NULL);
    json_int(&w, "a", 1);
    json_begin_array(&w, "b");
    json_int(&w, NULL, 2);
    json_int(&w, NULL, 3);
    json_end_array(&w);
    json_end_object(&w);
    assert_string_equal(strbuf_text(&sb), "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3\n  ]\n}");
    strbuf_release(&sb);
}

static void write_tree(struct strbuf *out, const struct doc *doc)
{
    struct json_writer w;
    json_writer_init(&w, out, 0);
    json_node(&w, NULL, &doc->root);
}

static void test_tree_round_trip(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1,2.5,\"x\",true,null,[],{}],\"\\u0000k\":{\"n\":-0.0,\"m\":1e+300}}";
    struct strbuf first = STRBUF_INIT, second = STRBUF_INIT;
    struct doc *doc = parse(text);
    write_tree(&first, doc);
    doc_free(doc);
    assert_string_equal(strbuf_text(&first), text);
    doc = parse(strbuf_text(&first));
    write_tree(&second, doc);
    doc_free(doc);
    assert_string_equal(strbuf_text(&first), strbuf_text(&second));
    strbuf_release(&first);
    strbuf_release(&second);
}

static void test_doubles_round_trip(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t bits = rng_u64(3, 0, i);
        double value, back;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        struct strbuf sb = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &sb, 0);
        json_double(&w, NULL, value);
        struct doc *doc = parse(strbuf_text(&sb));
        back = node_float(&doc->root, 0);
        assert_memory_equal(&value, &back, sizeof value);
        doc_free(doc);
        strbuf_release(&sb);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_last_wins),
        cmocka_unit_test(test_lookups_take_anything),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_large_map),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_writer_goes_on),
        cmocka_unit_test(test_writer_indents),
        cmocka_unit_test(test_tree_round_trip),
        cmocka_unit_test(test_doubles_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
