/* rope.c - rotary frequencies, in the single-precision steps transformers takes. See model.h.
 *
 * The power is taken in double precision and rounded once; everything after it stays in float, so that the
 * borders between the llama3 bands fall where the reference puts them.
 */
#include "model/model.h"

#include <math.h>

static const char *const names[ROPE_KIND_COUNT] = {"default", "linear", "llama3"};

const char *rope_kind_name(enum rope_kind kind) { return names[kind]; }

/* Long waves are stretched by the factor, short ones kept, those between blended. */
static float llama3_frequency(const struct rope_scaling *s, float freq)
{
    const float two_pi = 6.283185307179586f;
    float wave = two_pi / freq;
    float context = (float)s->original_max_positions;
    float longest = (float)((double)s->original_max_positions / s->low_freq_factor);
    float shortest = (float)((double)s->original_max_positions / s->high_freq_factor);
    if (wave > longest) return freq / (float)s->factor;
    if (wave < shortest) return freq;
    float smooth =
        (context / wave - (float)s->low_freq_factor) / (float)(s->high_freq_factor - s->low_freq_factor);
    return (1.0f - smooth) * freq / (float)s->factor + smooth * freq;
}

void model_rope_frequencies(const struct model_spec *spec, float *out)
{
    for (int i = 0; i < spec->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)spec->head_dim;
        float freq = 1.0f / (float)pow((double)(float)spec->rope_theta, (double)exponent);
        if (spec->rope.kind == ROPE_LINEAR) freq /= (float)spec->rope.factor;
        if (spec->rope.kind == ROPE_LLAMA3) freq = llama3_frequency(&spec->rope, freq);
        out[i] = freq;
    }
}
