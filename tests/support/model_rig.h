/* model_rig.h - a model made ready to run in a test: tape, layout, device, weights, in one struct.
 *
 *     struct model_rig rig;
 *     rig_open(&rig, &(struct rig_options){.model = dir, .batch = 2, .time = 24, .grad = true});
 *     rig_write(&rig, "ids", ids, bytes);
 *     exec_loop(&rig.exec, 0, &rig.err);
 *     rig_close(&rig);
 *
 * Failures end the test through cmocka. */
#ifndef PLIM_TESTS_MODEL_RIG_H
#define PLIM_TESTS_MODEL_RIG_H

#include "exec/exec.h"
#include "model/adapter.h"
#include "model/freeze.h"
#include "tape/pass.h"

struct rig_options {
    const char *model; /* Hugging Face directory */
    int64_t batch, time, source_time;
    enum model_head head;
    struct preference_rule preference;
    int64_t packed; /* positions of a pair that shares its beginning (pass_share); 0: rows of their own */
    enum pooling pooling; /* of vectors, and whether they have length 1 */
    bool normalize, training;
    double dropout;                        /* training: of everything that may be dropped */
    bool grad, update;                     /* backward; the optimizer, with the golden files' settings */
    const struct model_freezing *freezing; /* NULL: every parameter is trained */
    const char *adapter;                   /* PEFT folder of an adapter that is trained; NULL: none */
    bool in_blocks;                        /* frozen weights stay in the blocks of the model's files */
    enum optimizer optimizer;
    bool no_master, narrow_state, narrow_grads, keep_fp8;
    enum precision precision;
    struct recompute_options recompute;
    int loss_chunks;
    bool in_backward, global_norm;
    struct offload_options offload; /* all zero: optimizer state stays on the device */
    int64_t accumulation;           /* 0: 1 */
    int threads;
};

struct model_rig {
    struct model_spec spec;
    struct adapter_options adapter_options;
    struct adapter *adapter; /* NULL: none */
    struct bump bump;        /* its memory */
    struct tape tape;
    struct layout layout;
    struct device *device;
    struct exec exec;
    struct disk_store *far; /* NULL unless something lives on disk; its file is below /tmp */
    struct plim_error err;
};

void rig_open(struct model_rig *rig, const struct rig_options *options);
void rig_close(struct model_rig *rig);
void rig_write(struct model_rig *rig, const char *label, const void *data, size_t bytes);
void rig_read(struct model_rig *rig, int tensor, void *data, size_t bytes);

#endif
