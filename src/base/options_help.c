/* options_help.c - help for a terminal of 80 columns. */
#include "base/options.h"
#include "base/utf8.h"
#include <string.h>

enum { WIDTH = 80, HELP_COLUMN_MAX = 30 };

/* Words of text wrapped between columns `indent` and WIDTH; the cursor is at column `at`. Ends the line. */
static void wrap(struct strbuf *out, const char *text, size_t at, size_t indent)
{
    size_t column = at;
    for (;;) {
        text += strspn(text, " \n");
        size_t len = strcspn(text, " \n");
        if (len == 0) break;
        size_t width = utf8_width(text, len);
        if (column > indent && column + 1 + width > WIDTH) {
            strbuf_addc(out, '\n');
            column = 0;
        }
        size_t blanks = column < indent ? indent - column : column > indent ? 1 : 0;
        strbuf_pad(out, ' ', blanks);
        strbuf_addn(out, text, len);
        column += blanks + width;
        text += len;
    }
    strbuf_addc(out, '\n');
}

/* Paragraphs are separated by an empty line; one whose first line is indented is kept as it is. */
static void paragraphs(struct strbuf *out, const char *text)
{
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t len = end ? (size_t)(end - text) : strlen(text);
        struct strbuf one = STRBUF_INIT;
        strbuf_addn(&one, text, len);
        if (*text == ' ') {
            strbuf_add(out, strbuf_text(&one));
            strbuf_addc(out, '\n');
        } else {
            wrap(out, strbuf_text(&one), 0, 0);
        }
        strbuf_addc(out, '\n');
        strbuf_release(&one);
        text += len + strspn(text + len, "\n");
    }
}

/* "-c, --config=FILE" */
static void option_text(const struct option_row *row, struct strbuf *out)
{
    if (row->letter)
        strbuf_addf(out, "  -%c, ", row->letter);
    else
        strbuf_add(out, "      ");
    if (row->kind == OPTION_FLAG)
        strbuf_addf(out, "--[no-]%s", row->name);
    else
        strbuf_addf(out, "--%s=%s", row->name, row->metavar ? row->metavar : "VALUE");
}

void option_meaning(const struct option_row *row, struct strbuf *out)
{
    strbuf_add(out, row->help ? row->help : "");
    for (size_t i = 0; row->choices && row->choices[i]; i++)
        strbuf_addf(out, "%s%s", i ? ", " : ": ", row->choices[i]);
    if (row->kind == OPTION_STRING_LIST) strbuf_add(out, " (may be repeated)");
}

static void option_help(const struct option_row *row, size_t column, struct strbuf *out)
{
    struct strbuf left = STRBUF_INIT, help = STRBUF_INIT;
    option_text(row, &left);
    option_meaning(row, &help);
    strbuf_add(out, strbuf_text(&left));
    size_t at = utf8_width(strbuf_text(&left), left.len);
    if (at + 2 > column) {
        strbuf_addc(out, '\n');
        at = 0;
    }
    wrap(out, strbuf_text(&help), at, column);
    strbuf_release(&left);
    strbuf_release(&help);
}

/* Where help texts begin: behind the longest option, within reason. */
static size_t help_column(const struct command *command)
{
    size_t column = 16;
    for (size_t i = 0; i < command->row_count; i++) {
        struct strbuf left = STRBUF_INIT;
        option_text(&command->rows[i], &left);
        size_t want = utf8_width(strbuf_text(&left), left.len) + 2;
        if (want > column && want <= HELP_COLUMN_MAX) column = want;
        strbuf_release(&left);
    }
    return column;
}

void options_help(const struct command *command, const char *program, struct strbuf *out)
{
    size_t column = help_column(command);
    strbuf_addf(out, "Usage: %s %s", program, command->name);
    if (command->usage) strbuf_addf(out, " %s", command->usage);
    strbuf_add(out, "\n\n");
    paragraphs(out, command->summary);
    if (command->description) paragraphs(out, command->description);
    strbuf_add(out, "Options:\n");
    for (size_t i = 0; i < command->row_count; i++) option_help(&command->rows[i], column, out);
    strbuf_add(out, "  -h, --help");
    wrap(out, "show this text", 12, column);
    if (!command->examples) return;
    strbuf_add(out, "\nExamples:\n");
    for (const struct option_example *e = command->examples; e->line; e++) {
        strbuf_addf(out, "  %s %s\n", program, e->line);
        if (e->text) wrap(out, e->text, 0, 6);
    }
}

void options_overview(const struct program *program, struct strbuf *out)
{
    size_t column = 0;
    strbuf_addf(out, "Usage: %s COMMAND [OPTION...] [ARGUMENT...]\n\n", program->name);
    paragraphs(out, program->summary);
    if (program->description) paragraphs(out, program->description);
    for (const struct command *const *c = program->commands; *c; c++) {
        size_t width = strlen((*c)->name) + 4;
        if (width > column) column = width;
    }
    strbuf_add(out, "Commands:\n");
    for (const struct command *const *c = program->commands; *c; c++) {
        strbuf_addf(out, "  %s", (*c)->name);
        wrap(out, (*c)->summary, strlen((*c)->name) + 2, column);
    }
    strbuf_addf(out, "\n'%s COMMAND --help' describes a command.\n", program->name);
}
