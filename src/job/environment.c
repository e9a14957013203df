/* environment.c - see environment.h: a table of variables; each has a check, and most a key that it sets. */
#include "job/environment.h"
#include "base/dotenv.h"
#include "base/number.h"
#include "mem/cache_conf.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VALUE = 64, WISHES = 4 };

/* Reads a value into the text that its key takes; an empty text: the variable sets nothing. False: it cannot be read. */
typedef bool read_value(const char *value, char key_value[VALUE], struct plim_error *err);

struct variable {
    const char *name;
    read_value *read;
    const char *takes;           /* "a whole number, e.g. 16" */
    const char *key;             /* NULL: none */
    const char *says[WISHES];    /* keys that say the same: one of them in the job is stronger */
    const char *why;             /* it sets nothing */
    const char *does;            /* it sets no key, but has this effect */
    int hook;                    /* 1 + enum hook_kind: an address; 0: none */
    bool secret, launcher, note; /* launcher: only the process's environment counts */
    int64_t least, most;         /* it is a whole number in this range; most 0: it is none */
    const char *help;
};

static bool read_fraction(const char *value, char out[VALUE], struct plim_error *)
{
    double x;
    snprintf(out, VALUE, "%s", value);
    return strlen(value) < VALUE && number_parse_double(value, strlen(value), &x) && x > 0 && x <= 1;
}

static bool is_word(const char *value, const char *const *words)
{
    while (*words && strcasecmp(*words, value)) words++;
    return *words;
}

static bool read_mixed(const char *value, char out[VALUE], struct plim_error *)
{
    static const char *const yes[] = {"true", "1", "yes", "on", NULL}, *const no[] = {"false", "0", "no",
                                                                                      "off", NULL};
    snprintf(out, VALUE, "%s", is_word(value, yes) ? "auto" : "fp32");
    return is_word(value, yes) || is_word(value, no);
}

static bool read_allocator(const char *value, char out[VALUE], struct plim_error *err)
{
    struct cache_conf conf;
    out[0] = '\0';
    if (cache_conf_parse(value, &conf, err) != PLIM_OK) return false;
    if (conf.fraction > 0) number_format_double(out, conf.fraction);
    return true;
}

/* Returns an address from its host on, or NULL if the scheme differs or the host is missing. */
static const char *host_of(const char *value, const char *scheme)
{
    size_t n = strlen(scheme), host = strlen(value) > n ? strcspn(value + n, "/:?#@") : 0;
    return !strncmp(value, scheme, n) && (host || value[n] == '[') ? value + n : NULL;
}

static bool read_url(const char *value, char out[VALUE], struct plim_error *)
{
    out[0] = '\0';
    return host_of(value, "https://") || host_of(value, "http://");
}

/* A service's address is a secret, which only https keeps; http is for a receiver on this machine. */
static bool read_service(const char *value, char out[VALUE], struct plim_error *)
{
    static const char *const own[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = host_of(value, "http://");
    out[0] = '\0';
    if (host_of(value, "https://")) return true;
    for (int i = 0; host && i < 3; i++) {
        size_t n = strlen(own[i]);
        if (!strncmp(host, own[i], n) && (!host[n] || strchr("/:", host[n]))) return true;
    }
    return false;
}

static bool read_any(const char *, char out[VALUE], struct plim_error *)
{
    out[0] = '\0';
    return true;
}

static bool read_name(const char *value, char out[VALUE], struct plim_error *)
{
    return snprintf(out, VALUE, "%s", value) < VALUE;
}

static bool in_range(const struct variable *v, const char *value)
{
    int64_t n;
    return !v->most || (number_parse_int64(value, strlen(value), &n) && n >= v->least && n <= v->most);
}

#define NO_CACHE                                                                                             \
    "every byte is planned: there is no cache to tune, and the arena's addresses are reserved once and "     \
    "hold "                                                                                                  \
    "memory as the plan needs it, which is what expandable_segments is for"
#define ONE_RANK "only torchrun's ranks use it; ranks of mpirun and srun, and a single process, ignore it"
#define OFFLINE                                                                                              \
    "nothing is sent: training.report_to: wandb writes a folder, and wandb sync, which reads the key, "      \
    "sends "                                                                                                 \
    "it"
#define PLUGIN(says, what) read_any, "text", .does = says, .launcher = true, .help = what
#define HOOK(kind, read)   read, "an address that begins with https://", .secret = true, .hook = 1 + (kind)
#define FRACTION                                                                                             \
    {                                                                                                        \
        "budget", "training.memory.cuda_memory_fraction", "training.memory.target_utilization"               \
    }
#define ALLOCATOR                                                                                            \
    .read = read_allocator, .takes = "options of PyTorch's allocator, e.g. max_split_size_mb:512",           \
    .key = "training.memory.cuda_memory_fraction", .says = FRACTION, .why = NO_CACHE, .note = true

static const struct variable variables[] = {
    {"MAX_BATCH_SIZE", read_name, "a whole number of at least 1, e.g. 16", "training.max_micro_batch_size",
     .least = 1, .most = 1000000, .says = {"training.max_micro_batch_size", "training.micro_batch_size"},
     .help = "maximum rows of a micro-batch; serve: maximum number of concurrent requests, like --parallel"},
    {"CUDA_MEMORY_FRACTION", read_fraction, "a number above 0 and at most 1, e.g. 0.8",
     "training.memory.cuda_memory_fraction", .says = FRACTION,
     .help = "share of a GPU's memory that is the budget, also for serve; no effect on a CPU"},
    {"ENABLE_MIXED_PRECISION", read_mixed, "true or false", "training.mixed_precision",
     .says = {"training.mixed_precision", "training.fp16", "training.bf16"},
     .help =
         "true: bf16 where the device has it, else fp16 on a GPU and fp32 on a CPU; false: fp32; serve: the "
         "same for weights in fp32, and with false weights of 16 bits are computed in fp32"},
    {"PLIMSOLL_ALLOC_CONF", ALLOCATOR,
     .help = "checked; per_process_memory_fraction acts like CUDA_MEMORY_FRACTION, the rest has no cache to "
             "tune"},
    {"PYTORCH_ALLOC_CONF", ALLOCATOR, .help = "the same; the one above has precedence"},
    {"PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR, .help = "the same; those above have precedence"},
    {"DISCORD_WEBHOOK", HOOK(HOOK_DISCORD, read_service),
     .help = "a Discord channel that receives the notices of monitoring.notify; never shown"},
    {"SLACK_WEBHOOK", HOOK(HOOK_SLACK, read_service), .help = "the same for Slack"},
    {"PLIMSOLL_WEBHOOK", HOOK(HOOK_JSON, read_url),
     .help = "the same as plain JSON, for programs of your own"},
    {"WANDB_PROJECT", read_name, "a name of at most 63 bytes", "monitoring.wandb_project",
     .says = {"monitoring.wandb_project"}, .help = "the project of a W&B folder"},
    {"WANDB_API_KEY", read_any, "text", .why = OFFLINE, .secret = true,
     .help = "ignored: nothing is sent; wandb sync reads it"},
    {"PJRT_PLUGIN_LIBRARY_PATH", PLUGIN("names the plug-in of a PJRT device",
                                        "the PJRT plug-in of devices pjrt, neuron and tpu (docs/xla.md)")},
    {"XLA_FLAGS", PLUGIN("is read by PJRT plug-ins", "read by XLA's plug-ins; a flag may be added to it")},
    {"NEURON_CC_FLAGS", PLUGIN("is read by neuronx-cc; missing flags are added",
                               "flags of neuronx-cc; those of docs/xla.md that are missing are added")},
    {"NEURON_RT_VISIBLE_CORES", PLUGIN("chooses the cores of device neuron", "cores of device neuron")},
    {"NEURON_RT_NUM_CORES",
     PLUGIN("says how many cores device neuron has", "number of cores of device neuron")},
    {"WORLD_SIZE", read_any, "a number of processes, e.g. 1", .why = ONE_RANK, .launcher = true, .least = 1,
     .most = 1000000,
     .help = "number of ranks that torchrun started for train (docs/ranks.md); plan is always one "
             "process"},
    {"RANK", read_any, "a whole number, e.g. 0", .why = ONE_RANK, .launcher = true, .most = 1000000,
     .help = "checked"},
    {"LOCAL_RANK", read_any, "a whole number, e.g. 0", .why = ONE_RANK, .launcher = true, .most = 1000000,
     .help = "checked"},
    {"MASTER_ADDR", read_any, "a host", .why = ONE_RANK, .launcher = true,
     .help = "where torchrun's ranks meet"},
    {"MASTER_PORT", read_any, "a port from 1 to 65535, e.g. 29500", .why = ONE_RANK, .launcher = true,
     .least = 1, .most = 65535, .help = "torchrun's ranks meet 100 ports above it, or at PLIMSOLL_PORT"},
};
enum { VARIABLES = sizeof variables / sizeof *variables };
_Static_assert((int)VARIABLES * 2 < (int)VARIABLES_SEEN,
               "all of them may be seen twice, and a few strangers");

/* A variable on its way into a job. */
struct arrival {
    const struct variable *variable;
    const char *value, *where;
    enum origin_kind kind;
};

static enum plim_status unreadable(const struct arrival *a, const struct plim_error *why,
                                   struct plim_error *err)
{
    const struct variable *v = a->variable;
    char found[VALUE + 16] = "something else";
    if (!v->secret) snprintf(found, sizeof found, "'%.60s'", a->value);
    const char *where = a->kind == ORIGIN_DOTENV ? a->where : "environment";
    if (why->status != PLIM_OK)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: variable %s: %s; fix it, or unset it", where, v->name,
                         why->text);
    return plim_fail(err, PLIM_BAD_INPUT, "%s: variable %s: expected %s, found %s; fix it, or unset it",
                     where, v->name, v->takes, found);
}

static void see(struct job *job, struct variable_seen seen)
{
    if (!job->environment) job->environment = bump_alloc(&job->store, sizeof *job->environment);
    if (job->environment && job->environment->count < VARIABLES_SEEN)
        job->environment->seen[job->environment->count++] = seen;
}

/* "job.yaml:7 gives training.bf16", where the job itself says the same; NULL: nobody does. */
static const char *stronger(struct job *job, const struct variable *v)
{
    for (int i = 0; i < WISHES && v->says[i]; i++) {
        const struct origin *o = job_origin(job, v->says[i]);
        char text[256];
        if (o->kind == ORIGIN_DEFAULT) continue;
        snprintf(text, sizeof text, "%.150s gives %s", o->where, o->name ? o->name : v->says[i]);
        const char *copy = bump_copy(&job->store, text, strlen(text));
        return copy ? copy : "the job gives it";
    }
    return NULL;
}

/* The process's environment comes first, and is stronger. */
static enum plim_status keep_hook(struct job *job, const struct arrival *a, struct variable_seen *seen,
                                  struct plim_error *err)
{
    const char **hook = &job->telling.hook[a->variable->hook - 1];
    if (*hook) {
        seen->why = "the environment gives it";
        return PLIM_OK;
    }
    seen->does = "is told of runs";
    *hook = bump_copy(&job->store, a->value, strlen(a->value));
    return *hook ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "out of memory");
}

static enum plim_status arrive(struct job *job, const struct arrival *a, struct plim_error *err)
{
    const struct variable *v = a->variable;
    struct variable_seen seen = {
        .name = v->name, .where = a->where, .why = v->why, .does = v->does, .note = v->note};
    struct plim_error why = {0};
    struct origin_recorder recorder;
    char value[VALUE];
    if (!v->read(a->value, value, &why) || !in_range(v, a->value)) return unreadable(a, &why, err);
    enum plim_status status = PLIM_OK;
    if (a->kind == ORIGIN_DOTENV && v->launcher)
        seen.why = v->does ? "it is only read from the process's environment; export it"
                           : "a launcher sets it; it is not read from a file",
        seen.does = NULL;
    else if (v->hook)
        status = keep_hook(job, a, &seen, err);
    else if (v->key && *value && !(seen.why = stronger(job, v))) {
        seen.key = v->key;
        status = schema_set_from(&job_schema, a->where, v->key, value, job, &job->store,
                                 origin_record(&recorder, job, a->kind, NULL), err);
    }
    see(job, seen);
    return status;
}

enum plim_status job_take_process_environment(struct job *job, const struct context *context,
                                              struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < VARIABLES && status == PLIM_OK; i++) {
        const char *value = context_get(context, variables[i].name);
        char where[VALUE];
        snprintf(where, sizeof where, "environment %s", variables[i].name);
        if (!value || !*value) continue;
        const char *copy = bump_copy(&job->store, where, strlen(where));
        if (!copy) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
        status = arrive(job, &(struct arrival){&variables[i], value, copy, ORIGIN_ENVIRONMENT}, err);
    }
    return status;
}

static const struct variable *find(const char *name)
{
    for (int i = 0; i < VARIABLES; i++)
        if (!strcmp(variables[i].name, name)) return &variables[i];
    return NULL;
}

/* A line of .env: ours, somebody else's, or a setting of the program itself. */
static enum plim_status take_line(struct job *job, const char *path, const struct dotenv_entry *e,
                                  struct plim_error *err)
{
    const struct variable *v = find(e->name);
    char where[512];
    snprintf(where, sizeof where, "%.480s:%d", path, e->line);
    const char *copy = bump_copy(&job->store, where, strlen(where));
    const char *name = bump_copy(&job->store, e->name, strlen(e->name));
    if (!copy || !name) return plim_fail(err, PLIM_NO_MEMORY, "out of memory");
    if (v && *e->value) return arrive(job, &(struct arrival){v, e->value, copy, ORIGIN_DOTENV}, err);
    if (!v && !strncmp(name, "PLIMSOLL_", 9))
        see(job, (struct variable_seen){.name = name,
                                        .where = copy,
                                        .why = "it is only read from the process's environment; export it"});
    return PLIM_OK;
}

enum plim_status job_take_environment(struct job *job, const struct context *context, const char *dir,
                                      struct plim_error *err)
{
    struct dotenv vars;
    char path[512];
    enum plim_status status = job_take_process_environment(job, context, err);
    if (status != PLIM_OK) return status;
    if ((size_t)snprintf(path, sizeof path, "%s%s.env", dir, *dir ? "/" : "") >= sizeof path) return PLIM_OK;
    status = dotenv_load(path, &vars, err);
    for (size_t i = 0; i < vars.count && status == PLIM_OK; i++)
        if (dotenv_find(&vars, vars.items[i].name) == &vars.items[i])
            status = take_line(job, path, &vars.items[i], err);
    dotenv_release(&vars);
    return status;
}

void environment_markdown(struct strbuf *out)
{
    strbuf_add(out, "| variable | takes | sets | meaning |\n|---|---|---|---|\n");
    for (int i = 0; i < VARIABLES; i++) {
        const struct variable *v = &variables[i];
        strbuf_addf(out, "| `%s` | %s | %s%s%s | %s |\n", v->name, v->takes, v->key ? "`" : "",
                    v->key ? v->key : "", v->key ? "`" : "", v->help);
    }
}
