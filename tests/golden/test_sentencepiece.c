/* test_sentencepiece.c - SentencePiece's .model files on nasty lines, id for id as the sentencepiece library has them
 * (sentencepiece/make_sentencepiece.py writes the files). The folder is $GOLDEN_DIR/sentencepiece, by default the one beside
 * the sources. */
#include "base/file.h"
#include "base/json.h"
#include "text/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

static void golden_path(char *out, size_t size, const char *name, const char *end)
{
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    if (dir)
        snprintf(out, size, "%s/sentencepiece/%s%s", dir, name, end);
    else
        snprintf(out, size, "%s/tests/golden/sentencepiece/%s%s", src ? src : ".", name, end);
}

struct replay {
    char name[64];
    struct codec codec;
    struct encoder *encoder;
    struct token_list ids;
};

static void replay_close(struct replay *r)
{
    encoder_close(r->encoder);
    codec_close(&r->codec);
    r->encoder = NULL;
}

static void replay_use(struct replay *r, const char *name)
{
    char path[600];
    if (r->encoder && !strcmp(r->name, name)) return;
    replay_close(r);
    snprintf(r->name, sizeof r->name, "%s", name);
    golden_path(path, sizeof path, name, ".model");
    if (codec_open(path, &r->codec, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (encoder_open(r->codec.tokenizer, &r->encoder, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static int differs(struct replay *r, const struct node *row, int line)
{
    const struct node *text = node_get(row, "text"), *expected = node_get(row, "ids");
    replay_use(r, node_string(node_get(row, "model"), ""));
    r->ids.count = 0;
    assert_int_equal(encoder_encode(r->encoder, text->as.string.text, text->as.string.len, 0, &r->ids, &err),
                     PLIM_OK);
    size_t same = 0, count = node_count(expected);
    while (same < count && same < r->ids.count && node_int(node_item(expected, same), -1) == r->ids.id[same])
        same++;
    if (same == count && same == r->ids.count) return 0;
    print_message("%s, line %d of the cases: id %zu differs (%zu ids for %zu): %.80s\n", r->name, line, same,
                  r->ids.count, count, text->as.string.text);
    return 1;
}

static void test_ids(void **state)
{
    struct strbuf cases = STRBUF_INIT;
    struct replay r = {.codec = {.eos = -1}};
    char path[600];
    int line = 0, wrong = 0;
    (void)state;
    golden_path(path, sizeof path, "cases", ".jsonl");
    if (file_read(path, (uint64_t)1 << 30, &cases, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (char *at = cases.data, *end; at && *at && (end = strchr(at, '\n')); at = end + 1, line++) {
        struct doc *doc;
        if (json_parse(at, (size_t)(end - at), path, &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
        wrong += differs(&r, &doc->root, line + 1);
        doc_free(doc);
    }
    replay_close(&r);
    token_list_release(&r.ids);
    strbuf_release(&cases);
    assert_true(line > 300);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
