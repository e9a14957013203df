/* plimsoll/status.h - errors are values.
 *
 * Every function that can fail returns an enum plim_status. On failure it also fills the caller's struct plim_error with
 * one line: what is wrong, where, and what to do. The error pointer may be NULL.
 *
 *     struct plim_error err = {0};
 *     if (plim_engine_open(context, &options, &engine, &err) != PLIM_OK) puts(err.text);
 */
#ifndef PLIMSOLL_STATUS_H
#define PLIMSOLL_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every exported function is marked with this; the shared library hides everything else. */
#if defined(__GNUC__)
#define PLIM_API __attribute__((visibility("default")))
#else
#define PLIM_API
#endif

enum plim_status {
    PLIM_OK = 0,
    PLIM_BAD_INPUT = 1,   /* the caller can mend it: a configuration, an argument, a damaged file */
    PLIM_NO_FIT = 2,      /* no plan fits the budget */
    PLIM_NO_MEMORY = 3,   /* the system or the budget refused bytes */
    PLIM_IO = 4,          /* reading or writing failed */
    PLIM_LINK = 5,        /* this rank cannot reach the others */
    PLIM_NOT_FOUND = 6,   /* an optional part is missing, for example a chat template */
    PLIM_UNSUPPORTED = 7, /* understood, but this build or machine cannot do it */
    PLIM_INTERRUPTED = 8, /* stopped as requested; state was saved */
    PLIM_BUSY = 9,        /* no room at the moment, for example in a queue; try later */
    PLIM_BUG = 10         /* an invariant of the library broke */
};

struct plim_error {
    enum plim_status status;
    unsigned place;  /* bytes of text before the failure's own words */
    char text[1024]; /* one line, UTF-8 */
};

/* "ok", "bad input", "does not fit", ...; static text. */
PLIM_API const char *plim_status_name(enum plim_status status);

/* The version of the loaded library, "0.1.0", and of this header. The number counts 10000 * major + 100 * minor + patch. */
#define PLIM_VERSION 100
PLIM_API const char *plim_version(void);
PLIM_API int plim_version_number(void);

/* Frees text that the library returned as char *. NULL is ignored. */
PLIM_API void plim_free(void *text);

/* "64MiB", "1.5 GiB", "20GB", "4096" to bytes. */
PLIM_API enum plim_status plim_bytes_parse(const char *text, uint64_t *bytes, struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
