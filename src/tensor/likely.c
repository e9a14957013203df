/* likely.c - see likely.h. */
#include "tensor/likely.h"

#include <math.h>

double likely_norm(const float *x, int64_t n)
{
    float most = x[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < n; i++) sum += (double)expf(x[i] - most);
    return (double)most + log(sum);
}

int likely_top(const float *x, int64_t vocab, int most, struct likely *out)
{
    int n = 0;
    for (int64_t i = 0; i < vocab && most > 0; i++) {
        if (n == most && !(x[i] > out[n - 1].logit)) continue;
        int at = n < most ? n++ : n - 1;
        for (; at > 0 && x[i] > out[at - 1].logit; at--) out[at] = out[at - 1];
        out[at] = (struct likely){(int32_t)i, x[i]};
    }
    return n;
}
