/* preset.h - devices and memory profiles by name, from the data files that travel inside the program.
 *
 *     struct preset preset;
 *     preset_find("a10g", &preset, &err);     // PLIM_BAD_INPUT names the nearest one
 *     // preset.facts is ready for the planner
 */
#ifndef PLIM_JOB_PRESET_H
#define PLIM_JOB_PRESET_H

#include "base/strbuf.h"
#include "plan/facts.h"

struct preset {
    struct device_facts facts;
    int precision; /* enum precision */
    int64_t batch, accumulation;
    char profile[32];
};

enum plim_status preset_find(const char *name, struct preset *out, struct plim_error *err);

/* A line per device: name, memory, precision, batch. */
void preset_list(struct strbuf *out);

struct profile {
    double target, warning, critical, emergency; /* shares of memory */
};

enum plim_status profile_find(const char *name, struct profile *out, struct plim_error *err);

#endif
