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

/* Keys of LLaMA-70B's shape: rig_llama_70b has these and a batch of 64 rows of 2048. */
#define RIG_SHAPE_70B                                                                                        \
    "model.architecture=llama", "model.vocab_size=128256", "model.hidden_size=8192",                         \
        "model.intermediate_size=28672", "model.num_layers=80", "model.num_attention_heads=64",              \
        "model.num_key_value_heads=8"

extern const char *const rig_small[], *const rig_gpt2[], *const rig_llama_1b[], *const rig_llama_70b[];

#endif
