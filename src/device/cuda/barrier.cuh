/* barrier.cuh - barriers in shared memory that count arrivals and bytes, copies of whole ranges that arrive at them, and turns of groups of
 * threads (9.0 and later). */
#pragma once

#include "device/cuda/kernels.h"

#include <stdint.h>

ON_GPU void barrier_init(uint32_t at, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

/* Behind barrier_init, for copies to see it. */
ON_GPU void barrier_publish(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

ON_GPU void barrier_expect(uint32_t at, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

ON_GPU void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

ON_GPU void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

/* `bytes` (a multiple of 16, as addresses are) to shared memory; one thread begins them for all. */
ON_GPU void barrier_copy(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Waits until the threads that have a turn before this one give it: together they are `threads`. number: 1 to 15; __syncthreads is 0. */
template <int threads> ON_GPU void turn_wait(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

template <int threads> ON_GPU void turn_give(int number)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(threads) : "memory");
}
