/* sample.c - see sample.h.
 *
 * Candidates lie in a heap with the likeliest on top. Building it is linear and each candidate that is kept
 * costs one removal, so a draw never sorts the whole vocabulary. Removed candidates gather behind the heap's
 * end: after k removals heap[vocab-1], heap[vocab-2], ... are the k likeliest in order.
 */
#include "serve/sample.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* The stream of random numbers that sampling draws from. */
#define SAMPLE_STREAM UINT64_C(0x73616d706c65)

enum plim_status sampling_check(const struct sampling *s, struct plim_error *err)
{
    if (!(s->temperature >= 0 && s->temperature <= 1000))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "temperature %g: write a number from 0 (always the likeliest) to 1000",
                         s->temperature);
    if (s->top_k < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "top-k %lld: write 1 or more, or 0 for all",
                         (long long)s->top_k);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        return plim_fail(err, PLIM_BAD_INPUT, "top-p %g: write a share from 0 to 1; 1 keeps all", s->top_p);
    return PLIM_OK;
}

int64_t sampler_bytes(int64_t vocab) { return vocab * (int64_t)(sizeof(int32_t) + sizeof(float)); }

enum plim_status sampler_init(struct sampler *s, int64_t vocab, const struct sampling *sampling,
                              struct plim_error *err)
{
    enum plim_status status = sampling_check(sampling, err);
    if (status != PLIM_OK) return status;
    *s = (struct sampler){.sampling = *sampling, .vocab = (int32_t)vocab};
    s->heap = malloc((size_t)vocab * sizeof *s->heap);
    s->weight = malloc((size_t)vocab * sizeof *s->weight);
    if (s->heap && s->weight) return PLIM_OK;
    sampler_release(s);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for %lld candidates", (long long)vocab);
}

void sampler_release(struct sampler *s)
{
    free(s->heap);
    free(s->weight);
    s->heap = NULL, s->weight = NULL;
}

static int32_t likeliest(const float *logits, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static bool before(const struct sampler *s, int32_t a, int32_t b)
{
    return s->weight[a] != s->weight[b] ? s->weight[a] > s->weight[b] : a < b;
}

static void sift(struct sampler *s, int32_t at, int32_t n)
{
    int32_t moving = s->heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(s, s->heap[child + 1], s->heap[child])) child++;
        if (!before(s, s->heap[child], moving)) break;
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = moving;
}

/* Takes the likeliest of the first n off and puts it at n - 1. */
static int32_t take(struct sampler *s, int32_t n)
{
    int32_t top = s->heap[0];
    s->heap[0] = s->heap[n - 1];
    sift(s, 0, n - 1);
    s->heap[n - 1] = top;
    return top;
}

/* How many of the likeliest stay, and the sum of their weights. */
static int32_t keep(struct sampler *s, double *total)
{
    int32_t n = s->vocab, kept = 0;
    int32_t most = s->sampling.top_k > 0 && s->sampling.top_k < n ? (int32_t)s->sampling.top_k : n;
    double share = s->sampling.top_p > 0 ? s->sampling.top_p : 1, sum = 0, whole = 0;
    for (int32_t i = 0; i < n; i++) s->heap[i] = i;
    for (int32_t i = n / 2; i-- > 0;) sift(s, i, n);
    if (most == n)
        for (int32_t i = 0; i < n; i++) whole += (double)s->weight[i];
    for (; kept < most && (most < n || sum < share * whole); kept++)
        sum += (double)s->weight[take(s, n - kept)];
    if (most < n && share < 1) { /* the share is of what top-k left */
        whole = sum, sum = 0;
        for (kept = 0; kept < most && sum < share * whole; kept++)
            sum += (double)s->weight[s->heap[n - 1 - kept]];
    }
    *total = sum;
    return kept;
}

static int32_t draw_all(const struct sampler *s, double u)
{
    double total = 0, sum = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < s->vocab; i++) total += (double)s->weight[i];
    for (int32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] <= 0) continue;
        last = i;
        if ((sum += (double)s->weight[i]) > u * total) return i;
    }
    return last;
}

static int32_t draw_kept(struct sampler *s, double u)
{
    double total, sum = 0;
    int32_t kept = keep(s, &total), token = s->heap[s->vocab - 1];
    for (int32_t i = 0; i < kept; i++) {
        token = s->heap[s->vocab - 1 - i];
        if ((sum += (double)s->weight[token]) > u * total) break;
    }
    return token;
}

int32_t sampler_draw(struct sampler *s, const float *logits, uint64_t step)
{
    const struct sampling *o = &s->sampling;
    int32_t best = likeliest(logits, s->vocab);
    if (o->temperature <= 0) return best;
    for (int32_t i = 0; i < s->vocab; i++)
        s->weight[i] = (float)exp(((double)logits[i] - (double)logits[best]) / o->temperature);
    double u = rng_uniform(o->seed, SAMPLE_STREAM, step);
    bool all = (o->top_k <= 0 || o->top_k >= s->vocab) && (o->top_p <= 0 || o->top_p >= 1);
    return all ? draw_all(s, u) : draw_kept(s, u);
}
