/* engine_size.h - the numbers of a decoder's plan, shared by the three files that make one.
 *
 * engine_tape.c builds the tape of one step, engine_offer.c finds the largest offer (plan/offer.h) that fits and plans its
 * members, engine_plan.c commits the plan and moves it to another budget.
 */
#pragma once

#include "serve/engine_part.h"

struct sizes {
    struct offer offer;
    int64_t seen;      /* maximum positions of one request in the pool: its context, or the window */
    int64_t blocks;    /* of the pool */
    int64_t penalised; /* tokens that the penalties of one step refer to, if the device draws */
    bool e4m3;         /* keys and values in 8 bits are e4m3 numbers */
};
/* Sizes of an offer with the smallest pool that keeps its promise. */
struct sizes sizes_of(const struct engine *e, const struct offer *offer);
struct sizes sizes_now(const struct engine *e); /* of the current plan */

/* engine_tape.c */
struct engine_tape {
    const struct engine *e;
    struct model_flat size;
    int64_t share; /* of OFFLOAD_SHARES parts of the parameters that stream */
};
/* The `build` of a forward family; arg is a struct engine_tape. */
enum plim_status engine_tape_build(void *arg, int64_t unused, struct tape *out, struct plim_error *err);
/* Chooses the weights that stay in quantised blocks. A device without kernels for them dequantises all. */
enum plim_status engine_choose_weights(struct engine *e, struct plim_error *err);

/* engine_offer.c */
/* The sizes of its members, the largest last. `whole`: programs take long to compile, so there are few. */
void family_list(struct family *f, const struct sizes *s, bool whole);
/* runtime_measure of all members. */
enum plim_status family_measure(const struct engine *e, const struct family *f, bool *again,
                                struct plim_error *err);
/* Plans every member. budget 0: no limit. */
enum plim_status family_plan(const struct engine *e, const struct sizes *s, int64_t budget, struct family *f,
                             struct plim_error *err);
/* Host bytes outside the arena with these sizes. */
int64_t engine_overhead(const struct engine *e, const struct sizes *s);
int64_t engine_block_bytes(const struct engine *e, bool coded);

/* engine_plan.c: fills e->plan from the current sizes. */
void engine_note_plan(struct engine *e, const struct sizes *s);
