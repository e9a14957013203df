/* rope.c - rotary frequencies, in the single-precision steps transformers takes. See model.h.
 *
 * The power is taken in double precision and rounded once; everything after it stays in float, so that the
 * borders between bands fall where the reference puts them.
 */
#include "model/model.h"

#include <math.h>

static const char *const names[ROPE_KIND_COUNT] = {"default", "linear", "llama3", "yarn", "longrope"};

const char *rope_kind_name(enum rope_kind kind) { return names[kind]; }

int model_rotary_size(const struct model_spec *spec)
{
    return spec->partial_rotary > 0 ? (int)(spec->head_dim * spec->partial_rotary) : spec->head_dim;
}

int model_rope_sets(const struct model_spec *spec)
{
    return spec->rope_local_theta > 0 || spec->rope.kind == ROPE_LONGROPE ? MODEL_ROPE_SETS : 1;
}

int model_layer_rope(const struct model_spec *spec, int layer, int64_t length)
{
    if (layer_set_has(&spec->no_rope_layers, layer)) return -1;
    if (spec->rope.kind == ROPE_LONGROPE) return length > spec->rope.original_max_positions;
    return spec->rope_local_theta > 0 && layer_set_has(&spec->sliding_layers, layer);
}

/* --- how frequencies are stretched ------------------------------------------------------------------------ */

/* Inputs of scaling: frequency i of n before stretching, and theta^(2 i / 2 n). */
struct wave {
    const struct model_spec *spec;
    int i, n;
    float freq, power;
};

static float scale_none(const struct wave *w, int) { return w->freq; }

static float scale_linear(const struct wave *w, int) { return w->freq / (float)w->spec->rope.factor; }

/* Long waves are stretched by the factor, short ones kept, those between blended. */
static float scale_llama3(const struct wave *w, int)
{
    const float two_pi = 6.283185307179586f;
    const struct rope_scaling *s = &w->spec->rope;
    float wave = two_pi / w->freq;
    float context = (float)s->original_max_positions;
    float longest = (float)((double)s->original_max_positions / s->low_freq_factor);
    float shortest = (float)((double)s->original_max_positions / s->high_freq_factor);
    if (wave > longest) return w->freq / (float)s->factor;
    if (wave < shortest) return w->freq;
    float smooth =
        (context / wave - (float)s->low_freq_factor) / (float)(s->high_freq_factor - s->low_freq_factor);
    return (1.0f - smooth) * w->freq / (float)s->factor + smooth * w->freq;
}

/* The frequency, counted and not a whole one, that turns so many times over the original length. */
static double yarn_border(const struct wave *w, double turns)
{
    double length = (double)w->spec->rope.original_max_positions;
    return 2 * w->n * log(length / (turns * 2 * M_PI)) / (2 * log(w->spec->rope_theta));
}

/* Blended by the number of the frequency: those before the first border are kept, those after the last stretched. */
static float scale_yarn(const struct wave *w, int)
{
    const struct rope_scaling *s = &w->spec->rope;
    double low = yarn_border(w, s->beta_fast), high = yarn_border(w, s->beta_slow);
    if (s->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, 2 * w->n - 1);
    if (low == high) high += 0.001;
    float ramp = ((float)w->i - (float)low) / (float)(high - low);
    float kept = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
    return 1.0f / ((float)s->factor * w->power) * (1.0f - kept) + w->freq * kept;
}

static float scale_longrope(const struct wave *w, int set)
{
    const struct rope_scaling *s = &w->spec->rope;
    return 1.0f / ((float)(set ? s->long_factor : s->short_factor).value[w->i] * w->power);
}

static float (*const scalings[ROPE_KIND_COUNT])(const struct wave *, int) = {
    scale_none, scale_linear, scale_llama3, scale_yarn, scale_longrope};

void model_rope_frequencies(const struct model_spec *spec, int set, float *out)
{
    int size = model_rotary_size(spec);
    bool local = set && spec->rope_local_theta > 0;
    double theta = local ? spec->rope_local_theta : spec->rope_theta;
    struct wave w = {.spec = spec, .n = size / 2};
    for (; w.i < w.n; w.i++) {
        float exponent = (float)(2 * w.i) / (float)size;
        w.power = (float)pow((double)(float)theta, (double)exponent);
        w.freq = 1.0f / w.power;
        out[w.i] = scalings[local ? ROPE_NONE : spec->rope.kind](&w, set);
    }
}

/* --- and attention with them ------------------------------------------------------------------------------ */

static double yarn_mscale(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

double model_rope_attention_factor(const struct model_spec *spec, int set)
{
    const struct rope_scaling *s = &spec->rope;
    bool local = set && spec->rope_local_theta > 0;
    if (local || (s->kind != ROPE_YARN && s->kind != ROPE_LONGROPE)) return 1;
    if (s->attention_factor > 0) return s->attention_factor;
    if (s->kind == ROPE_YARN)
        return s->mscale > 0 && s->mscale_all_dim > 0
                   ? yarn_mscale(s->factor, s->mscale) / yarn_mscale(s->factor, s->mscale_all_dim)
                   : yarn_mscale(s->factor, 1);
    double length = (double)s->original_max_positions;
    double factor = s->factor > 0 ? s->factor : (double)spec->max_positions / length;
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(length));
}
