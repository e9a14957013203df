/* model_engine.c - see model_engine.h. */
#include "api/model_engine.h"
#include "api/open_device.h"
#include "api/serve_plan.h"
#include "device/registry.h"

#include <string.h>
#include <time.h>

bool kv_type_parse(const char *name, enum dtype *out)
{
    static const struct {
        const char *name;
        enum dtype type;
    } types[] = {{"auto", DT_COUNT}, {"i8", DT_U8},     {"fp8", DT_E4M3},
                 {"f32", DT_F32},    {"bf16", DT_BF16}, {"f16", DT_F16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) return *out = types[i].type, true;
    return false;
}

/* --- opening ------------------------------------------------------------------------------------------------ */

static enum plim_status find_device(const struct model_engine *m, bool fallback, struct device **out,
                                    struct plim_error *err)
{
    const struct context *context = m->caller.context;
    struct device_wish wish = {m->caller.name, m->device, m->caller.library ? "device cpu" : "--device cpu",
                               m->threads, m->line.budget};
    if (fallback) return backend_open_fallback(context, m->threads, out, err);
    if (m->ladder.options.plan_only && serve_plan_absent(m->device))
        return serve_plan_device(m->device, out, err);
    return open_device(context, &wish, out, err);
}

/* The budget of a device that was opened: the caller's, or a share of a GPU's memory; without either the container's limit
 * bounds the plan. */
static void choose_line(struct model_engine *m, const struct device_facts *facts)
{
    struct engine_options *o = &m->ladder.options;
    if (m->line.given) return;
    o->budget = facts->unified_memory ? 0 : (int64_t)(m->fraction * (double)facts->memory_bytes);
    o->limit = facts->free_bytes ? device_line_on(&m->line, facts) : 0; /* 0: a device that is not here */
}

static enum plim_status open_checked(void *arg, bool fallback, struct device **out, struct plim_error *err)
{
    struct model_engine *m = arg;
    enum plim_status status = find_device(m, fallback, out, err);
    if (status == PLIM_OK && !fallback)
        status = device_line_check(m->caller.context, m->caller.name, &m->line, &(*out)->facts, err);
    if (status != PLIM_OK && *out) (*out)->ops->close(*out), *out = NULL;
    if (status == PLIM_OK) choose_line(m, &(*out)->facts);
    return status;
}

static void tell_opened(void *arg, struct device *device)
{
    struct model_engine *m = arg;
    if (m->opened) m->opened(m->arg, device);
}

/* The CPU may replace a device that was chosen for the user, and one that "auto" does not know. */
static bool may_fall_back(const char *device)
{
    struct device_name name;
    return device_name_read(device, &name) && (!name.backend || name.backend->asked);
}

enum plim_status model_engine_open(struct model_engine *m, const struct engine_options *options,
                                   unsigned allowed, struct plim_error *err)
{
    m->ladder = (struct ladder){.options = *options,
                                .allowed = allowed,
                                .fallback = may_fall_back(m->device),
                                .open = open_checked,
                                .opened = tell_opened,
                                .arg = m,
                                .log = m->log};
    m->ladder.options.budget = m->line.given ? (int64_t)m->line.budget : 0;
    m->steps = -1;
    return ladder_open(&m->ladder, &m->engine, err);
}

void model_engine_close(struct model_engine *m)
{
    if (m->engine) engine_close(m->engine);
    ladder_close(&m->ladder);
    m->engine = NULL;
}

/* --- warming up --------------------------------------------------------------------------------------------- */

static bool hear_failure(void *arg, const struct engine_event *event)
{
    struct model_engine *m = arg;
    if (event->finish == FINISH_FAILED) m->cold = true;
    return true;
}

static enum plim_status run_prompt(struct model_engine *m, struct plim_error *err)
{
    struct engine *e = m->engine;
    int32_t prompt[32] = {0};
    int64_t id, context = engine_plan(e)->context;
    struct engine_request r = {
        .prompt = prompt, .count = context > 32 ? 32 : context - 1, .tokens = 1, .logprobs = -1};
    r.ignore_eos = true, r.hear = hear_failure, r.arg = m, m->cold = false;
    enum plim_status status = r.count > 0 ? engine_submit(e, &r, &id, err) : PLIM_OK;
    while (status == PLIM_OK && engine_busy(e)) status = engine_step(e, err);
    if (status == PLIM_OK && m->cold) status = plim_fail(err, PLIM_IO, "the warm-up of 32 tokens failed");
    return status;
}

enum plim_status model_engine_warm_up(struct model_engine *m, struct plim_error *err)
{
    enum plim_status status = run_prompt(m, err);
    while (status != PLIM_OK && ladder_down(&m->ladder, m->engine, status, err) == PLIM_OK)
        status = run_prompt(m, err);
    if (status != PLIM_OK) return status;
    engine_remember(m->engine);
    ladder_remember(&m->ladder);
    engine_count_anew(m->engine);
    return PLIM_OK;
}

/* --- running ------------------------------------------------------------------------------------------------ */

enum { STEP_FAILURES = 3 };

static enum plim_status go_down(struct model_engine *m, enum plim_status status, struct plim_error *err)
{
    if (m->moved) m->moved(m->arg, false);
    status = ladder_down(&m->ladder, m->engine, status, err);
    if (status != PLIM_OK) return status;
    ladder_remember(&m->ladder);
    m->failures = 0;
    if (m->moved) m->moved(m->arg, true);
    return PLIM_OK;
}

/* A step that fails is tried again; after so many in a row without one that works, or when the device is lost, the engine goes down
 * the ladder. */
enum plim_status model_engine_recover(struct model_engine *m, enum plim_status status, struct plim_error *err)
{
    struct engine_stats stats = {0};
    engine_stats(m->engine, &stats);
    m->failures = stats.steps == m->steps ? m->failures + 1 : 1;
    m->steps = stats.steps;
    enum failure cause = failure_of(status, NULL, m->ladder.device);
    log_error(m->log, "%s: a step failed: %s", failure_name(cause), err->text);
    if (cause == FAILURE_LOST || m->failures == STEP_FAILURES) return go_down(m, status, err);
    struct timespec pause = {0, 100000000};
    nanosleep(&pause, NULL);
    return PLIM_OK;
}

enum plim_status model_engine_run(struct model_engine *m, const atomic_int *stop, struct plim_error *err)
{
    for (;;) {
        enum plim_status status = engine_run(m->engine, stop, err);
        if (status == PLIM_OK || *stop) return PLIM_OK;
        status = model_engine_recover(m, status, err);
        if (status != PLIM_OK) return status;
    }
}
