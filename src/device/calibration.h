/* calibration.h - measured speed of a device, and the file that stores it.
 *
 * The cache is $XDG_CACHE_HOME/plimsoll (or ~/.cache/plimsoll), one JSON file per key. The key names everything that
 * the numbers depend on, so a changed machine measures again. Stored numbers stay until `plimsoll calibrate` measures
 * again, so every process plans with the same numbers. An unwritable cache is no error: a CPU then has fixed rates. */
#pragma once

#include "base/context.h"
#include "base/threads.h"
#include "plan/facts.h"
#include "tensor/dtype.h"
#include <stdbool.h>

/* Values of the context's setting. Without a context, or with "0": a backend uses fixed rates of a modest device,
 * measures nothing and ignores the cache. Tests use this, so that plans are the same on every machine. "anew": it measures
 * carefully at this start and stores the result (plimsoll calibrate). Anything else: it measures if nothing is
 * stored. */
#define CALIBRATION_WISH      "PLIMSOLL_CALIBRATE"
#define CALIBRATION_ANEW_WORD "anew"
#define CALIBRATION_KEPT_WORD "kept"
bool calibration_wanted(const struct context *context);
bool calibration_anew(const struct context *context);

struct calibration {
    double flops[DT_COUNT]; /* matmul, by element type; 0 for types without matmul */
    /* Matmul of fp32 operands with reduced precision; equals exact fp32 if there is none. */
    double tf32_flops;
    double attn_flops[DT_COUNT];             /* attention */
    double attn_bwd_share;                   /* of attn_flops, in bf16 */
    double attn_general_share;               /* see device_facts; in bf16 */
    double attn_wide_share, attn_long_share; /* likewise */
    double bandwidth;                        /* bytes/s read plus written, operands in memory */
    double cache_bandwidth;                  /* the same, operands in the last-level cache */
    double lower_bandwidth;                  /* bytes/s to and from the tier below */
    double host_bandwidth; /* bytes/s of an update by the host's CPU; the CPU as a device: its own */
    double coded_rate;     /* elements/s of 8-bit AdamW, operands in the cache */
    double curve_rate;     /* elements/s of SiLU and a gate in bf16, operands in the cache */
    /* See device_facts; attn_flops and flops are without them. */
    double score_rate, score_row_rate, pack_bandwidth, plain_rate, update_rate;
    double op_seconds;     /* starting one op */
    double matmul_seconds; /* of a small product, besides its flops and op_seconds */
    double others;         /* share of the processors used by other programs meanwhile; 0: none, or unknown */
};

/* Stored instead of a rate that limits nothing. */
#define CALIBRATION_UNLIMITED 1e30

/* Stored instead of a time too short to measure, so that stored seconds are above 0. */
#define CALIBRATION_LEAST 1e-9

/* Element-wise median of n <= CALIBRATION_ROUNDS measurements. */
enum { CALIBRATION_ROUNDS = 9 };
void calibration_median(const struct calibration *list, int n, struct calibration *out);

/* Measures in a separate process with a team of this many threads, so that its memory does not count in the
 * peak of a process with a budget. `measure` returns false if it could not. Returns false, with `out`
 * unchanged, in that case or if the context cannot start a process. */
typedef bool calibration_measure(void *arg, struct threads *team, struct calibration *out);
bool calibration_apart(const struct context *context, int threads, calibration_measure *measure, void *arg,
                       struct calibration *out);

/* Sets the rates in the facts. */
void calibration_apply(const struct calibration *speed, struct device_facts *facts);

/* The host's part of a key: "Neoverse-V1, 8 threads". Returns buf. */
const char *calibration_host(char *buf, size_t size, int threads);

/* Returns false if there is nothing for this key, or the environment asks for a new measurement. `kind`
 * ("cpu", "cuda") begins the file's name. */
bool calibration_load(const struct context *context, const char *kind, const char *key,
                      struct calibration *out);
/* Returns false if it could not be written. */
bool calibration_save(const struct context *context, const char *kind, const char *key,
                      struct calibration *speed);

/* Waits until no other process that shares the cache is measuring; then nobody else does until calibration_leave. Programs
 * that start together, as ranks do, thus plan with the numbers of the first one: load between the two, measure if nothing is
 * there. Returns -1 if the cache's folder cannot be locked within seconds; the
 * caller then measures without. */
int calibration_enter(const struct context *context);
void calibration_leave(int lock);

/* Other measured numbers are kept by name; all are above 0. */
struct calibration_number {
    const char *name;
    double value;
};
bool calibration_recall(const struct context *context, const char *kind, const char *key,
                        struct calibration_number *list, int n);
void calibration_keep(const struct context *context, const char *kind, const char *key,
                      const struct calibration_number *list, int n);

/* Memory of the card that driver and libraries took when it was last open; 0: unknown. A budget below that
 * can be refused without opening the card. */
size_t calibration_context(const struct context *context, const char *kind, const char *card);
void calibration_note_context(const struct context *context, const char *kind, const char *card,
                              size_t bytes);
