/* source_weights.c - see source_weights.h. */
#include "serve/source_weights.h"
#include "serve/plan_steps.h"

static enum plim_status build_whole(const struct quantisation *q, const struct model_spec *spec,
                                    enum precision precision, struct tape *out, struct plim_error *err)
{
    struct model_shape shape = {.batch = 1, .time = 1, .source_time = 1, .head = HEAD_LAST_LOGITS};
    return plan_tape(spec, &shape, precision, q, out, err);
}

enum plim_status source_weights_choose(struct quantisation *out, const struct device *device,
                                       enum weights_kind kind, const char *dir, const struct model_spec *spec,
                                       enum precision precision, struct plim_error *err)
{
    struct tape whole;
    *out = (struct quantisation){0};
    if (kind == WEIGHTS_AS_IS) return PLIM_OK;
    enum plim_status status = build_whole(out, spec, precision, &whole, err);
    if (status != PLIM_OK) return status;
    status = weights_choose(out, device, kind, dir, spec, &whole, err);
    tape_release(&whole);
    return status;
}

enum plim_status source_weights_load(const struct quantisation *q, struct exec *exec,
                                     const struct model_spec *spec, enum precision precision, const char *dir,
                                     const struct log *log, struct plim_error *err)
{
    struct tape whole;
    if (!q->count) return weights_from_directory(exec, spec, dir, log, err);
    enum plim_status status = build_whole(q, spec, precision, &whole, err);
    if (status != PLIM_OK) return status;
    status = weights_from_directory_by(&whole, exec, spec, dir, log, err);
    tape_release(&whole);
    return status;
}

int64_t source_weights_bytes(const struct quantisation *q, const struct model_spec *spec,
                             enum precision precision)
{
    struct tape whole;
    if (!q->count || build_whole(q, spec, precision, &whole, NULL) != PLIM_OK) return 0;
    int64_t bytes = whole.nops * (int64_t)sizeof *whole.ops + whole.ntensors * (int64_t)sizeof *whole.tensors;
    tape_release(&whole);
    return bytes;
}
