/* run-tests: not=tsan */
/* Decoders, and the ids a post-processor adds. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/json.h"
#include "text/tokenizer/part.h"
#include <string.h>

#define BAD  "\xef\xbf\xbd" /* U+FFFD */
#define MARK "\xe2\x96\x81" /* U+2581 */
#define GAP  "\xc4\xa0"     /* U+0120: a blank in the byte alphabet */

static struct doc *parse(const char *spec)
{
    struct doc *doc;
    struct plim_error err = {0};
    assert_int_equal(json_parse(spec, strlen(spec), "t", &doc, &err), PLIM_OK);
    return doc;
}

/* What the tokens say, one after the other. At every cut, what has come out and what would come out if it were the
 * end are the text of the tokens so far, and what has come out stays. */
static void decode(const struct token_decoder *d, const struct token_bytes *tokens, size_t count,
                   struct strbuf *out)
{
    struct plim_error err = {0};
    struct token_decoding *all, *part;
    assert_int_equal(token_decoding_open(d, &all, &err), PLIM_OK);
    for (size_t cut = 0; cut <= count; cut++) {
        struct strbuf tail = STRBUF_INIT, whole = STRBUF_INIT;
        strbuf_addn(&tail, out->data, out->len);
        assert_int_equal(token_decoding_tail(all, &tail, &err), PLIM_OK);
        assert_int_equal(token_decoding_open(d, &part, &err), PLIM_OK);
        for (size_t i = 0; i < cut; i++)
            assert_int_equal(token_decoding_add(part, tokens[i], &whole, &err), PLIM_OK);
        assert_int_equal(token_decoding_end(part, &whole, &err), PLIM_OK);
        assert_string_equal(strbuf_text(&tail), strbuf_text(&whole));
        token_decoding_close(part);
        strbuf_release(&tail);
        strbuf_release(&whole);
        if (cut < count) assert_int_equal(token_decoding_add(all, tokens[cut], out, &err), PLIM_OK);
    }
    assert_int_equal(token_decoding_end(all, out, &err), PLIM_OK);
    token_decoding_close(all);
}

static void test_decoders(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *tokens[8], *want;
    } cases[] = {
        {"null", {"a", "b"}, "a b"},
        {"{\"type\":\"ByteLevel\"}",
         {GAP "a", "\xc3\x83", "\xc2\xa9", "\xe6\xbc\xa2"},
         " a\xc3\xa9\xe6\xbc\xa2"},
        {"{\"type\":\"ByteLevel\"}", {"\xc3\x83", "a", "a b"}, BAD "aa b"},
        {"{\"type\":\"ByteFallback\"}", {"<0xE4>", "<0xBD>", "<0xA0>", "x"}, "\xe4\xbd\xa0x"},
        {"{\"type\":\"ByteFallback\"}", {"<0xE4>", "<0xBD>", "x", "<0x1>"}, BAD BAD "x<0x1>"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"}", {MARK "a", "b" MARK "c"}, "ab c"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}", {"_a", "_b"}, " a b"},
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}",
         {"un", "##do", "n't", "."},
         "undon't."},
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false}", {"##a", "##b", "."}, "##ab ."},
        {"{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", {"a</w>", "b", "c</w>"}, "a bc"},
        {"{\"type\":\"Fuse\"}", {"a", "b"}, "ab"},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":1}", {"aab", "baa", "a", ""}, "abba"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"xx\"}", {"ab", "a"}, "xxbxx"},
        {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK
         "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
         "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}",
         {MARK "a", "<0x21>", MARK "b"},
         "a! b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct doc *doc = parse(cases[i].spec);
        struct token_decoder *d;
        struct plim_error err = {0};
        struct token_bytes tokens[8];
        struct strbuf out = STRBUF_INIT;
        size_t count = 0;
        assert_int_equal(token_decoder_build(&doc->root, "t", &d, &err), PLIM_OK);
        for (; count < 8 && cases[i].tokens[count]; count++)
            tokens[count] = (struct token_bytes){cases[i].tokens[count], strlen(cases[i].tokens[count])};
        decode(d, tokens, count, &out);
        assert_string_equal(strbuf_text(&out), cases[i].want);
        strbuf_release(&out);
        token_decoder_free(d);
        doc_free(doc);
    }
}

/* A byte that cannot become a character is told at once; one that may waits. */
static void test_nothing_waits_in_vain(void **state)
{
    (void)state;
    struct doc *doc = parse("{\"type\":\"ByteLevel\"}");
    struct token_decoder *d;
    struct token_decoding *flow;
    struct plim_error err = {0};
    struct strbuf out = STRBUF_INIT;
    assert_int_equal(token_decoder_build(&doc->root, "t", &d, &err), PLIM_OK);
    assert_int_equal(token_decoding_open(d, &flow, &err), PLIM_OK);
    static const struct token_bytes alone = {"\xc2\xa9", 2}, lead = {"\xc3\x83", 2};
    assert_int_equal(token_decoding_add(flow, alone, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), BAD);
    assert_int_equal(token_decoding_add(flow, lead, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), BAD);
    assert_int_equal(token_decoding_add(flow, alone, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), BAD "\xc3\xa9");
    token_decoding_close(flow);
    strbuf_release(&out);
    token_decoder_free(d);
    doc_free(doc);
}

#define LLAMA                                                                                                \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK             \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"                                \
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"

static void test_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *token, *want;
    } cases[] = {
        {"null", "a", " a"},
        {"{\"type\":\"ByteLevel\"}", GAP "a", " a"},
        {"{\"type\":\"ByteLevel\"}", "\xc3\x83", "\xc3"},
        {"{\"type\":\"ByteLevel\"}", "\xe6\xbc\xa2", "\xe6\xbc\xa2"},
        {LLAMA, MARK "a", " a"},
        {LLAMA, "<0xE4>", "\xe4"},
        {LLAMA, "<0x1>", "<0x1>"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"}", MARK "a", " a"},
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", "##do", "do"},
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", "un", " un"},
        {"{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", ".", "."},
        {"{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", "a</w>", "a "},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":1}", "aabaa", "aba"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct doc *doc = parse(cases[i].spec);
        struct token_bytes token = {cases[i].token, strlen(cases[i].token)};
        struct token_decoder *d;
        struct plim_error err = {0};
        struct strbuf out = STRBUF_INIT;
        assert_int_equal(token_decoder_build(&doc->root, "t", &d, &err), PLIM_OK);
        assert_int_equal(token_decoder_piece(d, token, &out, &err), PLIM_OK);
        assert_string_equal(strbuf_text(&out), cases[i].want);
        strbuf_release(&out);
        token_decoder_free(d);
        doc_free(doc);
    }
}

static void test_decoder_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        enum plim_status status;
    } cases[] = {
        {"{\"type\":\"CTC\"}", PLIM_UNSUPPORTED},
        {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"CTC\"}]}", PLIM_UNSUPPORTED},
        {"{\"type\":\"Sequence\"}", PLIM_BAD_INPUT},
        {"{\"type\":\"Sequence\",\"decoders\":[null]}", PLIM_BAD_INPUT},
        {"{\"type\":3}", PLIM_BAD_INPUT},
        {"{\"type\":\"Strip\",\"content\":\"\",\"start\":1}", PLIM_BAD_INPUT},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1}", PLIM_BAD_INPUT},
        {"{\"type\":\"Metaspace\",\"replacement\":\"ab\"}", PLIM_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct doc *doc = parse(cases[i].spec);
        struct token_decoder *d;
        struct plim_error err = {0};
        assert_int_equal(token_decoder_build(&doc->root, "t", &d, &err), cases[i].status);
        assert_null(d);
        doc_free(doc);
    }
}

#define TEMPLATE(single)                                                                                     \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{\"<s>\":{\"ids\":[1]},"    \
    "\"</s>\":{\"ids\":[2,3]}}}"
#define SPECIAL(token) "{\"SpecialToken\":{\"id\":\"" token "\"}}"
#define TEXT           "{\"Sequence\":{\"id\":\"A\"}}"

static void test_post_processors(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        enum plim_status status;
        int32_t before[3], after[3];
        size_t nbefore, nafter;
    } cases[] = {
        {"null", PLIM_OK, {0}, {0}, 0, 0},
        {"{\"type\":\"ByteLevel\"}", PLIM_OK, {0}, {0}, 0, 0},
        {"{\"type\":\"BertProcessing\",\"sep\":[\"s\",7],\"cls\":[\"c\",5]}", PLIM_OK, {5}, {7}, 1, 1},
        {"{\"type\":\"RobertaProcessing\",\"sep\":[\"s\",7],\"cls\":[\"c\",5]}", PLIM_OK, {5}, {7}, 1, 1},
        {TEMPLATE(SPECIAL("<s>") "," TEXT "," SPECIAL("</s>")), PLIM_OK, {1}, {2, 3}, 1, 2},
        {TEMPLATE(TEXT), PLIM_OK, {0}, {0}, 0, 0},
        {"{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(
             SPECIAL("<s>") "," TEXT) ",{\"type\":\"BertProcessing\",\"sep\":[\"s\",7],\"cls\":[\"c\",5]}]}",
         PLIM_OK,
         {5, 1},
         {7},
         2,
         1},
        {TEMPLATE(SPECIAL("<x>") "," TEXT), PLIM_BAD_INPUT, {0}, {0}, 0, 0},
        {TEMPLATE(SPECIAL("<s>")), PLIM_UNSUPPORTED, {0}, {0}, 0, 0},
        {TEMPLATE(TEXT "," TEXT), PLIM_UNSUPPORTED, {0}, {0}, 0, 0},
        {"{\"type\":\"BertProcessing\",\"sep\":[\"s\",7]}", PLIM_BAD_INPUT, {0}, {0}, 0, 0},
        {"{\"type\":\"BertProcessing\",\"sep\":[\"s\",7],\"cls\":[\"c\",-5]}",
         PLIM_BAD_INPUT,
         {0},
         {0},
         0,
         0},
        {"{\"type\":\"BertProcessing\",\"sep\":[\"s\",7],\"cls\":[\"c\",1e18]}",
         PLIM_BAD_INPUT,
         {0},
         {0},
         0,
         0},
        {"{\"type\":\"Foo\"}", PLIM_UNSUPPORTED, {0}, {0}, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct doc *doc = parse(cases[i].spec);
        struct postproc *p;
        struct plim_error err = {0};
        const int32_t *before, *after;
        size_t nbefore, nafter;
        assert_int_equal(postproc_build(&doc->root, "t", &p, &err), cases[i].status);
        postproc_single(p, &before, &nbefore, &after, &nafter);
        assert_int_equal(nbefore, cases[i].nbefore);
        assert_int_equal(nafter, cases[i].nafter);
        for (size_t j = 0; j < nbefore; j++) assert_int_equal(before[j], cases[i].before[j]);
        for (size_t j = 0; j < nafter; j++) assert_int_equal(after[j], cases[i].after[j]);
        postproc_free(p);
        doc_free(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_waits_in_vain),
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_decoder_refusals),
        cmocka_unit_test(test_post_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
