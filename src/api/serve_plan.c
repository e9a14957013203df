/* serve_plan.c - see serve_plan.h. */
#include "api/serve_plan.h"
#include "device/registry.h"
#include "job/preset.h"

#include <stdlib.h>

bool serve_plan_absent(const char *name)
{
    struct device_name here;
    struct preset preset;
    return !device_name_read(name, &here) && preset_find(name, &preset, NULL) == PLIM_OK;
}

int serve_plan_cards(const char *name)
{
    struct preset_machine machine;
    return preset_machine(name, &machine) ? machine.cards : 1;
}

static enum plim_status absent_sync(struct device *, struct plim_error *) { return PLIM_OK; }

static void absent_close(struct device *device) { free(device); }

static const struct device_ops absent_ops = {.name = "absent", .sync = absent_sync, .close = absent_close};

enum plim_status serve_plan_device(const char *name, struct device **out, struct plim_error *err)
{
    struct preset preset;
    enum plim_status status = preset_find(name, &preset, err);
    if (status != PLIM_OK) return status;
    struct device *device = calloc(1, sizeof *device);
    if (!device) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the facts of a device");
    device->ops = &absent_ops, device->facts = preset.facts;
    *out = device;
    return PLIM_OK;
}

void serve_plan_json(const char *model, const struct device_facts *facts, const struct engine_plan *plan,
                     int64_t server, struct strbuf *out)
{
    struct json_writer w = json_object(out, 2);
    json_str(&w, "model", model);
    json_str(&w, "device", facts->name);
    json_int(&w, "budget", plan->budget);
    json_int(&w, "limit", plan->limit);
    json_str(&w, "rung", plan->rung);
    json_int(&w, "server_bytes", server);
    json_begin_object(&w, "plan");
    plan_text_json(plan, &w);
    json_end_object(&w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}
