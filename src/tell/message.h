/* message.h - formats a notice for its receiver.
 *
 *     struct message m = {.notice = NOTICE_START, .run = "job", .text = "started: 400 steps", ...};
 *     message_put(&m, HOOK_DISCORD, &out);               // one JSON object
 *
 * JSON has every field under its own name. Discord and Slack get a line with the numbers below it; no text can mention
 * people there or become a link. Numbers that are not finite are left out.
 */
#pragma once

#include "base/strbuf.h"
#include "job/telling.h"

enum message_number { NUMBER_LOSS, NUMBER_EVAL, NUMBER_RATE, NUMBER_NORM, NUMBER_SPEED, MESSAGE_NUMBERS };

struct message {
    enum notice notice;
    const char *run, *job, *host, *text;
    double time, seconds;           /* seconds: since the run began */
    int64_t step, steps;            /* steps 0: unknown yet */
    double number[MESSAGE_NUMBERS]; /* NAN: none */
    int64_t used, budget;           /* memory; budget 0: unknown yet */
    const char *status;             /* of memory */
};

void message_put(const struct message *message, enum hook_kind kind, struct strbuf *out);
