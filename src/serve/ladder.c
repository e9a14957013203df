/* ladder.c - see ladder.h. */
#include "serve/ladder.h"
#include "base/bytes.h"
#include "device/registry.h"
#include "mem/os.h"

#include <stdio.h>
#include <string.h>

/* Tokens of the smallest rung of a device; where it may be used, requests are not made shorter than LEAST_CONTEXT before. */
enum { WINDOW = 32, LEAST_CONTEXT = 256 };

/* --- failures ---------------------------------------------------------------------------------------------- */

const char *failure_name(enum failure f)
{
    static const char *const names[FAILURES] = {"failed", "RESOURCE_EXHAUSTED", "buffer allocation",
                                                "compile", "device lost"};
    return names[f];
}

enum failure failure_of(enum plim_status status, const char *stage, struct device *device)
{
    /* What comes after these stages looks at ops and their kernels; before, and with weights, it is files that say what is asked. */
    bool compiles =
        stage && device && (!strcmp(stage, "model_loaded_cpu") || !strcmp(stage, "compilation_started"));
    switch (status) {
    case PLIM_NO_MEMORY:
        return FAILURE_EXHAUSTED;
    case PLIM_NO_FIT:
        return FAILURE_BUFFER;
    case PLIM_UNSUPPORTED:
        return compiles ? FAILURE_COMPILE : FAILURE_OTHER;
    case PLIM_IO:
        return device && device->ops->sync(device, NULL) != PLIM_OK ? FAILURE_LOST : FAILURE_OTHER;
    default:
        return FAILURE_OTHER;
    }
}

const char *memory_text(const struct device *device, char text[MEMORY_TEXT])
{
    struct os_process me = {0};
    char host[BYTES_TEXT], taken[BYTES_TEXT];
    os_process_memory(&me, NULL);
    bool own = device && device->ops->used;
    size_t used = own ? device->ops->used((struct device *)device) : 0;
    snprintf(text, MEMORY_TEXT, "host %s, device %s", bytes_format(host, me.rss),
             own ? bytes_format(taken, used) : "is the host");
    return text;
}

/* --- rungs ------------------------------------------------------------------------------------------------- */

static void set_full(struct engine_options *o) { o->whole = true; }
static void set_fewer(struct engine_options *o) { o->whole = false; }
static void set_kv8(struct engine_options *o) { o->kv_type = DT_U8; }
static void set_streamed(struct engine_options *o) { o->stream = true; }
static void set_minimal(struct engine_options *o)
{
    o->window = o->step_tokens = WINDOW;
    o->parallel = 1, o->whole = false;
}
static void set_cpu(struct engine_options *o) { o->whole = false; }
static void set_exact(struct engine_options *o) { o->exact = true; }

#define BIT(failure) (1u << (failure))
#define MEMORY       (BIT(FAILURE_EXHAUSTED) | BIT(FAILURE_BUFFER))
#define ANYTHING     (MEMORY | BIT(FAILURE_COMPILE) | BIT(FAILURE_LOST))

static const struct rung rungs[] = {
    {.name = "full", .what = "as many requests, and as long ones, as were asked for", .set = set_full},
    {.name = "fewer", .what = "fewer requests at once, and shorter ones", .helps = MEMORY, .set = set_fewer},
    {.name = "kv8", .what = "keys and values in 8 bits", .needs = ALLOW_KV8, .helps = MEMORY, .set = set_kv8},
    {.name = "streamed",
     .what = "parameters on the host or on disk, fetched for each step",
     .helps = MEMORY,
     .below = true,
     .limited = true,
     .set = set_streamed},
    {.name = "minimal",
     .what = "one request at a time, each token computed from the last 32, without a cache",
     .needs = ALLOW_WINDOW,
     .helps = MEMORY,
     .limited = true,
     .set = set_minimal},
    {.name = "cpu",
     .what = "on the CPU, in the type of the weights",
     .helps = ANYTHING,
     .fallback = true,
     .limited = true,
     .set = set_cpu},
    {.name = "cpu-fp32",
     .what = "on the CPU, in float32",
     .helps = BIT(FAILURE_COMPILE),
     .fallback = true,
     .limited = true,
     .set = set_exact},
};
enum { RUNGS = sizeof rungs / sizeof *rungs };

const struct rung *ladder_rung(int number) { return number >= 0 && number < RUNGS ? &rungs[number] : NULL; }

bool ladder_read_allowed(const char *text, unsigned *out)
{
    static const struct {
        const char *name;
        unsigned bits;
    } kinds[] = {
        {"kv8", ALLOW_KV8}, {"window", ALLOW_WINDOW}, {"all", ALLOW_KV8 | ALLOW_WINDOW}, {"none", 0}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    *out = 0;
    for (;; text++) {
        size_t len = strcspn(text, ",");
        int i = 0;
        while (i < KINDS && (strlen(kinds[i].name) != len || memcmp(kinds[i].name, text, len) != 0)) i++;
        if (i == KINDS) return false;
        *out |= kinds[i].bits;
        if (!*(text += len)) return true;
    }
}

static bool is_fallback(const struct device *device)
{
    return !strcmp(device->ops->name, backend_fallback()->name);
}

static bool allowed(const struct ladder *l, const struct rung *r)
{
    bool below = !l->device || !l->device->facts.unified_memory || l->options.scratch;
    return !(r->needs & ~l->allowed) && (below || !r->below);
}

/* May the rung be used, were it its turn? */
static bool applies(const struct ladder *l, const struct rung *r)
{
    bool here = l->device && is_fallback(l->device);
    if (!allowed(l, r)) return false;
    if (r->fallback && !here && !l->fallback) return false;
    return !(r->fallback && here && r->set == set_cpu); /* the rungs above were on it */
}

/* The next one that may help; -1: none. */
static int next_rung(const struct ladder *l, enum failure cause)
{
    for (int i = l->rung + 1; i < RUNGS; i++)
        if ((rungs[i].helps & BIT(cause)) && applies(l, &rungs[i])) return i;
    return -1;
}

/* --- a rung made real -------------------------------------------------------------------------------------- */

static void hear_stage(void *arg, const char *stage)
{
    struct ladder *l = arg;
    l->stage = stage;
    if (l->options.stage) l->options.stage(l->options.stage_arg, stage);
}

/* What the device has for us, where nobody gave a line: below the first rung a plan must be held against something. */
static int64_t free_bytes(const struct device *device)
{
    struct os_machine machine = {0};
    struct os_process me = {0};
    if (!device->facts.unified_memory) return (int64_t)device->facts.free_bytes;
    if (os_machine_memory(&machine, NULL) != PLIM_OK || os_process_memory(&me, NULL) != PLIM_OK) return 0;
    return (int64_t)((machine.available + me.rss) / 10 * 9);
}

/* The options of rung number n: what is above it on the same device, and its own. */
static struct engine_options options_of(struct ladder *l, int n)
{
    struct engine_options o = l->options;
    for (int i = 0; i <= n; i++)
        if (rungs[i].fallback == rungs[n].fallback && allowed(l, &rungs[i])) rungs[i].set(&o);
    if (l->allowed & ALLOW_WINDOW) o.least_context = LEAST_CONTEXT;
    if (!o.budget && n > 0 && rungs[n].helps & MEMORY) o.budget = free_bytes(l->device);
    o.rung = rungs[n].name, o.stage = hear_stage, o.stage_arg = l;
    return o;
}

/* The device that the rung is for; *before is the one to be closed when nothing uses it any more. */
static enum plim_status change_device(struct ladder *l, const struct rung *r, struct device **before,
                                      struct plim_error *err)
{
    struct device *other = NULL;
    *before = NULL;
    if (l->device && (!r->fallback || is_fallback(l->device))) return PLIM_OK;
    enum plim_status status = l->open(l->arg, r->fallback, &other, err);
    if (status != PLIM_OK) return status;
    *before = l->device, l->device = other;
    return PLIM_OK;
}

static void use(struct ladder *l, struct device *before)
{
    if (l->opened) l->opened(l->arg, l->device);
    if (before) before->ops->close(before);
}

/* One rung: *e is opened when it is NULL, else it goes over to the rung with its requests. */
static enum plim_status try_rung(struct ladder *l, int n, struct engine **e, struct plim_error *err)
{
    struct device *before;
    l->rung = n, l->stage = "tokenizer_loaded";
    enum plim_status status = change_device(l, &rungs[n], &before, err);
    if (status != PLIM_OK) return status;
    struct engine_options o = options_of(l, n);
    if (!*e) {
        use(l, before);
        return engine_open(l->device, &o, e, err);
    }
    status = engine_reopen(*e, l->device, &o, err);
    use(l, before);
    return status;
}

static void tell_failure(const struct ladder *l, enum failure cause, int next, const char *why)
{
    char memory[MEMORY_TEXT];
    bool grave = next < 0 || rungs[next].limited || rungs[next].needs;
    const char *at = l->stage ? l->stage : "ready";
    memory_text(l->device, memory);
    if (next < 0) return; /* the caller tells the error itself */
    log_say(l->log, grave ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
            "rung %s: %s after stage %s (%s): %s; next: %s, %s", rungs[l->rung].name, failure_name(cause), at,
            memory, why, rungs[next].name, rungs[next].what);
}

static enum plim_status come_down(struct ladder *l, enum plim_status status, struct engine **e,
                                  struct plim_error *err)
{
    bool served = !l->stage;
    while (status != PLIM_OK) {
        enum failure cause = failure_of(status, l->stage, l->device);
        int next = next_rung(l, cause);
        tell_failure(l, cause, next, err->text);
        if (next < 0) return status;
        status = try_rung(l, next, e, err);
    }
    const struct rung *r = &rungs[l->rung];
    if (served) l->stage = NULL;
    log_say(l->log, r->limited ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "rung %s: %s%s", r->name, r->what,
            r->limited ? "; performance will be limited" : "");
    return PLIM_OK;
}

enum plim_status ladder_open(struct ladder *l, struct engine **out, struct plim_error *err)
{
    *out = NULL;
    return come_down(l, try_rung(l, 0, out, err), out, err);
}

enum plim_status ladder_down(struct ladder *l, struct engine *e, enum plim_status status,
                             struct plim_error *err)
{
    return come_down(l, status, &e, err);
}

void ladder_close(struct ladder *l)
{
    if (l->device) l->device->ops->close(l->device);
    l->device = NULL;
}
