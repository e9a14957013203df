/* status.h - errors are values.
 *
 * Every function that can fail returns an enum plim_status and, when it fails, leaves one line for people in
 * the struct plim_error the caller passed: what is wrong, where, and what to do. Nothing below cli/ prints or
 * exits. An error pointer may be NULL when the caller does not want the text.
 *
 *     struct plim_error err = {0};
 *     if (json_load(path, &doc, &err) != PLIM_OK) return err.status;
 *     ...
 *     return plim_fail(err, PLIM_BAD_INPUT, "%s: key '%s': expected a number; write e.g. 8", path, key);
 *
 * enum plim_status and struct plim_error are public (include/plimsoll/status.h). Code never decides by reading the text:
 * the status says what a caller must know.
 */
#pragma once

#include <plimsoll/status.h>

/* Records a failure and returns its status, for `return plim_fail(...)`. */
enum plim_status plim_fail(struct plim_error *err, enum plim_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before a recorded text, to say where it happened. */
void plim_error_prefix(struct plim_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The process exit code of a status: 2 for errors that the user can mend, 3 NO_FIT, 4 NO_MEMORY, 130 INTERRUPTED,
 * 75 BUSY, 70 BUG. */
int plim_exit_code(enum plim_status status);
