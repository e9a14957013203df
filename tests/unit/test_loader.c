/* test_loader.c - rows of streams: order, resuming, ranks, packing, masks, compression. */
#include "support/data_rig.h"
#include "base/json.h"
#include "store/token_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct plim_error err;

#define T    24
#define MANY 400

/* Rows one after the other. */
struct many {
    int32_t ids[MANY][T], targets[MANY][T], pos[MANY][T];
    int64_t count, counted;
};

static void take_rows(struct loader *loader, int64_t n, struct many *out)
{
    assert_true(out->count + n <= MANY);
    int64_t got;
    out->counted +=
        data_rig_take(loader, n, out->ids[out->count], out->targets[out->count], out->pos[out->count], &got);
    out->count += got;
}

static void assert_same(const struct many *a, int64_t from, const struct many *b)
{
    size_t n = (size_t)b->count * T * sizeof(int32_t);
    assert_memory_equal(a->ids[from], b->ids, n);
    assert_memory_equal(a->targets[from], b->targets, n);
    assert_memory_equal(a->pos[from], b->pos, n);
}

/* The number a row's text begins with. */
static int number_of(const int32_t *ids)
{
    int n = 0;
    for (int i = 0; i < 6; i++) n = 10 * n + ids[i] - '0';
    return n;
}

/* Two files of JSON lines, 90 samples in all, some longer than a row. */
static struct dataset *open_lines(struct data_rig *rig, bool packing, enum data_overlong overlong)
{
    static const char *paths[2];
    char *text = data_rig_lines(90, 2 * T), *half = strstr(text, "{\"id\":50,");
    data_rig_write(rig, "a.jsonl", text, (size_t)(half - text));
    data_rig_text(rig, "b.jsonl", half);
    free(text);
    paths[0] = data_rig_path(rig, "a.jsonl"), paths[1] = data_rig_path(rig, "b.jsonl");
    struct data_options options = data_rig_options(paths, 2, T);
    options.packing = packing, options.overlong = overlong;
    return data_rig_dataset(rig, &options);
}

static const struct loader_options small = {.seed = 5, .shuffle_samples = 20};

/* The same rows whatever the number of workers; every sample once an epoch; epochs differ. */
static void test_workers_and_epochs(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many first, other;
    data_rig_open(&rig);
    struct dataset *data = open_lines(&rig, false, OVERLONG_TRUNCATE);
    for (int workers = 0; workers <= 5; workers++) {
        struct loader_options o = small;
        o.workers = workers;
        struct loader *loader = data_rig_loader(data, &o);
        memset(&other, 0, sizeof other);
        for (int i = 0; i < 27; i++) take_rows(loader, 10, &other);
        loader_close(loader);
        if (workers == 0) first = other;
        assert_same(&first, 0, &other);
        assert_int_equal(first.counted, other.counted);
    }
    int moved = 0, differ = 0;
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[90] = {0};
        for (int r = 0; r < 90; r++) {
            int n = number_of(first.ids[90 * epoch + r]);
            assert_true(n >= 0 && n < 90 && !seen[n]++);
            moved += n != r, differ += n != number_of(first.ids[r]);
        }
    }
    assert_true(moved > 200 && differ > 100);
    dataset_close(data);
    data_rig_close(&rig);
}

/* Any state, as JSON and back, with any number of workers. */
static void resume_everywhere(struct dataset *data)
{
    static struct many whole, rest;
    memset(&whole, 0, sizeof whole);
    struct loader *loader = data_rig_loader(data, &small);
    struct strbuf states[41] = {STRBUF_INIT};
    for (int i = 0; i < 40; i++) {
        strbuf_init(&states[i]);
        loader_save(loader, &states[i]);
        take_rows(loader, 5, &whole);
    }
    loader_close(loader);
    static const int counts[] = {0, 1, 2, 5};
    for (int i = 0; i < 40; i++) {
        struct loader_options o = small;
        struct doc *doc;
        o.workers = counts[i % 4];
        loader = data_rig_loader(data, &o);
        assert_int_equal(json_parse(states[i].data, states[i].len, "state", &doc, &err), PLIM_OK);
        if (loader_restore(loader, &doc->root, 0, &err) != PLIM_OK) fail_msg("%s", err.text);
        memset(&rest, 0, sizeof rest);
        for (int k = 0; k < 3 && 5 * i + 7 * k + 7 <= 200; k++) take_rows(loader, 7, &rest);
        assert_same(&whole, 5 * i, &rest);
        loader_close(loader);
        doc_free(doc);
        strbuf_release(&states[i]);
    }
}

static void test_resume(void **state)
{
    (void)state;
    static const enum data_overlong overlongs[] = {OVERLONG_TRUNCATE, OVERLONG_SPLIT, OVERLONG_DROP};
    for (int i = 0; i < 3; i++)
        for (int packing = 0; packing < 2; packing++) {
            struct data_rig rig;
            data_rig_open(&rig);
            struct dataset *data = open_lines(&rig, packing, overlongs[i]);
            resume_everywhere(data);
            dataset_close(data);
            data_rig_close(&rig);
        }
}

/* Running text through the stream: compressed, so that it cannot be had by index. */
static void test_resume_stream(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    char *text = data_rig_lines(60, 40);
    data_rig_gzip(&rig, "a.txt.gz", text);
    data_rig_zstd(&rig, "b.txt.zst", text);
    const char *paths[] = {data_rig_path(&rig, "a.txt.gz"), data_rig_path(&rig, "b.txt.zst")};
    struct data_options options = data_rig_options(paths, 2, T);
    options.format = DATA_TEXT; /* lines of JSON, as running text */
    struct dataset *data = data_rig_dataset(&rig, &options);
    assert_int_equal(dataset_options(data)->rows, ROWS_STREAM);
    resume_everywhere(data);
    dataset_close(data);
    free(text);
    data_rig_close(&rig);
}

/* Rows of running text follow each other without a gap and end with the file. */
static void test_stream_rows(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    data_rig_open(&rig);
    char *text = data_rig_lines(100, 40);
    size_t length = strlen(text);
    data_rig_zstd(&rig, "a.txt.zst", text);
    const char *paths[] = {data_rig_path(&rig, "a.txt.zst")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.format = DATA_TEXT; /* lines of JSON, as running text */
    struct dataset *data = data_rig_dataset(&rig, &options);
    struct loader *loader =
        data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true, .workers = 2});
    memset(&got, 0, sizeof got);
    while (got.count < 350) {
        int64_t before = got.count;
        take_rows(loader, 7, &got);
        if (got.count == before) break;
    }
    assert_int_equal(got.counted, length - 1);
    assert_int_equal(got.count, (length - 1 + T - 1) / T);
    for (size_t i = 0; i + 1 < length; i++) {
        assert_int_equal(got.ids[i / T][i % T], (unsigned char)text[i]);
        assert_int_equal(got.targets[i / T][i % T], (unsigned char)text[i + 1]);
        assert_int_equal(got.pos[i / T][i % T], i % T);
    }
    loader_close(loader);
    dataset_close(data);
    free(text);
    data_rig_close(&rig);
}

/* Ranks share the rows; another number of ranks goes on where the first stopped. */
static void share(struct dataset *data)
{
    static struct many whole, part;
    static const int ranks[] = {1, 3, 2, 1, 3};
    memset(&whole, 0, sizeof whole);
    struct loader *alone = data_rig_loader(data, &small);
    for (int i = 0; i < 30; i++) take_rows(alone, 4, &whole);
    loader_close(alone);
    struct loader_state at = {0};
    for (size_t phase = 0; phase < sizeof ranks / sizeof *ranks; phase++) {
        struct loader_state next = at;
        int n = ranks[phase];
        int64_t all = -1;
        for (int r = 0; r < n; r++) {
            struct loader_options o = small;
            o.rank = r, o.ranks = n, o.workers = r % 3;
            struct loader *loader = data_rig_loader(data, &o);
            assert_int_equal(loader_seek(loader, &at, &err), PLIM_OK);
            memset(&part, 0, sizeof part);
            struct loader_window w;
            assert_int_equal(loader_window(loader, 6, &w, &err), PLIM_OK);
            assert_true(w.rows == 6 && (all < 0 || w.all_targets == all) &&
                        (n > 1 || w.targets == w.all_targets));
            all = w.all_targets;
            for (int k = 0; k < 3; k++) {
                struct rows two = {.count = 2,
                                   .time = loader_time(loader),
                                   .ids = part.ids[2 * k],
                                   .pos = part.pos[2 * k],
                                   .targets = part.targets[2 * k]};
                assert_int_equal(loader_fill(loader, 2, &two, &err), PLIM_OK);
            }
            int found = 0;
            for (uint64_t g = at.rows; g < at.rows + 6 * (uint64_t)n; g++)
                if (g % (uint64_t)n == (uint64_t)r)
                    assert_memory_equal(part.ids[found++], whole.ids[g], sizeof whole.ids[g]);
            assert_int_equal(found, 6);
            loader_state(loader, &next);
            assert_int_equal(next.rows, at.rows + 6 * (uint64_t)n);
            loader_close(loader);
        }
        at = next;
    }
}

static void test_ranks(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    for (int packing = 0; packing < 2; packing++) {
        struct dataset *data = open_lines(&rig, packing, OVERLONG_SPLIT);
        share(data);
        dataset_close(data);
    }
    char *text = data_rig_lines(90, 20);
    data_rig_text(&rig, "plain.txt", text);
    const char *paths[] = {data_rig_path(&rig, "plain.txt")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.format = DATA_TEXT; /* lines of JSON, as running text */
    struct dataset *data = data_rig_dataset(&rig, &options);
    assert_true(dataset_samples(data) > 0);
    share(data);
    dataset_close(data);
    free(text);
    data_rig_close(&rig);
}

/* Whole samples share a row; pos says where each begins; nothing crosses from one to the next. */
static void test_packing(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    data_rig_open(&rig);
    data_rig_text(
        &rig, "a.jsonl",
        "{\"text\":\"abcdefghij\"}\n{\"text\":\"klmnopqrst\"}\n{\"text\":\"ABCDEFGHIJK\"}\n{\"text\":"
        "\"xy\"}\n");
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.packing = true;
    struct dataset *data = data_rig_dataset(&rig, &options);
    struct loader *loader = data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true});
    memset(&got, 0, sizeof got);
    take_rows(loader, 5, &got);
    assert_int_equal(got.count, 2); /* 9 + 9 positions; 10 + 1 */
    assert_int_equal(got.counted, 29);
    for (int t = 0; t < T; t++) {
        bool used = t < 18;
        assert_int_equal(got.ids[0][t], used ? 'a' + t % 9 + (t < 9 ? 0 : 10) : 0);
        assert_int_equal(got.targets[0][t], used ? got.ids[0][t] + 1 : -1);
        assert_int_equal(got.pos[0][t], used ? t % 9 : t - 9); /* padding goes on counting */
    }
    assert_true(got.ids[1][9] == 'J' && got.targets[1][9] == 'K' && got.ids[1][10] == 'x' &&
                got.pos[1][10] == 0 && got.targets[1][10] == 'y' && got.targets[1][11] == -1);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

/* Only the response is a target; a sample whose prompt leaves no room for it is dropped and counted. */
static void test_pairs(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    data_rig_open(&rig);
    data_rig_text(&rig, "a.jsonl",
                  "\xef\xbb\xbf{\"q\":\"abc\", \"a\":\"XY\", \"z\":[1,{}]}\r\n\n   \n"
                  "{\"a\":\"\\u00e9\\n\",\"q\":\"\"}\n"
                  "{\"q\":\"abcdefghijklmnopqrstuvwxyz\",\"a\":\"no room\"}");
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.prompt_field = "q", options.response_field = "a";
    struct dataset *data = data_rig_dataset(&rig, &options);
    struct loader *loader = data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true});
    memset(&got, 0, sizeof got);
    take_rows(loader, 5, &got);
    assert_int_equal(got.count, 2);
    static const int32_t ids[] = {'a', 'b', 'c', 'X'}, targets[] = {-1, -1, 'X', 'Y', -1};
    assert_memory_equal(got.ids[0], ids, sizeof ids);
    assert_memory_equal(got.targets[0], targets, sizeof targets);
    assert_true(got.ids[1][0] == 0xc3 && got.targets[1][0] == 0xa9 && got.targets[1][1] == '\n' &&
                got.targets[1][2] == -1);
    struct loader_stats stats;
    loader_stats(loader, &stats);
    assert_true(stats.dropped == 1 && stats.bad == 0 && !stats.problem);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

/* The same rows from a file, from gzip (also of several members) and from zstd, by path, folder and glob. */
static void test_compression_and_globs(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many want, got;
    data_rig_open(&rig);
    char *text = data_rig_lines(150, 700); /* several slots */
    data_rig_text(&rig, "a.jsonl", text);
    data_rig_gzip(&rig, "b.jsonl.gz", text);
    data_rig_zstd(&rig, "c.jsonl.zst", text);
    data_rig_text(&rig, ".hidden", "not data");
    const char *glob = data_rig_path(&rig, "[abc].jsonl*");
    const char *choices[][1] = {{data_rig_path(&rig, "a.jsonl")},
                                {data_rig_path(&rig, "b.jsonl.gz")},
                                {data_rig_path(&rig, "c.jsonl.zst")},
                                {rig.folder},
                                {glob}};
    for (int i = 0; i < 5; i++) {
        struct data_options options = data_rig_options(choices[i], 1, T);
        struct dataset *data = data_rig_dataset(&rig, &options);
        assert_int_equal(dataset_inputs(data)->count, i < 3 ? 1 : 3);
        struct loader *loader =
            data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true, .workers = i % 3});
        memset(&got, 0, sizeof got);
        take_rows(loader, 150, &got);
        if (i == 0) want = got;
        assert_int_equal(got.count, 150);
        assert_same(&want, 0, &got);
        loader_close(loader);
        dataset_close(data);
    }
    free(text);
    data_rig_close(&rig);
}

/* What cannot be gone on from is refused. */
static void test_refused_states(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    struct dataset *data = open_lines(&rig, false, OVERLONG_TRUNCATE);
    struct loader *loader = data_rig_loader(data, &small), *other;
    struct strbuf text = STRBUF_INIT;
    struct doc *doc;
    assert_int_equal(loader_restore(loader, NULL, 100, &err),
                     PLIM_BAD_INPUT); /* a position says nothing here */
    loader_save(loader, &text);
    assert_int_equal(json_parse(text.data, text.len, "state", &doc, &err), PLIM_OK);
    struct loader_options o = small;
    o.shuffle_samples = 21;
    other = data_rig_loader(data, &o);
    assert_int_equal(loader_restore(other, &doc->root, 0, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "options"));
    assert_int_equal(loader_seek(other, &(struct loader_state){.visit = 9}, &err), PLIM_BAD_INPUT);
    struct loader_window w;
    assert_int_equal(loader_seek(other, &(struct loader_state){.index = 9999}, &err), PLIM_OK);
    assert_int_equal(loader_window(other, 1, &w, &err),
                     PLIM_BAD_INPUT); /* found out when the block is there */
    assert_int_equal(loader_seek(other, &(struct loader_state){.offset = 1 << 30}, &err), PLIM_OK);
    assert_int_equal(loader_window(other, 1, &w, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, ".jsonl"));
    loader_close(other);
    loader_close(loader);
    doc_free(doc);
    strbuf_release(&text);
    dataset_close(data);
    data_rig_text(&rig, "none.jsonl", "{\"text\":\"\"}\n{\"text\":\"x\"}\n"); /* nothing to learn, for ever */
    const char *paths[] = {data_rig_path(&rig, "none.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    data = data_rig_dataset(&rig, &options);
    loader = data_rig_loader(data, &(struct loader_options){.workers = 2});
    assert_int_equal(loader_window(loader, 1, &w, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "none.jsonl"));
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

/* Lines as samples; a text that is no stream is refused. */
static void test_lines(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    struct dataset *data = NULL;
    data_rig_open(&rig);
    data_rig_text(&rig, "a.txt", "one\r\n\r\n  \ntwo\nx\nthree");
    const char *paths[] = {data_rig_path(&rig, "a.txt")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.rows = ROWS_SAMPLES;
    assert_int_equal(dataset_open(&options, &rig.codec, &data, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "lines"));
    options.format = DATA_LINES;
    data = data_rig_dataset(&rig, &options);
    struct loader *loader = data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true});
    memset(&got, 0, sizeof got);
    take_rows(loader, 9, &got);
    assert_true(got.count == 3 && got.counted == 2 + 2 + 4); /* a single letter has nothing to follow it */
    assert_true(got.ids[0][0] == 'o' && got.targets[0][1] == 'e' && got.targets[0][2] == -1 &&
                got.ids[2][1] == 'h');
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

/* What the assistant says is learned, with what closes its turn. */
static void test_chat(void **state)
{
    (void)state;
    static const char jinja[] = "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}.{% endfor %}"
                                "{% if add_generation_prompt %}[a]{% endif %}";
    struct data_rig rig;
    struct chat_template *chat;
    static struct many got;
    data_rig_open(&rig);
    if (chat_template_parse(jinja, strlen(jinja), "chat", &chat, &err) != PLIM_OK) fail_msg("%s", err.text);
    data_rig_text(
        &rig, "a.jsonl",
        "{\"m\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yo\"},"
        "{\"role\":\"user\",\"content\":\"?\"},{\"role\":\"assistant\",\"content\":\"!\"}]}\n");
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.messages_field = "m", options.chat = chat;
    struct dataset *data = data_rig_dataset(&rig, &options);
    struct loader *loader =
        data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true, .workers = 1});
    memset(&got, 0, sizeof got);
    take_rows(loader, 2, &got);
    static const char text[] = "[u]hi.[a]yo.[u]?.[a]!.", learned[] = "         yo.        !.";
    assert_int_equal(got.count, 1);
    for (size_t i = 1; i < sizeof text - 1; i++) {
        assert_int_equal(got.ids[0][i - 1], text[i - 1]);
        assert_int_equal(got.targets[0][i - 1], learned[i] == ' ' ? -1 : learned[i]);
    }
    loader_close(loader);
    dataset_close(data);
    chat_template_free(chat);
    data_rig_close(&rig);
}

static const char small_tokenizer[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":null,\"post_processor\":null,"
    "\"added_tokens\":[{\"id\":4,\"content\":\"</"
    "s>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
    "\"normalized\":false,\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
    "false,"
    "\"trim_offsets\":true,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
    "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":"
    "null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":"
    "false,"
    "\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3},\"merges\":[\"a b\"]}}";

/* A tokenizer's ids, and its end token after each document; running text runs on after it. */
static void test_tokenizer(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    data_rig_open(&rig);
    data_rig_text(&rig, "tokenizer.json", small_tokenizer);
    data_rig_text(&rig, "a.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"cab\"}\n");
    if (codec_open(data_rig_path(&rig, "tokenizer.json"), &rig.codec, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    assert_true(rig.codec.vocab_size == 5 && rig.codec.eos == 4 && rig.codec.fingerprint);
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    for (int stream = 0; stream < 2; stream++) {
        struct data_options options = data_rig_options(paths, 1, T);
        options.rows = stream ? ROWS_STREAM : ROWS_SAMPLES;
        struct dataset *data = data_rig_dataset(&rig, &options);
        struct loader *loader =
            data_rig_loader(data, &(struct loader_options){.in_order = true, .once = true});
        memset(&got, 0, sizeof got);
        take_rows(loader, 3, &got);
        static const int32_t ids[] = {3, 2, 4, 2, 3}, targets[] = {2, 4, 2, 3, 4, -1}, two[] = {3, 2, 0};
        assert_int_equal(got.count, stream ? 1 : 2);
        if (stream) {
            assert_memory_equal(got.ids[0], ids, sizeof ids);
            assert_memory_equal(got.targets[0], targets, sizeof targets);
        } else {
            assert_memory_equal(got.ids[0], two, sizeof two);
            assert_true(got.targets[0][1] == 4 && got.targets[0][2] == -1 && got.ids[1][0] == 2);
        }
        loader_close(loader);
        dataset_close(data);
    }
    codec_close(&rig.codec);
    data_rig_close(&rig);
}

/* What the tokenizer adds stands at the two ends of a text, however many pieces it is encoded in. */
static void test_marks_of_long_texts(void **state)
{
    (void)state;
    static const char model[] =
        "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"<s>\",4],\"cls\":[\"<s>\",4],"
        "\"trim_offsets\":true,\"add_prefix_space\":false}";
    struct data_rig rig;
    struct record_encoder *enc;
    struct token_list ids = {0};
    struct strbuf text = STRBUF_INIT;
    const char *none = strstr(small_tokenizer, "\"post_processor\":null");
    assert_non_null(none);
    data_rig_open(&rig);
    strbuf_addf(&text, "%.*s%s%s", (int)(none - small_tokenizer), small_tokenizer, model,
                none + strlen("\"post_processor\":null"));
    data_rig_text(&rig, "tokenizer.json", strbuf_text(&text));
    if (codec_open(data_rig_path(&rig, "tokenizer.json"), &rig.codec, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    struct record_rules rules = {.kind = RECORD_LINE, .codec = &rig.codec, .add_special = true};
    assert_int_equal(record_encoder_open(&rules, &enc, &err), PLIM_OK);
    for (size_t n = 2; n < 4 * RECORD_PIECE; n = n * 3 + RECORD_PIECE / 2) {
        char *line = malloc(n);
        assert_non_null(line);
        memset(line, 'c', n);
        ids.count = 0;
        assert_int_equal(record_encode(enc, line, n, RECORD_WHOLE, &ids, &err), PLIM_OK);
        assert_int_equal(ids.count, n + 2);
        for (size_t i = 0; i < ids.count; i++) assert_int_equal(ids.id[i] == 4, i == 0 || i + 1 == ids.count);
        free(line);
    }
    record_encoder_close(enc);
    token_list_release(&ids);
    strbuf_release(&text);
    codec_close(&rig.codec);
    data_rig_close(&rig);
}

/* The memory that was said to be enough, in a loader's own numbers: more workers and larger blocks need more. */
static void test_planned_bytes(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    struct dataset *data = open_lines(&rig, false, OVERLONG_TRUNCATE);
    struct loader_options o = {.workers = 1, .prefetch = 2, .shuffle_samples = 8, .shuffle_bytes = 1 << 20};
    size_t least = loader_bytes(data, &o);
    o.workers = 4;
    size_t more = loader_bytes(data, &o);
    o.window_rows = 100;
    assert_true(least < more && more + 100 * 12 * T <= loader_bytes(data, &o));
    assert_true(least < 4 << 20); /* small files need little, whatever the options allow */
    dataset_close(data);
    data_rig_close(&rig);
}

/* Closing at any moment: nothing hangs, nothing leaks. */
static void test_close_early(void **state)
{
    (void)state;
    struct data_rig rig;
    static struct many got;
    data_rig_open(&rig);
    struct dataset *data = open_lines(&rig, true, OVERLONG_SPLIT);
    for (int i = 0; i < 20; i++) {
        struct loader *loader =
            data_rig_loader(data, &(struct loader_options){.workers = 1 + i % 4, .shuffle_samples = 3});
        memset(&got, 0, sizeof got);
        for (int k = 0; k < i % 5; k++) take_rows(loader, 3, &got);
        if (i % 2) loader_rewind(loader);
        if (i % 7 == 3) take_rows(loader, 1, &got);
        loader_close(loader);
    }
    dataset_close(data);
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_and_epochs),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_stream),
        cmocka_unit_test(test_stream_rows),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_compression_and_globs),
        cmocka_unit_test(test_refused_states),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_marks_of_long_texts),
        cmocka_unit_test(test_planned_bytes),
        cmocka_unit_test(test_close_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
