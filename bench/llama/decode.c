/* decode.c - tokens per second of llama.cpp, for serve_cpu.py, which compiles it against llama.cpp's library.
 *
 *     decode MODEL THREADS STREAMS PROMPT ANSWER      prints "PREFILL DECODE PREFILL DECODE": tokens per second
 *                                                     of wall time, and of the process's CPU time
 *
 * Every stream reads a prompt and then writes the likeliest token each time, all streams in one batch. */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
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

int main(int argc, char **argv)
{
    if (argc != 6) return 1;
    int threads = atoi(argv[2]), streams = atoi(argv[3]), prompt = atoi(argv[4]), answer = atoi(argv[5]);
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = 1024, p.n_batch = p.n_ubatch = 512, p.n_threads = p.n_threads_batch = threads;
    p.n_seq_max = (uint32_t)streams;
    struct llama_context *c = model ? llama_init_from_model(model, p) : NULL;
    if (!c) return 3;
    struct llama_sampler *best = llama_sampler_init_greedy();
    struct llama_batch b = llama_batch_init(512, 0, streams);
    for (int i = 0; i < 8; i++) put(&b, 5, i, 0, i == 7); /* everything is touched once */
    run(c, &b);
    llama_memory_clear(llama_get_memory(c), true);
    b.n_tokens = 0;
    for (int s = 0; s < streams; s++)
        for (int i = 0; i < prompt; i++) put(&b, 10 + i % 200, i, s, i == prompt - 1);
    struct moment begin = now();
    run(c, &b);
    struct moment read = since(begin);
    llama_token token[64];
    for (int s = 0; s < streams; s++) token[s] = llama_sampler_sample(best, c, s * prompt + prompt - 1);
    begin = now();
    for (int step = 0; step + 1 < answer; step++) {
        b.n_tokens = 0;
        for (int s = 0; s < streams; s++) put(&b, token[s], prompt + step, s, true);
        run(c, &b);
        for (int s = 0; s < streams; s++) token[s] = llama_sampler_sample(best, c, s);
    }
    struct moment wrote = since(begin);
    int prompts = streams * prompt, answers = streams * (answer - 1);
    printf("%f %f %f %f\n", prompts / read.wall, answers / wrote.wall, prompts / read.cpu,
           answers / wrote.cpu);
    return 0;
}
