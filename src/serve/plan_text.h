/* plan_text.h - presents a serving plan for programs and people: the output of plimsoll plan --serve and of
 * /hold. */
#pragma once

#include "base/json.h"
#include "serve/engine.h"

/* Writes members of an open object. */
void plan_text_json(const struct engine_plan *plan, struct json_writer *w);

/* A page: bytes by purpose, requests by length, predicted speed. `server`: memory of connections and
 * requests, part of the process's. */
void plan_text(const struct engine_plan *plan, const struct device_facts *facts, int64_t server,
               struct strbuf *out);
