/* model_run.h - a few optimizer steps of a golden model over fixed tokens: what came out, to compare bit by
 * bit.
 *
 *     struct model_run a, b;
 *     model_run(&a, "llama-tied", &(struct rig_options){.loss_chunks = 1}, 2);
 *     model_run(&b, "llama-tied", &(struct rig_options){.loss_chunks = 2}, 2);
 *     assert_true(model_run_same(&a, &b));
 */
#ifndef PLIM_TESTS_MODEL_RUN_H
#define PLIM_TESTS_MODEL_RUN_H

#include "support/model_rig.h"

#define MODEL_RUN_STEPS 4
#if defined(__SANITIZE_THREAD__)
#define MODEL_RUN_ROWS 16 /* two slices, and enough for every thread to have some */
#else
#define MODEL_RUN_ROWS 32 /* with 40 tokens: three slices of the loss */
#endif
#define MODEL_RUN_TIME 40

struct model_run {
    double loss[MODEL_RUN_STEPS];
    uint64_t weights; /* hash of all parameters after the last step */
    int steps;
};

/* options: model, batch, time, head, grad and update are filled in; accumulation splits the rows. */
void model_run(struct model_run *run, const char *golden, const struct rig_options *options, int steps);
bool model_run_same(const struct model_run *a, const struct model_run *b);

#endif
