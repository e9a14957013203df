/* run-tests: not=tsan */
/* Files that try to take more than their due are refused in one line with the limit, and cost no more than that. */
#include "base/json.h"
#include "data/record.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer/part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_quota(void **state)
{
    (void)state;
    struct quota quota = {.most = 100, .why = "the test's"};
    struct plim_error err = {0};
    assert_true(quota_take(&quota, 60) && !quota_take(&quota, 41) && quota_take(&quota, 40));
    quota_give(&quota, 50);
    assert_int_equal(quota_left(&quota), 50);
    assert_int_equal(quota.peak, 100);
    assert_true(quota_take(NULL, UINT64_MAX));
    assert_int_equal(quota_fail(&quota, "f", &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text, "f: takes more than 100 B (100 bytes) to read, the test's");
}

static void repeat(struct strbuf *sb, const char *first, const char *text, int times, const char *last)
{
    strbuf_add(sb, first);
    for (int i = 0; i < times; i++) strbuf_add(sb, text);
    strbuf_add(sb, last);
}

/* Trees of all shapes stay below their quota, which counts nothing once they are gone. */
static void test_json(void **state)
{
    (void)state;
    static const struct {
        const char *first, *text, *last;
        int times;
    } shapes[] = {{"[", "1,", "1]", 50000},          {"[", "{},", "1]", 50000},
                  {"[", "\"a\",", "1]", 50000},      {"[", "[[1],2],", "1]", 20000},
                  {"\"", "abcdefghij", "\"", 50000}, {"[\"", "\\u00e9", "\"]", 100000}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct strbuf text = STRBUF_INIT;
        struct doc *doc;
        struct plim_error err = {0};
        struct quota large = {.most = 64 << 20, .why = "x"}, small = {.most = 200000, .why = "for a test"};
        repeat(&text, shapes[i].first, shapes[i].text, shapes[i].times, shapes[i].last);
        assert_int_equal(json_parse_within(text.data, text.len, "t", &large, &doc, &err), PLIM_OK);
        assert_int_equal(large.used, doc->store.total);
        assert_true(large.peak >= large.used);
        doc_free(doc);
        assert_int_equal(json_parse_within(text.data, text.len, "t", &small, &doc, &err), PLIM_BAD_INPUT);
        assert_string_equal(err.text, "t: takes more than 195 KiB (200000 bytes) to read, for a test");
        assert_null(doc);
        strbuf_release(&text);
    }
}

static void same_trees(const struct node *a, const struct node *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->line, b->line);
    assert_int_equal(a->key_len, b->key_len);
    if (a->key) assert_memory_equal(a->key, b->key, a->key_len + 1);
    if (a->kind == NODE_STRING) {
        assert_int_equal(a->as.string.len, b->as.string.len);
        assert_memory_equal(a->as.string.text, b->as.string.text, a->as.string.len + 1);
    }
    assert_int_equal(node_count(a), node_count(b));
    for (size_t i = 0; i < node_count(a); i++) same_trees(node_item(a, i), node_item(b, i));
}

/* Strings that stay in the text are those that are copied out of it. */
static void test_json_in_place(void **state)
{
    (void)state;
    static const char text[] = "{\"a\\n\\u00e9\": \"x\\\\y\\ud83d\\ude00\", \"\": [\"\", \"plain\", "
                               "\"\\\"\", 1.5, null],\n \"k\":{\"q\":\"\\u0000z\"}}";
    struct strbuf own = STRBUF_INIT;
    struct doc *copied, *taken;
    struct plim_error err = {0};
    strbuf_add(&own, text);
    assert_int_equal(json_parse(text, strlen(text), "t", &copied, &err), PLIM_OK);
    assert_int_equal(json_parse_taking(&own, "t", NULL, &taken, &err), PLIM_OK);
    assert_int_equal(own.cap, 0);
    same_trees(&copied->root, &taken->root);
    doc_free(copied);
    doc_free(taken);
    strbuf_add(&own, "{\"a\": tru}");
    assert_int_equal(json_parse_taking(&own, "t", NULL, &taken, &err), PLIM_BAD_INPUT);
    assert_null(taken);
}

static enum plim_status load(const char *normalizer, const char *postproc, const char *decoder,
                             const char *added, struct tokenizer **tok, struct plim_error *err)
{
    struct strbuf json = STRBUF_INIT;
    strbuf_addf(&json, "{\"normalizer\":%s,\"post_processor\":%s,\"decoder\":%s,\"added_tokens\":[%s],",
                normalizer, postproc, decoder, added);
    strbuf_add(&json, "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"x\":1,\"b\":2}}}");
    enum plim_status status = tokenizer_parse(json.data, json.len, "t", tok, err);
    strbuf_release(&json);
    return status;
}

static void encode_fails(const char *normalizer, size_t len, const char *want)
{
    struct tokenizer *tok;
    struct encoder *enc;
    struct plim_error err = {0};
    struct token_list ids = {0};
    char *text = malloc(len);
    memset(text, 'a', len);
    assert_int_equal(load(normalizer, "null", "null", "", &tok, &err), PLIM_OK);
    assert_int_equal(encoder_open(tok, &enc, &err), PLIM_OK);
    assert_int_equal(encoder_encode(enc, text, len, 0, &ids, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, want));
    assert_int_equal(ids.count, 0);
    assert_int_equal(encoder_encode(enc, "b", 1, 0, &ids, &err), PLIM_OK); /* and goes on */
    encoder_close(enc);
    tokenizer_free(tok);
    token_list_release(&ids);
    free(text);
}

#define REPLACE(pattern, content)                                                                            \
    "{\"type\":\"Replace\",\"pattern\":{\"" pattern "\":\"a\"},\"content\":\"" content "\"}"

static void test_normalizer(void **state)
{
    (void)state;
    const char *want = "the normalizer makes more than";
    encode_fails(REPLACE("String", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), 20000, want);
    encode_fails("{\"type\":\"Sequence\",\"normalizers\":[" REPLACE("String", "aaaaaaaaaaaaaaaa") "," REPLACE(
                     "Regex", "aaaaaaaaaaaaaaaa") "," REPLACE("String", "aaaaaaaaaaaaaaaa") "]}",
                 1000, want);
    struct tokenizer *tok;
    struct plim_error err = {0};
    struct strbuf big = STRBUF_INIT;
    repeat(&big, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"", "x", 300000, "\"}");
    assert_int_equal(
        load(big.data, "null", "null", "{\"id\":3,\"content\":\"a!\",\"normalized\":true}", &tok, &err),
        PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "added token 'a!'"));
    strbuf_release(&big);
}

static void test_post_processor(void **state)
{
    (void)state;
    struct strbuf json = STRBUF_INIT;
    struct tokenizer *tok;
    struct plim_error err = {0};
    for (int many = 256; many <= 257; many++) {
        strbuf_clear(&json);
        strbuf_add(
            &json,
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}},{\"Sequence\":{"
            "\"id\":\"A\"}}],\"special_tokens\":{\"a\":{\"ids\":");
        repeat(&json, "[", "0,", many - 1, "0]}}}");
        enum plim_status status = load("null", json.data, "null", "", &tok, &err);
        assert_int_equal(status, many <= 256 ? PLIM_OK : PLIM_BAD_INPUT);
        tokenizer_free(tok);
    }
    assert_string_equal(
        err.text, "t: post_processor: more than 256 ids before or after a text, the most that are read");
    strbuf_release(&json);
}

static void test_decoder(void **state)
{
    (void)state;
    struct strbuf big = STRBUF_INIT, out = STRBUF_INIT;
    struct tokenizer *tok;
    struct plim_error err = {0};
    int32_t ids[64] = {0};
    repeat(&big, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"", "x", 100000, "\"}");
    assert_int_equal(load("null", "null", big.data, "", &tok, &err), PLIM_OK);
    assert_int_equal(tokenizer_decode(tok, ids, 10, 0, &out, &err), PLIM_OK);
    assert_int_equal(out.len, 1000000);
    assert_int_equal(tokenizer_decode(tok, ids, 64, 0, &out, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "the decoder makes more than"));
    tokenizer_free(tok);
    strbuf_release(&big);
    strbuf_release(&out);
}

/* Tokens that are searched for at every place have a longest length. */
static void test_long_tokens(void **state)
{
    (void)state;
    struct strbuf json = STRBUF_INIT, added = STRBUF_INIT;
    struct tokenizer *tok;
    struct plim_error err = {0};
    repeat(&json, "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"", "a", 1025, "\":1}}}");
    assert_int_equal(tokenizer_parse(json.data, json.len, "t", &tok, &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text, "t: token 'aaaaaaaaaaaaaaaaaaaa...' has 1025 bytes; at most 1024 are read");
    repeat(&added, "{\"id\":3,\"content\":\"", "a", 1025, "\"}");
    assert_int_equal(load("null", "null", "null", added.data, &tok, &err), PLIM_BAD_INPUT);
    strbuf_release(&json);
    strbuf_release(&added);
}

/* The counted peak of reading a tokenizer is at least what the vocabulary, tree and file take together. */
static void test_tokenizer_quota(void **state)
{
    (void)state;
    static const char *const kinds[] = {"BPE", "WordPiece"};
    for (int k = 0; k < 2; k++) {
        struct strbuf json = STRBUF_INIT, again = STRBUF_INIT;
        struct tokenizer *tok;
        struct plim_error err = {0};
        struct quota quota = {.most = 64 << 20, .why = "x"};
        strbuf_addf(&json, "{\"model\":{\"type\":\"%s\",\"merges\":[],\"vocab\":{\"[UNK]\":0", kinds[k]);
        for (int i = 1; i < 5000; i++) strbuf_addf(&json, ",\"tok%d\":%d", i, i);
        strbuf_add(&json, "}}}");
        strbuf_addn(&again, json.data, json.len);
        size_t len = json.len;
        assert_int_equal(tokenizer_read(&json, "t", &quota, &tok, &err), PLIM_OK);
        assert_true(quota.peak >= len + 5000 * sizeof(struct node) + tokenizer_bytes(tok) / 2);
        assert_true(quota.used <= tokenizer_bytes(tok) + 4096 && quota.used >= tokenizer_bytes(tok) / 2);
        tokenizer_free(tok);
        quota = (struct quota){.most = quota.peak - 1, .status = PLIM_NO_FIT, .why = "all that is left"};
        assert_int_equal(tokenizer_read(&again, "t", &quota, &tok, &err), PLIM_NO_FIT);
        assert_null(tok);
        strbuf_release(&json);
        strbuf_release(&again);
    }
}

/* A rendering's memory is one bound for output, values and texts in between; its output has one of its own. */
static void test_rendering(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{% for i in range(3000) %}{{ messages[0].content }}{% endfor %}",
         "t:1: the template writes too much (more than 5000 bytes)"},
        {"{% set x = 'ab' * 60000 %}", "t:1: the template needs too much memory (more than 100000 bytes)"},
        {"{% set ns = namespace(x='') %}{% for i in range(3000) %}{% set ns.x = ns.x + 'abc' %}{% endfor %}",
         "t:1: the template needs too much memory (more than 100000 bytes)"},
        {"{% macro m() %}{{ 'a' * 30000 }}{% endmacro %}{% set a = m() %}{% set b = m() %}{% set c = m() %}",
         "t:1: the template needs too much memory (more than 100000 bytes)"},
    };
    static const char talk[] = "[{\"role\":\"user\",\"content\":\"hello\"}]";
    struct doc *doc;
    struct plim_error err = {0};
    assert_int_equal(json_parse(talk, strlen(talk), "t", &doc, &err), PLIM_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat_template *tmpl;
        struct chat_options options = {.max_bytes = 100000, .max_output = 5000};
        struct strbuf out = STRBUF_INIT;
        assert_int_equal(chat_template_parse(rows[i].text, strlen(rows[i].text), "t", &tmpl, &err), PLIM_OK);
        assert_int_equal(chat_template_render(tmpl, &doc->root, &options, &out, &err), PLIM_BAD_INPUT);
        assert_string_equal(err.text, rows[i].want);
        assert_int_equal(out.len, 0);
        chat_template_free(tmpl);
        strbuf_release(&out);
    }
    doc_free(doc);
}

/* A template's own memory is bounded whatever it is made of. */
static void test_template(void **state)
{
    (void)state;
    static const struct {
        const char *first, *text, *last, *want;
        int times;
    } shapes[] = {
        {"{{ 1", "+1", " }}", "nested too deeply", 1000},
        {"{{ [", "1,", "1] }}", "more than 200,000 words and signs", 300000},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct strbuf text = STRBUF_INIT;
        struct chat_template *tmpl;
        struct plim_error err = {0};
        repeat(&text, shapes[i].first, shapes[i].text, shapes[i].times, shapes[i].last);
        assert_int_not_equal(chat_template_parse(text.data, text.len, "t", &tmpl, &err), PLIM_OK);
        assert_non_null(strstr(err.text, shapes[i].want));
        assert_null(tmpl);
        strbuf_release(&text);
    }
}

/* Finding spans by prefixes ends, however many messages there are: turns that leave something behind cannot be told
 * from the last one alone. */
static void test_spans_end(void **state)
{
    (void)state;
    static const char text[] =
        "{% set ns = namespace() %}{% for m in messages %}{% set ns.x = 1 %}{{ m.content }}{% endfor %}";
    struct strbuf talk = STRBUF_INIT, out = STRBUF_INIT;
    struct chat_spans spans = {0};
    struct chat_template *tmpl;
    struct doc *doc;
    struct plim_error err = {0};
    struct chat_options options = {.max_steps = 40000};
    repeat(&talk, "[", "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"},",
           800, "{\"role\":\"user\",\"content\":\"q\"}]");
    assert_int_equal(json_parse(talk.data, talk.len, "t", &doc, &err), PLIM_OK);
    assert_int_equal(chat_template_parse(text, strlen(text), "t", &tmpl, &err), PLIM_OK);
    assert_int_equal(chat_template_render(tmpl, &doc->root, &options, &out, &err), PLIM_OK);
    assert_int_equal(chat_template_render_spans(tmpl, &doc->root, &options, &out, &spans, &err),
                     PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "takes too long"));
    chat_template_free(tmpl);
    chat_spans_release(&spans);
    doc_free(doc);
    strbuf_release(&talk);
    strbuf_release(&out);
}

static void test_record(void **state)
{
    (void)state;
    static const char text[] = "{% if messages[0].content == 'long' %}{{ 'x' * 40000 }}{% endif %}"
                               "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}";
    const struct tm now = {.tm_year = 99};
    const struct codec bytes = {.vocab_size = 256, .eos = -1};
    struct record_rules rules = {
        .kind = RECORD_CHAT, .field = {"m"}, .codec = &bytes, .now = &now, .most = 3};
    struct record_encoder *enc;
    struct token_list out = {0};
    struct plim_error err = {0};
    struct chat_template *tmpl;
    char line[2][64] = {"{\"m\":[{\"role\":\"user\",\"content\":\"q\"}]}",
                        "{\"m\":[{\"role\":\"user\",\"content\":\"long\"}]}"};
    assert_int_equal(chat_template_parse(text, strlen(text), "t", &tmpl, &err), PLIM_OK);
    rules.chat = tmpl;
    assert_int_equal(record_encoder_open(&rules, &enc, &err), PLIM_OK);
    assert_int_equal(record_encode(enc, line[0], strlen(line[0]), RECORD_WHOLE, &out, &err), PLIM_OK);
    assert_int_equal(out.count, 3);             /* what is needed, and no more */
    assert_int_equal(token_id(out.id[0]), '1'); /* The time is the caller's */
    assert_int_equal(record_encode(enc, line[1], strlen(line[1]), RECORD_WHOLE, &out, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "writes too much"));
    assert_true(record_tokens_most(&rules, 0) == 3 &&
                record_encoder_bytes_most(&rules) > record_chat_memory(0));
    record_encoder_close(enc);
    chat_template_free(tmpl);
    token_list_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),          cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_in_place),  cmocka_unit_test(test_normalizer),
        cmocka_unit_test(test_post_processor), cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_long_tokens),    cmocka_unit_test(test_tokenizer_quota),
        cmocka_unit_test(test_rendering),      cmocka_unit_test(test_spans_end),
        cmocka_unit_test(test_record),         cmocka_unit_test(test_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
