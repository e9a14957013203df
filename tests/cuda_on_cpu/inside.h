/* inside.h - what the files that run kernels on the CPU ask of each other: block.cpp, memory.cpp. */
#pragma once

#include "block.h"

namespace cuda_cpu
{

/* --- block.cpp --------------------------------------------------------------------------------------------- */

int current_thread(void); /* in its block */
/* On the stack of the current thread. */
bool is_stack(const void *at);
/* Ends the program: `what`, the kernel, and where threads wait. */
[[noreturn]] void stop(const char *what);
[[noreturn]] void stop_at(const char *what, const site &where);
/* The current thread goes on when others have had their turn; say_moved: something changed that one may wait for. */
void wait_for_others(const site &where);
void say_moved(void);

/* --- instructions.cpp -------------------------------------------------------------------------------------- */

/* Products of warpgroups that a thread which ends has not waited for are an error. */
void end_products(int thread);

/* --- memory.cpp -------------------------------------------------------------------------------------------- */

/* Shared memory of a block: its variables, its copies under way, and who touched it. */
void begin_memory(int threads, size_t dynamic);
void end_memory(void);
void end_copies(int thread);
/* Accesses before come before those after: of the lanes of a thread's warp, of all warps in a mask. */
void order_lanes(int thread);
void order_warps(unsigned warps);
/* What a warp knows: a barrier keeps it of those who arrive, for those who wait. Of the arriving thread's warp that is what lanes did before
 * their last __syncwarp or barrier. */
struct knowledge {
    uint32_t clock[32];
};
void tell(struct knowledge *to, int thread);
void learn(const struct knowledge *from, int thread);
/* An access of the current thread that the compiler did not announce. */
void touch(const void *at, size_t bytes, bool writes);
void say_kernel(const void *kernel);

} // namespace cuda_cpu
