/* plan_text.h - a plan of serving, for programs and for people: what plimsoll plan --serve prints and /hold tells. */
#ifndef PLIM_SERVE_PLAN_TEXT_H
#define PLIM_SERVE_PLAN_TEXT_H

#include "base/json.h"
#include "serve/engine.h"

/* Members of an object that is open. */
void plan_text_json(const struct engine_plan *plan, struct json_writer *w);

/* A page: bytes by what they are for, requests by their length, predicted speed. `server` are the bytes of connections and
 * requests, part of the process's. */
void plan_text(const struct engine_plan *plan, const struct device_facts *facts, int64_t server,
               struct strbuf *out);

#endif
