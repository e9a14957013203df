/* cmd_docs.c - plimsoll docs: what the tables know, in the forms that are installed. Hidden: the build asks
 * it. */
#include "cli/cli.h"

#include <string.h>

static const char *const kinds[] = {"man", "bash", "zsh", "config", NULL};

static const struct command command = {
    .name = "docs",
    .summary = "print the man page, completions or the configuration keys",
    .usage = "man|bash|zsh|config",
    .description = "Everything comes from the tables that parse options and configuration files.",
};

static const char config_head[] =
    "# Configuration\n\n"
    "A job is one YAML file. Every key can also be given as `--set KEY=VALUE`. An unknown key is an error "
    "that names\n"
    "the nearest one. Bytes are written `64MiB`, `1.5GB` or as a number. This page is printed by `plimsoll "
    "docs config`.\n\n"
    "    model:    {architecture: llama, vocab_size: 256, hidden_size: 256, intermediate_size: 688, "
    "num_layers: 6,\n"
    "               num_attention_heads: 4}\n"
    "    data:     {train: corpus.txt, max_length: 256}\n"
    "    training: {batch_size: 8, gradient_accumulation_steps: 4, steps: 100, mixed_precision: bf16}\n"
    "    output:   {dir: runs/small}\n"
    "    budget:   64MiB\n\n"
    "Where a setting is given more than once the strongest counts: a flag (`--budget`), `--set`, the job "
    "file, an "
    "environment\n"
    "variable, a line of `.env` beside the job file, `training.preset`, the default. `plimsoll plan` and "
    "`plimsoll "
    "config show`\n"
    "tell where each came from. Several names for one wish may be given while their values agree.\n\n";

static const char environment_head[] = "## Environment variables\n\n"
                                       "Read from the process's environment, then from a file `.env` beside "
                                       "the job file (`NAME=VALUE` lines, quotes "
                                       "and `#`\n"
                                       "as usual). One that cannot be read is an error that names it. "
                                       "`plimsoll doctor` tells what each does, or why "
                                       "it is\n"
                                       "ignored.\n\n";

static void put_man(struct strbuf *out) { options_man(cli_program(), out); }
static void put_bash(struct strbuf *out) { options_completion_bash(cli_program(), out); }
static void put_zsh(struct strbuf *out) { options_completion_zsh(cli_program(), out); }

static void put_config(struct strbuf *out)
{
    strbuf_add(out, config_head);
    schema_markdown(&job_schema, out);
    strbuf_add(out, environment_head);
    environment_markdown(out);
}

static void (*const writers[])(struct strbuf *) = {put_man, put_bash, put_zsh, put_config};

static int run(void *, const struct string_list *args)
{
    struct strbuf out = STRBUF_INIT;
    int kind = 0;
    while (kinds[kind] && strcmp(kinds[kind], args->items[0])) kind++;
    if (!kinds[kind]) return cli_wants(&subcommand_docs);
    writers[kind](&out);
    return cli_print(&out);
}

const struct subcommand subcommand_docs = {
    &command, run, NULL, 0, 1, 1, "give one of man, bash, zsh, config", .hidden = true};
