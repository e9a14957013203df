/* likely.h - how likely tokens are by a row of logits.
 *
 *     struct likely top[5];
 *     int n = likely_top(logits, vocab, 5, top);       // the likeliest first, equal ones by their ids
 *     double norm = likely_norm(logits, vocab);        // log of the sum of exp(logits)
 *     // the log-probability of token t: logits[t] - norm
 */
#pragma once

#include <stdint.h>

struct likely {
    int32_t token;
    float logit;
};

double likely_norm(const float *logits, int64_t vocab);
/* How many there are: most, or vocab. */
int likely_top(const float *logits, int64_t vocab, int most, struct likely *out);
