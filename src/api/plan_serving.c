/* plan_serving.c - plim_plan_serving of plimsoll/plan.h. */
#include "api/engine_part.h"
#include "api/serve_plan.h"
#include <plimsoll/plan.h>

enum plim_status plim_plan_serving(struct plim_context *context, const struct plim_engine_options *options,
                                   char **json, struct plim_error *err)
{
    struct plim_error unheard;
    struct plim_engine *e = NULL;
    struct strbuf out = STRBUF_INIT;
    if (!err) err = &unheard;
    if (!json) return plim_fail(err, PLIM_BAD_INPUT, "plim_plan_serving: json is NULL");
    *json = NULL;
    enum plim_status status = engine_handle_open(context, options, "plim_plan_serving", true, &e, err);
    if (status != PLIM_OK) return status;
    serve_plan_json(e->name, &e->model.ladder.device->facts, engine_plan(e->model.engine), 0, &out);
    plim_engine_close(e);
    *json = text_give(&out);
    return *json ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "plim_plan_serving: out of memory");
}
