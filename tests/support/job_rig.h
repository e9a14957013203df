/* job_rig.h - a finished job from a few key=value texts, for planner tests. */
#ifndef PLIM_TESTS_JOB_RIG_H
#define PLIM_TESTS_JOB_RIG_H

#include "job/job.h"
#include "job/preset.h"

/* Starts from defaults; keys end with NULL. Fails the test when a key is refused. */
void rig_job(struct job *job, const char *const *keys);

/* Data while a group of tests runs between make and drop: "data.train=FILE" and "data.validation=FILE" of the same file, which is
 * running text, or RIG_SAMPLES JSON lines {"text": ...} of different lengths. */
extern char rig_corpus[300], rig_validation[300];
enum { RIG_SAMPLES = 120 };
int rig_corpus_make(void **state);
int rig_samples_make(void **state);
int rig_corpus_drop(void **state);

extern const char *const rig_small[], *const rig_gpt2[], *const rig_llama_1b[], *const rig_llama_70b[];

#endif
