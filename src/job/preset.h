/* preset.h - devices and memory profiles by name, from the data files that travel inside the program.
 *
 *     struct preset preset;
 *     preset_find("a10g", &preset, &err);              // PLIM_BAD_INPUT names what may be meant
 *     preset_find("g5.12xlarge", &preset, &err);       // a machine one can rent: the card it has
 *     // preset.facts is ready for the planner: a plan for it counts what a run on it would take
 *     preset_detect(&device->facts, &preset);          // the one a device that is here belongs to
 *
 * What a preset recommends fills the keys that a job leaves open when training.preset says so; see job_take_preset.
 */
#ifndef PLIM_JOB_PRESET_H
#define PLIM_JOB_PRESET_H

#include "base/strbuf.h"
#include "plan/facts.h"

struct preset {
    struct device_facts facts; /* name is the preset's; host_bytes: of a machine, what its host has for us */
    int cards;                 /* of the machine; 1: a card alone */
    int precision;             /* enum precision */
    int64_t batch, accumulation;
    int profile; /* as the key `profile` counts */
};

enum plim_status preset_find(const char *name, struct preset *out, struct plim_error *err);

/* A machine that can be rented. */
struct preset_machine {
    char device[32]; /* a preset's name */
    char link[16];   /* between its cards, see cluster.h; empty: there is one */
    int cards;
    uint64_t host; /* bytes of the host's memory */
};
bool preset_machine(const char *name, struct preset_machine *out);

/* By the name the driver gives a card and its memory, or by a CPU's memory; facts of a preset are that preset. False:
 * none is like it. */
bool preset_detect(const struct device_facts *facts, struct preset *out);

/* A line per device: name, memory, precision, batch, profile, and why the program cannot run there if so; then a line per
 * machine that can be rented: its cards. */
void preset_list(struct strbuf *out);

struct profile {
    double target, warning, critical, emergency; /* shares of memory */
};

enum plim_status profile_find(const char *name, struct profile *out, struct plim_error *err);

#endif
