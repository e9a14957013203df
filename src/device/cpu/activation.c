/* activation.c - ops that treat every element by itself: spans of elements go to threads as they come. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include "device/cpu/rows.h"

/* An input that every one of these ops has; all operands are of its size. */
enum { EACH_IN };

struct elements {
    const struct row_ops *rows;
    enum dtype type;
    void *const *in;
    void *const *out;
    struct row_act act;
};

static struct elements elements_of(const struct kernel_call *call)
{
    const struct op_attr *attr = &call->op->attr;
    float number = attr->activation == ACTIVATION_SCALE ? attr->scale : attr->cap;
    return (struct elements){row_ops(),
                             call_in(call, EACH_IN)->type,
                             call->in,
                             call->out,
                             {attr->activation, number > 0 ? number : 1}};
}

static void run(const struct kernel_call *call, threads_body *body)
{
    struct elements e = elements_of(call);
    threads_each(call->team, tensor_count(call_in(call, EACH_IN)), SPAN_GRAIN, body, &e);
}

/* Pointer to an element, for a result that may be absent. */
static void *element_or_null(void *base, enum dtype type, int64_t i)
{
    return base ? element(base, type, i) : NULL;
}

static void glu_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct elements *e = arg;
    e->rows->glu(e->type, e->act, element(e->out[GLU_H], e->type, begin),
                 element(e->in[GLU_GATE], e->type, begin), element(e->in[GLU_UP], e->type, begin),
                 end - begin);
}

static void glu_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct elements *e = arg;
    e->rows->glu_bwd(e->type, e->act, element(e->out[GLU_BWD_DGATE], e->type, begin),
                     element(e->out[GLU_BWD_DUP], e->type, begin),
                     element_or_null(e->out[GLU_BWD_H], e->type, begin),
                     element(e->in[GLU_BWD_DH], e->type, begin), element(e->in[GLU_BWD_GATE], e->type, begin),
                     element(e->in[GLU_BWD_UP], e->type, begin), end - begin);
}

static void act_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct elements *e = arg;
    e->rows->act(e->type, e->act, element(e->out[ACT_Y], e->type, begin),
                 element(e->in[ACT_X], e->type, begin), end - begin);
}

static void act_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct elements *e = arg;
    e->rows->act_bwd(e->type, e->act, element(e->out[ACT_BWD_DX], e->type, begin),
                     element_or_null(e->out[ACT_BWD_Y], e->type, begin),
                     element(e->in[ACT_BWD_DY], e->type, begin), element(e->in[ACT_BWD_X], e->type, begin),
                     end - begin);
}

static void add_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct elements *e = arg;
    e->rows->add(e->type, element(e->out[ADD_Y], e->type, begin), element(e->in[ADD_A], e->type, begin),
                 element(e->in[ADD_B], e->type, begin), end - begin);
}

/* Rows whose first half is the gate and whose second is up. */
struct joint {
    struct elements each;
    int64_t width; /* of one half */
};

static void joint_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct joint *j = arg;
    const struct elements *e = &j->each;
    for (int64_t r = begin; r < end; r++) {
        const void *gate = element(e->in[GLU_GATE], e->type, 2 * r * j->width);
        e->rows->glu(e->type, e->act, element(e->out[GLU_H], e->type, r * j->width), gate,
                     element(gate, e->type, j->width), j->width);
    }
}

static void joint_bwd_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct joint *j = arg;
    const struct elements *e = &j->each;
    for (int64_t r = begin; r < end; r++) {
        const void *gate = element(e->in[GLU_BWD_GATE], e->type, 2 * r * j->width);
        void *dgate = element(e->out[GLU_BWD_DGATE], e->type, 2 * r * j->width);
        e->rows->glu_bwd(e->type, e->act, dgate, element(dgate, e->type, j->width),
                         element_or_null(e->out[GLU_BWD_H], e->type, r * j->width),
                         element(e->in[GLU_BWD_DH], e->type, r * j->width), gate,
                         element(gate, e->type, j->width), j->width);
    }
}

/* `half` has rows of one half. */
static void run_joint(const struct kernel_call *call, const struct tensor *half, threads_body *body)
{
    struct joint j = {elements_of(call), half->dim[half->ndim - 1]};
    int64_t rows = j.width ? tensor_count(half) / j.width : 0;
    threads_each(call->team, rows, row_grain(2 * j.width), body, &j);
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
