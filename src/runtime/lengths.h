/* lengths.h - passes over rows of several lengths, one program each, inside the arena of one plan.
 *
 *     struct lengths lengths;
 *     lengths_open(&lengths, &runtime, &err);               // everything is compiled now
 *     lengths_cut(&lengths, row_lengths, n, cuts, &count);  // longest first; which program takes which rows
 *     exec_loop(lengths_exec(&lengths, cuts[i].program), i, &err);
 *     lengths_close(&lengths);                              // before a re-plan
 *
 * The plan is made for rows of data.max_length. Rows of each length have a tape of their own with the plan's knobs and so
 * many rows that a pass keeps the device busy, but never more positions than the plan's has: a step is then cut close to
 * the rows it has, and no pass takes more than the plan. Parameters, gradients and the loss lie where the plan has them:
 * passes of several lengths add to the same gradients, and the plan's own update takes them.
 *
 * Invariants
 *  1. Program 0 is the plan's own. A program's arena is within the plan's, and so is what it has on lower tiers.
 *  2. Row lengths are those of lengths_ladder, so two plans of a job have the same ones.
 */
#ifndef PLIM_RUNTIME_LENGTHS_H
#define PLIM_RUNTIME_LENGTHS_H

#include "runtime/runtime.h"

struct length_program {
    int64_t rows, time; /* of a pass */
    struct tape tape;   /* the rest: empty in program 0, whose are the plan's */
    struct layout layout;
    struct exec exec;
};

struct lengths {
    struct runtime *runtime;
    int count;                               /* 0: not open */
    struct length_program at[PLAN_LENGTHS]; /* from long to short; the first two may be equally long */
};

/* Row lengths from `time` down, in steps of a quarter to a third, in multiples of 16; how many. */
enum { LENGTHS_LADDER = PLAN_LENGTHS - 1 };
int lengths_ladder(int64_t time, int64_t out[LENGTHS_LADDER]);

/* In a ready runtime. Where the request has one length, program 0 alone. */
enum plim_status lengths_open(struct lengths *lengths, struct runtime *runtime, struct plim_error *err);
void lengths_close(struct lengths *lengths);

/* The exec of a program. */
struct exec *lengths_exec(struct lengths *lengths, int program);

struct length_cut {
    int program;
    int64_t rows; /* that it takes; the rest of the pass is blank */
};

/* Passes for n rows whose lengths fall: those that compute the fewest positions, and of equals the fewest passes. At most n
 * cuts; `best` is room for n + 1 numbers. */
void lengths_cut(const struct lengths *lengths, const int32_t *row_lengths, int64_t n, struct length_cut *cuts,
                 int64_t *count, int64_t *best);

#endif
