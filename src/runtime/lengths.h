/* lengths.h - passes over rows of several lengths, one program each, inside the arena of one plan.
 *
 *     struct lengths lengths;
 *     lengths_open(&lengths, &runtime, &err);               // everything is compiled now
 *     lengths_cut(&cutting, lengths.shape, lengths.count, row_lengths, n);   // which program takes which rows
 *     exec_loop(lengths_exec(&lengths, cutting.cuts[i].program), i, &err);
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

struct pass_shape {
    int64_t rows, time;
};

struct length_program {
    struct tape tape; /* all empty in program 0, whose are the plan's */
    struct layout layout;
    struct exec exec;
};

struct lengths {
    struct runtime *runtime;
    int count;                             /* 0: not open */
    struct pass_shape shape[PLAN_LENGTHS]; /* from long to short; the first two may be equally long */
    struct length_program at[PLAN_LENGTHS];
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

/* A step cut into passes; room for as many rows as it was opened for. */
struct cutting {
    struct length_cut *cuts;
    int64_t count;
    int64_t *best; /* by row: positions that it and those after it take at least */
};

enum plim_status cutting_open(struct cutting *cutting, int64_t rows, struct plim_error *err);
void cutting_close(struct cutting *cutting);

/* Passes of the given shapes, from long to short, for n rows whose lengths fall: those that compute the fewest positions.
 * Rows that are not sorted are cut in their order, where the shapes are one. */
void lengths_cut(struct cutting *out, const struct pass_shape *shapes, int count, const int32_t *row_lengths,
                 int64_t n);

#endif
