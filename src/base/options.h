/* options.h - command-line options as tables.
 *
 * One table per command gives parsing, --help, the man page, docs/cli.md and shell completion.
 *
 *     struct plan { const char *config; bool json; uint64_t budget; struct string_list set; };
 *     static const struct option_row rows[] = {
 *         {"config", 'c', OPTION_STRING, offsetof(struct plan, config), "FILE", "read this job file"},
 *         {"budget", 'b', OPTION_BYTES, offsetof(struct plan, budget), "BYTES", "memory budget"},
 *         {"json", 0, OPTION_FLAG, offsetof(struct plan, json), .help = "print JSON"},
 *         {"set", 0, OPTION_STRING_LIST, offsetof(struct plan, set), "KEY=VALUE", "override a key"},
 *     };
 *     const struct command plan_command = {
 *         .name = "plan", .summary = "show the memory plan of a job", .usage = "[OPTION...] [FILE]",
 *         COMMAND_ROWS(rows), .examples = examples};
 *
 *     struct options_rest rest;
 *     if (options_parse(&plan_command, argc - 1, argv + 1, &options, &store, &rest, &err) != PLIM_OK) ...
 *     if (rest.help) { options_help(&plan_command, "plimsoll", &sb); ... }
 *
 * Accepted: --name value, --name=value, --flag, --no-flag, -x value, -xvalue, -xyz (flags together), `--`
 * ends the options, `-` alone is an argument, options and arguments may mix. -h and --help are always known; in a long
 * name `_` may stand for `-`.
 * A later option overrides an earlier one; STRING_LIST collects. Errors are PLIM_BAD_INPUT and one line
 * naming the nearest option.
 */
#pragma once

#include "base/bump.h"
#include "base/schema.h"
#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>

enum option_kind {
    OPTION_FLAG,        /* bool                 */
    OPTION_STRING,      /* const char *         */
    OPTION_INT,         /* int                  */
    OPTION_INT64,       /* int64_t              */
    OPTION_DOUBLE,      /* double               */
    OPTION_BYTES,       /* uint64_t             */
    OPTION_STRING_LIST, /* struct string_list   */
};

struct option_row {
    const char *name; /* without the dashes                                                         */
    char letter;      /* short form, 0: none                                                        */
    enum option_kind kind;
    size_t offset;       /* of the field in the target                                              */
    const char *metavar; /* "FILE" and "DIR" also complete file names; NULL for flags               */
    const char *help;
    const char *const *choices;   /* OPTION_STRING: NULL-terminated, NULL: any text                   */
    const char *const *suggested; /* of any text, values that are completed; NULL-terminated, NULL: none */
    size_t given;                 /* OPTION_GIVEN(struct, bool field) set when the option is used; 0: none */
    /* The values it takes, in words: "1 to 64"; NULL: all. Numbers are compared with least and most, texts given to valid. */
    const char *expected;
    double least, most;
    bool (*valid)(const char *text);
    /* OPTION_STRING: settings, KEY=VALUE,...; without a value it is "". The next argument is a value only if it has an
     * equals sign. */
    bool optional;
};

#define OPTION_GIVEN(type, field) (offsetof(type, field) + 1)

struct option_example {
    const char *line; /* what to type, without the program's name: "plan job.yaml --budget 8GiB" */
    const char *text; /* what it does */
};

struct command {
    const char *name;
    const char *summary;     /* one line, lower case, no full stop               */
    const char *usage;       /* what follows the name: "[OPTION...] FILE"        */
    const char *description; /* paragraphs separated by an empty line, or NULL   */
    const struct option_row *rows;
    size_t row_count;
    const struct option_example *examples; /* ends with a NULL line; NULL: none */
    bool takes_files;                      /* arguments complete as file names   */
    const struct schema *keys;             /* what its --set takes; NULL: it has none */
};

#define COMMAND_ROWS(table) .rows = (table), .row_count = sizeof(table) / sizeof((table)[0])

/* Arguments left after parsing. */
struct options_rest {
    struct string_list args; /* the arguments that are not options, in order */
    bool help;               /* -h or --help was given                       */
};

/* Parse argv[0..argc) (the command's own name already removed) into target. Texts point into argv; list
 * arrays live in store. target keeps what it held (its defaults) where no option is given. */
enum plim_status options_parse(const struct command *command, int argc, char *const *argv, void *target,
                               struct bump *store, struct options_rest *rest, struct plim_error *err);

/* The help text of one command. */
void options_help(const struct command *command, const char *program, struct strbuf *out);

/* A section of the man page beside the commands. */
struct man_section {
    const char *title; /* "ENVIRONMENT"                              */
    const char *text;  /* paragraphs separated by an empty line      */
};

struct program {
    const char *name, *version, *date; /* date: "2025-01-31", printed in the man page */
    const char *summary;
    const char *description;
    const struct command *const *commands; /* NULL-terminated */
    const struct man_section *sections;    /* ends with a NULL title; NULL: none */
};

/* The overview printed by `program --help`. */
void options_overview(const struct program *program, struct strbuf *out);

/* The help text of one option with its choices. */
void option_meaning(const struct option_row *row, struct strbuf *out);

/* One man page (roff, man macros) for all commands. */
void options_man(const struct program *program, struct strbuf *out);

/* Markdown for all commands: a table of summaries, then a section per command and per man_section. */
void options_markdown(const struct program *program, struct strbuf *out);

/* Completion scripts for all commands. */
void options_completion_bash(const struct program *program, struct strbuf *out);
void options_completion_zsh(const struct program *program, struct strbuf *out);
