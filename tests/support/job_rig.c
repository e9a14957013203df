/* job_rig.c - see job_rig.h. */
#define _GNU_SOURCE /* mkstemps */
#include "support/job_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

const char *const rig_small[] = {"model.architecture=llama",
                                 "model.vocab_size=512",
                                 "model.hidden_size=128",
                                 "model.intermediate_size=352",
                                 "model.num_layers=6",
                                 "model.num_attention_heads=4",
                                 "model.num_key_value_heads=2",
                                 "data.max_length=128",
                                 "training.batch_size=8",
                                 "training.gradient_accumulation_steps=2",
                                 NULL};
const char *const rig_gpt2[] = {
    "model.architecture=gpt2", "model.vocab_size=50257",        "model.hidden_size=768",
    "model.num_layers=12",     "model.num_attention_heads=12",  "data.max_length=1024",
    "training.batch_size=32",  "training.mixed_precision=bf16", NULL};
const char *const rig_llama_1b[] = {"model.architecture=llama",      "model.vocab_size=128256",
                                    "model.hidden_size=2048",        "model.intermediate_size=8192",
                                    "model.num_layers=16",           "model.num_attention_heads=32",
                                    "model.num_key_value_heads=8",   "model.tie_word_embeddings=true",
                                    "data.max_length=2048",          "training.batch_size=16",
                                    "training.mixed_precision=bf16", NULL};
const char *const rig_llama_70b[] = {RIG_SHAPE_70B, "data.max_length=2048", "training.batch_size=64",
                                     "training.mixed_precision=bf16", NULL};

void rig_job(struct job *job, const char *const *keys)
{
    struct plim_error err = {0};
    job_init(job);
    if (schema_defaults(&job_schema, job, &job->store, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (; *keys; keys++)
        if (job_set(job, *keys, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (job_finish(job, &err) != PLIM_OK) fail_msg("%s", err.text);
}

char rig_corpus[300], rig_validation[300];

static FILE *make_file(const char *ending)
{
    const char *tmp = getenv("TMPDIR");
    char path[256];
    snprintf(path, sizeof path, "%s/corpus-XXXXXX%s", tmp ? tmp : "/tmp", ending);
    int fd = mkstemps(path, (int)strlen(ending));
    snprintf(rig_corpus, sizeof rig_corpus, "data.train=%s", path);
    snprintf(rig_validation, sizeof rig_validation, "data.validation=%s", path);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

int rig_corpus_make(void **state)
{
    (void)state;
    FILE *file = make_file("");
    for (int i = 0; file && i < 400; i++) fprintf(file, "the %d ships of line %d\n", i % 7, i % 11);
    return file && !fclose(file) ? 0 : -1;
}

int rig_samples_make(void **state)
{
    (void)state;
    FILE *file = make_file(".jsonl");
    for (int i = 0; file && i < RIG_SAMPLES; i++) {
        int length = i % 11 == 0 ? 90 : 4 + i * 7 % 30;
        fprintf(file, "{\"text\":\"");
        for (int k = 0; k < length; k++) fputc('a' + (i * 3 + k * k) % 26, file);
        fprintf(file, "\"}\n");
    }
    return file && !fclose(file) ? 0 : -1;
}

int rig_corpus_drop(void **state)
{
    (void)state;
    return unlink(strchr(rig_corpus, '=') + 1);
}
