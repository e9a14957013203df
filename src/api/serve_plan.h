/* serve_plan.h - output of plimsoll plan --serve, and devices that are not present. */
#pragma once

#include "serve/plan_text.h"

/* True if `name` is a preset and not a device of this machine. */
bool serve_plan_absent(const char *name);
int serve_plan_cards(const char *name); /* GPUs of a cloud machine; 1: any other name */
/* Makes a device that has only facts; it can be planned for. */
enum plim_status serve_plan_device(const char *name, struct device **out, struct plim_error *err);

void serve_plan_json(const char *model, const struct device_facts *facts, const struct engine_plan *plan,
                     int64_t server, struct strbuf *out);
