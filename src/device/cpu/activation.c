/* activation.c - ops that treat every element by itself: spans of elements go to threads as they come. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

/* An input that every one of these ops has; all operands are of its size. */
enum { EACH_IN };

static struct row_act act_of(const struct kernel_call *call)
{
    const struct op_attr *attr = &call->op->attr;
    float number = attr->activation == ACTIVATION_SCALE ? attr->scale : attr->cap;
    return (struct row_act){attr->activation, number > 0 ? number : 1};
}

static enum dtype type_of(const struct kernel_call *call) { return call_in(call, EACH_IN)->type; }

static void run(const struct kernel_call *call, threads_body *body)
{
    call_each(call, tensor_count(call_in(call, EACH_IN)), SPAN_GRAIN, body);
}

static void glu_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    row_ops()->glu(type_of(call), act_of(call), out_at(call, GLU_H, begin), in_at(call, GLU_GATE, begin),
                   in_at(call, GLU_UP, begin), end - begin);
}

static void glu_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    row_ops()->glu_bwd(type_of(call), act_of(call), out_at(call, GLU_BWD_DGATE, begin),
                       out_at(call, GLU_BWD_DUP, begin), out_at(call, GLU_BWD_H, begin),
                       in_at(call, GLU_BWD_DH, begin), in_at(call, GLU_BWD_GATE, begin),
                       in_at(call, GLU_BWD_UP, begin), end - begin);
}

static void act_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    row_ops()->act(type_of(call), act_of(call), out_at(call, ACT_Y, begin), in_at(call, ACT_X, begin),
                   end - begin);
}

static void act_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    row_ops()->act_bwd(type_of(call), act_of(call), out_at(call, ACT_BWD_DX, begin),
                       out_at(call, ACT_BWD_Y, begin), in_at(call, ACT_BWD_DY, begin),
                       in_at(call, ACT_BWD_X, begin), end - begin);
}

static void add_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    row_ops()->add(type_of(call), out_at(call, ADD_Y, begin), in_at(call, ADD_A, begin),
                   in_at(call, ADD_B, begin), end - begin);
}

/* Joint rows: the first half is the gate, the second is up. */
static void joint_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    enum dtype type = type_of(call);
    int64_t width = last_dim(call_out(call, GLU_H));
    for (int64_t r = begin; r < end; r++) {
        const void *gate = in_at(call, GLU_GATE, 2 * r * width);
        row_ops()->glu(type, act_of(call), out_at(call, GLU_H, r * width), gate, element(gate, type, width),
                       width);
    }
}

static void joint_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct kernel_call *call = arg;
    enum dtype type = type_of(call);
    int64_t width = last_dim(call_in(call, GLU_BWD_DH));
    for (int64_t r = begin; r < end; r++) {
        const void *gate = in_at(call, GLU_BWD_GATE, 2 * r * width);
        void *dgate = out_at(call, GLU_BWD_DGATE, 2 * r * width);
        row_ops()->glu_bwd(type, act_of(call), dgate, element(dgate, type, width),
                           out_at(call, GLU_BWD_H, r * width), in_at(call, GLU_BWD_DH, r * width), gate,
                           element(gate, type, width), width);
    }
}

/* `half` has rows of one half. */
static void run_joint(const struct kernel_call *call, const struct tensor *half, threads_body *body)
{
    int64_t width = last_dim(half);
    call_each(call, width ? tensor_count(half) / width : 0, row_grain(2 * width), body);
}

void cpu_glu(const struct kernel_call *call)
{
    if (call->op->attr.joint)
        run_joint(call, call_out(call, GLU_H), joint_body);
    else
        run(call, glu_body);
}

void cpu_glu_bwd(const struct kernel_call *call)
{
    if (call->op->attr.joint)
        run_joint(call, call_in(call, GLU_BWD_DH), joint_bwd_body);
    else
        run(call, glu_bwd_body);
}

void cpu_act(const struct kernel_call *call) { run(call, act_body); }

void cpu_act_bwd(const struct kernel_call *call) { run(call, act_bwd_body); }

void cpu_add(const struct kernel_call *call) { run(call, add_body); }

CPU_KERNEL(glu, NULL);
CPU_KERNEL(act, NULL);
CPU_KERNEL(add, NULL);
CPU_KERNEL(glu_bwd, NULL);
CPU_KERNEL(act_bwd, NULL);
