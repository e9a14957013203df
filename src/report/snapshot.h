/* snapshot.h - the address and lifetime of every byte of a plan, and the time of every op, for programs that draw them.
 *
 *     struct snapshot s;
 *     snapshot_init(&s, &plan, &facts, NULL, &err);                  // NULL: of a plan; else of a run's step
 *     snapshot_save(&s, SNAPSHOT_TRACE, "plan.trace.json", &err);    // or snapshot_json into an open object
 *     snapshot_release(&s);
 *
 * Three forms (docs/watching.md has their fields):
 *
 *     SNAPSHOT_JSON         our own: ops and tensors, by position in the tape
 *     SNAPSHOT_TRACE        Trace Event Format, for Perfetto and chrome://tracing: ops and copies as lanes, tensors as
 *                           address x time, live bytes as counters; planned next to measured values
 *     SNAPSHOT_MEMORY_VIZ   the format of torch.cuda.memory._dump_snapshot, for PyTorch's memory_viz
 *
 * Time covers one micro-batch, then the update. Planned seconds come from the planner's clock (plan/cost.h), measured ones
 * from the run. A snapshot borrows plan, facts and run. It takes a few dozen bytes per op and tensor, and a file is written
 * piece by piece, so a run can take a snapshot next to its plan.
 */
#pragma once

#include "base/json.h"
#include "plan/cost.h"
#include "plan/plan.h"

enum snapshot_format { SNAPSHOT_JSON, SNAPSHOT_TRACE, SNAPSHOT_MEMORY_VIZ, SNAPSHOT_FORMATS };

/* "json", "trace", "memory_viz", and their file endings: ".json", ".trace.json", ".pickle". */
const char *snapshot_format_name(enum snapshot_format format);
const char *snapshot_format_ending(enum snapshot_format format);
/* PLIM_BAD_INPUT lists the known formats. */
enum plim_status snapshot_format_parse(const char *text, enum snapshot_format *out, struct plim_error *err);
/* Format for a file name: the one with the longest matching extension, else JSON. */
enum snapshot_format snapshot_format_of(const char *path);

enum { SNAPSHOT_PATH = 512 };
/* The file name for a rank: "step.rank-3.trace.json" for "step.trace.json"; rank 0 uses the path itself. */
void snapshot_rank_path(const char *path, int rank, char out[SNAPSHOT_PATH]);

/* Options in a message to a run or a server: "format" (default JSON) and "file" (default empty). PLIM_BAD_INPUT: a
 * value is invalid. */
struct snapshot_wish {
    enum snapshot_format format;
    char file[SNAPSHOT_PATH];
};
enum plim_status snapshot_wish_read(const struct node *message, struct snapshot_wish *out,
                                    struct plim_error *err);

/* A measured pass over one micro-batch, or the update. */
struct snapshot_pass {
    double start, seconds; /* since the step began */
    bool update;
    int64_t used; /* bytes of the device, or of the process, at its end */
};

/* A measured step of a run. A server has neither loss nor end. */
struct snapshot_run {
    const char *job; /* or a model */
    int64_t step, steps;
    double loss, lr, tokens_per_s;
    double seconds;      /* of the step that was measured */
    double last_seconds; /* of the step before, which was not measured; 0: none */
    int64_t used;        /* bytes when the step began */
    /* Per op of one micro-batch and the update: seconds since the step began, without what it waited for.
     * seconds < 0: not measured. NULL: no measurements. */
    const struct op_span *ops;
    const struct snapshot_pass *pass;
    int passes;
    /* Writes more members of the JSON form; may be NULL. */
    void (*more)(void *arg, struct json_writer *w);
    void *arg;
};

/* Bytes used by one tensor, or by one op's scratch, for some time. A tensor that takes over another's bytes
 * is a new block from that op on; no two blocks of a tier hold the same byte at the same op. */
struct snapshot_block {
    int tensor; /* -1: scratch of `op` */
    int op;     /* the op of the scratch; else the first op that touches the tensor */
    enum tensor_class cls;
    enum tier tier;
    bool kept;
    int64_t offset, bytes;
    int64_t taken;   /* bytes, rounded up to the device's alignment */
    int first, last; /* ops, inclusive */
};

struct snapshot {
    const struct plan *plan;
    const struct device_facts *facts;
    const struct snapshot_run *run;
    bool trains;          /* the tape updates parameters; otherwise a pass is a step */
    struct op_span *span; /* by op, planned; the update's follow the loop's */
    double seconds;       /* of both */
    struct snapshot_block *block;
    int blocks;
    /* If set, called between two items; may remove text from the buffer. */
    void (*drain)(void *arg, struct strbuf *out);
    void *drain_arg;
};

enum plim_status snapshot_init(struct snapshot *snapshot, const struct plan *plan,
                               const struct device_facts *facts, const struct snapshot_run *run,
                               struct plim_error *err);
void snapshot_release(struct snapshot *snapshot);

/* Writes the whole file, or nothing. */
enum plim_status snapshot_save(struct snapshot *snapshot, enum snapshot_format format, const char *path,
                               struct plim_error *err);

/* Writes members of an open object. */
void snapshot_json(const struct snapshot *snapshot, struct json_writer *w);
/* Write whole documents. If there is no memory to sort the blocks, out->failed is set. */
void snapshot_trace(const struct snapshot *snapshot, struct strbuf *out);
void snapshot_memory_viz(const struct snapshot *snapshot, struct strbuf *out);

/* ---- shared by the forms ---- */

enum { SNAPSHOT_NAME = 256 };
/* "linear mlp.gate[3]": kind and result. "model.layers.3.mlp.up_proj.weight", "scratch of linear mlp.gate[3]". Return buf. */
const char *snapshot_op_name(const struct snapshot *snapshot, int op, char buf[SNAPSHOT_NAME]);
const char *snapshot_block_name(const struct snapshot *snapshot, const struct snapshot_block *block,
                                char buf[SNAPSHOT_NAME]);
const char *snapshot_lane_name(enum lane lane);    /* "compute", "fetch", "store", "host", "collective" */
const char *snapshot_part_name(enum op_part part); /* "forward", "loss", "backward", "recompute", "update" */

/* Start and end of an op in seconds. A lifetime runs from its first op's begin to its last op's end. */
struct snapshot_moment {
    double begin, end;
};

/* Fills the times of all ops in order, and of the end: at[nops + 1]. Times are measured if the run has them, else
 * planned. Copies that overlap computing do not advance the tape's time. */
void snapshot_clock(const struct snapshot *snapshot, struct snapshot_moment *at);

static inline void snapshot_pause(const struct snapshot *snapshot, struct strbuf *out)
{
    if (snapshot->drain) snapshot->drain(snapshot->drain_arg, out);
}
