/* router.c - see router.h. */
#include "train/router.h"

#include <stdlib.h>

enum plim_status router_bind(struct router *r, const struct tape *tape, struct plim_error *err)
{
    router_release(r);
    r->loss_id = tape_find(tape, "router.loss", -1), r->load_id = tape_find(tape, "router.load", -1);
    if (r->load_id < 0) return PLIM_OK;
    const struct tensor *load = &tape->tensors[r->load_id];
    r->layers = (int)load->dim[0], r->experts = (int)load->dim[1];
    r->load = calloc((size_t)tensor_count(load), sizeof *r->load);
    r->layer = calloc((size_t)r->layers, sizeof *r->layer);
    for (int i = 0, n = 0; r->layer && i < tape->nops && n < r->layers; i++)
        if (tape->ops[i].kind == OP_ROUTE && tape->ops[i].part == PART_FORWARD)
            r->layer[n++] = tape->ops[i].layer;
    return r->load && r->layer ? PLIM_OK
                               : plim_fail(err, PLIM_NO_MEMORY, "out of memory for the experts' load");
}

enum plim_status router_read(struct router *r, struct exec *exec, int64_t passes, struct plim_error *err)
{
    double loss[3] = {0};
    if (!r->experts) return PLIM_OK;
    int64_t bytes = (int64_t)r->layers * r->experts * (int64_t)sizeof *r->load;
    enum plim_status status = exec_read(exec, r->loss_id, loss, 0, sizeof loss, err);
    if (status == PLIM_OK) status = exec_read(exec, r->load_id, r->load, 0, bytes, err);
    if (status == PLIM_OK) status = comm_sum_numbers(exec->device->comm, loss, 3, err);
    r->balance = loss[0] / (double)passes, r->z = loss[1] / (double)passes;
    return status;
}

void router_release(struct router *r)
{
    free(r->load);
    free(r->layer);
    *r = (struct router){0};
}

int router_busiest(const struct router *r, int layer, double *share)
{
    const float *load = r->load + (int64_t)layer * r->experts;
    double sum = 0;
    int most = 0;
    for (int e = 0; e < r->experts; e++) {
        sum += (double)load[e];
        if (load[e] > load[most]) most = e;
    }
    *share = sum > 0 ? (double)load[most] * r->experts / sum : 0;
    return most;
}

int router_idle(const struct router *r, int layer)
{
    int idle = 0;
    for (int e = 0; e < r->experts; e++) idle += r->load[(int64_t)layer * r->experts + e] == 0;
    return idle;
}
