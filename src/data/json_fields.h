/* json_fields.h - a few fields of one line of JSON, without building a tree.
 *
 *     struct json_field f = {.name = "text", .undo = true};
 *     if (!json_fields(line, len, &f, 1, &problem)) ... problem.what, problem.column
 *     if (f.kind == JSON_TEXT) use(f.at, f.len);
 *
 * The whole line is checked against RFC 8259: one object, strings in valid UTF-8 with valid escapes and paired
 * surrogates, at most 128 levels. If a key occurs twice, the last value counts. Nothing is allocated; the line may have
 * any length. Safe on hostile input.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum json_kind { JSON_ABSENT, JSON_TEXT, JSON_LIST, JSON_OBJECT, JSON_NUMBER, JSON_BOOL, JSON_NULL };
const char *json_kind_name(enum json_kind kind); /* "missing", "text", "a list", ... */

struct json_field {
    const char *name; /* input: plain text without escapes */
    bool undo;        /* input: resolve the escapes of a text in place */
    size_t name_len;  /* filled in by json_fields */
    enum json_kind kind;
    char *at; /* in the line: a text without its quotes, any other value as written */
    size_t len;
    bool escaped; /* the text has escapes: call json_unescape */
};

struct json_problem {
    const char *what;
    size_t column; /* from 1, in bytes */
};

/* Returns false if the line is not valid; problem says where. Missing fields are JSON_ABSENT. The line is
 * changed only inside texts of fields with undo, even if it is not valid. */
bool json_fields(char *line, size_t len, struct json_field *fields, int count, struct json_problem *problem);

/* Resolves the escapes of a checked text in place. Returns the new length, at most len. */
size_t json_unescape(char *text, size_t len);
