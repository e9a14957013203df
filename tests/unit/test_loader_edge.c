/* test_loader_edge.c - where epochs, blocks and the output of tokenize meet: states at their borders, counts, names. */
#include "support/data_rig.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

#define T    24
#define ROWS 60

static void take_rows(struct loader *loader, int64_t n, int32_t (*ids)[T])
{
    static int32_t targets[ROWS * T], pos[ROWS * T];
    data_rig_take(loader, n, ids[0], targets, pos, NULL);
}

static struct loader *restored(struct dataset *data, const struct loader_options *options,
                               const struct strbuf *saved)
{
    struct doc *doc;
    struct loader *loader = data_rig_loader(data, options);
    assert_int_equal(json_parse(saved->data, saved->len, "state", &doc, &err), PLIM_OK);
    if (loader_restore(loader, &doc->root, 0, &err) != PLIM_OK) fail_msg("%s", err.text);
    doc_free(doc);
    return loader;
}

/* Samples of an epoch fill its blocks exactly, and a packed row looks beyond the last: the state after it is that of
 * the next epoch's begin. */
static void test_full_blocks_packed(void **state)
{
    (void)state;
    struct data_rig rig;
    static int32_t whole[ROWS][T], rest[ROWS][T];
    data_rig_open(&rig);
    char *text = data_rig_lines(40, 12);
    data_rig_text(&rig, "a.jsonl", text);
    free(text);
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.packing = true;
    struct dataset *data = data_rig_dataset(&rig, &options);
    struct loader_options o = {.seed = 5, .shuffle_samples = 20};
    struct strbuf saved[ROWS];
    struct loader *loader = data_rig_loader(data, &o);
    for (int i = 0; i < ROWS; i++) {
        strbuf_init(&saved[i]);
        loader_save(loader, &saved[i]);
        take_rows(loader, 1, &whole[i]);
    }
    loader_close(loader);
    for (int i = 0; i < ROWS; i++) {
        o.workers = i % 3;
        loader = restored(data, &o, &saved[i]);
        take_rows(loader, ROWS - i, rest);
        if (memcmp(whole[i], rest, sizeof rest[0] * (size_t)(ROWS - i)))
            fail_msg("from row %d on: %s", i, saved[i].data);
        loader_close(loader);
        strbuf_release(&saved[i]);
    }
    dataset_close(data);
    data_rig_close(&rig);
}

/* What was skipped is counted once, wherever the run was stopped in between. */
static void test_counts_go_on(void **state)
{
    (void)state;
    struct data_rig rig;
    static int32_t rows[ROWS][T];
    struct strbuf text = STRBUF_INIT, saved = STRBUF_INIT;
    struct loader_stats want, got;
    data_rig_open(&rig);
    for (int i = 0; i < 30; i++) strbuf_addf(&text, "oops\n{\"text\":\"x\"}\n{\"text\":\"number %d\"}\n", i);
    data_rig_text(&rig, "a.jsonl", text.data);
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.skip_bad = true;
    for (int packing = 0; packing < 2; packing++) {
        options.packing = packing;
        struct dataset *data = data_rig_dataset(&rig, &options);
        struct loader_options o = {.seed = 5, .shuffle_samples = 10};
        struct loader *loader = data_rig_loader(data, &o);
        take_rows(loader, 31, rows);
        loader_stats(loader, &want);
        loader_close(loader);
        loader = data_rig_loader(data, &o);
        for (int i = 0; i < 31; i++) {
            strbuf_clear(&saved);
            loader_save(loader, &saved);
            loader_close(loader);
            loader = restored(data, &o, &saved);
            take_rows(loader, 1, rows);
        }
        loader_stats(loader, &got);
        assert_int_equal(got.bad, want.bad);
        assert_int_equal(got.dropped, want.dropped);
        loader_close(loader);
        dataset_close(data);
    }
    strbuf_release(&text);
    strbuf_release(&saved);
    data_rig_close(&rig);
}

/* The tokens of a long line come piece by piece, and its samples are those of its text, from any of them on. */
static void test_long_line_in_pieces(void **state)
{
    (void)state;
    enum { BYTES = 5 * (int)RECORD_PIECE / 2, SAMPLES = (BYTES - 1 + T - 1) / T };
    struct data_rig rig;
    struct strbuf text = STRBUF_INIT, saved = STRBUF_INIT;
    static int32_t ids[ROWS][T];
    data_rig_open(&rig);
    strbuf_add(&text, "{\"text\":\"before\"}\n{\"text\":\"");
    for (int i = 0; i < BYTES; i++) strbuf_addc(&text, (char)('a' + i * 7 / 5 % 26));
    strbuf_add(&text, "\"}\n{\"text\":\"after\"}\n");
    const char *line = text.data + strlen("{\"text\":\"before\"}\n{\"text\":\"");
    data_rig_text(&rig, "a.jsonl", text.data);
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    options.overlong = OVERLONG_SPLIT;
    struct dataset *data = data_rig_dataset(&rig, &options);
    for (int workers = 0; workers < 3; workers++) {
        struct loader_options o = {.in_order = true, .workers = workers, .shuffle_samples = 50};
        struct loader *loader = data_rig_loader(data, &o);
        take_rows(loader, 1, ids);
        for (int s = 0; s < SAMPLES; s += ROWS / 2) {
            int n = SAMPLES - s < ROWS / 2 ? SAMPLES - s : ROWS / 2;
            strbuf_clear(&saved);
            loader_save(loader, &saved);
            if (s % 7 == 0) loader_close(loader), loader = restored(data, &o, &saved);
            take_rows(loader, n, ids);
            for (int i = 0; i < n * T && s * T + i + 1 < BYTES; i++)
                if (ids[i / T][i % T] != line[s * T + i])
                    fail_msg("%d workers, token %d", workers, s * T + i);
        }
        take_rows(loader, 1, ids);
        assert_int_equal(ids[0][0], 'a');
        assert_int_equal(ids[0][1], 'f');
        loader_close(loader);
    }
    dataset_close(data);
    strbuf_release(&text);
    strbuf_release(&saved);
    data_rig_close(&rig);
}

/* Files of very short lines: a slot takes no more than memory is planned for, and none is lost. */
static void test_short_lines(void **state)
{
    (void)state;
    struct data_rig rig;
    struct strbuf text = STRBUF_INIT;
    enum { LINES = 50000 };
    data_rig_open(&rig);
    for (int i = 0; i < LINES; i++) strbuf_addf(&text, "%d%s", i % 10, i == LINES - 1 ? "" : "\n");
    data_rig_text(&rig, "a.txt", text.data);
    data_rig_gzip(&rig, "b.txt.gz", text.data);
    const char *paths[] = {data_rig_path(&rig, "a.txt"), data_rig_path(&rig, "b.txt.gz")};
    struct data_options options = data_rig_options(paths, 2, T);
    options.format = DATA_LINES;
    struct dataset *data = data_rig_dataset(&rig, &options);
    for (int workers = 0; workers < 3; workers++) {
        struct intake_options o;
        struct intake *intake;
        struct intake_slot *slot;
        uint64_t line = 0, files = 0;
        dataset_intake_options(data, &o);
        o.workers = workers, o.prefetch = 2, o.max_line = 1 << 20;
        assert_int_equal(intake_open(&o, &intake, &err), PLIM_OK);
        assert_int_equal(intake_start(intake, &(struct intake_place){0}, &err), PLIM_OK);
        while (intake_next(intake, &slot, &err) == PLIM_OK && slot) {
            assert_true(slot->count <= INTAKE_LINES);
            for (size_t i = 0; i < slot->count; i++, line++) {
                assert_int_equal(slot->records[i].line, line % LINES);
                assert_int_equal(slot->tokens.id[slot->records[i].first], '0' + line % 10);
            }
            files += slot->file_end;
            intake_give_back(intake, slot);
        }
        assert_true(line == 2 * LINES && files == 2);
        intake_close(intake);
    }
    dataset_close(data);
    strbuf_release(&text);
    data_rig_close(&rig);
}

/* A line of as many tokens as a row has inputs, one more, which is its last target, and two more: a part of one target. */
static void test_lines_that_just_fit(void **state)
{
    (void)state;
    static const struct {
        enum data_overlong overlong;
        const char *begin; /* of rows in order */
    } cases[] = {{OVERLONG_SPLIT, "abcca"}, {OVERLONG_DROP, "ababa"}, {OVERLONG_TRUNCATE, "abcab"}};
    struct data_rig rig;
    struct strbuf text = STRBUF_INIT;
    static int32_t ids[ROWS][T];
    data_rig_open(&rig);
    for (int i = 0; i < 3; i++) {
        strbuf_add(&text, "{\"text\":\"");
        strbuf_pad(&text, (char)('a' + i), (size_t)(T + i));
        strbuf_add(&text, "\"}\n");
    }
    data_rig_text(&rig, "a.jsonl", text.data);
    const char *paths[] = {data_rig_path(&rig, "a.jsonl")};
    struct data_options options = data_rig_options(paths, 1, T);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options.overlong = cases[i].overlong;
        struct dataset *data = data_rig_dataset(&rig, &options);
        struct loader *loader = data_rig_loader(data, &(struct loader_options){.in_order = true});
        take_rows(loader, 5, ids);
        for (int r = 0; r < 5; r++)
            if (ids[r][0] != cases[i].begin[r]) fail_msg("case %zu, row %d: %c", i, r, ids[r][0]);
        loader_close(loader);
        dataset_close(data);
    }
    strbuf_release(&text);
    data_rig_close(&rig);
}

static const char marked_tokenizer[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"single_word\":false,\"lstrip\":"
    "false,"
    "\"rstrip\":false,\"normalized\":false}],\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":null,"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
    "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":"
    "{\"id\":\"<s>\",\"ids\":[3],\"tokens\":[\"<s>\"]}}},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
    "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";

/* A record begins with what the tokenizer adds; running text does not, however short its file is. */
static void test_begin_marks(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    data_rig_text(&rig, "tokenizer.json", marked_tokenizer);
    if (codec_open(data_rig_path(&rig, "tokenizer.json"), &rig.codec, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    for (int running = 0; running < 2; running++) {
        struct record_rules rules = {
            .kind = running ? RECORD_TEXT : RECORD_LINE, .codec = &rig.codec, .add_special = true};
        struct record_encoder *enc;
        struct token_list tokens = {0};
        char text[] = "abc";
        assert_int_equal(record_encoder_open(&rules, &enc, &err), PLIM_OK);
        assert_int_equal(record_encode(enc, text, 3, RECORD_WHOLE, &tokens, &err), PLIM_OK);
        assert_int_equal(tokens.count, running ? 3 : 4);
        assert_int_equal(tokens.id[0], running ? 0 : 3);
        token_list_release(&tokens);
        record_encoder_close(enc);
    }
    codec_close(&rig.codec);
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_blocks_packed),  cmocka_unit_test(test_counts_go_on),
        cmocka_unit_test(test_long_line_in_pieces), cmocka_unit_test(test_short_lines),
        cmocka_unit_test(test_begin_marks),         cmocka_unit_test(test_lines_that_just_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
