/* cmd_serve.c - plimsoll serve: a model behind HTTP, inside a budget. Flags, the start-up log, signals. */
#include "cli/cli.h"
#include "cli/serve_log.h"
#include "cli/serve_plan.h"
#include "cli/serve_setup.h"
#include "cli/serve_watch.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "device/registry.h"
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
    struct model_flags model;
    const char *host, *keys, *template, *name, *prefix, *control, *allowed, *kv_type, *scratch, *dtype;
    int port, parallel, queue, http_threads, connections, drain, timeout;
    int64_t max_context;
    double monitor_every;
    uint64_t max_body;
    bool max_body_given, connections_given, http_threads_given, quiet, verbose, plan, json, op_by_op;
    const char *snapshot[SNAPSHOT_FORMATS]; /* files */
};

#define AT(field) offsetof(struct serve_flags, field)
static const struct option_row rows[] = {
    {"port", 'p', OPTION_INT, AT(port), "N", "listen on this port; 0: any free one (8000)",
     .expected = "0 to 65535, e.g. 8000", .most = 65535},
    {"host", 0, OPTION_STRING, AT(host), "ADDRESS", "listen on this address (127.0.0.1: this machine only)"},
    {"budget", 'b', OPTION_BYTES, AT(model.line.budget), "BYTES",
     "memory budget, e.g. 2GiB (what the device has)", CLI_BUDGET(struct serve_flags, model)},
    {"max-context", 0, OPTION_INT64, AT(max_context), "N",
     "longest request, prompt and answer, in tokens; 0: as long as fits, up to the model's (0)",
     .expected = "0 for what fits, or e.g. 4096", .most = INT64_MAX},
    {"parallel", 0, OPTION_INT, AT(parallel), "N",
     "maximum number of concurrent requests; 0: as many as fit (0)",
     .expected = "0 for what fits, or up to 4096", .most = 4096},
    {"queue", 0, OPTION_INT, AT(queue), "N",
     "requests that may wait; one more is answered with 429; 0: 4 x parallel (0)",
     .expected = "0 for 4 x parallel, or up to 1000000", .most = 1000000},
    {"api-key-file", 0, OPTION_STRING, AT(keys), "FILE", "clients must show one of these keys, one a line"},
    {"name", 0, OPTION_STRING, AT(name), "NAME", "what clients call the model; default: its folder's name"},
    {"tokenizer", 0, OPTION_STRING, AT(model.tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model, a folder with one, or bytes; default: the model's own, else "
     "bytes"},
    {"chat-template", 0, OPTION_STRING, AT(template), "FILE", "a *.jinja file; default: the model's own"},
    {"device", 0, OPTION_STRING, AT(model.device), "NAME",
     "cpu, cuda, cuda:N, or auto: a GPU that works and leaves room in the budget, else the CPU (auto)"},
    {"threads", 0, OPTION_INT, AT(model.threads), "N", "CPU threads that compute; 0: one per core (0)",
     CLI_THREADS},
    {"http-threads", 0, OPTION_INT, AT(http_threads), "N",
     "threads that read requests and write answers (4; 2 where the budget is small)",
     .given = OPTION_GIVEN(struct serve_flags, http_threads_given), .expected = "1 to 64", .least = 1,
     .most = 64},
    {"max-body", 0, OPTION_BYTES, AT(max_body), "BYTES",
     "largest body of a request (2MiB; less where the budget is small)",
     .given = OPTION_GIVEN(struct serve_flags, max_body_given), .expected = "1KiB to 1GiB, e.g. 2MiB",
     .least = 1 << 10, .most = 1 << 30},
    {"max-connections", 0, OPTION_INT, AT(connections), "N",
     "connections at once, half of which may be idle (1024; less where the budget is small)",
     .given = OPTION_GIVEN(struct serve_flags, connections_given), .expected = "8 to 100000, e.g. 1024",
     .least = 8, .most = 100000},
    {"timeout", 0, OPTION_INT, AT(timeout), "SECONDS",
     "for sending a request, and for taking an answer's next byte (30)", .expected = "1 to 86400, e.g. 30",
     .least = 1, .most = 86400},
    {"drain", 0, OPTION_INT, AT(drain), "SECONDS", "to answer what is under way after SIGTERM (60)",
     .expected = "0 to 86400, e.g. 60", .most = 86400},
    {"metrics-prefix", 0, OPTION_STRING, AT(prefix), "TEXT", "before every name of /metrics, e.g. vllm:"},
    {"monitor-every", 0, OPTION_DOUBLE, AT(monitor_every), "SECONDS",
     "between two lines \"[Step N] Memory: ...\"; 0: only when the status changes (60)",
     .expected = "seconds, e.g. 60, or 0 for changes alone", .most = 1e9},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no start-up log; warnings and errors only"},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "also what the HTTP library complains of"},
    {"control", 0, OPTION_STRING, AT(control), "PATH",
     "socket for plimsoll ctl, or none (serve-PORT.sock in $XDG_RUNTIME_DIR/plimsoll, if that is set)"},
    {"allow-degraded", 0, OPTION_STRING, AT(allowed), "KINDS",
     "degradations that change answers, used where nothing else fits: kv8 (keys and values in 8 bits), "
     "window (each token from the last 32), all, none (window)"},
    {"plan", 0, OPTION_FLAG, AT(plan), NULL, "show the plan and stop; --device may be a preset's name then"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "with --plan: as JSON"},
    {"trace", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_TRACE]), "FILE",
     "with --plan: write the largest step, ops as lanes and tensors as address x time, for ui.perfetto.dev"},
    {"memory-viz", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_MEMORY_VIZ]), "FILE",
     "with --plan: write it as a pickle that PyTorch's memory_viz opens"},
    {"snapshot", 0, OPTION_STRING, AT(snapshot[SNAPSHOT_JSON]), "FILE",
     "with --plan: write its ops and tensors with places and times as JSON"},
    {"kv-type", 0, OPTION_STRING, AT(kv_type), "TYPE",
     "of keys and values: i8 takes half of bf16 and is less exact; auto: the type of the weights (auto)"},
    {"dtype", 0, OPTION_STRING, AT(dtype), "TYPE",
     "compute in fp32, bf16 or fp16 instead of the type of the weights (auto)"},
    {"disable-cudagraphs", 0, OPTION_FLAG, AT(op_by_op), NULL,
     "launch ops one by one instead of recorded steps; slower"},
    {"weights", 0, OPTION_STRING, AT(model.weights), "KIND",
     "as-is, or in blocks of 8 or 4 bits made while they are read: q8, q4 (as-is)", .choices = cli_weights},
    {"scratch", 0, OPTION_STRING, AT(scratch), "DIR",
     "on the CPU: a folder on disk for parameters that the budget does not hold, read for each step; none: "
     "they must fit (the cache folder or /var/tmp, where nothing fits without)"},
};

static const struct option_example examples[] = {
    {"serve runs/demo --budget 64MiB", "the newest checkpoint of a run, on http://127.0.0.1:8000"},
    {"serve ./llama-dir --parallel 8 --max-context 4096", "eight requests at once, of up to 4096 tokens"},
    {"serve ./llama-dir --host 0.0.0.0 --api-key-file keys.txt", "for the network, with keys"},
    {NULL, NULL}};

static const struct command command = {
    .name = "serve",
    .summary = "answer HTTP requests with a trained model, inside a budget",
    .usage = "[OPTION...] MODEL|CONFIG",
    .description =
        "Endpoints: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/classify, /v1/models, "
        "/generate, /tokenize, "
        "/detokenize, /health, "
        "/metrics, and / is a page to chat with the model and to watch its memory. See docs/serving.md.\n\n"
        "MODEL and CONFIG as for generate. Memory is planned and committed before the first request. A "
        "request that can "
        "never fit is answered with 400 and the numbers, one that finds the queue full with 429. SIGTERM and "
        "SIGINT "
        "answer what is under way and exit with 0; a second one ends at once. The address is the first line "
        "on standard "
        "output; the start-up log goes to standard error.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* One run of the command. */
struct serving {
    const struct serve_flags *flags;
    struct device_line line;
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
    struct ladder ladder;
    struct codec codec;
    struct chat_template *chat;
    struct plim_error no_chat;
    struct engine *engine;
};

static enum plim_status bad_flag(struct plim_error *err, const char *flag, const char *what)
{
    return plim_fail(err, PLIM_BAD_INPUT, "serve: option '--%s': %s", flag, what);
}

/* DT_F64: there is no such type. */
static enum dtype kv_type_of(const char *name)
{
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = {{"auto", DT_COUNT}, {"i8", DT_U8}, {"f32", DT_F32}, {"bf16", DT_BF16}, {"f16", DT_F16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) return types[i].type;
    return DT_F64;
}

static enum plim_status check_flags(const struct serve_flags *f, struct plim_error *err)
{
    unsigned unused_kinds;
    static const char *const files[SNAPSHOT_FORMATS] = {"snapshot", "trace", "memory-viz"};
    if (f->json && !f->plan) return bad_flag(err, "json", "only with --plan");
    for (int i = 0; i < SNAPSHOT_FORMATS; i++) {
        if (f->snapshot[i] && !f->plan)
            return bad_flag(err, files[i],
                            "only with --plan; of a server: plimsoll ctl SOCKET snapshot FILE");
        if (f->snapshot[i] && strlen(f->snapshot[i]) >= SNAPSHOT_PATH)
            return bad_flag(err, files[i], "a path of less than 512 bytes, please");
    }
    if (!(f->plan && serve_plan_absent(f->model.device)) && !cli_is_device(f->model.device))
        return bad_flag(err, "device", "no such device; write auto, cpu, cuda or cuda:1");
    if (kv_type_of(f->kv_type) == DT_F64) return bad_flag(err, "kv-type", "write auto, f32, bf16, f16 or i8");
    if (!ladder_read_allowed(f->allowed, &unused_kinds))
        return bad_flag(err, "allow-degraded", "write kv8, window, both with a comma, all or none");
    if (strcmp(f->dtype, "auto") && precision_parse(f->dtype) == PRECISION_COUNT)
        return bad_flag(err, "dtype", "write auto, fp32, bf16 or fp16");
    struct stat at;
    if (f->scratch && strcmp(f->scratch, "none") && (stat(f->scratch, &at) != 0 || !S_ISDIR(at.st_mode)))
        return bad_flag(err, "scratch", "there is no such folder; make it, or name another");
    return PLIM_OK;
}

/* The last part of a path: "runs/demo/" is "demo". */
static void name_model(struct serving *g, const char *what)
{
    size_t len = strlen(what);
    while (len > 1 && what[len - 1] == '/') len--;
    size_t from = len;
    while (from && what[from - 1] != '/') from--;
    const char *name = g->flags->name;
    if (name)
        snprintf(g->name, sizeof g->name, "%s", name);
    else
        snprintf(g->name, sizeof g->name, "%.*s", (int)(len - from), what + from);
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
                               .stop = serve_control_stop,
                               .log = &g->log};
    o.limits.connections = f->connections, o.limits.idle = f->connections / 2;
    o.limits.receive_seconds = o.limits.send_seconds = f->timeout;
    o.limits.body_bytes = (int64_t)f->max_body, o.keep_body = f->max_body_given;
    o.keep_connections = f->connections_given, o.keep_threads = f->http_threads_given;
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
    uint64_t line = device_line_host(&g->line);
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
    char path[MODEL_PATH + 32];
    const char *which = find_tokenizer(g->flags->model.tokenizer, g->dir, path, sizeof path);
    enum plim_status status = codec_open_within(which, device_line_host(&g->line), &g->codec, err);
    if (status != PLIM_OK) return status;
    g->limits.codec = &g->codec, g->limits.encoder_times = server_encoder_times(&g->codec);
    const char *from = g->flags->template ? g->flags->template : g->dir;
    status = chat_template_load(from, NULL, &g->chat, &g->no_chat);
    if (status == PLIM_OK) return status;
    if (g->flags->template) return *err = g->no_chat, status;
    if (!g->flags->plan) log_warn(&g->log, "no chats, only completions: %s", g->no_chat.text);
    return PLIM_OK;
}

static enum plim_status find_device(const struct serving *g, bool fallback, struct device **out,
                                    struct plim_error *err)
{
    const struct serve_flags *f = g->flags;
    if (f->plan && !fallback && serve_plan_absent(f->model.device))
        return serve_plan_device(f->model.device, out, err);
    struct device_wish wish = {"serve", f->model.device, "--device cpu", f->model.threads,
                               f->model.line.budget};
    return fallback ? backend_fallback()->open(cli_context(), 0, f->model.threads, out, err)
                    : open_device(cli_context(), &wish, out, err);
}

/* The lines of a device that was opened: the flag's, or the share of a GPU's memory that the environment allows; without either the
 * container's limit bounds the plan. */
static void choose_line(struct serving *g, const struct device_facts *facts)
{
    struct engine_options *o = &g->ladder.options;
    if (g->line.given) return;
    o->budget = facts->unified_memory ? 0 : (int64_t)(g->environment.fraction * (double)facts->memory_bytes);
    o->limit = facts->free_bytes ? device_line_on(&g->line, facts) : 0; /* 0: a device that is not here */
}

static enum plim_status open_checked(void *arg, bool fallback, struct device **out, struct plim_error *err)
{
    struct serving *g = arg;
    enum plim_status status = find_device(g, fallback, out, err);
    if (status == PLIM_OK && !fallback)
        status = device_line_check(cli_context(), "serve", &g->line, &(*out)->facts, err);
    if (status != PLIM_OK && *out) (*out)->ops->close(*out), *out = NULL;
    if (status == PLIM_OK) choose_line(g, &(*out)->facts);
    return status;
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
                                     .budget = f->model.line.given ? (int64_t)f->model.line.budget : 0,
                                     .caller_bytes = server_bytes(&g->limits),
                                     .caller_bytes_under =
                                         device_line_host(&g->line) ? caller_bytes_under : NULL,
                                     .caller = g,
                                     .max_context = f->max_context,
                                     .weights = weights_kind_parse(f->model.weights),
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
                                     .kv_type = kv_type_of(f->kv_type),
                                     .log = &g->log,
                                     .plan_only = f->plan,
                                     .remember = true,
                                     .stage = serve_log_hear,
                                     .stage_arg = &g->stages};
    g->ladder = (struct ladder){.options = options,
                                .fallback = !strcmp(f->model.device, "auto"),
                                .open = open_checked,
                                .opened = device_opened,
                                .arg = g,
                                .log = &g->log};
    ladder_read_allowed(f->allowed, &g->ladder.allowed);
    enum plim_status status = ladder_open(&g->ladder, &g->engine, err);
    if (status != PLIM_OK) return status;
    return serve_environment_check(&g->environment, engine_plan(g->engine)->precision,
                                   &g->ladder.device->facts, err);
}

static enum plim_status check_vocabulary(const struct serving *g, struct plim_error *err)
{
    int64_t has = engine_spec(g->engine)->vocab_size;
    if (!g->codec.tokenizer && !g->flags->model.tokenizer && has != CLI_BYTE_TOKENS && !g->flags->plan)
        log_warn(&g->log, "%s has no tokenizer: every byte of a text is a token", g->dir);
    if (has >= g->codec.vocab_size) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: the tokenizer has %lld tokens, the model only %lld; give its own",
                     g->codec.path ? g->codec.path : g->dir, (long long)g->codec.vocab_size, (long long)has);
}

static bool hear_nothing(void *arg, const struct engine_event *event)
{
    if (event->finish == FINISH_FAILED) *(bool *)arg = true;
    return true;
}

/* 32 tokens through the engine before anybody asks: whatever is made at the first step is made now. */
static enum plim_status warm_up(struct serving *g, struct plim_error *err)
{
    int32_t prompt[32] = {0};
    int64_t id, context = engine_plan(g->engine)->context;
    bool failed = false;
    struct engine_request r = {
        .prompt = prompt, .count = context > 32 ? 32 : context - 1, .tokens = 1, .logprobs = -1};
    r.ignore_eos = true, r.hear = hear_nothing, r.arg = &failed;
    enum plim_status status = r.count > 0 ? engine_submit(g->engine, &r, &id, err) : PLIM_OK;
    while (status == PLIM_OK && engine_busy(g->engine)) status = engine_step(g->engine, err);
    if (status == PLIM_OK && failed) status = plim_fail(err, PLIM_IO, "the warm-up of 32 tokens failed");
    return status;
}

static void tell_plan(const struct serving *g)
{
    const struct engine_plan *p = engine_plan(g->engine);
    char total[BYTES_TEXT], params[BYTES_TEXT], pool[BYTES_TEXT], server[BYTES_TEXT];
    log_info(&g->log, "planned %s: parameters %s, cache %s, connections and requests up to %s",
             bytes_format(total, (uint64_t)p->total), bytes_format(params, (uint64_t)p->params),
             bytes_format(pool, (uint64_t)p->pool), bytes_format(server, (uint64_t)server_bytes(&g->limits)));
    log_info(&g->log, "%d requests at once, %d may wait, up to %lld tokens each; %d connections", p->parallel,
             p->queue, (long long)p->context, g->limits.limits.connections);
    if (p->streamed && g->ladder.device->facts.unified_memory)
        log_info(&g->log, "%s of parameters are read from disk for each step, below %s (--scratch)",
                 bytes_format(params, (uint64_t)p->streamed), g->ladder.options.scratch);
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
    name_model(g, what);
    serve_log_hear(&g->stages, "config_loaded");
    status = open_text(g, err);
    if (status == PLIM_OK) serve_log_hear(&g->stages, "tokenizer_loaded"), status = open_engine(g, err);
    if (status == PLIM_NO_FIT) name_parts(g, err);
    if (status == PLIM_OK) status = check_vocabulary(g, err);
    if (status == PLIM_OK && g->flags->plan) engine_remember(g->engine);
    if (status != PLIM_OK || g->flags->plan) return status;
    if (status == PLIM_OK) status = warm_up(g, err);
    while (status != PLIM_OK && g->engine && ladder_down(&g->ladder, g->engine, status, err) == PLIM_OK)
        status = warm_up(g, err);
    if (status == PLIM_OK) serve_log_hear(&g->stages, "warmup_complete");
    if (status != PLIM_OK) return status;
    engine_remember(g->engine);
    ladder_remember(&g->ladder);
    engine_count_anew(g->engine);
    serve_log_hear(&g->stages, "model_saved");
    malloc_trim(0);
    serve_log_hear(&g->stages, "final_cleanup");
    tell_plan(g);
    struct server_model model = {g->engine, &g->codec, g->chat, g->name, g->dir};
    status = server_ready(g->server, &model, err);
    if (status != PLIM_OK) return status;
    serve_log_hear(&g->stages, "ready");
    g->ladder.stage = NULL;
    log_info(&g->log, "ready after %.2f s", clock_seconds() - g->stages.began);
    return PLIM_OK;
}

/* --- running and stopping ----------------------------------------------------------------------------------- */

enum { STEP_FAILURES = 3 };

static void begin_watch(struct serving *g)
{
    struct serve_watch_how how = {&g->log, g->environment.thresholds, g->flags->monitor_every};
    serve_watch_open(&g->watch, g->engine, g->ladder.device, &how);
}

/* The monitor looks at a device that the ladder may close. */
static enum plim_status go_down(struct serving *g, enum plim_status status, struct plim_error *err)
{
    serve_watch_close(&g->watch);
    status = ladder_down(&g->ladder, g->engine, status, err);
    if (status == PLIM_OK) ladder_remember(&g->ladder), begin_watch(g);
    return status;
}

/* Steps until told to stop. A step that fails is tried again; after so many in a row without one that works, or when the device is
 * lost, the engine goes down the ladder, and the server ends where no rung is left. */
static enum plim_status run_engine(struct serving *g, const atomic_int *stop, struct plim_error *err)
{
    struct engine_stats stats = {0};
    int64_t steps = -1;
    for (int failures = 0;;) {
        enum plim_status status = engine_run(g->engine, stop, err);
        if (status == PLIM_OK || *stop) return PLIM_OK;
        engine_stats(g->engine, &stats);
        failures = stats.steps == steps ? failures + 1 : 1;
        steps = stats.steps;
        enum failure cause = failure_of(status, NULL, g->ladder.device);
        log_error(&g->log, "%s: a step failed: %s", failure_name(cause), err->text);
        if (cause == FAILURE_LOST || failures == STEP_FAILURES) {
            status = go_down(g, status, err);
            if (status != PLIM_OK) return status;
            failures = 0;
            continue;
        }
        struct timespec pause = {0, 100000000};
        nanosleep(&pause, NULL);
    }
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
    log_info(&g->log, "stopping: %d requests under way are answered first, for up to %d s",
             server_active(g->server), g->flags->drain);
    server_drain(g->server);
    engine_drain(g->engine);
    sigaction(SIGALRM, &action, NULL);
    time_is_up = g->flags->drain == 0;
    alarm((unsigned)g->flags->drain);
    enum plim_status status = time_is_up ? PLIM_OK : run_engine(g, &time_is_up, err);
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

/* Where memory was refused: why, who holds it, and what would help. */
static void explain_refusal(struct serving *g, const struct plim_error *err)
{
    struct explanation why;
    STRBUF_AUTO text = STRBUF_INIT;
    struct engine_stats now = {0};
    serve_watch_close(&g->watch);
    if (g->engine) engine_stats(g->engine, &now);
    if (!ladder_explain(&g->ladder, err, now.steps, &why)) return;
    explanation_text(&why, &text);
    fputs(strbuf_text(&text), stderr);
}

static void close_all(struct serving *g)
{
    serve_watch_close(&g->watch);
    control_close(g->control);
    server_stop(g->server);
    if (g->engine) engine_close(g->engine);
    server_close(g->server);
    ladder_close(&g->ladder);
    chat_template_free(g->chat);
    codec_close(&g->codec);
    secrets_release(&g->keys);
}

/* Every file that was asked for. */
static enum plim_status write_files(struct serving *g, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < SNAPSHOT_FORMATS && status == PLIM_OK; i++) {
        struct snapshot_wish wish = {.format = (enum snapshot_format)i};
        if (!g->flags->snapshot[i]) continue;
        snprintf(wish.file, sizeof wish.file, "%s", g->flags->snapshot[i]);
        status = engine_save_plan(g->engine, &wish, err);
    }
    return status;
}

/* plan --serve: what serve would commit; nothing is committed. */
static int show_plan(struct serving *g)
{
    const struct engine_plan *plan = engine_plan(g->engine);
    struct strbuf out = STRBUF_INIT;
    int cards = serve_plan_cards(g->flags->model.device);
    if (cards > 1) cli_say("serving uses 1 of the %d cards of %s", cards, g->flags->model.device);
    if (g->flags->json)
        serve_plan_json(g->name, &g->ladder.device->facts, plan, server_bytes(&g->limits), &out);
    else
        plan_text(plan, &g->ladder.device->facts, server_bytes(&g->limits), &out);
    return cli_print(&out);
}

static int serve(const struct serve_flags *f, const char *what)
{
    int shown = 0;
    struct serving g = {.flags = f, .line = f->model.line};
    struct plim_error err = {0};
    g.line.fallback = device_line_default();
    g.log = (struct log){f->quiet || f->plan ? LOG_LEVEL_WARN
                         : f->verbose        ? LOG_LEVEL_DEBUG
                                             : LOG_LEVEL_INFO,
                         log_to_file, stderr};
    serve_log_open(&g.stages, &g.log);
    signal(SIGPIPE, SIG_IGN); /* whoever reads the log may leave; requests are answered all the same */
    signal(SIGUSR1, SIG_IGN); /* saves a checkpoint of a run; there is nothing to save here */
    mallopt(M_ARENA_MAX, 1);  /* what one thread has freed is there for the others */
    enum plim_status status = check_flags(f, &err);
    if (status == PLIM_OK) status = serve_environment_read(&g.environment, &err);
    bool opening = status == PLIM_OK;
    atomic_int *stop = f->plan ? NULL : cli_stop_flag(); /* whoever is told the address may stop it */
    if (status == PLIM_OK) status = open_all(&g, what, &err);
    if (status != PLIM_OK && opening && !f->plan) serve_log_failure(&g.stages, status, g.ladder.memory);
    if (status == PLIM_OK && f->plan) status = write_files(&g, &err);
    if (status == PLIM_OK && f->plan) shown = show_plan(&g);
    if (status == PLIM_OK && !f->plan) {
        begin_watch(&g);
        status = run_engine(&g, stop, &err);
        if (status == PLIM_OK) status = drain(&g, &err);
        if (status != PLIM_OK) serve_log_failure(&g.stages, status, g.ladder.memory), give_up(&g, &err);
    }
    if (status != PLIM_OK && !f->json) explain_refusal(&g, &err);
    close_all(&g);
    if (status == PLIM_OK) log_info(&g.log, "stopped");
    return status == PLIM_OK ? shown : cli_error(&err);
}

static const struct serve_flags defaults = {.host = "127.0.0.1",
                                            .port = 8000,
                                            .model = MODEL_FLAGS,
                                            .allowed = "window",
                                            .kv_type = "auto",
                                            .dtype = "auto",
                                            .http_threads = HTTP_THREADS,
                                            .connections = 1024,
                                            .timeout = 30,
                                            .drain = 60,
                                            .monitor_every = 60,
                                            .max_body = 2 << 20};

static int run(void *flags, const struct string_list *args) { return serve(flags, args->items[0]); }

const struct subcommand subcommand_serve = {
    &command, run, CLI_FLAGS(defaults), 1, 1, "give one model folder, run folder or configuration"};
