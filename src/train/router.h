/* router.h - what a step tells of its experts: the router's losses, and how many rows each expert had.
 *
 *     router_bind(&router, tape, &err);                    // after a plan or a re-plan
 *     router_read(&router, &exec, passes, &err);           // after the last micro-batch of a step
 *     if (router.experts) ... router.balance, router.load[layer * router.experts + e] ...
 *     router_release(&router);
 */
#ifndef PLIM_TRAIN_ROUTER_H
#define PLIM_TRAIN_ROUTER_H

#include "exec/exec.h"

struct router {
    int layers, experts; /* layers with experts; 0: the model has none */
    double balance, z;   /* losses, with their weights: the mean of the step's micro-batches */
    float *load;         /* [layers, experts]: rows of the step, without padding */
    int *layer;          /* [layers]: which of the model's layers have experts */
    int loss_id, load_id;
};

enum plim_status router_bind(struct router *router, const struct tape *tape, struct plim_error *err);
/* passes: micro-batches of the step that had rows, of all ranks. */
enum plim_status router_read(struct router *router, struct exec *exec, int64_t passes,
                             struct plim_error *err);
void router_release(struct router *router);

/* The busiest expert of a layer, and its rows in units of an even load. */
int router_busiest(const struct router *router, int layer, double *share);
/* Experts of a layer without a row. */
int router_idle(const struct router *router, int layer);

#endif
