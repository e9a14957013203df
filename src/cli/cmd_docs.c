/* cmd_docs.c - plimsoll docs: prints documentation made from the tables of options and keys. Hidden: for the build. */
#include "cli/cli.h"

#include <string.h>

static const char *const kinds[] = {"man", "bash", "zsh", "config", "cli", NULL};

static const struct command command = {
    .name = "docs",
    .summary = "print the man page, completions, or a page of docs",
    .usage = "man|bash|zsh|config|cli",
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
    "If a setting is given more than once, the first of these counts: a flag (`--budget`), `--set`, the job "
    "file, an\n"
    "environment variable, a line of `.env` next to the job file, `training.preset`, the default. `plimsoll "
    "plan` and\n"
    "`plimsoll config show` show the origin of each setting. Several names for one setting may be given if "
    "their values\n"
    "agree.\n\n";

static const char environment_head[] =
    "## Environment variables\n\n"
    "Variables are read from the process's environment, then from a file `.env` next to the job file "
    "(`NAME=VALUE` lines,\n"
    "quotes and `#` as usual). An invalid value is an error that names the variable. `plimsoll doctor` shows "
    "the effect of\n"
    "each variable, or why it is ignored.\n\n";

static const char cli_head[] =
    "# Commands\n\n"
    "    plimsoll COMMAND [OPTION...] ARGUMENT...\n\n"
    "`plimsoll COMMAND --help`, or `help COMMAND`, lists the options of a command with examples. Options may "
    "be written\n`--name value`, `--name=value` or `-nvalue`. Flags have a `--no-` form. Options and "
    "arguments may be mixed. Bytes are\nwritten `64MiB`, `1.5GB`, `40M` (MiB) or as a number; ambiguous "
    "units (`12Gb`) are refused. `make install` installs\nthese pages (`share/doc/plimsoll/docs`), a man "
    "page, and completions for bash and zsh.\n\n"
    "[output.md](output.md) describes what the commands print: sample output, JSON fields and exit codes. "
    "The "
    "keys of a job\nfile are in [configuration.md](configuration.md). This page is printed by `plimsoll docs "
    "cli`.\n\n";

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

static void put_cli(struct strbuf *out)
{
    strbuf_add(out, cli_head);
    options_markdown(cli_program(), out);
}

static void (*const writers[])(struct strbuf *) = {put_man, put_bash, put_zsh, put_config, put_cli};

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
    &command, run, NULL, 0, 1, 1, "give one of man, bash, zsh, config, cli", .hidden = true};
