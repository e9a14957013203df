/* scaler.h - loss scaling for fp16: halve when gradients overflow, double after enough good steps.
 *
 * With fp32 and bf16 the scale is 1 and never changes; with a window of 0 it keeps its first value. A checkpoint stores the
 * state, three numbers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct scaler_options {
    double first, least;
    int64_t window;     /* good steps before the scale doubles; 0: it never does */
    int64_t hysteresis; /* halve at this overflow since the last doubling */
};

struct scaler {
    bool active;
    double scale;
    int64_t good_steps, overflows; /* overflows: since it last doubled */
    struct scaler_options options;
};

static inline void scaler_init(struct scaler *s, bool active, const struct scaler_options *options)
{
    *s = (struct scaler){.active = active, .scale = active ? options->first : 1.0, .options = *options};
}

/* Call it after an optimizer step; `finite`: all gradients were finite. */
static inline void scaler_update(struct scaler *s, bool finite)
{
    if (!s->active || !s->options.window) return;
    if (!finite) {
        double half = s->scale / 2;
        if (++s->overflows >= s->options.hysteresis)
            s->scale = half > s->options.least ? half : s->options.least;
        s->good_steps = 0;
    } else if (++s->good_steps >= s->options.window) {
        if (s->scale < 16777216.0) s->scale *= 2;
        s->good_steps = s->overflows = 0;
    }
}
