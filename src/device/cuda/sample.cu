/* sample.cu - the next token of each row of logits (tape/op.h, tensor/sample.h).
 *
 * The largest logit of each of CUDA_SAMPLE_PARTS parts of a row first, by a block of threads each. Then a block to a row: the likeliest
 * is the best of the parts. A draw among all tokens finds the SPAN of 1024 tokens in which the sum of weights passes
 * its target, then the token. A draw among few gathers the tokens that weigh enough (the bounds of sample.c, one after the
 * other until nothing behind them could matter), sorts them and goes through them as sample.c does; more candidates than
 * there is room for are left to the host.
 *
 * Weights are sample.c's: fp64 exponentials, rounded to fp32; sums are fp64 in an order of their own, which depends on
 * the vocabulary alone. A penalised logit is made anew each time it is read: its token is looked for among the row's, which lie
 * in order. That costs a dozen reads of a cache for each logit of such a row, and nothing else: no copy of the logits, and none of them changed.
 *
 * How likely tokens are is found by the row's block at the end, the likeliest one after the other: each is the best of those behind
 * the one before it. */
#include "device/cuda/overlap.cuh"

namespace
{

enum { THREADS = 256, WIDE = 512, WARPS = WIDE / 32, PARTS = CUDA_SAMPLE_PARTS, SPAN = 1024 };
enum { SPANS = 512, ROOM = 2048, BOUNDS = 3 }; /* spans that fit; candidates */

struct peak {
    float value;
    int token; /* INT_MAX: none */
};

template <class T> struct sampling {
    const T *logits; /* [R,V] */
    const struct sample_row *rows;
    const int32_t *seen;   /* [L,2]; NULL: nothing is penalised */
    int32_t *token, *next; /* next: NULL where nobody wants it */
    int32_t *top;          /* [R,K]; NULL: nobody asks how likely tokens are */
    float *logprob;        /* [R,K+1] */
    struct peak *peaks;    /* [R,PARTS] */
    int64_t width;
    int most; /* K */
};

/* Penalties of one row. */
struct penalties {
    const int32_t *pairs;
    int count;
    double repetition, presence, frequency;
};

/* Returns the larger peak; the first if they are equal. NaN never wins. */
ON_GPU struct peak better(struct peak a, struct peak b)
{
    return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}

ON_GPU struct peak warp_peak(struct peak p)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        struct peak other = {__shfl_xor_sync(0xffffffffu, p.value, mask),
                             __shfl_xor_sync(0xffffffffu, p.token, mask)};
        p = better(p, other);
    }
    return p;
}

ON_GPU double double_of(struct sample_number n) { return __hiloint2double(n.high, n.low); }

template <class T> ON_GPU struct penalties penalties_of(const sampling<T> &s, const struct sample_row *ask)
{
    struct penalties p = {s.seen, s.seen ? ask->seen_count : 0, 1, 0, 0};
    if (!p.count) return p;
    const double by = double_of(ask->repetition);
    p.pairs += 2 * (int64_t)ask->seen_first;
    p.repetition = by > 0 ? by : 1;
    p.presence = double_of(ask->presence), p.frequency = double_of(ask->frequency);
    return p;
}

/* tensor/sample.c's sampling_penalty; each step is rounded as it is there. */
ON_GPU float penalise(const struct penalties &p, int token, float x)
{
    int low = 0, high = p.count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (p.pairs[2 * middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == p.count || p.pairs[2 * low] != token) return x;
    const int times = p.pairs[2 * low + 1];
    double y = x > 0 ? __ddiv_rn((double)x, p.repetition) : __dmul_rn((double)x, p.repetition);
    if (times > 0) y = __dsub_rn(y, __dadd_rn(p.presence, __dmul_rn(p.frequency, (double)times)));
    return (float)y;
}

/* As it came in. */
template <class T> ON_GPU float raw(const sampling<T> &s, int64_t row, int token)
{
    return number(s.logits + row * s.width + token);
}

template <class T> ON_GPU float logit(const sampling<T> &s, const struct penalties &p, int64_t row, int token)
{
    const float x = raw(s, row, token);
    return p.count ? penalise(p, token, x) : x;
}

template <class T, int N> __global__ void __launch_bounds__(THREADS) find_peaks(const sampling<T> s)
{
    __shared__ struct peak found[THREADS / 32];
    const int64_t row = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    next_may_begin();
    const struct sample_row *ask = s.rows + row;
    const int vocab = ask->vocab;
    const enum sample_mode mode = ask->mode;
    const struct penalties p = penalties_of(s, ask);
    await_previous();
    if (mode == SAMPLE_NONE || mode == SAMPLE_AS_GIVEN) return;
    const int packets = (vocab + N - 1) / N, each = (packets + PARTS - 1) / PARTS;
    struct peak mine = {-INFINITY, INT_MAX};
    for (int i = part * each + threadIdx.x; i < min(packets, (part + 1) * each); i += THREADS) {
        float v[N];
        load(s.logits + row * s.width + (int64_t)i * N, v);
        for (int k = 0; k < N && p.count; k++) v[k] = penalise(p, i * N + k, v[k]);
#pragma unroll
        for (int k = 0; k < N; k++) /* in order: equal ones do not replace */
            if (i * N + k < vocab && (v[k] > mine.value || (mine.token == INT_MAX && v[k] == -INFINITY)))
                mine.value = v[k], mine.token = i * N + k;
    }
    mine = warp_peak(mine);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < THREADS / 32; w++) mine = better(mine, found[w]);
    s.peaks[row * PARTS + part] = mine;
}

/* A row as its block sees it. */
struct order {
    int vocab, top_k;
    double largest, temperature, top_p, min_p, number;
    struct penalties penalties;
};

ON_GPU float weight_of(const struct order &o, float x)
{
    return (float)exp(((double)x - o.largest) / o.temperature);
}

struct room {
    double before[SPANS + 1]; /* sums of the spans, then of what is before each */
    float weight[ROOM];
    int token[ROOM];
    int count, drawn;
};

/* The sum of all weights; room->before has what is before each span. */
template <class T>
ON_GPU double sum_weights(const sampling<T> &s, const struct order &o, int64_t row, room *r)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, spans = (o.vocab + SPAN - 1) / SPAN;
    for (int span = warp; span < spans; span += WARPS) {
        double sum = 0;
        for (int i = span * SPAN + lane; i < min(o.vocab, (span + 1) * SPAN); i += 32)
            sum += (double)weight_of(o, logit(s, o.penalties, row, i));
        sum = warp_sum(sum);
        if (lane == 0) r->before[span] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int span = 0; span < spans; span++) {
            double next = sum + r->before[span];
            r->before[span] = sum, sum = next;
        }
        r->before[spans] = sum;
    }
    __syncthreads();
    return r->before[spans];
}

/* The first token of the span with which the sum passes the target: one warp. */
template <class T>
ON_GPU int scan_span(const sampling<T> &s, const struct order &o, int64_t row, int span, double sum,
                     double target)
{
    enum { EACH = SPAN / 32 };
    const int lane = threadIdx.x % 32, from = span * SPAN + lane * EACH, end = min(from + EACH, o.vocab);
    double mine = 0;
    for (int i = from; i < end; i++) mine += (double)weight_of(o, logit(s, o.penalties, row, i));
    double upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += other;
    }
    unsigned passing = __ballot_sync(0xffffffffu, sum + upto > target);
    int token = SAMPLED_OPEN; /* roundings may leave none: the host decides */
    if (passing && lane == __ffs(passing) - 1) {
        double at = sum + upto - mine;
        for (int i = from; i < end && token < 0; i++)
            if ((at += (double)weight_of(o, logit(s, o.penalties, row, i))) > target) token = i;
    }
    return __shfl_sync(0xffffffffu, token, passing ? __ffs(passing) - 1 : 0);
}

template <class T> ON_GPU int draw_all(const sampling<T> &s, const struct order &o, int64_t row, room *r)
{
    const int spans = (o.vocab + SPAN - 1) / SPAN;
    if (spans > SPANS) return SAMPLED_OPEN;
    const double target = o.number * sum_weights(s, o, row, r);
    int span = spans - 1;
    while (span > 0 && !(r->before[span] <= target)) span--;
    return scan_span(s, o, row, span, r->before[span], target);
}

/* Tokens that weigh at least `least` into the room; false: there are too many. */
template <class T>
ON_GPU bool gather(const sampling<T> &s, const struct order &o, int64_t row, float least, room *r)
{
    const double bound = o.largest + (log((double)least) - 1e-3) * o.temperature;
    __syncthreads();
    if (threadIdx.x == 0) r->count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < o.vocab; i += WIDE) {
        float x = logit(s, o.penalties, row, i), w;
        if (!((double)x >= bound) || (w = weight_of(o, x)) < least) continue;
        int at = atomicAdd(&r->count, 1);
        if (at < ROOM) r->weight[at] = w, r->token[at] = i;
    }
    __syncthreads();
    return r->count <= ROOM;
}

ON_GPU bool comes_before(const room *r, int a, int b)
{
    return r->weight[a] != r->weight[b] ? r->weight[a] > r->weight[b] : r->token[a] < r->token[b];
}

/* Bitonic, over a power of two of candidates: the missing ones weigh nothing and come last. */
ON_GPU void sort_room(room *r)
{
    int n = 2;
    while (n < r->count) n *= 2;
    for (int i = r->count + threadIdx.x; i < n; i += WIDE) r->weight[i] = -1, r->token[i] = INT_MAX;
    __syncthreads();
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < n; i += WIDE) {
                int other = i ^ step;
                if (other < i || comes_before(r, other, i) != ((i & size) == 0)) continue;
                float w = r->weight[i];
                int t = r->token[i];
                r->weight[i] = r->weight[other], r->token[i] = r->token[other];
                r->weight[other] = w, r->token[other] = t;
            }
            __syncthreads();
        }
}

/* sample.c's keep and draw_kept over sorted candidates; SAMPLED_NONE: there must be more of them. One thread. */
ON_GPU int draw_sorted(const struct order &o, const room *r, double enough)
{
    const bool top_k = o.top_k > 0 && o.top_k < o.vocab;
    const int most = top_k ? o.top_k : o.vocab;
    int kept = 0;
    double sum = 0;
    bool light = false;
    while (kept < r->count && kept < most && sum < enough && !light) {
        if (kept && (double)r->weight[kept] < o.min_p)
            light = true;
        else
            sum += (double)r->weight[kept++];
    }
    if (!r->count || !(kept == most || !(sum < enough) || light)) return SAMPLED_NONE;
    const double share = o.top_p > 0 ? o.top_p : 1, whole = sum;
    if (top_k && share < 1) {
        const int all = kept;
        for (kept = 0, sum = 0; kept < all && sum < share * whole; kept++) sum += (double)r->weight[kept];
    }
    const double target = o.number * sum;
    int i = 0;
    double at = 0;
    while (i < kept && !((at += (double)r->weight[i]) > target)) i++;
    return r->token[min(i, kept - 1)];
}

template <class T> ON_GPU int draw_kept(const sampling<T> &s, const struct order &o, int64_t row, room *r)
{
    const float bounds[BOUNDS] = {1e-2f, 1e-4f, 1e-7f};
    const bool top_k = o.top_k > 0 && o.top_k < o.vocab;
    if ((o.vocab + SPAN - 1) / SPAN > SPANS) return SAMPLED_OPEN;
    const double enough = top_k ? INFINITY : (o.top_p > 0 ? o.top_p : 1) * sum_weights(s, o, row, r);
    for (int i = 0; i <= BOUNDS; i++) { /* at last all that weigh anything, if they fit */
        if (!gather(s, o, row, i < BOUNDS ? bounds[i] : 1.5e-45f, r)) return SAMPLED_OPEN;
        sort_room(r);
        if (threadIdx.x == 0) r->drawn = draw_sorted(o, r, enough);
        __syncthreads();
        if (r->drawn >= 0) return r->drawn;
    }
    return SAMPLED_OPEN;
}

/* One thread. */
template <class T> ON_GPU void put_token(const sampling<T> &s, int64_t row, int token)
{
    s.token[row] = token;
    if (s.next) s.next[row] = max(token, 0);
}

/* Shared memory for a search by a whole block. Every thread gets the result; the search may be repeated. */
struct shared_find {
    struct peak peak[WARPS];
    double sum[WARPS];
};

ON_GPU struct peak block_peak(struct peak mine, shared_find *f)
{
    mine = warp_peak(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) f->peak[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = f->peak[0];
    for (int w = 1; w < WARPS; w++) mine = better(mine, f->peak[w]);
    return mine;
}

ON_GPU double block_sum(double mine, shared_find *f)
{
    mine = warp_sum(mine);
    __syncthreads();
    if (threadIdx.x % 32 == 0) f->sum[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = 0;
    for (int w = 0; w < WARPS; w++) mine += f->sum[w];
    return mine;
}

/* The best of those that come after `last`, as they came in. */
template <class T>
ON_GPU struct peak best_behind(const sampling<T> &s, int64_t row, int vocab, struct peak last, shared_find *f)
{
    struct peak mine = {-INFINITY, INT_MAX};
    for (int i = threadIdx.x; i < vocab; i += WIDE) {
        const struct peak next = {raw(s, row, i), i};
        if (next.value < last.value || (next.value == last.value && i > last.token))
            mine = better(mine, next);
    }
    return block_peak(mine, f);
}

/* The row's part of top and logprob, by its block. */
template <class T>
ON_GPU void tell_likely(const sampling<T> &s, int64_t row, const struct sample_row *ask, int token,
                        shared_find *f)
{
    const int vocab = ask->vocab, wanted = token < 0 ? 0 : ask->wanted;
    int32_t *top = s.top + row * s.most;
    float *logprob = s.logprob + row * (s.most + 1);
    for (int i = threadIdx.x; i <= s.most; i += WIDE) {
        if (i >= wanted) logprob[i] = 0;
        if (i < s.most && i + 1 >= wanted) top[i] = 0;
    }
    if (!wanted) return;
    const struct peak first = best_behind(s, row, vocab, {INFINITY, -1}, f);
    double sum = 0;
    for (int i = threadIdx.x; i < vocab; i += WIDE) sum += (double)expf(raw(s, row, i) - first.value);
    const double norm = (double)first.value + log(block_sum(sum, f));
    if (threadIdx.x == 0) logprob[0] = token < vocab ? (float)((double)raw(s, row, token) - norm) : -INFINITY;
    struct peak at = first;
    for (int i = 0; i + 1 < wanted; i++) {
        const bool found = i < vocab;
        if (threadIdx.x == 0) top[i] = found ? at.token : 0;
        if (threadIdx.x == 0) logprob[1 + i] = found ? (float)((double)at.value - norm) : 0;
        if (i + 2 < wanted) at = best_behind(s, row, vocab, at, f);
    }
}

/* The likeliest by find_peaks: one warp. */
template <class T>
ON_GPU struct peak best_of(const sampling<T> &s, const struct penalties &penalties, int64_t row)
{
    struct peak p = warp_peak(s.peaks[row * PARTS + threadIdx.x]);
    const float first = logit(s, penalties, row, 0);
    if (p.token == INT_MAX || isnan(first)) p.token = 0, p.value = first;
    return p;
}

template <class T>
ON_GPU int draw_token(const sampling<T> &s, int64_t row, const struct sample_row *ask,
                      const struct penalties &p, float largest, room *r)
{
    const struct order o = {ask->vocab,
                            ask->top_k,
                            (double)largest,
                            double_of(ask->temperature),
                            double_of(ask->top_p),
                            double_of(ask->min_p),
                            double_of(ask->number),
                            p};
    const bool all = (o.top_k <= 0 || o.top_k >= o.vocab) && (o.top_p <= 0 || o.top_p >= 1) && o.min_p <= 0;
    return all ? draw_all(s, o, row, r) : draw_kept(s, o, row, r);
}

template <class T> __global__ void __launch_bounds__(WIDE) choose_token(const sampling<T> s)
{
    __shared__ room r;
    __shared__ struct peak best;
    __shared__ shared_find find;
    const int64_t row = blockIdx.x;
    const struct sample_row *ask = s.rows + row;
    const enum sample_mode mode = ask->mode;
    const struct penalties p = penalties_of(s, ask);
    next_may_begin();
    await_previous();
    int token = mode == SAMPLE_AS_GIVEN ? ask->given : SAMPLED_NONE;
    if (mode == SAMPLE_LIKELIEST || mode == SAMPLE_DRAWN) {
        if (threadIdx.x < 32) {
            struct peak likeliest = best_of(s, p, row);
            if (threadIdx.x == 0) best = likeliest;
        }
        __syncthreads();
        token = best.token;
        if (mode == SAMPLE_DRAWN) token = draw_token(s, row, ask, p, best.value, &r);
    }
    if (threadIdx.x == 0) put_token(s, row, token);
    if (s.top) tell_likely(s, row, ask, token, &find);
}

template <class T> int run_sample(const struct cuda_queue *queue, const struct kernel_call *call)
{
    sampling<T> s = {(const T *)call->in[SAMPLE_LOGITS],     (const struct sample_row *)call->in[SAMPLE_ROWS],
                     (const int32_t *)call->in[SAMPLE_SEEN], (int32_t *)call->out[SAMPLE_TOKEN],
                     (int32_t *)call->out[SAMPLE_NEXT],      (int32_t *)call->out[SAMPLE_TOP],
                     (float *)call->out[SAMPLE_LOGPROB],     (struct peak *)call->work};
    s.width = last_dim(call_in(call, SAMPLE_LOGITS));
    if (s.top) s.most = (int)last_dim(call_out(call, SAMPLE_TOP));
    const int64_t rows = tensor_count(call_in(call, SAMPLE_LOGITS)) / s.width;
    if (rows == 0) return 0;
    bool wide = s.width % lanes<T> == 0 && aligned(s.logits);
    int failed =
        launch(queue, wide ? find_peaks<T, lanes<T>> : find_peaks<T, 1>, rows * PARTS, THREADS, 0, s);
    struct cuda_queue behind = *queue; /* find_peaks awaits what is before it */
    behind.follows = queue->warpgroups;
    return failed ? failed : launch(&behind, choose_token<T>, rows, WIDE, 0, s);
}

} // namespace

extern "C" CUDA_BY_TYPE(sample, call_in(call, SAMPLE_LOGITS), run_sample)
