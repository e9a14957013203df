/* run-tests: not=tsan */
/* Configuration tables: reading, overriding, refusing, documenting. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/schema.h"
#include "base/yaml.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum optimizer { ADAMW, SGD, ADAFACTOR };

struct job {
    int batch;
    bool batch_given;
    int64_t steps;
    double rate;
    enum optimizer optimizer;
    const char *out;
    bool shuffle;
    uint64_t budget;
    struct string_list files;
    struct schema_ints layers;
    struct schema_floats betas;
    const struct node *extra;
};

static const char *const optimizers[] = {"adamw", "sgd", "adafactor", NULL};

static const struct schema_row rows[] = {
    {"training.batch_size", SCHEMA_INT, offsetof(struct job, batch),
     .flag = SCHEMA_FLAG(struct job, batch_given), .min = 1, .max = 65536, .fallback = "8",
     .help = "samples per step"},
    {"training.steps", SCHEMA_INT64, offsetof(struct job, steps), .min = 0, .max = INFINITY,
     .help = "how long"},
    {"training.learning_rate", SCHEMA_FLOAT, offsetof(struct job, rate), .fallback = "3e-4", .help = "a|b"},
    {"training.optimizer", SCHEMA_ENUM, offsetof(struct job, optimizer), .names = optimizers,
     .fallback = "adamw"},
    {"training.shuffle", SCHEMA_BOOL, offsetof(struct job, shuffle), .fallback = "true"},
    {"training.betas", SCHEMA_FLOAT_LIST, offsetof(struct job, betas), .min = 0, .max = 1,
     .fallback = "0.9,0.999"},
    {"memory.budget", SCHEMA_BYTES, offsetof(struct job, budget), .help = "the line"},
    {"output", SCHEMA_STRING, offsetof(struct job, out), .fallback = "run"},
    {"data.files", SCHEMA_STRING_LIST, offsetof(struct job, files), .help = "texts"},
    {"data.layers", SCHEMA_INT_LIST, offsetof(struct job, layers), .help = "numbers"},
    {"extra", SCHEMA_NODE, offsetof(struct job, extra), .help = "a tree"},
    {"batch", .alias = "training.batch_size", .note = "read as training.batch_size"},
    {"memory.limit", .alias = "memory.budget"},
    {"trainer.pin_memory", SCHEMA_NOTHING, .note = "needless: transfers are always pinned"},
    {"deepspeed", SCHEMA_NOTHING, .note = "needless: see memory.budget"},
};
static const struct schema schema = SCHEMA(rows);

struct heard {
    int count;
    char last[512];
};

static void hear(void *arg, const char *where, const char *path, const char *note)
{
    struct heard *heard = arg;
    heard->count++;
    snprintf(heard->last, sizeof heard->last, "%s|%s|%s", where, path, note);
}

/* Defaults, then the text; the error's text is kept for the caller. */
static enum plim_status read_job(const char *text, struct job *job, struct bump *store, struct heard *heard,
                                 struct plim_error *err)
{
    struct doc *doc;
    struct schema_listener listener = {hear, heard};
    memset(job, 0, sizeof *job);
    assert_int_equal(schema_defaults(&schema, job, store, err), PLIM_OK);
    assert_int_equal(yaml_parse(text, strlen(text), "job.yaml", &doc, err), PLIM_OK);
    enum plim_status status =
        schema_read(&schema, &doc->root, doc->name, job, store, heard ? &listener : NULL, err);
    job->extra = NULL;
    doc_free(doc);
    return status;
}

static void test_defaults(void **state)
{
    (void)state;
    struct job job;
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    assert_int_equal(read_job("", &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 8);
    assert_false(job.batch_given);
    assert_true(job.rate == 3e-4 && job.shuffle);
    assert_int_equal(job.optimizer, ADAMW);
    assert_string_equal(job.out, "run");
    assert_int_equal(job.betas.count, 2);
    assert_true(job.betas.items[1] == 0.999);
    bump_free(&store);
}

static void test_read(void **state)
{
    (void)state;
    struct job job;
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    static const char text[] =
        "training:\n  batch_size: 16\n  steps: 1e4\n  learning_rate: 1\n  optimizer: sgd\n"
        "  shuffle: false\n  betas: [0.5]\nmemory:\n  budget: 1.5GiB\noutput: here\n"
        "data:\n  files: [a, b]\n  layers: 3\nextra: {x: [1]}\neval:\n";
    assert_int_equal(read_job(text, &job, &store, NULL, &err), PLIM_BAD_INPUT); /* "eval" is unknown */
    char known[sizeof text];
    memcpy(known, text, sizeof text);
    *strstr(known, "eval:") = '#';
    assert_int_equal(read_job(known, &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 16);
    assert_true(job.batch_given);
    assert_int_equal(job.steps, 10000);
    assert_true(job.rate == 1 && !job.shuffle);
    assert_int_equal(job.optimizer, SGD);
    assert_true(job.budget == 1610612736);
    assert_string_equal(job.out, "here");
    assert_int_equal(job.files.count, 2);
    assert_string_equal(job.files.items[1], "b");
    assert_int_equal(job.layers.count, 1);
    assert_int_equal(job.layers.items[0], 3);
    assert_int_equal(job.betas.count, 1);
    bump_free(&store);
}

static void test_null_and_empty_sections(void **state)
{
    (void)state;
    struct job job;
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    assert_int_equal(read_job("training:\n  batch_size: null\nmemory:\ndata: {}\n", &job, &store, NULL, &err),
                     PLIM_OK);
    assert_int_equal(job.batch, 8);
    assert_false(job.batch_given);
    assert_int_equal(read_job("training.batch_size: 4\n", &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 4);
    bump_free(&store);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"training:\n  batch_size: eight\n",
         "job.yaml:2: key 'training.batch_size': expected a whole number, found 'eight'; write e.g. 8"},
        {"\ntrainig:\n  batch_size: 8\n",
         "job.yaml:3: unknown key 'trainig.batch_size'; did you mean 'training.batch_size'?"},
        {"training:\n  batchsize: 8\n", "did you mean 'training.batch_size'?"},
        {"budget: 8\n", "job.yaml:1: unknown key 'budget'; did you mean 'memory.budget'?"},
        {"zzz: 8\n", "job.yaml:1: unknown key 'zzz'"},
        {"zzz: {}\n", "unknown key 'zzz'"},
        {"training: 5\n", "job.yaml:1: key 'training': expected a section"},
        {"training: {batch_size: 0}\n", "must be between 1 and 65536, found 0"},
        {"training: {batch_size: 1.5}\n", "expected a whole number, found 1.5"},
        {"training: {batch_size: [1]}\n", "found a list"},
        {"training: {batch_size: 99999999999}\n", "between 1 and 65536"},
        {"training: {steps: -1}\n", "must be at least 0, found -1"},
        {"training: {learning_rate: fast}\n", "expected a number, found 'fast'; write e.g. 3e-4"},
        {"training: {learning_rate: .nan}\n", "finite"},
        {"training: {optimizer: adam}\n",
         "expected one of adamw, sgd, adafactor; found 'adam'; did you mean 'adamw'?"},
        {"training: {optimizer: [sgd]}\n", "found a list"},
        {"training: {shuffle: yes}\n", "expected true or false, found 'yes'; write e.g. true"},
        {"training: {betas: [0.5, 2]}\n", "between 0 and 1, found 2"},
        {"training: {betas: [a]}\n", "found 'a'"},
        {"memory: {budget: 12Gb}\n", "job.yaml:1: key 'memory.budget': '12Gb': unknown unit"},
        {"memory: {budget: -5}\n", "negative"},
        {"memory: {budget: true}\n", "expected an amount of memory, found true; write e.g. 64MiB"},
        {"output: 2024\n", "expected text, found 2024; put it in quotes: \"2024\""},
        {"data: {files: [1]}\n", "expected a list of texts, found 1"},
        {"batch: 4\ntraining: {batch_size: 5}\n",
         "job.yaml:2: key 'training.batch_size' is 5, but 'batch', which means the same, is 4"},
        {"training: {batch_size: 5}\nbatch: 4\n",
         "key 'batch' is 4, but 'training.batch_size', which means the same, is 5"},
        {"memory: {budget: 64MiB, limit: 67108863}\n", "is 67108863, but 'memory.budget'"},
        {"[1]\n", "job.yaml:1: expected keys and values, found a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job;
        struct bump store = BUMP_INIT;
        struct plim_error err = {0};
        assert_int_equal(read_job(cases[i].text, &job, &store, NULL, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
        bump_free(&store);
    }
}

static void test_notes_and_aliases(void **state)
{
    (void)state;
    struct job job;
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    struct heard heard = {0};
    assert_int_equal(read_job("\nbatch: 4\n", &job, &store, &heard, &err), PLIM_OK);
    assert_int_equal(job.batch, 4);
    assert_int_equal(heard.count, 1);
    assert_string_equal(heard.last, "job.yaml:2|batch|read as training.batch_size");
    assert_int_equal(read_job("trainer: {pin_memory: true}\n", &job, &store, &heard, &err), PLIM_OK);
    assert_string_equal(heard.last, "job.yaml:1|trainer.pin_memory|needless: transfers are always pinned");
    assert_int_equal(read_job("deepspeed:\n  zero: {stage: 3}\n", &job, &store, &heard, &err), PLIM_OK);
    assert_int_equal(heard.count, 3);
    bump_free(&store);
}

/* One wish under two names: equal values, however they are written, or none under one of them. */
static void test_two_names(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "batch: 4\ntraining: {batch_size: 4.0}\nmemory: {budget: 64MiB, limit: 67108864}\n",
        "training: {batch_size: 4}\nbatch: null\nmemory: {limit: 65536KiB}\n",
        "batch: null\ntraining: {batch_size: 4}\nmemory: {limit: null, budget: 64MiB}\n",
        "training.batch_size: 4\ntraining: {batch_size: 4}\nmemory: {budget: 64MiB}\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct job job;
        struct bump store = BUMP_INIT;
        struct plim_error err = {0};
        if (read_job(texts[i], &job, &store, NULL, &err) != PLIM_OK) fail_msg("%s: %s", texts[i], err.text);
        assert_true(job.batch == 4 && job.batch_given && job.budget == 64 << 20);
        bump_free(&store);
    }
}

static void test_node_rows_keep_the_tree(void **state)
{
    (void)state;
    struct doc *doc;
    struct job job = {0};
    struct bump store = BUMP_INIT;
    yaml_parse("extra: {x: [1, 2]}", 18, "t", &doc, NULL);
    assert_int_equal(schema_read(&schema, &doc->root, "t", &job, &store, NULL, NULL), PLIM_OK);
    assert_int_equal(node_count(node_get(job.extra, "x")), 2);
    doc_free(doc);
    bump_free(&store);
}

static void test_set(void **state)
{
    (void)state;
    struct job job = {0};
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    schema_defaults(&schema, &job, &store, &err);
    static const char *const good[] = {"training.batch_size=32",
                                       "training.learning_rate=1e-3",
                                       "training.optimizer=sgd",
                                       "output=a=b",
                                       "data.files=x, y,z",
                                       "training.betas=0.1,0.2,0.3",
                                       "memory.budget=2GiB",
                                       "training.shuffle=false",
                                       "data.layers="};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(schema_assign(&schema, good[i], &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 32);
    assert_true(job.batch_given);
    assert_true(job.rate == 1e-3);
    assert_string_equal(job.out, "a=b");
    assert_int_equal(job.files.count, 3);
    assert_string_equal(job.files.items[1], "y");
    assert_int_equal(job.betas.count, 3);
    assert_true(job.budget == 2ull << 30);
    assert_false(job.shuffle);
    assert_int_equal(job.layers.count, 0);
    assert_int_equal(schema_set(&schema, "training.batch_size", "", &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 8);
    assert_false(job.batch_given);
    assert_int_equal(schema_set(&schema, "training.optimizer", "", &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.optimizer, ADAMW);
    assert_int_equal(schema_set(&schema, "memory.budget", "", &job, &store, NULL, &err), PLIM_OK);
    assert_true(job.budget == 0); /* without a default: as if it had never been given */
    assert_int_equal(schema_set(&schema, "batch", "5", &job, &store, NULL, &err), PLIM_OK);
    assert_int_equal(job.batch, 5);
    bump_free(&store);
}

static void test_set_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"training.batch_size", "expected key=value"},
        {"=8", "expected key=value"},
        {"training.batch_size=eight",
         "--set: key 'training.batch_size': expected a whole number, found 'eight'; write e.g. 8"},
        {"trainig.batch_size=8",
         "--set: unknown key 'trainig.batch_size'; did you mean 'training.batch_size'?"},
        {"extra=1", "use the file"},
        {"training.betas=0.1,,0.3", "expected a list of numbers, found null"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job job = {0};
        struct bump store = BUMP_INIT;
        struct plim_error err = {0};
        assert_int_equal(schema_assign(&schema, cases[i].text, &job, &store, NULL, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.text);
        bump_free(&store);
    }
}

static void test_bad_default_is_our_bug(void **state)
{
    (void)state;
    static const struct schema_row bad[] = {{"x", SCHEMA_INT, 0, .fallback = "many"}};
    static const struct schema bad_schema = SCHEMA(bad);
    struct bump store = BUMP_INIT;
    struct plim_error err = {0};
    int x;
    assert_int_equal(schema_defaults(&bad_schema, &x, &store, &err), PLIM_BUG);
    assert_int_equal(err.status, PLIM_BUG);
    assert_non_null(strstr(err.text, "default of key 'x'"));
    bump_free(&store);
}

static void test_markdown_and_values(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    schema_markdown(&schema, &sb);
    const char *text = strbuf_text(&sb);
    assert_non_null(strstr(text, "## training\n"));
    assert_non_null(strstr(
        text, "| `training.batch_size` | whole number between 1 and 65536 | `8` | samples per step |"));
    assert_non_null(strstr(text, "`adamw`, `sgd`, `adafactor`"));
    assert_non_null(strstr(text, "a\\|b"));
    assert_non_null(strstr(text, "## General\n"));
    assert_non_null(strstr(text, "| `batch` | `training.batch_size` |"));
    assert_non_null(strstr(text, "## Accepted without effect"));
    assert_non_null(strstr(text, "| `deepspeed` | needless: see memory.budget |"));
    assert_null(strstr(strstr(text, "## training\n") + 1, "## training\n"));

    struct job job = {0};
    struct bump store = BUMP_INIT;
    schema_defaults(&schema, &job, &store, NULL);
    static const struct {
        const char *path, *want;
    } values[] = {{"training.batch_size", "8"},
                  {"training.learning_rate", "0.0003"},
                  {"training.optimizer", "adamw"},
                  {"training.shuffle", "true"},
                  {"training.betas", "0.9,0.999"},
                  {"memory.budget", "0 B"},
                  {"output", "run"},
                  {"data.files", ""},
                  {"training.steps", "0"},
                  {"batch", "8"},
                  {"extra", ""},
                  {"data.layers", ""}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        strbuf_clear(&sb);
        schema_value(schema_find(&schema, values[i].path), &job, &sb);
        assert_string_equal(strbuf_text(&sb), values[i].want);
    }
    assert_null(schema_find(&schema, "nothing"));
    bump_free(&store);
    strbuf_release(&sb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_null_and_empty_sections),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_notes_and_aliases),
        cmocka_unit_test(test_two_names),
        cmocka_unit_test(test_node_rows_keep_the_tree),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_refuses),
        cmocka_unit_test(test_bad_default_is_our_bug),
        cmocka_unit_test(test_markdown_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
