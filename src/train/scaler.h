/* scaler.h - dynamic loss scaling for fp16: halve when a gradient overflows, double after a good while.
 *
 * With fp32 and bf16 the scale is 1 and never moves. The state is two numbers that a checkpoint keeps. */
#ifndef PLIM_TRAIN_SCALER_H
#define PLIM_TRAIN_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct scaler {
    bool active;
    double scale;
    int64_t good_steps, window;
};

static inline void scaler_init(struct scaler *s, bool active, double first, int64_t window)
{
    *s = (struct scaler){active, active ? first : 1.0, 0, window};
}

/* After an optimizer step: `finite` says whether all gradients were. */
static inline void scaler_update(struct scaler *s, bool finite)
{
    if (!s->active) return;
    if (!finite) {
        s->scale = s->scale > 1 ? s->scale / 2 : 1;
        s->good_steps = 0;
    } else if (++s->good_steps >= s->window) {
        if (s->scale < 16777216.0) s->scale *= 2;
        s->good_steps = 0;
    }
}

#endif
