/* bench_serve.c - how fast the engine and the server read and write: prompts of random tokens, the likeliest token each time.
 *
 *     bench_serve MODEL DEVICE [NAME=VALUE...] [LINE...]
 *
 * LINE is KIND:STREAMS:PROMPT:TOKENS[:GOAL], e.g. decode:64:512:128:35000. NAME is
 *
 *     running   requests that may run at once, whatever the lines have (as many as there are streams, up to 256)
 *     weights   as-is, q8, q4, nf4, fp4, fp8 (as-is)
 *     kv        type of keys and values: i8 and fp8 are 8 bits (that of the weights)
 *     adapters  a folder of PEFT folders: the streams use all of them in turn
 *     budget    bytes (all of the device)
 *     context   positions of the longest request (those of the line): what a server has that does not know its requests
 *     threads   of the host (one per CPU)
 *     front     threads of the HTTP front (as a server has)
 *     client    connections at a time (1.25 times what runs at once)
 *     pace      milliseconds that a step takes at least, as if a card computed it (0)
 *     steady    seconds: lines of kind all, http and stream measure what a card does after hours of full load (load/steady.h)
 *     trace     a folder: with steady, six steps of each line are timed op by op and written there, for `plimsoll trace FILE`
 *     json      a file to which each line's result is added, as a JSON object
 *
 * KIND is
 *
 *     decode    tokens per second from when all streams write until the first one ends
 *     prefill   tokens of the prompts over the time to the last first token
 *     all       answers of all streams over the whole time, prompts read. With more streams than run at once this is full load, all
 *               requests being there from the beginning; "full" is the rate until nobody waits any more
 *     http      the same through a server in this process and as many connections, each answer as a whole
 *     stream    the same, answers streamed
 *
 * "full-load", "full-load:http" and "full-load:stream" instead of a LINE are eight of kind all, http or stream, each with the rate that
 * TensorRT-LLM 1.0 publishes for LLaMA-3.1-8B in fp8 on one H200 as its goal, and so few requests that a row takes a minute or
 * two there; use running=2048 weights=fp8 kv=fp8. Each line has an engine of its own; "first" is the time from opening the device
 * to the first token of the line. "cpu" is the rate by the process's CPU time, which with threads=1 other work on the machine leaves
 * alone; "CPU" is microseconds per token of the answers, of the thread that steps the engine, of the client, and of all others. Without a LINE: those with goals for LLaMA-1B on an H200. */
#include "base/bytes.h"
#include "base/clock.h"
#include "api/model_engine.h"
#include "base/rng.h"
#include "base/strbuf.h"
#include "device/registry.h"
#include "load/http_load.h"
#include "load/steady.h"
#include "mem/os.h"
#include "serve/engine.h"
#include "serve/server.h"
#include "text/codec.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern char **environ;

enum { STREAMS_MOST = 65536, ADAPTERS_MOST = 1024, LINES_MOST = 64, RUNNING_USUAL = 256 };

struct line {
    char kind[16];
    int streams;
    long long prompt, tokens;
    double goal;
};

static char *const usual[] = {"decode:1:8:64:1200",       "decode:1:8:512:1200",   "decode:64:512:128:35000",
                              "decode:256:512:128:60000", "all:256:512:128:25000", "prefill:1:5500:1:150000"};

/* Input, output and published rate of a row, and streams that take about a minute. */
static const struct row {
    int prompt, tokens, goal, streams;
} rows[] = {{128, 128, 27911, 14000},  {128, 2048, 26221, 1600}, {500, 2000, 20770, 1400},
            {1000, 1000, 17744, 1800}, {2048, 128, 3538, 2000},  {2048, 2048, 12194, 850},
            {5000, 500, 3902, 600},    {20000, 2000, 1804, 82}};

struct settings {
    int running, threads, front,
        connections; /* running: 0: as usual; threads: of the host; front: of the HTTP front */
    double pace;     /* seconds */
    int64_t context;
    enum weights_kind weights;
    enum dtype kv;
    uint64_t budget;
    struct engine_adapter adapter[ADAPTERS_MOST];
    int adapters;
    const char *json, *trace;
    double steady; /* seconds; 0: lines run from their first request to the end of the last */
};

struct moment {
    double wall, cpu;
};

static struct moment now(void) { return (struct moment){clock_seconds(), clock_process()}; }

struct run {
    struct moment begun, last_first, all_writing, first_end, end;
    double first, nobody_waits;
    int64_t made, at_writing, at_end, before;
    int writing, streams, steps, preempted;
    double engine_cpu, client_cpu; /* seconds */
    struct steady steady;          /* seconds 0: not asked for */
};

static bool is_steady(const struct run *r) { return r->steady.seconds > 0; }

static double thread_cpu(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct stream {
    struct run *run;
    int64_t made;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct stream *s = arg;
    struct run *r = s->run;
    if (event->token >= 0) {
        s->made++, r->made++;
        if (s->made == 1) r->writing++, r->last_first = now();
        if (r->made == 1) r->first = r->last_first.wall;
    }
    if (event->finish != FINISH_NONE && !r->at_end) r->first_end = now(), r->at_end = r->made;
    return true;
}

static enum plim_status submit(struct engine *e, const struct settings *how, const struct line *l, int number,
                               struct stream *s, struct plim_error *err)
{
    struct steady_size size = {l->prompt, l->tokens};
    if (is_steady(s->run)) size = steady_size(&s->run->steady, number);
    int32_t *ids = malloc((size_t)size.prompt * sizeof *ids);
    if (!ids) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a prompt");
    for (int64_t i = 0; i < size.prompt; i++)
        ids[i] = (int32_t)rng_below((uint64_t)number, 1, (uint64_t)i, (uint64_t)engine_spec(e)->vocab_size);
    struct engine_request request = {.prompt = ids,
                                     .count = size.prompt,
                                     .adapter =
                                         how->adapters ? how->adapter[number % how->adapters].name : NULL,
                                     .tokens = size.tokens,
                                     .logprobs = -1,
                                     .ignore_eos = true,
                                     .hear = hear,
                                     .arg = s};
    enum plim_status status = engine_submit(e, &request, NULL, err);
    free(ids);
    return status;
}

static void sleep_until(double when)
{
    double rest = when - clock_seconds();
    struct timespec t = {(time_t)rest, (long)((rest - (double)(time_t)rest) * 1e9)};
    if (rest > 0) nanosleep(&t, NULL);
}

static enum plim_status step(struct engine *e, const struct settings *how, struct plim_error *err)
{
    double until = clock_seconds() + how->pace;
    enum plim_status status = engine_step(e, err);
    if (how->pace > 0) sleep_until(until);
    return status;
}

static enum plim_status run_line(struct engine *e, const struct settings *how, const struct line *l,
                                 struct run *r, struct plim_error *err)
{
    static struct stream streams[STREAMS_MOST];
    enum plim_status status = PLIM_OK;
    r->begun = now(), r->streams = l->streams;
    for (int i = 0; i < l->streams && status == PLIM_OK; i++) {
        streams[i] = (struct stream){.run = r};
        status = submit(e, how, l, i, &streams[i], err);
    }
    r->engine_cpu = -thread_cpu();
    struct engine_stats stats = {.waiting = l->streams};
    while (status == PLIM_OK && engine_busy(e) &&
           (!is_steady(r) || steady_look(&r->steady, e, stats.waiting > 0))) {
        status = step(e, how, err);
        engine_stats(e, &stats);
        r->steps++, r->preempted = (int)stats.preemptions;
        if (!stats.waiting && !r->nobody_waits) r->nobody_waits = clock_seconds(), r->before = r->made;
        if (r->writing == l->streams && !r->at_writing) r->all_writing = now(), r->at_writing = r->made;
    }
    r->end = now();
    r->engine_cpu += thread_cpu();
    return status;
}

/* --- through HTTP ------------------------------------------------------------------------------------------- */

struct front {
    struct server *server;
    struct codec codec;
    atomic_int stop;
    struct engine *engine;
    const struct settings *how;
    struct run *run;
    double cpu; /* of the thread that steps */
    enum plim_status status;
    struct plim_error err;
};

static void *step_engine(void *arg)
{
    struct front *f = arg;
    if (f->how->pace == 0) f->status = engine_run(f->engine, &f->stop, &f->err);
    while (f->how->pace > 0 && !f->stop && f->status == PLIM_OK)
        if (engine_busy(f->engine))
            f->status = step(f->engine, f->how, &f->err);
        else
            sleep_until(clock_seconds() + 1e-3);
    f->cpu = thread_cpu();
    return NULL;
}

static int running_of(const struct settings *how, const struct line *l)
{
    if (how->running) return how->running;
    return l->streams < RUNNING_USUAL ? l->streams : RUNNING_USUAL;
}

static bool is_http(const struct line *l) { return !strcmp(l->kind, "http") || !strcmp(l->kind, "stream"); }

/* Lines of full load. */
static bool may_be_steady(const struct line *l) { return !strcmp(l->kind, "all") || is_http(l); }

static int connections_of(const struct settings *how, const struct line *l)
{
    int running = running_of(how, l), most = how->connections ? how->connections : running + running / 4;
    return l->streams < most ? l->streams : most;
}

/* Sizes of the server are those that plimsoll serve has with --parallel and --max-connections. */
static struct server_options front_options(const struct settings *how, const struct line *l)
{
    struct server_options o = {.host = "127.0.0.1", .threads = how->front, .limits = HTTP_LIMITS};
    o.limits.connections = 2 * connections_of(how, l), o.limits.idle = o.limits.connections / 2;
    o.answer_bytes = server_answers_for(connections_of(how, l), l->tokens);
    return o;
}

static void size_of(void *arg, int number, int64_t *prompt, int64_t *tokens)
{
    const struct front *f = arg;
    const struct steady_size size = steady_size(&f->run->steady, number);
    *prompt = size.prompt, *tokens = size.tokens;
}

static bool goes_on(void *arg, bool full)
{
    struct front *f = arg;
    return steady_look(&f->run->steady, f->engine, full);
}

static enum plim_status run_client(struct front *f, const struct settings *how, const struct line *l,
                                   struct run *r, struct plim_error *err)
{
    const struct http_load_watch watch = {size_of, goes_on, f};
    struct http_load load = {.port = server_port(f->server),
                             .requests = l->streams,
                             .connections = connections_of(how, l),
                             .model = "bench",
                             .prompt = l->prompt,
                             .tokens = l->tokens,
                             .watch = is_steady(r) ? &watch : NULL,
                             .vocab = f->codec.vocab_size,
                             .streams = !strcmp(l->kind, "stream")};
    r->client_cpu = -thread_cpu();
    r->begun = now();
    enum plim_status status = http_load_run(&load, err);
    r->end = now(), r->nobody_waits = r->begun.wall + load.until;
    r->client_cpu += thread_cpu();
    r->made = (int64_t)l->streams * l->tokens, r->before = load.by_then * l->tokens;
    return status;
}

static enum plim_status open_front(struct front *f, const struct settings *how, const struct line *l,
                                   const char *model, struct plim_error *err)
{
    char path[4096];
    struct server_options o = front_options(how, l);
    struct server_model served = {.engine = f->engine, .codec = &f->codec, .name = "bench", .folder = model};
    bool has = codec_find(model, path, sizeof path);
    enum plim_status status = codec_open(has ? path : NULL, &f->codec, err);
    if (status == PLIM_OK) status = server_open(&o, &f->server, err);
    return status == PLIM_OK ? server_ready(f->server, &served, err) : status;
}

static enum plim_status run_http(struct engine *e, const struct settings *how, const struct line *l,
                                 const char *model, struct run *r, struct plim_error *err)
{
    struct front f = {.engine = e, .how = how, .run = r};
    struct engine_stats stats;
    pthread_t thread;
    r->streams = l->streams;
    enum plim_status status = open_front(&f, how, l, model, err);
    bool steps = status == PLIM_OK && thread_begin(&thread, 0, step_engine, &f) == 0;
    if (steps) status = run_client(&f, how, l, r, err);
    f.stop = 1;
    engine_drain(e);
    if (steps) pthread_join(thread, NULL);
    if (status == PLIM_OK && f.status != PLIM_OK) status = f.status, *err = f.err;
    engine_stats(e, &stats);
    r->steps = (int)stats.steps, r->preempted = (int)stats.preemptions;
    if (is_steady(r)) r->made = stats.generated_tokens;
    r->engine_cpu = f.cpu;
    server_stop(f.server);
    server_close(f.server);
    codec_close(&f.codec);
    return status;
}

/* --- lines -------------------------------------------------------------------------------------------------- */

/* Tokens per second by both clocks. */
static struct moment rate_of(const struct line *l, const struct run *r)
{
    if (is_steady(r)) return (struct moment){.wall = steady_rate(&r->steady)};
    int64_t tokens = r->at_end - r->at_writing;
    struct moment from = r->all_writing, to = r->first_end;
    if (!strcmp(l->kind, "prefill")) tokens = l->streams * l->prompt, from = r->begun, to = r->last_first;
    if (may_be_steady(l)) tokens = r->made, from = r->begun, to = r->end;
    return (struct moment){(double)tokens / (to.wall - from.wall), (double)tokens / (to.cpu - from.cpu)};
}

static bool read_line(const char *text, struct line *l)
{
    *l = (struct line){.goal = 0};
    return sscanf(text, "%15[a-z]:%d:%lld:%lld:%lf", l->kind, &l->streams, &l->prompt, &l->tokens,
                  &l->goal) >= 4 &&
           l->streams >= 1 && l->streams <= STREAMS_MOST && l->prompt >= 1 && l->tokens >= 1;
}

static void print_memory(const struct engine *e, const struct device *device)
{
    char plan[BYTES_TEXT], used[BYTES_TEXT], host[BYTES_TEXT], peak[BYTES_TEXT];
    const struct engine_plan *p = engine_plan(e);
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    printf("         memory: planned %s", bytes_format(plan, (uint64_t)p->total));
    if (device->ops->used)
        printf(", the device says %s; host planned %s",
               bytes_format(used, (uint64_t)device->ops->used((struct device *)(uintptr_t)device)),
               bytes_format(host, (uint64_t)p->host));
    printf(", peak %s\n", bytes_format(peak, me.peak));
}

static void print_run(const struct line *l, const struct run *r, double device, double first)
{
    struct moment rate = rate_of(l, r);
    double each = r->made ? 1e6 / (double)r->made : 0, cpu = r->end.cpu - r->begun.cpu;
    int digits = rate.wall < 1000 ? 1 : 0;
    printf("%-8s %4d x %5lld + %4lld  %10.*f tok/s", l->kind, l->streams, l->prompt, l->tokens, digits,
           rate.wall);
    if (l->goal > 0) printf("  goal %8.0f  %s", l->goal, rate.wall >= l->goal ? "met" : "missed");
    if (may_be_steady(l) && r->nobody_waits > r->begun.wall)
        printf("  full %8.0f", (double)r->before / (r->nobody_waits - r->begun.wall));
    if (is_steady(r))
        printf("  in %.0f s of %lld requests, %.2f read for each written", r->steady.to - r->steady.from,
               (long long)r->steady.first, steady_balance(&r->steady));
    printf("  cpu %.*f, %d steps, %d preempted, CPU %.1f + %.1f + %.1f, device %.2f s, first %.2f s\n",
           digits, rate.cpu, r->steps, r->preempted, r->engine_cpu * each, r->client_cpu * each,
           (cpu - r->engine_cpu - r->client_cpu) * each, device, first);
}

static struct engine_options engine_options_of(const char *model, const struct settings *how,
                                               const struct line *l)
{
    int64_t server = 0;
    if (is_http(l)) {
        struct server_options o = front_options(how, l);
        server_fit(&o, INT64_MAX);
        server = server_bytes(&o);
    }
    return (struct engine_options){.model = model,
                                   .max_context = how->context ? how->context : l->prompt + l->tokens,
                                   .parallel = running_of(how, l),
                                   .queue = l->streams,
                                   .budget = (int64_t)how->budget,
                                   .weights = how->weights,
                                   .kv_type = how->kv,
                                   .adapters = how->adapter,
                                   .adapter_count = how->adapters,
                                   .caller_bytes = server,
                                   .no_prefix_sharing = true};
}

/* Adds a line's result to the file that json= names. */
static enum plim_status write_json(const char *path, const struct engine *e, const struct device *device,
                                   const struct line *l, const struct run *r, struct plim_error *err)
{
    const struct engine_plan *p = engine_plan(e);
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    struct moment rate = rate_of(l, r);
    FILE *f = path ? fopen(path, "a") : NULL;
    if (path && !f) return plim_fail(err, PLIM_BAD_INPUT, "%s: cannot be written", path);
    if (!f) return PLIM_OK;
    fprintf(
        f, "{\"kind\": \"%s\", \"streams\": %d, \"prompt\": %lld, \"tokens\": %lld, \"tokens_per_s\": %.2f, ",
        l->kind, l->streams, l->prompt, l->tokens, rate.wall);
    if (is_steady(r)) fprintf(f, "\"balance\": %.3f, ", steady_balance(&r->steady));
    if (r->nobody_waits > r->begun.wall)
        fprintf(f, "\"full_tokens_per_s\": %.2f, ", (double)r->before / (r->nobody_waits - r->begun.wall));
    fprintf(f, "\"steps\": %d, \"preempted\": %d, \"planned_bytes\": %lld, \"planned_host_bytes\": %lld, ",
            r->steps, r->preempted, (long long)p->total, (long long)p->host);
    if (device->ops->used)
        fprintf(f, "\"driver_bytes\": %lld, ",
                (long long)device->ops->used((struct device *)(uintptr_t)device));
    fprintf(f, "\"rss_bytes\": %lld}\n", (long long)me.peak);
    return fclose(f) ? plim_fail(err, PLIM_BAD_INPUT, "%s: cannot be written", path) : PLIM_OK;
}

static enum plim_status measure(const char *model, const struct device_name *name, const struct settings *how,
                                const struct line *l, struct plim_error *err)
{
    struct device *device = NULL;
    struct engine *e = NULL;
    struct run warm = {0}, run = {0};
    double began = clock_seconds();
    enum plim_status status =
        name->backend->open(&(struct context){.environment = environ}, name, how->threads, &device, err);
    double ready = clock_seconds();
    struct engine_options options = engine_options_of(model, how, l);
    if (status == PLIM_OK) status = engine_open(device, &options, &e, err);
    if (status == PLIM_OK)
        status = run_line(e, how, &(struct line){.streams = 1, .prompt = 8, .tokens = 2}, &warm, err);
    if (status == PLIM_OK) engine_count_anew(e);
    if (status == PLIM_OK && may_be_steady(l)) {
        run.steady = (struct steady){.seconds = how->steady, .trace = how->trace};
        steady_begin(&run.steady, e, l->prompt, l->tokens);
    }
    if (status == PLIM_OK)
        status = is_http(l) ? run_http(e, how, l, model, &run, err) : run_line(e, how, l, &run, err);
    if (status == PLIM_OK && is_steady(&run) && !run.steady.to)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s:%d:%lld:%lld: too few requests: none waited when the rate could be measured",
                           l->kind, l->streams, l->prompt, l->tokens);
    if (status == PLIM_OK) {
        print_run(l, &run, ready - began, warm.first - began);
        print_memory(e, device);
        fflush(stdout);
        status = write_json(how->json, e, device, l, &run, err);
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
    if (!strncmp(text, "threads=", 8)) return (how->threads = atoi(value)) > 0;
    if (!strncmp(text, "weights=", 8)) return (how->weights = weights_kind_parse(value)) != WEIGHTS_KINDS;
    if (!strncmp(text, "kv=", 3)) return kv_type_parse(value, &how->kv);
    if (!strncmp(text, "json=", 5)) return (how->json = value) != NULL;
    if (!strncmp(text, "budget=", 7)) return bytes_parse(value, &how->budget, NULL) == PLIM_OK;
    if (!strncmp(text, "front=", 6)) return (how->front = atoi(value)) > 0;
    if (!strncmp(text, "pace=", 5)) return (how->pace = 1e-3 * atof(value)) >= 0;
    if (!strncmp(text, "client=", 7)) return (how->connections = atoi(value)) > 0;
    if (!strncmp(text, "steady=", 7)) return (how->steady = atof(value)) > 0;
    if (!strncmp(text, "trace=", 6)) return (how->trace = value) != NULL;
    if (!strncmp(text, "context=", 8)) return (how->context = atoll(value)) > 0;
    return !strncmp(text, "adapters=", 9) && read_adapters(value, how);
}

/* Adds the lines that a word stands for. */
static bool add_lines(const char *text, struct line *lines, int *count)
{
    const char *kind = strchr(text, ':');
    if (strncmp(text, "full-load", 9)) return read_line(text, &lines[(*count)++]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line *l = &lines[(*count)++];
        *l = (struct line){.streams = rows[i].streams,
                           .prompt = rows[i].prompt,
                           .tokens = rows[i].tokens,
                           .goal = rows[i].goal};
        snprintf(l->kind, sizeof l->kind, "%s", kind ? kind + 1 : "all");
    }
    return !kind || is_http(&lines[*count - 1]);
}

int main(int argc, char **argv)
{
    static struct settings how;
    static struct line lines[LINES_MOST];
    struct device_name name = {0};
    struct plim_error err = {0};
    if (argc < 3 || !device_name_read(argv[2], &name) || !name.backend) {
        fprintf(stderr, "usage: bench_serve MODEL cpu|cuda|pjrt:PATH [NAME=VALUE...] "
                        "[KIND:STREAMS:PROMPT:TOKENS[:GOAL]... | full-load[:http|:stream]]\n");
        return 2;
    }
    int first = 3, count = 0;
    for (; first < argc && strchr(argv[first], '='); first++)
        if (!read_setting(argv[first], &how))
            return fprintf(stderr, "bench_serve: %s is no setting\n", argv[first]), 2;
    char *const *words = argc > first ? argv + first : usual;
    int given = argc > first ? argc - first : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < given; i++)
        if (count + 8 > LINES_MOST || !add_lines(words[i], lines, &count))
            return fprintf(stderr, "bench_serve: %s is no line\n", words[i]), 2;
    for (int i = 0; i < count; i++)
        if (measure(argv[1], &name, &how, &lines[i], &err) != PLIM_OK)
            return fprintf(stderr, "%s\n", err.text), 1;
    return 0;
}
