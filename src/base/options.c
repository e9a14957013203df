/* options.c - parsing: every argument is an option, an option's value or an argument left over. */
#include "base/options.h"
#include "base/bytes.h"
#include "base/nearest.h"
#include "base/number.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct parsing {
    const struct command *command;
    char *const *argv;
    int argc, at; /* argv[at] is the next to look at */
    void *target;
    struct bump *store;
    struct options_rest *rest;
    struct plim_error *err;
};

/* --lr_scheduler is --lr-scheduler. */
static bool same_name(const char *row, const char *name, size_t len)
{
    size_t i = 0;
    while (i < len && row[i] && (row[i] == name[i] || (row[i] == '-' && name[i] == '_'))) i++;
    return i == len && !row[i];
}

static const struct option_row *find_name(const struct command *command, const char *name, size_t len)
{
    for (size_t i = 0; i < command->row_count; i++)
        if (same_name(command->rows[i].name, name, len)) return &command->rows[i];
    return NULL;
}

static const struct option_row *find_letter(const struct command *command, char letter)
{
    for (size_t i = 0; i < command->row_count; i++)
        if (command->rows[i].letter && command->rows[i].letter == letter) return &command->rows[i];
    return NULL;
}

/* Is it one of the arguments, written as an option: --model of "serve MODEL"? */
static bool names_argument(const struct command *command, const char *word)
{
    size_t n = strlen(word), k;
    for (const char *at = command->usage; at && *at; at++) {
        for (k = 0; k < n && toupper((unsigned char)word[k]) == at[k]; k++) continue;
        bool begins = at == command->usage || !isalpha((unsigned char)at[-1]);
        if (n && k == n && begins && !isalpha((unsigned char)at[n])) return true;
    }
    return false;
}

static enum plim_status unknown_name(struct parsing *p, const char *name, size_t len)
{
    char word[128];
    snprintf(word, sizeof word, "%.*s", (int)(len < 100 ? len : 100), name);
    if (names_argument(p->command, word))
        return plim_fail(p->err, PLIM_BAD_INPUT, "%s: unknown option '--%s'; it is an argument: %s %s",
                         p->command->name, word, p->command->name, p->command->usage);
    const char *key = p->command->keys ? schema_known_word(p->command->keys, word) : NULL;
    if (key)
        return plim_fail(p->err, PLIM_BAD_INPUT,
                         "%s: unknown option '--%s'; write --set %s=..., or the key in the job file",
                         p->command->name, word, key);
    struct nearest near = nearest_begin(word);
    nearest_offer(&near, "help");
    for (size_t i = 0; i < p->command->row_count; i++) nearest_offer(&near, p->command->rows[i].name);
    if (near.best)
        return plim_fail(p->err, PLIM_BAD_INPUT, "%s: unknown option '--%s'; did you mean '--%s'?",
                         p->command->name, word, near.best);
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s: unknown option '--%s'; --help lists them all",
                     p->command->name, word);
}

static enum plim_status bad_value(struct parsing *p, const struct option_row *row, const char *value,
                                  const char *expected)
{
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s: option '--%s': expected %s, found '%.200s'",
                     p->command->name, row->name, expected, value);
}

static enum plim_status check_choice(struct parsing *p, const struct option_row *row, const char *value)
{
    char list[400] = "one of";
    struct nearest near = nearest_begin(value);
    for (const char *const *choice = row->choices; *choice; choice++) {
        if (strcmp(*choice, value) == 0) return PLIM_OK;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s %s", choice == row->choices ? "" : ",", *choice);
        nearest_offer(&near, *choice);
    }
    enum plim_status status = bad_value(p, row, value, list);
    if (!near.best || !p->err) return status;
    struct plim_error first = *p->err;
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s; did you mean '%s'?", first.text, near.best);
}

static enum plim_status put_int(struct parsing *p, const struct option_row *row, const char *value,
                                void *field)
{
    int64_t number;
    if (!number_parse_int64(value, strlen(value), &number)) return bad_value(p, row, value, "a whole number");
    if (row->kind == OPTION_INT64) {
        *(int64_t *)field = number;
        return PLIM_OK;
    }
    if (number < INT_MIN || number > INT_MAX) return bad_value(p, row, value, "a smaller whole number");
    *(int *)field = (int)number;
    return PLIM_OK;
}

static enum plim_status put_bytes(struct parsing *p, const struct option_row *row, const char *value,
                                  void *field)
{
    enum plim_status status = bytes_parse(value, field, p->err);
    if (status != PLIM_OK) plim_error_prefix(p->err, "%s: option '--%s'", p->command->name, row->name);
    return status;
}

static double number_of(const struct option_row *row, const void *field)
{
    switch (row->kind) {
    case OPTION_INT:
        return *(const int *)field;
    case OPTION_INT64:
        return (double)*(const int64_t *)field;
    case OPTION_BYTES:
        return (double)*(const uint64_t *)field;
    default:
        return *(const double *)field;
    }
}

/* A number that is none (NaN) is in no range. */
static bool is_expected(const struct option_row *row, const char *value, const void *field)
{
    if (!row->expected || row->kind == OPTION_STRING_LIST) return true;
    if (row->kind == OPTION_STRING) return row->valid(value);
    double number = number_of(row, field);
    return number >= row->least && number <= row->most;
}

/* Store the value of an option that takes one. */
static enum plim_status store_value(struct parsing *p, const struct option_row *row, const char *value)
{
    void *field = (char *)p->target + row->offset;
    if (row->given) *(bool *)((char *)p->target + row->given - 1) = true;
    switch (row->kind) {
    case OPTION_FLAG:
        break;
    case OPTION_STRING:
        *(const char **)field = value;
        return row->choices ? check_choice(p, row, value) : PLIM_OK;
    case OPTION_INT:
    case OPTION_INT64:
        return put_int(p, row, value, field);
    case OPTION_DOUBLE:
        return number_parse_double(value, strlen(value), field) ? PLIM_OK
                                                                : bad_value(p, row, value, "a number");
    case OPTION_BYTES:
        return put_bytes(p, row, value, field);
    case OPTION_STRING_LIST:
        if (string_list_add(p->store, field, value)) return PLIM_OK;
        return plim_fail(p->err, PLIM_NO_MEMORY, "%s: out of memory", p->command->name);
    }
    return plim_fail(p->err, PLIM_BUG, "%s: option '--%s' has no kind", p->command->name, row->name);
}

static void put_flag(struct parsing *p, const struct option_row *row, bool value)
{
    *(bool *)((char *)p->target + row->offset) = value;
    if (row->given) *(bool *)((char *)p->target + row->given - 1) = true;
}

static enum plim_status put_value(struct parsing *p, const struct option_row *row, const char *value)
{
    enum plim_status status = store_value(p, row, value);
    if (status != PLIM_OK || is_expected(row, value, (char *)p->target + row->offset)) return status;
    return bad_value(p, row, value, row->expected);
}

/* The value is the next argument; a long option there means that it was forgotten. */
static enum plim_status put_next(struct parsing *p, const struct option_row *row)
{
    const char *next = p->at < p->argc ? p->argv[p->at] : NULL;
    if (row->optional && (!next || next[0] == '-' || !strchr(next, '='))) return put_value(p, row, "");
    if (!next || (next[0] == '-' && next[1] == '-' && next[2]))
        return plim_fail(p->err, PLIM_BAD_INPUT, "%s: option '--%s' needs a value; write --%s=%s",
                         p->command->name, row->name, row->name, row->metavar ? row->metavar : "VALUE");
    p->at++;
    return put_value(p, row, next);
}

static enum plim_status no_value(struct parsing *p, const char *name, size_t len)
{
    return plim_fail(p->err, PLIM_BAD_INPUT, "%s: option '--%.*s' takes no value", p->command->name, (int)len,
                     name);
}

/* "--name", "--name=value" or "--no-name"; name points behind the dashes. */
static enum plim_status parse_long(struct parsing *p, const char *name)
{
    size_t len = strcspn(name, "=");
    const char *value = name[len] ? name + len + 1 : NULL;
    const struct option_row *row = find_name(p->command, name, len);
    if (row && row->kind != OPTION_FLAG) return value ? put_value(p, row, value) : put_next(p, row);
    bool on = true;
    if (!row && len > 3 && memcmp(name, "no-", 3) == 0) {
        row = find_name(p->command, name + 3, len - 3);
        on = false;
        if (row && row->kind != OPTION_FLAG) row = NULL;
    }
    bool help = !row && len == 4 && memcmp(name, "help", 4) == 0;
    if (!row && !help) return unknown_name(p, name, len);
    if (value) return no_value(p, name, len);
    if (row) put_flag(p, row, on);
    p->rest->help |= help;
    return PLIM_OK;
}

/* "-x", "-xyz" or "-xvalue"; letters points behind the dash. */
static enum plim_status parse_short(struct parsing *p, const char *letters)
{
    for (; *letters; letters++) {
        const struct option_row *row = find_letter(p->command, *letters);
        if (!row && *letters == 'h') {
            p->rest->help = true;
            continue;
        }
        if (!row)
            return plim_fail(p->err, PLIM_BAD_INPUT, "%s: unknown option '-%c'; --help lists them all",
                             p->command->name, *letters);
        if (row->kind != OPTION_FLAG) return letters[1] ? put_value(p, row, letters + 1) : put_next(p, row);
        put_flag(p, row, true);
    }
    return PLIM_OK;
}

static enum plim_status keep_argument(struct parsing *p, const char *text)
{
    if (string_list_add(p->store, &p->rest->args, text)) return PLIM_OK;
    return plim_fail(p->err, PLIM_NO_MEMORY, "%s: out of memory", p->command->name);
}

enum plim_status options_parse(const struct command *command, int argc, char *const *argv, void *target,
                               struct bump *store, struct options_rest *rest, struct plim_error *err)
{
    struct parsing p = {command, argv, argc, 0, target, store, rest, err};
    *rest = (struct options_rest){0};
    bool only_arguments = false;
    while (p.at < argc) {
        const char *text = argv[p.at++];
        enum plim_status status = PLIM_OK;
        if (only_arguments || text[0] != '-' || text[1] == '\0')
            status = keep_argument(&p, text);
        else if (text[1] != '-')
            status = parse_short(&p, text + 1);
        else if (text[2] == '\0')
            only_arguments = true;
        else
            status = parse_long(&p, text + 2);
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}
