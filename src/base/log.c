/* log.c - lines are formatted on the stack; a dropped line costs one comparison. */
#include "base/log.h"
#include <stdarg.h>
#include <stdio.h>

enum { LINE_MAX_BYTES = 2048 };

bool log_wants(const struct log *log, enum log_level level)
{
    return log && log->sink && level >= log->least;
}

void log_say(const struct log *log, enum log_level level, const char *fmt, ...)
{
    if (!log_wants(log, level)) return;
    char line[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log->sink(log->arg, level, line);
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
