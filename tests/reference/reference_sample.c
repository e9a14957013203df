/* reference_sample.c - the next token of a row of logits, as op.h says it: candidates in order, from the likeliest on. */
#include "reference/reference_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double number_of(const int32_t *words)
{
    double x;
    memcpy(&x, words, sizeof x);
    return x;
}

struct candidate {
    double weight;
    int token;
};

static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* How many of the candidates, which lie in order, stay. */
static int64_t kept_of(const struct candidate *c, int64_t n, int64_t top_k, double top_p, double min_p)
{
    double all = 0, sum = 0;
    int64_t kept = 0;
    if (top_k > 0 && top_k < n) n = top_k;
    while (n > 1 && c[n - 1].weight < min_p && top_k > 0)
        n--; /* top-k ends before or where too light ones begin */
    for (int64_t i = 0; i < n; i++) all += c[i].weight;
    double share = top_p > 0 ? top_p : 1;
    while (kept < n && (share >= 1 || sum < share * all) && !(kept && c[kept].weight < min_p))
        sum += c[kept++].weight;
    return kept;
}

static int32_t draw(struct candidate *c, int64_t n, const int32_t *row)
{
    double top_p = number_of(row + SAMPLE_TOP_P), min_p = number_of(row + SAMPLE_MIN_P), sum = 0, total = 0;
    double number = number_of(row + SAMPLE_NUMBER);
    int64_t top_k = row[SAMPLE_TOP_K], kept = n, i = 0;
    bool all = (top_k <= 0 || top_k >= n) && (top_p <= 0 || top_p >= 1) && min_p <= 0;
    if (!all) {
        qsort(c, (size_t)n, sizeof *c, by_weight);
        kept = kept_of(c, n, top_k < n ? top_k : 0, top_p, min_p);
    }
    for (int64_t k = 0; k < kept; k++) total += c[k].weight;
    while (i + 1 < kept && !((sum += c[i].weight) > number * total)) i++;
    return c[i].token;
}

void ref_sample(const struct ref_call *call)
{
    int64_t vocab = ref_in(call, SAMPLE_LOGITS)->dim[1], rows = ref_in(call, SAMPLE_LOGITS)->dim[0];
    struct candidate *c = malloc((size_t)vocab * sizeof *c);
    if (!c) abort();
    for (int64_t r = 0; r < rows; r++) {
        const double *x = call->in[SAMPLE_LOGITS].f + r * vocab;
        const int32_t *row = call->in[SAMPLE_ROWS].i + r * SAMPLE_WORDS;
        int64_t n = row[SAMPLE_VOCAB], best = 0;
        for (int64_t i = 1; i < n; i++)
            if (x[i] > x[best]) best = i;
        for (int64_t i = 0; i < n; i++)
            c[i] = (struct candidate){
                (double)(float)exp((x[i] - x[best]) / number_of(row + SAMPLE_TEMPERATURE)), (int)i};
        call->out[SAMPLE_TOKEN].i[r] = row[SAMPLE_MODE] == SAMPLE_NONE        ? SAMPLED_NONE
                                       : row[SAMPLE_MODE] == SAMPLE_LIKELIEST ? (int32_t)best
                                                                              : draw(c, n, row);
        int32_t token = call->out[SAMPLE_TOKEN].i[r];
        if (call->out[SAMPLE_NEXT].i) call->out[SAMPLE_NEXT].i[r] = token < 0 ? 0 : token;
    }
    free(c);
}
