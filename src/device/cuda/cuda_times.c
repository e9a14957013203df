/* cuda_times.c - see cuda_times.h. */
#include "device/cuda/cuda_times.h"

#include <stdlib.h>

struct cuda_times {
    cudaStream_t compute;
    cudaEvent_t zero;  /* recorded at `began` */
    cudaEvent_t *ends; /* two for each op: its beginning, its end */
    struct mark {
        int begin, end; /* events; -1: none */
    } * marks;
    int ops, op;
    int last; /* event at which the compute stream is free; -1: it may wait for something */
    double began;
};

static cudaError_t create(struct cuda_times *t)
{
    cudaError_t code = cudaEventCreate(&t->zero);
    for (int i = 0; i < 2 * t->ops && code == cudaSuccess; i++) code = cudaEventCreate(&t->ends[i]);
    for (int i = 0; i < t->ops; i++) t->marks[i] = (struct mark){-1, -1};
    if (code == cudaSuccess) code = cudaStreamSynchronize(t->compute);
    if (code == cudaSuccess) code = cudaEventRecord(t->zero, t->compute);
    if (code == cudaSuccess) code = cudaEventSynchronize(t->zero);
    t->began = clock_seconds();
    return code;
}

int cuda_times_open(int ops, cudaStream_t compute, struct cuda_times **out)
{
    size_t n = (size_t)ops + 1;
    struct cuda_times *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) return (int)cudaErrorMemoryAllocation;
    *t = (struct cuda_times){.compute = compute, .ops = ops, .op = -1, .last = -1};
    t->ends = calloc(2 * n, sizeof *t->ends), t->marks = malloc(n * sizeof *t->marks);
    cudaError_t code = t->ends && t->marks ? create(t) : cudaErrorMemoryAllocation;
    if (code != cudaSuccess) cuda_times_close(t), *out = NULL;
    return (int)code;
}

void cuda_times_close(struct cuda_times *t)
{
    if (!t) return;
    for (int i = 0; i < 2 * t->ops && t->ends; i++)
        if (t->ends[i]) cudaEventDestroy(t->ends[i]);
    if (t->zero) cudaEventDestroy(t->zero);
    free(t->ends);
    free(t->marks);
    free(t);
}

void cuda_times_name(struct cuda_times *t, int op)
{
    if (!t) return;
    if (op < 0) t->last = -1;
    t->op = op;
}

void cuda_times_waited(struct cuda_times *t)
{
    if (t) t->last = -1;
}

/* An event of a program is a node of its graph. */
static int record(struct cuda_times *t, int event, cudaStream_t stream, bool capturing)
{
    return (int)cudaEventRecordWithFlags(t->ends[event], stream,
                                         capturing ? cudaEventRecordExternal : cudaEventRecordDefault);
}

int cuda_times_start(struct cuda_times *t, cudaStream_t stream, bool capturing)
{
    if (!t || t->op < 0) return 0;
    struct mark *mark = &t->marks[t->op];
    bool follows = stream == t->compute && t->last >= 0;
    mark->begin = follows ? t->last : 2 * t->op;
    return follows ? 0 : record(t, mark->begin, stream, capturing);
}

int cuda_times_end(struct cuda_times *t, cudaStream_t stream, bool capturing)
{
    if (!t || t->op < 0) return 0;
    struct mark *mark = &t->marks[t->op];
    mark->end = 2 * t->op + 1;
    if (stream == t->compute) t->last = mark->end;
    return record(t, mark->end, stream, capturing);
}

/* Seconds since the beginning; below 0: it was never recorded. */
static double moment(const struct cuda_times *t, int event)
{
    float ms = 0;
    cudaError_t code = cudaEventElapsedTime(&ms, t->zero, t->ends[event]);
    if (code == cudaSuccess) return 1e-3 * (double)ms;
    cudaGetLastError();
    return -1;
}

void cuda_times_read(struct cuda_times *t, struct clock_span *spans)
{
    for (int i = 0; t && i < t->ops; i++) {
        const struct mark *mark = &t->marks[i];
        if (mark->begin < 0 || mark->end < 0) continue;
        double begin = moment(t, mark->begin), end = moment(t, mark->end);
        if (begin >= 0 && end >= begin) spans[i] = (struct clock_span){t->began + begin, t->began + end};
    }
}
