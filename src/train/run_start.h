/* run_start.h - how a run begins in its output folder: anew, in place of an old run, or from a checkpoint that is whole and
 * was made by the same job.
 *
 *     struct run_start start;
 *     run_start_begin(&start, &job, &length, &corpus, device, &options, &err);
 *     struct knobs pins;
 *     run_start_pins(&start, &job, &pins);             // what of the checkpoint's plan decides bits
 *     ... plan, commit; checkpoint_restore(start.saved, ...) or fresh weights ...
 *     run_start_end(&start);                           // after the last save: gives the folder back
 *
 * What decides the result (run_facts.h) is in every checkpoint's manifest. A run that goes on with another value is
 * refused in one line that names the key, what it was and what it is, unless the user accepts the change by name.
 * "manifest" stands for a checkpoint of a version that wrote none.
 */
#ifndef PLIM_TRAIN_RUN_START_H
#define PLIM_TRAIN_RUN_START_H

#include "base/bump.h"
#include "device/device.h"
#include "train/checkpoint.h"
#include "train/corpus.h"
#include "train/run_lock.h"

struct run_options {
    bool resume;    /* go on from the newest checkpoint, if there is one */
    bool overwrite; /* checkpoints that are there go with the first save */
    bool saves;     /* the run may write checkpoints: only then it takes the folder's lock */
    const struct string_list *changes; /* accepted by name; NULL: none */
};

struct run_start {
    struct run_lock lock;
    struct doc *facts;                       /* what decides the result */
    struct checkpoint *saved;                /* where the run goes on; NULL: it begins anew */
    bool replaces;                           /* the first save removes the checkpoints of the run before */
    bool order_changed;                      /* a change was accepted that the order of rows depends on */
    bool free_micro_batch, free_loss_chunks; /* likewise: the plan may choose anew */
    int64_t now;                             /* see manifest.h; 0: no chat template */
    struct strbuf notes;                     /* a line each: accepted changes, another machine */
};

/* PLIM_BAD_INPUT: the folder is in use, used or unusable, the checkpoint damaged, or something differs. After an error
 * run_start_end still has to be called. */
enum plim_status run_start_begin(struct run_start *start, const struct job *job,
                                 const struct job_length *length, const struct corpus *corpus,
                                 const struct device *device, const struct run_options *options,
                                 struct plim_error *err);
void run_start_end(struct run_start *start);

/* Pins of the next plan that keep the bits of the checkpoint's: rows of a micro-batch, and loss slices where gradients
 * in bf16 know them. KNOB_OPEN: nothing to pin, or the job pins it itself. */
void run_start_pins(const struct run_start *start, const struct job *job, struct knobs *pins);

#endif
