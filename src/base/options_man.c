/* options_man.c - the man page. Text goes through roff(), which escapes what roff would interpret. */
#include "base/options.h"
#include <ctype.h>
#include <string.h>

/* text[0..len) as running text beginning a line. */
static void roff_n(struct strbuf *out, const char *text, size_t len)
{
    bool line_start = true;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (line_start && (c == '.' || c == '\'')) strbuf_add(out, "\\&");
        if (c == '\\')
            strbuf_add(out, "\\e");
        else if (c == '-')
            strbuf_add(out, "\\-");
        else
            strbuf_addc(out, c);
        line_start = c == '\n';
    }
}

static void roff(struct strbuf *out, const char *text)
{
    if (text) roff_n(out, text, strlen(text));
}

static void roff_upper(struct strbuf *out, const char *text)
{
    for (; *text; text++) {
        char c = (char)toupper((unsigned char)*text);
        roff_n(out, &c, 1);
    }
}

static void section(struct strbuf *out, const char *title)
{
    strbuf_add(out, ".SH ");
    roff_upper(out, title);
    strbuf_addc(out, '\n');
}

/* Paragraphs are separated by an empty line; an indented one is printed as it is. */
static void paragraphs(struct strbuf *out, const char *text)
{
    while (text && *text) {
        const char *end = strstr(text, "\n\n");
        size_t len = end ? (size_t)(end - text) : strlen(text);
        bool verbatim = *text == ' ';
        strbuf_add(out, verbatim ? ".PP\n.nf\n" : ".PP\n");
        roff_n(out, text, len);
        strbuf_add(out, verbatim ? "\n.fi\n" : "\n");
        text += len + strspn(text + len, "\n");
    }
}

static void option(struct strbuf *out, const struct option_row *row)
{
    strbuf_add(out, ".TP\n");
    if (row->letter) strbuf_addf(out, "\\fB\\-%c\\fR, ", row->letter);
    strbuf_add(out, "\\fB\\-\\-");
    if (row->kind == OPTION_FLAG) strbuf_add(out, "[no\\-]");
    roff(out, row->name);
    strbuf_add(out, "\\fR");
    if (row->kind != OPTION_FLAG) {
        strbuf_add(out, "=\\fI");
        roff(out, row->metavar ? row->metavar : "VALUE");
        strbuf_add(out, "\\fR");
    }
    strbuf_addc(out, '\n');
    struct strbuf meaning = STRBUF_INIT;
    option_meaning(row, &meaning);
    roff(out, strbuf_text(&meaning));
    strbuf_release(&meaning);
    strbuf_addc(out, '\n');
}

static void examples(struct strbuf *out, const struct program *program, const struct command *command)
{
    if (!command->examples) return;
    strbuf_add(out, ".PP\nExamples:\n");
    for (const struct option_example *e = command->examples; e->line; e++) {
        strbuf_add(out, ".TP\n\\fB");
        roff(out, program->name);
        strbuf_addc(out, ' ');
        roff(out, e->line);
        strbuf_add(out, "\\fR\n");
        roff(out, e->text ? e->text : "");
        strbuf_addc(out, '\n');
    }
}

static void command_page(struct strbuf *out, const struct program *program, const struct command *command)
{
    strbuf_add(out, ".SS ");
    roff(out, program->name);
    strbuf_addc(out, ' ');
    roff(out, command->name);
    if (command->usage) {
        strbuf_addc(out, ' ');
        roff(out, command->usage);
    }
    strbuf_addc(out, '\n');
    paragraphs(out, command->summary);
    paragraphs(out, command->description);
    for (size_t i = 0; i < command->row_count; i++) option(out, &command->rows[i]);
    strbuf_add(out, ".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nshow a summary of the command\n");
    examples(out, program, command);
}

void options_man(const struct program *program, struct strbuf *out)
{
    strbuf_add(out, ".TH ");
    roff_upper(out, program->name);
    strbuf_addf(out, " 1 \"%s\" \"%s %s\" \"User Commands\"\n", program->date ? program->date : "",
                program->name, program->version);
    section(out, "NAME");
    roff(out, program->name);
    strbuf_add(out, " \\- ");
    roff(out, program->summary);
    strbuf_addc(out, '\n');
    section(out, "SYNOPSIS");
    strbuf_add(out, ".B ");
    roff(out, program->name);
    strbuf_add(out, "\n\\fICOMMAND\\fR [\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n");
    if (program->description) {
        section(out, "DESCRIPTION");
        paragraphs(out, program->description);
    }
    section(out, "COMMANDS");
    for (const struct command *const *c = program->commands; *c; c++) command_page(out, program, *c);
    for (const struct man_section *s = program->sections; s && s->title; s++) {
        section(out, s->title);
        paragraphs(out, s->text);
    }
}
