/* snapshot.h - where every byte of a plan lives and when, and what each op takes, for programs that draw it.
 *
 *     struct snapshot s;
 *     snapshot_init(&s, &plan, &facts, NULL, &err);                  // NULL: of a plan; else of a run's step
 *     snapshot_save(&s, SNAPSHOT_TRACE, "plan.trace.json", &err);    // or snapshot_json into an object of one's own
 *     snapshot_release(&s);
 *
 * Three forms (docs/watching.md has their fields):
 *
 *     SNAPSHOT_JSON         our own: ops and tensors, by position in the tape
 *     SNAPSHOT_TRACE        Trace Event Format, for Perfetto and chrome://tracing: ops and copies as lanes, tensors as
 *                           address x time, live bytes as counters; what was planned beside what was measured
 *     SNAPSHOT_MEMORY_VIZ   what torch.cuda.memory._dump_snapshot writes, for PyTorch's memory_viz
 *
 * Time is that of one micro-batch and then the update. Planned seconds are the planner's clock (plan/cost.h); measured ones
 * come with the run. A snapshot borrows plan, facts and run. It takes some dozens of bytes for each op and tensor, and a
 * file is written piece by piece, so that a run may take one beside its plan.
 */
#ifndef PLIM_REPORT_SNAPSHOT_H
#define PLIM_REPORT_SNAPSHOT_H

#include "base/json.h"
#include "plan/cost.h"
#include "plan/plan.h"

enum snapshot_format { SNAPSHOT_JSON, SNAPSHOT_TRACE, SNAPSHOT_MEMORY_VIZ, SNAPSHOT_FORMATS };

/* "json", "trace", "memory_viz", and how names of such files end: ".json", ".trace.json", ".pickle". */
const char *snapshot_format_name(enum snapshot_format format);
const char *snapshot_format_ending(enum snapshot_format format);
/* PLIM_BAD_INPUT names the formats there are. */
enum plim_status snapshot_format_parse(const char *text, enum snapshot_format *out, struct plim_error *err);
/* Format for a file name: the one with the longest matching extension, else JSON. */
enum snapshot_format snapshot_format_of(const char *path);

enum { SNAPSHOT_PATH = 512 };
/* The file of one of several ranks: "step.rank-3.trace.json" of "step.trace.json"; rank 0's is the path itself. */
void snapshot_rank_path(const char *path, int rank, char out[SNAPSHOT_PATH]);

/* Options in a message to a run or a server: "format" (default JSON) and "file" (default empty). PLIM_BAD_INPUT: a
 * value is invalid. */
struct snapshot_wish {
    enum snapshot_format format;
    char file[SNAPSHOT_PATH];
};
enum plim_status snapshot_wish_read(const struct node *message, struct snapshot_wish *out,
                                    struct plim_error *err);

/* A pass over one micro-batch, or the update, as it ran. */
struct snapshot_pass {
    double start, seconds; /* since the step began */
    bool update;
    int64_t used; /* bytes of the device, or of the process, when it was done */
};

/* A step of a run, measured. Of a server there is neither loss nor end. */
struct snapshot_run {
    const char *job; /* or a model */
    int64_t step, steps;
    double loss, lr, tokens_per_s;
    double seconds;      /* of the step that was measured */
    double last_seconds; /* of the one before it, which was not; 0: there was none */
    int64_t used;        /* bytes when the step began */
    /* By op, of one micro-batch and the update, each run alone: seconds since the step began, which go on in the order of
     * the tape; seconds < 0: not measured. NULL: none was. */
    const struct op_span *ops;
    const struct snapshot_pass *pass;
    int passes;
    /* More members of the JSON form; NULL: there are none. */
    void (*more)(void *arg, struct json_writer *w);
    void *arg;
};

/* Bytes that one tensor, or one op's scratch, has for a while. What takes over another's bytes is a block of its own from the
 * op on that does so; no two blocks of a tier have the same byte at the same op. */
struct snapshot_block {
    int tensor; /* -1: scratch of `op` */
    int op;     /* whose scratch it is; else the one that first touches it */
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
    bool trains;          /* the tape updates parameters; where it does not, a pass is a step */
    struct op_span *span; /* by op, planned; the update's follow the loop's */
    double seconds;       /* of both */
    struct snapshot_block *block;
    int blocks;
    /* Called between two items, when set: may take text out of the buffer. */
    void (*drain)(void *arg, struct strbuf *out);
    void *drain_arg;
};

enum plim_status snapshot_init(struct snapshot *snapshot, const struct plan *plan,
                               const struct device_facts *facts, const struct snapshot_run *run,
                               struct plim_error *err);
void snapshot_release(struct snapshot *snapshot);

/* The file, whole or not at all. */
enum plim_status snapshot_save(struct snapshot *snapshot, enum snapshot_format format, const char *path,
                               struct plim_error *err);

/* Members of an object that is open. */
void snapshot_json(const struct snapshot *snapshot, struct json_writer *w);
/* Whole documents. Where there is no memory for the order of blocks, out->failed is set. */
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

/* Seconds between which the tape is at an op. A lifetime goes from its first op's begin to its last op's end. */
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

#endif
