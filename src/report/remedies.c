/* remedies.c - when nothing fits: try one change at a time, cheapest for the mathematics first, then several together.
 *
 * A change is made to the job's recipe or its pins and goes to the planner like the job itself, and it is offered only when
 * a search has found a plan with it: what is listed is true. One tight tape is asked first, because most changes are
 * hopeless and a search that fails is the slowest there is. */
#include "base/bytes.h"
#include "report/savings.h"

#include <stdio.h>
#include <string.h>

struct attempt {
    struct recipe recipe;             /* the job's, changed */
    const struct plan_request *asked; /* of the job as it is */
    struct tape *room;
    int64_t budget, host_budget;
    unsigned unpinned; /* knobs, by the bits of their rows */
    const struct adapter
        *lora; /* the usual one of this model; NULL: the job does not train the whole model */
    const struct quantisation *nf4; /* its base in 4 bits, or that of the job's adapter; NULL: not possible */
    struct remedy remedy;
};

static struct attempt attempt_of(const struct job *job, const struct plan_request *asked, struct tape *room)
{
    return (struct attempt){.recipe = recipe_of(job),
                            .asked = asked,
                            .room = room,
                            .budget = asked->budget,
                            .host_budget = asked->host_budget};
}

static void add_key(struct remedy *r, const char *key, const char *value)
{
    int i = 0;
    while (i < r->nkeys && strcmp(r->keys[i].key, key)) i++;
    if (i == REMEDY_KEYS) return;
    if (i == r->nkeys) r->nkeys++;
    r->keys[i].key = key;
    snprintf(r->keys[i].value, sizeof r->keys[i].value, "%s", value);
}

const char *remedy_text(const struct remedy *r, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int i = 0; i < r->nkeys && used < size; i++) {
        bool pin = !r->keys[i].value[0];
        const char *between =
            !strncmp(r->keys[i].key, "--", 2) ? " " : ": "; /* an option, or a key of a job */
        used += (size_t)snprintf(buf + used, size - used, "%s%s%s%s%s", i ? ", " : "", pin ? "unpin " : "",
                                 r->keys[i].key, pin ? "" : between, r->keys[i].value);
    }
    return buf;
}

/* ---- pins ---- */

/* True if a key pins this knob in a way that a remedy may undo. ZeRO's stage is what the ranks were started for. */
static bool is_pinned(const struct job *job, int knob)
{
    return knob != KNOB_ROW(zero) && job_pin_name(job, knob);
}

/* One word may pin several knobs; it is told, and taken out, once. */
static bool first_of_name(const struct job *job, int knob)
{
    for (int i = 0; i < knob; i++)
        if (is_pinned(job, i) && !strcmp(job_pin_name(job, i), job_pin_name(job, knob))) return false;
    return true;
}

int report_pins(const struct job *job, const char **keys)
{
    int n = 0;
    for (int i = 0; i < KNOB_COUNT; i++)
        if (is_pinned(job, i) && first_of_name(job, i)) keys[n++] = job_pin_name(job, i);
    return n;
}

/* Takes out the word that pins a knob. */
static void unpin(struct attempt *a, int knob)
{
    static const char *const words[] = {"training.gradient_checkpointing", "training.recompute"};
    const struct job *job = a->recipe.job;
    if (!is_pinned(job, knob)) return;
    const char *name = job_pin_name(job, knob);
    add_key(&a->remedy, name, "");
    for (int i = 0; i < 2 && knob == KNOB_ROW(recompute); i++) /* both may be given */
        if (job_key_given(job, words[i])) add_key(&a->remedy, job_key_name(job, words[i]), "");
    for (int i = 0; i < KNOB_COUNT; i++)
        if (is_pinned(job, i) && !strcmp(job_pin_name(job, i), name)) a->unpinned |= 1u << i;
}

/* ---- asking the planner ---- */

/* All away and as little as possible at once, as far as pins allow. */
static struct knobs tightest(const struct plan_request *r)
{
    const struct knobs *p = &r->pins;
    int lower = r->facts->lower_tier;
    struct knobs k = {.micro_batch = p->micro_batch == KNOB_OPEN ? 1 : p->micro_batch,
                      .recompute = p->recompute == KNOB_OPEN ? RECOMPUTE_FULL : p->recompute,
                      .full_layers = p->full_layers == KNOB_OPEN ? 0 : p->full_layers,
                      .loss_chunks = p->loss_chunks == KNOB_OPEN ? 4096 : p->loss_chunks,
                      .offload_layers = p->offload_layers == KNOB_OPEN ? 0 : p->offload_layers,
                      .state_tier = p->state_tier == KNOB_OPEN ? lower : p->state_tier,
                      .grad_tier = p->grad_tier == KNOB_OPEN ? lower : p->grad_tier,
                      .param_tier = p->param_tier == KNOB_OPEN ? lower : p->param_tier};
    k.accumulation = r->rows / k.micro_batch;
    k.state_share = k.state_tier == TIER_DEVICE ? 0 : OFFLOAD_SHARES;
    k.param_share = k.param_tier == TIER_DEVICE ? 0 : OFFLOAD_SHARES;
    return k;
}

static bool beyond(int64_t bytes, int64_t line) { return bytes - bytes / 8 > line; }

/* No plan is smaller than the tightest by more than a few per cent. Bytes taken from the host could be on the device
 * instead, so there the sum of both counts. */
static bool is_beyond(const struct attempt *a, const struct plan_request *r, const struct knobs *knobs)
{
    struct plan_bound bound;
    if (plan_bound_of(r, knobs, a->room, &bound, NULL) != PLIM_OK) return true;
    bool host_line = r->host_budget > 0 && !r->facts->unified_memory;
    return beyond(bound.total, r->budget) ||
           (host_line && beyond(bound.total + bound.host, r->budget + r->host_budget));
}

/* Activations may leave, too, which is tighter for long rows and takes more of the host. */
static bool hopeless(const struct attempt *a, const struct plan_request *r)
{
    struct knobs knobs = tightest(r);
    bool may_leave = r->facts->async_copies && !r->facts->unified_memory &&
                     r->pins.offload_layers == KNOB_OPEN && r->pins.full_layers <= 0;
    if (r->pins.optimizer_in_backward == 1 || r->pins.optimizer_in_forward == 1 ||
        r->pins.before_norm_share > 0)
        return false;                 /* that is another tape */
    if (r->search_line) return false; /* a bound is not made under a line, a search is */
    if (!is_beyond(a, r, &knobs)) return false;
    knobs.offload_layers = r->layers;
    return !may_leave || is_beyond(a, r, &knobs);
}

/* Does the changed job fit? Then the remedy knows what it takes. */
static bool fits(struct attempt *a)
{
    struct plan_request r;
    struct plan plan = {0};
    recipe_request(&a->recipe, a->asked->facts, a->asked->overhead, &r);
    if (a->unpinned) job_pins(a->recipe.job, r.facts, a->unpinned, &r.pins);
    r.budget = a->budget, r.host_budget = a->host_budget, r.search_line = a->asked->search_line;
    bool good = !hopeless(a, &r) && plan_search(&r, &plan, NULL) == PLIM_OK;
    a->remedy.total = plan.total, a->remedy.host = plan.host, a->remedy.step_seconds = plan.step_seconds;
    plan_release(&plan);
    return good;
}

/* ---- changes ---- */

static bool keeps_scores(const struct recipe *r) { return !r->flash; }
static bool has_least(const struct recipe *r) { return r->micro_least > 1; }
static bool is_f32(const struct recipe *r) { return r->precision == PRECISION_F32; }
static bool is_f16(const struct recipe *r) /* by its own key, which would win */
{
    return r->precision == PRECISION_F16 && !r->job->training.fp16;
}
static bool is_bf16(const struct recipe *r)
{
    return precision_type((enum precision)r->precision) == DT_BF16;
}
static bool wide_grads(const struct recipe *r) { return is_bf16(r) && !r->grad_type; }
static bool has_master(const struct recipe *r) { return is_bf16(r) && !r->master; }
static bool is_adamw(const struct recipe *r) { return r->optimizer == OPTIMIZER_ADAMW && !r->state_type; }
static bool is_adam(const struct recipe *r)
{
    return r->optimizer == OPTIMIZER_ADAMW || r->optimizer == OPTIMIZER_ADAMW8;
}
static bool is_clipped(const struct recipe *r) { return r->clips; }
static bool is_whole(const struct recipe *r) { return !r->adapter; }
static bool on_numbers(const struct recipe *r) { return r->adapter && !r->base->count; }
static bool not_sgd(const struct recipe *r) { return r->optimizer != OPTIMIZER_SGD; }

#define TO(field, number) offsetof(struct recipe, field), number
static const struct row {
    const char *key, *value, *cost;
    bool (*applies)(const struct recipe *); /* NULL: halve the length until it fits */
    bool joins;                             /* may be one of several */
    size_t field;                           /* of struct recipe, and what it becomes */
    int64_t number;
} rows[] = {
    {"model.use_flash_attention", "true", "none but rounding; scores are not kept", keeps_scores, true,
     TO(flash, true)},
    {"training.dynamic_batching.min_batch_size", "1", "smaller micro-batches: the same results", has_least,
     true, TO(micro_least, 1)},
    {"training.mixed_precision", "bf16", "bf16 rounding; weights keep an fp32 master", is_f32, true,
     TO(precision, PRECISION_BF16)},
    {"training.mixed_precision", "bf16", "bf16 instead of fp16: fewer bits, a wider range", is_f16, true,
     TO(precision, PRECISION_BF16)},
    {"training.grad_dtype", "bf16", "gradients rounded to bf16: slightly other results", wide_grads, true,
     TO(grad_type, 1)},
    {"training.optimizer", "adamw8bit", "moments in 8 bits: slightly other results", is_adamw, true,
     TO(optimizer, OPTIMIZER_ADAMW8)},
    {"training.master_weights", "none", "weights rounded stochastically: other results", has_master, true,
     TO(master, 1)},
    {"training.max_grad_norm", "0", "no clipping; gradients need not all be alive", is_clipped, false,
     TO(clips, false)},
    {"training.optimizer", "adafactor", "another optimizer: other results", is_adam, true,
     TO(optimizer, OPTIMIZER_ADAFACTOR)},
    {"adapter.type", "lora", "a LoRA adapter of rank 16 instead of the whole model", is_whole, false,
     TO(adapter, 0)},
    {"adapter.type", "lora", "a LoRA adapter of rank 16 on a base in 4 bits instead of the whole model",
     is_whole, false, TO(adapter, true)},
    {"model.weights", "nf4", "the adapter's base in 4 bits: other results", on_numbers, true, TO(base, true)},
    {"data.max_length", NULL, "shorter context", NULL, false, TO(max_length, 0)},
    {"training.optimizer", "sgd", "another optimizer: other results", not_sgd, false,
     TO(optimizer, OPTIMIZER_SGD)},
};
#define NROWS ((int)(sizeof rows / sizeof *rows))

/* False: it does not apply. */
static bool change(struct attempt *a, const struct row *row)
{
    bool adapts = row->field == offsetof(struct recipe, adapter),
         base = row->field == offsetof(struct recipe, base);
    bool quantises = base || (adapts && row->number);
    if (!row->applies(&a->recipe) || (adapts && !a->lora) || (quantises && !a->nf4)) return false;
    if (adapts) a->recipe.adapter = a->lora;
    if (quantises) a->recipe.base = a->nf4;
    if (!adapts && !base) *(int64_t *)(void *)((char *)&a->recipe + row->field) = row->number;
    add_key(&a->remedy, row->key, row->value);
    if (adapts && quantises) add_key(&a->remedy, "model.weights", "nf4");
    return true;
}

#define SHORTEST 16

static bool shorten(struct attempt *a)
{
    while (a->recipe.max_length / 2 >= SHORTEST) {
        char text[24];
        a->recipe.max_length /= 2;
        if (!fits(a)) continue;
        snprintf(text, sizeof text, "%lld", (long long)a->recipe.max_length);
        add_key(&a->remedy, "data.max_length", text);
        return true;
    }
    return false;
}

static void set_cost(struct attempt *a, const char *text)
{
    snprintf(a->remedy.cost, sizeof a->remedy.cost, "%s", text);
}

static bool try_row(struct attempt *a, const struct row *row)
{
    set_cost(a, row->cost);
    if (!row->applies) return shorten(a);
    return change(a, row) && fits(a);
}

struct offers {
    struct remedy *out;
    int count;
};

static void offer(struct offers *o, const struct attempt *a)
{
    if (o->count < REMEDIES_MAX) o->out[o->count++] = a->remedy;
}

/* These pins taken out, by bit. */
static struct attempt without_pins(const struct attempt *fresh, unsigned which)
{
    struct attempt a = *fresh;
    set_cost(&a, "none for the results");
    for (int i = 0; i < KNOB_COUNT; i++)
        if (which >> i & 1) unpin(&a, i);
    return a;
}

/* Each pin that is enough alone; where none is, all of them less those that may stay. */
static void try_pins(struct offers *o, const struct attempt *fresh)
{
    unsigned which = 0;
    for (int i = 0; i < KNOB_COUNT; i++) {
        struct attempt a = without_pins(fresh, 1u << i);
        if (!is_pinned(fresh->recipe.job, i) || !first_of_name(fresh->recipe.job, i)) continue;
        which |= 1u << i;
        if (fits(&a)) offer(o, &a);
    }
    if (o->count || !(which & (which - 1))) return; /* one is enough, or there is but one */
    struct attempt a = without_pins(fresh, which);
    bool good = fits(&a);
    for (int i = 0; i < KNOB_COUNT && good; i++) {
        a = without_pins(fresh, which & ~(1u << i));
        if (which >> i & 1 && fits(&a)) which &= ~(1u << i);
    }
    a = without_pins(fresh, which);
    if (good && fits(&a)) offer(o, &a);
}

/* Some of the rows at once, by bit; ALL_PINS unpins everything as well. */
#define ALL_PINS (1u << NROWS)

static struct attempt together(const struct attempt *fresh, unsigned which)
{
    struct attempt a = *fresh;
    set_cost(&a, "all of them together: other results");
    for (int i = 0; i < KNOB_COUNT && which & ALL_PINS; i++) unpin(&a, i);
    for (int i = 0; i < NROWS; i++)
        if (which >> i & 1) change(&a, &rows[i]);
    return a;
}

/* One more after the other until it fits; then what was not needed after all is left out again. */
static void try_together(struct offers *o, const struct attempt *fresh)
{
    const char *keys[KNOB_COUNT];
    unsigned which = report_pins(fresh->recipe.job, keys) ? ALL_PINS : 0;
    bool good = false;
    for (int i = 0; i < NROWS && !good; i++) {
        if (!rows[i].joins) continue;
        struct attempt a = together(fresh, which);
        if (!change(&a, &rows[i])) continue;
        which |= 1u << i;
        good = fits(&a);
    }
    for (int i = 0; i <= NROWS && good; i++) {
        struct attempt a = together(fresh, which & ~(1u << i));
        if (which >> i & 1 && a.remedy.nkeys && fits(&a)) which &= ~(1u << i);
    }
    struct attempt a = together(fresh, which);
    if (good && fits(&a)) offer(o, &a);
}

/* ---- raising a line ---- */

/* At least so many bytes, as a key takes them and people read them: "512MiB", "21.4GiB", "1.03TiB". *line: what it says. */
static void line_text(int64_t bytes, char *buf, size_t size, int64_t *line)
{
    static const struct {
        int64_t from, unit;
        int parts;
        const char *name;
    } units[] = {
        {1ll << 40, 1ll << 40, 100, "TiB"}, {10ll << 30, 1ll << 30, 10, "GiB"}, {0, 1 << 20, 1, "MiB"}};
    int u = 0;
    uint64_t said = 0;
    while (bytes < units[u].from) u++;
    /* One byte more than asked: a fraction of a unit is read rounded. */
    int64_t n = bytes / units[u].unit * units[u].parts +
                (bytes % units[u].unit * units[u].parts + units[u].unit) / units[u].unit;
    if (units[u].parts == 1) n = (bytes + units[u].unit - 1) / units[u].unit;
    int digits = units[u].parts == 100 ? 2 : units[u].parts == 10 ? 1 : 0;
    if (digits)
        snprintf(buf, size, "%lld.%0*lld%s", (long long)(n / units[u].parts), digits,
                 (long long)(n % units[u].parts), units[u].name);
    else
        snprintf(buf, size, "%lld%s", (long long)n, units[u].name);
    bytes_parse(buf, &said, NULL);
    *line = (int64_t)said;
}

/* `most` is what there is, 0: unknown. Rounding up must not pass it. */
static void raise_line(struct attempt *a, const char *key, int64_t bytes, int64_t most, int64_t *line)
{
    char text[24];
    line_text(bytes, text, sizeof text, line);
    if (most && *line > most) snprintf(text, sizeof text, "%lld", (long long)(*line = bytes));
    add_key(&a->remedy, key, text);
}

static void cost_of_raise(struct attempt *a, int64_t device_more, int64_t host_more)
{
    const struct device_facts *f = a->asked->facts;
    char more[BYTES_TEXT], has[BYTES_TEXT];
    struct remedy *r = &a->remedy;
    size_t used = 0;
    if (device_more > 0)
        used += (size_t)snprintf(r->cost, sizeof r->cost, "%s more memory%s",
                                 bytes_format(more, (uint64_t)device_more),
                                 f->unified_memory ? "" : " of the device");
    if (host_more > 0 && used < sizeof r->cost)
        used += (size_t)snprintf(r->cost + used, sizeof r->cost - used, "%s%s more memory of the host",
                                 used ? ", " : "", bytes_format(more, (uint64_t)host_more));
    if (host_more > 0 && f->host_bytes && a->host_budget > (int64_t)f->host_bytes && used < sizeof r->cost)
        snprintf(r->cost + used, sizeof r->cost - used, ", which has %s free",
                 bytes_format(has, f->host_bytes));
}

/* The host's line is held against the process too, and processes of one job differ by some pages. */
#define PROCESS_DIFFERS (1 << 20)

/* A machine that is not here has no more than its preset says. */
static bool host_is_fixed(const struct device_facts *f) { return f->host_bytes && !f->free_bytes; }

/* Lines raised to these needs, or a little more where the search does not come back to the smallest plan. */
static bool try_lines(struct offers *o, const struct attempt *fresh, int64_t device, int64_t host, int tries)
{
    const struct plan_request *r = fresh->asked;
    bool host_line = r->host_budget > 0 && !r->facts->unified_memory;
    host += PROCESS_DIFFERS;
    for (int i = 0; i < tries; i++, device += device / 32, host += host / 32) {
        struct attempt a = *fresh;
        int64_t most = (int64_t)r->facts->memory_bytes;
        bool more = device > r->budget, more_host = host_line && host > r->host_budget;
        if (more && most && device > most) return false; /* no line lies above what a device has */
        if (more_host && host_is_fixed(r->facts) && host > (int64_t)r->facts->host_bytes) return false;
        if (more) raise_line(&a, "budget", device, most, &a.budget);
        if (more_host) raise_line(&a, "host_budget", host, 0, &a.host_budget);
        if (!fits(&a)) continue;
        cost_of_raise(&a, more ? device - r->budget : 0, more_host ? host - r->host_budget : 0);
        offer(o, &a);
        return true;
    }
    return false;
}

static void try_raising(struct offers *o, const struct attempt *fresh, const struct plan *smallest)
{
    const struct plan_request *r = fresh->asked;
    if (o->count > REMEDIES_MAX - 2) o->count = REMEDIES_MAX - 2;
    if (smallest->total <= r->budget) { /* only the host's line is missed: the device may have room for it */
        int64_t both = smallest->total + smallest->host - r->host_budget;
        if (both <= (int64_t)r->facts->memory_bytes) try_lines(o, fresh, both, 0, 1);
    }
    try_lines(o, fresh, smallest->total, smallest->host, 8);
}

enum plim_status job_remedies(const struct job *job, const struct plan_request *request,
                              const struct plan *smallest, struct remedy *out, int *count,
                              struct plim_error *)
{
    struct tape room;
    struct bump bump = BUMP_INIT;
    struct adapter_options options = {.type = ADAPTER_LORA, .r = ADAPTER_RANK, .alpha = 2 * ADAPTER_RANK};
    struct adapter *lora = NULL;
    bool whole = !job->adapting && !job->training.freeze.count && !job->training.train_only.count;
    tape_init(&room);
    struct attempt fresh = attempt_of(job, request, &room);
    if (whole && adapter_open(&options, &job->spec, job_head(job), &bump, &lora, NULL) == PLIM_OK)
        fresh.lora = lora;
    struct quantisation nf4 = {0};
    const struct adapter *adapter = job->adapting ? job->adapting : lora;
    if (adapter && job->model.path && !job->base.count &&
        job_base_of(job, adapter, WEIGHTS_NF4, &nf4, NULL) == PLIM_OK && nf4.count)
        fresh.nf4 = &nf4;
    struct offers offers = {.out = out};
    try_pins(&offers, &fresh);
    int adapters = 0;
    for (int i = 0; i < NROWS; i++) {
        struct attempt a = fresh;
        bool adapts = rows[i].field == offsetof(struct recipe, adapter);
        if ((adapts && adapters) || !try_row(&a, &rows[i]))
            continue; /* 4 bits only where numbers do not fit */
        adapters += a.recipe.adapter != fresh.recipe.adapter;
        offer(&offers, &a);
    }
    if (offers.count == adapters) try_together(&offers, &fresh);
    try_raising(&offers, &fresh, smallest);
    *count = offers.count;
    quantise_release(&nf4);
    tape_release(&room);
    bump_free(&bump);
    return PLIM_OK;
}
