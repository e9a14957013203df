/* device_line.h - the memory budget of a caller that reads no job file.
 *
 *     struct device_line line = {budget, budget > 0, device_line_default()};     // before memory is taken
 *     device_line_check(context, "serve", &line, &device->facts, &err);
 *     int64_t bytes = device_line_on(&line, &device->facts);
 */
#pragma once

#include "base/context.h"
#include "plan/facts.h"

struct device_line {
    uint64_t budget;
    bool given;
    uint64_t fallback; /* device_line_default, read before the caller takes memory */
    const char *name;  /* how errors name the budget; NULL: "option '--budget'" */
};

/* Memory that this process may use without a budget: the container's limit, less the use of others and a reserve. 0: no
 * container limits it. */
uint64_t device_line_default(void);
/* Limit on host memory before a device is open; 0: none. */
uint64_t device_line_host(const struct device_line *line);
/* Limit on the device's memory; 0: none. A container does not limit a card's own memory. */
int64_t device_line_on(const struct device_line *line, const struct device_facts *facts);
/* PLIM_BAD_INPUT: the budget is more than the device or its container has. More than is free now is logged. */
enum plim_status device_line_check(const struct context *context, const char *where,
                                   const struct device_line *line, const struct device_facts *facts,
                                   struct plim_error *err);
