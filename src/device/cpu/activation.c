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
};

static void run(const struct kernel_call *call, threads_body *body)
{
    struct elements e = {row_ops(), call_in(call, EACH_IN)->type, call->in, call->out};
    threads_each(call->team, tensor_count(call_in(call, EACH_IN)), SPAN_GRAIN, body, &e);
}

/* Of a result that may be absent. */
static void *element_or_null(void *base, enum dtype type, int64_t i)
{
    return base ? element(base, type, i) : NULL;
}

static void swiglu_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->swiglu(e->type, element(e->out[SWIGLU_H], e->type, begin),
                    element(e->in[SWIGLU_GATE], e->type, begin), element(e->in[SWIGLU_UP], e->type, begin),
                    end - begin);
}

static void swiglu_bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->swiglu_bwd(e->type, element(e->out[SWIGLU_BWD_DGATE], e->type, begin),
                        element(e->out[SWIGLU_BWD_DUP], e->type, begin),
                        element_or_null(e->out[SWIGLU_BWD_H], e->type, begin),
                        element(e->in[SWIGLU_BWD_DH], e->type, begin),
                        element(e->in[SWIGLU_BWD_GATE], e->type, begin),
                        element(e->in[SWIGLU_BWD_UP], e->type, begin), end - begin);
}

static void gelu_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->gelu(e->type, element(e->out[GELU_Y], e->type, begin), element(e->in[GELU_X], e->type, begin),
                  end - begin);
}

static void gelu_bwd_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->gelu_bwd(e->type, element(e->out[GELU_BWD_DX], e->type, begin),
                      element_or_null(e->out[GELU_BWD_Y], e->type, begin),
                      element(e->in[GELU_BWD_DY], e->type, begin), element(e->in[GELU_BWD_X], e->type, begin),
                      end - begin);
}

static void add_body(void *arg, int64_t begin, int64_t end, int worker)
{
    const struct elements *e = arg;
    (void)worker;
    e->rows->add(e->type, element(e->out[ADD_Y], e->type, begin), element(e->in[ADD_A], e->type, begin),
                 element(e->in[ADD_B], e->type, begin), end - begin);
}

void cpu_swiglu(const struct kernel_call *call) { run(call, swiglu_body); }

void cpu_swiglu_bwd(const struct kernel_call *call) { run(call, swiglu_bwd_body); }

void cpu_gelu(const struct kernel_call *call) { run(call, gelu_body); }

void cpu_gelu_bwd(const struct kernel_call *call) { run(call, gelu_bwd_body); }

void cpu_add(const struct kernel_call *call) { run(call, add_body); }
