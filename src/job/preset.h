/* preset.h - devices and memory profiles by name, from data files compiled into the program.
 *
 *     struct preset preset;
 *     preset_find("a10g", &preset, &err);              // PLIM_BAD_INPUT suggests similar names
 *     preset_find("g5.12xlarge", &preset, &err);       // a cloud machine: the GPU it has
 *     // preset.facts is ready for the planner: the plan is the one a run on it would have
 *     preset_detect(&device->facts, &preset);          // the preset of a device of this machine
 *
 * With training.preset, a preset's recommendations fill the keys that a job leaves open; see job_take_preset.
 */
#pragma once

#include "base/json.h"
#include "plan/facts.h"

struct preset {
    struct device_facts facts; /* name is the preset's; host_bytes: host memory available on a machine */
    int cards;                 /* GPUs of the machine; 1: a single card */
    int precision;             /* enum precision */
    int64_t batch, accumulation;
    int profile; /* value of the key `profile` */
};

enum plim_status preset_find(const char *name, struct preset *out, struct plim_error *err);

/* A cloud machine. */
struct preset_machine {
    char device[32]; /* a preset's name */
    char link[16];   /* between its cards, see cluster.h; empty: a single card */
    int cards;
    uint64_t host; /* bytes of the host's memory */
};
bool preset_machine(const char *name, struct preset_machine *out);

/* Finds the preset by the GPU's driver name and memory, or by a CPU's memory; facts of a preset give that
 * preset. Returns false if none is similar. */
bool preset_detect(const struct device_facts *facts, struct preset *out);

/* A line per device: name, memory, precision, batch, profile, and why the program cannot run there if so;
 * then a line per cloud machine: its cards. */
void preset_list(struct strbuf *out);

/* preset_list for programs: an object per device and per machine, into an array that is open. */
void preset_json(struct json_writer *w);

struct profile {
    double target, warning, critical, emergency; /* shares of memory */
};

enum plim_status profile_find(const char *name, struct profile *out, struct plim_error *err);
