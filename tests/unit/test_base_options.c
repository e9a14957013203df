/* run-tests: not=tsan */
/* Command-line tables: parsing, help, man page, completion. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/options.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    const char *config, *format;
    bool json, verbose, json_given;
    int steps;
    int64_t seed;
    double rate;
    uint64_t budget;
    struct string_list set;
};

static const char *const formats[] = {"text", "json", NULL};

static const struct option_row rows[] = {
    {"config", 'c', OPTION_STRING, offsetof(struct options, config), "FILE", "read this job file", NULL, 0},
    {"format", 'f', OPTION_STRING, offsetof(struct options, format), "FORMAT", "how to print", formats, 0},
    {"json", 'j', OPTION_FLAG, offsetof(struct options, json), NULL, "print JSON",
     .given = OPTION_GIVEN(struct options, json_given)},
    {"verbose", 'v', OPTION_FLAG, offsetof(struct options, verbose), NULL, "it's [very] wordy: say more",
     NULL, 0},
    {"steps", 's', OPTION_INT, offsetof(struct options, steps), "N", "how many steps", NULL, 0},
    {"seed", 0, OPTION_INT64, offsetof(struct options, seed), "N", "where random numbers begin", NULL, 0},
    {"rate", 'r', OPTION_DOUBLE, offsetof(struct options, rate), "X", "the learning rate", NULL, 0},
    {"budget", 'b', OPTION_BYTES, offsetof(struct options, budget), "BYTES",
     "the most memory to use; everything the program does is planned to stay below this line at all times",
     NULL, 0},
    {"set", 0, OPTION_STRING_LIST, offsetof(struct options, set), "KEY=VALUE", "override a key", NULL, 0},
};

static const struct option_example examples[] = {{"plan job.yaml -b 8GiB", "plans for a small card"},
                                                 {NULL, NULL}};

static const struct command plan = {.name = "plan",
                                    .summary = "show where every byte will live",
                                    .usage = "[OPTION...] FILE",
                                    .description = "First paragraph.\n\nSecond one.\n.dot",
                                    COMMAND_ROWS(rows),
                                    .examples = examples,
                                    .takes_files = true};
static const struct command quit = {.name = "version", .summary = "say the version"};
static const struct command *const commands[] = {&plan, &quit, NULL};
static const struct man_section sections[] = {{"ENVIRONMENT", "A -- B \\ C"}, {NULL, NULL}};
static const struct program program = {"plimsoll",    "0.1.0",  "2025-01-31", "trains inside a budget",
                                       "What it is.", commands, sections};

struct outcome {
    struct options options;
    struct options_rest rest;
    struct bump store;
    struct plim_error err;
    enum plim_status status;
};

/* Parse blank-separated words. */
static void parse(struct outcome *o, const char *line)
{
    static char copy[512];
    char *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    memset(o, 0, sizeof *o);
    o->status = options_parse(&plan, argc, argv, &o->options, &o->store, &o->rest, &o->err);
}

static void test_forms(void **state)
{
    (void)state;
    struct outcome o;
    parse(&o, "a --config x.yaml --format=json -vj --steps -5 --seed=9000000000 -r1e-3 -b 1.5GiB b --set a=1 "
              "--set=b=2 - -- --json");
    assert_int_equal(o.status, PLIM_OK);
    assert_string_equal(o.options.config, "x.yaml");
    assert_string_equal(o.options.format, "json");
    assert_true(o.options.json && o.options.verbose && o.options.json_given);
    assert_int_equal(o.options.steps, -5);
    assert_true(o.options.seed == 9000000000);
    assert_true(o.options.rate == 1e-3);
    assert_true(o.options.budget == 1610612736);
    assert_int_equal(o.options.set.count, 2);
    assert_string_equal(o.options.set.items[1], "b=2");
    assert_int_equal(o.rest.args.count, 4);
    assert_string_equal(o.rest.args.items[2], "-");
    assert_string_equal(o.rest.args.items[3], "--json");
    assert_false(o.rest.help);
    bump_free(&o.store);
}

static void test_flags_and_help(void **state)
{
    (void)state;
    struct outcome o;
    parse(&o, "--json --no-json");
    assert_true(o.status == PLIM_OK && !o.options.json && o.options.json_given);
    parse(&o, "--help");
    assert_true(o.status == PLIM_OK && o.rest.help);
    parse(&o, "-vh");
    assert_true(o.status == PLIM_OK && o.rest.help && o.options.verbose);
    parse(&o, "");
    assert_true(o.status == PLIM_OK && o.rest.args.count == 0);
}

static void test_many_list_items(void **state)
{
    (void)state;
    char *argv[100];
    for (int i = 0; i < 100; i++) argv[i] = i % 2 ? "k=v" : "--set";
    struct options options = {0};
    struct options_rest rest;
    struct bump store = BUMP_INIT;
    assert_int_equal(options_parse(&plan, 100, argv, &options, &store, &rest, NULL), PLIM_OK);
    assert_int_equal(options.set.count, 50);
    assert_string_equal(options.set.items[49], "k=v");
    bump_free(&store);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"--budgt 8", "plan: unknown option '--budgt'; did you mean '--budget'?"},
        {"--zebra", "plan: unknown option '--zebra'; --help lists them all"},
        {"--hlep", "did you mean '--help'?"},
        {"-x", "plan: unknown option '-x'"},
        {"--config", "option '--config' needs a value; write --config=FILE"},
        {"--config --json", "option '--config' needs a value"},
        {"-c", "needs a value"},
        {"--json=yes", "option '--json' takes no value"},
        {"--no-json=1", "takes no value"},
        {"--no-config", "unknown option '--no-config'"},
        {"--steps many", "option '--steps': expected a whole number, found 'many'"},
        {"--steps 99999999999", "a smaller whole number"},
        {"--rate fast", "expected a number, found 'fast'"},
        {"--budget 12Gb", "plan: option '--budget': '12Gb': unknown unit 'Gb'; did you mean 12GB"},
        {"--format jsn", "expected one of text, json, found 'jsn'; did you mean 'json'?"},
        {"--format=", "expected one of text, json, found ''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o;
        parse(&o, cases[i].line);
        assert_int_equal(o.status, PLIM_BAD_INPUT);
        if (!strstr(o.err.text, cases[i].says)) fail_msg("%s: %s", cases[i].line, o.err.text);
        bump_free(&o.store);
    }
}

static void check_width(const char *text, size_t most)
{
    while (*text) {
        size_t len = strcspn(text, "\n");
        assert_true(len <= most);
        text += len + (text[len] == '\n');
    }
}

static void test_help(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    options_help(&plan, "plimsoll", &sb);
    const char *text = strbuf_text(&sb);
    check_width(text, 80);
    assert_non_null(strstr(text, "Usage: plimsoll plan [OPTION...] FILE\n"));
    assert_non_null(strstr(text, "  -c, --config=FILE    read this job file\n"));
    assert_non_null(strstr(text, "      --set=KEY=VALUE  override a key (may be repeated)\n"));
    assert_non_null(strstr(text, "  -j, --[no-]json      print JSON\n"));
    assert_non_null(strstr(text, "how to print: text, json\n"));
    assert_non_null(strstr(text, "  -h, --help           show this text\n"));
    assert_non_null(strstr(text, "  plimsoll plan job.yaml -b 8GiB\n      plans for a small card\n"));
    strbuf_clear(&sb);
    options_overview(&program, &sb);
    text = strbuf_text(&sb);
    assert_non_null(strstr(text, "  plan     show where every byte will live\n"));
    assert_non_null(strstr(text, "  version  say the version\n"));
    strbuf_release(&sb);
}

static void test_man(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    options_man(&program, &sb);
    const char *text = strbuf_text(&sb);
    assert_non_null(strstr(text, ".TH PLIMSOLL 1 \"2025-01-31\" \"plimsoll 0.1.0\""));
    assert_non_null(strstr(text, ".SS plimsoll plan [OPTION...] FILE\n"));
    assert_non_null(strstr(text, "\\fB\\-c\\fR, \\fB\\-\\-config\\fR=\\fIFILE\\fR\nread this job file\n"));
    assert_non_null(strstr(text, "\n\\&.dot\n"));
    assert_non_null(strstr(text, ".SH ENVIRONMENT\n.PP\nA \\-\\- B \\e C\n"));
    strbuf_release(&sb);
}

static void test_markdown(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    options_markdown(&program, &sb);
    const char *text = strbuf_text(&sb);
    assert_non_null(strstr(text, "| [plan](#plan) | show where every byte will live |\n"));
    assert_non_null(strstr(text, "\n## plan\n\n    plimsoll plan [OPTION...] FILE\n\n"));
    assert_non_null(strstr(text, "| `-c`, `--config=FILE` | read this job file |\n"));
    assert_non_null(strstr(text, "\n## Environment\n\n"));
    strbuf_release(&sb);
}

/* Run the script in a shell and ask it what follows a line. */
static void complete(const char *script, const char *words, const char *answer)
{
    char path[] = "/tmp/plimsoll-complete-XXXXXX", command[1024], got[256] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fprintf(
        file,
        "%s\nCOMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _plimsoll; echo \"${COMPREPLY[*]}\"\n",
        script, words);
    fclose(file);
    snprintf(command, sizeof command, "bash %s 2>&1", path);
    FILE *shell = popen(command, "r");
    assert_non_null(shell);
    if (!fgets(got, sizeof got, shell)) got[0] = '\0';
    int rc = pclose(shell);
    unlink(path);
    assert_int_equal(rc, 0);
    got[strcspn(got, "\n")] = '\0';
    assert_string_equal(got, answer);
}

static void test_bash_completion(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    options_completion_bash(&program, &sb);
    if (system("command -v bash >/dev/null 2>&1") == 0) {
        complete(strbuf_text(&sb), "plimsoll pl", "plan");
        complete(strbuf_text(&sb), "plimsoll plan --bu", "--budget");
        complete(strbuf_text(&sb), "plimsoll plan --format ''", "text json");
        complete(strbuf_text(&sb), "plimsoll plan --no-j", "--no-json");
        complete(strbuf_text(&sb), "plimsoll plan -c /etc/hostnam", "/etc/hostname");
        complete(strbuf_text(&sb), "plimsoll plan --steps ''", "");
    }
    strbuf_release(&sb);
}

static void test_zsh_completion(void **state)
{
    (void)state;
    struct strbuf sb = STRBUF_INIT;
    options_completion_zsh(&program, &sb);
    const char *text = strbuf_text(&sb);
    assert_int_equal(strncmp(text, "#compdef plimsoll\n", 18), 0);
    assert_non_null(strstr(text, "'plan:show where every byte will live'"));
    assert_non_null(strstr(text, "'--config=[read this job file]:FILE:_files'"));
    assert_non_null(strstr(text, "'--format=[how to print]:FORMAT:(text json)'"));
    assert_non_null(strstr(text, "'--verbose[it'\\''s \\[very\\] wordy\\: say more]'"));
    assert_non_null(strstr(text, "'*--set=[override a key]:KEY=VALUE: '"));
    strbuf_release(&sb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_flags_and_help),
        cmocka_unit_test(test_many_list_items),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_man),
        cmocka_unit_test(test_markdown),
        cmocka_unit_test(test_bash_completion),
        cmocka_unit_test(test_zsh_completion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
