/* test_tokenizer_golden.c - small tokenizers of every family on nasty lines, id for id as the reference library has
 * them (tokenizer/make_tokenizers.py writes the files). The folder is $GOLDEN_DIR/tokenizer, by default the one
 * beside the sources. */
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

static void golden_path(char *out, size_t size, const char *name)
{
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    if (dir)
        snprintf(out, size, "%s/tokenizer/%s", dir, name);
    else
        snprintf(out, size, "%s/tests/golden/tokenizer/%s", src ? src : ".", name);
}

struct replay {
    char name[64];
    struct tokenizer *tok;
    struct encoder *enc;
    struct token_list ids;
    struct strbuf text;
    int line;
};

static void replay_close(struct replay *r)
{
    encoder_close(r->enc);
    tokenizer_free(r->tok);
    r->enc = NULL, r->tok = NULL;
}

static void replay_use(struct replay *r, const char *name)
{
    char file[80], path[600];
    if (r->tok && strcmp(r->name, name) == 0) return;
    replay_close(r);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(file, sizeof file, "%s.json", name);
    golden_path(path, sizeof path, file);
    if (tokenizer_load(path, &r->tok, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (encoder_open(r->tok, &r->enc, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* The case's bytes: "text", or "hex" where they are not UTF-8. */
static void input_of(const struct node *row, struct strbuf *out)
{
    const struct node *text = node_get(row, "text");
    const char *hex = node_string(node_get(row, "hex"), "");
    strbuf_clear(out);
    if (text) strbuf_addn(out, text->as.string.text, text->as.string.len);
    for (; hex[0] && hex[1]; hex += 2) {
        char pair[3] = {hex[0], hex[1], 0};
        strbuf_addc(out, (char)strtol(pair, NULL, 16));
    }
}

static void check_ids(struct replay *r, const char *text, size_t len, unsigned flags,
                      const struct node *expected)
{
    if (!expected) return;
    r->ids.count = 0;
    assert_int_equal(encoder_encode(r->enc, text, len, flags, &r->ids, &err), PLIM_OK);
    size_t same = 0, count = node_count(expected);
    while (same < count && same < r->ids.count && node_int(node_item(expected, same), -1) == r->ids.id[same])
        same++;
    if (same < count || r->ids.count != count)
        fail_msg("%s, line %d of the cases: id %zu differs (%zu ids for %zu)", r->name, r->line, same,
                 r->ids.count, count);
}

static void check_decoded(struct replay *r, unsigned flags, const struct node *expected)
{
    strbuf_clear(&r->text);
    assert_int_equal(tokenizer_decode(r->tok, r->ids.id, r->ids.count, flags, &r->text, &err), PLIM_OK);
    if (r->text.len != expected->as.string.len ||
        memcmp(strbuf_text(&r->text), expected->as.string.text, r->text.len) != 0)
        fail_msg("%s, line %d of the cases: decoded '%s' instead of '%s'", r->name, r->line,
                 strbuf_text(&r->text), expected->as.string.text);
}

static void check_row(struct replay *r, const struct node *row)
{
    struct strbuf input = STRBUF_INIT;
    replay_use(r, node_string(node_get(row, "tok"), ""));
    input_of(row, &input);
    check_ids(r, strbuf_text(&input), input.len, TOKENIZE_SPECIAL, node_get(row, "special"));
    check_ids(r, strbuf_text(&input), input.len, 0, node_get(row, "ids"));
    const struct node *decoded = node_get(row, "decoded"), *skipped = node_get(row, "skipped");
    check_decoded(r, 0, decoded);
    check_decoded(r, TOKENIZE_SKIP_SPECIAL, skipped ? skipped : decoded);
    strbuf_release(&input);
}

static void test_cases(void **state)
{
    (void)state;
    struct strbuf file = STRBUF_INIT;
    struct replay r = {.line = 0};
    char path[600];
    golden_path(path, sizeof path, "cases.jsonl");
    if (file_read(path, 16 << 20, &file, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (char *at = file.data, *end; at && *at; at = end + 1) {
        struct doc *doc;
        r.line++;
        end = strchr(at, '\n');
        assert_non_null(end);
        if (json_parse(at, (size_t)(end - at), "cases.jsonl", &doc, &err) != PLIM_OK)
            fail_msg("%s", err.text);
        check_row(&r, &doc->root);
        doc_free(doc);
    }
    assert_true(r.line > 1000);
    replay_close(&r);
    token_list_release(&r.ids);
    strbuf_release(&r.text);
    strbuf_release(&file);
}

static void test_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *name, *kind;
    } all[] = {{"gpt2", "byte-level BPE"},
               {"roberta", "byte-level BPE"},
               {"llama3", "byte-level BPE"},
               {"qwen2", "byte-level BPE"},
               {"llama2", "BPE"},
               {"mistral", "BPE"},
               {"t5", "Unigram"},
               {"bert", "WordPiece"},
               {"odd", "BPE"}};
    struct replay r = {.line = 0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        replay_use(&r, all[i].name);
        assert_string_equal(tokenizer_kind(r.tok), all[i].kind);
        assert_true(tokenizer_vocab_size(r.tok) > 1000 && tokenizer_vocab_size(r.tok) < 1500);
        assert_true(tokenizer_bytes(r.tok) > 10000 && encoder_bytes_most(r.tok, 1000) > 1000);
        for (int32_t id = 0; id < tokenizer_vocab_size(r.tok); id++) {
            size_t len;
            assert_non_null(tokenizer_text(r.tok, id, &len));
        }
    }
    replay_close(&r);
}

/* A unit, repeated to so many bytes. */
static void repeat(struct strbuf *text, const char *unit, size_t bytes)
{
    strbuf_clear(text);
    while (text->len < bytes) strbuf_add(text, unit);
}

/* A small encoder with a limit gives the ids of a large one without, or refuses; texts that a limit is made for are never
 * refused, and a refusal leaves nothing behind. */
static void check_limit(struct replay *r, struct encoder *small, const char *unit, bool must)
{
    struct token_list ids = {0};
    repeat(&r->text, unit, 150000);
    r->ids.count = 0;
    encoder_limit(small, ENCODER_LIMIT(r->text.len * 5 / 4));
    enum plim_status status = encoder_encode(small, r->text.data, r->text.len, 0, &ids, &err);
    assert_true(status == PLIM_OK || (status == PLIM_NO_FIT && !must && ids.count == 0));
    enum plim_status free_status = encoder_encode(r->enc, r->text.data, r->text.len, 0, &r->ids, &err);
    if (status == PLIM_OK) {
        assert_int_equal(free_status, PLIM_OK);
        assert_int_equal(ids.count, r->ids.count);
        assert_memory_equal(ids.id, r->ids.id, ids.count * sizeof *ids.id);
    }
    size_t longest = tokenizer_longest(r->tok);
    if (longest && free_status == PLIM_OK) assert_true(r->ids.count * longest >= r->text.len);
    token_list_release(&ids);
}

static void test_limits(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2",    "roberta", "llama3", "qwen2", "llama2",
                                        "mistral", "t5",      "bert",   "odd"};
    static const char *const usual[] = {"th", "1", "0123456789", "a", "The ship left. ", "x\n"};
    static const char *const odd[] = {" ",   "\xef\xb7\xba", "e\xcc\x81", "\xe2\x96\x81", "\xf0\x9f\x98\x80",
                                      "\xff"};
    const struct encoder_room room = {4096, 4096};
    struct replay r = {.line = 0};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct encoder *small;
        replay_use(&r, names[i]);
        assert_int_equal(encoder_open_within(r.tok, &room, &small, &err), PLIM_OK);
        assert_true(encoder_room_bytes(r.tok, &room) < 256 << 10);
        for (size_t k = 0; k < sizeof usual / sizeof *usual; k++) check_limit(&r, small, usual[k], true);
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) check_limit(&r, small, odd[k], false);
        check_limit(&r, small, "th", true); /* a refusal does no harm */
        encoder_close(small);
    }
    replay_use(&r, "gpt2");
    encoder_limit(r.enc, 20000);
    repeat(&r.text, "th", 150000);
    r.ids.count = 0;
    assert_int_equal(encoder_encode(r.enc, r.text.data, r.text.len, 0, &r.ids, &err), PLIM_NO_FIT);
    assert_int_equal(r.ids.count, 0);
    assert_true(tokenizer_longest(r.tok) > 1 && tokenizer_text_most(r.tok) > 1);
    replay_use(&r, "bert");
    assert_int_equal(tokenizer_longest(r.tok), 0); /* a word of any length may be one unknown token */
    token_list_release(&r.ids);
    strbuf_release(&r.text);
    replay_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_kinds),
                                       cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
