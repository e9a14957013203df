/* run-tests: not=tsan */
/* YAML into the tree. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/rng.h"
#include "base/yaml.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct doc *parse(const char *text)
{
    struct plim_error err = {0};
    struct doc *doc;
    if (yaml_parse(text, strlen(text), "t.yaml", &doc, &err) != PLIM_OK) fail_msg("%s: %s", text, err.text);
    return doc;
}

static void test_tree(void **state)
{
    (void)state;
    struct doc *doc =
        parse("# a job\nmodel:\n  name: tiny\n  layers: 4\ntraining:\n  rate: 3e-4\n  steps: [1, 2]\n"
              "  tags:\n    - a\n    - \"7\"\nempty:\n");
    const struct node *root = &doc->root;
    assert_string_equal(node_string(node_path(root, "model.name"), ""), "tiny");
    assert_int_equal(node_int(node_path(root, "model.layers"), 0), 4);
    assert_int_equal(node_path(root, "model.layers")->line, 4);
    assert_int_equal(node_path(root, "training.rate")->kind, NODE_FLOAT);
    assert_true(node_float(node_path(root, "training.rate"), 0) == 3e-4);
    assert_int_equal(node_count(node_path(root, "training.steps")), 2);
    assert_int_equal(node_path(root, "training.tags")->line, 8);
    assert_int_equal(node_item(node_path(root, "training.tags"), 1)->kind, NODE_STRING);
    assert_int_equal(node_item(node_path(root, "training.tags"), 1)->line, 10);
    assert_int_equal(node_get(root, "empty")->kind, NODE_NULL);
    doc_free(doc);
}

static void test_scalars(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum node_kind kind;
        double value;
    } cases[] = {
        {"1", NODE_INT, 1},
        {"-7", NODE_INT, -7},
        {"+7", NODE_INT, 7},
        {"0x1F", NODE_INT, 31},
        {"0o17", NODE_INT, 15},
        {"007", NODE_INT, 7},
        {"1e-3", NODE_FLOAT, 1e-3},
        {"3e-4", NODE_FLOAT, 3e-4},
        {"1E5", NODE_FLOAT, 1e5},
        {".5", NODE_FLOAT, 0.5},
        {"1.", NODE_FLOAT, 1},
        {"-1.5e+3", NODE_FLOAT, -1500},
        {"1_000", NODE_STRING, 0},
        {"0x", NODE_STRING, 0},
        {"0xG", NODE_STRING, 0},
        {"0o8", NODE_STRING, 0},
        {"yes", NODE_STRING, 0},
        {"on", NODE_STRING, 0},
        {"1:30", NODE_STRING, 0},
        {"true", NODE_BOOL, 1},
        {"False", NODE_BOOL, 0},
        {"tRUE", NODE_STRING, 0},
        {"null", NODE_NULL, 0},
        {"~", NODE_NULL, 0},
        {"", NODE_NULL, 0},
        {"12GiB", NODE_STRING, 0},
        {"nan", NODE_STRING, 0},
        {"1e999", NODE_STRING, 0},
        {".inf", NODE_FLOAT, INFINITY},
        {"-.INF", NODE_FLOAT, -INFINITY},
        {"99999999999999999999", NODE_FLOAT, 1e20},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct node node = {0};
        yaml_scalar(cases[i].text, strlen(cases[i].text), &node);
        if (node.kind != cases[i].kind) fail_msg("%s is %s", cases[i].text, node_kind_name(node.kind));
        if (node.kind == NODE_INT || node.kind == NODE_FLOAT)
            assert_true(node_float(&node, NAN) == cases[i].value);
        if (node.kind == NODE_BOOL) assert_int_equal(node.as.boolean, cases[i].value != 0);
    }
    struct node node = {0};
    yaml_scalar(".nan", 4, &node);
    assert_true(node.kind == NODE_FLOAT && isnan(node.as.real));
}

static void test_quoted_is_text(void **state)
{
    (void)state;
    struct doc *doc = parse("a: \"1\"\nb: 'true'\nc: |\n  12\nd: \"\"\n\"e f\": 1\n");
    static const char *const keys[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < 4; i++) assert_int_equal(node_get(&doc->root, keys[i])->kind, NODE_STRING);
    assert_string_equal(node_string(node_get(&doc->root, "c"), ""), "12\n");
    assert_int_equal(node_int(node_get(&doc->root, "e f"), 0), 1);
    doc_free(doc);
}

static void test_empty(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "# nothing\n", "---\n", "null"};
    for (size_t i = 0; i < 4; i++) {
        struct doc *doc = parse(texts[i]);
        assert_int_equal(doc->root.kind, NODE_NULL);
        doc_free(doc);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "t.yaml:3: key 'a' appears twice (first in line 1)"},
        {"a: &x 1\nb: 2\n", "t.yaml:1: anchors"},
        {"a: &x [1]\n", "anchors"},
        {"a: &x {b: 1}\n", "anchors"},
        {"a: 1\nb: *x\n", "t.yaml:2: aliases"},
        {"*x : 1\n", "aliases"},
        {"a: !!str 1\n", "t.yaml:1: tags"},
        {"a: !!python/object:os.system {}\n", "tags"},
        {"a: 1\n---\nb: 2\n", "a second document"},
        {"[a, b]: 1\n", "a key must be"},
        {"{a: 1}: 1\n", "a key must be"},
        {"a: [1, 2\nb: 3\n", "t.yaml:2:"},
        {"a: 1\n\tb: 2\n", "t.yaml:2:"},
        {"a: \"unclosed\n", "t.yaml:"},
        {"a: 1\nb: \xff\xfe\n", "t.yaml:2:"},
        {"a: b: c\n", "t.yaml:1:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plim_error err = {0};
        struct doc *doc;
        assert_int_equal(yaml_parse(cases[i].text, strlen(cases[i].text), "t.yaml", &doc, &err),
                         PLIM_BAD_INPUT);
        assert_null(doc);
        assert_null(strchr(err.text, '\n'));
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
    }
}

static void test_growing_references_are_refused(void **state)
{
    (void)state;
    static const char laughs[] = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n";
    struct doc *doc;
    assert_int_equal(yaml_parse(laughs, sizeof laughs - 1, "t", &doc, NULL), PLIM_BAD_INPUT);
}

static void test_depth(void **state)
{
    (void)state;
    char text[400];
    for (int depth = 128; depth <= 129; depth++) {
        struct doc *doc;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        enum plim_status status = yaml_parse(text, (size_t)depth * 2, "deep", &doc, NULL);
        assert_int_equal(status, depth == 128 ? PLIM_OK : PLIM_BAD_INPUT);
        doc_free(doc);
    }
}

static void test_mutations(void **state)
{
    (void)state;
    static const char seed[] =
        "model:\n  name: \"t\\u00e9\"\n  list: [1, {a: b}, 'q']\n  text: >\n    folded\n? k\n: v\n";
    char text[sizeof seed];
    for (uint64_t i = 0; i < 5000; i++) {
        struct doc *doc;
        memcpy(text, seed, sizeof seed);
        for (uint64_t k = 0; k < 3; k++)
            text[rng_below(1, k, i, sizeof seed - 1)] =
                ":-[]{}&*!|>'\"#%@`,?\n\t a1\xc3"[rng_below(2, k, i, 25)];
        yaml_parse(text, rng_below(3, 0, i, sizeof seed), "mutated", &doc, NULL);
        doc_free(doc);
    }
}

static void test_load(void **state)
{
    (void)state;
    struct doc *doc;
    struct plim_error err = {0};
    assert_int_equal(yaml_load("/nonexistent/job.yaml", &doc, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "/nonexistent/job.yaml"));
    char path[] = "/tmp/plimsoll-yaml-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "a: 5\n", 5), 5);
    close(fd);
    assert_int_equal(yaml_load(path, &doc, &err), PLIM_OK);
    assert_int_equal(node_int(node_get(&doc->root, "a"), 0), 5);
    assert_string_equal(doc->name, path);
    doc_free(doc);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree),           cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_quoted_is_text), cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refuses),        cmocka_unit_test(test_growing_references_are_refused),
        cmocka_unit_test(test_depth),          cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
