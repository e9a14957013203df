/* runtime.h - a plan made real: ledgers, memory of every tier, programs, constants and weights in their places; and another
 * plan in its stead when the line moves.
 *
 *     struct overhead overhead = runtime_overhead(device->facts.threads, device->comm);   // early
 *     struct runtime rt = {0};
 *     runtime_plan(&rt, device, &job, &corpus.sizes, overhead, NULL, &err);   // rt.plan stands; nothing is taken
 *     runtime_commit(&rt, &err);                            // every byte of it is
 *     runtime_weights(&rt, log, &err);                      // from model.path or the seed
 *     exec_loop(&rt.exec, micro, &err);                     // train, serve, ... as they like
 *     runtime_replan(&rt, budget, &moves, &err);            // between two optimizer steps
 *     runtime_close(&rt);
 *
 * Work that only goes forward (evaluation, reading a prompt, making tokens) is a family of tapes over the same kept bytes:
 * one builder, several sizes, each with a layout and programs of its own. A runtime may hold such a family alone
 * (runtime_plan_forward), or lend the arena of its training plan to members of one (runtime_forward).
 *
 * Nobody else commits arenas, reserves on a device's ledgers, opens the disk store or tunes. The runtime does not know what
 * its caller does with it.
 *
 * State of a runtime and the function behind each transition:
 *
 *     closed --runtime_plan | runtime_plan_forward--> planned --runtime_commit--> ready --runtime_close--> closed
 *                                                        |                        |  ^
 *                                  runtime_forward: the  |        runtime_replan: |  | another plan, or the old one
 *                                  arena may grow -------'                        |--'
 *                                                                                 '--> torn: neither; only runtime_close
 *
 * Invariants (runtime_check)
 *  1. When ready, the use of each tier's ledger is what the plan says of that tier (runtime_planned), to the byte.
 *  2. The arena holds the plan's layout and every member's; the disk store is there when the plan uses it, else not.
 *  3. Kept tensors lie where the plan has them; what lies above is dead between two passes. So a re-plan moves kept tensors
 *     and nothing else, and members of a family need not know of each other.
 *  4. Programs belong to the exec that compiled them: a re-plan frees its own, members of a family keep theirs until
 *     forward_close, which comes before the plan they stand on goes.
 *  5. Over budget is a value: PLIM_NO_FIT from planning, PLIM_NO_MEMORY from committing; after an error of planning or
 *     committing everything taken has been given back by runtime_close, after one of re-planning the old plan stands,
 *     unless `torn` says that it could not be put back.
 */
#ifndef PLIM_RUNTIME_RUNTIME_H
#define PLIM_RUNTIME_RUNTIME_H

#include "base/log.h"
#include "device/device.h"
#include "exec/exec.h"
#include "job/job.h"
#include "plan/plan.h"

enum runtime_state { RUNTIME_CLOSED, RUNTIME_PLANNED, RUNTIME_READY };

struct runtime {
    enum runtime_state state;
    bool torn; /* a re-plan failed and the old plan could not be put back: nothing here is worth saving */
    struct device *device;       /* borrowed */
    const struct job *job;       /* borrowed; NULL: forward only, without a job */
    struct model_spec spec;      /* whose constants and weights these are */
    struct plan_request request; /* budget: the present line; 0 (forward only): none */
    int64_t reserve;             /* of request.overhead, what may be used up where nothing fits otherwise */
    bool reserve_used;           /* by the plan */
    struct plan plan;            /* of a forward family: tape and layout of its first member, its totals */
    int64_t arena;               /* bytes of the arena: the plan's, or a larger member's */
    int64_t size;                /* of a forward family: the first member's */
    struct exec exec;            /* runs the plan */
    struct disk_store *disk;     /* NULL unless the plan uses it */
    bool op_by_op;               /* forward only: as the line says */
    const char *scratch; /* forward only: folder of the disk store, borrowed; NULL: a plan may not use it */
    int64_t overhead[TIER_COUNT];     /* on the ledgers now, beside tensors */
    int64_t planned_peak[TIER_COUNT]; /* the largest plan's so far */
};

/* Host bytes outside the arena: what the process has now and what a run still adds.
 *
 * The number is the same in every process of the same program, threads and ranks: code and data of the program and its
 * libraries, as their files say, the table's bytes for MPI, the team's stacks, and a fixed allowance for heap and stack.
 * So a plan and a run of one job count the same bytes.
 *
 * A process that is larger than this when it is asked (a GPU's driver, a model or a tokenizer that was read before) is
 * measured. Two such processes differ by some dozens of pages, so the measured number is stated in steps and with a reserve: a
 * plan alone counts all of it, a run (runtime_plan, runtime_plan_forward, runtime_replan) falls back on the reserve before
 * saying that nothing fits. A program that only hosts us gives numbers of its own. */
struct overhead {
    int64_t bytes;   /* reserve included */
    int64_t reserve; /* of them, beyond what this very process takes; 0: nothing was measured */
};
/* `threads` of the device's team; `comm` NULL: one rank. */
struct overhead runtime_overhead(int threads, const struct comm *comm);
/* Of a process that only goes forward: no reader, no monitor, nothing is saved. */
struct overhead runtime_engine_overhead(int threads);

/* What the planner is asked for a job on a device, here or default: job_request, with rows staged for a device that has its
 * own memory counted in, and job_check_budget. */
enum plim_status runtime_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                                 struct plan_request *out, struct plim_error *err);

/* The disk under the job's output.dir, as `plimsoll calibrate` has measured its file system (exec/disk_speed.h). False: nobody has,
 * and a modest disk is assumed. Neither plans nor runs measure: both count with the same numbers. */
bool runtime_recall_disk(const struct context *context, const struct job *job, struct device_facts *facts);

/* The plan of a request, which `plan` prints and a run executes: the fastest that fits; where none does, one that uses the process's
 * reserve up, or one with the smallest buffers of the disk tier, which facts have then. The loader, which request->overhead counts, may become smaller.
 * PLIM_NO_FIT: there is none, and `out` is the smallest. request->facts is `facts`. */
enum plim_status runtime_find_plan(const struct job *job, struct loader_sizes *loader,
                                   struct device_facts *facts, int64_t reserve, struct plan_request *request,
                                   struct plan *out, bool *reserve_used, struct plim_error *err);

/* The fastest plan of the job that fits, the same on every rank. The overhead is without the data loader, which
 * may become smaller. pins hold for this plan beside those of the job; NULL: none do. On an error rt->plan is empty or, with PLIM_NO_FIT, the smallest there is. */
enum plim_status runtime_plan(struct runtime *rt, struct device *device, const struct job *job,
                              struct loader_sizes *loader, struct overhead overhead, const struct knobs *pins,
                              struct plim_error *err);

/* exec_tune, as the job wants it: performance.cuda_graphs. */
enum plim_status runtime_tune(const struct runtime *rt, struct exec *exec, struct plim_error *err);

/* Makes the data loader small enough for a budget that comes later, because a loader that is open cannot shrink.
 * Nothing changes where it is small enough already, or where no plan fits that budget with any loader. */
enum plim_status runtime_fit_loader(const struct job *job, struct loader_sizes *loader,
                                    const struct device_facts *facts, struct overhead overhead,
                                    int64_t budget, struct plim_error *err);

/* --- forward-only families ------------------------------------------------------------------------------- */

struct forward_family {
    /* Makes the forward tape for so many rows or tokens in `out`, which is not initialised. */
    enum plim_status (*build)(void *arg, int64_t size, struct tape *out, struct plim_error *err);
    void *arg;
    bool adds; /* outputs are added to from pass to pass, so they live throughout */
};

struct forward_line {
    int64_t budget;           /* of the device, 0: none */
    int64_t host_budget;      /* of the host beside a device with its own memory, 0: none */
    struct overhead overhead; /* of the process */
    const char *scratch;      /* folder for what the plan has on disk; NULL: it has nothing there */
    bool op_by_op;            /* passes are not compiled into programs, where the device could */
};

/* The first member: the largest size, halved from `most` down to 1, that fits the line. PLIM_NO_FIT: not even 1 does;
 * rt->plan.total says what that takes. */
enum plim_status runtime_plan_forward(struct runtime *rt, struct device *device,
                                      const struct model_spec *spec, const struct forward_line *line,
                                      const struct forward_family *family, int64_t most,
                                      struct plim_error *err);

/* A further member. */
struct forward {
    int64_t size; /* 0: there is none */
    struct tape tape;
    struct layout layout;
    struct exec exec;
};

/* The largest size, halved from `most` down to `least`, laid out above the plan's kept tensors. Before runtime_commit it may
 * take the arena up to the line, and forward_start comes after the commit; in a ready runtime it has the arena there is,
 * and is started. PLIM_NO_FIT: none fits. */
enum plim_status runtime_forward(struct runtime *rt, const struct forward_family *family, int64_t most,
                                 int64_t least, struct forward *out, struct plim_error *err);
enum plim_status forward_start(struct runtime *rt, struct forward *forward, struct plim_error *err);
void forward_close(struct forward *forward); /* a zeroed one has nothing */

/* A ready family goes over to the plan of `next`, which is planned (runtime_plan_forward, runtime_forward), of the same
 * model and device, and empty afterwards. Kept tensors that both plans have at the same place keep what is in them.
 * Further members of the old plan must be closed; those of the new one are started afterwards. On an error the old plan
 * stands again, without its members, unless rt->torn. */
enum plim_status runtime_adopt(struct runtime *rt, struct runtime *next, struct plim_error *err);

/* --- committing -------------------------------------------------------------------------------------------- */

/* Ledgers, disk, host tier, arena, programs, constants. Kept tensors that are not parameters are zero afterwards. */
enum plim_status runtime_commit(struct runtime *rt, struct plim_error *err);

/* Parameters (and masters) of the job: from model.path, straight from the files to their final type and place, or fresh ones
 * from the seed (runtime/initial_weights.h). The log hears of tensors nobody uses; NULL: nobody does. */
enum plim_status runtime_weights(struct runtime *rt, const struct log *log, struct plim_error *err);

struct runtime_moves {
    double plan_seconds, move_seconds;
    int64_t moved_bytes; /* of kept tensors that changed their tier */
};

/* What a re-plan is asked for. */
struct replan {
    int64_t budget; /* the line from now on */
    int64_t
        micro_batch; /* 0: the fastest plan under it; else the present plan with micro-batches of so many rows */
    /* PLIM_NO_FIT rather than a plan that gives back little and makes steps much slower. */
    bool worthwhile;
    bool or_smallest; /* where nothing fits, the smallest plan there is: its bytes are the line then */
    /* Others want the machine's memory: the arena keeps what the next plan may need of it throughout, because what is given
     * back may be gone. Comparing plans then takes its memory beside it, some MiB above the line for as long as that lasts. */
    bool hold;
};

/* Another plan, with nothing under way that has to be kept but kept tensors. rt->exec is another one afterwards. */
enum plim_status runtime_replan_as(struct runtime *rt, const struct replan *wish, struct runtime_moves *out,
                                   struct plim_error *err);
/* Another budget. */
enum plim_status runtime_replan(struct runtime *rt, int64_t budget, struct runtime_moves *out,
                                struct plim_error *err);

void runtime_close(struct runtime *rt);

/* What the plan says that a tier's ledger carries: its tensors and what the process takes beside them. 0 for the host where
 * device memory is the process's own: one ledger, the device's, has both. */
int64_t runtime_planned(const struct runtime *rt, const struct plan *plan, enum tier tier);
int64_t runtime_ledger_peak(const struct runtime *rt, enum tier tier); /* 0 likewise */

/* PLIM_BUG names the invariant that does not hold. */
enum plim_status runtime_check(const struct runtime *rt, struct plim_error *err);

#endif
