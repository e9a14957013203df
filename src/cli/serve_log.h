/* serve_log.h - the start-up log of a server: thirteen named stages, with the memory of host and device at each.
 *
 *     serve_log_open(&stages, &log);
 *     serve_log_hear(&stages, "config_loaded");
 *
 * A stage that was not reported before a later one is logged together with it.
 */
#pragma once

#include "base/log.h"
#include "base/status.h"
#include "serve/ladder.h"

struct serve_log {
    const struct log *log;
    const struct device *device; /* NULL: not open yet */
    double began;
    int heard;         /* number of stages reported */
    const char *stage; /* the last one; NULL: none */
};

void serve_log_open(struct serve_log *s, const struct log *log);
void serve_log_hear(void *serve_log, const char *stage);
const char *serve_log_at(const struct serve_log *s); /* the current stage */

/* Logs one line: the kind of failure (serve/ladder.h), the stage, and the memory at that time; `memory` "":
 * now. Logs nothing for failures before loading began; those are bad input. */
void serve_log_failure(const struct serve_log *s, enum plim_status status, const char *memory);
