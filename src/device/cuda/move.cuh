/* move.cuh - kernels that only move words of 16, 4 or 2 bytes.
 *
 *     struct places { ... template <class W> __device__ const W *find(int64_t i, W **to) const; };
 *     return run_move(queue, places, count, bytes of a word);
 */
#pragma once

#include "device/cuda/overlap.cuh"

enum { MOVE_THREADS = 256 };

/* Copies `count` words from place from(i) to place to(i), each given by `M`. */
template <class W, class M> __global__ void __launch_bounds__(MOVE_THREADS) move(M places, int64_t count)
{
    constexpr int U = 4;
    W words[U];
    W *to[U];
    int64_t first = (int64_t)blockIdx.x * (MOVE_THREADS * U) + threadIdx.x;
    next_may_begin();
    await_previous();
#pragma unroll
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * MOVE_THREADS;
        if (i < count) words[u] = *places.template find<W>(i, &to[u]);
    }
#pragma unroll
    for (int u = 0; u < U; u++)
        if (first + u * MOVE_THREADS < count) *to[u] = words[u];
}

template <class W, class M>
static inline int move_words(const struct cuda_queue *queue, const M &places, int64_t count)
{
    if (count == 0) return 0;
    return launch(queue, move<W, M>, parts_of(count, MOVE_THREADS * 4), MOVE_THREADS, 0, places, count);
}

template <class M>
static inline int run_move(const struct cuda_queue *queue, const M &places, int64_t count, int64_t word)
{
    if (word == 16) return move_words<uint4>(queue, places, count);
    return word == 4 ? move_words<unsigned>(queue, places, count)
                     : move_words<unsigned short>(queue, places, count);
}
