/* run-tests: not=tsan */
/* Generated text as it comes is the decoded text of everything, wherever the prompt ends. */
#include "base/utf8.h"
#include "text/token_place.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MARK "\xe2\x96\x81"

enum { TOKENS = 22, LIST = 7 };

static const char *const texts[TOKENS] = {"a",
                                          "b",
                                          ".",
                                          MARK,
                                          MARK "a",
                                          "b" MARK,
                                          "##a",
                                          "a</w>",
                                          "</w>",
                                          "\xc3\xa9",
                                          "\xc4\xa0"
                                          "a",
                                          "\xc3\x83",
                                          "\xc2\xa9",
                                          "<0xC3>",
                                          "<0xA9>",
                                          "<0xE4>",
                                          "<0xBD>",
                                          "<0xA0>",
                                          "<0x41>",
                                          "\xef\xbf\xbd",
                                          "<s>",
                                          " "};

static const char *const decoders[] = {
    "null",
    "{\"type\":\"ByteLevel\"}",
    "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"}",
    "{\"type\":\"WordPiece\"}",
    "{\"type\":\"BPEDecoder\"}",
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}",
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":2}]}",
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"ab\"},\"content\":\"x\"}]}",
};

static void open_codec(const char *decoder, struct codec *codec)
{
    struct strbuf json = STRBUF_INIT;
    struct plim_error err = {0};
    strbuf_add(&json, "{\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true}],\"decoder\":");
    strbuf_add(&json, decoder);
    strbuf_add(&json, ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < TOKENS; i++) strbuf_addf(&json, "%s\"%s\":%d", i ? "," : "", texts[i], i);
    strbuf_add(&json, "}}}");
    *codec = (struct codec){.eos = -1, .vocab_size = TOKENS};
    if (tokenizer_parse(json.data, json.len, "t", &codec->tokenizer, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    strbuf_release(&json);
}

static void whole(const struct codec *codec, const int32_t *ids, size_t count, struct strbuf *out)
{
    struct plim_error err = {0};
    strbuf_clear(out);
    assert_int_equal(tokenizer_decode(codec->tokenizer, ids, count, TOKENIZE_SKIP_SPECIAL, out, &err),
                     PLIM_OK);
}

static void stream(const struct codec *codec, const int32_t *ids, size_t prompt, size_t count,
                   struct strbuf *out)
{
    struct plim_error err = {0};
    struct token_text text;
    strbuf_clear(out);
    token_text_init(&text, codec);
    assert_int_equal(token_text_follow(&text, ids, prompt, &err), PLIM_OK);
    for (size_t i = prompt; i < count; i++)
        assert_int_equal(token_text_add(&text, ids[i], out, &err), PLIM_OK);
    assert_int_equal(token_text_end(&text, out, &err), PLIM_OK);
    token_text_release(&text);
}

/* Bytes that both begin with, in whole characters. */
static size_t common(const struct strbuf *a, const struct strbuf *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n]) n++;
    while (n && n < b->len && ((unsigned char)b->data[n] & 0xc0) == 0x80) n--;
    return n;
}

static void test_every_cut(void **state)
{
    (void)state;
    uint32_t seed = 12345;
    struct strbuf before = STRBUF_INIT, all = STRBUF_INIT, streamed = STRBUF_INIT;
    for (size_t d = 0; d < sizeof decoders / sizeof *decoders; d++) {
        struct codec codec;
        open_codec(decoders[d], &codec);
        for (int round = 0; round < 400; round++) {
            int32_t ids[LIST];
            for (int i = 0; i < LIST; i++)
                ids[i] = (int32_t)((seed = seed * 1664525 + 1013904223) >> 8) % TOKENS;
            whole(&codec, ids, LIST, &all);
            for (size_t cut = 0; cut <= LIST; cut++) {
                whole(&codec, ids, cut, &before);
                stream(&codec, ids, cut, LIST, &streamed);
                assert_string_equal(strbuf_text(&streamed), strbuf_text(&all) + common(&before, &all));
            }
        }
        tokenizer_free(codec.tokenizer);
    }
    strbuf_release(&before);
    strbuf_release(&all);
    strbuf_release(&streamed);
}

/* The two texts that users saw go wrong, with llama's decoder. */
static void test_seen(void **state)
{
    (void)state;
    struct codec codec;
    struct strbuf out = STRBUF_INIT;
    open_codec(decoders[5], &codec);
    stream(&codec, (int32_t[]){4, 20, 4, 20, 4}, 1, 5, &out); /* a blank after a special token stays */
    assert_string_equal(strbuf_text(&out), " a a");
    stream(&codec, (int32_t[]){15, 16, 17, 13, 14, 15, 16, 17, 18, 0}, 8, 10,
           &out); /* bytes before it are good */
    assert_string_equal(strbuf_text(&out), "Aa");
    tokenizer_free(codec.tokenizer);
    strbuf_release(&out);
}

static const char *at_character(const char *text, size_t n)
{
    for (; n && *text; n--) do
            text++;
        while (((unsigned char)*text & 0xc0) == 0x80);
    return text;
}

/* Where a token is said to begin, its text does: of all that have some of their own, whatever bytes come around them. */
static void check_places(const struct codec *codec, const int32_t *ids, struct strbuf *out,
                         struct strbuf *piece)
{
    struct plim_error err = {0};
    struct token_text text;
    struct token_place place = {0};
    size_t at[LIST];
    token_text_init(&text, codec);
    strbuf_clear(out);
    for (int i = 0; i < LIST; i++) {
        assert_int_equal(token_place_add(&place, &text, ids[i], out, &at[i], &err), PLIM_OK);
        assert_true(i == 0 || at[i] >= at[i - 1]);
    }
    assert_int_equal(token_text_end(&text, out, &err), PLIM_OK);
    for (int i = 0; i < LIST; i++) {
        bool byte = strncmp(texts[ids[i]], "<0x", 3) == 0;
        strbuf_clear(piece);
        assert_int_equal(token_text_piece(&text, ids[i], piece, &err), PLIM_OK);
        if (byte || !at[i] || utf8_valid_prefix(strbuf_text(piece), piece->len) != piece->len) continue;
        if (strncmp(at_character(strbuf_text(out), at[i]), strbuf_text(piece), piece->len) != 0)
            fail_msg("'%s' is not at %zu of '%s'", strbuf_text(piece), at[i], strbuf_text(out));
    }
    token_text_release(&text);
}

static void test_places(void **state)
{
    (void)state;
    static const size_t with[] = {1, 2, 5}; /* decoders that take nothing from inside a text */
    uint32_t seed = 777;
    struct strbuf out = STRBUF_INIT, piece = STRBUF_INIT;
    for (size_t d = 0; d < sizeof with / sizeof *with; d++) {
        struct codec codec;
        open_codec(decoders[with[d]], &codec);
        for (int round = 0; round < 1000; round++) {
            int32_t ids[LIST];
            for (int i = 0; i < LIST; i++)
                ids[i] = (int32_t)((seed = seed * 1664525 + 1013904223) >> 8) % TOKENS;
            check_places(&codec, ids, &out, &piece);
        }
        tokenizer_free(codec.tokenizer);
    }
    strbuf_release(&out);
    strbuf_release(&piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_cut), cmocka_unit_test(test_seen),
                                       cmocka_unit_test(test_places)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
