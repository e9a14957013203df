/* bench_serve.c - how fast the engine reads and writes: prompts of random tokens, the likeliest token each time.
 *
 *     bench_serve MODEL DEVICE [NAME=VALUE...] [LINE...]
 *
 * LINE is KIND:STREAMS:PROMPT:TOKENS[:GOAL], e.g. decode:64:512:128:35000. NAME is
 *
 *     running   requests that run at once, at most (as many as there are streams, up to 256)
 *     weights   as-is, q8, q4, nf4, fp4, fp8 (as-is)
 *     kv        type of keys and values: i8 is 8 bits (that of the weights)
 *     adapters  a folder of PEFT folders: the streams use all of them in turn
 *     budget    bytes (all of the device)
 *
 * KIND is decode (tokens per second from when all streams write until the first one ends), all (answers of all streams
 * over the whole time, prompts read; with more streams than run at once this is full load, all requests being there from the
 * beginning), or prefill (tokens of the prompts over the time to the last first token). Each line has
 * an engine of its own; "first" is the time from opening the device to the first token of the line. Without a LINE: those
 * with goals for LLaMA-1B on an H200. */
#include "base/bytes.h"
#include "base/clock.h"
#include "api/model_engine.h"
#include "base/rng.h"
#include "device/registry.h"
#include "serve/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum { STREAMS_MOST = 65536, ADAPTERS_MOST = 1024 };

struct line {
    char kind[16];
    int streams;
    long long prompt, tokens;
    double goal;
};

static char *const usual[] = {"decode:1:8:64:1200",       "decode:1:8:512:1200",   "decode:64:512:128:35000",
                              "decode:256:512:128:60000", "all:256:512:128:25000", "prefill:1:5500:1:150000"};

struct settings {
    int running;
    enum weights_kind weights;
    enum dtype kv;
    uint64_t budget;
    struct engine_adapter adapter[ADAPTERS_MOST];
    int adapters;
};

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

static enum plim_status submit(struct engine *e, const struct settings *how, const struct line *l, int number,
                               struct stream *s, struct plim_error *err)
{
    int32_t *ids = malloc((size_t)l->prompt * sizeof *ids);
    if (!ids) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a prompt");
    for (int64_t i = 0; i < l->prompt; i++)
        ids[i] = (int32_t)rng_below((uint64_t)number, 1, (uint64_t)i, (uint64_t)engine_spec(e)->vocab_size);
    struct engine_request request = {.prompt = ids,
                                     .count = l->prompt,
                                     .adapter =
                                         how->adapters ? how->adapter[number % how->adapters].name : NULL,
                                     .tokens = l->tokens,
                                     .logprobs = -1,
                                     .ignore_eos = true,
                                     .hear = hear,
                                     .arg = s};
    enum plim_status status = engine_submit(e, &request, NULL, err);
    free(ids);
    return status;
}

static enum plim_status run_line(struct engine *e, const struct settings *how, const struct line *l,
                                 struct run *r, struct plim_error *err)
{
    static struct stream streams[STREAMS_MOST];
    enum plim_status status = PLIM_OK;
    r->begun = clock_seconds(), r->streams = l->streams;
    for (int i = 0; i < l->streams && status == PLIM_OK; i++) {
        streams[i] = (struct stream){.run = r};
        status = submit(e, how, l, i, &streams[i], err);
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

static enum plim_status measure(const char *model, const struct device_name *name, const struct settings *how,
                                const struct line *l, struct plim_error *err)
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
                                     .parallel = l->streams < how->running ? l->streams : how->running,
                                     .queue = l->streams,
                                     .budget = (int64_t)how->budget,
                                     .weights = how->weights,
                                     .kv_type = how->kv,
                                     .adapters = how->adapter,
                                     .adapter_count = how->adapters,
                                     .no_prefix_sharing = true};
    if (status == PLIM_OK) status = engine_open(device, &options, &e, err);
    if (status == PLIM_OK)
        status = run_line(e, how, &(struct line){.streams = 1, .prompt = 8, .tokens = 2}, &warm, err);
    if (status == PLIM_OK) status = run_line(e, how, l, &run, err);
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

/* Every folder below `dir` is an adapter of that name. */
static bool read_adapters(const char *dir, struct settings *how)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && how->adapters < ADAPTERS_MOST)
            how->adapter[how->adapters++] = (struct engine_adapter){strdup(names[i]->d_name), strdup(path)};
    }
    return how->adapters > 0;
}

static bool read_setting(const char *text, struct settings *how)
{
    const char *value = strchr(text, '=') + 1;
    if (!strncmp(text, "running=", 8)) return (how->running = atoi(value)) > 0;
    if (!strncmp(text, "weights=", 8)) return (how->weights = weights_kind_parse(value)) != WEIGHTS_KINDS;
    if (!strncmp(text, "kv=", 3)) return kv_type_parse(value, &how->kv);
    if (!strncmp(text, "budget=", 7)) return bytes_parse(value, &how->budget, NULL) == PLIM_OK;
    return !strncmp(text, "adapters=", 9) && read_adapters(value, how);
}

int main(int argc, char **argv)
{
    static struct settings how = {.running = 256};
    struct device_name name = {0};
    struct plim_error err = {0};
    if (argc < 3 || !device_name_read(argv[2], &name) || !name.backend) {
        fprintf(stderr, "usage: bench_serve MODEL cpu|cuda|pjrt:PATH [NAME=VALUE...] "
                        "[KIND:STREAMS:PROMPT:TOKENS[:GOAL]...]\n");
        return 2;
    }
    int first = 3;
    for (; first < argc && strchr(argv[first], '='); first++)
        if (!read_setting(argv[first], &how))
            return fprintf(stderr, "bench_serve: %s is no setting\n", argv[first]), 2;
    char *const *lines = argc > first ? argv + first : usual;
    int count = argc > first ? argc - first : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < count; i++) {
        struct line l;
        if (!read_line(lines[i], &l)) return fprintf(stderr, "bench_serve: %s is no line\n", lines[i]), 2;
        if (measure(argv[1], &name, &how, &l, &err) != PLIM_OK) return fprintf(stderr, "%s\n", err.text), 1;
    }
    return 0;
}
