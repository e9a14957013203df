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

static void run(const struct kernel_call *call, threads_body *body)
{
    const struct op_attr *attr = &call->op->attr;
    struct elements e = {row_ops(),
                         call_in(call, EACH_IN)->type,
                         call->in,
                         call->out,
                         {attr->activation, attr->cap > 0 ? attr->cap : 1}};
    threads_each(call->team, tensor_count(call_in(call, EACH_IN)), SPAN_GRAIN, body, &e);
}

/* Of a result that may be absent. */
static void *element_or_null(void *base, enum dtype type, int64_t i)
{
    return base ? element(base, type, i) : NULL;
}

static void glu_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->glu(e->type, e->act, element(e->out[GLU_H], e->type, begin),
                 element(e->in[GLU_GATE], e->type, begin), element(e->in[GLU_UP], e->type, begin),
                 end - begin);
}

static void glu_bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->glu_bwd(e->type, e->act, element(e->out[GLU_BWD_DGATE], e->type, begin),
                     element(e->out[GLU_BWD_DUP], e->type, begin),
                     element_or_null(e->out[GLU_BWD_H], e->type, begin),
                     element(e->in[GLU_BWD_DH], e->type, begin), element(e->in[GLU_BWD_GATE], e->type, begin),
                     element(e->in[GLU_BWD_UP], e->type, begin), end - begin);
}

static void act_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->act(e->type, e->act, element(e->out[ACT_Y], e->type, begin),
                 element(e->in[ACT_X], e->type, begin), end - begin);
}

static void act_bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->act_bwd(e->type, e->act, element(e->out[ACT_BWD_DX], e->type, begin),
                     element_or_null(e->out[ACT_BWD_Y], e->type, begin),
                     element(e->in[ACT_BWD_DY], e->type, begin), element(e->in[ACT_BWD_X], e->type, begin),
                     end - begin);
}

static void add_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->add(e->type, element(e->out[ADD_Y], e->type, begin), element(e->in[ADD_A], e->type, begin),
                 element(e->in[ADD_B], e->type, begin), end - begin);
}

void cpu_glu(const struct kernel_call *call) { run(call, glu_body); }

void cpu_glu_bwd(const struct kernel_call *call) { run(call, glu_bwd_body); }

void cpu_act(const struct kernel_call *call) { run(call, act_body); }

void cpu_act_bwd(const struct kernel_call *call) { run(call, act_bwd_body); }

void cpu_add(const struct kernel_call *call) { run(call, add_body); }
