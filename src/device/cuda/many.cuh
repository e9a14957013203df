/* many.cuh - tensors of several calls in one launch: whose block is which, and optimizer rules over all of them.
 *
 *     struct update_parts many = {};
 *     many.u = u[0], many.blocks = many_none();
 *     for (...) update_add(&many, u[i]);                       // update_is_part, update_shares with the first
 *     run_updates<rule, P, M, G, S, A>(queue, many);           // the rule of update.cuh; A is {u}
 *
 * What differs between tensors travels in the launch's arguments, where it is read as cheaply as the arguments of a
 * single call. A block finds its tensor by halving and does there what it would do if the tensor were alone. */
#pragma once

#include "device/cuda/update.cuh"
extern "C" {
#include "tape/group.h"
}

/* --- blocks ---------------------------------------------------------------------------------------------- */

enum { MANY = TAPE_GROUP_MOST, LAUNCH_BYTES = 4096 }; /* more arguments than that, older drivers refuse */

/* Whose block is which: those of tensor t begin at begin[t]. Behind the last tensor stands what no block reaches. */
struct many_blocks {
    uint32_t begin[MANY], all;
    int count;
};

static inline struct many_blocks many_none(void)
{
    struct many_blocks m;
    for (int i = 0; i < MANY; i++) m.begin[i] = UINT32_MAX;
    m.all = 0, m.count = 0;
    return m;
}

static inline void many_add(struct many_blocks *m, unsigned blocks)
{
    m->begin[m->count++] = m->all;
    m->all += blocks;
}

/* The tensor of a block: the last one that begins at or before it, so none without blocks. */
ON_GPU int many_find(const struct many_blocks &m, uint32_t block)
{
    static_assert((MANY & (MANY - 1)) == 0, "halves");
    int t = 0;
#pragma unroll
    for (int half = MANY / 2; half > 0; half /= 2)
        if (block >= m.begin[t + half]) t += half;
    return t;
}

/* --- optimizers -------------------------------------------------------------------------------------------- */

/* Per-tensor fields of a launch; each tensor is updated in place. */
struct update_part {
    void *p, *master, *m, *v;
    const void *g;
    uint32_t count, stream, first;
    float decay;
};

struct update_parts {
    struct update u; /* what they share */
    struct update_part part[MANY];
    struct many_blocks blocks;
};
static_assert(sizeof(struct update_parts) <= LAUNCH_BYTES, "the arguments of one launch");

/* Can it be one of many? Then its inputs are its outputs, too. */
static inline bool update_is_part(const struct update &u)
{
    bool in_place = u.p_in == u.p && u.master_in == u.master && u.m_in == u.m && u.v_in == u.v;
    return in_place && update_aligned(u) && u.count <= UINT32_MAX;
}

/* Do two calls of the same types share what tensors of a launch must? */
static inline bool update_shares(const struct update &a, const struct update &b)
{
    return a.scalars == b.scalars && a.coef == b.coef && a.beta1 == b.beta1 && a.beta2 == b.beta2 &&
           a.eps == b.eps && a.nesterov == b.nesterov && a.stochastic == b.stochastic;
}

/* Adds an update of the same kind as the first. Skips empty tensors. */
static inline void update_add(struct update_parts *many, const struct update &u)
{
    if (u.count == 0) return;
    many->part[many->blocks.count] = {u.p,      u.master, u.m,    u.v, u.g, (uint32_t)u.count,
                                      u.stream, u.first,  u.decay};
    many_add(&many->blocks, update_blocks(u.count, UPDATE_LANES));
}

template <template <class, int, class, class> class F, class P, int M, class G, class S, class A>
__global__ void __launch_bounds__(UPDATE_THREADS, updates_at_once<P, M, G, S>)
    update_many(const __grid_constant__ struct update_parts many)
{
    int t = many_find(many.blocks, blockIdx.x);
    const struct update_part &part = many.part[t];
    A a = {many.u};
    a.u.p = part.p, a.u.p_in = part.p;
    a.u.master = part.master, a.u.master_in = part.master;
    a.u.m = part.m, a.u.m_in = part.m;
    a.u.v = part.v, a.u.v_in = part.v;
    a.u.g = part.g, a.u.count = part.count;
    a.u.stream = part.stream, a.u.first = part.first, a.u.decay = part.decay;
    update_block<F, P, M, G, S, UPDATE_LANES>(a, blockIdx.x - many.blocks.begin[t]);
}

template <template <class, int, class, class> class F, class P, int M, class G, class S, class A>
static inline int run_updates(const struct cuda_queue *queue, const struct update_parts &many)
{
    if (many.blocks.all == 0) return 0;
    update_many<F, P, M, G, S, A><<<many.blocks.all, UPDATE_THREADS, 0, stream_of(queue)>>>(many);
    return launched();
}
