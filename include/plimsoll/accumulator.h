/* plimsoll/accumulator.h - gradient accumulation as arithmetic: when to step, and by what to scale.
 *
 *     struct plim_accumulator_options options = {.size = sizeof options, .effective_batch = 64, .micro_batch = 8};
 *     plim_accumulator_open(context, &options, &acc, &err);
 *     for (each micro-batch) {
 *         struct plim_micro_step micro = {.size = sizeof micro, .tokens = tokens, .last = at_end};
 *         plim_accumulator_next(acc, &micro, &err);        // micro.loss_scale: multiply the summed loss by it
 *         ... backward of loss_sum * micro.loss_scale; gradients add up ...
 *         if (micro.step_due) {
 *             struct plim_window window = {.size = sizeof window, .grad_norm = norm, .overflow = !finite};
 *             plim_accumulator_finish(acc, &window, &err); // window.grad_scale, window.take: apply or skip
 *         }
 *     }
 *
 * The accumulator holds numbers, not gradients; it works with any framework. A window is the micro-batches of one optimizer
 * step. Its gradient is the sum over tokens divided by the tokens of the whole window, also where the last window is
 * shorter and where micro-batches have different numbers of tokens. The loss scale follows the rules of PyTorch's
 * GradScaler: it halves when gradients overflow and doubles after growth_interval good steps, up to 2^24.
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
    int64_t ranks;           /* data-parallel processes; 0: one */
    int ranks_average;       /* gradients are averaged over the ranks, as by PyTorch's DDP; 0: they are summed */
    double clip_norm;        /* maximum gradient norm; 0: no clipping */
    int loss_scaling;        /* dynamic loss scale, for fp16 */
    double initial_scale;    /* 0: 65536 */
    int64_t growth_interval; /* steps without overflow before the scale doubles; 0: 2000 */
    int64_t clear_every;     /* optimizer steps between two recommendations to clear caches; 0: 50 */
};

/* One micro-batch. */
struct plim_micro_step {
    size_t size;
    int64_t tokens; /* in: targets of this micro-batch; 0 in all of a window: its micro-batches weigh alike */
    int last;       /* in: no micro-batch follows; the window ends here */
    int step_due;   /* out: this micro-batch completes the window */
    int64_t index;  /* out: its number in the window, from 0 */
    /* out: multiply the sum of the token losses, or without tokens the mean loss, by this before backward. It is the loss
     * scale; the division by the window's tokens or micro-batches is in the window's grad_scale. */
    double loss_scale;
    int64_t window_tokens; /* out: tokens of the window so far, this micro-batch included */
};

/* The end of a window. */
struct plim_window {
    size_t size;
    double grad_norm;  /* in: of the accumulated gradients as they are; below 0: unknown, no clipping */
    int overflow;      /* in: a gradient is infinite or NaN */
    int take;          /* out: 0: skip this optimizer step */
    int64_t tokens;    /* in, with ranks: sum of window_tokens over all of them; 0: all have as many as this one */
    double grad_scale; /* out: multiply gradients by this: unscaling, mean, clipping as in PyTorch */
    double true_norm;  /* out: of the mean gradient before clipping; below 0: unknown */
    double next_scale; /* out: the loss scale from now on */
    int64_t steps, skipped; /* out: optimizer steps so far */
    int clear_cache;   /* out: a good moment to clear caches */
};

/* PLIM_BAD_INPUT: an effective batch that is not a multiple of micro_batch x ranks; the error names the nearest that are. */
PLIM_API enum plim_status plim_accumulator_open(struct plim_context *context,
                                                const struct plim_accumulator_options *options,
                                                struct plim_accumulator **out, struct plim_error *err);
PLIM_API void plim_accumulator_close(struct plim_accumulator *accumulator);
PLIM_API int64_t plim_accumulator_steps(const struct plim_accumulator *accumulator); /* micro-batches per step */
PLIM_API enum plim_status plim_accumulator_next(struct plim_accumulator *accumulator,
                                                struct plim_micro_step *micro, struct plim_error *err);
/* Ends the window, also before step_due: what was accumulated so far is then the whole of it. */
PLIM_API enum plim_status plim_accumulator_finish(struct plim_accumulator *accumulator,
                                                  struct plim_window *window, struct plim_error *err);
/* State for checkpoints: loss scale and counters as JSON, for plim_free. A window under way is not part of it: save after
 * plim_accumulator_finish. Restoring begins a new window. */
PLIM_API char *plim_accumulator_state(const struct plim_accumulator *accumulator);
PLIM_API enum plim_status plim_accumulator_restore(struct plim_accumulator *accumulator, const char *state,
                                                   struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
