/* preference.c - the loss of samples by the log-probabilities of their two rows (tape/preference.h).
 *
 * A few additions for each position: one thread makes them, in the order of rows and positions. */
#include "device/cpu/call.h"
#include "device/cpu/kernels.h"
#include <string.h>

/* Positions of row b before its sequence. */
static int64_t prompt_of(const struct kernel_call *call, int64_t b)
{
    const int32_t *marks = call->in[PREFERENCE_IN_MARKS];
    return call->op->attr.preference.loss == PREFERENCE_ORPO && marks ? marks[b] : 0;
}

static struct preference_rows sum_row(const struct kernel_call *call, int64_t b, int64_t time)
{
    const float *logp = (const float *)call->in[PREFERENCE_IN_LOGP] + b * time;
    const int32_t *targets = (const int32_t *)call->in[PREFERENCE_IN_TARGETS] + b * time;
    int64_t prompt = prompt_of(call, b);
    struct preference_rows row = {0};
    for (int64_t t = 0; t < time; t++) {
        if (targets[t] < 0) continue;
        row.nll -= (double)logp[t], row.targets += 1;
        if (t >= prompt) row.sum += (double)logp[t], row.count += 1;
    }
    row.sum = (double)(float)row.sum;
    return row;
}

/* Weights of a row: `by` for its sequence, `all` for every target. */
static void weigh_row(const struct kernel_call *call, int64_t b, int64_t time, double by, double all)
{
    const int32_t *targets = (const int32_t *)call->in[PREFERENCE_IN_TARGETS] + b * time;
    float *weight = (float *)call->out[PREFERENCE_OUT_WEIGHT] + b * time;
    int64_t prompt = prompt_of(call, b);
    for (int64_t t = 0; t < time; t++) weight[t] = targets[t] < 0 ? 0 : (float)(all + (t >= prompt ? by : 0));
}

void cpu_preference(const struct kernel_call *call)
{
    const struct tensor *logp = call_in(call, PREFERENCE_IN_LOGP);
    const struct preference_rule *rule = &call->op->attr.preference;
    const float *scalars = call->in[PREFERENCE_IN_SCALARS];
    struct preference_rows *rows = call->work;
    double *loss = call->out[PREFERENCE_OUT_LOSS], *stat = call->out[PREFERENCE_OUT_STAT];
    float *sums = call->out[PREFERENCE_OUT_SUMS];
    int64_t count = logp->dim[0], time = logp->dim[1];
    double scale = (double)scalars[SCALAR_SAMPLE_GRAD],
           all = (double)rule->nll * (double)scalars[SCALAR_LOSS_GRAD];
    if (!call->accumulate) loss[0] = loss[1] = 0, memset(stat, 0, PREFERENCE_STATS * sizeof *stat);
    for (int64_t b = 0; b < count; b++) rows[b] = sum_row(call, b, time), sums[b] = (float)rows[b].sum;
    preference_settle(rule, rows, count, call->in[PREFERENCE_IN_REFERENCE], call->in[PREFERENCE_IN_MARKS],
                      loss, stat);
    for (int64_t b = 0; b < count && call->out[PREFERENCE_OUT_WEIGHT]; b++)
        weigh_row(call, b, time, -rows[b].by * scale, b < count / 2 && rows[b].count > 0 ? all : 0);
}

static size_t cpu_preference_workspace(const struct tensor *const *desc, const struct op *, int)
{
    return (size_t)desc[PREFERENCE_IN_LOGP]->dim[0] * sizeof(struct preference_rows);
}

CPU_KERNEL(preference, cpu_preference_workspace);
