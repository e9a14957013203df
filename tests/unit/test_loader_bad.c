/* test_loader_bad.c - lines and files that are not what they should be: named by file and line, or skipped and counted. */
#include "support/data_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { T = 24 };

static struct plim_error err;

/* The error that a window over this file ends with; "" when there is none. */
static const char *error_of(struct data_rig *rig, const char *name, bool skip_bad, struct loader_stats *stats)
{
    static char problem[256];
    const char *paths[] = {data_rig_path(rig, name)};
    struct data_options options = data_rig_options(paths, 1, T);
    options.skip_bad = skip_bad;
    struct dataset *data = data_rig_dataset(rig, &options);
    struct loader *loader = data_rig_loader(
        data, &(struct loader_options){.in_order = true, .once = true, .workers = 2, .max_line = 100000});
    struct loader_window w;
    err.text[0] = 0;
    loader_window(loader, 5000, &w, &err);
    loader_stats(loader, stats);
    if (stats->problem) stats->problem = strcpy(problem, stats->problem);
    loader_close(loader);
    dataset_close(data);
    return err.text;
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *word;
    } cases[] = {
        {"{\"text\":\"abc\"", "ends inside an object"},
        {"{\"text\":\"abc}", "ends inside a text"},
        {"{\"text\":abc}", "expected a value"},
        {"[\"text\"]", "expected an object"},
        {"{\"text\":\"a\"} x", "something follows"},
        {"{\"text\":12}", "'text' is a number"},
        {"{\"text\":null}", "'text' is null"},
        {"{\"txt\":\"a\"}", "'text' is missing"},
        {"{\"text\":\"\\ud800\"}", "surrogate"},
        {"{\"text\":\"\\x\"}", "escape"},
        {"{\"text\":\"\xff\"}", "UTF-8"},
        {"{\"text\":\"\xed\xa0\x80\"}", "UTF-8"},
        {"{\"text\":\"\xc0\xaf\"}", "UTF-8"},
        {"{\"text\":\"\t\"}", "control character"},
        {"{\"text\":\"a\",\"n\":01}", "number"},
        {"{\"text\":\"a\",\"n\":1.}", "number"},
        {"{\"text\":\"a\",}", "key"},
        {"{text:\"a\"}", "key"},
    };
    struct data_rig rig;
    struct loader_stats stats;
    data_rig_open(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strbuf text = STRBUF_INIT;
        strbuf_addf(&text, "{\"text\":\"good\"}\n\n%s\n{\"text\":\"fine\"}\n", cases[i].line);
        data_rig_text(&rig, "bad.jsonl", text.data);
        const char *said = error_of(&rig, "bad.jsonl", false, &stats);
        if (!strstr(said, "bad.jsonl:3: ") || !strstr(said, cases[i].word))
            fail_msg("%s: %s", cases[i].line, said);
        said = error_of(&rig, "bad.jsonl", true, &stats);
        if (said[0] || stats.bad != 1 || !strstr(stats.problem, "bad.jsonl:3: "))
            fail_msg("%s: %s", cases[i].line, said);
        strbuf_release(&text);
    }
    data_rig_close(&rig);
}

/* Lines longer than a slot are read; those longer than allowed are refused or skipped, at the end of a file too. */
static void test_long_lines(void **state)
{
    (void)state;
    struct data_rig rig;
    struct loader_stats stats;
    struct strbuf text = STRBUF_INIT;
    data_rig_open(&rig);
    strbuf_add(&text, "{\"text\":\"");
    strbuf_pad(&text, 'x', 90000);
    strbuf_add(&text, "\"}\n{\"text\":\"short\"}\n");
    data_rig_write(&rig, "long.jsonl", text.data, text.len);
    assert_string_equal(error_of(&rig, "long.jsonl", false, &stats), "");
    for (int ended = 0; ended < 2; ended++) {
        strbuf_clear(&text);
        strbuf_add(&text, "{\"text\":\"first\"}\n{\"text\":\"");
        strbuf_pad(&text, 'x', 500000);
        strbuf_add(&text, ended ? "\"}\n{\"text\":\"last\"}" : "\"}");
        data_rig_write(&rig, "long.jsonl", text.data, text.len);
        assert_non_null(strstr(error_of(&rig, "long.jsonl", false, &stats), "long.jsonl:2: the line is 488"));
        assert_string_equal(error_of(&rig, "long.jsonl", true, &stats), "");
        assert_true(stats.bad == 1 && strstr(stats.problem, ":2:"));
    }
    strbuf_release(&text);
    data_rig_close(&rig);
}

static void test_damaged_compression(void **state)
{
    (void)state;
    struct data_rig rig;
    struct loader_stats stats;
    char *text = data_rig_lines(3000, 300), packed[200000];
    data_rig_open(&rig);
    for (int kind = 0; kind < 2; kind++) {
        const char *name = kind ? "a.jsonl.zst" : "a.jsonl.gz";
        for (int cut = 0; cut < 2; cut++) {
            if (kind)
                data_rig_zstd(&rig, name, text);
            else
                data_rig_gzip(&rig, name, text);
            FILE *f = fopen(data_rig_path(&rig, name), "rb");
            size_t n = fread(packed, 1, sizeof packed, f);
            fclose(f);
            if (!cut) memset(packed + n / 2, 0x55, 64);
            data_rig_write(&rig, name, packed, cut ? n / 2 : n);
            const char *said = error_of(&rig, name, true, &stats); /* damage is never skipped */
            if (!strstr(said, name) || !strstr(said, "damaged")) fail_msg("%s %d: %s", name, cut, said);
        }
    }
    free(text);
    data_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_damaged_compression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
