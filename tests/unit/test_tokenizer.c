/* run-tests: not=tsan */
/* test_tokenizer.c - the parts of a tokenizer on small inline files; whole families are in tests/golden. */
#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/tokenizer/bpe_merges.h"
#include "text/regex.h"
#include "text/tokenizer/scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

static uint64_t rng_bits(uint64_t seed, uint64_t index) { return rng_u64(seed, 0, index); }

/* A tokenizer.json of these members ("" for none) over a small BPE model. */
#define MODEL_OPTIONS(options)                                                                               \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"c\":3,\"ab\":4,\"abc\":5,"         \
    "\"\xe2\x96\x81\":6,"                                                                                    \
    "\"\xe2\x96\x81"                                                                                         \
    "a\":7,\" \":8,\"<0xC3>\":9,\"<0xA9>\":10,\"bc\":11,\"A\":12,\"1\":13},"                                 \
    "\"merges\":[\"a b\",[\"ab\",\"c\"],[\"\xe2\x96\x81\",\"a\"],[\"b\",\"c\"]]" options "}"

static enum plim_status parse(const char *members, const char *options, struct tokenizer **tok)
{
    char text[4096];
    snprintf(text, sizeof text, "{%s%s}", members, options);
    return tokenizer_parse(text, strlen(text), "t.json", tok, &err);
}

/* "1,2,3" */
static const char *encoded(const char *members, const char *model, const char *text, size_t len,
                           unsigned flags)
{
    static char out[512];
    struct tokenizer *tok;
    struct encoder *enc;
    struct token_list ids = {0};
    size_t at = 0;
    if (parse(members, model, &tok) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(encoder_open(tok, &enc, &err), PLIM_OK);
    assert_int_equal(encoder_encode(enc, text, len, flags, &ids, &err), PLIM_OK);
    out[0] = '\0';
    for (size_t i = 0; i < ids.count && at + 16 < sizeof out; i++)
        at += (size_t)snprintf(out + at, sizeof out - at, i ? ",%d" : "%d", (int)ids.id[i]);
    token_list_release(&ids);
    encoder_close(enc);
    tokenizer_free(tok);
    return out;
}

#define ENCODED(members, options, text) encoded(members, MODEL_OPTIONS(options), text, sizeof(text) - 1, 0)

static void test_bpe(void **state)
{
    (void)state;
    assert_string_equal(ENCODED("", "", ""), "");
    assert_string_equal(ENCODED("", "", "abc"), "5");
    assert_string_equal(ENCODED("", "", "abcbcab"), "5,11,4");
    assert_string_equal(ENCODED("", "", "axb"), "4"); /* no unknown token: characters vanish */
    assert_string_equal(ENCODED("", ",\"unk_token\":\"<unk>\"", "xxaxx"), "0,0,1,0,0");
    assert_string_equal(ENCODED("", ",\"unk_token\":\"<unk>\",\"fuse_unk\":true", "xxaxx"), "0,1,0");
    assert_string_equal(ENCODED("", ",\"byte_fallback\":true",
                                "a\xc3\xa9"
                                "b"),
                        "1,9,10,2");
    assert_string_equal(ENCODED("", ",\"byte_fallback\":true,\"unk_token\":\"<unk>\"", "\xc3\xaa"), "0");
    assert_string_equal(ENCODED("", ",\"ignore_merges\":true", "bc"), "11");
}

static void test_unreadable_bytes_become_replacement(void **state)
{
    (void)state;
    assert_string_equal(ENCODED("", ",\"unk_token\":\"<unk>\"",
                                "a\xe2\x82"
                                "b"),
                        "1,0,2");
    assert_string_equal(ENCODED("", ",\"unk_token\":\"<unk>\"",
                                "a\xed\xa0\x80"
                                "b"),
                        "1,0,0,0,2");
    assert_string_equal(ENCODED("", ",\"unk_token\":\"<unk>\"",
                                "\xf0\x9f\x98"
                                "ab\xff"),
                        "0,4,0");
}

static void test_added_tokens(void **state)
{
    (void)state;
#define ADDED(flags)                                                                                         \
    "\"added_tokens\":[{\"id\":99,\"content\":\"<s>\",\"special\":true" flags                                \
    "},{\"id\":14,\"content\":\"<s>>\",\"normalized\":false}],"
    assert_string_equal(ENCODED(ADDED(""), "", "a<s>b"),
                        "1,14,2"); /* the next free id, whatever the file says */
    assert_string_equal(ENCODED(ADDED(""), "", "a<s>>b"), "1,15,2");
    assert_string_equal(ENCODED(ADDED(""), "", "a <s> b"), "1,8,14,8,2");
    assert_string_equal(ENCODED(ADDED(",\"lstrip\":true"), "", "a  <s> b"), "1,14,8,2");
    assert_string_equal(ENCODED(ADDED(",\"rstrip\":true"), "", "a <s>  b"), "1,8,14,2");
    assert_string_equal(ENCODED(ADDED(",\"single_word\":true"), "", "a<s>b <s>"), "4,8,14");
}

static void test_metaspace(void **state)
{
    (void)state;
#define META(scheme)                                                                                         \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":"         \
    "\"" scheme "\"},"
    assert_string_equal(ENCODED(META("always"), "", "a a"), "7,7");
    assert_string_equal(ENCODED(META("never"), "", "a a"), "1,7");
    assert_string_equal(ENCODED(META("first") ADDED(""), "", "a<s>a"), "7,14,1");
    assert_string_equal(ENCODED(META("always") ADDED(""), "", "a<s>a"), "7,14,7");
    assert_string_equal(ENCODED(META("first"), "", " a  a"), "7,6,7");
}

/* "b" and "c" join unless a cut lies between them. */
static void test_split_behaviors(void **state)
{
    (void)state;
#define SPLIT(behavior, invert)                                                                              \
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ 1]\"},\"behavior\":\"" behavior        \
    "\",\"invert\":" invert "},"
    assert_string_equal(ENCODED(SPLIT("Removed", "false"), "", "a b1c"), "1,2,3");
    assert_string_equal(ENCODED(SPLIT("Removed", "true"), "", "a b1c"), "8,13");
    assert_string_equal(ENCODED(SPLIT("Isolated", "false"), "", "a b1c"), "1,8,2,13,3");
    assert_string_equal(ENCODED(SPLIT("Contiguous", "false"), "", "a  1bc"), "1,8,8,13,11");
    assert_string_equal(ENCODED(SPLIT("MergedWithNext", "false"), "", "a b1c"), "1,8,2,13,3");
    assert_string_equal(ENCODED(SPLIT("MergedWithPrevious", "false"), "", "a b1c"), "1,8,2,13,3");
}

static void refused(const char *members, const char *model, enum plim_status status, const char *part)
{
    struct tokenizer *tok;
    assert_int_equal(parse(members, model, &tok), status);
    assert_null(tok);
    if (!strstr(err.text, part)) fail_msg("'%s' does not name '%s'", err.text, part);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("", "\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}", PLIM_UNSUPPORTED,
            "t.json:1: model type 'WordLevel'");
    refused("", "\"other\":1", PLIM_BAD_INPUT, "expected a model");
    refused("", MODEL_OPTIONS(",\"dropout\":0.1"), PLIM_UNSUPPORTED, "dropout");
    refused("", MODEL_OPTIONS(",\"unk_token\":\"[UNK]\""), PLIM_BAD_INPUT, "[UNK]");
    refused("\"pre_tokenizer\":{\"type\":\"Foo\"},", MODEL_OPTIONS(""), PLIM_UNSUPPORTED,
            "pre_tokenizer type 'Foo'");
    refused("", "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}", PLIM_BAD_INPUT,
            "'b'");
    refused("", "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}", PLIM_BAD_INPUT,
            "merges");
    refused("", "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", PLIM_BAD_INPUT, "'a'");
    refused("", "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}", PLIM_BAD_INPUT,
            "taken");
}

static void test_decode(void **state)
{
    (void)state;
    struct tokenizer *tok;
    struct strbuf out = STRBUF_INIT;
    int32_t ids[] = {14, 5, 1}, beyond[] = {1, 77};
    if (parse(ADDED(""), MODEL_OPTIONS(""), &tok) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_decode(tok, ids, 3, 0, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), "<s> abc a");
    strbuf_clear(&out);
    assert_int_equal(tokenizer_decode(tok, ids, 3, TOKENIZE_SKIP_SPECIAL, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), "abc a");
    assert_int_equal(tokenizer_decode(tok, beyond, 2, 0, &out, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "77"));
    assert_int_equal(tokenizer_vocab_size(tok), 16);
    assert_int_equal(tokenizer_id(tok, "<s>", 3), 14);
    assert_int_equal(tokenizer_id(tok, "abc", 3), 5);
    assert_int_equal(tokenizer_id(tok, "nothing", 7), -1);
    assert_true(tokenizer_is_special(tok, 14));
    assert_false(tokenizer_is_special(tok, 15));
    assert_null(tokenizer_text(tok, 16, NULL));
    strbuf_release(&out);
    tokenizer_free(tok);
}

/* --- merges against the definition -------------------------------------------------------------------------- */

enum { SYMBOLS = 6, MERGES = 60, LONG = 700 };

static size_t join_by_definition(const struct bpe_merges *m, int32_t *symbol, size_t count)
{
    for (;;) {
        uint64_t least = BPE_NO_MERGE;
        size_t best = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            uint64_t value = bpe_merges_find(m, symbol[i], symbol[i + 1]);
            if (value < least) least = value, best = i;
        }
        if (least == BPE_NO_MERGE) return count;
        symbol[best] = (int32_t)(uint32_t)least;
        memmove(symbol + best + 1, symbol + best + 2, (count - best - 2) * sizeof *symbol);
        count--;
    }
}

static void test_merges_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct bpe_merges *m = bpe_merges_new(MERGES);
        struct bpe_work work = {0};
        int32_t first[SYMBOLS + MERGES], last[SYMBOLS + MERGES], symbol[LONG], copy[LONG];
        uint64_t at = 0;
        assert_non_null(m);
        for (int32_t i = 0; i < SYMBOLS; i++) first[i] = last[i] = i;
        for (int32_t i = SYMBOLS; i < SYMBOLS + MERGES; i++) {
            int32_t left = (int32_t)(rng_bits(seed, at++) % (uint64_t)i),
                    right = (int32_t)(rng_bits(seed, at++) % (uint64_t)i);
            if (bpe_merges_find(m, left, right) != BPE_NO_MERGE) left = right = i - 1;
            bpe_merges_add(m, left, right, (uint32_t)i, i);
            bpe_merges_allow(m, last[left], first[right]);
            first[i] = first[left], last[i] = last[right];
        }
        if (seed % 4 == 1) bpe_merges_allow_all(m); /* else a long word is mostly cut into short ones */
        size_t count = seed % 2 ? LONG : 1 + rng_bits(seed, at++) % 80;
        for (size_t i = 0; i < count; i++) symbol[i] = copy[i] = (int32_t)(rng_bits(seed, at++) % SYMBOLS);
        size_t ours = bpe_merges_run(m, &work, symbol, count), theirs = join_by_definition(m, copy, count);
        assert_int_equal(ours, theirs);
        assert_memory_equal(symbol, copy, ours * sizeof *symbol);
        bpe_work_release(&work);
        bpe_merges_free(m);
    }
}

/* What a word of a million symbols takes beside the symbols. */
static void test_long_words_take_little(void **state)
{
    (void)state;
    assert_true(bpe_work_bytes(1 << 20) <= (size_t)4 << 20);
    struct bpe_merges *m = bpe_merges_new(1);
    struct bpe_work work = {.most = 1000};
    int32_t symbol[4000];
    bpe_merges_add(m, 1, 1, 0, 2);
    bpe_merges_allow_all(m);
    for (int i = 0; i < 4000; i++) symbol[i] = 1;
    assert_true(bpe_merges_run(m, &work, symbol, 4000) == SIZE_MAX && work.full);
    work.most = bpe_work_bytes(4000);
    assert_int_equal(bpe_merges_run(m, &work, symbol, 4000), 2000);
    for (int i = 0; i < 2000; i++) assert_int_equal(symbol[i], 2);
    bpe_work_release(&work);
    bpe_merges_free(m);
}

/* --- regular expressions ------------------------------------------------------------------------------------ */

/* All matches as "start-end ". */
static const char *matches(const char *pattern, const char *text)
{
    static char out[512];
    struct regex *re;
    struct regex_run run = {0};
    size_t at = 0, from = 0, start, end, len = strlen(text);
    if (regex_compile(pattern, strlen(pattern), &re, &err) != PLIM_OK) fail_msg("%s: %s", pattern, err.text);
    out[0] = '\0';
    regex_begin(&run, text, len);
    while (from <= len && regex_find(re, &run, from, &start, &end) && at + 32 < sizeof out) {
        at += (size_t)snprintf(out + at, sizeof out - at, "%zu-%zu ", start, end);
        from = end > start ? end : end + 1;
    }
    regex_run_release(&run);
    regex_free(re);
    return out;
}

static void test_regex(void **state)
{
    (void)state;
    assert_string_equal(matches("a|ab", "ab"), "0-1 ");
    assert_string_equal(matches("(a|ab)c", "abc"), "0-3 ");
    assert_string_equal(matches("a+?b", "aab"), "0-3 ");
    assert_string_equal(matches("a++a", "aaa"), "");
    assert_string_equal(matches("(?>a|ab)c", "abc"), "");
    assert_string_equal(matches("a{2,3}", "aaaaa"), "0-3 3-5 ");
    assert_string_equal(matches("a{,2}b", "aaab"), "1-4 ");
    assert_string_equal(matches("\\s+(?!\\S)", "  x "), "0-1 3-4 ");
    assert_string_equal(matches("(?<=a)b", "abb"), "1-2 ");
    assert_string_equal(matches("(?<!a)b", "abb"), "2-3 ");
    assert_string_equal(matches("(?i:AB)c", "abcABC"), "0-3 ");
    assert_string_equal(matches("[^\\p{L}\\s]", "a 1"), "2-3 ");
    assert_string_equal(matches("[a-c&&[^b]]+", "abca"), "0-1 2-4 ");
    assert_string_equal(matches("\\p{L}+", "\xc3\xa9\xe4\xb8\xad 1"), "0-5 ");
    assert_string_equal(matches("^a|b$", "a\na\nb"), "0-1 2-3 4-5 ");
    assert_string_equal(matches("\\b", "ab c"), "0-0 2-2 3-3 4-4 ");
}

static void test_regex_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *names;
    } all[] = {{"(", "'('"},
               {"a)", "')'"},
               {"[a", "'['"},
               {"*a", "repeat"},
               {"(a)\\1", "\\1"},
               {"\\p{Foo}", "Foo"},
               {"(a*)*", "endless"},
               {"(?<=a+)b", "look behind"},
               {"[b-a]", "backwards"},
               {"\\", "backslash"},
               {"(?x)a", "(?...)"},
               {"a{2,1}", "above"},
               {"(?i)\xc3\xa9", "ASCII"},
               {"\\G", "\\G"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct regex *re;
        assert_int_not_equal(regex_compile(all[i].pattern, strlen(all[i].pattern), &re, &err), PLIM_OK);
        assert_null(re);
        if (!strstr(err.text, all[i].names)) fail_msg("%s: '%s'", all[i].pattern, err.text);
    }
}

/* Patterns that take a careless engine longer than the universe is old. */
static void test_regex_cannot_hang(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a+)+b",    "(a|a)*b",      "(?:a?){30}a{30}b",
                                           "(a*a*a*)c", "((a|aa)+)+$b", "(?=(a+)+c)a"};
    size_t len = 3000;
    char *text = malloc(len + 1);
    assert_non_null(text);
    memset(text, 'a', len);
    text[len] = '\0';
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        assert_string_equal(matches(patterns[i], text), "");
    free(text);
}

/* The scanners and the expressions they stand for agree on any text. */
static void test_scanners(void **state)
{
    (void)state;
    static const char *const parts[] = {"a",
                                        "Z",
                                        "9",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r",
                                        "\t",
                                        "'",
                                        "s",
                                        "re",
                                        "LL",
                                        "'ve",
                                        ".",
                                        "!",
                                        "_",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "\xd9\xa1",
                                        "\xf0\x9f\x98\x80",
                                        "\xcc\x81",
                                        "\xc5\xbf",
                                        "\xe2\x85\xa7",
                                        "\xc2\x85",
                                        "\xe2\x80\x8d",
                                        "\x01"};
    for (size_t which = 0; scan_pattern(which); which++) {
        const char *pattern = scan_pattern(which);
        token_scan *scan = scan_of(pattern, strlen(pattern));
        struct regex *re;
        struct regex_run run = {0};
        if (regex_compile(pattern, strlen(pattern), &re, &err) != PLIM_OK) fail_msg("%s", err.text);
        for (uint64_t seed = 0; seed < 4000; seed++) {
            char text[256];
            size_t len = 0, start, end;
            for (uint64_t i = 0; i < 2 + seed % 24; i++) {
                const char *part = parts[rng_bits(seed, i) % (sizeof parts / sizeof *parts)];
                memcpy(text + len, part, strlen(part));
                len += strlen(part);
            }
            regex_begin(&run, text, len);
            for (size_t at = 0; at < len; at = end) {
                assert_true(regex_find(re, &run, at, &start, &end));
                assert_int_equal(start, at);
                assert_int_equal(scan(text, at, len), end);
            }
        }
        regex_run_release(&run);
        regex_free(re);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_unreadable_bytes_become_replacement),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_metaspace),
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_merges_in_order),
        cmocka_unit_test(test_long_words_take_little),
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_refusals),
        cmocka_unit_test(test_regex_cannot_hang),
        cmocka_unit_test(test_scanners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
