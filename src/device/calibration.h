/* calibration.h - how fast a device is, as measured, and the file that remembers it.
 *
 * The cache is $XDG_CACHE_HOME/plimsoll (or ~/.cache/plimsoll), one JSON file per key; the key names everything the
 * numbers depend on, so a changed machine measures again. A cache that cannot be read or written is no error:
 * then every start measures. */
#ifndef PLIM_DEVICE_CALIBRATION_H
#define PLIM_DEVICE_CALIBRATION_H

#include "plan/facts.h"
#include "tensor/dtype.h"
#include <stdbool.h>
#include <stdint.h>

/* False when PLIMSOLL_CALIBRATE=0 is in the environment: a backend then takes its own fixed rates, of a modest device,
 * measures nothing and leaves the cache alone. Tests are run so: a plan is the same on every machine. */
bool calibration_wanted(void);

struct calibration {
    double flops[DT_COUNT];      /* matmul, by element type; 0 for types without matmul */
    double tf32_flops;           /* matmul of fp32 operands that may lose bits; as exact fp32 where none do */
    double attn_flops[DT_COUNT]; /* attention */
    double bandwidth;            /* bytes/s read plus written, operands in memory */
    double cache_bandwidth;      /* the same, operands in the last-level cache */
    double lower_bandwidth;      /* bytes/s to and from the tier below */
    double host_bandwidth;       /* bytes/s of an update by the host's CPU; the CPU as a device: its own */
    double coded_rate;           /* elements/s of 8-bit AdamW, operands in the cache */
    double op_seconds;           /* starting one op */
};

/* The rates of the facts. */
void calibration_apply(const struct calibration *speed, struct device_facts *facts);

/* The host's part of a key: "Neoverse-V1, 8 threads". Returns buf. */
const char *calibration_host(char *buf, size_t size, int threads);

/* False when there is nothing for this key. `kind` ("cpu", "cuda") begins the file's name; `disk` is the number of
 * the disk lower_bandwidth was measured on, 0: it is an assumption. */
bool calibration_load(const char *kind, const char *key, struct calibration *out, int64_t *disk);
/* Nobody is told when this fails: the numbers are there, only the next start is slower. */
void calibration_save(const char *kind, const char *key, struct calibration *speed, int64_t disk);

/* Bytes that driver and libraries took of the card of this name when it was last open; 0: nobody knows. A budget below them
 * need not open it to be refused. */
size_t calibration_context(const char *kind, const char *card);
void calibration_note_context(const char *kind, const char *card, size_t bytes);

#endif
