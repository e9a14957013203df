/* serve_plan.h - what plimsoll plan --serve shows, and devices that are not here. */
#ifndef PLIM_CLI_SERVE_PLAN_H
#define PLIM_CLI_SERVE_PLAN_H

#include "serve/plan_text.h"

/* Is `name` a preset's, and no device's of this machine? */
bool serve_plan_absent(const char *name);
int serve_plan_cards(const char *name); /* of a machine that can be rented; 1: it is something else */
/* A device of which there are only facts: good for plans. */
enum plim_status serve_plan_device(const char *name, struct device **out, struct plim_error *err);

void serve_plan_json(const char *model, const struct device_facts *facts, const struct engine_plan *plan,
                     int64_t server, struct strbuf *out);

#endif
