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
 */
#ifndef PLIM_BASE_STATUS_H
#define PLIM_BASE_STATUS_H

/* Behind a parameter that a function has only because others of its table do. */
#define UNUSED __attribute__((unused))

enum plim_status {
    PLIM_OK = 0,
    PLIM_BAD_INPUT,   /* the user can mend it: config, flags, files that lie      -> exit 2 */
    PLIM_NO_FIT,      /* no plan fits the budget                                  -> exit 3 */
    PLIM_NO_MEMORY,   /* the system or the ledger refused bytes                   -> exit 4 */
    PLIM_IO,          /* read or write failed; the text carries the system's words -> exit 2 */
    PLIM_LINK,        /* this rank cannot reach the others: it stops the run       -> exit 2 */
    PLIM_NOT_FOUND,   /* an optional part is not there, e.g. a chat template       -> exit 2 */
    PLIM_UNSUPPORTED, /* understood, but this build or machine cannot             -> exit 2 */
    PLIM_INTERRUPTED, /* asked to stop (SIGINT, SIGTERM); state was saved          -> exit 130 */
    PLIM_BUSY,        /* there is no place at the moment (a full queue); try later -> exit 75 */
    PLIM_BUG,         /* our own invariant broke                                  -> exit 70 */
};

/* Nobody decides by reading the text: what a caller must know is the status, or a field here. */
struct plim_error {
    enum plim_status status;
    unsigned place; /* bytes of text that plim_error_prefix put before the failure's own words */
    char text[1024];
};

/* Record a failure and return its status, so that `return plim_fail(...)` reads as one thought. */
enum plim_status plim_fail(struct plim_error *err, enum plim_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " before a text already recorded (callers add where they were). */
void plim_error_prefix(struct plim_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The process exit code that belongs to a status. */
int plim_exit_code(enum plim_status status);

#endif
