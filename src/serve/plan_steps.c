/* plan_steps.c - see plan_steps.h. */
#include "serve/plan_steps.h"
#include "base/bytes.h"

enum plim_status plan_tape(const struct model_spec *spec, const struct model_shape *shape,
                           enum precision precision, const struct quantisation *quantisation,
                           const struct adapter_slots *slots, struct tape *out, struct plim_error *err)
{
    tape_init(out);
    enum plim_status status = model_emit(spec, shape, out, err);
    if (status == PLIM_OK) status = adapter_slots_apply(slots, spec, out, err);
    if (status == PLIM_OK) status = pass_precision(out, precision, err);
    if (status == PLIM_OK) quantise_tape(quantisation, spec, out);
    if (status == PLIM_OK) status = tape_verify(out, err);
    for (int i = 0; i < out->nops; i++) out->ops[i].attr.repeatable = true;
    if (status != PLIM_OK) tape_release(out);
    return status;
}

enum plim_status plan_refuse(const struct no_fit *n, struct plim_error *err)
{
    char takes[BYTES_TEXT], has[BYTES_TEXT], missing[BYTES_TEXT];
    bytes_format(takes, (uint64_t)n->takes), bytes_format(has, (uint64_t)n->has);
    bytes_format(missing, (uint64_t)(n->takes - n->has));
    const char *who = n->host ? "the host has" : n->budget ? "the budget is" : "the device has";
    return plim_fail(err, PLIM_NO_FIT,
                     "%s: does not fit: %s take %s%s, %s %s: %s (%lld bytes) missing; raise the budget%s%s",
                     n->model, n->what, takes, n->host ? " of the host" : "", who, has, missing,
                     (long long)(n->takes - n->has), n->advice ? ", or " : "", n->advice ? n->advice : "");
}
