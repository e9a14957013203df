/* log.c - lines are formatted on the stack; a dropped line costs one comparison. */
#include "base/log.h"
#include "base/clock.h"
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

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

void log_to_json(void *arg, enum log_level level, const char *line)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    struct tm tm = {0};
    char day[32] = "", when[48];
    double now = clock_wall(), second = floor(now);
    time_t seconds = (time_t)second;
    gmtime_r(&seconds, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when, sizeof when, "%s.%03dZ", day, (int)((now - second) * 1000));
    json_writer_init(&w, &out, 0);
    json_begin_object(&w, NULL);
    json_str(&w, "time", when);
    json_str(&w, "level", log_level_name(level));
    json_str(&w, "message", line);
    json_end_object(&w);
    fprintf(arg, "%s\n", out.failed ? line : strbuf_text(&out));
    strbuf_release(&out);
}
