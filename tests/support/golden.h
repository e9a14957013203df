/* golden.h - cases of tests/golden: PyTorch's numbers for a small model, and our own for the same rows.
 *
 *     struct golden g;
 *     struct model_rig rig = {0};
 *     golden_open(&g, "llama-tied");
 *     golden_run(&rig, &g, &(struct rig_options){.head = HEAD_LOGITS}, 0);
 *     float *have = golden_floats(&rig, tape_find(&rig.tape, "logits", -1));
 *     float *want = golden_read(&g, "logits", DT_F32, &count);
 *     ... golden_error(have, want, count, 0) <= GOLDEN_TOLERANCE
 *
 * Failures end the test through cmocka. What is returned by pointer is the caller's to free. */
#ifndef PLIM_TESTS_GOLDEN_H
#define PLIM_TESTS_GOLDEN_H

#include "model/weights.h"
#include "store/safetensors.h"
#include "support/model_rig.h"

#define GOLDEN_TOLERANCE 1e-5 /* relative, in fp32 */

struct golden {
    char name[64];
    char model[512]; /* folder of the model: the case's, or that of the case which its file MODEL names */
    struct safetensors expected;
    int64_t batch, time, source_time; /* source_time 0: there is no source */
    int64_t counted;                  /* targets */
};

/* Folder of a case: below $GOLDEN_DIR, where a live comparison has made fresh ones, or beside the sources. */
const char *golden_model(const char *name, char *buf, size_t size);

void golden_open(struct golden *g, const char *name);
void golden_close(struct golden *g);

/* A tensor of the file; NULL: there is none. `count` may be NULL. */
void *golden_read(const struct golden *g, const char *name, enum dtype type, int64_t *count);

/* Forward, and backward where `how` asks for it, over the case's rows; of AdamW the scalars of `step`. A rig that is all zero
 * is opened first, with the case's model and shape in `how`. */
void golden_run(struct model_rig *rig, const struct golden *g, const struct rig_options *how, int step);

/* A tensor of any floating type. */
float *golden_floats(struct model_rig *rig, int id);

/* |have - want| / |want|, or |have - want| where |want| is `nothing` or less. */
double golden_error(const float *have, const float *want, int64_t n, double nothing);

/* Errors of gradients, a parameter of the files each. Those whose norm is `nothing` or less are rounding alone, like that of
 * a bias of keys, which softmax does not see: they count for `worst` and not for the sums. */
struct golden_errors {
    double worst;
    char worst_name[192];
    double ours, torch; /* sums of squares of errors: ours, and of PyTorch's bf16 */
    int count;          /* in the sums */
    struct {
        double diff, norm;
    } whole;     /* squares of all gradients as one vector: of our error, and of PyTorch's fp32 */
    double most; /* largest error as a multiple of PyTorch's in bf16 */
    char most_name[192];
};
struct golden_errors golden_gradients(struct model_rig *rig, const struct golden *g, double nothing);

/* Ten steps of AdamW: losses, and router's, within GOLDEN_TOLERANCE of PyTorch's, or of `least` where those are smaller.
 * Returns the sum of our losses, for comparing bits; a case without losses ends the test. */
double golden_losses(const struct golden *g, const struct rig_options *how, double least);

#endif
