/* knobs.h - the choices that a plan may make without changing the mathematics, as one list.
 *
 *     struct knobs pins;
 *     knobs_open(&pins);                              // every choice is the planner's
 *     pins.micro_batch = 4;                           // this one is not
 *     for (int i = 0; i < KNOB_COUNT; i++) printf("%s %lld\n", knob_rows[i].name, knob_get(&knobs, i));
 *
 * A new knob is a member here, a row in knobs.c and, if the search may vary it, an axis in space.c. The rows also serve as
 * the table of pins: for a job's pins (job/pins.c), for remedies that remove one (report/remedies.c) and for pins that
 * exclude each other (search_clash.c).
 */
#pragma once

#include "base/json.h"
#include "tape/pass.h"

/* In pins: the planner chooses. */
#define KNOB_OPEN (-1)

struct knobs {
    int64_t micro_batch;           /* rows of one micro-batch */
    int64_t accumulation;          /* micro-batches per optimizer step: rows / micro_batch */
    int64_t recompute;             /* enum recompute */
    int64_t full_layers;           /* number of layers after offload_layers that are recomputed in full */
    int64_t loss_chunks;           /* slices of the output projection and loss */
    int64_t optimizer_in_backward; /* 1: each parameter is updated when its gradient is complete */
    int64_t optimizer_in_forward;  /* 1: each parameter is updated before the next step's forward reads it */
    int64_t state_tier;            /* enum tier of moments and masters */
    int64_t state_share;           /* parts of the state on state_tier, out of OFFLOAD_SHARES */
    int64_t host_share; /* slices of offloaded state that the host's CPU updates, out of OFFLOAD_SHARES */
    /* Part of what it updates that it updates before the norm is known, taking the clip not to bind; out of OFFLOAD_SHARES. */
    int64_t before_norm_share;
    int64_t grad_tier;   /* enum tier where gradients wait between micro-batches */
    int64_t param_tier;  /* enum tier of parameters while no op reads them */
    int64_t param_share; /* parts of them on param_tier, out of OFFLOAD_SHARES */
    /* Slices of the offloaded tensors that are on disk instead of in host memory: up to OFFLOAD_SHARES of the state,
     * then as many of the parameters. */
    int64_t disk_share;
    /* Number of first layers whose activations are offloaded from forward to backward. */
    int64_t offload_layers;
    int64_t zero; /* enum zero: what is sharded */
    /* 1: sharded parameters that are read again soon stay gathered from forward to backward. */
    int64_t keep_gathered;
    int64_t prefetch_ops; /* how many ops ahead offloaded or sharded tensors are fetched */
    int64_t keep_fp8;     /* 1: weights converted to fp8 are kept for the whole step */
};

/* Values of prefetch_ops. AHEAD is about a layer. LEAST takes less memory and still hides most of a copy. RANKS is
 * the minimum for exchanges between ranks: it takes hardly more memory than no overlap at all. */
enum { PREFETCH_AHEAD = 10, PREFETCH_LEAST = 3, PREFETCH_RANKS = 1 };

enum knob_form { KNOB_NUMBER, KNOB_FLAG, KNOB_RECOMPUTE, KNOB_TIER };

struct knob_row {
    const char *name; /* in JSON and reports */
    size_t offset;
    enum knob_form form;
    const char *key; /* configuration key that pins it; NULL: none */
};

enum { KNOB_COUNT = sizeof(struct knobs) / sizeof(int64_t) };
extern const struct knob_row knob_rows[KNOB_COUNT];
/* The index of a member's row. */
#define KNOB_ROW(member) ((int)(offsetof(struct knobs, member) / sizeof(int64_t)))

int64_t knob_get(const struct knobs *knobs, int row);
void knob_set(struct knobs *knobs, int row, int64_t value);

void knobs_open(struct knobs *pins);
bool knobs_equal(const struct knobs *a, const struct knobs *b);

/* True if updates run inside the loop instead of after it. */
static inline bool knobs_inside(const struct knobs *knobs)
{
    return knobs->optimizer_in_backward || knobs->optimizer_in_forward;
}

/* Writes every knob as a member of the open object. */
void knobs_json(struct json_writer *w, const struct knobs *knobs);

/* "none", "selective", "full", "selective + 6 layers in full" */
const char *knobs_recompute_text(const struct knobs *knobs, char *buf, size_t size);

/* "device", "disk", "host (25 % of it), updated there" */
const char *knobs_state_text(const struct knobs *knobs, char *buf, size_t size);

/* "device", "host (50 % of it)", "host, 25 % of all on disk" */
const char *knobs_param_text(const struct knobs *knobs, char *buf, size_t size);

/* "", ", activations of 2 layers offloaded" */
const char *knobs_activations_text(const struct knobs *knobs, char *buf, size_t size);
