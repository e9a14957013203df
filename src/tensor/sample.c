/* sample.c - see sample.h.
 *
 * Candidates lie in a heap with the likeliest on top. Building it is linear and each candidate that is kept
 * costs one removal, so a draw never sorts. Removed candidates gather behind the heap's end: of n candidates, after k
 * removals heap[n-1], heap[n-2], ... are the k likeliest in order.
 *
 * Only tokens above a small share of the likeliest are candidates at first: all others rank behind every one of them, so
 * whatever stops among the candidates would have stopped there among all. When they run out, the share falls.
 */
#include "tensor/sample.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { BLOCK = 1024, LANES = 16 };

/* Weights from which on a token is a candidate, the likeliest's being 1; the last takes all. */
static const float rungs[] = {1e-2f, 1e-4f, 1e-7f, -1};
enum { RUNGS = sizeof rungs / sizeof *rungs };

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
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return plim_fail(err, PLIM_BAD_INPUT, "min-p %g: write a share from 0 to 1; 0 keeps all", s->min_p);
    if (!(s->repetition_penalty >= 0 && s->repetition_penalty <= 1000))
        return plim_fail(err, PLIM_BAD_INPUT, "repetition penalty %g: write a factor from 1 (none) to 1000",
                         s->repetition_penalty);
    if (!(fabs(s->presence_penalty) <= 1000) || !(fabs(s->frequency_penalty) <= 1000))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "presence penalty %g, frequency penalty %g: write numbers from -2 to 2",
                         s->presence_penalty, s->frequency_penalty);
    return PLIM_OK;
}

bool sampling_penalises(const struct sampling *s)
{
    return (s->repetition_penalty > 0 && s->repetition_penalty != 1) || s->presence_penalty != 0 ||
           s->frequency_penalty != 0;
}

float sampling_penalty(const struct sampling *s, float x, int32_t times)
{
    double by = s->repetition_penalty > 0 ? s->repetition_penalty : 1, y = (double)x;
    y = y > 0 ? y / by : y * by;
    if (times > 0) y -= s->presence_penalty + s->frequency_penalty * times;
    return (float)y;
}

void sampling_penalise(const struct sampling *s, const struct seen_token *seen, int64_t count, float *logits,
                       int64_t vocab)
{
    for (int64_t i = 0; i < count && seen[i].token < vocab; i++)
        logits[seen[i].token] = sampling_penalty(s, logits[seen[i].token], seen[i].times);
}

static int64_t blocks_of(int64_t vocab) { return (vocab + BLOCK - 1) / BLOCK; }

int64_t sampler_bytes(int64_t vocab)
{
    return vocab * (int64_t)(sizeof(int32_t) + sizeof(float)) + blocks_of(vocab) * (int64_t)sizeof(double);
}

enum plim_status sampler_init(struct sampler *s, int64_t vocab, const struct sampling *sampling,
                              struct plim_error *err)
{
    enum plim_status status = sampling_check(sampling, err);
    if (status != PLIM_OK) return status;
    *s = (struct sampler){.sampling = *sampling, .vocab = (int32_t)vocab};
    s->heap = malloc((size_t)vocab * sizeof *s->heap);
    s->weight = malloc((size_t)vocab * sizeof *s->weight);
    s->before = malloc((size_t)blocks_of(vocab) * sizeof *s->before);
    if (s->heap && s->weight && s->before) return PLIM_OK;
    sampler_release(s);
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for %lld candidates", (long long)vocab);
}

void sampler_release(struct sampler *s)
{
    free(s->heap);
    free(s->weight);
    free(s->before);
    s->heap = NULL, s->weight = NULL, s->before = NULL;
}

void sampler_bind(struct sampler *s, int64_t vocab, void *memory)
{
    *s = (struct sampler){.vocab = (int32_t)vocab, .before = memory};
    s->weight = (float *)(s->before + blocks_of(vocab));
    s->heap = (int32_t *)(s->weight + vocab);
}

/* The largest of x[0..n) and `best`, in lanes that a compiler makes vectors of. */
static float largest(const float *x, int32_t n, float best)
{
    float most[LANES];
    int32_t i = 0;
    for (int l = 0; l < LANES; l++) most[l] = best;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
    for (int l = 0; l < LANES; l++) best = most[l] > best ? most[l] : best;
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* The first of the largest. What is not a number is never larger. */
static int32_t likeliest(const float *logits, int32_t vocab)
{
    float best = logits[0];
    int32_t from = 0;
    for (int32_t at = 0; at < vocab; at += BLOCK) {
        float most = largest(logits + at, vocab - at < BLOCK ? vocab - at : BLOCK, best);
        if (most > best) best = most, from = at;
    }
    int32_t i = from;
    while (i < vocab && logits[i] != best) i++;
    return i < vocab ? i : 0;
}

struct weigh {
    struct sampler *sampler;
    const float *logits;
    double largest;
};

static void weigh_body(void *arg, int64_t begin, int64_t end, int)
{
    const struct weigh *w = arg;
    struct sampler *s = w->sampler;
    for (int64_t i = begin; i < end; i++)
        s->weight[i] = (float)exp(((double)w->logits[i] - w->largest) / s->sampling.temperature);
}

/* The sum of all weights, and of those before each block. */
static double sum_weights(struct sampler *s)
{
    double sum = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        if (i % BLOCK == 0) s->before[i / BLOCK] = sum;
        sum += (double)s->weight[i];
    }
    return sum;
}

static bool comes_before(const struct sampler *s, int32_t a, int32_t b)
{
    return s->weight[a] != s->weight[b] ? s->weight[a] > s->weight[b] : a < b;
}

static void sift(struct sampler *s, int32_t at, int32_t n)
{
    int32_t moving = s->heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_before(s, s->heap[child + 1], s->heap[child])) child++;
        if (!comes_before(s, s->heap[child], moving)) break;
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

/* A heap of the tokens that weigh at least `least`; how many they are. */
static int32_t gather(struct sampler *s, float least)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->vocab; i++)
        if (least < 0 || s->weight[i] >= least) s->heap[n++] = i;
    for (int32_t i = n / 2; i-- > 0;) sift(s, i, n);
    return n;
}

/* The likeliest, one after the other, until there are `most`, their sum reaches `enough` or the next weighs too little. */
static int32_t take_likeliest(struct sampler *s, int32_t n, int32_t most, double enough, double *sum,
                              bool *light)
{
    int32_t kept = 0;
    *sum = 0, *light = false;
    while (kept < n && kept < most && *sum < enough && !*light) {
        if (kept && (double)s->weight[s->heap[0]] < s->sampling.min_p)
            *light = true;
        else
            *sum += (double)s->weight[take(s, n - kept++)];
    }
    return kept;
}

/* How many of the likeliest stay, and the sum of their weights; *candidates: of how many. */
static int32_t keep(struct sampler *s, int32_t *candidates, double *total)
{
    bool top_k = s->sampling.top_k > 0 && s->sampling.top_k < s->vocab;
    int32_t most = top_k ? (int32_t)s->sampling.top_k : s->vocab, n = 0, kept = 0;
    bool light = false;
    double share = s->sampling.top_p > 0 ? s->sampling.top_p : 1, sum = 0;
    double enough = top_k ? INFINITY : share * sum_weights(s);
    for (int rung = 0; rung < RUNGS; rung++) {
        n = gather(s, rungs[rung]);
        kept = take_likeliest(s, n, most, enough, &sum, &light);
        if (n && (kept == most || !(sum < enough) || light)) break;
    }
    if (top_k && share < 1) { /* the share is of what top-k left */
        double whole = sum;
        int32_t all = kept;
        for (kept = 0, sum = 0; kept < all && sum < share * whole; kept++)
            sum += (double)s->weight[s->heap[n - 1 - kept]];
    }
    *candidates = n, *total = sum;
    return kept;
}

/* The first token from `from` on with which the sum exceeds `target`; -1: none. *last: of those with a weight. */
static int32_t scan(const struct sampler *s, int32_t from, double sum, double target, int32_t *last)
{
    for (int32_t i = from; i < s->vocab; i++) {
        if (s->weight[i] <= 0) continue;
        *last = i;
        if ((sum += (double)s->weight[i]) > target) return i;
    }
    return -1;
}

static int32_t draw_all(struct sampler *s, double u)
{
    double target = u * sum_weights(s);
    int32_t last = 0, block = (int32_t)blocks_of(s->vocab) - 1;
    while (block > 0 && !(s->before[block] <= target)) block--;
    int32_t token = scan(s, block * BLOCK, s->before[block], target, &last);
    if (token < 0) token = scan(s, 0, 0, target, &last);
    return token < 0 ? last : token;
}

static int32_t draw_kept(struct sampler *s, double u)
{
    double total, sum = 0;
    int32_t n, kept = keep(s, &n, &total), token = s->heap[n - 1];
    for (int32_t i = 0; i < kept; i++) {
        token = s->heap[n - 1 - i];
        if ((sum += (double)s->weight[token]) > u * total) break;
    }
    return token;
}

double sampling_number(const struct sampling *sampling, uint64_t step)
{
    return rng_uniform(sampling->seed, SAMPLE_STREAM, step);
}

int32_t sampler_pick(struct sampler *s, const float *logits, double number)
{
    const struct sampling *o = &s->sampling;
    int32_t best = likeliest(logits, s->vocab);
    if (o->temperature <= 0) return best;
    struct weigh w = {s, logits, (double)logits[best]};
    threads_each(s->team, s->vocab, 4 * BLOCK, weigh_body, &w);
    bool all = (o->top_k <= 0 || o->top_k >= s->vocab) && (o->top_p <= 0 || o->top_p >= 1) && o->min_p <= 0;
    return all ? draw_all(s, number) : draw_kept(s, number);
}

int32_t sampler_draw(struct sampler *s, const float *logits, uint64_t step)
{
    double number = s->sampling.temperature > 0 ? sampling_number(&s->sampling, step) : 0;
    return sampler_pick(s, logits, number);
}
