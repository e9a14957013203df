/* cmd_serve.c - plimsoll serve: a model behind HTTP, inside a budget. Flags, the start-up log, signals. */
#include "cli/cli.h"
#include "api/model_engine.h"
#include "api/model_text.h"
#include "api/serve_plan.h"
#include "cli/serve_log.h"
#include "cli/serve_setup.h"
#include "cli/serve_watch.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/minmax.h"
#include "device/registry.h"
#include "model/adapter_slots.h"
#include "model/hf.h"
#include "serve/engine_snapshot.h"
#include "serve/ladder_explain.h"
#include "serve/server.h"

#include <stdatomic.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct serve_flags {
    const char *host, *keys, *tokenizer, *template, *device, *name, *prefix, *control, *allowed, *kv_type,
        *weights, *scratch, *dtype, *log_format;
    struct string_list adapters;
    int max_adapters, max_rank, host_adapters;
    int port, parallel, queue, threads, http_threads, connections, drain, timeout;
    int64_t max_context;
    double monitor_every;
    uint64_t budget, max_body;
    bool budget_given, max_body_given, connections_given, http_threads_given, quiet, verbose, plan, json,
        op_by_op, runtime_adapters;
    const char *snapshot[SNAPSHOT_FORMATS]; /* files */
};

enum { ANSWER_USUAL = 1024 }; /* tokens of the answers that all of --parallel may get at once, at least */

static const char *const log_formats[] = {"text", "json", NULL};

#define AT(field) offsetof(struct serve_flags, field)
static const struct option_row rows[] = {
    {"port", 'p', OPTION_INT, AT(port), "N", "listen on this port; 0: any free one (8000)"},
    {"host", 0, OPTION_STRING, AT(host), "ADDRESS", "listen on this address (127.0.0.1: this machine only)"},
    {"budget", 'b', OPTION_BYTES, AT(budget), "BYTES",
     "memory budget, e.g. 2GiB; default: the device's memory",
     .given = OPTION_GIVEN(struct serve_flags, budget_given)},
    {"max-context", 0, OPTION_INT64, AT(max_context), "N",
     "maximum tokens of a request, prompt plus answer; 0: as many as fit, up to the model's "
     "limit (0)"},
    {"parallel", 0, OPTION_INT, AT(parallel), "N",
     "maximum number of concurrent requests; 0: as many as fit (0)"},
    {"queue", 0, OPTION_INT, AT(queue), "N",
     "maximum number of waiting requests; further ones get 429; 0: 4 x parallel (0)"},
    {"api-key-file", 0, OPTION_STRING, AT(keys), "FILE",
     "file with API keys, one per line; clients must send one of them"},
    {"name", 0, OPTION_STRING, AT(name), "NAME", "model name for clients; default: the folder's name"},
    {"tokenizer", 0, OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model, a folder with one, or bytes; default: the model's own, else "
     "bytes"},
    {"chat-template", 0, OPTION_STRING, AT(template), "FILE", "a *.jinja file; default: the model's own"},
    {"device", 0, OPTION_STRING, AT(device), "NAME",
     CLI_DEVICES ", or auto: a working GPU whose own overhead fits the budget, else the "
                 "CPU (auto)",
     CLI_DEVICE},
    {"threads", 0, OPTION_INT, AT(threads), "N", "CPU threads that compute; 0: one per core (0)"},
    {"http-threads", 0, OPTION_INT, AT(http_threads), "N",
     "threads that read requests and write answers (4; 2 with a small budget)",
     .given = OPTION_GIVEN(struct serve_flags, http_threads_given)},
    {"max-body", 0, OPTION_BYTES, AT(max_body), "BYTES",
     "maximum size of a request body (2MiB; less with a small budget)",
     .given = OPTION_GIVEN(struct serve_flags, max_body_given)},
    {"max-connections", 0, OPTION_INT, AT(connections), "N",
     "maximum number of connections; half of them may be idle (1024, or twice --parallel if that is more; "
     "less with a small budget)",
     .given = OPTION_GIVEN(struct serve_flags, connections_given)},
    {"timeout", 0, OPTION_INT, AT(timeout), "SECONDS",
     "time limit for a client to send a request, and to take the next byte of an answer (30)"},
    {"drain", 0, OPTION_INT, AT(drain), "SECONDS", "time limit for open requests after SIGTERM (60)"},
    {"metrics-prefix", 0, OPTION_STRING, AT(prefix), "TEXT", "prefix of every name in /metrics, e.g. vllm:"},
    {"monitor-every", 0, OPTION_DOUBLE, AT(monitor_every), "SECONDS",
     "interval of log lines \"[Step N] Memory: ...\"; 0: only when the status changes (60)"},
    {"log-format", 0, OPTION_STRING, AT(log_format), "FORMAT",
     "format of log lines; json: one object each, with time, level and message (text)",
     .choices = log_formats},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no start-up log; warnings and errors only"},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "also log messages of the HTTP library"},
    {"control", 0, OPTION_STRING, AT(control), "PATH",
     "socket for plimsoll ctl, or none (serve-PORT.sock in $XDG_RUNTIME_DIR/plimsoll, if that is set)"},
    {"allow-degraded", 0, OPTION_STRING, AT(allowed), "KINDS",
     "allowed degradations that change answers, used if nothing else fits: kv8 (keys and "
     "values in 8 bits), window (compute each token from the last 32), all, none (window)"},
    {"plan", 0, OPTION_FLAG, AT(plan), NULL, "show the plan and exit; --device may then name a preset"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "with --plan: print JSON"},
    {"trace", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_TRACE]), "FILE",
     "with --plan: write a trace of the largest step for ui.perfetto.dev"},
    {"memory-viz", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_MEMORY_VIZ]), "FILE",
     "with --plan: write the largest step as a pickle for PyTorch's memory_viz"},
    {"snapshot", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_JSON]), "FILE",
     "with --plan: write every op and tensor of the largest step as JSON"},
    {"kv-type", 0, OPTION_STRING, AT(kv_type), "TYPE",
     "type of keys and values: i8 and fp8 take half the memory of bf16 and are less exact; auto: the "
     "type of the weights (auto)"},
    {"dtype", 0, OPTION_STRING, AT(dtype), "TYPE",
     "compute in fp32, bf16 or fp16 instead of the type of the weights (auto)"},
    {"disable-cudagraphs", 0, OPTION_FLAG, AT(op_by_op), NULL,
     "launch ops one by one instead of recorded steps; slower"},
    {"adapter", 0, OPTION_STRING_LIST, AT(adapters), "NAME=DIR",
     "PEFT folder or GGUF file of an adapter that requests choose as their model; repeat it for more. DIR "
     "without a name: "
     "merged into the model's weights when they are loaded"},
    {"max-adapters", 0, OPTION_INT, AT(max_adapters), "N",
     "adapters on the device at once; 0: all of --adapter, fewer with a small budget (0)"},
    {"max-adapter-rank", 0, OPTION_INT, AT(max_rank), "R",
     "largest rank of an adapter; 0: the largest of --adapter, or 16 (0)"},
    {"host-adapters", 0, OPTION_INT, AT(host_adapters), "N",
     "beside a GPU: adapters in host memory; further ones are read from disk. 0: all of --adapter if the GPU "
     "does "
     "not hold them; -1: none (0)"},
    {"runtime-adapters", 0, OPTION_FLAG, AT(runtime_adapters), NULL,
     "allow clients to load and unload adapters from folders of this machine (/v1/load_lora_adapter)"},
    {"weights", 0, OPTION_STRING, AT(weights), "KIND",
     "as-is, or quantised on loading to 8 or 4 bits: q8, q4, nf4, fp4, fp8 (as-is)"},
    {"scratch", 0, OPTION_STRING, AT(scratch), "DIR",
     "on the CPU: folder on disk for parameters that do not fit the budget; they are read in "
     "each step. none: all must fit. Default: the cache folder or /var/tmp, used only if "
     "nothing fits otherwise"},
};

static const struct option_example examples[] = {
    {"serve runs/demo --budget 64MiB", "the newest checkpoint of a run, on http://127.0.0.1:8000"},
    {"serve ./llama-dir --parallel 8 --max-context 4096", "eight concurrent requests of up to 4096 tokens"},
    {"serve ./llama-dir --adapter poet=./poet --adapter legal=./legal", "two adapters beside the model"},
    {"serve ./llama-dir --host 0.0.0.0 --api-key-file keys.txt", "for the network, with keys"},
    {NULL, NULL}};

static const struct command command = {
    .name = "serve",
    .summary = "serve a model over HTTP, inside a budget",
    .usage = "[OPTION...] MODEL|CONFIG",
    .description = "Endpoints: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/classify, "
                   "/v1/models, /generate, /tokenize, /detokenize, /health, /metrics, and / is a page to "
                   "chat with the model and to watch its memory. See docs/serving.md.\n\nMODEL and CONFIG "
                   "are the same as for generate. Memory is planned and committed before the first request. "
                   "A request that can never fit gets 400 with the numbers; if the queue is full, it gets "
                   "429. SIGTERM and SIGINT finish open requests and exit with 0; a second signal exits at "
                   "once. The address is the first line on standard output; the start-up log goes to "
                   "standard error.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* One run of the command. */
struct serving {
    const struct serve_flags *flags;
    struct model_engine model;
    struct serve_environment environment;
    struct log log;
    char dir[MODEL_PATH], scratch[MODEL_PATH], name[128];
    struct serve_log stages;
    struct serve_watch watch;
    struct secrets keys;
    struct server_options limits;
    int64_t context; /* the model's longest */
    struct server *server;
    struct control *control;
    struct codec codec;
    struct chat_template *chat;
    struct plim_error no_chat;
    struct serve_adapters adapters;
};

static enum plim_status bad_flag(struct plim_error *err, const char *flag, const char *what)
{
    return plim_fail(err, PLIM_BAD_INPUT, "serve: option '--%s': %s", flag, what);
}

/* Prometheus refuses all metrics of a server if one has another name. */
static bool is_metric_prefix(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";
    return !text || (!text[strspn(text, allowed)] && !(*text >= '0' && *text <= '9'));
}

static enum plim_status check_flags(const struct serve_flags *f, struct plim_error *err)
{
    struct device_name unused;
    unsigned unused_kinds;
    enum dtype unused_type;
    static const char *const files[SNAPSHOT_FORMATS] = {"snapshot", "trace", "memory-viz"};
    if (f->json && !f->plan) return bad_flag(err, "json", "only with --plan");
    for (int i = 0; i < SNAPSHOT_FORMATS; i++) {
        if (f->snapshot[i] && !f->plan)
            return bad_flag(err, files[i],
                            "only with --plan; of a server: plimsoll ctl SOCKET snapshot FILE");
        if (f->snapshot[i] && strlen(f->snapshot[i]) >= SNAPSHOT_PATH)
            return bad_flag(err, files[i], "a path of less than 512 bytes, please");
    }
    if (!(f->plan && serve_plan_absent(f->device)) && !device_name_read(f->device, &unused))
        return bad_flag(err, "device", "no such device; write " DEVICE_NAMES);
    if (!kv_type_parse(f->kv_type, &unused_type))
        return bad_flag(err, "kv-type", "write auto, f32, bf16, f16, i8 or fp8");
    if (!ladder_read_allowed(f->allowed, &unused_kinds))
        return bad_flag(err, "allow-degraded", "write kv8, window, both with a comma, all or none");
    if (f->port < 0 || f->port > 65535)
        return bad_flag(err, "port", "write a number from 0 to 65535, e.g. 8000");
    if (f->name && (!*f->name || strlen(f->name) >= sizeof((struct serving *)0)->name))
        return bad_flag(err, "name", "write a name of 1 to 127 bytes");
    if (f->budget_given && !f->budget)
        return bad_flag(err, "budget", "0 bytes hold nothing; write e.g. 2GiB");
    if (f->max_context < 0) return bad_flag(err, "max-context", "write 0 for what fits, or e.g. 4096");
    if (f->parallel < 0 || f->parallel > 4096)
        return bad_flag(err, "parallel", "write 0 for what fits, or up to 4096");
    if (f->queue < 0 || f->queue > 1000000)
        return bad_flag(err, "queue", "write 0 for 4 x parallel, or up to 1000000");
    if (f->threads < 0 || f->threads > 1024)
        return bad_flag(err, "threads", "write 0 for one per core, or up to 1024");
    if (f->http_threads < 1 || f->http_threads > 64) return bad_flag(err, "http-threads", "write 1 to 64");
    if (f->connections < 8 || f->connections > 100000)
        return bad_flag(err, "max-connections", "write 8 to 100000, e.g. 1024");
    if (f->timeout < 1 || f->timeout > 86400) return bad_flag(err, "timeout", "write 1 to 86400, e.g. 30");
    if (!is_metric_prefix(f->prefix))
        return bad_flag(err, "metrics-prefix", "write letters, digits after them, _ and :, e.g. vllm:");
    if (!(f->monitor_every >= 0 && f->monitor_every <= 1e9))
        return bad_flag(err, "monitor-every", "write seconds, e.g. 60, or 0 for changes alone");
    if (f->drain < 0 || f->drain > 86400) return bad_flag(err, "drain", "write 0 to 86400, e.g. 60");
    if (f->max_body < 1024 || f->max_body > (1u << 30))
        return bad_flag(err, "max-body", "write 1KiB to 1GiB, e.g. 2MiB");
    if (strcmp(f->dtype, "auto") && precision_parse(f->dtype) == PRECISION_COUNT)
        return bad_flag(err, "dtype", "write auto, fp32, bf16 or fp16");
    if (weights_kind_parse(f->weights) == WEIGHTS_KINDS)
        return bad_flag(err, "weights", "write " WEIGHTS_KIND_CHOICE);
    if (f->max_adapters < 0 || f->max_adapters > ADAPTER_SLOT_MOST)
        return bad_flag(err, "max-adapters", "write 0 for all, or up to 1024");
    if (f->max_rank < 0 || f->max_rank > ADAPTER_SLOT_MOST)
        return bad_flag(err, "max-adapter-rank", "write 0 for what the adapters have, or up to 1024");
    if (f->host_adapters < -1 || f->host_adapters > 100000)
        return bad_flag(err, "host-adapters", "write 0 for what is needed, -1 for none, or a number");
    if (f->runtime_adapters && !f->adapters.count && !f->max_adapters)
        return bad_flag(err, "runtime-adapters",
                        "write --max-adapters too: how many the device holds at once");
    struct stat at;
    if (f->scratch && strcmp(f->scratch, "none") && (stat(f->scratch, &at) != 0 || !S_ISDIR(at.st_mode)))
        return bad_flag(err, "scratch", "there is no such folder; make it, or name another");
    return PLIM_OK;
}

/* --- opening, stage by stage -------------------------------------------------------------------------------- */

static struct server_options server_options(const struct serving *g)
{
    const struct serve_flags *f = g->flags;
    struct server_options o = {.host = f->host,
                               .port = f->port,
                               .threads = f->http_threads,
                               .limits = HTTP_LIMITS,
                               .keys = &g->keys,
                               .metrics_prefix = f->prefix,
                               .context = g->context,
                               .runtime_adapters = f->runtime_adapters,
                               .stop = serve_control_stop,
                               .log = &g->log};
    int connections = f->connections;
    if (!f->connections_given && connections < 2 * f->parallel) connections = 2 * f->parallel;
    o.limits.connections = connections, o.limits.idle = connections / 2;
    o.limits.receive_seconds = o.limits.send_seconds = f->timeout;
    o.limits.body_bytes = (int64_t)f->max_body, o.keep_body = f->max_body_given;
    o.keep_connections = f->connections_given, o.keep_threads = f->http_threads_given;
    o.answer_bytes = server_answers_for(f->parallel, ANSWER_USUAL);
    if (o.limits.bodies_bytes < 4 * o.limits.body_bytes) o.limits.bodies_bytes = 4 * o.limits.body_bytes;
    if (o.limits.body_bytes * 16 > SERVER_TREE) o.tree_bytes = o.limits.body_bytes * 16;
    return o;
}

/* Bytes of the server under another budget: an engine_options.caller_bytes_under. */
static int64_t caller_bytes_under(void *arg, int64_t budget)
{
    const struct serving *g = arg;
    struct server_options usual = server_options(g);
    usual.codec = &g->codec, usual.encoder_times = g->limits.encoder_times;
    return server_share(&usual, budget);
}

/* Listens before the model is there, so that whoever asks for its health is told. */
static enum plim_status listen_first(struct serving *g, struct plim_error *err)
{
    const struct serve_flags *f = g->flags;
    enum plim_status status = f->keys ? secrets_load(f->keys, &g->keys, err) : PLIM_OK;
    if (status != PLIM_OK) return status;
    if (g->keys.open_to_others)
        log_warn(&g->log, "%s: others can read it; chmod 600 keeps keys secret", f->keys);
    uint64_t line = device_line_host(&g->model.line);
    g->limits = server_options(g);
    server_fit(&g->limits, line ? (int64_t)(line / SERVER_PART) : INT64_MAX);
    status = serve_files(&g->limits.limits, g->limits.threads, &g->log, err);
    if (status != PLIM_OK) return status;
    if (f->plan) g->limits.host = "127.0.0.1", g->limits.port = 0;
    status = server_open(&g->limits, &g->server, err);
    if (status != PLIM_OK || f->plan) return status;
    if (status == PLIM_OK) status = serve_control_open(f->control, g->server, &g->log, &g->control, err);
    if (status != PLIM_OK) return status;
    bool v6 = strchr(f->host, ':');
    printf("http://%s%s%s:%d\n", v6 ? "[" : "", f->host, v6 ? "]" : "", server_port(g->server));
    fflush(stdout);
    return PLIM_OK;
}

static enum plim_status open_text(struct serving *g, struct plim_error *err)
{
    enum plim_status status = open_codec(cli_context(), g->flags->tokenizer, g->dir,
                                         device_line_host(&g->model.line), &g->codec, err);
    if (status != PLIM_OK) return status;
    g->limits.codec = &g->codec, g->limits.encoder_times = server_encoder_times(&g->codec);
    const char *from = g->flags->template ? g->flags->template : g->dir;
    status = chat_template_load(from, NULL, &g->chat, &g->no_chat);
    if (status == PLIM_OK) return status;
    if (g->flags->template) return *err = g->no_chat, status;
    if (!g->flags->plan) log_warn(&g->log, "chat is not available, only completions: %s", g->no_chat.text);
    return PLIM_OK;
}

static void device_opened(void *arg, struct device *device)
{
    ((struct serving *)arg)->stages.device = device;
}

/* NULL: nothing streams from disk. */
static const char *scratch_of(struct serving *g)
{
    struct model_spec spec;
    const char *asked = g->flags->scratch;
    if (asked) return strcmp(asked, "none") ? asked : NULL;
    if (hf_config_load(g->dir, &spec, NULL) != PLIM_OK) return NULL;
    return serve_scratch_find(g->dir, &spec, g->scratch, sizeof g->scratch);
}

static enum plim_status open_engine(struct serving *g, struct plim_error *err)
{
    const struct serve_flags *f = g->flags;
    struct engine_options options = {.model = g->dir,
                                     .caller_bytes = server_bytes(&g->limits),
                                     .caller_bytes_under =
                                         device_line_host(&g->model.line) ? caller_bytes_under : NULL,
                                     .caller = g,
                                     .max_context = f->max_context,
                                     .weights = weights_kind_parse(f->weights),
                                     .adapter = g->adapters.merged,
                                     .adapters = g->adapters.item,
                                     .adapter_count = g->adapters.count,
                                     .adapter_slots = f->max_adapters,
                                     .adapter_rank = f->max_rank,
                                     .adapter_images = f->host_adapters,
                                     .scratch = scratch_of(g),
                                     .stream_last = !f->scratch,
                                     .parallel = f->parallel ? f->parallel : g->environment.parallel,
                                     .exact = g->environment.exact,
                                     .mixed = g->environment.mixed,
                                     .dtype = precision_parse(f->dtype),
                                     .dtype_given = strcmp(f->dtype, "auto") != 0,
                                     .op_by_op = f->op_by_op,
                                     .queue = f->queue,
                                     .vocab = g->codec.vocab_size,
                                     .log = &g->log,
                                     .plan_only = f->plan,
                                     .remember = true,
                                     .stage = serve_log_hear,
                                     .stage_arg = &g->stages};
    unsigned allowed = 0;
    kv_type_parse(f->kv_type, &options.kv_type);
    ladder_read_allowed(f->allowed, &allowed);
    enum plim_status status = model_engine_open(&g->model, &options, allowed, err);
    if (status != PLIM_OK) return status;
    struct engine *engine = g->model.engine;
    status = serve_environment_check(&g->environment, engine_plan(engine)->precision,
                                     &g->model.ladder.device->facts, err);
    if (status == PLIM_OK) status = check_vocabulary(&g->codec, g->dir, engine_spec(engine)->vocab_size, err);
    if (status == PLIM_OK && !f->plan)
        warn_of_bytes(&g->codec, f->tokenizer, g->dir, engine_spec(engine)->vocab_size, &g->log);
    return status;
}

static void tell_plan(const struct serving *g)
{
    const struct engine_plan *p = engine_plan(g->model.engine);
    char total[BYTES_TEXT], params[BYTES_TEXT], pool[BYTES_TEXT], server[BYTES_TEXT];
    log_info(&g->log, "planned %s: parameters %s, cache %s, connections and requests up to %s",
             bytes_format(total, (uint64_t)p->total), bytes_format(params, (uint64_t)p->params),
             bytes_format(pool, (uint64_t)p->pool), bytes_format(server, (uint64_t)server_bytes(&g->limits)));
    log_info(&g->log, "%d concurrent requests, %d may wait, up to %lld tokens each; %d connections",
             p->parallel, p->queue, (long long)p->context, g->limits.limits.connections);
    if (p->adapter_slots)
        log_info(&g->log, "%d adapters; %d of rank up to %d on the device at once, %s", g->adapters.count,
                 p->adapter_slots, p->adapter_rank, bytes_format(params, (uint64_t)p->adapters));
    if (p->streamed && g->model.ladder.device->facts.unified_memory)
        log_info(&g->log, "%s of parameters are read from disk for each step, below %s (--scratch)",
                 bytes_format(params, (uint64_t)p->streamed), g->model.ladder.options.scratch);
}

/* The error also says how much the server itself takes, and for what: the model alone may fit. */
static void name_parts(const struct serving *g, struct plim_error *err)
{
    struct server_parts p = server_parts(&g->limits);
    char all[BYTES_TEXT], connections[BYTES_TEXT], requests[BYTES_TEXT], words[BYTES_TEXT],
        answers[BYTES_TEXT];
    size_t at = strlen(err->text);
    snprintf(err->text + at, sizeof err->text - at,
             "; %s of it are the server's: %d connections %s, reading requests %s, tokenizing %s, answers %s",
             bytes_format(all, (uint64_t)server_bytes(&g->limits)), g->limits.limits.connections,
             bytes_format(connections, (uint64_t)p.connections), bytes_format(requests, (uint64_t)p.requests),
             bytes_format(words, (uint64_t)p.tokenizer), bytes_format(answers, (uint64_t)p.answers));
}

static enum plim_status open_all(struct serving *g, const char *what, struct plim_error *err)
{
    struct model_spec spec; /* a folder that is none is refused before anybody is told where to ask */
    serve_log_hear(&g->stages, "start");
    enum plim_status status = find_model(cli_context(), what, g->dir, sizeof g->dir, err);
    if (status == PLIM_OK) status = hf_config_load(g->dir, &spec, err);
    if (status == PLIM_OK) g->context = max64(spec.max_positions, g->flags->max_context);
    if (status == PLIM_OK) status = listen_first(g, err);
    if (status != PLIM_OK) return status;
    if (g->flags->name)
        snprintf(g->name, sizeof g->name, "%s", g->flags->name);
    else
        model_name(what, g->name, sizeof g->name);
    serve_log_hear(&g->stages, "config_loaded");
    status = open_text(g, err);
    if (status == PLIM_OK) serve_log_hear(&g->stages, "tokenizer_loaded"), status = open_engine(g, err);
    if (status == PLIM_NO_FIT) name_parts(g, err);
    if (status == PLIM_OK && g->flags->plan) engine_remember(g->model.engine);
    if (status != PLIM_OK || g->flags->plan) return status;
    status = model_engine_warm_up(&g->model, err);
    if (status != PLIM_OK) return status;
    serve_log_hear(&g->stages, "warmup_complete");
    serve_log_hear(&g->stages, "model_saved");
    malloc_trim(0);
    serve_log_hear(&g->stages, "final_cleanup");
    tell_plan(g);
    struct server_model model = {g->model.engine, &g->codec, g->chat, g->name, g->dir};
    status = server_ready(g->server, &model, err);
    if (status != PLIM_OK) return status;
    serve_log_hear(&g->stages, "ready");
    g->model.ladder.stage = NULL;
    log_info(&g->log, "ready after %.2f s", clock_seconds() - g->stages.began);
    return PLIM_OK;
}

/* --- running and stopping ----------------------------------------------------------------------------------- */

static void begin_watch(struct serving *g)
{
    struct serve_watch_how how = {&g->log, g->environment.thresholds, g->flags->monitor_every};
    serve_watch_open(&g->watch, g->model.engine, g->model.ladder.device, &how);
}

/* The monitor looks at a device that the ladder may close. */
static void rung_moved(void *arg, bool done)
{
    struct serving *g = arg;
    if (done)
        begin_watch(g);
    else
        serve_watch_close(&g->watch);
}

/* For requests that were on their way when the last one under way was answered: they get 503. */
#define ARRIVAL_SECONDS 2.0

static atomic_int time_is_up;
static void on_alarm(int number) { (void)number, time_is_up = 1; }

static enum plim_status drain(struct serving *g, struct plim_error *err)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct timespec pause = {0, 5000000};
    double limit = clock_seconds() + g->flags->drain;
    log_info(&g->log, "stopping: finishing %d open requests, for up to %d s", server_active(g->server),
             g->flags->drain);
    server_drain(g->server);
    engine_drain(g->model.engine);
    sigaction(SIGALRM, &action, NULL);
    time_is_up = g->flags->drain == 0;
    alarm((unsigned)g->flags->drain);
    enum plim_status status = time_is_up ? PLIM_OK : model_engine_run(&g->model, &time_is_up, err);
    alarm(0);
    server_close_door(g->server);
    double arrived = clock_seconds() + ARRIVAL_SECONDS;
    while (server_active(g->server) || (server_arriving(g->server) && clock_seconds() < arrived)) {
        if (clock_seconds() >= limit) break;
        nanosleep(&pause, NULL);
    }
    int left = server_active(g->server);
    if (left) log_warn(&g->log, "%d requests were not answered in time", left);
    return status;
}

/* Nothing will be computed any more: whoever waits is told, and has a moment to hear it. */
static void give_up(struct serving *g, const struct plim_error *err)
{
    struct timespec pause = {0, 5000000};
    double limit = clock_seconds() + 2;
    server_fail(g->server, err->text);
    while (server_active(g->server) && clock_seconds() < limit) nanosleep(&pause, NULL);
}

static bool writes_json(const struct serving *g) { return g->log.sink == log_to_json; }

/* Where memory was refused: why, who holds it, and what would help. */
static void explain_refusal(struct serving *g, const struct plim_error *err)
{
    struct explanation why;
    struct strbuf text = STRBUF_INIT;
    struct engine_stats now = {0};
    serve_watch_close(&g->watch);
    if (g->model.engine) engine_stats(g->model.engine, &now);
    if (!ladder_explain(&g->model.ladder, err, now.steps, &why)) return;
    explanation_text(&why, &text);
    if (writes_json(g))
        log_error(&g->log, "%s", strbuf_text(&text));
    else
        fputs(strbuf_text(&text), stderr);
    strbuf_release(&text);
}

static int tell_error(const struct serving *g, const struct plim_error *err)
{
    if (!writes_json(g)) return cli_error(err);
    log_error(&g->log, "%s", err->text);
    return plim_exit_code(err->status);
}

static void close_all(struct serving *g)
{
    serve_watch_close(&g->watch);
    control_close(g->control);
    server_stop(g->server);
    model_engine_close(&g->model);
    server_close(g->server);
    chat_template_free(g->chat);
    codec_close(&g->codec);
    secrets_release(&g->keys);
    serve_adapters_release(&g->adapters);
}

/* Every file that was asked for. */
static enum plim_status write_files(struct serving *g, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < SNAPSHOT_FORMATS && status == PLIM_OK; i++) {
        struct snapshot_wish wish = {.format = (enum snapshot_format)i};
        if (!g->flags->snapshot[i]) continue;
        snprintf(wish.file, sizeof wish.file, "%s", g->flags->snapshot[i]);
        status = engine_save_plan(g->model.engine, &wish, err);
    }
    return status;
}

/* plan --serve: what serve would commit; nothing is committed. */
static int show_plan(struct serving *g)
{
    const struct engine_plan *plan = engine_plan(g->model.engine);
    struct strbuf out = STRBUF_INIT;
    int cards = serve_plan_cards(g->flags->device);
    if (cards > 1) cli_say("serving uses 1 of the %d GPUs of %s", cards, g->flags->device);
    if (g->flags->json)
        serve_plan_json(g->name, &g->model.ladder.device->facts, plan, server_bytes(&g->limits), &out);
    else
        plan_text(plan, &g->model.ladder.device->facts, server_bytes(&g->limits), &out);
    return cli_print(&out);
}

static int serve(const struct serve_flags *f, const char *what)
{
    int shown = 0;
    struct serving g = {.flags = f,
                        .model = {.caller = {cli_context(), "serve", false},
                                  .device = f->device,
                                  .threads = f->threads,
                                  .line = {f->budget, f->budget_given, device_line_default()},
                                  .log = &g.log,
                                  .opened = device_opened,
                                  .moved = rung_moved,
                                  .arg = &g}};
    struct plim_error err = {0};
    g.log = (struct log){f->quiet || f->plan ? LOG_LEVEL_WARN
                         : f->verbose        ? LOG_LEVEL_DEBUG
                                             : LOG_LEVEL_INFO,
                         !strcmp(f->log_format, "json") ? log_to_json : log_to_file, stderr};
    serve_log_open(&g.stages, &g.log);
    signal(SIGPIPE, SIG_IGN); /* whoever reads the log may leave; requests are answered all the same */
    signal(SIGUSR1, SIG_IGN); /* saves a checkpoint of a run; there is nothing to save here */
    mallopt(M_ARENA_MAX, 1);  /* what one thread has freed is there for the others */
    enum plim_status status = check_flags(f, &err);
    if (status == PLIM_OK) status = serve_adapters_read(&f->adapters, &g.adapters, &err);
    if (status == PLIM_OK) status = serve_environment_read(&g.environment, &err);
    g.model.fraction = g.environment.fraction;
    bool opening = status == PLIM_OK;
    atomic_int *stop = f->plan ? NULL : cli_stop_flag(); /* whoever is told the address may stop it */
    if (status == PLIM_OK) status = open_all(&g, what, &err);
    if (status != PLIM_OK && opening && !f->plan) serve_log_failure(&g.stages, status, g.model.ladder.memory);
    if (status == PLIM_OK && f->plan) status = write_files(&g, &err);
    if (status == PLIM_OK && f->plan) shown = show_plan(&g);
    if (status == PLIM_OK && !f->plan) {
        begin_watch(&g);
        status = model_engine_run(&g.model, stop, &err);
        if (status == PLIM_OK) status = drain(&g, &err);
        if (status != PLIM_OK) serve_log_failure(&g.stages, status, g.model.ladder.memory), give_up(&g, &err);
    }
    if (status != PLIM_OK && !f->json) explain_refusal(&g, &err);
    close_all(&g);
    if (status == PLIM_OK) log_info(&g.log, "stopped");
    return status == PLIM_OK ? shown : tell_error(&g, &err);
}

static const struct serve_flags defaults = {.host = "127.0.0.1",
                                            .port = 8000,
                                            .device = "auto",
                                            .allowed = "window",
                                            .kv_type = "auto",
                                            .weights = "as-is",
                                            .dtype = "auto",
                                            .log_format = "text",
                                            .http_threads = HTTP_THREADS,
                                            .connections = 1024,
                                            .timeout = 30,
                                            .drain = 60,
                                            .monitor_every = 60,
                                            .max_body = 2 << 20};

static int run(void *flags, const struct string_list *args) { return serve(flags, args->items[0]); }

const struct subcommand subcommand_serve = {
    &command, run, CLI_FLAGS(defaults), 1, 1, "give one model folder, run folder or configuration"};
