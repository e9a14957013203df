/* run-tests: not=tsan */
/* Pickles of others: values as Python wrote them, in every protocol, and no way to run code or to take the machine's memory. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/file.h"
#include "base/pickle.h"
#include "base/pickle_read.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files that Python wrote; the fuzz target starts from them, too. */
static void load(const char *seed, struct strbuf *out)
{
    char path[1024];
    const char *root = getenv("SRC_DIR");
    struct plim_error err = {0};
    snprintf(path, sizeof path, "%s/fuzz/corpus/pickle/%s", root ? root : ".", seed);
    if (file_read(path, 1 << 20, out, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static struct doc *parse(const void *bytes, size_t n)
{
    struct doc *doc;
    struct plim_error err = {0};
    if (pickle_parse(bytes, n, "t.pickle", NULL, &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    return doc;
}

static void check_numbers(const struct node *root)
{
    const struct node *n = node_get(root, "long"), *f = node_get(root, "f");
    assert_int_equal(node_count(n), 7);
    assert_true(node_int(node_item(n, 0), 0) == INT64_MAX && node_int(node_item(n, 1), 0) == INT64_MIN);
    assert_true(node_float(node_item(n, 2), 0) == 0x1p63 && node_float(node_item(n, 3), 0) == -0x1p70);
    assert_int_equal(node_item(n, 2)->kind, NODE_FLOAT);
    assert_int_equal(node_int(node_item(n, 4), 0), 255);
    assert_int_equal(node_int(node_item(n, 5), 0), 256);
    assert_int_equal(node_int(node_item(n, 6), 0), -1);
    assert_true(node_float(node_item(f, 0), 0) == 1.5 && node_float(node_item(f, 1), 0) == -0.25);
    assert_true(isinf(node_float(node_item(f, 2), 0)));
}

static void check_values(const struct node *root, int protocol)
{
    const struct node *segments = node_get(root, "segments"), *t = node_get(root, "t");
    const struct node *a = node_get(node_item(segments, 0), "frames"),
                      *b = node_get(node_item(segments, 1), "frames");
    assert_int_equal(root->kind, NODE_MAP);
    assert_true(node_int(node_get(node_item(segments, 0), "address"), 0) == 140000000000000);
    assert_int_equal(node_int(node_get(node_item(segments, 0), "size"), 0), -5);
    assert_int_equal(node_int(node_get(node_item(segments, 1), "size"), 0), 70000);
    assert_ptr_equal(a->as.list.items, b->as.list.items); /* shared in the file, shared in memory */
    assert_string_equal(node_string(node_get(node_item(a, 0), "filename"), ""), "a.py");
    for (size_t i = 1; i < 6; i++) assert_int_equal(node_count(node_item(t, i)), i - 1);
    check_numbers(root);
    assert_true(node_bool(node_item(node_get(root, "b"), 0), false) &&
                !node_bool(node_item(node_get(root, "b"), 1), true));
    assert_int_equal(node_item(node_get(root, "b"), 2)->kind, NODE_NULL);
    assert_string_equal(node_string(node_get(root, "s"), ""), "h\u00e9\u20ac\U0001f600 \n'\"\\");
    assert_int_equal(node_get(root, "e")->kind, NODE_MAP);
    assert_int_equal(node_get(root, "l")->kind, NODE_LIST);
    assert_string_equal(node_string(node_get(root, "7"), ""), "seven");
    assert_int_equal(node_int(node_path(root, "keys.19"), 0), 19);
    const struct node *bytes = node_get(root, "bytes");
    if (protocol < 3) return;
    assert_int_equal(bytes->as.string.len, 2);
    assert_memory_equal(bytes->as.string.text, "\0\xff", 2);
}

static void test_protocols(void **state)
{
    (void)state;
    for (int p = 0; p <= 5; p++) {
        char seed[32];
        struct strbuf text = STRBUF_INIT;
        snprintf(seed, sizeof seed, "protocol-%d", p);
        load(seed, &text);
        assert_int_equal(pickle_looks_so(text.data, text.len), p >= 2);
        struct doc *doc = parse(text.data, text.len);
        strbuf_release(&text);
        check_values(&doc->root, p);
        doc_free(doc);
    }
}

static void test_old_strings(void **state)
{
    (void)state;
    struct strbuf text = STRBUF_INIT;
    load("python2-string", &text);
    struct doc *doc = parse(text.data, text.len);
    assert_string_equal(node_string(node_item(&doc->root, 0), ""), "it's A\n");
    assert_string_equal(node_string(node_item(&doc->root, 1), ""), "two");
    assert_string_equal(node_string(node_item(&doc->root, 2), ""), "it's A\n");
    doc_free(doc);
    strbuf_release(&text);
}

static void test_our_own(void **state)
{
    (void)state;
    struct strbuf text = STRBUF_INIT;
    struct pickle_writer w;
    pickle_writer_init(&w, &text);
    pickle_begin_dict(&w, NULL);
    pickle_begin_list(&w, "items");
    for (int i = 0; i < 2500; i++) pickle_int(&w, NULL, i);
    pickle_end_list(&w);
    pickle_pair(&w, "pair", -1, (int64_t)1 << 50);
    pickle_end_dict(&w);
    pickle_end(&w);
    struct doc *doc = parse(text.data, text.len);
    const struct node *items = node_get(&doc->root, "items");
    assert_int_equal(node_count(items), 2500);
    for (size_t i = 0; i < 2500; i++) assert_int_equal(node_int(node_item(items, i), -1), (int)i);
    assert_true(node_int(node_item(node_get(&doc->root, "pair"), 1), 0) == (int64_t)1 << 50);
    doc_free(doc);
    strbuf_release(&text);
}

static void refused(const char *what, const void *bytes, size_t n, const char *word)
{
    struct doc *doc = NULL;
    struct plim_error err = {0};
    struct quota quota = {.most = 64 << 20, .why = "the most for a test"};
    if (pickle_parse(bytes, n, "bad.pickle", &quota, &doc, &err) != PLIM_BAD_INPUT)
        fail_msg("%s was read", what);
    if (!strstr(err.text, word) || strncmp(err.text, "bad.pickle: ", 12)) fail_msg("%s: %s", what, err.text);
    assert_null(doc);
}

/* Nothing that imports, calls or builds an object is read; the message names the instruction and its place. */
static void test_code(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *name;
    } all[] = {{"cos\nsystem\n(S'x'\ntR.", "byte 0: GLOBAL: a pickle that would run code"},
               {"(S'x'\nios\nsystem\n.", "byte 6: INST: a pickle that would run code"},
               {"]]R.", "byte 2: REDUCE: a pickle that would run code"},
               {"]]b.", "byte 2: BUILD: a pickle that would run code"},
               {"(]o.", "byte 2: OBJ: a pickle that would run code"},
               {"]]\x81.", "byte 2: NEWOBJ: a pickle that would run code"},
               {"]]]\x92.", "byte 3: NEWOBJ_EX: a pickle that would run code"},
               {"\x82\x01.", "byte 0: EXT1: a pickle that would run code"},
               {"\x83\x01\x01.", "byte 0: EXT2: a pickle that would run code"},
               {"\x84\x01\x01\x01\x01.", "byte 0: EXT4: a pickle that would run code"},
               {"]]\x93.", "byte 2: STACK_GLOBAL: a pickle that would run code"},
               {"P1\n.", "byte 0: PERSID: a pickle that would run code"},
               {"]Q.", "byte 1: BINPERSID: a pickle that would run code"},
               {"\x97.", "byte 0: NEXT_BUFFER: only"},
               {"\xfe", "byte 0: 0xfe is no pickle instruction"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        refused(all[i].name, all[i].bytes, strlen(all[i].bytes), all[i].name);
    static const char *const seeds[][2] = {{"hostile-system-0", "GLOBAL"},
                                           {"hostile-system-2", "GLOBAL"},
                                           {"hostile-system-4", "STACK_GLOBAL"},
                                           {"hostile-object", "STACK_GLOBAL"},
                                           {"set", "EMPTY_SET"}};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        struct strbuf text = STRBUF_INIT;
        load(seeds[i][0], &text);
        refused(seeds[i][0], text.data, text.len, seeds[i][1]);
        strbuf_release(&text);
    }
    assert_int_not_equal(access("harm", F_OK), 0);
}

static void test_hostile(void **state)
{
    (void)state;
    static const char *const seeds[][2] = {
        {"hostile-loop", "contains itself"},       {"hostile-loop-dict", "contains itself"},
        {"hostile-loop-tuple", "contains itself"}, {"hostile-deep", "too deeply"},
        {"hostile-marks", "too deeply"},           {"hostile-memo-number", "too large"},
        {"hostile-length", "too early"},           {"hostile-frame", "too early"},
        {"dup-then-memo", "contains itself"}};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        struct strbuf text = STRBUF_INIT;
        load(seeds[i][0], &text);
        refused(seeds[i][0], text.data, text.len, seeds[i][1]);
        strbuf_release(&text);
    }
    refused("nothing", "", 0, "too early");
    refused("no value", ".", 1, "one value");
    refused("two values", "NN.", 3, "one value");
    refused("a missing value", "]g7\n.", 5, "not there");
    refused("a broken number", "Ixy\n.", 5, "a number that is none");
    refused("an odd dictionary", "(Nd.", 4, "without a value");
    refused("a list as a key", "}]Ns.", 5, "neither text");
    refused("more behind it", "N.N", 3, "after the end");
    refused("a newer protocol", "\x80\x09N.", 4, "above 5");
}

/* Doubling by reference 60 times: small in memory, and nothing walks all of it. */
static void test_shared(void **state)
{
    (void)state;
    struct strbuf text = STRBUF_INIT;
    struct quota quota = {.most = 1 << 20, .why = "the most for a test"};
    struct plim_error err = {0};
    struct doc *doc;
    load("hostile-laughs", &text);
    if (pickle_parse(text.data, text.len, "laughs", &quota, &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    doc_free(doc);
    strbuf_clear(&text);
    load("shared-tuple", &text);
    doc = parse(text.data, text.len);
    const struct node *r = &doc->root;
    assert_ptr_equal(node_item(r, 0)->as.list.items, node_get(node_item(r, 2), "b")->as.list.items);
    assert_int_equal(node_count(node_item(r, 1)), 1);
    doc_free(doc);
    strbuf_release(&text);
}

/* Every beginning of a good pickle is refused, in a buffer that ends where the bytes do. */
static void test_truncated(void **state)
{
    (void)state;
    for (int p = 0; p <= 5; p++) {
        char seed[32];
        struct strbuf text = STRBUF_INIT;
        snprintf(seed, sizeof seed, "protocol-%d", p);
        load(seed, &text);
        for (size_t n = 0; n < text.len; n++) {
            char *exact = malloc(n ? n : 1);
            memcpy(exact, text.data, n);
            refused(seed, exact, n, "too early");
            free(exact);
        }
        strbuf_release(&text);
    }
}

/* The quota counts what grows, and is given back what is freed. */
static void test_quota(void **state)
{
    (void)state;
    struct strbuf text = STRBUF_INIT;
    struct quota quota = {.most = 1 << 20, .why = "the most for a test"};
    struct plim_error err = {0};
    struct doc *doc;
    for (int i = 0; i < 100000; i++) strbuf_addc(&text, ']');
    assert_int_equal(pickle_parse(text.data, text.len, "many", &quota, &doc, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "the most for a test"));
    strbuf_clear(&text);
    load("protocol-4", &text);
    quota = (struct quota){.most = 1 << 20, .why = "the most for a test"};
    assert_int_equal(pickle_parse(text.data, text.len, "good", &quota, &doc, &err), PLIM_OK);
    assert_true(quota.used == doc->store.total);
    doc_free(doc);
    strbuf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_protocols), cmocka_unit_test(test_old_strings), cmocka_unit_test(test_our_own),
        cmocka_unit_test(test_code),      cmocka_unit_test(test_hostile),     cmocka_unit_test(test_shared),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
