/* options_markdown.c - commands and options as Markdown, for docs/cli.md. */
#include "base/options.h"
#include <ctype.h>
#include <string.h>

/* Text inside a table: a bar would end its cell. */
static void cell(struct strbuf *out, const char *text)
{
    for (; *text; text++) strbuf_addf(out, *text == '|' ? "\\%c" : "%c", *text);
}

static void option(struct strbuf *out, const struct option_row *row)
{
    struct strbuf meaning = STRBUF_INIT;
    strbuf_add(out, "| ");
    if (row->letter) strbuf_addf(out, "`-%c`, ", row->letter);
    strbuf_addf(out, "`--%s%s", row->kind == OPTION_FLAG ? "[no-]" : "", row->name);
    if (row->kind != OPTION_FLAG) strbuf_addf(out, "=%s", row->metavar ? row->metavar : "VALUE");
    strbuf_add(out, "` | ");
    option_meaning(row, &meaning);
    cell(out, strbuf_text(&meaning));
    strbuf_add(out, " |\n");
    strbuf_release(&meaning);
}

static void command_section(struct strbuf *out, const char *program, const struct command *command)
{
    strbuf_addf(out, "## %s\n\n    %s %s %s\n\n", command->name, program, command->name,
                command->usage ? command->usage : "");
    strbuf_addf(out, "%c%s.\n\n", toupper((unsigned char)*command->summary), command->summary + 1);
    if (command->description) strbuf_addf(out, "%s\n\n", command->description);
    if (command->row_count) strbuf_add(out, "| option | meaning |\n|---|---|\n");
    for (size_t i = 0; i < command->row_count; i++) option(out, &command->rows[i]);
    strbuf_add(out, "\n");
    for (const struct option_example *e = command->examples; e && e->line; e++)
        strbuf_addf(out, "- `%s %s`: %s\n", program, e->line, e->text ? e->text : "");
    strbuf_add(out, "\n");
}

void options_markdown(const struct program *program, struct strbuf *out)
{
    strbuf_add(out, "| command | purpose |\n|---|---|\n");
    for (const struct command *const *c = program->commands; *c; c++) {
        strbuf_addf(out, "| [%s](#%s) | ", (*c)->name, (*c)->name);
        cell(out, (*c)->summary);
        strbuf_add(out, " |\n");
    }
    strbuf_addc(out, '\n');
    for (const struct command *const *c = program->commands; *c; c++) command_section(out, program->name, *c);
    for (const struct man_section *s = program->sections; s && s->title; s++) {
        strbuf_addf(out, "## %c", *s->title);
        for (const char *p = s->title + 1; *p; p++) strbuf_addc(out, (char)tolower((unsigned char)*p));
        strbuf_addf(out, "\n\n%s\n\n", s->text);
    }
    if (out->len) strbuf_truncate(out, out->len - 1);
}
