/* sample.h - one token from a row of logits.
 *
 *     struct sampler sampler;
 *     struct sampling how = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .seed = 1};
 *     sampler_init(&sampler, vocab, &how, &err);
 *     int32_t token = sampler_draw(&sampler, logits, step);
 *     sampler_release(&sampler);
 *
 * The order is the usual one: divide by the temperature, keep the top_k likeliest, of those the fewest whose
 * share reaches top_p, of those the ones with at least min_p of the likeliest's, draw one by its share. Penalties come
 * before all that (sampling_penalise). Temperature 0 takes the likeliest. Equal logits go to the
 * smaller id. Random numbers are named by (seed, step), so a token depends on nothing but the seed, its place
 * and the logits; neither the team that helps nor how many candidates are looked at changes it. Nothing is allocated
 * after sampler_init.
 */
#pragma once

#include "base/status.h"
#include "base/threads.h"
#include <stdbool.h>
#include <stdint.h>

struct sampling {
    double temperature; /* 0: the likeliest token, always */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 0 or 1: all */
    uint64_t seed;
    double min_p; /* a token needs this share of the likeliest's probability; 0: none */
    /* For tokens in prompt and answer: logits above 0 are divided by it, those below multiplied; 0 or 1: none. */
    double repetition_penalty;
    double presence_penalty;  /* taken off the logits of tokens in the answer, once */
    double frequency_penalty; /* the same for each time */
};

/* PLIM_BAD_INPUT names the number that makes no sense. */
enum plim_status sampling_check(const struct sampling *sampling, struct plim_error *err);

/* A token of prompt or answer, and how often it is in the answer. */
struct seen_token {
    int32_t token, times;
};

bool sampling_penalises(const struct sampling *sampling);
/* The logit of a token that is there already. */
float sampling_penalty(const struct sampling *sampling, float logit, int32_t times);
/* Each of these tokens, all different, ascending: those from vocab on have no logit. */
void sampling_penalise(const struct sampling *sampling, const struct seen_token *seen, int64_t count,
                       float *logits, int64_t vocab);

struct sampler {
    struct sampling sampling;
    struct threads *team; /* weighs; NULL: the caller alone. Set after sampler_init, borrowed */
    int32_t vocab;
    int32_t *heap;  /* candidates, likeliest first out */
    float *weight;  /* by token: exp((logit - largest) / temperature) */
    double *before; /* by block of tokens: the weights before it */
};

enum plim_status sampler_init(struct sampler *sampler, int64_t vocab, const struct sampling *sampling,
                              struct plim_error *err);
void sampler_release(struct sampler *sampler);

/* Bytes a sampler of that vocabulary takes. */
int64_t sampler_bytes(int64_t vocab);

/* The token at place `step`; logits[vocab]. */
int32_t sampler_draw(struct sampler *sampler, const float *logits, uint64_t step);

/* The random number in [0,1) of that place, and the token that it draws: sampler_draw is both. */
double sampling_number(const struct sampling *sampling, uint64_t step);
int32_t sampler_pick(struct sampler *sampler, const float *logits, double number);

/* A sampler over sampler_bytes(vocab) bytes of the caller's, a multiple of 8; sampler_release is not called. */
void sampler_bind(struct sampler *sampler, int64_t vocab, void *memory);
