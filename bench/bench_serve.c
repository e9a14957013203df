/* bench_serve.c - how fast the engine reads and writes: prompts of random tokens, the likeliest token each time.
 *
 *     bench_serve MODEL DEVICE [LINE...]        LINE is KIND:STREAMS:PROMPT:TOKENS[:GOAL], e.g. decode:64:512:128:35000
 *
 * KIND is decode (tokens per second from when all streams write until the first one ends), all (answers of all streams
 * over the whole time, prompts read), or prefill (tokens of the prompts over the time to the last first token). Each line has
 * an engine of its own; "first" is the time from opening the device to the first token of the line. Without a LINE: those
 * with goals for LLaMA-1B on an H200. */
#include "base/clock.h"
#include "base/rng.h"
#include "device/registry.h"
#include "serve/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum { STREAMS_MOST = 4096 };

struct line {
    char kind[16];
    int streams;
    long long prompt, tokens;
    double goal;
};

static char *const usual[] = {"decode:1:8:64:1200",       "decode:1:8:512:1200",   "decode:64:512:128:35000",
                              "decode:256:512:128:60000", "all:256:512:128:25000", "prefill:1:5500:1:150000"};

struct run {
    double begun, first, last_first, all_writing, first_end, end;
    int64_t made, at_writing, at_end;
    int writing, streams, steps;
};

struct stream {
    struct run *run;
    int64_t made;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct stream *s = arg;
    struct run *r = s->run;
    double now = clock_seconds();
    if (event->token >= 0) {
        s->made++, r->made++;
        if (s->made == 1) r->writing++, r->last_first = now;
        if (r->made == 1) r->first = now;
    }
    if (event->finish != FINISH_NONE && !r->first_end) r->first_end = now, r->at_end = r->made;
    return true;
}

static enum plim_status submit(struct engine *e, const struct line *l, int number, struct stream *s,
                               struct plim_error *err)
{
    int32_t *ids = malloc((size_t)l->prompt * sizeof *ids);
    if (!ids) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a prompt");
    for (int64_t i = 0; i < l->prompt; i++)
        ids[i] = (int32_t)rng_below((uint64_t)number, 1, (uint64_t)i, (uint64_t)engine_spec(e)->vocab_size);
    struct engine_request request = {.prompt = ids,
                                     .count = l->prompt,
                                     .tokens = l->tokens,
                                     .logprobs = -1,
                                     .ignore_eos = true,
                                     .hear = hear,
                                     .arg = s};
    enum plim_status status = engine_submit(e, &request, NULL, err);
    free(ids);
    return status;
}

static enum plim_status run_line(struct engine *e, const struct line *l, struct run *r,
                                 struct plim_error *err)
{
    static struct stream streams[STREAMS_MOST];
    enum plim_status status = PLIM_OK;
    r->begun = clock_seconds(), r->streams = l->streams;
    for (int i = 0; i < l->streams && status == PLIM_OK; i++) {
        streams[i] = (struct stream){.run = r};
        status = submit(e, l, i, &streams[i], err);
    }
    while (status == PLIM_OK && engine_busy(e)) {
        status = engine_step(e, err);
        r->steps++;
        if (r->writing == l->streams && !r->all_writing)
            r->all_writing = clock_seconds(), r->at_writing = r->made;
    }
    r->end = clock_seconds();
    return status;
}

static double rate_of(const struct line *l, const struct run *r)
{
    if (!strcmp(l->kind, "prefill")) return (double)(l->streams * l->prompt) / (r->last_first - r->begun);
    if (!strcmp(l->kind, "all")) return (double)r->made / (r->end - r->begun);
    return (double)(r->at_end - r->at_writing) / (r->first_end - r->all_writing);
}

static bool read_line(const char *text, struct line *l)
{
    *l = (struct line){.goal = 0};
    return sscanf(text, "%15[a-z]:%d:%lld:%lld:%lf", l->kind, &l->streams, &l->prompt, &l->tokens,
                  &l->goal) >= 4 &&
           l->streams >= 1 && l->streams <= STREAMS_MOST && l->prompt >= 1 && l->tokens >= 1;
}

static enum plim_status measure(const char *model, const struct device_name *name, const struct line *l,
                                struct plim_error *err)
{
    struct device *device = NULL;
    struct engine *e = NULL;
    struct run warm = {0}, run = {0};
    double began = clock_seconds();
    enum plim_status status =
        name->backend->open(&(struct context){.environment = environ}, name, 0, &device, err);
    double ready = clock_seconds();
    struct engine_options options = {.model = model,
                                     .max_context = l->prompt + l->tokens,
                                     .parallel = l->streams < 256 ? l->streams : 256,
                                     .queue = l->streams,
                                     .no_prefix_sharing = true};
    if (status == PLIM_OK) status = engine_open(device, &options, &e, err);
    if (status == PLIM_OK)
        status = run_line(e, &(struct line){.streams = 1, .prompt = 8, .tokens = 2}, &warm, err);
    if (status == PLIM_OK) status = run_line(e, l, &run, err);
    if (status == PLIM_OK) {
        double rate = rate_of(l, &run);
        printf("%-8s %4d x %5lld + %4lld  %10.0f tok/s", l->kind, l->streams, l->prompt, l->tokens, rate);
        if (l->goal > 0) printf("  goal %8.0f  %s", l->goal, rate >= l->goal ? "met" : "missed");
        printf("  %d steps, device %.2f s, first %.2f s\n", run.steps, ready - began, warm.first - began);
        fflush(stdout);
    }
    engine_close(e);
    if (device) device->ops->close(device);
    return status;
}

int main(int argc, char **argv)
{
    struct device_name name = {0};
    struct plim_error err = {0};
    if (argc < 3 || !device_name_read(argv[2], &name) || !name.backend) {
        fprintf(stderr,
                "usage: bench_serve MODEL cpu|cuda|pjrt:PATH [KIND:STREAMS:PROMPT:TOKENS[:GOAL]...]\n");
        return 2;
    }
    char *const *lines = argc > 3 ? argv + 3 : usual;
    int count = argc > 3 ? argc - 3 : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < count; i++) {
        struct line l;
        if (!read_line(lines[i], &l)) return fprintf(stderr, "bench_serve: %s is no line\n", lines[i]), 2;
        if (measure(argv[1], &name, &l, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
    }
    return 0;
}
