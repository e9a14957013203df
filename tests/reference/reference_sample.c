/* reference_sample.c - the next token of a row of logits, as op.h says it: candidates in order, from the likeliest on. */
#include "reference/reference_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static int32_t draw(struct candidate *c, int64_t n, const struct sample_row *row)
{
    double top_p = sample_double(row->top_p), min_p = sample_double(row->min_p), sum = 0, total = 0;
    double number = sample_double(row->number);
    int64_t top_k = row->top_k, kept = n, i = 0;
    bool all = (top_k <= 0 || top_k >= n) && (top_p <= 0 || top_p >= 1) && min_p <= 0;
    if (!all) {
        qsort(c, (size_t)n, sizeof *c, by_weight);
        kept = kept_of(c, n, top_k < n ? top_k : 0, top_p, min_p);
    }
    for (int64_t k = 0; k < kept; k++) total += c[k].weight;
    while (i + 1 < kept && !((sum += c[i].weight) > number * total)) i++;
    return c[i].token;
}

/* Logits of tokens that have been seen, rounded to fp32. */
static void penalise(const struct ref_call *call, const struct sample_row *row, double *x)
{
    const int32_t *seen = call->in[SAMPLE_SEEN].i;
    double by = sample_double(row->repetition), presence = sample_double(row->presence);
    for (int i = 0; i < row->seen_count; i++) {
        const int32_t *pair = seen + 2 * (row->seen_first + i);
        if (pair[0] >= row->vocab) continue;
        double y = x[pair[0]];
        if (by > 0) y = y > 0 ? y / by : y * by;
        if (pair[1] > 0) y -= presence + sample_double(row->frequency) * pair[1];
        x[pair[0]] = (double)(float)y;
    }
}

static int32_t choose(const struct ref_call *call, const struct sample_row *row, double *x,
                      struct candidate *c)
{
    int64_t n = row->vocab, best = 0;
    if (row->mode == SAMPLE_NONE) return SAMPLED_NONE;
    if (row->mode == SAMPLE_AS_GIVEN) return row->given;
    penalise(call, row, x);
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    if (row->mode == SAMPLE_LIKELIEST) return (int32_t)best;
    for (int64_t i = 0; i < n; i++)
        c[i] = (struct candidate){(double)(float)exp((x[i] - x[best]) / sample_double(row->temperature)),
                                  (int)i};
    return draw(c, n, row);
}

static void tell(const struct ref_call *call, int64_t r, const struct sample_row *row, const double *x,
                 struct candidate *c)
{
    int64_t most = ref_out(call, SAMPLE_TOP)->dim[1], n = row->vocab;
    int32_t token = call->out[SAMPLE_TOKEN].i[r], *top = call->out[SAMPLE_TOP].i + r * most;
    double *logprob = call->out[SAMPLE_LOGPROB].f + r * (most + 1), sum = 0;
    for (int64_t i = 0; i <= most; i++) logprob[i] = 0;
    for (int64_t i = 0; i < most; i++) top[i] = 0;
    if (token < 0 || !row->wanted) return;
    for (int64_t i = 0; i < n; i++) c[i] = (struct candidate){x[i], (int)i};
    qsort(c, (size_t)n, sizeof *c, by_weight);
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - c[0].weight);
    double norm = c[0].weight + log(sum);
    logprob[0] = token < n ? x[token] - norm : (double)-INFINITY;
    for (int64_t i = 0; i + 1 < row->wanted && i < n; i++)
        top[i] = c[i].token, logprob[1 + i] = c[i].weight - norm;
}

void ref_sample(const struct ref_call *call)
{
    int64_t vocab = ref_in(call, SAMPLE_LOGITS)->dim[1], rows = ref_in(call, SAMPLE_LOGITS)->dim[0];
    struct candidate *c = malloc((size_t)vocab * sizeof *c);
    double *x = malloc((size_t)vocab * sizeof *x);
    if (!c || !x) abort();
    for (int64_t r = 0; r < rows; r++) {
        const double *logits = call->in[SAMPLE_LOGITS].f + r * vocab;
        const struct sample_row *row = (const struct sample_row *)call->in[SAMPLE_ROWS].i + r;
        memcpy(x, logits, (size_t)vocab * sizeof *x);
        int32_t token = call->out[SAMPLE_TOKEN].i[r] = choose(call, row, x, c);
        if (call->out[SAMPLE_NEXT].i) call->out[SAMPLE_NEXT].i[r] = token < 0 ? 0 : token;
        if (call->out[SAMPLE_TOP].i) tell(call, r, row, logits, c);
    }
    free(c);
    free(x);
}
