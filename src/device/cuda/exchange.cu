/* exchange.cu - parts of all ranks added in the order of ranks: the sums of comm/comm.c, bit for bit. */
#include "device/cuda/vec.cuh"

namespace
{

enum { THREADS = 256 };

/* f32 and narrower: added in fp32, what is there last, and rounded once. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    add_parts(const T *parts, int ranks, int64_t count, T *out, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        float sum = number(parts + i);
        for (int r = 1; r < ranks; r++) sum += number(parts + r * count + i);
        if (add) sum += number(out + i);
        put_number(out + i, sum);
    }
}

__global__ void __launch_bounds__(THREADS)
    add_doubles(const double *parts, int ranks, int64_t count, double *out, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        double sum = parts[i];
        for (int r = 1; r < ranks; r++) sum += parts[r * count + i];
        out[i] = add ? out[i] + sum : sum;
    }
}

} // namespace

int cuda_add_parts(const struct cuda_queue *queue, const void *parts, int ranks, int64_t count,
                   enum dtype type, void *out, bool add)
{
    if (count == 0) return 0;
    unsigned blocks = (unsigned)fewest(parts_of(count, THREADS), 16 * (int64_t)queue->sms);
    if (type == DT_F64) {
        return start(queue, add_doubles, blocks, THREADS, 0, (const double *)parts, ranks, count,
                     (double *)out, add);
    }
    return with_type(type, [&](auto t) {
        using T = typename decltype(t)::type;
        return start(queue, add_parts<T>, blocks, THREADS, 0, (const T *)parts, ranks, count, (T *)out, add);
    });
}
