/* ladder.c - see ladder.h. */
#include "serve/ladder.h"
#include "base/bytes.h"
#include "device/registry.h"
#include "mem/os.h"
#include "watch/holders.h"

#include <stdio.h>
#include <string.h>

/* --- failures ---------------------------------------------------------------------------------------------- */

const char *failure_name(enum failure f)
{
    static const char *const names[FAILURES] = {"failed", "RESOURCE_EXHAUSTED", "buffer allocation",
                                                "compile", "device lost"};
    return names[f];
}

enum failure failure_of(enum plim_status status, const char *stage, struct device *device)
{
    /* Only what follows these stages looks at ops and their kernels. Before them, and with weights, files are to blame. Some devices
     * compile while planning (facts.measure), which follows weights_mapped. */
    bool compiles = stage && device &&
                    (!strcmp(stage, "model_loaded_cpu") || !strcmp(stage, "compilation_started") ||
                     (device->facts.measure && !strcmp(stage, "weights_mapped")));
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

#define BIT(failure) (1u << (failure))
#define MEMORY       (BIT(FAILURE_EXHAUSTED) | BIT(FAILURE_BUFFER))
#define ANYTHING     (MEMORY | BIT(FAILURE_COMPILE) | BIT(FAILURE_LOST))

/* The first OFFER_RUNGS rows are the rungs of the planner's offers, in its order. */
static const struct rung rungs[] = {
    [OFFER_FULL] = {.name = "full", .what = "the number and length of requests that the options ask for"},
    [OFFER_FEWER] = {.name = "fewer", .what = "fewer concurrent requests, and shorter ones", .helps = MEMORY},
    [OFFER_KV8] = {.name = "kv8", .what = "keys and values in 8 bits", .needs = ALLOW_KV8, .helps = MEMORY},
    [OFFER_STREAMED] = {.name = "streamed",
                        .what = "parameters on the host or on disk, fetched for each step",
                        .helps = MEMORY,
                        .limited = true},
    [OFFER_MINIMAL] = {.name = "minimal",
                       .what = "one request at a time, each token computed from the last 32, without a cache",
                       .needs = ALLOW_WINDOW,
                       .helps = MEMORY,
                       .limited = true},
    {.name = "cpu",
     .what = "on the CPU, in the type of the weights",
     .helps = ANYTHING,
     .fallback = true,
     .limited = true},
    {.name = "cpu-fp32",
     .what = "on the CPU, in float32",
     .helps = BIT(FAILURE_COMPILE),
     .fallback = true,
     .exact = true,
     .limited = true},
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

/* May this rung be used, were it its turn? */
static bool applies(const struct ladder *l, int n)
{
    const struct rung *r = &rungs[n];
    bool here = l->device && is_fallback(l->device);
    bool tier_below = !l->device || (l->device->facts.lower_tier != TIER_DEVICE &&
                                     (!l->device->facts.unified_memory || l->options.scratch));
    if (r->needs & ~l->allowed) return false;
    if (n == OFFER_STREAMED && !tier_below) return false;
    if (!r->fallback) return true;
    return here ? r->exact : l->fallback; /* the rungs above were on the CPU already */
}

/* The next rung that may help; -1: none. */
static int next_rung(const struct ladder *l, enum failure cause)
{
    for (int i = l->rung + 1; i < RUNGS; i++)
        if ((rungs[i].helps & BIT(cause)) && applies(l, i)) return i;
    return -1;
}

/* --- a rung made real -------------------------------------------------------------------------------------- */

static void read_memory(struct ladder *l)
{
    memory_text(l->device, l->memory);
    if (!l->device->kernels) return; /* it is not here, and this machine's memory is not its own */
    watch_read(watch_readers, &(struct watch_source){.root = os_machine_root(), .device = l->device},
               &l->reading);
}

/* A failure is told with the memory that was taken when it happened, before anything was given back. */
static void hear_stage(void *arg, const char *stage)
{
    struct ladder *l = arg;
    if (!strcmp(stage, ENGINE_FAILED))
        read_memory(l);
    else
        l->stage = stage;
    if (l->options.stage) l->options.stage(l->options.stage_arg, stage);
}

/* Free device memory when no budget was given: after a failure, the next plan needs a limit. */
static int64_t free_bytes(const struct device *device)
{
    struct os_machine machine = {0};
    struct os_process me = {0};
    if (!device->facts.unified_memory) return (int64_t)device->facts.free_bytes;
    if (os_machine_memory(&machine, NULL) != PLIM_OK || os_process_memory(&me, NULL) != PLIM_OK) return 0;
    return (int64_t)((machine.available + me.rss) / 10 * 9);
}

static struct engine_options options_of(struct ladder *l, int n)
{
    const struct rung *r = &rungs[n];
    struct engine_options o = l->options;
    o.allow_kv8 = l->allowed & ALLOW_KV8, o.allow_window = l->allowed & ALLOW_WINDOW, o.stream = true;
    o.first_rung = r->fallback ? OFFER_FULL : (enum offer_rung)n;
    o.exact = o.exact || r->exact;
    if (!o.budget && n > 0 && r->helps & MEMORY) o.budget = free_bytes(l->device);
    o.rung = r->fallback ? r->name : NULL, o.stage = hear_stage, o.stage_arg = l;
    o.refusal = &l->refusal;
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

/* Opens *e when it is NULL; otherwise *e goes over to the rung with its requests. */
static enum plim_status open_rung(struct ladder *l, int n, struct engine **e, struct plim_error *err)
{
    struct device *before;
    l->rung = n, l->stage = "tokenizer_loaded", l->memory[0] = 0;
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

/* Names the refused memory and its holders: "; the largest of it ...; memory is held by ...". */
static void name_refused(const struct ladder *l, struct strbuf *out)
{
    struct holder holders[HOLDERS_MAX];
    char bytes[BYTES_TEXT];
    const struct peak *p = &l->refusal.peak;
    if (l->refusal.needed)
        strbuf_addf(out, "; the largest of it is %s, %s of class %s", p->tensor,
                    bytes_format(bytes, (uint64_t)p->bytes), p->cls);
    int n = holders_of(&l->reading, os_machine_root(), holders);
    if (n) strbuf_add(out, "; memory is held by ");
    holders_text(holders, n, out);
}

static void tell_failure(const struct ladder *l, int rung, enum failure cause, int next, const char *why)
{
    char now[MEMORY_TEXT];
    STRBUF_AUTO more = STRBUF_INIT;
    bool grave = rungs[next].limited || rungs[next].needs;
    if (cause == FAILURE_EXHAUSTED) name_refused(l, &more);
    log_say(l->log, grave ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
            "rung %s: %s after stage %s (%s): %s%s; next: %s, %s", rungs[rung].name, failure_name(cause),
            l->stage ? l->stage : "ready", l->memory[0] ? l->memory : memory_text(l->device, now), why,
            strbuf_text(&more), rungs[next].name, rungs[next].what);
}

/* The planner has come down by itself: each rung that it passed over is told with the bytes it would take. */
static void tell_missed(struct ladder *l, const struct engine_plan *plan)
{
    char takes[BYTES_TEXT], why[BYTES_TEXT + 16];
    for (int r = l->rung, next; r < (int)plan->offer_rung; r = next) {
        for (next = r + 1; next < (int)plan->offer_rung && !plan->missed[next];) next++;
        if (!plan->missed[r]) continue;
        snprintf(why, sizeof why, "takes %s", bytes_format(takes, (uint64_t)plan->missed[r]));
        tell_failure(l, r, FAILURE_BUFFER, next, why);
    }
    if (!rungs[l->rung].fallback) l->rung = (int)plan->offer_rung;
}

static enum plim_status come_down(struct ladder *l, enum plim_status status, struct engine **e,
                                  struct plim_error *err)
{
    bool served = !l->stage;
    while (status != PLIM_OK) {
        enum failure cause = failure_of(status, l->stage, l->device);
        if (cause == FAILURE_BUFFER && l->rung < OFFER_RUNGS)
            l->rung = OFFER_RUNGS - 1; /* it tried them all */
        int next = next_rung(l, cause);
        l->refused = l->refused || cause == FAILURE_EXHAUSTED;
        if (next < 0) return status; /* the caller tells the error itself */
        tell_failure(l, l->rung, cause, next, err->text);
        status = open_rung(l, next, e, err);
    }
    tell_missed(l, engine_plan(*e));
    const struct rung *r = &rungs[l->rung];
    if (served) l->stage = NULL;
    log_say(l->log, r->limited ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "rung %s: %s%s", r->name, r->what,
            r->limited ? "; performance will be limited" : "");
    return PLIM_OK;
}

/* --- what is remembered ------------------------------------------------------------------------------------ */

/* Beyond this part more, free memory is another situation. */
enum { MORE_PART = 16 };

static int rung_named(const char *name)
{
    int n = 0;
    while (n < RUNGS && strcmp(rungs[n].name, name)) n++;
    return n;
}

/* The rung to begin on: the first, or the one that stood where memory was refused above it. */
static int recall(struct ladder *l, const struct plan_key *key)
{
    struct kept_rung kept;
    STRBUF_AUTO file = STRBUF_INIT;
    bool damaged;
    int n = rung_cache_load(key, &kept, &file, &damaged) ? rung_named(kept.name) : 0;
    bool more = l->free > kept.free + kept.free / MORE_PART;
    if (damaged || n == RUNGS)
        log_warn(l->log, "%s is damaged and ignored; the server begins on rung %s", strbuf_text(&file),
                 rungs[0].name);
    if (n == RUNGS || more || !applies(l, n)) n = 0;
    if (n > 0)
        log_info(l->log,
                 "begins on rung %s, because memory was refused above it at an earlier start; remove %s "
                 "to try again",
                 rungs[n].name, strbuf_text(&file));
    l->recalled = n > 0;
    return n;
}

/* For the device asked for, which is open. */
static int begin_on(struct ladder *l)
{
    struct plan_key key;
    l->free = free_bytes(l->device);
    if (!l->options.remember) return 0;
    plan_key_make(&key, l->options.model, l->device, &l->options);
    int n = recall(l, &key);
    l->key = key;
    return n;
}

void ladder_remember(const struct ladder *l)
{
    struct kept_rung kept = {.free = l->free};
    if (!l->key.text.len) return;
    snprintf(kept.name, sizeof kept.name, "%s", rungs[l->rung].name);
    if (l->refused)
        rung_cache_save(&l->key, &kept);
    else if (!l->recalled)
        rung_cache_forget(&l->key);
}

enum plim_status ladder_open(struct ladder *l, struct engine **out, struct plim_error *err)
{
    struct device *none;
    *out = NULL, l->rung = 0, l->stage = "tokenizer_loaded";
    enum plim_status status = change_device(l, &rungs[0], &none, err);
    if (status == PLIM_OK) status = open_rung(l, begin_on(l), out, err);
    return come_down(l, status, out, err);
}

enum plim_status ladder_down(struct ladder *l, struct engine *e, enum plim_status status,
                             struct plim_error *err)
{
    read_memory(l);
    l->refusal = (struct engine_refusal){.needed = engine_plan(e)->total};
    engine_peak(e, &l->refusal.peak);
    return come_down(l, status, &e, err);
}

void ladder_close(struct ladder *l)
{
    if (l->device) l->device->ops->close(l->device);
    l->device = NULL;
    plan_key_release(&l->key);
}
