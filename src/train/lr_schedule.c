/* lr_schedule.c - see lr_schedule.h and docs/schedules.md. */
#include "train/lr_schedule.h"

#include <math.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

/* How long inverse_sqrt waits when the job does not say, as in transformers. */
#define DEFAULT_TIMESCALE 10000

void lr_schedule_init(struct lr_schedule *s, const struct job_schedule *config, int64_t total_steps)
{
    memset(s, 0, sizeof *s);
    s->config = *config;
    s->total_steps = total_steps;
    if (config->warmup_ratio > 0)
        s->config.warmup_steps = (int64_t)ceil(config->warmup_ratio * (double)total_steps);
    if (config->min_lr_ratio > 0) s->config.min_lr = config->min_lr_ratio * config->learning_rate;
    s->lr = config->learning_rate;
    s->best = INFINITY;
    s->resets_left = config->reset_start;
}

/* Share of the way from the end of warm-up to the last step. */
static double progress(const struct lr_schedule *s, int64_t step)
{
    if (step < s->config.warmup_steps) return 0; /* also when the warm-up is longer than the run */
    double span = (double)(s->total_steps - s->config.warmup_steps);
    double p = span > 0 ? (double)(step - s->config.warmup_steps) / span : 1;
    return p < 0 ? 0 : p > 1 ? 1 : p;
}

static double rate_constant(const struct lr_schedule *s, int64_t) { return s->config.learning_rate; }

/* The rate when `share` of the way down from learning_rate to min_lr is left. */
static double above_floor(const struct lr_schedule *s, double share)
{
    return s->config.min_lr + (s->config.learning_rate - s->config.min_lr) * share;
}

static double rate_linear(const struct lr_schedule *s, int64_t step)
{
    return s->config.learning_rate + (s->config.min_lr - s->config.learning_rate) * progress(s, step);
}

/* config.cycles waves; half a wave is one fall. */
static double wave(const struct lr_schedule *s, double p)
{
    return 0.5 * (1 + cos(pi * (2 * s->config.cycles) * p));
}

static double rate_cosine(const struct lr_schedule *s, int64_t step)
{
    return above_floor(s, wave(s, progress(s, step)));
}

static double rate_restarts(const struct lr_schedule *s, int64_t step)
{
    double p = progress(s, step);
    return above_floor(s, p < 1 ? 0.5 * (1 + cos(pi * fmod(s->config.cycles * p, 1))) : 0);
}

static double rate_polynomial(const struct lr_schedule *s, int64_t step)
{
    return above_floor(s, pow(1 - progress(s, step), s->config.power));
}

static double rate_inverse_sqrt(const struct lr_schedule *s, int64_t step)
{
    int64_t warmup = s->config.warmup_steps;
    int64_t timescale = s->config.timescale ? s->config.timescale : warmup ? warmup : DEFAULT_TIMESCALE;
    if (step < warmup) return s->config.learning_rate;
    return s->config.learning_rate / sqrt((double)(step - warmup + timescale) / (double)timescale);
}

/* First step of wsd's decay, and how many there are. */
static int64_t decay_begin(const struct lr_schedule *s, int64_t *steps)
{
    int64_t begin = s->config.warmup_steps + s->config.stable_steps;
    *steps = s->config.decay_steps         ? s->config.decay_steps
             : s->config.stable_steps >= 0 ? s->total_steps - begin
                                           : s->total_steps / 5;
    return s->config.stable_steps >= 0 ? begin : s->total_steps - *steps;
}

static double decay_linear(const struct lr_schedule *s, double p) { return (void)s, 1 - p; }
static double decay_root(const struct lr_schedule *s, double p) { return (void)s, 1 - sqrt(p); }

static double rate_wsd(const struct lr_schedule *s, int64_t step)
{
    static double (*const falls[])(const struct lr_schedule *, double) = {
        [DECAY_LINEAR] = decay_linear, [DECAY_COSINE] = wave, [DECAY_ROOT] = decay_root};
    int64_t decay, into = step - decay_begin(s, &decay);
    if (into <= 0 || decay <= 0) return s->config.learning_rate;
    if (into >= decay) return s->config.min_lr;
    return above_floor(s, falls[s->config.decay_type](s, (double)into / (double)decay));
}

static double rate_greedy(const struct lr_schedule *s, int64_t) { return s->lr; }

static double (*const rates[SCHEDULE_COUNT])(const struct lr_schedule *, int64_t) = {
    rate_constant, rate_linear,   rate_cosine,     rate_wsd,
    rate_greedy,   rate_restarts, rate_polynomial, rate_inverse_sqrt};

/* Share of the way up after `step` steps; by the logarithm, the first step is none of it. */
static double warmup_share(const struct lr_schedule *s, int64_t step)
{
    double steps = (double)s->config.warmup_steps;
    if (!s->config.warmup_type) return (double)(step + 1) / steps;
    return s->config.warmup_steps > 1 ? log((double)(step + 1)) / log(steps) : 1;
}

double lr_schedule_rate(const struct lr_schedule *s, int64_t step)
{
    double rate = rates[s->config.kind](s, step), first = s->config.warmup_min_lr;
    if (step < s->config.warmup_steps)
        rate = first > 0 ? first + (rate - first) * warmup_share(s, step) : rate * warmup_share(s, step);
    return rate;
}

static double smoothed(struct lr_schedule *s, double x)
{
    int64_t size = s->config.window_size;
    if (!s->config.smooth) return x;
    s->window[s->seen++ % size] = x;
    int64_t n = s->seen < size ? s->seen : size;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += s->window[i];
    return sum / (double)n;
}

static void greedy_reset(struct lr_schedule *s)
{
    s->lr = s->config.learning_rate;
    s->best = INFINITY;
    s->good = s->bad = s->cool = s->warm = s->seen = 0;
    s->resets_left = s->config.reset_start;
}

static void greedy_raise(struct lr_schedule *s)
{
    double next = fmin(s->lr / s->config.factor, s->config.max_lr);
    if (next - s->lr > s->config.eps) s->lr = next;
    s->resets_left = s->config.reset_start;
    s->warm = s->config.warmup;
    s->good = 0;
}

static void greedy_lower(struct lr_schedule *s)
{
    double next = fmax(s->lr * s->config.factor, s->config.min_lr);
    if (s->lr - next > s->config.eps) s->lr = next;
    if (s->lr <= s->config.min_lr && --s->resets_left <= 0) greedy_reset(s);
    s->cool = s->config.cooldown;
    s->bad = 0;
}

static void greedy_step(struct lr_schedule *s, double loss)
{
    double x = smoothed(s, loss);
    if (s->cool > 0) {
        s->cool--, s->good = s->bad = 0;
        return;
    }
    if (s->warm > 0) {
        s->warm--, s->good = s->bad = 0;
        return;
    }
    double line = s->config.relative ? s->best * (1 - s->config.threshold) : s->best - s->config.threshold;
    if (x < line)
        s->best = x, s->good++, s->bad = 0;
    else
        s->bad++, s->good = 0;
    if (s->good > s->config.patience)
        greedy_raise(s);
    else if (s->bad > s->config.patience)
        greedy_lower(s);
}

void lr_schedule_observe(struct lr_schedule *s, enum schedule_event event, double loss)
{
    if (!isfinite(loss)) return; /* it would stay in the mean for a whole window */
    if (s->config.kind == SCHEDULE_GREEDY && s->config.on == (int)event) greedy_step(s, loss);
}

void lr_schedule_save(const struct lr_schedule *s, struct strbuf *out)
{
    strbuf_addf(out,
                "{\"lr\":%.17g,\"good\":%lld,\"bad\":%lld,\"cool\":%lld,\"warm\":%lld,\"resets_left\":%lld,"
                "\"seen\":%lld",
                s->lr, (long long)s->good, (long long)s->bad, (long long)s->cool, (long long)s->warm,
                (long long)s->resets_left, (long long)s->seen);
    if (isfinite(s->best)) strbuf_addf(out, ",\"best\":%.17g", s->best);
    strbuf_addf(out, ",\"window\":[");
    int64_t n = s->seen < s->config.window_size ? s->seen : s->config.window_size;
    for (int64_t i = 0; i < n; i++) strbuf_addf(out, i ? ",%.17g" : "%.17g", s->window[i]);
    strbuf_addf(out, "]}");
}

void lr_schedule_restore(struct lr_schedule *s, const struct node *saved)
{
    s->lr = node_float(node_get(saved, "lr"), s->lr);
    s->best = node_float(node_get(saved, "best"), INFINITY);
    s->good = node_int(node_get(saved, "good"), 0);
    s->bad = node_int(node_get(saved, "bad"), 0);
    s->cool = node_int(node_get(saved, "cool"), 0);
    s->warm = node_int(node_get(saved, "warm"), 0);
    s->resets_left = node_int(node_get(saved, "resets_left"), s->config.reset_start);
    s->seen = node_int(node_get(saved, "seen"), 0);
    const struct node *window = node_get(saved, "window");
    for (size_t i = 0; i < node_count(window) && i < SCHEDULE_WINDOW_MAX; i++)
        s->window[i] = node_float(node_item(window, i), 0);
    int64_t held = s->seen < s->config.window_size ? s->seen : s->config.window_size;
    if ((int64_t)node_count(window) != held) s->seen = 0; /* the window has another size now: it fills anew */
}
