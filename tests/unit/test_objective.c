/* test_objective.c - what each objective puts into rows, with which errors, and that masks depend on nothing but seed, epoch,
 * sample and position. */
#include "data/objective.h"
#include "data/pretokenize.h"
#include "support/data_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { T = 24, S = 16, MANY = 400 };

static struct plim_error err;

struct got {
    struct rows rows;
    int32_t memory[MANY * (4 * T + S + 5)];
};

/* n samples as one batch. */
static void take(struct loader *loader, int64_t n, int per, struct got *out)
{
    struct loader_window w;
    if (loader_window(loader, n, &w, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(w.rows, n);
    memset(out->memory, 0x55, sizeof out->memory);
    out->rows = (struct rows){.count = n * per, .time = T, .source_time = S};
    rows_place(&out->rows, (1u << FEED_COUNT) - 1, out->memory);
    if (loader_fill(loader, n, &out->rows, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void open_bert(struct data_rig *rig)
{
    data_rig_open(rig);
    codec_close(&rig->codec);
    if (codec_open("tests/golden/tokenizer/bert.json", &rig->codec, &err) != PLIM_OK)
        fail_msg("%s", err.text);
}

static void close_bert(struct data_rig *rig)
{
    codec_close(&rig->codec);
    data_rig_close(rig);
}

static int32_t id_of(const struct data_rig *rig, const char *token)
{
    int32_t id = tokenizer_id(rig->codec.tokenizer, token, strlen(token));
    assert_true(id >= 0);
    return id;
}

static struct data_options options_of(const char *const *path, enum objective objective)
{
    struct data_options o = data_rig_options(path, 1, T);
    o.objective = objective;
    return o;
}

static void write_texts(struct data_rig *rig, int n)
{
    struct strbuf text = STRBUF_INIT;
    static const char *const words[] = {"the", "people", "water", "know", "time", "would", "could", "where"};
    for (int i = 0; i < n; i++) {
        strbuf_addf(&text, "{\"text\":\"");
        for (int k = 0; k <= i % 37; k++) strbuf_addf(&text, "%s ", words[(i * 5 + k * k) % 8]);
        strbuf_addf(&text, "\"}\n");
    }
    data_rig_text(rig, "m.jsonl", text.data);
    strbuf_release(&text);
}

static void check_masked(const struct data_rig *rig, const struct got *g, const struct got *plain, int64_t n)
{
    int32_t mask = id_of(rig, "[MASK]"), cls = id_of(rig, "[CLS]"), sep = id_of(rig, "[SEP]");
    double counted = 0, hidden = 0, masked = 0, own = 0;
    for (int64_t i = 0; i < n; i++) {
        int targets = 0, length = g->rows.lengths[i];
        const int32_t *ids = g->rows.ids + i * T, *to = g->rows.targets + i * T,
                      *was = plain->rows.ids + i * T;
        assert_true(ids[0] == cls && ids[length - 1] == sep && to[0] == -1 && to[length - 1] == -1);
        for (int t = 0; t < T; t++) {
            assert_true(t < length || (to[t] == -1 && ids[t] == 0));
            assert_true(to[t] == -1 ? ids[t] == was[t] : to[t] == was[t]);
            targets += to[t] >= 0;
            masked += to[t] >= 0 && ids[t] == mask, own += to[t] >= 0 && ids[t] == to[t];
        }
        assert_true(targets > 0 && g->rows.types[i * T] == 0);
        if (length > 20) counted += length - 2, hidden += targets;
    }
    assert_true(fabs(hidden / counted - 0.15) < 0.03);
    assert_true(masked > 0 && own > 0 && masked > 4 * own);
}

/* The ids behind masks: the same data read as they are. */
static void take_plain(struct data_rig *rig, int64_t n, struct got *out)
{
    const char *path = data_rig_path(rig, "m.jsonl");
    struct encoder *encoder;
    struct token_list ids = {0};
    assert_int_equal(encoder_open(rig->codec.tokenizer, &encoder, &err), PLIM_OK);
    FILE *f = fopen(path, "r");
    char line[2000];
    memset(out->memory, 0, sizeof out->memory);
    out->rows = (struct rows){.count = n, .time = T, .source_time = S};
    rows_place(&out->rows, (1u << FEED_COUNT) - 1, out->memory);
    for (int64_t i = 0; i < n; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        char *text = line + strlen("{\"text\":\""), *end = strrchr(text, '"');
        ids.count = 0;
        assert_int_equal(encoder_encode(encoder, text, (size_t)(end - text), TOKENIZE_SPECIAL, &ids, &err),
                         PLIM_OK);
        size_t count = ids.count > T ? T : ids.count;
        for (size_t t = 0; t < count; t++) out->rows.ids[(size_t)i * T + t] = ids.id[t];
        out->rows.ids[(size_t)i * T + count - 1] = ids.id[ids.count - 1]; /* the mark behind survives */
    }
    fclose(f);
    token_list_release(&ids);
    encoder_close(encoder);
}

static void test_masked(void **state)
{
    (void)state;
    static struct got all, part, plain, later;
    struct data_rig rig;
    open_bert(&rig);
    write_texts(&rig, MANY);
    const char *path = data_rig_path(&rig, "m.jsonl");
    struct data_options o = options_of(&path, OBJECTIVE_MASKED_TOKENS);
    struct dataset *data = data_rig_dataset(&rig, &o);
    struct loader_options l = {.seed = 5, .in_order = true, .shuffle_samples = 60};
    struct loader *loader = data_rig_loader(data, &l);
    take(loader, MANY, 1, &all);
    take(loader, MANY, 1, &later);
    loader_close(loader);
    take_plain(&rig, MANY, &plain);
    check_masked(&rig, &all, &plain, MANY);
    check_masked(&rig, &later, &plain, MANY);
    assert_memory_not_equal(all.rows.ids, later.rows.ids, MANY * T * sizeof(int32_t)); /* of the next epoch */
    for (l.workers = 0; l.workers < 3; l.workers++) {
        loader = data_rig_loader(data, &l);
        for (int64_t i = 0; i < MANY; i += 20) {
            take(loader, 20, 1, &part);
            assert_memory_equal(part.rows.ids, all.rows.ids + i * T, 20 * T * sizeof(int32_t));
            assert_memory_equal(part.rows.targets, all.rows.targets + i * T, 20 * T * sizeof(int32_t));
            struct loader_state at;
            loader_state(loader, &at);
            loader_close(loader);
            loader = data_rig_loader(data, &l);
            if (loader_seek(loader, &at, &err) != PLIM_OK) fail_msg("%s", err.text);
        }
        loader_close(loader);
    }
    l.seed = 6, l.workers = 0;
    loader = data_rig_loader(data, &l);
    take(loader, MANY, 1, &later);
    assert_memory_not_equal(all.rows.ids, later.rows.ids, MANY * T * sizeof(int32_t));
    loader_close(loader);
    dataset_close(data);
    close_bert(&rig);
}

static struct loader *open_text(struct data_rig *rig, const char *text, struct data_options o,
                                struct dataset **data)
{
    static const char *path;
    data_rig_text(rig, "x.jsonl", text);
    path = data_rig_path(rig, "x.jsonl");
    o.paths = &path, o.count = 1;
    *data = data_rig_dataset(rig, &o);
    return data_rig_loader(*data, &(struct loader_options){.in_order = true, .shuffle_samples = 10});
}

static void test_labels(void **state)
{
    (void)state;
    static const char *const names[] = {"O", "B-PER", "I-PER"};
    static struct got g;
    struct data_rig rig;
    struct dataset *data;
    open_bert(&rig);
    struct data_options o = options_of(NULL, OBJECTIVE_TOKEN_LABELS);
    o.labels = names, o.nlabels = 3;
    struct loader *loader =
        open_text(&rig,
                  "{\"tokens\":[\"the\",\"timeless\",\"time\"],\"labels\":[\"O\",\"B-PER\",\"I-PER\"]}\n"
                  "{\"tokens\":[\"water\",\"people\"],\"ner_tags\":[2,-100]}\n",
                  o, &data);
    take(loader, 2, 1, &g);
    struct encoder *encoder;
    struct token_list ids = {0}, word = {0};
    assert_int_equal(encoder_open(rig.codec.tokenizer, &encoder, &err), PLIM_OK);
    assert_int_equal(encoder_encode(encoder, "the timeless time", 17, TOKENIZE_SPECIAL, &ids, &err), PLIM_OK);
    assert_int_equal(encoder_encode(encoder, "timeless", 8, 0, &word, &err), PLIM_OK);
    assert_true(word.count > 1 && g.rows.lengths[0] == (int32_t)ids.count);
    assert_memory_equal(g.rows.ids, ids.id, ids.count * sizeof *ids.id);
    for (int t = 0; t < T; t++) {
        int32_t expected = t == 1 ? 0 : t == 2 ? 1 : t == 2 + (int)word.count ? 2 : -1;
        assert_int_equal(g.rows.targets[t], expected);
    }
    assert_true(g.rows.targets[T + 1] == 2 && g.rows.targets[T + 2] == -1);
    token_list_release(&ids);
    token_list_release(&word);
    encoder_close(encoder);
    loader_close(loader);
    dataset_close(data);
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"{\"tokens\":[\"a\"],\"labels\":[\"B-XYZ\"]}\n",
         "x.jsonl:2: label 'B-XYZ' is not in the label list (O, B-PER, I-PER)"},
        {"{\"tokens\":[\"a\"],\"labels\":[3]}\n", "x.jsonl:2: label '3' is not in the label list"},
        {"{\"tokens\":[\"a\",\"b\"],\"labels\":[0]}\n",
         "x.jsonl:2: there are 2 tokens in 'tokens' and 1 labels"},
        {"{\"tokens\":[1],\"labels\":[0]}\n", "x.jsonl:2: a token is whole number, not text"},
        {"{\"tokens\":[\"a\"],\"labels\":[{}]}\n", "x.jsonl:2: a label is map"},
        {"{\"tokens\":\"a\",\"labels\":[0]}\n", "x.jsonl:2: the field 'tokens' is text, not a list"},
        {"{\"tokens\":[\"a\"]}\n", "x.jsonl:2: the field 'labels' is missing"},
        {"{\"words\":[\"a\"],\"labels\":[0]}\n", "the record has 'words': set data.first_field=words"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[300];
        struct loader_window w;
        snprintf(text, sizeof text, "{\"tokens\":[\"a\"],\"labels\":[0]}\n%s", bad[i].line);
        loader = open_text(&rig, text, o, &data);
        assert_int_equal(loader_window(loader, 2, &w, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, bad[i].words)) fail_msg("%s", err.text);
        loader_close(loader);
        dataset_close(data);
    }
    close_bert(&rig);
}

/* Rows 0.. are the first texts, the others their partners; blank pairs have no target. */
static void test_pairs(void **state)
{
    (void)state;
    static struct got g;
    struct data_rig rig;
    struct dataset *data;
    data_rig_open(&rig);
    struct data_options o = options_of(NULL, OBJECTIVE_SENTENCE_PAIRS);
    struct loader *loader = open_text(
        &rig,
        "{\"text_a\":\"abc\",\"text_b\":\"de\"}\n{\"text_a\":\"f\",\"text_b\":\"ghij\",\"score\":-2.5}\n"
        "{\"text_a\":\"kl\",\"text_b\":\"mnopqrstuvwxyzabcdefghijklmnop\"}\n",
        o, &data);
    struct loader_window w;
    assert_int_equal(loader_window(loader, 3, &w, &err), PLIM_OK);
    assert_true(w.rows == 3 && w.targets == 3 && w.lengths[0] == 3 && w.lengths[1] == 4 && w.lengths[2] == T);
    g.rows = (struct rows){.count = 8, .time = T, .source_time = S};
    rows_place(&g.rows, (1u << FEED_COUNT) - 1, g.memory);
    assert_int_equal(loader_fill(loader, 3, &g.rows, &err), PLIM_OK);
    static const int32_t lengths[] = {3, 1, 2, 0, 2, 4, T, 0};
    assert_memory_equal(g.rows.lengths, lengths, sizeof lengths);
    assert_true(g.rows.ids[0] == 'a' && g.rows.ids[T] == 'f' && g.rows.ids[2 * T + 1] == 'l');
    assert_true(g.rows.ids[4 * T + 1] == 'e' && g.rows.ids[5 * T + 3] == 'j' && g.rows.ids[5 * T + 4] == 0);
    for (int i = 0; i < 4; i++) assert_int_equal(g.rows.targets[i], i < 3 ? i : -1);
    float scores[2];
    memcpy(scores, g.rows.scores, sizeof scores);
    assert_true(isnan(scores[0]) && scores[1] == -2.5f);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

static void test_source_target(void **state)
{
    (void)state;
    static struct got g;
    struct data_rig rig;
    struct dataset *data;
    data_rig_open(&rig);
    struct data_options o = options_of(NULL, OBJECTIVE_SOURCE_TARGET);
    o.source_time = S, o.start = 7, o.first_field = "en", o.second_field = "de";
    struct loader *loader = open_text(&rig,
                                      "{\"en\":\"cat\",\"de\":\"Katze\"}\n"
                                      "{\"en\":\"a source that is longer than its rows\",\"de\":\"x\"}\n",
                                      o, &data);
    take(loader, 2, 1, &g);
    static const int32_t ids[] = {7, 'K', 'a', 't', 'z', 0}, targets[] = {'K', 'a', 't', 'z', 'e', -1};
    assert_memory_equal(g.rows.ids, ids, sizeof ids);
    assert_memory_equal(g.rows.targets, targets, sizeof targets);
    assert_true(g.rows.source_lengths[0] == 3 && g.rows.source_lengths[1] == S);
    assert_true(g.rows.source_ids[2] == 't' && g.rows.source_ids[3] == 0 && g.rows.source_ids[S] == 'a');
    assert_true(g.rows.ids[T] == 7 && g.rows.targets[T] == 'x' && g.rows.targets[T + 1] == -1);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

static void open_rows(struct got *g, struct loader *loader, int64_t count)
{
    struct loader_window w;
    assert_int_equal(loader_window(loader, count, &w, &err), PLIM_OK);
    assert_int_equal(w.rows, count);
    g->rows = (struct rows){.count = 2 * count, .time = T, .source_time = S};
    rows_place(&g->rows, (1u << FEED_COUNT) - 1, g->memory);
    assert_int_equal(loader_fill(loader, count, &g->rows, &err), PLIM_OK);
}

static float reference_of(const struct rows *rows, int64_t row)
{
    float logp;
    memcpy(&logp, &rows->reference[row], sizeof logp);
    return logp;
}

/* Chosen rows come first, then rejected ones; completions are targets, and for orpo prompts of chosen rows. Pairs that do not
 * differ within a row make none. */
static void test_preferences(void **state)
{
    (void)state;
    static struct got g;
    struct data_rig rig;
    struct dataset *data;
    const char *text =
        "{\"prompt\":\"ab\",\"chosen\":\"cd\",\"rejected\":\"efg\",\"ref_chosen_logps\":-1,"
        "\"ref_rejected_logps\":-2}\n"
        "{\"prompt\":\"a prompt that fills the whole row\",\"chosen\":\"b\",\"rejected\":\"c\"}\n"
        "{\"prompt\":\"0123456789012345678901\",\"chosen\":\"abcX\",\"rejected\":\"abcY\"}\n";
    data_rig_open(&rig);
    struct loader *loader = open_text(&rig, text, options_of(NULL, OBJECTIVE_DPO), &data);
    open_rows(&g, loader, 1);
    static const int32_t chosen[] = {'a', 'b', 'c', 0}, rejected[] = {'a', 'b', 'e', 'f', 0};
    static const int32_t wanted[] = {-1, 'c', 'd', -1}, other[] = {-1, 'e', 'f', 'g', -1};
    assert_memory_equal(g.rows.ids, chosen, sizeof chosen);
    assert_memory_equal(g.rows.targets, wanted, sizeof wanted);
    assert_memory_equal(g.rows.ids + T, rejected, sizeof rejected);
    assert_memory_equal(g.rows.targets + T, other, sizeof other);
    assert_true(reference_of(&g.rows, 0) == -1 && reference_of(&g.rows, 1) == -2);
    struct loader_stats stats;
    loader_stats(loader, &stats);
    assert_int_equal(stats.dropped, 2);
    loader_close(loader);
    dataset_close(data);
    loader = open_text(&rig, text, options_of(NULL, OBJECTIVE_ORPO), &data);
    open_rows(&g, loader, 1);
    static const int32_t all[] = {'b', 'c', 'd', -1};
    assert_memory_equal(g.rows.targets, all, sizeof all);
    assert_memory_equal(g.rows.targets + T, other, sizeof other);
    assert_int_equal(g.rows.marks[0], 1);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

/* A reference's file: numbers and the other completion of a sample come back; other fingerprints and damage do not. */
static void test_reference(void **state)
{
    (void)state;
    static struct got g;
    struct data_rig rig;
    struct dataset *data;
    struct reference_writer w;
    struct reference *r = NULL;
    data_rig_open(&rig);
    struct loader *loader = open_text(&rig, "{\"prompt\":\"ab\",\"completion\":\"cd\",\"label\":true}\n",
                                      options_of(NULL, OBJECTIVE_KTO), &data);
    open_rows(&g, loader, 1);
    assert_true(g.rows.marks[0] == 1 && isnan(reference_of(&g.rows, 0)) && g.rows.targets[T] == -1);
    int64_t length = 3;
    uint64_t key = objective_key(&g.rows, &length, 1);
    loader_close(loader);
    const char *path = data_rig_path(&rig, "reference.logps");
    static const int32_t tokens[] = {'x', 'y', 'z'};
    assert_int_equal(reference_begin(&w, path, 77, &err), PLIM_OK);
    for (int i = 0; i < MANY; i++) /* many others, some of which would have its place */
        assert_int_equal(
            reference_add(&w, &(struct reference_entry){.key = key + 1 + (uint64_t)i}, NULL, &err), PLIM_OK);
    struct reference_entry entry = {.key = key, .logp = {-3, -4}, .count = 3};
    assert_int_equal(reference_add(&w, &entry, tokens, &err), PLIM_OK);
    assert_int_equal(reference_commit(&w, &err), PLIM_OK);
    assert_int_equal(reference_open(path, 78, &r, &err), PLIM_NOT_FOUND);
    assert_int_equal(reference_open(path, 77, &r, &err), PLIM_OK);
    assert_false(reference_find(r, key - 1, &entry, NULL, 0));
    dataset_set_reference(data, r);
    loader = data_rig_loader(data, &(struct loader_options){.in_order = true,
                                                            .once = true,
                                                            .shuffle_samples = 4,
                                                            .shuffle_bytes = 4096,
                                                            .window_rows = 1,
                                                            .max_line = 4096,
                                                            .prefetch = 1});
    open_rows(&g, loader, 1);
    static const int32_t mixed[] = {'a', 'b', 'x', 'y', 0}, wanted[] = {-1, 'x', 'y', 'z', -1};
    assert_memory_equal(g.rows.ids + T, mixed, sizeof mixed);
    assert_memory_equal(g.rows.targets + T, wanted, sizeof wanted);
    assert_true(reference_of(&g.rows, 0) == -3 && reference_of(&g.rows, 1) == -4);
    loader_close(loader);
    dataset_close(data);
    reference_close(r);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(reference_open(path, 77, &r, &err), PLIM_NOT_FOUND);
    data_rig_close(&rig);
}

static void test_refusals(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    data_rig_text(&rig, "a.txt", "some text\n");
    data_rig_text(&rig, "a.jsonl", "{\"text_a\":\"abc\",\"text_b\":\"de\"}\n");
    const char *text = data_rig_path(&rig, "a.txt"), *lines = data_rig_path(&rig, "a.jsonl");
    static const char *const names[] = {"O"};
    struct {
        const char *path;
        struct data_options o;
        const char *words;
    } bad[] = {
        {text, options_of(NULL, OBJECTIVE_SENTENCE_PAIRS), "sentence_pairs reads records with fields"},
        {lines, options_of(NULL, OBJECTIVE_MASKED_TOKENS), "[MASK]"},
        {lines, options_of(NULL, OBJECTIVE_TOKEN_LABELS), "data.labels"},
        {lines, options_of(NULL, OBJECTIVE_SOURCE_TARGET), "data.packing"},
        {lines, options_of(NULL, OBJECTIVE_TOKEN_LABELS), "data.overlong"},
        {lines, options_of(NULL, OBJECTIVE_SENTENCE_PAIRS), "prompts"},
    };
    bad[3].o.packing = true;
    bad[4].o.overlong = OVERLONG_SPLIT, bad[4].o.labels = names, bad[4].o.nlabels = 1;
    bad[5].o.prompt_field = "a", bad[5].o.response_field = "b";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dataset *data;
        bad[i].o.paths = &bad[i].path, bad[i].o.count = 1;
        assert_int_equal(dataset_open(&bad[i].o, &rig.codec, &data, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, bad[i].words)) fail_msg("%s", err.text);
    }
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masked),    cmocka_unit_test(test_labels),
        cmocka_unit_test(test_pairs),     cmocka_unit_test(test_source_target),
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_preferences),
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
