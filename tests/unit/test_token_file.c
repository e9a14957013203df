/* test_token_file.c - writing, reading, going on, and damage to every kind of byte. */
#include "support/data_rig.h"
#include "base/hash.h"
#include "data/pretokenize.h"
#include "store/token_file.h"
#include "store/token_writer.h"

#include <stdatomic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct plim_error err;

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(*n + 1);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}

/* Sample i has i % 97 tokens; token k of the whole is k * 7 % vocab, a target unless k % 5 == 0. */
static void write_file(const char *path, int64_t vocab, bool mask, int samples)
{
    struct token_writer *w;
    struct token_writer_format format = {
        .mask = mask, .lines = true, .vocab_size = vocab, .fingerprint = 77, .eos = 3};
    assert_int_equal(token_writer_open(path, &format, NULL, &w, &err), PLIM_OK);
    int32_t tokens[100];
    int64_t k = 0;
    for (int i = 0; i < samples; i++) {
        int n = i % 97;
        for (int j = 0; j < n; j++, k++) tokens[j] = (int32_t)(k * 7 % vocab) | (k % 5 ? 0 : TOKEN_QUIET);
        assert_int_equal(token_writer_put(w, tokens, (size_t)n, &err), PLIM_OK);
        assert_int_equal(token_writer_end_sample(w, &err), PLIM_OK);
    }
    if (token_writer_finish(w, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void check_file(const char *path, int64_t vocab, bool mask, int samples)
{
    struct token_file *f;
    if (token_file_open(path, &f, &err) != PLIM_OK) fail_msg("%s", err.text);
    const struct token_file_header *h = token_file_header(f);
    assert_true(h->width == (vocab > 65536 ? 4 : 2) && h->vocab_size == (uint64_t)vocab &&
                h->fingerprint == 77);
    uint64_t i = 0;
    int64_t k = 0;
    for (int s = 0; s < samples; s++) {
        if (s % 97 == 0) continue; /* empty samples leave no trace */
        uint64_t first, count, targets;
        int32_t tokens[100];
        if (token_file_sample(f, i++, &first, &count, &err) != PLIM_OK) fail_msg("%s", err.text);
        assert_true(first == (uint64_t)k && count == (uint64_t)(s % 97));
        assert_int_equal(token_file_read(f, first, (size_t)count, tokens, &err), PLIM_OK);
        assert_int_equal(token_file_targets(f, first, (size_t)count, &targets, &err), PLIM_OK);
        uint64_t wanted = 0;
        for (uint64_t j = 0; j < count; j++, k++) {
            assert_int_equal(token_id(tokens[j]), k * 7 % vocab);
            assert_int_equal(token_is_target(tokens[j]), !mask || k % 5);
            wanted += !mask || k % 5;
        }
        assert_int_equal(targets, wanted);
    }
    assert_true(h->samples == i && h->tokens == (uint64_t)k &&
                h->longest == (uint64_t)(samples > 97 ? 96 : samples - 1));
    assert_int_equal(token_file_verify(f, &err), PLIM_OK);
    token_file_close(f);
}

static void test_write_and_read(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    const char *path = data_rig_path(&rig, "a.tok");
    for (int mask = 0; mask < 2; mask++) {
        write_file(path, 50000, mask, 300);
        check_file(path, 50000, mask, 300);
        write_file(path, 65537, mask, 20);
        check_file(path, 65537, mask, 20);
        write_file(path, 65536, mask, 40000); /* several chunks */
        check_file(path, 65536, mask, 40000);
    }
    data_rig_close(&rig);
}

/* Is the damage noticed by opening or by reading everything? */
static bool noticed(const char *path)
{
    struct token_file *f;
    if (token_file_open(path, &f, &err) != PLIM_OK) return true;
    bool bad = token_file_verify(f, &err) != PLIM_OK;
    int32_t tokens[100];
    uint64_t first, count;
    for (uint64_t i = 0; !bad && i < token_file_header(f)->samples; i++) {
        bad = token_file_sample(f, i, &first, &count, &err) != PLIM_OK || count > 100;
        if (!bad) bad = token_file_read(f, first, (size_t)count, tokens, &err) != PLIM_OK;
    }
    token_file_close(f);
    return bad;
}

/* Writes `tokens` as samples of 100 and stops after every `step` of them, each time with more written than is kept. */
static void write_with_stops(const char *path, bool mask, const int32_t *tokens, size_t count, size_t step)
{
    struct token_writer *w;
    struct token_writer_format format = {.mask = mask, .lines = true, .vocab_size = 70000, .eos = -1};
    assert_int_equal(token_writer_open(path, &format, NULL, &w, &err), PLIM_OK);
    for (size_t at = 0; at < count;) {
        size_t sample = 100 - at % 100, stop = step - at % step, n = sample < stop ? sample : stop;
        if (n > count - at) n = count - at;
        assert_int_equal(token_writer_put(w, tokens + at, n, &err), PLIM_OK);
        at += n;
        if (at % 100 == 0) assert_int_equal(token_writer_end_sample(w, &err), PLIM_OK);
        if (at % step) continue;
        struct token_writer_mark mark;
        assert_int_equal(token_writer_sync(w, &mark, &err), PLIM_OK);
        assert_int_equal(token_writer_put(w, tokens, count - at / 2, &err), PLIM_OK);
        assert_int_equal(token_writer_end_sample(w, &err), PLIM_OK);
        token_writer_close(w);
        if (token_writer_open(path, &format, &mark, &w, &err) != PLIM_OK) fail_msg("%s", err.text);
    }
    if (token_writer_finish(w, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* Wherever it is stopped, on the border of a chunk or inside one: the file and its sums are the same. */
static void test_stops(void **state)
{
    (void)state;
    enum { CHUNK = (int)(TOKEN_FILE_CHUNK / 4), MOST = 3 * CHUNK };
    static const size_t counts[] = {MOST, MOST - 3, 2 * CHUNK + 77777}, steps[] = {CHUNK, CHUNK / 4, 200003};
    struct data_rig rig;
    data_rig_open(&rig);
    const char *want = data_rig_path(&rig, "want.tok"), *got = data_rig_path(&rig, "got.tok");
    int32_t *tokens = malloc(MOST * sizeof *tokens);
    for (int i = 0; i < MOST; i++)
        tokens[i] = (int32_t)((int64_t)i * 7919 % 70000) | (i % 3 ? 0 : TOKEN_QUIET);
    for (int i = 0; i < 3; i++) {
        size_t n, m;
        write_with_stops(want, i != 1, tokens, counts[i], SIZE_MAX);
        char *whole = slurp(want, &n);
        assert_false(noticed(want));
        for (int j = 0; j < 3; j++) {
            write_with_stops(got, i != 1, tokens, counts[i], steps[j]);
            char *pieces = slurp(got, &m);
            assert_true(n == m && !memcmp(whole, pieces, n));
            free(pieces);
        }
        free(whole);
    }
    free(tokens);
    data_rig_close(&rig);
}

/* Every byte of header, tokens, padding, mask, index and sums; every length. */
static void test_damage(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    const char *path = data_rig_path(&rig, "a.tok");
    write_file(path, 1000, true, 23);
    size_t n;
    char *bytes = slurp(path, &n);
    assert_false(noticed(path));
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit += 7) {
            bytes[i] ^= (char)(1 << bit);
            data_rig_write(&rig, "a.tok", bytes, n);
            if (!noticed(path)) fail_msg("byte %zu of %zu", i, n);
            if (!strstr(err.text, "a.tok")) fail_msg("byte %zu: %s", i, err.text);
            bytes[i] ^= (char)(1 << bit);
        }
    for (size_t cut = 0; cut < n; cut += cut < 300 ? 1 : 37) {
        data_rig_write(&rig, "a.tok", bytes, cut);
        if (!noticed(path)) fail_msg("cut to %zu", cut);
    }
    bytes = realloc(bytes, n + 8);
    memset(bytes + n, 0, 8);
    data_rig_write(&rig, "a.tok", bytes, n + 8);
    assert_true(noticed(path));
    free(bytes);
    data_rig_close(&rig);
}

/* Sums fit, but the tokens do not fit the vocabulary. */
static void test_foreign_tokens(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    const char *path = data_rig_path(&rig, "a.tok");
    struct token_writer_format format = {.vocab_size = 100, .eos = -1};
    for (int32_t last = 99; last <= 100; last++) {
        struct token_writer *w;
        const int32_t tokens[] = {0, 50, last};
        assert_int_equal(token_writer_open(path, &format, NULL, &w, &err), PLIM_OK);
        assert_int_equal(token_writer_put(w, tokens, 3, &err), PLIM_OK);
        assert_int_equal(token_writer_finish(w, &err), PLIM_OK);
        assert_int_equal(noticed(path), last == 100);
    }
    data_rig_close(&rig);
}

/* Damage far inside is found when its chunk is first read, not before, and its place is told. */
static void test_damage_is_local(void **state)
{
    (void)state;
    struct data_rig rig;
    struct token_file *f;
    int32_t token;
    data_rig_open(&rig);
    const char *path = data_rig_path(&rig, "a.tok");
    write_file(path, 60000, false, 40000);
    size_t n;
    char *bytes = slurp(path, &n);
    bytes[256 + (2 << 20) + 5] ^= 1;
    data_rig_write(&rig, "a.tok", bytes, n);
    assert_int_equal(token_file_open(path, &f, &err), PLIM_OK);
    assert_int_equal(token_file_read(f, 0, 1, &token, &err), PLIM_OK);
    assert_int_equal(token_file_read(f, ((2 << 20) - 10) / 2, 1, &token, &err), PLIM_OK);
    assert_int_equal(token_file_read(f, (2 << 20) / 2, 1, &token, &err), PLIM_BAD_INPUT);
    char place[64];
    snprintf(place, sizeof place, "bytes %d to %d", 256 + (2 << 20), 256 + (3 << 20) - 1);
    assert_non_null(strstr(err.text, place));
    /* A file that shrinks while it is mapped is an error, not a signal. */
    assert_int_equal(truncate(path, 300), 0);
    assert_int_equal(token_file_read(f, 0, 1, &token, &err), PLIM_BAD_INPUT);
    token_file_close(f);
    free(bytes);
    data_rig_close(&rig);
}

/* A header that lies, with a checksum that fits the lie. */
static void test_lying_headers(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    const char *path = data_rig_path(&rig, "a.tok");
    write_file(path, 1000, true, 23);
    size_t n;
    char *bytes = slurp(path, &n);
    static const uint64_t lies[] = {0, 1, UINT64_MAX, UINT64_MAX / 2, (uint64_t)1 << 61, 4096};
    for (size_t at = 16; at < 112; at += 4)
        for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
            struct token_file_header h;
            char *copy = malloc(n);
            memcpy(copy, bytes, n);
            memcpy(copy + at, &lies[k], at < 24 ? 4 : 8);
            memcpy(&h, copy, sizeof h);
            h.header_hash = token_file_header_hash(&h);
            memcpy(copy, &h, sizeof h);
            data_rig_write(&rig, "a.tok", copy, n);
            noticed(path); /* no crash, whatever it says */
            free(copy);
        }
    free(bytes);
    data_rig_close(&rig);
}

struct stopper {
    atomic_int stop;
    uint64_t after;
};

static void hear(void *arg, const struct pretokenize_progress *p)
{
    struct stopper *s = arg;
    if (p->bytes >= s->after) s->stop = 1;
}

static enum plim_status tokenize(struct data_rig *rig, const char *const *paths, int count, const char *out,
                                 int workers, struct stopper *stopper)
{
    struct pretokenize_result result;
    struct pretokenize_options o = {.data = data_rig_options(paths, count, 1),
                                    .codec = &rig->codec,
                                    .out = out,
                                    .workers = workers,
                                    .prefetch = 3,
                                    .max_line = 1 << 20,
                                    .resume = true};
    o.data.skip_bad = true;
    if (stopper) o.stop = &stopper->stop, o.hear = hear, o.arg = stopper;
    return pretokenize(&o, &result, &err);
}

/* The same bytes for any number of workers and however often it is stopped. */
static void test_pretokenize(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    char *text = data_rig_lines(3000, 300);
    data_rig_text(&rig, "a.jsonl", text);
    data_rig_gzip(&rig, "b.jsonl.gz", "{\"text\":\"gz\"}\nbad\n{\"text\":\"\"}\n");
    data_rig_text(&rig, "c.txt", text + 1); /* no JSON, so text */
    data_rig_text(&rig, "d.txt", "the end");
    const char *sets[2][2] = {{data_rig_path(&rig, "a.jsonl"), data_rig_path(&rig, "b.jsonl.gz")},
                              {data_rig_path(&rig, "c.txt"), data_rig_path(&rig, "d.txt")}};
    const char *want = data_rig_path(&rig, "want.tok"), *got = data_rig_path(&rig, "got.tok");
    for (int set = 0; set < 2; set++) {
        size_t n, m;
        if (tokenize(&rig, sets[set], 2, want, 0, NULL) != PLIM_OK) fail_msg("%s", err.text);
        char *first = slurp(want, &n);
        for (int workers = 1; workers < 4; workers++) {
            int rounds = 0;
            struct stopper stopper = {.after = 1000};
            while (tokenize(&rig, sets[set], 2, got, workers, &stopper) == PLIM_INTERRUPTED) {
                stopper = (struct stopper){.after = 30000u * (unsigned)++rounds};
                assert_int_not_equal(access(got, F_OK), 0);
            }
            assert_true(rounds >= 1);
            char *second = slurp(got, &m);
            assert_true(n == m && !memcmp(first, second, n));
            free(second);
            assert_int_equal(unlink(got), 0);
        }
        free(first);
    }
    /* Parts of other data are not continued. */
    struct stopper stopper = {.after = 1};
    assert_int_equal(tokenize(&rig, sets[1], 2, got, 1, &stopper), PLIM_INTERRUPTED);
    assert_int_equal(tokenize(&rig, sets[0], 2, got, 1, NULL), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "journal"));
    free(text);
    data_rig_close(&rig);
}

/* Rows from token files: windows over running text, samples by the index, another tokenizer refused. */
static void test_rows_of_tokens(void **state)
{
    (void)state;
    struct data_rig rig;
    enum { T = 16 };
    int32_t ids[40 * T], targets[40 * T], pos[40 * T], again[40 * T];
    data_rig_open(&rig);
    data_rig_text(&rig, "c.txt", "abcdefghijklmnopqrstuvwxyz0123456789");
    char *text = data_rig_lines(20, 2);
    data_rig_text(&rig, "l.jsonl", text);
    const char *texts[] = {data_rig_path(&rig, "c.txt")}, *lines[] = {data_rig_path(&rig, "l.jsonl")};
    const char *tokens[] = {data_rig_path(&rig, "c.tok")}, *samples[] = {data_rig_path(&rig, "l.tok")};
    assert_int_equal(tokenize(&rig, texts, 1, tokens[0], 2, NULL), PLIM_OK);
    assert_int_equal(tokenize(&rig, lines, 1, samples[0], 2, NULL), PLIM_OK);
    for (int pass = 0; pass < 2; pass++) { /* the text's rows and the tokens' rows are the same */
        struct data_options o = data_rig_options(pass ? tokens : texts, 1, T);
        struct dataset *data = data_rig_dataset(&rig, &o);
        assert_int_equal(dataset_samples(data), 3);
        struct loader *loader = data_rig_loader(data, &(struct loader_options){.seed = 9});
        assert_int_equal(data_rig_take(loader, 6, pass ? again : ids, targets, pos, NULL), 70);
        loader_close(loader);
        dataset_close(data);
    }
    assert_memory_equal(ids, again, 6 * T * sizeof *ids);
    struct data_options o = data_rig_options(samples, 1, T);
    for (int packing = 0; packing < 2; packing++) {
        o.packing = packing;
        struct dataset *data = data_rig_dataset(&rig, &o);
        assert_int_equal(dataset_samples(data), 20);
        struct loader *loader = data_rig_loader(data, &(struct loader_options){.seed = 9, .once = true});
        int64_t got, seen = 0;
        data_rig_take(loader, 40, ids, targets, pos, &got);
        assert_true(packing ? got < 20 : got == 20);
        for (int64_t i = 0; i < got * T; i++) seen += pos[i] == 0;
        assert_int_equal(seen, 20);
        loader_close(loader);
        dataset_close(data);
    }
    struct dataset *data = NULL;
    struct codec other = {.vocab_size = 300, .fingerprint = 5, .tokenizer = (void *)1, .path = "other.json"};
    assert_int_equal(dataset_open(&o, &other, &data, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "another tokenizer"));
    free(text);
    data_rig_close(&rig);
}

/* The sums are part of the format. */
static void test_hash_values(void **state)
{
    (void)state;
    unsigned char bytes[100];
    for (int i = 0; i < 100; i++) bytes[i] = (unsigned char)(i * 37);
    for (size_t n = 0; n <= 100; n++) {
        uint64_t sum = hash64(bytes, n, 0);
        assert_true(sum != hash64(bytes, n, 1));
        for (size_t i = 0; i < n; i++) {
            bytes[i] ^= 0x10;
            assert_true(hash64(bytes, n, 0) != sum);
            bytes[i] ^= 0x10;
        }
        if (n < 100) assert_true(hash64(bytes, n + 1, 0) != sum);
    }
    assert_true(hash64("", 0, 0) == UINT64_C(4247419859669015343));
    assert_true(hash64(bytes, 100, 7) == UINT64_C(4457403316922549469));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_and_read),  cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damage_is_local), cmocka_unit_test(test_lying_headers),
        cmocka_unit_test(test_foreign_tokens),  cmocka_unit_test(test_pretokenize),
        cmocka_unit_test(test_rows_of_tokens),  cmocka_unit_test(test_hash_values),
        cmocka_unit_test(test_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
