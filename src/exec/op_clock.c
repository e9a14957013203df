/* op_clock.c - see op_clock.h. */
#include "exec/op_clock.h"
#include "base/clock.h"

#include <stdlib.h>

/* The marks of a program's ops are part of it. */
static enum plim_status compile_timed(struct op_clock *c, struct exec *exec, bool later,
                                      struct plim_error *err)
{
    c->compiles = exec->compiles, c->later = later;
    exec_drop_programs(exec);
    exec->times = c->spans;
    enum plim_status status = exec_prepare(exec, false, err);
    exec->times = NULL;
    return status == PLIM_OK && later ? exec_prepare_later(exec, err) : status;
}

enum plim_status op_clock_start(struct op_clock *c, struct exec *exec, bool later, struct plim_error *err)
{
    const struct device_ops *ops = exec->device->ops;
    size_t n = (size_t)exec->tape->nops;
    *c = (struct op_clock){
        .ops = malloc((n + 1) * sizeof *c->ops), .spans = malloc((n + 1) * sizeof *c->spans), .nops = (int)n};
    enum plim_status status =
        c->ops && c->spans ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory for a snapshot");
    for (size_t i = 0; i < n && status == PLIM_OK; i++) {
        c->ops[i] = (struct op_span){.seconds = -1};
        c->spans[i] = (struct clock_span){.ended = -1};
    }
    if (status == PLIM_OK && ops->time_begin) {
        status = ops->time_begin(exec->device, c->nops, err);
        c->device = status == PLIM_OK;
    }
    if (status == PLIM_OK && c->device) status = compile_timed(c, exec, later, err);
    c->began = clock_seconds();
    if (status != PLIM_OK) op_clock_stop(c, exec);
    return status;
}

/* Programs go before the marks that they make. */
static enum plim_status end_times(struct op_clock *c, struct exec *exec, struct plim_error *err)
{
    if (!c->device) return PLIM_OK;
    exec_drop_programs(exec);
    exec->compiles = c->compiles;
    c->device = false;
    return exec->device->ops->time_end(exec->device, c->spans, err);
}

void op_clock_stop(struct op_clock *c, struct exec *exec)
{
    end_times(c, exec, NULL);
    free(c->ops);
    free(c->spans);
    *c = (struct op_clock){0};
}

enum plim_status op_clock_pass(struct op_clock *c, struct exec *exec, bool update, int64_t micro, bool by_op,
                               struct op_span *pass, struct plim_error *err)
{
    struct device *device = exec->device;
    enum plim_status status = device->ops->sync(device, err);
    double start = clock_seconds();
    exec->times = by_op ? c->spans : NULL;
    if (status == PLIM_OK) status = update ? exec_update(exec, err) : exec_loop(exec, micro, err);
    exec->times = NULL;
    if (status == PLIM_OK) status = device->ops->sync(device, err);
    *pass = (struct op_span){.start = start - c->began, .seconds = clock_seconds() - start};
    return status;
}

/* Requests to the disk overlap; a lane has one after the other. */
static void part_requests(struct op_clock *c, const struct tape *tape, int begin, int end)
{
    double last = -1;
    for (int i = begin; i < end; i++) {
        const struct op *op = &tape->ops[i];
        struct clock_span *s = &c->spans[i];
        if (!op_moves(op) || tape->tensors[move_far(op)].tier != TIER_DISK || s->ended < 0) continue;
        if (s->began < last) s->began = last;
        if (s->ended < s->began) s->ended = s->began;
        last = s->ended;
    }
}

/* Ops [begin, end), some of which ran. */
static void read_part(struct op_clock *c, int begin, int end)
{
    bool ran = false;
    for (int i = begin; i < end; i++) ran |= c->spans[i].ended >= 0;
    double last = -1;
    for (int i = begin; i < end && ran; i++) {
        const struct clock_span *s = &c->spans[i];
        if (s->ended >= 0)
            c->ops[i] = (struct op_span){.start = s->began - c->began, .seconds = s->ended - s->began};
        else if (last >= 0)
            c->ops[i] = (struct op_span){.start = last};
        if (c->ops[i].seconds >= 0) last = c->ops[i].start + c->ops[i].seconds;
    }
}

enum plim_status op_clock_read(struct op_clock *c, struct exec *exec, struct plim_error *err)
{
    int loop_end = exec->tape->loop_end;
    bool compiled = c->device && exec->nprograms;
    enum plim_status status = end_times(c, exec, err);
    if (status == PLIM_OK && compiled) status = exec_prepare(exec, c->later, err);
    if (status == PLIM_OK && exec->disk) status = disk_settle(exec->disk, err);
    if (status != PLIM_OK) return status;
    part_requests(c, exec->tape, 0, c->nops);
    read_part(c, 0, loop_end);
    read_part(c, loop_end, c->nops);
    return PLIM_OK;
}
