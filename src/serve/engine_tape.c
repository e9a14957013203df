/* engine_tape.c - the tape of one step of a decoder. See engine_size.h. */
#include "runtime/load.h"
#include "serve/engine_size.h"
#include "serve/plan_steps.h"

/* Parameters of the last layers live on the tier below and are fetched before the ops that read them. */
static enum plim_status stream(const struct engine_tape *t, struct tape *tape, struct plim_error *err)
{
    const struct device_facts *facts = &t->e->device->facts;
    struct offload_options offload = {.param_tier = facts->lower_tier,
                                      .param_share = (int)t->share,
                                      .slice_bytes = 1 << 20}; /* nothing is updated */
    struct prefetch_options ahead = {.loop_lead = PREFETCH_AHEAD, .loop_lag = PREFETCH_AHEAD};
    enum plim_status status = pass_offload(tape, &offload, err);
    if (status != PLIM_OK || !facts->async_copies) return status;
    return pass_prefetch(tape, &ahead, err);
}

enum plim_status engine_tape_build(void *arg, int64_t, struct tape *out, struct plim_error *err)
{
    const struct engine_tape *t = arg;
    const struct engine *e = t->e;
    struct model_shape shape = {
        .batch = 1, .time = t->size.tokens, .head = HEAD_LAST_LOGITS, .flat = t->size};
    shape.flat.samples = !e->device->facts.unified_memory, shape.flat.top = ENGINE_LOGPROBS;
    shape.flat.adapted = e->adapters.slots != NULL;
    enum plim_status status =
        plan_tape(&e->spec, &shape, e->plan.precision, &e->quantisation, e->adapters.slots, out, err);
    if (status != PLIM_OK || !t->share) return status;
    status = stream(t, out, err);
    if (status == PLIM_OK) status = tape_verify(out, err);
    if (status != PLIM_OK) tape_release(out);
    return status;
}

enum plim_status engine_choose_weights(struct engine *e, struct plim_error *err)
{
    struct engine_tape one = {e, {1, 1, 1, 1, 1}, 0};
    struct tape tape;
    if (e->options.adapter && e->options.weights == WEIGHTS_AS_IS)
        return PLIM_OK; /* it is merged into numbers */
    enum plim_status status = engine_tape_build(&one, 0, &tape, err);
    if (status != PLIM_OK) return status;
    status = weights_choose(&e->quantisation, e->device, e->options.weights, e->model, &e->spec, &tape, err);
    tape_release(&tape);
    return status;
}
