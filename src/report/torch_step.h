/* torch_step.h - the step that a PyTorch program repeats, with an address for each of its allocations.
 *
 *     struct torch_step step;
 *     status = torch_step_find(&step, &lives, &limits, &err);   // PLIM_NOT_FOUND: nothing repeats
 *     torch_step_json(&step, device, &out);                     // the file that serves the step from one arena
 *     torch_step_release(&step);
 *
 * A training loop with fixed shapes asks for the same sizes in the same order in every step. The step is the longest stretch
 * of the trace that repeats at least once, cut to one period. It begins where the fewest bytes are alive, which for training is
 * after the gradients were dropped. An allocation's life is the longest that was seen in any repetition. One that is still alive
 * when the next step begins keeps its address to itself; one that lives for more than a step (or was never freed) is not packed
 * and has offset -1.
 */
#pragma once

#include "report/torch_pack.h"

struct torch_step_item {
    int64_t bytes, offset; /* offset -1: not packed */
    uint64_t stream;
    int life; /* allocations of the step, this one included, during which the address is taken */
};

struct torch_step {
    struct torch_step_item *items; /* in order */
    int count;
    int repeats;  /* how often the trace has the whole step */
    int unpacked; /* items with offset -1 */
    int64_t arena, lower_bound;
};

/* PLIM_NOT_FOUND: nothing repeats, less than 60 % of the trace does, or only a loop inside a step. PLIM_NO_MEMORY. */
enum plim_status torch_step_find(struct torch_step *out, const struct torch_lives *lives,
                                 const struct torch_pack_limits *limits, struct plim_error *err);
void torch_step_release(struct torch_step *step);

/* The format "plimsoll-step", version 1 (docs/pytorch.md). */
void torch_step_json(const struct torch_step *step, int device, struct strbuf *out);
