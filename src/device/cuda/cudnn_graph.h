/* cudnn_graph.h - builds a cuDNN operation graph line by line like a formula, and turns it into a plan.
 *
 * A graph is built op by op; tensors are small numbers. The first failure sticks (with the name of the failed step) and
 * turns every later call into a no-op, so a formula needs no checks between its lines. All tensors have four dimensions,
 * [B,H,T,D] in cuDNN's order, with any strides.
 *
 *     struct cudnn_graph g;
 *     cudnn_graph_begin(&g, &api, handle);
 *     int x = cudnn_graph_tensor(&g, DNN_REAL, DNN_BF16, &shape);
 *     int y = cudnn_graph_tensor(&g, DNN_REAL, DNN_BF16, &shape);
 *     int two = cudnn_graph_f32(&g, 2.0f);
 *     cudnn_graph_pointwise(&g, DNN_MUL, DNN_F32, x, two, y);
 *     status = cudnn_graph_plan(&g, SIZE_MAX, &plan, &err); // moves what it needs out of g
 *     cudnn_graph_end(&g);
 *     ...
 *     struct cudnn_binding bind[] = {{x, x_pointer}, {y, y_pointer}};
 *     status = cudnn_plan_run(&plan, bind, 2, workspace, &err);
 *     cudnn_plan_release(&plan);
 */
#pragma once

#include <stdbool.h>
#include "device/cuda/cudnn_api.h"

enum {
    DNN_MAX_DESCS = 192,
    DNN_MAX_TENSORS = 64,
    DNN_MAX_OPS = 48,
    DNN_MAX_VALUES = 8,
    DNN_MAX_BINDINGS = 24
};

enum dnn_role {
    DNN_REAL,    /* bytes on the device, bound at run time */
    DNN_VIRTUAL, /* exists only inside the fused kernel */
    DNN_BY_VALUE /* one number, read on the host when the plan runs */
};

struct dnn_shape {
    int64_t dim[4], stride[4];
};

/* Numbers that are part of the graph (a scale, the fill value of a mask). */
struct dnn_constants {
    int count;
    int tensor[DNN_MAX_VALUES];
    union {
        float f32;
        int32_t i32;
    } value[DNN_MAX_VALUES];
};

struct cudnn_graph {
    const struct cudnn_api *api;
    void *handle;
    void *desc[DNN_MAX_DESCS];
    int descs;
    void *tensor[DNN_MAX_TENSORS]; /* descriptors; a tensor's id is its index + 1 */
    struct dnn_shape shape[DNN_MAX_TENSORS];
    int tensors;
    void *op[DNN_MAX_OPS];
    int ops;
    struct dnn_constants constants;
    enum plim_status status;
    char failure[640];
};

struct cudnn_plan {
    const struct cudnn_api *api;
    void *handle, *desc;
    size_t workspace;      /* bytes cuDNN needs in addition to the bound tensors */
    int64_t engine;        /* number, for reports; -1: unknown */
    bool nondeterministic; /* according to the engine */
    struct dnn_constants constants;
};

struct cudnn_binding {
    int tensor;
    void *pointer;
};

void cudnn_graph_begin(struct cudnn_graph *g, const struct cudnn_api *api, void *handle);
/* Frees every descriptor of the graph; plans made from it remain valid. */
void cudnn_graph_end(struct cudnn_graph *g);

int cudnn_graph_tensor(struct cudnn_graph *g, enum dnn_role role, enum dnn_type type,
                       const struct dnn_shape *shape);
int cudnn_graph_f32(struct cudnn_graph *g, float value);
int cudnn_graph_i32(struct cudnn_graph *g, int32_t value);

/* y = x op b; pass b = -1 for functions of one argument. */
void cudnn_graph_pointwise(struct cudnn_graph *g, enum dnn_pointwise mode, enum dnn_type precision, int x,
                           int b, int y);
/* Like cudnn_graph_pointwise, but returns a new virtual tensor shaped like x. */
int cudnn_graph_apply(struct cudnn_graph *g, enum dnn_pointwise mode, int x, int b);
/* The index along an axis of a tensor shaped like x (virtual, i32). */
int cudnn_graph_index(struct cudnn_graph *g, int x, int64_t axis);
/* mask = left cmp right (virtual, boolean). */
int cudnn_graph_compare(struct cudnn_graph *g, enum dnn_pointwise mode, int left, int right);
/* mask ? x : otherwise (virtual, like x). */
int cudnn_graph_select(struct cudnn_graph *g, int mask, int x, int otherwise);
/* y = sum or maximum of x over every axis where y has size 1. */
void cudnn_graph_reduce(struct cudnn_graph *g, enum dnn_reduce mode, int x, int y);
/* c = a b over the last two dimensions; batch dimensions of b may divide those of a. */
void cudnn_graph_matmul(struct cudnn_graph *g, int a, int b, int c);
/* y is x with other dimensions or strides. */
void cudnn_graph_reshape(struct cudnn_graph *g, int x, int y);

/* Asks the heuristics and takes the first engine that accepts the graph. most: maximum workspace.
 * PLIM_UNSUPPORTED names the step and quotes cuDNN if there is none. */
enum plim_status cudnn_graph_plan(struct cudnn_graph *g, size_t most, struct cudnn_plan *plan,
                                  struct plim_error *err);

/* Enqueues the plan on the handle's stream; may be captured. bind names every DNN_REAL tensor. */
enum plim_status cudnn_plan_run(const struct cudnn_plan *plan, const struct cudnn_binding *bind, int count,
                                void *workspace, struct plim_error *err);
void cudnn_plan_release(struct cudnn_plan *plan);
