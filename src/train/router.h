/* router.h - statistics of a step's experts: the router's losses, and the rows of each expert.
 *
 *     router_bind(&router, tape, &err);                    // after a plan or a re-plan
 *     router_read(&router, &exec, passes, &err);           // after the last micro-batch of a step
 *     if (router.experts) ... router.balance, router.load[layer * router.experts + e] ...
 *     router_release(&router);
 */
#pragma once

#include "exec/exec.h"

struct router {
    int layers, experts; /* layers with experts; 0: the model has none */
    double balance, z;   /* weighted losses, averaged over the step's micro-batches */
    float *load;         /* [layers, experts]: rows in the step, without padding */
    int *layer;          /* [layers]: the layers that have experts */
    int loss_id, load_id;
};

enum plim_status router_bind(struct router *router, const struct tape *tape, struct plim_error *err);
/* passes: micro-batches with rows, over all ranks. */
enum plim_status router_read(struct router *router, struct exec *exec, int64_t passes,
                             struct plim_error *err);
void router_release(struct router *router);

/* The busiest expert of a layer; *share is its load relative to an even load. */
int router_busiest(const struct router *router, int layer, double *share);
/* Experts of a layer without rows. */
int router_idle(const struct router *router, int layer);
