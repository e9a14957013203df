/* ladder_explain.c - see ladder_explain.h. */
#include "serve/ladder_explain.h"

#include <stdio.h>
#include <string.h>

/* --- plans that nobody commits ----------------------------------------------------------------------------- */

/* As asked for, within the memory that there is. */
static struct engine_options options_of(const struct ladder *l, const struct explanation *why)
{
    struct engine_options o = l->options;
    int64_t left = why->available / 20 * 19 >> 20 << 20;
    o.allow_kv8 = l->allowed & ALLOW_KV8, o.allow_window = l->allowed & ALLOW_WINDOW, o.stream = true;
    o.plan_only = true, o.remember = false, o.log = NULL, o.stage = NULL, o.refusal = NULL;
    if (why->refusal.status == PLIM_NO_MEMORY && left > 0 && (!o.budget || left < o.budget)) o.budget = left;
    return o;
}

/* Is there a plan with these options? Its peak where somebody asks. */
static bool fits(const struct ladder *l, const struct engine_options *o, struct engine_plan *plan,
                 struct peak *peak)
{
    struct engine *e;
    struct plim_error unused = {0};
    if (engine_open(l->device, o, &e, &unused) != PLIM_OK) return false;
    *plan = *engine_plan(e);
    if (peak) engine_peak(e, peak);
    engine_close(e);
    return true;
}

/* --- options that may help --------------------------------------------------------------------------------- */

enum { VALUE = sizeof((struct remedy_key *)0)->value };

/* Changes the options, the further the higher `attempt` is, and says the value; false: there is no such change. */
typedef bool change(struct engine_options *o, int attempt, char value[VALUE]);

static bool weights(struct engine_options *o, int attempt, char value[VALUE])
{
    o->weights = (enum weights_kind)(o->weights + 1 + attempt);
    if (o->weights > WEIGHTS_Q4) return false; /* none is smaller */
    snprintf(value, VALUE, "%s", weights_kind_name(o->weights));
    return true;
}

static bool kv_type(struct engine_options *o, int attempt, char value[VALUE])
{
    if (attempt || (o->kv_type != DT_F32 && o->kv_type != DT_COUNT)) return false;
    o->kv_type = DT_U8;
    snprintf(value, VALUE, "i8");
    return true;
}

static bool scratch(struct engine_options *o, int attempt, char value[VALUE])
{
    if (attempt || o->scratch) return false;
    o->scratch = ".";
    snprintf(value, VALUE, "DIR");
    return true;
}

static bool halve(int64_t *asked, int64_t least, int attempt, char value[VALUE])
{
    *asked >>= attempt + 1;
    snprintf(value, VALUE, "%lld", (long long)*asked);
    return *asked >= least;
}

static bool context(struct engine_options *o, int attempt, char value[VALUE])
{
    return halve(&o->max_context, 16, attempt, value);
}

static bool requests(struct engine_options *o, int attempt, char value[VALUE])
{
    int64_t parallel = o->parallel;
    bool good = halve(&parallel, 1, attempt, value);
    o->parallel = (int)parallel;
    return good;
}

static bool window(struct engine_options *o, int attempt, char value[VALUE])
{
    if (attempt || o->allow_window) return false;
    o->allow_window = true;
    snprintf(value, VALUE, "window");
    return true;
}

/* The cheapest for whoever asks first. */
static const struct {
    const char *option, *cost;
    change *change;
} changes[] = {{"--parallel", "fewer requests at once", requests},
               {"--max-context", "shorter requests", context},
               {"--kv-type", "keys and values are less exact", kv_type},
               {"--weights", "weights are rounded; text changes", weights},
               {"--scratch", "parameters are read from disk for each step: slower", scratch},
               {"--allow-degraded", "each token is computed from the last 32", window}};

static void add_key(struct remedy *r, const char *option, const char *value)
{
    struct remedy_key *key = &r->keys[r->nkeys++];
    key->key = option;
    snprintf(key->value, VALUE, "%s", value);
}

static void add(struct explanation *why, const char *option, const char *value, const char *cost,
                const struct engine_plan *plan)
{
    struct remedy *r = &why->remedies[why->nremedies++];
    char budget[VALUE];
    *r = (struct remedy){.total = plan->total, .host = plan->host};
    add_key(r, option, value);
    snprintf(budget, sizeof budget, "%lldMiB", (long long)(plan->budget >> 20));
    if (why->refusal.status == PLIM_NO_MEMORY && strcmp(option, "--budget")) add_key(r, "--budget", budget);
    snprintf(r->cost, sizeof r->cost, "%s", cost);
    if (plan->decode_rate > 0) r->step_seconds = 1 / plan->decode_rate;
}

static void try_changes(const struct ladder *l, struct explanation *why)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        for (int attempt = 0;; attempt++) {
            struct engine_options o = options_of(l, why);
            struct engine_plan plan;
            char value[VALUE];
            if (!changes[i].change(&o, attempt, value)) break;
            if (!fits(l, &o, &plan, NULL)) continue;
            add(why, changes[i].option, value, changes[i].cost, &plan);
            break;
        }
}

/* MiB by which planning may have made the process larger since the refusal. */
enum { GROWTH_MIB = 8 };

/* The budget that would do: more than was asked for, as far as the memory is there; or what the machine has left, and then
 * nothing else need change. */
static void try_budget(const struct ladder *l, struct explanation *why)
{
    bool lower = why->refusal.status == PLIM_NO_MEMORY;
    struct engine_options o = options_of(l, why);
    struct engine_plan plan;
    char value[VALUE];
    int64_t bytes = lower ? o.budget : ((l->refusal.enough >> 20) + 1) << 20;
    bool changed = lower ? bytes > 0 && bytes != l->options.budget : l->refusal.enough > 0;
    int64_t most = why->available > 0 ? why->available : (int64_t)l->device->facts.memory_bytes;
    bool good = false;
    for (int attempt = 0; changed && !good && bytes <= most && attempt < GROWTH_MIB; attempt++) {
        o.budget = bytes;
        good = fits(l, &o, &plan, NULL);
        if (!good && lower) return;
        if (!good) bytes += 1 << 20;
    }
    if (!good) return;
    snprintf(value, sizeof value, "%lldMiB", (long long)(bytes >> 20));
    add(why, "--budget", value,
        lower ? "none for the results; planned for what there is" : "none for the results", &plan);
}

/* --- the explanation --------------------------------------------------------------------------------------- */

/* Describes the smallest possible plan when no plan was made. */
static void look_at_smallest(const struct ladder *l, const struct explanation *why, struct engine_refusal *r)
{
    struct engine_options o = options_of(l, why);
    struct engine_plan plan;
    o.budget = r->enough;
    if (r->enough > 0 && fits(l, &o, &plan, &r->peak)) r->needed = plan.total;
}

bool ladder_explain(const struct ladder *l, const struct plim_error *err, int64_t steps,
                    struct explanation *out)
{
    struct engine_refusal found = l->refusal;
    bool refused = err->status == PLIM_NO_MEMORY;
    const struct engine_options *asked = &l->options;
    if (!l->device || (!refused && err->status != PLIM_NO_FIT)) return false;
    struct refusal r = {.status = err->status,
                        .error = err->text,
                        .stage = !refused   ? STAGE_PLAN
                                 : l->stage ? STAGE_COMMIT
                                            : STAGE_STEP,
                        .step = steps,
                        .budget = asked->budget  ? asked->budget
                                  : asked->limit ? asked->limit
                                                 : l->free,
                        .budget_given = asked->budget > 0,
                        .reading = &l->reading};
    *out = (struct explanation){.refusal = r};
    if (!found.needed) look_at_smallest(l, out, &found);
    explain_plan(&r, &l->device->facts, &found.peak, found.needed, out);
    if (!l->device->kernels) out->nholders = 0;      /* those of another machine */
    if (refused && out->available <= 0) return true; /* nobody knows what a plan could have */
    if (refused) try_budget(l, out);
    if (!out->nremedies) try_changes(l, out);
    if (!refused) try_budget(l, out);
    return true;
}
