/* run-tests: not=tsan */
/* test_environment.c - .env files, and variables that set keys where nobody else has. */
#include "base/dotenv.h"
#include "job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

extern char **environ;

static struct plim_error err;

/* ---- .env ---- */

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *value; /* value NULL: refused */
    } rows[] = {
        {"A=1\n", "A", "1"},
        {"A = 1 2  \n", "A", "1 2"},
        {"export A=1", "A", "1"},
        {"\tA=1\r\n", "A", "1"},
        {"A=", "A", ""},
        {"A=# x", "A", ""},
        {"A=a#b", "A", "a#b"},
        {"A=a #b", "A", "a"},
        {"A='a # $b\\n'", "A", "a # $b\\n"},
        {"A=\"a\\n\\\"\\$\\x\" # y", "A", "a\n\"$\\x"},
        {"# A=0\n\nA=1\nA=2\n", "A", "2"},
        {"export=3", "export", "3"},
        {"_a9=\xc3\xa4", "_a9", "\xc3\xa4"},
        {"A", "A", NULL},
        {"=1", "", NULL},
        {"9A=1", "9A", NULL},
        {"A-B=1", "A", NULL},
        {"A='1", "A", NULL},
        {"A=\"1\\\"", "A", NULL},
        {"A='1' 2", "A", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dotenv vars;
        enum plim_status status = dotenv_parse(rows[i].text, strlen(rows[i].text), ".env", &vars, &err);
        if ((status == PLIM_OK) != (rows[i].value != NULL)) fail_msg("'%s': %s", rows[i].text, err.text);
        if (status != PLIM_OK) {
            assert_int_equal(status, PLIM_BAD_INPUT);
            assert_non_null(strstr(err.text, ".env:1: "));
            continue;
        }
        const struct dotenv_entry *e = dotenv_find(&vars, rows[i].name);
        if (!e || strcmp(e->value, rows[i].value))
            fail_msg("'%s': '%s'", rows[i].text, e ? e->value : "none");
        dotenv_release(&vars);
    }
}

static void test_lines_are_counted(void **state)
{
    (void)state;
    struct dotenv vars;
    static const char text[] = "A=1\n\n# x\nB=2\nsecret stuff\n";
    assert_int_equal(dotenv_parse(text, strlen(text), "x/.env", &vars, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "x/.env:5: "));
    assert_null(strstr(err.text, "secret")); /* it may be one */
    assert_int_equal(dotenv_parse(text, strlen(text) - 13, "x/.env", &vars, &err), PLIM_OK);
    assert_int_equal(dotenv_find(&vars, "B")->line, 4);
    dotenv_release(&vars);
}

/* ---- variables ---- */

static char dir[] = "/tmp/test-environment-XXXXXX";

static void write_dotenv(const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/.env", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void start(struct job *job)
{
    job_init(job);
    assert_int_equal(schema_defaults(&job_schema, job, &job->store, &err), PLIM_OK);
}

static const struct variable_seen *seen(const struct job *job, const char *name)
{
    for (int i = 0; job->environment && i < job->environment->count; i++)
        if (!strcmp(job->environment->seen[i].name, name)) return &job->environment->seen[i];
    return NULL;
}

static void test_order_of_authority(void **state)
{
    (void)state;
    struct job job;
    write_dotenv("MAX_BATCH_SIZE=4\nCUDA_MEMORY_FRACTION=0.5\nPLIMSOLL_CPU=avx2\nOTHER=1\n");
    start(&job);
    assert_int_equal(job_take_environment(&job, &(struct context){.environment = environ}, dir, &err),
                     PLIM_OK);
    assert_int_equal(job.training.max_micro_batch, 4);
    assert_int_equal(job_origin(&job, "training.max_micro_batch_size")->kind, ORIGIN_DOTENV);
    assert_true(job.wishes.cuda_fraction == 0.5);
    assert_non_null(strstr(seen(&job, "PLIMSOLL_CPU")->why, "export it"));
    assert_null(seen(&job, "OTHER"));
    job_release(&job);

    setenv("MAX_BATCH_SIZE", "8", 1);
    start(&job);
    assert_int_equal(job_take_environment(&job, &(struct context){.environment = environ}, dir, &err),
                     PLIM_OK);
    assert_int_equal(job.training.max_micro_batch, 8);
    assert_string_equal(job_origin(&job, "training.max_micro_batch_size")->where,
                        "environment MAX_BATCH_SIZE");
    job_release(&job);

    start(&job);
    assert_int_equal(job_set(&job, "training.max_micro_batch_size=2", NULL, &err), PLIM_OK);
    assert_int_equal(job_set_flag(&job, "--x", "training.memory.target_utilization", "0.7", NULL, &err),
                     PLIM_OK);
    assert_int_equal(job_take_environment(&job, &(struct context){.environment = environ}, dir, &err),
                     PLIM_OK);
    assert_int_equal(job.training.max_micro_batch, 2);
    assert_true(job.wishes.cuda_fraction == 0);
    assert_string_equal(seen(&job, "MAX_BATCH_SIZE")->why, "--set gives training.max_micro_batch_size");
    assert_string_equal(seen(&job, "CUDA_MEMORY_FRACTION")->why,
                        "--x gives training.memory.target_utilization");
    job_release(&job);
    unsetenv("MAX_BATCH_SIZE");
}

static void test_every_variable(void **state)
{
    (void)state;
    static const struct {
        const char *name, *good, *bad; /* bad NULL: anything can be read */
        const char *key, *value;       /* that it sets; NULL: it is ignored */
    } rows[] = {
        {"MAX_BATCH_SIZE", "16", "0", "training.max_micro_batch_size", "16"},
        {"MAX_BATCH_SIZE", "1", "1.5", "training.max_micro_batch_size", "1"},
        {"CUDA_MEMORY_FRACTION", "0.8", "80%", "training.memory.cuda_memory_fraction", "0.8"},
        {"CUDA_MEMORY_FRACTION", "1", "0", "training.memory.cuda_memory_fraction", "1"},
        {"ENABLE_MIXED_PRECISION", "true", "maybe", "training.mixed_precision", "auto"},
        {"ENABLE_MIXED_PRECISION", "0", "2", "training.mixed_precision", "fp32"},
        {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:1", NULL, NULL},
        {"PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.25", "x:1",
         "training.memory.cuda_memory_fraction", "0.25"},
        {"PLIMSOLL_ALLOC_CONF", "backend:native", "backend", NULL, NULL},
        {"DISCORD_WEBHOOK", "https://discord.com/api/webhooks/1/2", "discord.com", NULL, NULL},
        {"SLACK_WEBHOOK", "https://hooks.slack.com/services/1/2/3", "slack", NULL, NULL},
        {"PLIMSOLL_WEBHOOK", "http://127.0.0.1:8080/", "ftp://x", NULL, NULL},
        {"WANDB_PROJECT", "ships", "0123456789012345678901234567890123456789012345678901234567890123",
         "monitoring.wandb_project", "ships"},
        {"WANDB_API_KEY", "0123456789", NULL, NULL, NULL},
        {"RANK", "0", "first", NULL, NULL},
        {"LOCAL_RANK", "0", "-1", NULL, NULL},
        {"WORLD_SIZE", "1", "0", NULL, NULL},
        {"MASTER_ADDR", "localhost", NULL, NULL, NULL},
        {"MASTER_PORT", "29500", "70000", NULL, NULL},
    };
    write_dotenv("");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job job;
        struct strbuf value = STRBUF_INIT;
        setenv(rows[i].name, rows[i].good, 1);
        start(&job);
        if (job_take_environment(&job, &(struct context){.environment = environ}, dir, &err) != PLIM_OK)
            fail_msg("%s: %s", rows[i].name, err.text);
        const struct variable_seen *v = seen(&job, rows[i].name);
        assert_non_null(v);
        if (rows[i].key) {
            assert_string_equal(v->key, rows[i].key);
            schema_value(schema_find(&job_schema, rows[i].key), &job, &value);
            assert_string_equal(strbuf_text(&value), rows[i].value);
        } else {
            assert_null(v->key);
            assert_true((v->why && *v->why) || (v->does && *v->does));
        }
        strbuf_release(&value);
        job_release(&job);
        if (rows[i].bad) {
            setenv(rows[i].name, rows[i].bad, 1);
            start(&job);
            assert_int_equal(job_take_environment(&job, &(struct context){.environment = environ}, dir, &err),
                             PLIM_BAD_INPUT);
            assert_non_null(strstr(err.text, rows[i].name));
            job_release(&job);
        }
        unsetenv(rows[i].name);
    }
    setenv("DISCORD_WEBHOOK", "a-secret", 1);
    struct job job;
    start(&job);
    assert_int_equal(job_take_environment(&job, &(struct context){.environment = environ}, dir, &err),
                     PLIM_BAD_INPUT);
    assert_null(strstr(err.text, "a-secret"));
    job_release(&job);
    unsetenv("DISCORD_WEBHOOK");
}

static int setup(void **state)
{
    static const char *const names[] = {"MAX_BATCH_SIZE",
                                        "CUDA_MEMORY_FRACTION",
                                        "ENABLE_MIXED_PRECISION",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PYTORCH_CUDA_ALLOC_CONF",
                                        "PYTORCH_ALLOC_CONF",
                                        "PLIMSOLL_ALLOC_CONF",
                                        "DISCORD_WEBHOOK",
                                        "SLACK_WEBHOOK",
                                        "PLIMSOLL_WEBHOOK",
                                        "WANDB_PROJECT",
                                        "WANDB_API_KEY"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "%s/.env", dir);
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_lines_are_counted),
        cmocka_unit_test(test_order_of_authority),
        cmocka_unit_test(test_every_variable),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
