/* block.h - kernels on the CPU: launching them, and what the threads of a block do together.
 *
 * A block's threads are fibers of one thread of the CPU, and blocks run one after another. A fiber runs until it must wait: at
 * a barrier, or at an instruction that a warp's lanes do together, which the last lane to come computes for all of them. A
 * kernel whose threads wait for ever, whose lanes come to different instructions together, or that touches shared memory
 * in a way that depends on who is first, ends the program with a report that names the lines.
 *
 * Shared memory holds 0xff, not-a-number in every floating type, when a block begins. */
#pragma once

#include <tuple>
#include <utility>

namespace cuda_cpu
{

enum { WARP = 32, POOL_BYTES = 232448 };

extern char pool[POOL_BYTES]; /* dynamic shared memory */

/* Where a thread waits, or touches memory. */
struct site {
    const char *what, *file;
    int line;
};

/* --- threads --------------------------------------------------------------------------------------------- */

/* What follows `arg` is a kernel's arguments; `call` runs one thread. */
struct grid {
    dim3 blocks, threads;
    size_t shared;
    const void *kernel;
    void (*call)(const void *arg);
};

void run_grid(const struct grid *grid, const void *arg);
/* False, and an error for cudaGetLastError: a card would refuse it. */
bool grid_is_good(const struct grid *grid);

/* A variable in shared memory; every thread that comes by says so. */
void shared_variable(void *at, size_t bytes, const char *name);
template <class T> static inline void shared(T *at, size_t bytes, const char *name)
{
    shared_variable((void *)at, bytes, name);
}

/* The addresses of shared memory: 32 bits, as far from the pool. */
static inline uint32_t address_of(const void *at) { return (uint32_t)((const char *)at - pool); }
static inline char *at_address(uint32_t address) { return pool + (int32_t)address; }

/* Waits for every lane of `mask` that has not ended; then `finish` has the arguments of all of them, and writes results there.
 * `whole`: lanes that have ended are an error. */
void together(unsigned mask, bool whole, void (*finish)(void *const args[WARP], unsigned lanes), void *args,
              const struct site &where);
/* Waits for so many threads of the block; 0: all that have not ended. Returns how many came with `vote`. */
int barrier(int number, int threads, bool vote, const struct site &where);
/* Is counted by that barrier, and does not wait. Which threads come to a numbered barrier, and from where, is theirs to say. */
void arrive(int number, int threads, const site &where);
/* Accesses of the lanes before it come before those after it. */
void order_warp(unsigned mask, const struct site &where);
[[noreturn]] void trap(const struct site &where);

/* --- launching ------------------------------------------------------------------------------------------- */

template <class... P> struct launched_grid {
    struct grid grid;
    void (*kernel)(P...);
    std::tuple<std::remove_const_t<P>...> args;

    static void call(const void *arg)
    {
        const launched_grid *l = (const launched_grid *)arg;
        std::apply(l->kernel, l->args);
    }
    static void run(const void *arg) { run_grid(&((const launched_grid *)arg)->grid, arg); }
};

template <class... P> struct launcher {
    void (*kernel)(P...);
    struct grid grid;
    template <class... A> void operator()(const A &...args) const
    {
        launched_grid<P...> l = {grid, kernel, {P(args)...}};
        l.grid.call = launched_grid<P...>::call, l.grid.kernel = (const void *)kernel;
        if (grid_is_good(&l.grid)) cuda_cpu_queue(launched_grid<P...>::run, &l, sizeof l);
    }
};

template <class... P>
static inline launcher<P...> launch(void (*kernel)(P...), dim3 blocks, dim3 threads, size_t shared = 0,
                                    cudaStream_t = nullptr)
{
    return {kernel, {blocks, threads, shared, nullptr, nullptr}};
}

} // namespace cuda_cpu

struct cudaLaunchAttribute {
    int id;
    union {
        int programmaticStreamSerializationAllowed;
    } val;
};
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A... args)
{
    cuda_cpu::launch(kernel, config->gridDim, config->blockDim, config->dynamicSmemBytes)(args...);
    return cudaSuccess;
}

cudaError_t cuda_cpu_allow_shared(const void *kernel, int bytes);
template <class K> static inline cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute, int value)
{
    return cuda_cpu_allow_shared((const void *)kernel, value);
}

/* Whether code has warpgroups is told by a kernel that has shared memory only there. */
template <class K> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *of, K)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    of->sharedSizeBytes = 16;
#else
    of->sharedSizeBytes = 0;
#endif
    return cudaSuccess;
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* --- what threads do together ------------------------------------------------------------------------------ */

#define HERE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define HERE(name)                                                                                           \
    cuda_cpu::site { name, file, line }

static inline void __syncthreads(HERE_PARAMETERS) { cuda_cpu::barrier(0, 0, false, HERE("__syncthreads")); }
static inline int __syncthreads_count(bool vote, HERE_PARAMETERS)
{
    return cuda_cpu::barrier(0, 0, vote, HERE("__syncthreads_count"));
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, HERE_PARAMETERS)
{
    cuda_cpu::order_warp(mask, HERE("__syncwarp"));
}

namespace cuda_cpu
{

template <class T> struct exchanged {
    T mine, theirs;
    int from; /* a lane */
};

/* These touch the stacks of other threads, which kernels may not. */
#define CUDA_CPU_UNCHECKED __attribute__((no_sanitize_thread))

template <class T> CUDA_CPU_UNCHECKED static void exchange(void *const args[WARP], unsigned lanes)
{
    for (int i = 0; i < WARP; i++) {
        if (!(lanes >> i & 1)) continue;
        exchanged<T> *e = (exchanged<T> *)args[i];
        if (lanes >> e->from & 1)
            e->theirs = ((exchanged<T> *)args[e->from])->mine;
        else
            memset(&e->theirs, 0xff, sizeof(T)); /* of a lane that is not there: anything */
    }
}

template <class T> static inline T from_lane(unsigned mask, T v, int from, const site &where)
{
    exchanged<T> e = {v, v, from};
    together(mask, false, exchange<T>, &e, where);
    return e.theirs;
}

/* A value of all lanes, of which each gets what they make together. */
template <class T, class R> struct gathered {
    T mine;
    R result;
};

template <class T, class R, R (*make)(R, T, int)>
CUDA_CPU_UNCHECKED static void gather(void *const args[WARP], unsigned lanes)
{
    R all = 0;
    bool first = true;
    for (int i = 0; i < WARP; i++)
        if (lanes >> i & 1) {
            T mine = ((gathered<T, R> *)args[i])->mine;
            all = first ? make(R(mine), mine, i) : make(all, mine, i);
            first = false;
        }
    for (int i = 0; i < WARP; i++)
        if (lanes >> i & 1) ((gathered<T, R> *)args[i])->result = all;
}

template <class T, class R, R (*make)(R, T, int)>
static inline R gather_lanes(unsigned mask, T mine, const site &where)
{
    gathered<T, R> g = {mine, 0};
    together(mask, false, gather<T, R, make>, &g, where);
    return g.result;
}

template <class T> static inline T least(T a, T b, int) { return b < a ? b : a; }
template <class T> static inline T most(T a, T b, int) { return a < b ? b : a; }
void ballot(void *const args[WARP], unsigned lanes);
void match(void *const args[WARP], unsigned lanes);

} // namespace cuda_cpu

static inline unsigned cuda_cpu_lane(void) { return threadIdx.x % cuda_cpu::WARP; }

template <class T> static inline T __shfl_sync(unsigned mask, T v, int from, HERE_PARAMETERS)
{
    return cuda_cpu::from_lane(mask, v, from & 31, HERE("__shfl_sync"));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int by, HERE_PARAMETERS)
{
    return cuda_cpu::from_lane(mask, v, (int)(cuda_cpu_lane() ^ (unsigned)by), HERE("__shfl_xor_sync"));
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, HERE_PARAMETERS)
{
    unsigned lane = cuda_cpu_lane();
    return cuda_cpu::from_lane(mask, v, (int)(lane < by ? lane : lane - by), HERE("__shfl_up_sync"));
}
template <class T> static inline T __reduce_min_sync(unsigned mask, T v, HERE_PARAMETERS)
{
    return cuda_cpu::gather_lanes<T, T, cuda_cpu::least<T>>(mask, v, HERE("__reduce_min_sync"));
}
template <class T> static inline T __reduce_max_sync(unsigned mask, T v, HERE_PARAMETERS)
{
    return cuda_cpu::gather_lanes<T, T, cuda_cpu::most<T>>(mask, v, HERE("__reduce_max_sync"));
}
static inline unsigned __ballot_sync(unsigned mask, bool v, HERE_PARAMETERS)
{
    cuda_cpu::gathered<unsigned, unsigned> g = {v, 0};
    cuda_cpu::together(mask, false, cuda_cpu::ballot, &g, HERE("__ballot_sync"));
    return g.result;
}
static inline unsigned __match_any_sync(unsigned mask, unsigned v, HERE_PARAMETERS)
{
    cuda_cpu::gathered<unsigned, unsigned> g = {v, 0};
    cuda_cpu::together(mask, false, cuda_cpu::match, &g, HERE("__match_any_sync"));
    return g.result;
}

int atomicAdd(int *at, int by);
int atomicMin(int *at, int by);
static inline void __threadfence(void) {}
[[noreturn]] static inline void __trap(HERE_PARAMETERS) { cuda_cpu::trap(HERE("__trap")); }
static inline size_t __cvta_generic_to_shared(const void *at) { return cuda_cpu::address_of(at); }
