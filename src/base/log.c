/* log.c - lines are formatted on the stack; a dropped line costs one comparison. */
#include "base/log.h"
#include <stdarg.h>
#include <stdio.h>

enum { LINE_MAX_BYTES = 2048 };

bool log_wants(const struct log *log, enum log_level level)
{
    return log && log->sink && level >= log->least;
}

static void say(const struct log *log, enum log_level level, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

static void say(const struct log *log, enum log_level level, const char *fmt, va_list ap)
{
    if (!log_wants(log, level)) return;
    char line[LINE_MAX_BYTES];
    vsnprintf(line, sizeof line, fmt, ap);
    log->sink(log->arg, level, line);
}

void log_say(const struct log *log, enum log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(log, level, fmt, ap);
    va_end(ap);
}

void log_debug(const struct log *log, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(log, LOG_LEVEL_DEBUG, fmt, ap);
    va_end(ap);
}

void log_info(const struct log *log, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(log, LOG_LEVEL_INFO, fmt, ap);
    va_end(ap);
}

void log_warn(const struct log *log, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(log, LOG_LEVEL_WARN, fmt, ap);
    va_end(ap);
}

void log_error(const struct log *log, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(log, LOG_LEVEL_ERROR, fmt, ap);
    va_end(ap);
}

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warning", "error", "silent"};
    return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "?";
}

void log_to_file(void *arg, enum log_level level, const char *line)
{
    if (level == LOG_LEVEL_INFO)
        fprintf(arg, "%s\n", line);
    else
        fprintf(arg, "%s: %s\n", log_level_name(level), line);
}
