/* decode.c - tokens per second of llama.cpp, for serve_cpu.py and gpu/serve.py, which compile it against llama.cpp's library.
 *
 *     decode MODEL THREADS STREAMS PROMPT ANSWER [BATCH [given]]
 *
 * It prints "PREFILL DECODE PREFILL DECODE": tokens per second of wall time, and of the process's CPU time.
 * Every stream reads a prompt, BATCH (512) tokens of all prompts at a time, and then writes the likeliest token each time,
 * all streams in one batch. With "given" no token is chosen, as in llama.cpp's own benchmarks: choosing among 128,256 on one
 * thread takes longer than a GPU's step. A library that was built for a GPU has all layers on it. */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct moment {
    double wall, cpu;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct moment now(void)
{
    return (struct moment){seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

static struct moment since(struct moment begin)
{
    struct moment end = now();
    return (struct moment){end.wall - begin.wall, end.cpu - begin.cpu};
}

static void quiet(enum ggml_log_level level, const char *text, void *data)
{
    (void)level, (void)text, (void)data;
}

static void put(struct llama_batch *b, llama_token token, int position, int stream, bool logits)
{
    int i = b->n_tokens++;
    b->token[i] = token, b->pos[i] = position, b->n_seq_id[i] = 1, b->seq_id[i][0] = stream;
    b->logits[i] = logits;
}

static void run(struct llama_context *c, struct llama_batch *b)
{
    if (llama_decode(c, *b)) exit(2);
    llama_synchronize(c);
}

/* The next token of each stream whose last position is in the batch; empties the batch. best: NULL: any token will do. */
static void next_tokens(struct llama_context *c, struct llama_sampler *best, struct llama_batch *b,
                        llama_token *token)
{
    for (int i = 0; i < b->n_tokens; i++)
        if (b->logits[i]) token[b->seq_id[i][0]] = best ? llama_sampler_sample(best, c, i) : 10 + i;
    b->n_tokens = 0;
}

/* Every stream reads its prompt. */
static void read_prompts(struct llama_context *c, struct llama_sampler *best, struct llama_batch *b,
                         int streams, int prompt, int batch, llama_token *token)
{
    for (int s = 0; s < streams; s++)
        for (int i = 0; i < prompt; i++) {
            put(b, 10 + i % 200, i, s, i == prompt - 1);
            bool last = s == streams - 1 && i == prompt - 1;
            if (b->n_tokens == batch || last) run(c, b), next_tokens(c, best, b, token);
        }
}

/* Every stream writes tokens behind its first `from` positions. */
static void write_answers(struct llama_context *c, struct llama_sampler *best, struct llama_batch *b,
                          int streams, int from, int tokens, llama_token *token)
{
    for (int step = 0; step < tokens; step++) {
        for (int s = 0; s < streams; s++) put(b, token[s], from + step, s, true);
        run(c, b);
        next_tokens(c, best, b, token);
    }
}

static struct llama_context *open_model(const char *path, int threads, int streams, int positions, int batch)
{
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 999;
    struct llama_model *model = llama_model_load_from_file(path, of_model);
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(streams * positions), p.n_batch = p.n_ubatch = (uint32_t)batch;
    p.n_threads = p.n_threads_batch = threads, p.n_seq_max = (uint32_t)streams;
    return model ? llama_init_from_model(model, p) : NULL;
}

int main(int argc, char **argv)
{
    if (argc < 6) return 1;
    int threads = atoi(argv[2]), streams = atoi(argv[3]), prompt = atoi(argv[4]), answer = atoi(argv[5]);
    int batch = argc > 6 ? atoi(argv[6]) : 512, positions = (prompt + answer + 255) / 256 * 256;
    if (positions * streams < 1024) positions = 1024 / streams;
    struct llama_context *c = open_model(argv[1], threads, streams, positions, batch);
    llama_token *token = calloc((size_t)streams, sizeof *token);
    if (!c || !token) return 3;
    struct llama_sampler *best = argc > 7 && !strcmp(argv[7], "given") ? NULL : llama_sampler_init_greedy();
    struct llama_batch b = llama_batch_init(batch > streams ? batch : streams, 0, 1);
    /* Once before measuring: kernels are loaded and graphs recorded. */
    read_prompts(c, best, &b, streams, prompt, batch, token);
    write_answers(c, best, &b, streams, prompt, answer < 9 ? answer - 1 : 8, token);
    llama_memory_clear(llama_get_memory(c), true);
    struct moment begin = now();
    read_prompts(c, best, &b, streams, prompt, batch, token);
    struct moment read = since(begin);
    begin = now();
    write_answers(c, best, &b, streams, prompt, answer - 1, token);
    struct moment wrote = since(begin);
    int prompts = streams * prompt, answers = streams * (answer - 1);
    printf("%f %f %f %f\n", prompts / read.wall, answers / wrote.wall, prompts / read.cpu,
           answers / wrote.cpu);
    return 0;
}
