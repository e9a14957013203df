/* test_loader_lengths.c - windows of samples of like length: the same samples as without, each once an epoch, in an order
 * that neither workers nor a resume change. */
#include "base/json.h"
#include "data/pretokenize.h"
#include "support/data_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { T = 40, SAMPLES = 300, WINDOW = 10, WINDOWS = 3 * SAMPLES / WINDOW };

static struct plim_error err;

/* Windows as they came: by row its text's number and its length. */
struct seen {
    int number[WINDOWS][WINDOW], length[WINDOWS][WINDOW];
};

static int number_of(const int32_t *ids)
{
    int n = 0;
    for (int i = 0; i < 6; i++) n = 10 * n + ids[i] - '0';
    return n;
}

/* One window, filled in passes that are as long as their longest row. */
static void take(struct loader *loader, int window, struct seen *out)
{
    struct loader_window w;
    int32_t ids[2 * T], targets[2 * T], pos[2 * T], lengths[2];
    if (loader_window(loader, WINDOW, &w, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(w.rows, WINDOW);
    int64_t sum = 0, targets_seen = 0;
    for (int i = 0; i < WINDOW; i += 2) {
        struct rows rows = {.count = 2, .time = w.lengths[i]};
        rows.ids = ids, rows.targets = targets, rows.pos = pos, rows.lengths = lengths;
        assert_true(w.lengths[i] >= w.lengths[i + 1]);
        if (i) assert_true(w.lengths[i - 1] >= w.lengths[i]);
        if (loader_fill(loader, 2, &rows, &err) != PLIM_OK) fail_msg("%s", err.text);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(lengths[k], w.lengths[i + k]);
            out->number[window][i + k] = number_of(ids + k * rows.time);
            out->length[window][i + k] = lengths[k], sum += lengths[k];
            for (int64_t t = 0; t < rows.time; t++) targets_seen += targets[k * rows.time + t] >= 0;
        }
    }
    assert_true(sum == w.positions && targets_seen == w.targets);
}

static void take_all(struct loader *loader, struct seen *out)
{
    for (int w = 0; w < WINDOWS; w++) take(loader, w, out);
}

/* Positions that windows padded to their longest would have, beyond those in use. */
static int64_t padding_of(const struct seen *s)
{
    int64_t padding = 0;
    for (int w = 0; w < WINDOWS; w++)
        for (int i = 0; i < WINDOW; i++) padding += s->length[w][0] - s->length[w][i];
    return padding;
}

static void check_epochs(const struct seen *s)
{
    int differ = 0, falls = 0;
    for (int epoch = 0; epoch < 3; epoch++) {
        int count[SAMPLES] = {0};
        for (int w = 0; w < SAMPLES / WINDOW; w++)
            for (int i = 0; i < WINDOW; i++) {
                int at = epoch * SAMPLES / WINDOW + w, n = s->number[at][i];
                assert_true(n >= 0 && n < SAMPLES && !count[n]++);
                differ += n != s->number[w][i];
                falls += at > 0 && s->length[at][0] < s->length[at - 1][0];
            }
    }
    assert_true(differ > SAMPLES / 2); /* epochs differ, */
    assert_true(falls > WINDOWS);      /* and windows do not come by length */
}

static void check_resume(struct dataset *data, const struct loader_options *options, const struct seen *whole)
{
    static struct seen rest;
    struct loader *loader = data_rig_loader(data, options);
    for (int w = 0; w < WINDOWS; w += 7) {
        struct strbuf state = STRBUF_INIT;
        struct doc *doc;
        loader_save(loader, &state);
        struct loader *other = data_rig_loader(data, options);
        assert_int_equal(json_parse(state.data, state.len, "state", &doc, &err), PLIM_OK);
        if (loader_restore(other, &doc->root, 0, &err) != PLIM_OK) fail_msg("%s", err.text);
        take(other, w, &rest);
        assert_memory_equal(rest.number[w], whole->number[w], sizeof rest.number[w]);
        loader_close(other);
        doc_free(doc);
        strbuf_release(&state);
        for (int k = w; k < w + 7 && k < WINDOWS; k++) take(loader, k, &rest);
        assert_memory_equal(rest.number[w], whole->number[w], sizeof rest.number[w]);
    }
    loader_close(loader);
}

/* Row b of rank r is row b * ranks + r of the sorted window, every rank is told the same lengths, and one that has a row less
 * fills a slot less. */
static void check_ranks(struct dataset *data, const struct loader_options *base, const struct seen *whole)
{
    enum { RANKS = 3 };
    for (int r = 0; r < RANKS; r++) {
        struct loader_options o = *base;
        o.rank = r, o.ranks = RANKS, o.window_rows = (WINDOW + RANKS - 1) / RANKS;
        struct loader *loader = data_rig_loader(data, &o);
        for (int window = 0; window < 5; window++) {
            struct loader_window w;
            int32_t ids[T], lengths[1];
            struct rows row = {.count = 1, .time = T, .ids = ids, .lengths = lengths};
            if (loader_window_of(loader, WINDOW, &w, &err) != PLIM_OK) fail_msg("%s", err.text);
            assert_true(w.all_rows == WINDOW && w.slots == 4 && w.rows == (r == 0 ? 4 : 3));
            for (int b = 0; b < w.rows; b++) {
                if (loader_fill(loader, 1, &row, &err) != PLIM_OK) fail_msg("%s", err.text);
                assert_int_equal(number_of(ids), whole->number[window][b * RANKS + r]);
                assert_int_equal(w.lengths[b], whole->length[window][b * RANKS]);
            }
        }
        loader_close(loader);
    }
}

static void check_data(struct dataset *data, const struct loader_options *base)
{
    static struct seen plain, grouped, other;
    struct loader_options o = *base;
    o.sorted = true, o.window_rows = WINDOW;
    struct loader *loader = data_rig_loader(data, &o);
    take_all(loader, &plain);
    loader_close(loader);
    check_ranks(data, &o, &plain);
    o.grouped = true;
    for (o.workers = 0; o.workers < 4; o.workers++) {
        loader = data_rig_loader(data, &o);
        take_all(loader, &other);
        loader_close(loader);
        if (!o.workers) grouped = other;
        assert_memory_equal(&grouped, &other, sizeof other);
    }
    o.workers = 1;
    check_epochs(&plain);
    check_epochs(&grouped);
    assert_true(padding_of(&grouped) * 4 < padding_of(&plain));
    check_resume(data, &o, &grouped);
}

static struct dataset *open_data(struct data_rig *rig, const char *name)
{
    static const char *path;
    path = data_rig_path(rig, name);
    struct data_options options = data_rig_options(&path, 1, T);
    return data_rig_dataset(rig, &options);
}

static void write_lines(struct data_rig *rig)
{
    char *text = data_rig_lines(SAMPLES, T - 8);
    data_rig_text(rig, "a.jsonl", text);
    free(text);
}

static void test_stream(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    write_lines(&rig);
    struct dataset *data = open_data(&rig, "a.jsonl");
    assert_int_equal(dataset_samples(data), 0);
    check_data(data, &(struct loader_options){.seed = 3, .shuffle_samples = 150});
    dataset_close(data);
    data_rig_close(&rig);
}

static void test_token_file(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    write_lines(&rig);
    const char *path = data_rig_path(&rig, "a.jsonl");
    struct pretokenize_options o = {.data = data_rig_options(&path, 1, T),
                                    .codec = &rig.codec,
                                    .out = data_rig_path(&rig, "a.tok"),
                                    .max_line = 1 << 16,
                                    .prefetch = 1};
    struct pretokenize_result result;
    if (pretokenize(&o, &result, &err) != PLIM_OK) fail_msg("%s", err.text);
    struct dataset *data = open_data(&rig, "a.tok");
    assert_int_equal(dataset_samples(data), SAMPLES);
    check_data(data, &(struct loader_options){.seed = 3});
    dataset_close(data);
    data_rig_close(&rig);
}

/* Where samples make no row, the places at the end of their group are empty and every other sample still comes once. */
static void test_without_targets(void **state)
{
    (void)state;
    struct data_rig rig;
    data_rig_open(&rig);
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < SAMPLES; i++)
        strbuf_addf(&text, "{\"p\":\"%06d\",\"r\":\"%.*s\"}\n", i, i % 5 ? 1 + i % 30 : 0,
                    "answeransweransweransweranswer");
    data_rig_text(&rig, "p.jsonl", text.data);
    strbuf_release(&text);
    const char *path = data_rig_path(&rig, "p.jsonl");
    struct data_options options = data_rig_options(&path, 1, T);
    options.prompt_field = "p", options.response_field = "r", options.append_eos = false;
    struct pretokenize_options o = {.data = options,
                                    .codec = &rig.codec,
                                    .out = data_rig_path(&rig, "p.tok"),
                                    .max_line = 1 << 16,
                                    .prefetch = 1};
    struct pretokenize_result result;
    if (pretokenize(&o, &result, &err) != PLIM_OK) fail_msg("%s", err.text);
    struct dataset *data = open_data(&rig, "p.tok");
    struct loader_options l = {
        .seed = 3, .sorted = true, .grouped = true, .window_rows = WINDOW, .once = true};
    struct loader *loader = data_rig_loader(data, &l);
    static struct seen seen;
    int count[SAMPLES] = {0}, rows = SAMPLES - SAMPLES / 5;
    for (int w = 0; w < rows / WINDOW; w++) {
        take(loader, w, &seen);
        for (int i = 0; i < WINDOW; i++) count[seen.number[w][i]]++;
    }
    for (int i = 0; i < SAMPLES; i++) assert_int_equal(count[i], i % 5 ? 1 : 0);
    struct loader_window w;
    assert_int_equal(loader_window(loader, WINDOW, &w, &err), PLIM_OK);
    assert_int_equal(w.rows, 0);
    struct loader_stats stats;
    loader_stats(loader, &stats);
    assert_int_equal(stats.dropped, SAMPLES / 5);
    loader_close(loader);
    dataset_close(data);
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_token_file),
        cmocka_unit_test(test_without_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
