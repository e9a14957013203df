/* preference.cu - the loss of samples by the log-probabilities of their two rows (tape/preference.h).
 *
 * A block adds up a row, one thread settles the samples, which are few, and every position takes its row's weight. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32 };

struct preference {
    preference_rule rule;
    const float *logp;      /* [B,T] */
    const int32_t *targets; /* [B,T] */
    const float *reference; /* [B] or NULL */
    const int32_t *marks;   /* [B] or NULL */
    const float *scalars;
    double *loss, *stat;
    float *sums, *weight;  /* [B]; [B,T] or NULL */
    preference_rows *rows; /* [B] */
    int64_t count, time;
    bool accumulate;
};

/* Positions of row b before its sequence. */
ON_GPU int64_t prompt_of(const preference &p, int64_t b)
{
    return p.rule.loss == PREFERENCE_ORPO && p.marks ? p.marks[b] : 0;
}

__global__ void __launch_bounds__(THREADS) sum_rows(preference p)
{
    __shared__ double slots[4][WARPS];
    int64_t b = blockIdx.x, prompt = prompt_of(p, b);
    double sum = 0, count = 0, nll = 0, targets = 0;
    for (int64_t t = threadIdx.x; t < p.time; t += THREADS) {
        if (p.targets[b * p.time + t] < 0) continue;
        double logp = (double)p.logp[b * p.time + t];
        nll -= logp, targets += 1;
        if (t >= prompt) sum += logp, count += 1;
    }
    sum = block_sum<THREADS>(sum, slots[0]);
    count = block_sum<THREADS>(count, slots[1]);
    nll = block_sum<THREADS>(nll, slots[2]);
    targets = block_sum<THREADS>(targets, slots[3]);
    if (threadIdx.x != 0) return;
    p.sums[b] = (float)sum;
    p.rows[b] = {(double)p.sums[b], count, nll, targets, 0};
}

__global__ void settle(preference p)
{
    if (!p.accumulate) {
        p.loss[0] = p.loss[1] = 0;
        for (int i = 0; i < PREFERENCE_STATS; i++) p.stat[i] = 0;
    }
    preference_settle(&p.rule, p.rows, p.count, p.reference, p.marks, p.loss, p.stat);
}

__global__ void __launch_bounds__(THREADS) weigh(preference p)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t;
    if (i >= p.count * p.time) return;
    int64_t b = divide(i, p.time, &t);
    double by = t >= prompt_of(p, b) ? -p.rows[b].by * (double)p.scalars[SCALAR_SAMPLE_GRAD] : 0;
    bool learns = b < p.count / 2 && p.rows[b].count > 0;
    double all = learns ? (double)p.rule.nll * (double)p.scalars[SCALAR_LOSS_GRAD] : 0;
    p.weight[i] = p.targets[i] < 0 ? 0.0f : (float)(all + by);
}

} // namespace

int cuda_preference(const struct cuda_queue *queue, const struct kernel_call *call)
{
    const struct tensor *logp = call_in(call, PREFERENCE_IN_LOGP);
    preference p = {call->op->attr.preference,
                    (const float *)call->in[PREFERENCE_IN_LOGP],
                    (const int32_t *)call->in[PREFERENCE_IN_TARGETS],
                    (const float *)call->in[PREFERENCE_IN_REFERENCE],
                    (const int32_t *)call->in[PREFERENCE_IN_MARKS],
                    (const float *)call->in[PREFERENCE_IN_SCALARS],
                    (double *)call->out[PREFERENCE_OUT_LOSS],
                    (double *)call->out[PREFERENCE_OUT_STAT],
                    (float *)call->out[PREFERENCE_OUT_SUMS],
                    (float *)call->out[PREFERENCE_OUT_WEIGHT],
                    (preference_rows *)call->work,
                    logp->dim[0],
                    logp->dim[1],
                    (bool)call->accumulate};
    int failed = start(queue, sum_rows, (unsigned)p.count, THREADS, 0, p);
    if (!failed) failed = start(queue, settle, 1u, 1u, 0, p);
    if (failed || !p.weight) return failed;
    return start(queue, weigh, (unsigned)parts_of(p.count * p.time, THREADS), THREADS, 0, p);
}
