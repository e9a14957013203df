/* quantised_product.cu - products of weights in quantised blocks: x is rounded, and each block type's own kernels multiply
 * (quantised_product.cuh). */
#include "device/cuda/overlap.cuh"
#include "device/cuda/quantised_items.cuh"

namespace
{

/* x rounded to scratch: a block of threads has a row, or a slice of one that is not normed. */
enum { SLICE = ROW_THREADS * 8 };

template <class T> __global__ void __launch_bounds__(THREADS) round_rows(const problem p, int slices)
{
    __shared__ float partial[ROW_WARPS];
    __shared__ int moved;
    const int r = blockIdx.x / slices, begin = blockIdx.x % slices * SLICE,
              columns = slices > 1 ? min((int)SLICE, (int)p.q.k - begin) : (int)p.q.k;
    next_may_begin();
    await_previous();
    int place = r;
    if (p.q.ends) {
        if (threadIdx.x == 0) {
            int e = 0;
            while (e + 1 < p.q.experts && r >= p.q.ends[e]) e++;
            const int first = e ? p.q.ends[e - 1] : 0;
            moved = expert_begin(first, e) - first;
        }
        __syncthreads();
        place += moved;
    }
    make_row<T>(p.q, {r, begin, columns / 8}, p.x, place, partial, true);
}

/* Parts of one block type. */
static int multiply_parts(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    switch (q->part[0].type) {
    case BLOCK_Q8_0:
        return cuda_q8_0_multiply(queue, q);
    case BLOCK_Q4_0:
        return cuda_q4_0_multiply(queue, q);
    case BLOCK_Q4_K:
        return cuda_q4_k_multiply(queue, q);
    case BLOCK_Q5_K:
        return cuda_q5_k_multiply(queue, q);
    case BLOCK_Q6_K:
        return cuda_q6_k_multiply(queue, q);
    default:
        return (int)cudaErrorInvalidValue;
    }
}

} // namespace

/* A long row leaves too little shared memory for weights. */
extern "C" bool cuda_quantised_gates(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    const struct cuda_q_part *gate = &q->part[0], *up = &q->part[1];
    return q->parts == 2 && !q->ends && gate->type == up->type && gate->lines == gate->m &&
           up->lines == gate->m && up->m == gate->m && !gate->bias && !gate->add && !up->bias && !up->add &&
           q->k <= 16384 && cuda_q_in_shared(queue->warpgroups, q->type, q->rows, q->k);
}

extern "C" int cuda_quantised_multiply(const struct cuda_queue *queue, const struct cuda_q_product *q)
{
    if (q->rows == 0) return 0;
    struct cuda_queue here = *queue;
    problem p = problem_of(queue, q);
    const int slices = q->source == FEW_NORM ? 1 : (int)parts_of(q->k, SLICE);
    int code = p.rounds ? 0 : with_type(q->type, [&](auto t) {
        return launch(queue, round_rows<typename decltype(t)::type>, q->rows * slices, THREADS, 0, p, slices);
    });
    /* Kernels after the first launch wait for it themselves, and read only weights before. */
    if (!p.rounds) here.follows = queue->warpgroups;
    bool done[CUDA_Q_PARTS] = {};
    for (int i = 0; i < q->parts && !code; i++) {
        if (done[i]) continue;
        p.q.parts = 0;
        for (int k = i; k < q->parts; k++)
            if (q->part[k].type == q->part[i].type) p.q.part[p.q.parts++] = q->part[k], done[k] = true;
        code = multiply_parts(&here, &p.q);
        here.follows = queue->warpgroups;
    }
    return code;
}
