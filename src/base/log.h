/* log.h - a leveled log that the caller passes in; there is no global one.
 *
 *     struct log log = {LOG_LEVEL_INFO, my_sink, stderr};
 *     log_info(&log, "planned %s in %.0f ms", text, ms);
 *
 * A sink gets one finished line without its newline. It may be called from several threads at once when
 * several threads log, so a sink that keeps state brings its own lock. A NULL log is silent. Lines longer
 * than 2 KiB are cut.
 */
#pragma once

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

#define log_debug(log, ...) log_say(log, LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(log, ...)  log_say(log, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(log, ...)  log_say(log, LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(log, ...) log_say(log, LOG_LEVEL_ERROR, __VA_ARGS__)

/* "debug", "info", "warning", "error". */
const char *log_level_name(enum log_level level);

/* A sink that writes to the FILE * in arg: info lines unchanged, others as "warning: ...", each in one
 * call. */
void log_to_file(void *arg, enum log_level level, const char *line);

/* A sink for programs that collect logs: one JSON object a line, {"time": "2026-01-31T12:00:00.250Z", "level": "info",
 * "message": ...}. A line for which there is no memory is written as it is. */
void log_to_json(void *arg, enum log_level level, const char *line);
