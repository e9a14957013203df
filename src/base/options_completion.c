/* options_completion.c - scripts that let bash and zsh complete commands, options and values. */
#include "base/options.h"
#include <string.h>

static bool is_file(const struct option_row *row)
{
    return row->metavar && strcmp(row->metavar, "FILE") == 0;
}

static bool is_dir(const struct option_row *row) { return row->metavar && strcmp(row->metavar, "DIR") == 0; }

/* Letters, digits and _ for a function name. */
static void add_identifier(struct strbuf *out, const char *text)
{
    for (; *text; text++) strbuf_addc(out, strchr("-.+ ", *text) ? '_' : *text);
}

static const char *const *words_of(const struct option_row *row)
{
    return row->choices ? row->choices : row->suggested;
}

static void add_choices(struct strbuf *out, const struct option_row *row)
{
    const char *const *words = words_of(row);
    for (size_t i = 0; words[i]; i++) strbuf_addf(out, "%s%s", i ? " " : "", words[i]);
}

/* ---- bash ---- */

/* "plan:--config|plan:-c) ... ;;" for options whose value can be completed. */
static void bash_value(struct strbuf *out, const struct command *command, const struct option_row *row)
{
    if (row->kind == OPTION_FLAG) return;
    strbuf_addf(out, "    %s:--%s", command->name, row->name);
    if (row->letter) strbuf_addf(out, "|%s:-%c", command->name, row->letter);
    strbuf_add(out, ") ");
    if (words_of(row)) {
        strbuf_add(out, "words='");
        add_choices(out, row);
        strbuf_add(out, "' ;;\n");
    } else {
        strbuf_addf(out, "kind='%s' ;;\n", is_file(row) ? "file" : is_dir(row) ? "directory" : "none");
    }
}

/* "plan) words='--config ...' ;;" */
static void bash_words(struct strbuf *out, const struct command *command)
{
    strbuf_addf(out, "        %s) words='--help", command->name);
    for (size_t i = 0; i < command->row_count; i++) {
        const struct option_row *row = &command->rows[i];
        strbuf_addf(out, " --%s", row->name);
        if (row->kind == OPTION_FLAG) strbuf_addf(out, " --no-%s", row->name);
    }
    strbuf_addf(out, "'; [[ $cur == -* ]] || kind='%s' ;;\n", command->takes_files ? "file" : "none");
}

void options_completion_bash(const struct program *program, struct strbuf *out)
{
    strbuf_addf(out, "# bash completion for %s\n_", program->name);
    add_identifier(out, program->name);
    strbuf_add(out, "() {\n"
                    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                    "    local command='' words='' kind='' i\n"
                    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                    "        [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }\n"
                    "    done\n"
                    "    case $command:$prev in\n");
    for (const struct command *const *c = program->commands; *c; c++)
        for (size_t i = 0; i < (*c)->row_count; i++) bash_value(out, *c, &(*c)->rows[i]);
    strbuf_add(out, "    *)\n        case $command in\n        '') words='--help --version");
    for (const struct command *const *c = program->commands; *c; c++) strbuf_addf(out, " %s", (*c)->name);
    strbuf_add(out, "' ;;\n");
    for (const struct command *const *c = program->commands; *c; c++) bash_words(out, *c);
    strbuf_add(out, "        esac ;;\n    esac\n"
                    "    COMPREPLY=()\n"
                    "    case $kind in\n"
                    "    none) ;;\n"
                    "    file | directory)\n"
                    "        compopt -o filenames 2>/dev/null\n"
                    "        mapfile -t COMPREPLY < <(compgen -A \"$kind\" -- \"$cur\") ;;\n"
                    "    *) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\") ;;\n"
                    "    esac\n}\ncomplete -F _");
    add_identifier(out, program->name);
    strbuf_addf(out, " %s\n", program->name);
}

/* ---- zsh ---- */

/* Help inside '...' and [...]: quotes, brackets, colons and backslashes are escaped. */
static void zsh_text(struct strbuf *out, const char *text)
{
    for (; text && *text; text++) {
        if (*text == '\'')
            strbuf_add(out, "'\\''");
        else if (strchr("[]:\\", *text))
            strbuf_addf(out, "\\%c", *text);
        else
            strbuf_addc(out, *text == '\n' ? ' ' : *text);
    }
}

static void zsh_value(struct strbuf *out, const struct option_row *row)
{
    strbuf_addc(out, ':');
    zsh_text(out, row->metavar ? row->metavar : "VALUE");
    strbuf_addc(out, ':');
    if (words_of(row)) {
        strbuf_addc(out, '(');
        add_choices(out, row);
        strbuf_addc(out, ')');
    } else if (is_file(row)) {
        strbuf_add(out, "_files");
    } else {
        strbuf_add(out, is_dir(row) ? "_files -/" : " ");
    }
}

/* One spec of _arguments; form is "--name=", "-x+" or "--flag". */
static void zsh_spec(struct strbuf *out, const struct option_row *row, const char *dashes, const char *name,
                     const char *suffix)
{
    strbuf_addf(out, " \\\n            '%s%s%s%s[", row->kind == OPTION_STRING_LIST ? "*" : "", dashes, name,
                suffix);
    zsh_text(out, row->help);
    strbuf_addc(out, ']');
    if (row->kind != OPTION_FLAG) zsh_value(out, row);
    strbuf_addc(out, '\'');
}

static void zsh_command(struct strbuf *out, const struct command *command)
{
    strbuf_addf(out,
                "        %s)\n            _arguments \\\n            '(-h --help)'{-h,--help}'[show help]'",
                command->name);
    for (size_t i = 0; i < command->row_count; i++) {
        const struct option_row *row = &command->rows[i];
        bool flag = row->kind == OPTION_FLAG;
        const char letter[] = {row->letter, '\0'};
        zsh_spec(out, row, "--", row->name, flag ? "" : "=");
        if (flag) zsh_spec(out, row, "--no-", row->name, "");
        if (row->letter) zsh_spec(out, row, "-", letter, flag ? "" : "+");
    }
    if (command->takes_files) strbuf_add(out, " \\\n            '*:file:_files'");
    strbuf_add(out, " ;;\n");
}

void options_completion_zsh(const struct program *program, struct strbuf *out)
{
    strbuf_addf(out, "#compdef %s\n_", program->name);
    add_identifier(out, program->name);
    strbuf_add(out, "() {\n    local context state line\n    local -a commands\n    commands=(\n");
    for (const struct command *const *c = program->commands; *c; c++) {
        strbuf_addf(out, "        '%s:", (*c)->name);
        zsh_text(out, (*c)->summary);
        strbuf_add(out, "'\n");
    }
    strbuf_add(out,
               "    )\n"
               "    _arguments -C '(-h --help)'{-h,--help}'[show help]' '--version[show the version]' \\\n"
               "        '1:command:->command' '*::argument:->rest'\n"
               "    case $state in\n"
               "    command) _describe command commands ;;\n"
               "    rest)\n"
               "        case $line[1] in\n");
    for (const struct command *const *c = program->commands; *c; c++) zsh_command(out, *c);
    strbuf_add(out, "        esac ;;\n    esac\n}\n_");
    add_identifier(out, program->name);
    strbuf_add(out, " \"$@\"\n");
}
