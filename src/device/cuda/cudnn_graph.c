/* cudnn_graph.c - descriptors by the dozen, kept in one bag.
 *
 * Invariants:
 *  1. Every descriptor made for a graph is in desc[0..descs) and is freed by cudnn_graph_end; a plan keeps only
 *     the execution plan, which cuDNN makes independent of what it was built from.
 *  2. After the first failure nothing reaches cuDNN any more; failure says which step it was.
 *  3. Virtual tensors are f32 and contiguous unless made otherwise: they are names for values in registers.
 */
#include "device/cuda/cudnn_graph.h"
#include <stdio.h>
#include <string.h>

static void fail(struct cudnn_graph *g, const char *step, int rc)
{
    char last[448] = "";
    if (g->status != PLIM_OK) return;
    if (g->api->last_error) g->api->last_error(last, sizeof last);
    for (char *c = last; *c; c++)
        if (*c == '\n') *c = ' ';
    snprintf(g->failure, sizeof g->failure, "%s: %s (%d) %s", step, g->api->status_text(rc), rc, last);
    g->status = PLIM_UNSUPPORTED;
}

static void *make(struct cudnn_graph *g, enum dnn_desc kind, const char *step)
{
    void *desc = NULL;
    if (g->status != PLIM_OK) return NULL;
    if (g->descs == DNN_MAX_DESCS) {
        g->status = PLIM_BUG;
        snprintf(g->failure, sizeof g->failure, "%s: more than %d descriptors", step, DNN_MAX_DESCS);
        return NULL;
    }
    int rc = g->api->create(kind, &desc);
    if (rc) {
        fail(g, step, rc);
        return NULL;
    }
    g->desc[g->descs++] = desc;
    return desc;
}

static void set(struct cudnn_graph *g, void *desc, enum dnn_attr attr, enum dnn_value type, int64_t count,
                const void *values, const char *step)
{
    if (g->status != PLIM_OK) return;
    int rc = g->api->set(desc, attr, type, count, values);
    if (!rc) return;
    char where[96];
    snprintf(where, sizeof where, "%s, attribute %d", step, (int)attr);
    fail(g, where, rc);
}

static void set_enum(struct cudnn_graph *g, void *desc, enum dnn_attr attr, enum dnn_value type, int value,
                     const char *step)
{
    set(g, desc, attr, type, 1, &value, step);
}

static void set_desc(struct cudnn_graph *g, void *desc, enum dnn_attr attr, void *value, const char *step)
{
    set(g, desc, attr, DNN_VALUE_DESCRIPTOR, 1, &value, step);
}

static void finish(struct cudnn_graph *g, void *desc, const char *step)
{
    if (g->status != PLIM_OK) return;
    int rc = g->api->finalize(desc);
    if (rc) fail(g, step, rc);
}

void cudnn_graph_begin(struct cudnn_graph *g, const struct cudnn_api *api, void *handle)
{
    memset(g, 0, sizeof *g);
    g->api = api;
    g->handle = handle;
}

void cudnn_graph_end(struct cudnn_graph *g)
{
    while (g->descs > 0) g->api->destroy(g->desc[--g->descs]);
}

int cudnn_graph_tensor(struct cudnn_graph *g, enum dnn_role role, enum dnn_type type,
                       const struct dnn_shape *shape)
{
    static const char step[] = "tensor";
    if (g->tensors == DNN_MAX_TENSORS && g->status == PLIM_OK) {
        g->status = PLIM_BUG;
        snprintf(g->failure, sizeof g->failure, "more than %d tensors", DNN_MAX_TENSORS);
    }
    if (g->status != PLIM_OK) return 0;
    void *desc = make(g, DNN_DESC_TENSOR, step);
    int id = g->tensors++;
    int64_t uid = id + 1, alignment = 16;
    bool is_virtual = role == DNN_VIRTUAL, by_value = role == DNN_BY_VALUE;
    set_enum(g, desc, DNN_TENSOR_TYPE, DNN_VALUE_DATA_TYPE, type, step);
    set(g, desc, DNN_TENSOR_DIMS, DNN_VALUE_INT64, 4, shape->dim, step);
    set(g, desc, DNN_TENSOR_STRIDES, DNN_VALUE_INT64, 4, shape->stride, step);
    set(g, desc, DNN_TENSOR_ID, DNN_VALUE_INT64, 1, &uid, step);
    set(g, desc, DNN_TENSOR_ALIGNMENT, DNN_VALUE_INT64, 1, &alignment, step);
    set(g, desc, DNN_TENSOR_VIRTUAL, DNN_VALUE_BOOLEAN, 1, &is_virtual, step);
    set(g, desc, DNN_TENSOR_BY_VALUE, DNN_VALUE_BOOLEAN, 1, &by_value, step);
    finish(g, desc, step);
    g->tensor[id] = desc;
    g->shape[id] = *shape;
    return id;
}

static int constant(struct cudnn_graph *g, enum dnn_type type)
{
    static const struct dnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    if (g->constants.count == DNN_MAX_VALUES && g->status == PLIM_OK) {
        g->status = PLIM_BUG;
        snprintf(g->failure, sizeof g->failure, "more than %d constants", DNN_MAX_VALUES);
    }
    int id = cudnn_graph_tensor(g, DNN_BY_VALUE, type, &one);
    if (g->status == PLIM_OK) g->constants.tensor[g->constants.count++] = id;
    return id;
}

int cudnn_graph_f32(struct cudnn_graph *g, float value)
{
    int id = constant(g, DNN_F32);
    if (g->status == PLIM_OK) g->constants.value[g->constants.count - 1].f32 = value;
    return id;
}

int cudnn_graph_i32(struct cudnn_graph *g, int32_t value)
{
    int id = constant(g, DNN_I32);
    if (g->status == PLIM_OK) g->constants.value[g->constants.count - 1].i32 = value;
    return id;
}

static void add_op(struct cudnn_graph *g, void *op, const char *step)
{
    finish(g, op, step);
    if (g->status != PLIM_OK) return;
    if (g->ops < DNN_MAX_OPS) {
        g->op[g->ops++] = op;
        return;
    }
    g->status = PLIM_BUG;
    snprintf(g->failure, sizeof g->failure, "%s: more than %d ops", step, DNN_MAX_OPS);
}

/* x, b, t: operands, -1 when absent; axis: only of DNN_GEN_INDEX. */
static void pointwise(struct cudnn_graph *g, enum dnn_pointwise mode, enum dnn_type precision, int64_t axis,
                      const int operand[3], int y)
{
    static const enum dnn_attr slot[3] = {DNN_OP_POINTWISE_X, DNN_OP_POINTWISE_B, DNN_OP_POINTWISE_T};
    char step[48];
    snprintf(step, sizeof step, "op %d, pointwise %d", g->ops, (int)mode);
    void *desc = make(g, DNN_DESC_POINTWISE, step);
    set_enum(g, desc, DNN_POINTWISE_MODE, DNN_VALUE_POINTWISE_MODE, mode, step);
    set_enum(g, desc, DNN_POINTWISE_PRECISION, DNN_VALUE_DATA_TYPE, precision, step);
    if (mode == DNN_GEN_INDEX) set(g, desc, DNN_POINTWISE_AXIS, DNN_VALUE_INT64, 1, &axis, step);
    finish(g, desc, step);
    void *op = make(g, DNN_DESC_OP_POINTWISE, step);
    set_desc(g, op, DNN_OP_POINTWISE_DESC, desc, step);
    for (int i = 0; i < 3; i++)
        if (operand[i] >= 0) set_desc(g, op, slot[i], g->tensor[operand[i]], step);
    set_desc(g, op, DNN_OP_POINTWISE_Y, g->tensor[y], step);
    add_op(g, op, step);
}

void cudnn_graph_pointwise(struct cudnn_graph *g, enum dnn_pointwise mode, enum dnn_type precision, int x,
                           int b, int y)
{
    pointwise(g, mode, precision, 0, (int[3]){x, b, -1}, y);
}

static int fresh(struct cudnn_graph *g, enum dnn_type type, int like)
{
    struct dnn_shape shape = g->shape[like];
    int64_t step = 1;
    for (int i = 3; i >= 0; step *= shape.dim[i--]) shape.stride[i] = step;
    return cudnn_graph_tensor(g, DNN_VIRTUAL, type, &shape);
}

int cudnn_graph_apply(struct cudnn_graph *g, enum dnn_pointwise mode, int x, int b)
{
    int y = fresh(g, DNN_F32, x);
    cudnn_graph_pointwise(g, mode, DNN_F32, x, b, y);
    return y;
}

int cudnn_graph_index(struct cudnn_graph *g, int x, int64_t axis)
{
    int y = fresh(g, DNN_I32, x);
    pointwise(g, DNN_GEN_INDEX, DNN_F32, axis, (int[3]){x, -1, -1}, y);
    return y;
}

int cudnn_graph_compare(struct cudnn_graph *g, enum dnn_pointwise mode, int left, int right)
{
    int y = fresh(g, DNN_BOOL, left);
    cudnn_graph_pointwise(g, mode, DNN_BOOL, left, right, y);
    return y;
}

int cudnn_graph_select(struct cudnn_graph *g, int mask, int x, int otherwise)
{
    int y = fresh(g, DNN_F32, x);
    pointwise(g, DNN_SELECT, DNN_F32, 0, (int[3]){x, otherwise, mask}, y);
    return y;
}

void cudnn_graph_reduce(struct cudnn_graph *g, enum dnn_reduce mode, int x, int y)
{
    char step[48];
    snprintf(step, sizeof step, "op %d, reduction %d", g->ops, (int)mode);
    void *desc = make(g, DNN_DESC_REDUCTION, step);
    set_enum(g, desc, DNN_REDUCTION_MODE, DNN_VALUE_REDUCTION_MODE, mode, step);
    set_enum(g, desc, DNN_REDUCTION_PRECISION, DNN_VALUE_DATA_TYPE, DNN_F32, step);
    finish(g, desc, step);
    void *op = make(g, DNN_DESC_OP_REDUCTION, step);
    set_desc(g, op, DNN_OP_REDUCTION_DESC, desc, step);
    set_desc(g, op, DNN_OP_REDUCTION_X, g->tensor[x], step);
    set_desc(g, op, DNN_OP_REDUCTION_Y, g->tensor[y], step);
    add_op(g, op, step);
}

void cudnn_graph_matmul(struct cudnn_graph *g, int a, int b, int c)
{
    char step[48];
    snprintf(step, sizeof step, "op %d, matmul", g->ops);
    void *desc = make(g, DNN_DESC_MATMUL, step);
    set_enum(g, desc, DNN_MATMUL_PRECISION, DNN_VALUE_DATA_TYPE, DNN_F32, step);
    finish(g, desc, step);
    void *op = make(g, DNN_DESC_OP_MATMUL, step);
    set_desc(g, op, DNN_OP_MATMUL_DESC, desc, step);
    set_desc(g, op, DNN_OP_MATMUL_A, g->tensor[a], step);
    set_desc(g, op, DNN_OP_MATMUL_B, g->tensor[b], step);
    set_desc(g, op, DNN_OP_MATMUL_C, g->tensor[c], step);
    add_op(g, op, step);
}

void cudnn_graph_reshape(struct cudnn_graph *g, int x, int y)
{
    char step[48];
    snprintf(step, sizeof step, "op %d, reshape", g->ops);
    void *op = make(g, DNN_DESC_OP_RESHAPE, step);
    set_desc(g, op, DNN_OP_RESHAPE_X, g->tensor[x], step);
    set_desc(g, op, DNN_OP_RESHAPE_Y, g->tensor[y], step);
    add_op(g, op, step);
}

/* A plan for one engine configuration, or NULL with the reason in g->failure (not sticky: the next may do). */
static void *plan_for(struct cudnn_graph *g, void *config, size_t most, size_t *workspace)
{
    static const char step[] = "execution plan";
    int64_t bytes = 0, count = 0;
    int first = g->descs;
    void *plan = make(g, DNN_DESC_PLAN, step);
    set(g, plan, DNN_PLAN_HANDLE, DNN_VALUE_HANDLE, 1, &g->handle, step);
    set_desc(g, plan, DNN_PLAN_CONFIG, config, step);
    finish(g, plan, step);
    if (g->status == PLIM_OK) {
        int rc = g->api->get(plan, DNN_PLAN_WORKSPACE, DNN_VALUE_INT64, 1, &count, &bytes);
        if (rc) fail(g, "workspace size", rc);
    }
    *workspace = (size_t)bytes;
    if (g->status == PLIM_OK && *workspace > most) {
        snprintf(g->failure, sizeof g->failure, "needs %zu bytes of workspace, more than %zu", *workspace,
                 most);
        g->status = PLIM_UNSUPPORTED;
    }
    if (g->status == PLIM_OK) {
        g->descs--; /* out of the bag: the plan outlives the graph */
        return plan;
    }
    while (g->descs > first) g->api->destroy(g->desc[--g->descs]);
    if (g->status == PLIM_UNSUPPORTED) g->status = PLIM_OK;
    return NULL;
}

/* Reads the engine's description of itself. */
static void describe(struct cudnn_graph *g, void *config, struct cudnn_plan *plan)
{
    int note[DNN_NOTE_COUNT];
    int64_t count = 0;
    void *engine = make(g, DNN_DESC_ENGINE, "engine");
    plan->engine = -1;
    if (!engine || g->api->get(config, DNN_ENGINECFG_ENGINE, DNN_VALUE_DESCRIPTOR, 1, &count, &engine))
        return;
    if (g->api->get(engine, DNN_ENGINE_INDEX, DNN_VALUE_INT64, 1, &count, &plan->engine)) plan->engine = -1;
    if (g->api->get(engine, DNN_ENGINE_NUMERICAL_NOTE, DNN_VALUE_NUMERICAL_NOTE, DNN_NOTE_COUNT, &count,
                    note))
        return;
    for (int64_t i = 0; i < count && i < DNN_NOTE_COUNT; i++)
        if (note[i] == DNN_NOTE_NONDETERMINISTIC) plan->nondeterministic = true;
}

/* Engine configurations the heuristics propose, best first. */
static int proposals(struct cudnn_graph *g, void *graph, enum dnn_heuristic mode, void *config[], int room)
{
    static const char step[] = "engine heuristics";
    int64_t count = 0;
    void *heuristic = make(g, DNN_DESC_HEURISTIC, step);
    set_desc(g, heuristic, DNN_HEURISTIC_GRAPH, graph, step);
    set_enum(g, heuristic, DNN_HEURISTIC_MODE, DNN_VALUE_HEUR_MODE, mode, step);
    finish(g, heuristic, step);
    for (int i = 0; i < room; i++) config[i] = make(g, DNN_DESC_ENGINECFG, step);
    if (g->status == PLIM_OK) {
        int rc = g->api->get(heuristic, DNN_HEURISTIC_RESULTS, DNN_VALUE_DESCRIPTOR, room, &count, config);
        if (rc) fail(g, step, rc);
    }
    return g->status == PLIM_OK ? (int)count : 0;
}

enum { PROPOSALS = 8 };

enum plim_status cudnn_graph_plan(struct cudnn_graph *g, size_t most, struct cudnn_plan *plan,
                                  struct plim_error *err)
{
    static const enum dnn_heuristic modes[] = {DNN_HEUR_A, DNN_HEUR_FALLBACK};
    static const char step[] = "operation graph";
    void *config[PROPOSALS] = {NULL};
    memset(plan, 0, sizeof *plan);
    void *graph = make(g, DNN_DESC_GRAPH, step);
    set(g, graph, DNN_GRAPH_HANDLE, DNN_VALUE_HANDLE, 1, &g->handle, step);
    set(g, graph, DNN_GRAPH_OPS, DNN_VALUE_DESCRIPTOR, g->ops, g->op, step);
    finish(g, graph, step);
    if (g->status != PLIM_OK) return plim_fail(err, g->status, "cuDNN: %s", g->failure);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        int count = proposals(g, graph, modes[m], config, PROPOSALS);
        for (int i = 0; i < count && !plan->desc; i++) {
            plan->desc = plan_for(g, config[i], most, &plan->workspace);
            if (plan->desc) describe(g, config[i], plan);
        }
        if (plan->desc) break;
        if (g->status == PLIM_UNSUPPORTED) g->status = PLIM_OK; /* the other mode may know more */
    }
    if (!plan->desc)
        return plim_fail(err, PLIM_UNSUPPORTED, "cuDNN has no engine for this graph: %s",
                         g->failure[0] ? g->failure : "the heuristics propose none");
    plan->api = g->api;
    plan->handle = g->handle;
    plan->constants = g->constants;
    return PLIM_OK;
}

enum plim_status cudnn_plan_run(const struct cudnn_plan *plan, const struct cudnn_binding *bind, int count,
                                void *workspace, struct plim_error *err)
{
    const struct cudnn_api *api = plan->api;
    int64_t id[DNN_MAX_BINDINGS + DNN_MAX_VALUES];
    void *pointer[DNN_MAX_BINDINGS + DNN_MAX_VALUES], *pack = NULL;
    struct dnn_constants constants = plan->constants; /* cuDNN reads them through a plain void * */
    int n = 0;
    for (int i = 0; i < count; i++, n++) {
        id[n] = bind[i].tensor + 1;
        pointer[n] = bind[i].pointer;
    }
    for (int i = 0; i < constants.count; i++, n++) {
        id[n] = constants.tensor[i] + 1;
        pointer[n] = &constants.value[i];
    }
    int rc = api->create(DNN_DESC_VARIANT_PACK, &pack);
    if (!rc) rc = api->set(pack, DNN_PACK_IDS, DNN_VALUE_INT64, n, id);
    if (!rc) rc = api->set(pack, DNN_PACK_POINTERS, DNN_VALUE_POINTER, n, pointer);
    if (!rc) rc = api->set(pack, DNN_PACK_WORKSPACE, DNN_VALUE_POINTER, 1, &workspace);
    if (!rc) rc = api->finalize(pack);
    if (!rc) rc = api->execute(plan->handle, plan->desc, pack);
    char last[512] = "";
    if (rc && api->last_error) api->last_error(last, sizeof last);
    if (pack) api->destroy(pack);
    return rc ? plim_fail(err, PLIM_UNSUPPORTED, "cuDNN: running a plan: %s (%d) %s", api->status_text(rc),
                          rc, last)
              : PLIM_OK;
}

void cudnn_plan_release(struct cudnn_plan *plan)
{
    if (plan->desc) plan->api->destroy(plan->desc);
    memset(plan, 0, sizeof *plan);
}
