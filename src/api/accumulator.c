/* accumulator.c - see plimsoll/accumulator.h.
 *
 * A window is a count of micro-batches and of tokens. Gradients are sums until its end, where one factor turns them into the
 * mean: the order of micro-batches and their sizes then make no difference. */
#include "api/handle.h"
#include "base/json.h"
#include "train/scaler.h"
#include <plimsoll/accumulator.h>

#include <math.h>
#include <string.h>

enum { CLEAR_EVERY = 50, GROWTH_INTERVAL = 2000 };
#define COUNT_MAX    ((int64_t)1 << 31)
#define FIRST_SCALE  65536.0
#define LEAST_SCALE  0x1p-126 /* a float's smallest; PyTorch has no limit */
#define CLIP_EPSILON 1e-6     /* as in torch.nn.utils.clip_grad_norm_ */

struct plim_accumulator {
    struct handle handle;
    struct plim_accumulator_options options; /* steps is set */
    struct scaler scaler;
    int64_t micros, tokens; /* of the window under way */
    bool due;               /* the window waits for plim_accumulator_finish */
    int64_t steps, skipped; /* of the optimizer */
};

static enum plim_status check_count(const char *name, int64_t n, int64_t least, struct plim_error *err)
{
    if (n >= least && n <= COUNT_MAX) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_open: %s is %lld; write %lld or more", name,
                     (long long)n, (long long)least);
}

/* Refuses an effective batch that is no whole number of micro-batches, with the nearest that are. */
static enum plim_status derive_steps(struct plim_accumulator_options *o, struct plim_error *err)
{
    int64_t ranks = o->ranks ? o->ranks : 1, rows = o->micro_batch * ranks;
    if (!o->effective_batch && o->steps) return PLIM_OK;
    if (!o->effective_batch || !o->micro_batch)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_accumulator_open: give steps, or effective_batch and micro_batch");
    int64_t steps = o->effective_batch / rows;
    if (steps * rows != o->effective_batch && steps)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_accumulator_open: effective_batch %lld is not a multiple of micro_batch %lld x %lld "
            "ranks; use %lld or %lld",
            (long long)o->effective_batch, (long long)o->micro_batch, (long long)ranks,
            (long long)(steps * rows), (long long)((steps + 1) * rows));
    if (!steps)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_accumulator_open: effective_batch %lld is less than micro_batch %lld x %lld ranks; "
            "use %lld, or a smaller micro_batch",
            (long long)o->effective_batch, (long long)o->micro_batch, (long long)ranks, (long long)rows);
    if (o->steps && o->steps != steps)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_accumulator_open: steps is %lld, but effective_batch %lld over micro_batch %lld x "
            "%lld ranks makes %lld; leave one out",
            (long long)o->steps, (long long)o->effective_batch, (long long)o->micro_batch, (long long)ranks,
            (long long)steps);
    o->steps = steps;
    return PLIM_OK;
}

static enum plim_status check_options(struct plim_accumulator_options *o, struct plim_error *err)
{
    enum plim_status status = check_count("steps", o->steps, 0, err);
    if (status == PLIM_OK) status = check_count("effective_batch", o->effective_batch, 0, err);
    if (status == PLIM_OK) status = check_count("micro_batch", o->micro_batch, 0, err);
    if (status == PLIM_OK) status = check_count("ranks", o->ranks, 0, err);
    if (status == PLIM_OK) status = check_count("growth_interval", o->growth_interval, 0, err);
    if (status == PLIM_OK) status = check_count("clear_every", o->clear_every, 0, err);
    if (status != PLIM_OK) return status;
    if (!(o->clip_norm >= 0) || isinf(o->clip_norm))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_accumulator_open: clip_norm must be a number of 0 or more, e.g. 1.0");
    if (!(o->initial_scale >= 0) || isinf(o->initial_scale))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_accumulator_open: initial_scale must be a number above 0, e.g. 65536");
    if (!o->growth_interval) o->growth_interval = GROWTH_INTERVAL;
    if (!o->clear_every) o->clear_every = CLEAR_EVERY;
    return derive_steps(o, err);
}

enum plim_status plim_accumulator_open(struct plim_context *context,
                                       const struct plim_accumulator_options *options,
                                       struct plim_accumulator **out, struct plim_error *err)
{
    struct plim_accumulator_options o;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_open: out is NULL");
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, "plim_accumulator_open", err)) return PLIM_BAD_INPUT;
    enum plim_status status = options_take(&o, sizeof o, options, "plim_accumulator_open", err);
    if (status == PLIM_OK) status = check_options(&o, err);
    if (status != PLIM_OK) return status;
    struct plim_accumulator *a = handle_new(sizeof *a, HANDLE_ACCUMULATOR, context, err);
    if (!a) return PLIM_NO_MEMORY;
    struct scaler_options scaling = {.first = o.initial_scale > 0 ? o.initial_scale : FIRST_SCALE,
                                     .least = LEAST_SCALE,
                                     .window = o.growth_interval,
                                     .hysteresis = 1};
    a->options = o;
    scaler_init(&a->scaler, o.loss_scaling, &scaling);
    *out = a;
    return PLIM_OK;
}

void plim_accumulator_close(struct plim_accumulator *a)
{
    if (handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_close", NULL)) handle_free(a);
}

int64_t plim_accumulator_steps(const struct plim_accumulator *a)
{
    return handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_steps", NULL) ? a->options.steps : 0;
}

static enum plim_status check_micro(const struct plim_accumulator *a, const struct plim_micro_step *m,
                                    struct plim_error *err)
{
    if (a->due)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_accumulator_next: the window is complete; call plim_accumulator_finish first");
    if (m->tokens < 0 || m->tokens > INT64_MAX / 2 - a->tokens)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_next: tokens is %lld; write 0 or more",
                         (long long)m->tokens);
    return PLIM_OK;
}

enum plim_status plim_accumulator_next(struct plim_accumulator *a, struct plim_micro_step *micro,
                                       struct plim_error *err)
{
    struct plim_micro_step m;
    if (!handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_next", err)) return PLIM_BAD_INPUT;
    if (!micro) return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_next: micro is NULL");
    enum plim_status status = options_take(&m, sizeof m, micro, "plim_accumulator_next", err);
    if (status == PLIM_OK) status = check_micro(a, &m, err);
    if (status != PLIM_OK) return status;
    m.index = a->micros++;
    a->tokens += m.tokens;
    a->due = m.last || a->micros == a->options.steps;
    m.loss_scale = a->scaler.scale;
    m.step_due = a->due;
    m.window_tokens = a->tokens;
    return figures_give(micro, &m, sizeof m, "plim_accumulator_next", err);
}

/* The factor that turns sums of scaled gradients into the mean. `tokens` over all ranks; 0: others have as many as this
 * one. */
static double mean_factor(const struct plim_accumulator *a, int64_t tokens)
{
    double ranks = a->options.ranks ? (double)a->options.ranks : 1;
    double parts = tokens ? (double)tokens : ranks * (double)(a->tokens ? a->tokens : a->micros);
    return (a->options.ranks_average ? ranks : 1) / (a->scaler.scale * parts);
}

static void end_window(struct plim_accumulator *a, struct plim_window *w)
{
    bool finite = !w->overflow && isfinite(w->grad_norm);
    double clip = a->options.clip_norm;
    w->grad_scale = mean_factor(a, w->tokens);
    w->true_norm = w->grad_norm < 0 ? -1 : w->grad_norm * w->grad_scale;
    if (clip > 0 && w->true_norm + CLIP_EPSILON > clip) w->grad_scale *= clip / (w->true_norm + CLIP_EPSILON);
    w->take = finite;
    a->steps += finite, a->skipped += !finite;
    scaler_update(&a->scaler, finite);
    w->clear_cache = finite && a->steps % a->options.clear_every == 0;
    w->steps = a->steps, w->skipped = a->skipped;
    w->next_scale = a->scaler.scale;
    a->micros = a->tokens = 0, a->due = false;
}

enum plim_status plim_accumulator_finish(struct plim_accumulator *a, struct plim_window *window,
                                         struct plim_error *err)
{
    struct plim_window w;
    if (!handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_finish", err)) return PLIM_BAD_INPUT;
    if (!window) return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_finish: window is NULL");
    enum plim_status status = options_take(&w, sizeof w, window, "plim_accumulator_finish", err);
    if (status != PLIM_OK) return status;
    if (!a->micros)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_accumulator_finish: the window has no micro-batch; call plim_accumulator_next first");
    if (w.tokens < 0 || (w.tokens && w.tokens < a->tokens))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "plim_accumulator_finish: tokens over all ranks is %lld, but this rank alone had %lld",
            (long long)w.tokens, (long long)a->tokens);
    end_window(a, &w);
    return figures_give(window, &w, sizeof w, "plim_accumulator_finish", err);
}

/* --- state ------------------------------------------------------------------------------------------------------- */

char *plim_accumulator_state(const struct plim_accumulator *a)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    if (!handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_state", NULL)) return NULL;
    json_writer_init(&w, &text, 0);
    json_begin_object(&w, NULL);
    json_double(&w, "scale", a->scaler.scale);
    json_int(&w, "good_steps", a->scaler.good_steps);
    json_int(&w, "steps", a->steps);
    json_int(&w, "skipped", a->skipped);
    json_end_object(&w);
    return text_give(&text);
}

static enum plim_status read_state(const struct node *root, struct plim_accumulator *a,
                                   struct plim_error *err)
{
    static const char *const names[] = {"good_steps", "steps", "skipped"};
    int64_t count[3];
    double scale = node_float(node_get(root, "scale"), 0);
    if (!(scale > 0) || isinf(scale))
        return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_restore: the state has no scale above 0");
    for (int i = 0; i < 3; i++) {
        count[i] = node_int(node_get(root, names[i]), -1);
        if (count[i] < 0)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "plim_accumulator_restore: the state has no count '%s' of 0 or more", names[i]);
    }
    if (a->scaler.active) a->scaler.scale = scale, a->scaler.good_steps = count[0];
    a->steps = count[1], a->skipped = count[2];
    a->micros = a->tokens = 0, a->due = false;
    return PLIM_OK;
}

enum plim_status plim_accumulator_restore(struct plim_accumulator *a, const char *state,
                                          struct plim_error *err)
{
    struct doc *doc;
    if (!handle_is(a, HANDLE_ACCUMULATOR, "plim_accumulator_restore", err)) return PLIM_BAD_INPUT;
    if (!state) return plim_fail(err, PLIM_BAD_INPUT, "plim_accumulator_restore: state is NULL");
    enum plim_status status = json_parse(state, strlen(state), "plim_accumulator_restore", &doc, err);
    if (status != PLIM_OK) return status;
    status = read_state(&doc->root, a, err);
    doc_free(doc);
    return status;
}
