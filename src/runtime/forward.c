/* forward.c - families of forward tapes over the same kept bytes. See runtime.h. */
#include "runtime/runtime.h"
#include "runtime/runtime_part.h"

#include <limits.h>

/* Memory for a member, and the plan below it. */
struct room {
    const struct device_facts *facts;
    const struct plan *below; /* NULL: it owns the kept tensors */
    int64_t arena;            /* bytes */
};

static enum plim_status lay_out(const struct forward_family *family, int64_t size, const struct room *room,
                                struct tape *tape, struct layout *layout, struct plim_error *err)
{
    struct layout_options options = {.facts = room->facts, .accumulation = family->adds ? 2 : 1};
    if (room->below) options.above = &room->below->layout, options.above_tape = &room->below->tape;
    enum plim_status status = family->build(family->arg, size, tape, err);
    if (status != PLIM_OK) return status;
    status = layout_make(tape, &options, layout, err);
    if (status != PLIM_OK) tape_release(tape);
    return status;
}

/* The largest size from `most` down to `least`, halved each time, that fits. PLIM_NO_FIT: none does; *need is what the
 * smallest takes. */
static enum plim_status fit(const struct forward_family *family, int64_t most, int64_t least,
                            const struct room *room, struct forward *out, int64_t *need,
                            struct plim_error *err)
{
    *need = 0;
    for (int64_t size = most; size >= least; size /= 2) {
        *out = (struct forward){0};
        enum plim_status status = lay_out(family, size, room, &out->tape, &out->layout, err);
        if (status != PLIM_OK) return status;
        *need = out->layout.arena_bytes;
        out->size = size;
        if (*need <= room->arena) return PLIM_OK;
        forward_close(out);
    }
    return plim_fail(err, PLIM_NO_FIT, "forward passes of size %lld do not fit", (long long)least);
}

/* The totals of a family whose arena has so many bytes. */
static void sum_up(struct runtime *rt, int64_t arena)
{
    rt->arena = arena;
    plan_sum(&rt->plan, &rt->request, arena, 0);
}

/* Bytes of the arena below the line. */
static int64_t arena_line(struct runtime *rt)
{
    sum_up(rt, 0);
    return rt->request.budget ? rt->request.budget - rt->plan.total : INT64_MAX;
}

enum plim_status runtime_plan_forward(struct runtime *rt, struct device *device,
                                      const struct model_spec *spec, const struct forward_line *line,
                                      const struct forward_family *family, int64_t most,
                                      struct plim_error *err)
{
    struct forward first;
    int64_t need;
    *rt = (struct runtime){
        .device = device, .spec = *spec, .scratch = line->scratch, .op_by_op = line->op_by_op};
    rt->request = (struct plan_request){.facts = &device->facts,
                                        .budget = line->budget,
                                        .host_budget = line->host_budget,
                                        .programs = line->programs,
                                        .overhead = line->overhead.bytes};
    struct room room = {.facts = &device->facts, .arena = arena_line(rt)};
    enum plim_status status = fit(family, most, 1, &room, &first, &need, err);
    if (status == PLIM_NO_FIT && need - room.arena <= line->overhead.reserve) {
        rt->request.overhead -= line->overhead.reserve;
        room.arena = arena_line(rt);
        status = fit(family, 1, 1, &room, &first, &need, err);
    }
    if (status == PLIM_OK) rt->plan.tape = first.tape, rt->plan.layout = first.layout, rt->size = first.size;
    sum_up(rt, need);
    if (status != PLIM_OK) return status;
    rt->state = RUNTIME_PLANNED;
    return PLIM_OK;
}

enum plim_status runtime_forward(struct runtime *rt, const struct forward_family *family, int64_t most,
                                 int64_t least, struct forward *out, struct plim_error *err)
{
    bool ready = rt->state == RUNTIME_READY;
    int64_t need, had = rt->arena;
    struct room room = {&rt->device->facts, &rt->plan, ready ? had : arena_line(rt)};
    enum plim_status status = fit(family, most, least, &room, out, &need, err);
    if (!ready) sum_up(rt, status == PLIM_OK && need > had ? need : had);
    if (status != PLIM_OK || !ready) return status;
    status = forward_start(rt, out, err);
    if (status != PLIM_OK) forward_close(out);
    return status;
}

/* Lines and memory of a plan, then its programs. */
static enum plim_status stand_on(struct runtime *rt, int64_t budget, int64_t arena, struct plim_error *err)
{
    runtime_set_lines(rt, budget);
    enum plim_status status = runtime_take(rt, &rt->plan, arena, err);
    if (status == PLIM_OK) status = runtime_give(rt, &rt->plan, arena, err);
    return status == PLIM_OK ? runtime_start(rt, false, err) : status;
}

enum plim_status runtime_adopt(struct runtime *rt, struct runtime *next, struct plim_error *err)
{
    struct plan old = rt->plan;
    int64_t arena = rt->arena;
    enum plim_status status = rt->device->ops->sync(rt->device, err);
    if (status != PLIM_OK) return status;
    exec_close(&rt->exec);
    rt->plan = next->plan;
    status = stand_on(rt, next->request.budget, next->arena, err);
    if (status != PLIM_OK) {
        exec_close(&rt->exec);
        rt->plan = old;
        rt->torn = stand_on(rt, rt->request.budget, arena, NULL) != PLIM_OK;
        return status;
    }
    plan_release(&old);
    rt->request = next->request, rt->arena = next->arena, rt->size = next->size;
    *next = (struct runtime){0};
    return runtime_check(rt, err);
}

enum plim_status forward_start(struct runtime *rt, struct forward *f, struct plim_error *err)
{
    enum plim_status status = exec_open(&f->exec, rt->device, &f->tape, &f->layout, rt->disk, err);
    return status == PLIM_OK ? runtime_tune(rt, &f->exec, err) : status;
}

void forward_close(struct forward *f)
{
    if (!f->size) return;
    exec_close(&f->exec);
    layout_release(&f->layout);
    tape_release(&f->tape);
    *f = (struct forward){0};
}
