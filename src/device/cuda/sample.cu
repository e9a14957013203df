/* sample.cu - the next token of each row of logits (tape/op.h, tensor/sample.h).
 *
 * The largest logit of each of CUDA_SAMPLE_PARTS parts of a row first, by a block of threads each. Then a block to a row: the likeliest
 * is the best of the parts. A draw among all tokens finds the SPAN of 1024 tokens in which the sum of weights passes
 * its target, then the token. A draw among few gathers the tokens that weigh enough (the bounds of sample.c, one after the
 * other until nothing behind them could matter), sorts them and goes through them as sample.c does; more candidates than
 * there is room for are left to the host.
 *
 * Weights are sample.c's: fp64 exponentials, rounded to fp32; sums are fp64 in an order of their own, which depends on
 * the vocabulary alone. */
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
    const int32_t *rows;
    int32_t *token, *next; /* next: NULL where nobody wants it */
    struct peak *peaks;    /* [R,PARTS] */
    int64_t width;
};

/* Of equal ones the first. What is not a number is never likelier. */
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

template <class T> ON_GPU float logit(const sampling<T> &s, int64_t row, int token)
{
    float v[1];
    load<1>(s.logits + row * s.width + token, v);
    return v[0];
}

template <class T, int N> __global__ void __launch_bounds__(THREADS) find_peaks(const sampling<T> s)
{
    __shared__ struct peak found[THREADS / 32];
    const int64_t row = blockIdx.x / PARTS;
    const int part = blockIdx.x % PARTS;
    next_may_begin();
    const int vocab = s.rows[row * SAMPLE_WORDS + SAMPLE_VOCAB], mode = s.rows[row * SAMPLE_WORDS];
    await_previous();
    if (mode == SAMPLE_NONE) return;
    const int packets = (vocab + N - 1) / N, each = (packets + PARTS - 1) / PARTS;
    struct peak mine = {-INFINITY, INT_MAX};
    for (int i = part * each + threadIdx.x; i < min(packets, (part + 1) * each); i += THREADS) {
        float v[N];
        load(s.logits + row * s.width + (int64_t)i * N, v);
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
};

ON_GPU double double_of(const int32_t *words) { return __hiloint2double(words[1], words[0]); }

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
            sum += (double)weight_of(o, logit(s, row, i));
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
    for (int i = from; i < end; i++) mine += (double)weight_of(o, logit(s, row, i));
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
            if ((at += (double)weight_of(o, logit(s, row, i))) > target) token = i;
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
        float x = logit(s, row, i), w;
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

template <class T> __global__ void __launch_bounds__(WIDE) choose_token(const sampling<T> s)
{
    __shared__ room r;
    __shared__ struct peak best;
    const int64_t row = blockIdx.x;
    const int32_t *words = s.rows + row * SAMPLE_WORDS;
    const int mode = words[SAMPLE_MODE];
    next_may_begin();
    await_previous();
    if (mode == SAMPLE_NONE) {
        if (threadIdx.x == 0) put_token(s, row, SAMPLED_NONE);
        return;
    }
    if (threadIdx.x < 32) {
        struct peak p = warp_peak(s.peaks[row * PARTS + threadIdx.x]);
        if (p.token == INT_MAX || isnan(logit(s, row, 0))) p.token = 0, p.value = logit(s, row, 0);
        if (threadIdx.x == 0) best = p;
        if (threadIdx.x == 0 && mode == SAMPLE_LIKELIEST) put_token(s, row, p.token);
    }
    if (mode == SAMPLE_LIKELIEST) return;
    __syncthreads();
    const struct order o = {words[SAMPLE_VOCAB],
                            words[SAMPLE_TOP_K],
                            (double)best.value,
                            double_of(words + SAMPLE_TEMPERATURE),
                            double_of(words + SAMPLE_TOP_P),
                            double_of(words + SAMPLE_MIN_P),
                            double_of(words + SAMPLE_NUMBER)};
    const bool all = (o.top_k <= 0 || o.top_k >= o.vocab) && (o.top_p <= 0 || o.top_p >= 1) && o.min_p <= 0;
    const int token = all ? draw_all(s, o, row, &r) : draw_kept(s, o, row, &r);
    if (threadIdx.x == 0) put_token(s, row, token);
}

template <class T> int run_sample(const struct cuda_queue *queue, const struct kernel_call *call)
{
    sampling<T> s = {(const T *)call->in[SAMPLE_LOGITS], (const int32_t *)call->in[SAMPLE_ROWS],
                     (int32_t *)call->out[SAMPLE_TOKEN], (int32_t *)call->out[SAMPLE_NEXT],
                     (struct peak *)call->work};
    s.width = last_dim(call_in(call, SAMPLE_LOGITS));
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

extern "C" int cuda_sample(const struct cuda_queue *queue, const struct kernel_call *call)
{
    return with_type(call_in(call, SAMPLE_LOGITS)->type,
                     [&](auto t) { return run_sample<typename decltype(t)::type>(queue, call); });
}
