/* range.c - see range.h. */
#include "device/range.h"
#include "device/device.h"
#include "plan/fuse.h"
#include "tape/group.h"

void *device_address(struct device *dev, const struct device_range *range, int id)
{
    bool on_host = range->tape->tensors[id].tier == TIER_HOST;
    return (char *)(on_host ? dev->ops->host_base : dev->ops->base)(dev) + range->layout->offset[id];
}

struct kernel_call device_call(struct device *dev, const struct device_range *range, int index)
{
    const struct op *op = &range->tape->ops[index];
    struct kernel_call call = {.op = op, .team = dev->team};
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (op->in[k] < 0) continue;
        call.desc[k] = &range->tape->tensors[op->in[k]];
        call.in[k] = device_address(dev, range, op->in[k]);
    }
    for (int k = 0; k < OP_MAX_OUT; k++) {
        if (op->out[k] < 0) continue;
        call.desc[OP_MAX_IN + k] = &range->tape->tensors[op->out[k]];
        call.out[k] = device_address(dev, range, op->out[k]);
    }
    call.accumulate = device_accumulates(range, op);
    call.work = (char *)dev->ops->base(dev) + range->layout->work_offset[index];
    return call;
}

/* Ops [begin, end), which are given at once. */
static void list_calls(struct device *dev, const struct device_range *range, int begin, int end,
                       struct kernel_call *calls)
{
    int result = range->tape->ops[begin].out[0];
    for (int i = begin; i < end; i++) calls[i - begin] = device_call(dev, range, i);
    if (end == begin + 1 || result < 0) return;
    int root = tape_root(range->tape, result);
    calls[0].passed =
        !(range->tape->tensors[root].flags & TENSOR_OUTPUT) && range->layout->life[root].last < end;
}

void device_run_ops(struct device *dev, const struct device_range *range, int begin, int end)
{
    struct kernel_call calls[TAPE_GROUP_MOST];
    list_calls(dev, range, begin, end, calls);
    if (end > begin + 1)
        dev->ops->run_many(dev, calls, end - begin);
    else
        (calls[0].op->attr.on_host ? dev->ops->run_host : dev->ops->run)(dev, calls);
}

void device_move(struct device *dev, const struct device_range *range, const struct op *op)
{
    const struct layout *layout = range->layout;
    size_t near = (size_t)layout->offset[move_near(op)], far = (size_t)layout->offset[move_far(op)];
    size_t bytes = (size_t)tensor_bytes(&range->tape->tensors[move_near(op)]);
    if (op->kind == OP_FETCH)
        dev->ops->fetch(dev, far, near, bytes);
    else
        dev->ops->store(dev, near, far, bytes);
}

struct giving {
    struct device *dev;
    const struct device_range *range;
};

static bool can_fuse(void *arg, int begin, int count)
{
    const struct giving *g = arg;
    struct kernel_call calls[FUSE_MOST];
    list_calls(g->dev, g->range, begin, begin + count, calls);
    return g->dev->ops->fuses(g->dev, calls, count);
}

/* Behind the ops that begin at `i` and are given at once. */
static int next_of(struct giving *g, int i)
{
    const struct device_range *r = g->range;
    const struct device_ops *ops = g->dev->ops;
    int end = ops->run_many ? layout_group_end(r->layout, i) : i + 1;
    if (end > i + 1) return end < r->end ? end : r->end;
    return ops->fuses ? fuse_end(r->tape, r->layout, i, r->end, can_fuse, g) : i + 1;
}

enum plim_status device_give(struct device *dev, const struct device_range *range)
{
    struct giving giving = {dev, range};
    enum plim_status status = PLIM_OK;
    for (int i = range->begin, next; i < range->end && status == PLIM_OK; i = next) {
        const struct op *op = &range->tape->ops[i];
        next = i + 1;
        if (device_skips(range, op)) continue; /* of a group all ops or none: their kind is the same */
        if (range->timed) dev->ops->time_op(dev, i);
        if (op_collects(op)) {
            status = range->collect(range, i);
        } else if (op_moves(op)) {
            device_move(dev, range, op);
        } else if (op_computes(op)) {
            next = next_of(&giving, i);
            device_run_ops(dev, range, i, next);
        }
    }
    if (range->timed) dev->ops->time_op(dev, -1);
    return status;
}
