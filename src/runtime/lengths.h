/* lengths.h - passes over rows of several lengths, one program each, inside the arena of one plan.
 *
 *     struct lengths lengths;
 *     lengths_open(&lengths, &runtime, &err);               // everything is compiled now
 *     lengths_cut(&cutting, lengths.shape, lengths.count, row_lengths, n);   // which program takes which rows
 *     exec_loop(lengths_exec(&lengths, cutting.cuts[i].program), i, &err);
 *     lengths_close(&lengths);                              // before a re-plan
 *
 * The plan is made for rows of data.max_length. Each length has its own tape with the plan's knobs and enough rows to
 * keep the device busy, but never more positions than the plan's. So a step computes little padding, and no pass
 * takes more memory than the plan. Parameters, gradients and the loss are at the plan's addresses: passes of all
 * lengths add to the same gradients, and the plan's update uses them.
 *
 * Invariants
 *  1. Program 0 is the plan's own. A program's arena is within the plan's, and so is what it has on lower tiers.
 *  2. Row lengths are those of lengths_ladder, so two plans of a job have the same ones.
 */
#pragma once

#include "runtime/runtime.h"

struct pass_shape {
    int64_t rows, time;
};

struct length_program {
    struct tape tape; /* all empty in program 0, which uses the plan's */
    struct layout layout;
    struct exec exec;
};

struct lengths {
    struct runtime *runtime;
    int count;                             /* 0: not open */
    struct pass_shape shape[PLAN_LENGTHS]; /* from long to short; the first two may be equally long */
    struct length_program at[PLAN_LENGTHS];
};

/* Row lengths from `time` down in steps of a quarter to a third, in multiples of 16. Returns their number. */
enum { LENGTHS_LADDER = PLAN_LENGTHS - 1 };
int lengths_ladder(int64_t time, int64_t out[LENGTHS_LADDER]);

/* Requires a ready runtime. If the request has one length, there is only program 0. */
enum plim_status lengths_open(struct lengths *lengths, struct runtime *runtime, struct plim_error *err);
void lengths_close(struct lengths *lengths);

/* The exec of a program. */
struct exec *lengths_exec(struct lengths *lengths, int program);

struct length_cut {
    int program;
    int64_t rows; /* rows it takes; the rest of the pass is padding */
};

/* A step divided into passes; has room for the number of rows given at opening. */
struct cutting {
    struct length_cut *cuts;
    int64_t count;
    int64_t *best; /* by row: fewest positions for it and the rows after it */
};

enum plim_status cutting_open(struct cutting *cutting, int64_t rows, struct plim_error *err);
void cutting_close(struct cutting *cutting);

/* Chooses passes of the given shapes, from long to short, that compute the fewest positions for n rows of descending
 * length. Unsorted rows are divided in their order if all shapes are equal. */
void lengths_cut(struct cutting *out, const struct pass_shape *shapes, int count, const int32_t *row_lengths,
                 int64_t n);
