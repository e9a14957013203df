/* plimsoll/accumulator.h - gradient accumulation as arithmetic: when to step, and by what to scale.
 *
 *     struct plim_accumulator_options options = {.size = sizeof options, .effective_batch = 64, .micro_batch = 8};
 *     plim_accumulator_open(context, &options, &acc, &err);
 *     for (each micro-batch) {
 *         struct plim_micro_step micro = {.size = sizeof micro, .tokens = tokens, .last = at_end};
 *         plim_accumulator_next(acc, &micro, &err);        // micro.loss_scale: multiply the summed loss by it
 *         ... backward of loss_sum * micro.loss_scale ...
 *         if (micro.step_due) {
 *             struct plim_window window = {.size = sizeof window, .grad_norm = norm, .finite = finite};
 *             plim_accumulator_finish(acc, &window, &err); // window.grad_scale, window.take: apply or skip
 *         }
 *     }
 *
 * The accumulator holds numbers, not gradients; it works with any framework. A window is the micro-batches of one optimizer
 * step. Its gradient is the sum over tokens divided by the tokens of the whole window, also where the last window is
 * shorter and where micro-batches have different numbers of tokens.
 */
#ifndef PLIMSOLL_ACCUMULATOR_H
#define PLIMSOLL_ACCUMULATOR_H

#include <plimsoll/context.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_accumulator;

struct plim_accumulator_options {
    size_t size;
    int64_t steps;           /* micro-batches per optimizer step; 0: effective_batch / (micro_batch * ranks) */
    int64_t effective_batch; /* rows per optimizer step */
    int64_t micro_batch;     /* rows per micro-batch */
    int64_t ranks;           /* 0: one */
    double clip_norm;        /* maximum gradient norm; 0: no clipping */
    int loss_scaling;        /* dynamic loss scale, for fp16 */
    double initial_scale;    /* 0: 65536 */
    int64_t growth_interval; /* steps without overflow before the scale doubles; 0: 2000 */
};

/* One micro-batch. */
struct plim_micro_step {
    size_t size;
    int64_t tokens; /* in: targets of this micro-batch; 0: rows count alike */
    int last;       /* in: no micro-batch follows; the window ends here */
    /* out: multiply the sum of the token losses (tokens > 0) or the mean loss (tokens == 0) by this before backward. It
     * holds the loss scale; the division by the window's tokens is in the window's grad_scale, when they are known. */
    double loss_scale;
    int step_due;   /* out: this micro-batch completes the window */
    int64_t index;  /* out: its number in the window, from 0 */
};

/* The end of a window. */
struct plim_window {
    size_t size;
    double grad_norm;  /* in: of the accumulated gradients as they are; below 0: unknown, no clipping */
    int finite;        /* in: all gradients are finite */
    double grad_scale; /* out: multiply gradients by this: unscaling, mean over tokens, clipping */
    double true_norm;  /* out: of the gradient before clipping */
    int take;          /* out: 0: skip this optimizer step */
    int clear_cache;   /* out: a good moment to clear caches (every 50th step) */
    int64_t steps, skipped; /* out: optimizer steps so far */
};

PLIM_API enum plim_status plim_accumulator_open(struct plim_context *context,
                                                const struct plim_accumulator_options *options,
                                                struct plim_accumulator **out, struct plim_error *err);
PLIM_API void plim_accumulator_close(struct plim_accumulator *accumulator);
PLIM_API int64_t plim_accumulator_steps(const struct plim_accumulator *accumulator); /* micro-batches per step */
PLIM_API enum plim_status plim_accumulator_next(struct plim_accumulator *accumulator,
                                                struct plim_micro_step *micro, struct plim_error *err);
PLIM_API enum plim_status plim_accumulator_finish(struct plim_accumulator *accumulator,
                                                  struct plim_window *window, struct plim_error *err);
/* State for checkpoints: loss scale and counters as JSON. */
PLIM_API char *plim_accumulator_state(const struct plim_accumulator *accumulator);
PLIM_API enum plim_status plim_accumulator_restore(struct plim_accumulator *accumulator, const char *state,
                                                   struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
