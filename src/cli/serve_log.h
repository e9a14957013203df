/* serve_log.h - the start-up log of a server: thirteen named stages, with the memory of host and device at each.
 *
 *     serve_log_open(&stages, &log);
 *     serve_log_hear(&stages, "config_loaded");
 *
 * A stage that nobody reported before a later one came is told with it: it was part of that one.
 */
#ifndef PLIM_CLI_SERVE_LOG_H
#define PLIM_CLI_SERVE_LOG_H

#include "base/log.h"
#include "base/status.h"
#include "serve/ladder.h"

struct serve_log {
    const struct log *log;
    const struct device *device; /* NULL: none is open yet */
    double began;
    int heard;         /* stages, all up to the last */
    const char *stage; /* the last one; NULL: none */
};

void serve_log_open(struct serve_log *s, const struct log *log);
void serve_log_hear(void *serve_log, const char *stage);
const char *serve_log_at(const struct serve_log *s); /* the stage that is being worked at */

/* One line: the kind (serve/ladder.h), the stage and the memory at the failure; `memory` "": as it is now. Nothing for what failed before the model was begun: that is bad input. */
void serve_log_failure(const struct serve_log *s, enum plim_status status, const char *memory);

#endif
