/* dotenv.h - .env files: NAME=VALUE lines.
 *
 *     struct dotenv vars;
 *     if (dotenv_parse(text, len, "job/.env", &vars, &err) != PLIM_OK) ...
 *     const struct dotenv_entry *e = dotenv_find(&vars, "MAX_BATCH_SIZE");     // NULL: not there
 *     dotenv_release(&vars);
 *
 * A line is empty, a comment (#), or NAME=VALUE, with an optional `export ` before it and blanks around `=`. An unquoted
 * value ends before trailing blanks or ` #`. 'Single quotes' are literal. In "double quotes" \n, \t, \\, \" and \$ are
 * escapes. A value ends on the line where it begins, and nothing is substituted. If a name occurs twice, the last value
 * counts. Errors (PLIM_BAD_INPUT) read "name:line: what" and never show a value, which may be a secret. Safe on
 * hostile input.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"

struct dotenv_entry {
    const char *name, *value;
    int line;
};

struct dotenv {
    struct dotenv_entry *items; /* in the order of the file */
    size_t count;
    struct bump store;
};

/* After an error there is nothing to release. */
enum plim_status dotenv_parse(const char *text, size_t len, const char *file, struct dotenv *out,
                              struct plim_error *err);

/* Reads a file of at most 1 MiB. If there is no file, or the name is a folder, *out is empty. */
enum plim_status dotenv_load(const char *path, struct dotenv *out, struct plim_error *err);

const struct dotenv_entry *dotenv_find(const struct dotenv *vars, const char *name);
void dotenv_release(struct dotenv *vars);
