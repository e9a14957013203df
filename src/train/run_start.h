/* run_start.h - how a run begins in its output folder: from scratch, replacing an old run, or from an intact checkpoint of
 * the same job.
 *
 *     struct run_start start;
 *     run_start_begin(&start, &job, &length, &corpus, device, &options, &err);
 *     struct knobs pins;
 *     run_start_pins(&start, &job, &pins);             // knobs of the checkpoint's plan that affect bits
 *     ... plan, commit; checkpoint_restore(start.saved, ...) or fresh weights ...
 *     run_start_end(&start);                           // after the last save: releases the folder
 *
 * Every checkpoint's manifest records the facts that determine the result (run_facts.h). Resuming with another value is
 * refused with one line that names the key and both values, unless the user accepts the change by name. "manifest" is the
 * name for a checkpoint written by a version without manifests.
 */
#pragma once

#include "base/bump.h"
#include "device/device.h"
#include "train/checkpoint.h"
#include "train/corpus.h"
#include "train/run_lock.h"

struct run_options {
    bool resume;                       /* continue from the newest checkpoint, if there is one */
    bool overwrite;                    /* the first save removes existing checkpoints */
    bool saves;                        /* the run may write checkpoints; only then it locks the folder */
    const struct string_list *changes; /* accepted by name; NULL: none */
};

struct run_start {
    struct run_lock lock;
    struct doc *facts;                       /* see run_facts.h */
    struct checkpoint *saved;                /* to resume from; NULL: start from scratch */
    bool replaces;                           /* the first save removes the previous run's checkpoints */
    bool order_changed;                      /* an accepted change affects the order of rows */
    bool free_micro_batch, free_loss_chunks; /* likewise: the plan may choose again */
    int64_t now;                             /* see manifest.h; 0: no chat template */
    struct strbuf notes;                     /* one per line: accepted changes, another machine */
};

/* PLIM_BAD_INPUT: the folder is in use or unusable, the checkpoint is damaged, or something differs. Call
 * run_start_end even after an error. */
enum plim_status run_start_begin(struct run_start *start, const struct job *job,
                                 const struct job_length *length, const struct corpus *corpus,
                                 const struct device *device, const struct run_options *options,
                                 struct plim_error *err);
void run_start_end(struct run_start *start);

/* Pins for the next plan that preserve the checkpoint's bits: rows of a micro-batch, and loss slices if bf16
 * gradients depend on them. KNOB_OPEN: nothing to pin, or the job pins it. */
void run_start_pins(const struct run_start *start, const struct job *job, struct knobs *pins);
