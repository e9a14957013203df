/* log.h - a leveled log that the caller passes in; there is no global one.
 *
 *     struct log log = {LOG_LEVEL_INFO, my_sink, stderr};
 *     log_info(&log, "planned %s in %.0f ms", text, ms);
 *
 * A sink gets one finished line without its newline. It may be called from several threads at once when
 * several threads log, so a sink that keeps state brings its own lock. A NULL log is silent. Lines longer
 * than 2 KiB are cut.
 */
#ifndef PLIM_BASE_LOG_H
#define PLIM_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR, LOG_LEVEL_SILENT };

typedef void log_sink(void *arg, enum log_level level, const char *line);

struct log {
    enum log_level least; /* lines below this level are dropped */
    log_sink *sink;
    void *arg;
};

/* True if a line of this level would be written. Ask before computing an expensive text. */
bool log_wants(const struct log *log, enum log_level level);

void log_say(const struct log *log, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void log_debug(const struct log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_info(const struct log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_warn(const struct log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void log_error(const struct log *log, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "debug", "info", "warning", "error". */
const char *log_level_name(enum log_level level);

/* A sink that writes to the FILE * in arg: info lines unchanged, others as "warning: ...", each in one
 * call. */
void log_to_file(void *arg, enum log_level level, const char *line);

#endif
