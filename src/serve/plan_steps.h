/* plan_steps.h - parts of planning that decoders, encoder-decoders and encoders share.
 *
 *     plan_tape(&spec, &shape, precision, &quantisation, NULL, &tape, &err);     // one pass
 *     plan_refuse(&(struct no_fit){.model = dir, .what = "parameters", .takes = n, .has = budget, .budget = true}, &err);
 */
#pragma once

#include "model/adapter_slots.h"
#include "model/model.h"
#include "model/quantise.h"
#include "tape/pass.h"

/* Builds a forward pass of this shape with the model's weights as they are stored; `out` need not be
 * initialised. The same input gives the same bits on every run. slots: for adapters of a flat shape; NULL: none. */
enum plim_status plan_tape(const struct model_spec *spec, const struct model_shape *shape,
                           enum precision precision, const struct quantisation *quantisation,
                           const struct adapter_slots *slots, struct tape *out, struct plim_error *err);

struct no_fit {
    const char *model, *what;
    const char *advice; /* in addition to a larger budget; NULL: none */
    int64_t takes, has; /* bytes */
    bool budget;        /* `has` is the budget, not the device's memory */
    bool host;          /* host memory next to a device with its own memory */
};

/* PLIM_NO_FIT names the part that needs the bytes, how many are missing, and a remedy. */
enum plim_status plan_refuse(const struct no_fit *n, struct plim_error *err);
