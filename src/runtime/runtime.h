/* runtime.h - executes a plan's decisions: ledgers, memory of every tier, programs, constants and weights; and
 * replaces the plan when the budget changes.
 *
 *     struct overhead overhead = runtime_overhead(context, device->facts.threads, device->comm);   // early
 *     struct runtime rt = {0};
 *     runtime_plan(&rt, device, &job, &corpus.sizes, overhead, NULL, &err);   // makes rt.plan; allocates nothing
 *     runtime_commit(&rt, &err);                            // allocates all of it
 *     runtime_weights(&rt, log, &err);                      // from model.path or the seed
 *     exec_loop(&rt.exec, micro, &err);                     // train, serve, ...
 *     runtime_replan(&rt, budget, &moves, &err);            // between two optimizer steps
 *     runtime_close(&rt);
 *
 * Forward-only work (evaluation, reading a prompt, generating tokens) is a family of tapes over the same kept bytes:
 * one builder, several sizes, each with its own layout and programs. A runtime may hold only such a family
 * (runtime_plan_forward), or lend the arena of its training plan to its members (runtime_forward).
 *
 * No other code commits arenas, reserves on a device's ledgers, opens the disk store or tunes. The runtime does not
 * know what its caller does with it.
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
 *  1. When ready, each tier's ledger shows exactly the bytes that the plan expects there (runtime_planned).
 *  2. The arena holds the plan's layout and every member's; the disk store exists exactly when the plan uses it.
 *  3. Kept tensors are where the plan puts them; the memory above them is unused between two passes. So a re-plan moves
 *     only kept tensors, and members of a family need not know of each other.
 *  4. Programs belong to the exec that compiled them: a re-plan frees its own; members of a family keep theirs until
 *     forward_close, which must come before their plan is replaced.
 *  5. Exceeding the budget is an ordinary error: PLIM_NO_FIT from planning, PLIM_NO_MEMORY from committing. After an error
 *     of planning or committing, runtime_close releases everything. After one of re-planning the old plan is in effect,
 *     unless `torn` says that it could not be restored.
 */
#pragma once

#include "base/log.h"
#include "device/device.h"
#include "exec/exec.h"
#include "job/job.h"
#include "plan/plan.h"

enum runtime_state { RUNTIME_CLOSED, RUNTIME_PLANNED, RUNTIME_READY };

struct runtime {
    enum runtime_state state;
    /* The contents are lost: a re-plan failed and the old plan could not be restored, or pending updates were made in part. */
    bool torn;
    struct device *device;       /* borrowed */
    const struct job *job;       /* borrowed; NULL: forward only, without a job */
    struct model_spec spec;      /* whose constants and weights these are */
    struct plan_request request; /* budget: the current one; 0 (forward only): none */
    int64_t reserve;             /* part of request.overhead that may be used when nothing fits otherwise */
    bool reserve_used;           /* by the plan */
    struct plan plan;        /* for a forward family: tape and layout of its first member, and its totals */
    int64_t arena;           /* bytes of the arena: the plan's, or a larger member's */
    int64_t size;            /* for a forward family: the first member's */
    struct exec exec;        /* runs the plan */
    struct disk_store *disk; /* NULL unless the plan uses it */
    bool op_by_op;           /* forward only: programs are not compiled */
    /* Forward only: folder of the disk store, borrowed; NULL: the plan may not use a disk. */
    const char *scratch;
    int64_t overhead[TIER_COUNT];     /* on the ledgers now, in addition to tensors */
    int64_t planned_peak[TIER_COUNT]; /* the largest plan's so far */
};

/* Host bytes outside the arena: the process's present memory, plus what a run will add. The number is the same in
 * every process with the same program, threads and ranks: code and data of the program and its libraries from their
 * files, MPI's bytes from a table, the team's stacks, and a fixed allowance for heap and stack. So `plan` and `train`
 * count the same bytes for one job. A process that is already larger (a GPU's driver, a model or a tokenizer was
 * loaded) is measured instead. Two such processes differ by some dozens of pages, so the measured number is rounded
 * up and includes a reserve: a plan counts all of it, and a run (runtime_plan, runtime_plan_forward, runtime_replan)
 * uses the reserve before it reports that nothing fits. A process that is not ours (context.h) is not measured: its
 * context says how many bytes count. */
struct overhead {
    int64_t bytes;   /* reserve included */
    int64_t reserve; /* part of bytes beyond this process's present memory; 0: nothing was measured */
};
/* `threads` of the device's team; `comm` NULL: one rank. */
struct overhead runtime_overhead(const struct context *context, int threads, const struct comm *comm);
/* Overhead of a process that only runs forward: no loader, no monitor, no checkpoints. */
struct overhead runtime_engine_overhead(const struct context *context, int threads);

/* Builds the planner's request for a job on a device, real or preset: job_request, plus the staged rows of a device
 * that has its own memory, plus job_check_budget. */
enum plim_status runtime_request(const struct job *job, const struct device_facts *facts, int64_t overhead,
                                 struct plan_request *out, struct plim_error *err);

/* Sets the speed of the disk under the job's output.dir, as measured by `plimsoll calibrate` (exec/disk_speed.h).
 * Returns false if it was never measured; a modest disk is then assumed. Neither plans nor runs measure it, so both
 * use the same numbers. */
bool runtime_recall_disk(const struct context *context, const struct job *job, struct device_facts *facts);

/* Makes the plan that `plan` prints and a run executes: the fastest that fits. If none does, it tries the process's
 * reserve, then the smallest buffers of the disk tier, which it sets in facts. It may shrink the loader, which
 * request->overhead counts. PLIM_NO_FIT: nothing fits, and `out` is the smallest plan. request->facts is `facts`. */
enum plim_status runtime_find_plan(const struct job *job, struct loader_sizes *loader,
                                   struct device_facts *facts, int64_t reserve, struct plan_request *request,
                                   struct plan *out, bool *reserve_used, struct plim_error *err);

/* Programs of a device that places temporaries itself (facts.measure) may need more than the plan has for them. Compiles them; *again:
 * they need more than was known, facts->beyond_bytes has it now, and the caller must plan again. */
enum plim_status runtime_measure(struct device_facts *facts, const struct tape *tape,
                                 const struct layout *layout, int64_t arena, bool *again,
                                 struct plim_error *err);

/* Makes the job's fastest plan that fits, equal on every rank. The overhead excludes the data loader, which may
 * shrink. `pins` apply to this plan in addition to the job's; NULL: none. On an error rt->plan is empty or, with
 * PLIM_NO_FIT, the smallest plan. */
enum plim_status runtime_plan(struct runtime *rt, struct device *device, const struct job *job,
                              struct loader_sizes *loader, struct overhead overhead, const struct knobs *pins,
                              struct plim_error *err);

/* exec_tune according to performance.cuda_graphs. */
enum plim_status runtime_tune(const struct runtime *rt, struct exec *exec, struct plim_error *err);

/* Shrinks the data loader for a later budget, because an open loader cannot shrink. Does nothing if it is small
 * enough, or if no plan fits that budget with any loader. */
enum plim_status runtime_fit_loader(const struct job *job, struct loader_sizes *loader,
                                    const struct device_facts *facts, struct overhead overhead,
                                    int64_t budget, struct plim_error *err);

/* --- forward-only families ------------------------------------------------------------------------------- */

struct forward_family {
    /* Makes the forward tape for this many rows or tokens in `out`, which is not initialised. */
    enum plim_status (*build)(void *arg, int64_t size, struct tape *out, struct plim_error *err);
    void *arg;
    bool adds; /* outputs accumulate over passes, so they live throughout */
};

struct forward_line {
    int64_t budget;           /* of the device; 0: none */
    int64_t host_budget;      /* of the host, for a device with its own memory; 0: none */
    struct overhead overhead; /* of the process */
    int programs;             /* that will be recorded; 0: few */
    const char *scratch;      /* folder for tensors on disk; NULL: no disk */
    bool op_by_op;            /* passes run op by op even if the device can compile programs */
};

/* Plans the first member: the largest size, halved from `most` down to 1, that fits the budget. PLIM_NO_FIT: not even
 * 1 fits; rt->plan.total is its total. */
enum plim_status runtime_plan_forward(struct runtime *rt, struct device *device,
                                      const struct model_spec *spec, const struct forward_line *line,
                                      const struct forward_family *family, int64_t most,
                                      struct plim_error *err);

/* A further member. */
struct forward {
    int64_t size; /* 0: unused */
    struct tape tape;
    struct layout layout;
    struct exec exec;
};

/* Plans a member: the largest size, halved from `most` down to `least`, above the plan's kept tensors. Before
 * runtime_commit it may grow the arena up to the budget, and forward_start must follow the commit. In a ready runtime
 * it uses the existing arena and is started. PLIM_NO_FIT: none fits. */
enum plim_status runtime_forward(struct runtime *rt, const struct forward_family *family, int64_t most,
                                 int64_t least, struct forward *out, struct plim_error *err);
enum plim_status forward_start(struct runtime *rt, struct forward *forward, struct plim_error *err);
void forward_close(struct forward *forward); /* a zeroed one has nothing */

/* Switches a ready family to the plan of `next`, which must be planned (runtime_plan_forward, runtime_forward) for
 * the same model and device, and is empty afterwards. Kept tensors at the same place in both plans keep their
 * contents. Close further members of the old plan before; start those of the new plan afterwards. On an error the old
 * plan is restored without its members, unless rt->torn. */
enum plim_status runtime_adopt(struct runtime *rt, struct runtime *next, struct plim_error *err);

/* --- committing -------------------------------------------------------------------------------------------- */

/* Reserves, commits and compiles: ledgers, disk, host tier, arena, programs, constants. Kept tensors other than
 * parameters are zero afterwards. */
enum plim_status runtime_commit(struct runtime *rt, struct plim_error *err);

/* Loads the job's parameters and masters from model.path, directly into their final type and place, or initialises
 * them from the seed (runtime/initial_weights.h). The log names unused tensors; it may be NULL. */
enum plim_status runtime_weights(struct runtime *rt, const struct log *log, struct plim_error *err);

/* The parameters of the job's adapter, after those of the model: from adapter.path, or initialised. */
enum plim_status runtime_adapter(struct runtime *rt, struct plim_error *err);

struct runtime_moves {
    double plan_seconds, move_seconds;
    int64_t moved_bytes; /* of kept tensors that changed their tier */
};

/* A request for a new plan. */
struct replan {
    int64_t budget; /* the new budget */
    /* 0: the fastest plan under the budget; else the present plan with micro-batches of this many rows. */
    int64_t micro_batch;
    /* Return PLIM_NO_FIT instead of a plan that frees little memory and makes steps much slower. */
    bool worthwhile;
    bool or_smallest; /* if nothing fits, use the smallest plan; its bytes become the budget */
    /* Other processes need memory: the arena keeps what the next plan may need, because released memory may not come
     * back. Comparing plans then takes some MiB above the budget while it lasts. */
    bool hold;
};

/* Replaces the plan; only kept tensors are preserved. rt->exec is a new one afterwards. */
enum plim_status runtime_replan_as(struct runtime *rt, const struct replan *wish, struct runtime_moves *out,
                                   struct plim_error *err);
/* Re-plans for another budget. */
enum plim_status runtime_replan(struct runtime *rt, int64_t budget, struct runtime_moves *out,
                                struct plim_error *err);

void runtime_close(struct runtime *rt);

/* Bytes that the plan expects on a tier's ledger: its tensors plus the process's overhead. Returns 0 for the host
 * when device memory is the process's own: the device's ledger carries both. */
int64_t runtime_planned(const struct runtime *rt, const struct plan *plan, enum tier tier);
int64_t runtime_ledger_peak(const struct runtime *rt, enum tier tier); /* 0 likewise */

/* PLIM_BUG names the invariant that does not hold. */
enum plim_status runtime_check(const struct runtime *rt, struct plim_error *err);
