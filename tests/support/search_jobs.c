/* search_jobs.c - see search_jobs.h. */
#include "support/search_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB      ((double)(1 << 30))
#define OVERHEAD (8 << 20)
#define KEYS     12
#define BUDGETS  12

#define LLAMA_1B                                                                                             \
    "model.architecture=llama model.vocab_size=128256 model.hidden_size=2048 model.intermediate_size=8192 "  \
    "model.num_layers=16 model.num_attention_heads=32 model.num_key_value_heads=8 "                          \
    "model.tie_word_embeddings=true data.max_length=2048 training.batch_size=4 "                             \
    "training.mixed_precision=bf16 training.max_grad_norm=1 "
#define LLAMA_8B                                                                                             \
    "model.architecture=llama model.vocab_size=128256 model.hidden_size=4096 model.intermediate_size=14336 " \
    "model.num_layers=32 model.num_attention_heads=32 model.num_key_value_heads=8 data.max_length=2048 "     \
    "training.batch_size=8 training.gradient_accumulation_steps=8 training.mixed_precision=bf16 "            \
    "training.max_grad_norm=1 training.grad_dtype=bf16 "
#define LLAMA_70B                                                                                            \
    "model.architecture=llama model.vocab_size=128256 model.hidden_size=8192 model.intermediate_size=28672 " \
    "model.num_layers=80 model.num_attention_heads=64 model.num_key_value_heads=8 data.max_length=2048 "     \
    "training.batch_size=64 training.mixed_precision=bf16 training.max_grad_norm=1 "
#define GPT2                                                                                                 \
    "model.architecture=gpt2 model.vocab_size=50304 model.hidden_size=768 model.num_layers=12 "              \
    "model.num_attention_heads=12 data.max_length=1024 training.batch_size=32 "                              \
    "training.mixed_precision=bf16 training.max_grad_norm=1 "
#define SMALL                                                                                                \
    "model.architecture=llama model.vocab_size=512 model.hidden_size=128 model.intermediate_size=352 "       \
    "model.num_layers=6 model.num_attention_heads=4 model.num_key_value_heads=2 data.max_length=128 "        \
    "training.batch_size=8 training.gradient_accumulation_steps=2 training.max_grad_norm=1 "
#define NARROW "training.grad_dtype=bf16 "
#define BF16   NARROW "training.master_weights=none training.state_dtype=bf16 "
#define FREE   "training.max_grad_norm=0 " /* the optimizer may run inside backward */

static const struct row {
    const char *name, *keys, *preset;
    double host_gib;         /* 0: no limit */
    double budgets[BUDGETS]; /* GiB; 0 ends the list, -1: all the device has */
} rows[] = {
    {"llama-1b", LLAMA_1B NARROW, "h200", 0, {-1, 24, 21.5, 20, 18.8, 16, 12, 10, 8, 6, 4, 3}},
    {"llama-1b-f32grad", LLAMA_1B, "h200", 0, {-1, 24, 21.5, 20, 18.8, 16, 12, 10, 8, 6, 4, 3}},
    {"llama-1b-bf16", LLAMA_1B BF16, "h200", 0, {-1, 13.7, 11, 8, 6}},
    {"llama-1b-16x4",
     LLAMA_1B BF16 "training.batch_size=16 training.gradient_accumulation_steps=4 ",
     "h200",
     0,
     {24, 16, 12}},
    {"llama-1b-free", LLAMA_1B NARROW FREE, "h200", 0, {24, 16, 12, 8, 5, 3}},
    {"gpt2", GPT2, "h200", 0, {-1, 9, 6, 4}},
    {"llama-8b", LLAMA_8B, "h200", 100, {-1, 80, 60, 40, 24, 16, 12}},
    {"llama-70b", LLAMA_70B, "h200", 0, {-1, 100, 64, 32}},
    {"llama-1b", LLAMA_1B "training.batch_size=16 ", "h100", 0, {-1, 40, 24, 18, 12, 8, 5}},
    {"llama-8b", LLAMA_8B, "h100", 0, {-1, 48, 32, 24, 16}},
    {"llama-70b", LLAMA_70B, "h100", 0, {-1, 60, 40}},
    {"llama-1b", LLAMA_1B, "rtx-4090", 0, {-1, 20, 16, 12, 10, 8, 6, 4}},
    {"llama-1b-free", LLAMA_1B FREE, "rtx-4090", 0, {20, 16, 12, 8, 6, 4}},
    {"llama-8b", LLAMA_8B, "rtx-4090", 120, {-1, 20, 16, 12}},
    {"gpt2", GPT2, "rtx-4090", 0, {-1, 8, 5, 3}},
    {"llama-1b-128",
     LLAMA_1B "training.batch_size=1 training.gradient_accumulation_steps=128 ",
     "a10g",
     0,
     {-1, 18, 15, 12, 8, 5}},
    {"gpt2", GPT2, "a10g", 0, {-1, 8, 5, 3}},
    {"gpt2-f32",
     GPT2 "training.mixed_precision=fp32 training.batch_size=4 data.max_length=256 ",
     "cpu-4gb",
     0,
     {-1, 3, 2.5, 2, 1.5, 1}},
    {"small", SMALL, "cpu-4gb", 0, {-1, 0.1, 0.05, 0.04, 0.03}},
    {"small-free", SMALL FREE, "cpu-1gb", 0, {-1, 0.06, 0.04, 0.03}},
};

static int budgets_of(const struct row *row)
{
    int n = 0;
    while (n < BUDGETS && row->budgets[n] != 0) n++;
    return n;
}

int search_job_count(void)
{
    int n = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) n += budgets_of(&rows[r]);
    return n;
}

static void must(enum plim_status status, const struct plim_error *err)
{
    if (status == PLIM_OK) return;
    fprintf(stderr, "search_jobs: %s\n", err->text);
    exit(1);
}

const char *search_job_open(int i, char *buf, size_t size, struct job *job, struct preset *preset,
                            struct plan_request *request)
{
    struct plim_error err = {0};
    const struct row *row = rows;
    for (int n; i >= (n = budgets_of(row)); row++) i -= n;
    char keys[1024];
    snprintf(keys, sizeof keys, "%s", row->keys);
    job_init(job);
    must(schema_defaults(&job_schema, job, &job->store, &err), &err);
    for (char *word = strtok(keys, " "); word; word = strtok(NULL, " "))
        must(job_set(job, word, NULL, &err), &err);
    must(job_finish(job, &err), &err);
    must(preset_find(row->preset, preset, &err), &err);
    job_request(job, &preset->facts, OVERHEAD, request);
    double gib = row->budgets[i];
    request->budget = gib < 0 ? (int64_t)preset->facts.memory_bytes : (int64_t)(gib * GIB);
    if (row->host_gib > 0) request->host_budget = (int64_t)(row->host_gib * GIB);
    if (gib < 0)
        snprintf(buf, size, "%s/%s/all", row->name, row->preset);
    else
        snprintf(buf, size, "%s/%s/%g", row->name, row->preset, gib);
    return buf;
}
