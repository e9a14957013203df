/* plimsoll/allocator.h - a caching allocator with a budget, for any program.
 *
 *     struct plim_allocator_options options = {.size = sizeof options, .device = "cuda:0", .budget = 20ull << 30,
 *                                              .conf = "expandable_segments:True"};
 *     plim_allocator_open(context, &options, &allocator, &err);
 *     void *p;
 *     if (plim_alloc(allocator, 1 << 20, stream, &p, &err) != PLIM_OK) puts(err.text);   // who holds what, what to do
 *     plim_dealloc(allocator, p, &err);
 *     plim_allocator_close(allocator);
 *
 * Sizes, pools, splitting, garbage collection and option strings are those of PyTorch's CUDA allocator. Thread-safe.
 */
#ifndef PLIMSOLL_ALLOCATOR_H
#define PLIMSOLL_ALLOCATOR_H

#include <plimsoll/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct plim_allocator_options {
    size_t size;
    const char *device;       /* "host", "cuda:N", or "simulated:24GiB": addresses without memory; NULL: host */
    /* PyTorch's option string; NULL: PLIMSOLL_ALLOC_CONF, PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF of the context's
     * environment. PLIM_BAD_INPUT: a malformed one, in PyTorch's words. */
    const char *conf;
    uint64_t budget;          /* bytes that may be reserved, overhead included; 0: the device's memory */
    uint64_t overhead_bytes;  /* of the process outside the allocator: the driver's context, for example */
    int64_t record;           /* events to keep for snapshots, 64 bytes each; 0: none */
    int64_t cleanup_every;    /* plim_allocator_batch calls between clean-ups; 0: never */
};
PLIM_API enum plim_status plim_allocator_open(struct plim_context *context,
                                              const struct plim_allocator_options *options,
                                              struct plim_allocator **out, struct plim_error *err);
/* Gives everything back, also blocks that are still in use. */
PLIM_API void plim_allocator_close(struct plim_allocator *allocator);

/* PLIM_NO_MEMORY: refused; err says who holds what, how much is fragmentation, and what to do. stream is the driver's handle,
 * or any number that names an order of execution. */
PLIM_API enum plim_status plim_alloc(struct plim_allocator *allocator, size_t bytes, void *stream, void **out,
                                     struct plim_error *err);
/* plim_alloc with a name for the block's owner, kept by pointer, for reports. */
PLIM_API enum plim_status plim_alloc_for(struct plim_allocator *allocator, size_t bytes, void *stream,
                                         const char *owner, void **out, struct plim_error *err);
/* Returns the block to the cache. NULL is ignored. PLIM_BAD_INPUT: no block begins there, or it was freed before. */
PLIM_API enum plim_status plim_dealloc(struct plim_allocator *allocator, void *block, struct plim_error *err);
/* The block is also used on another stream: it is reused only after that stream has passed this point. */
PLIM_API enum plim_status plim_alloc_record_stream(struct plim_allocator *allocator, void *block,
                                                   void *stream, struct plim_error *err);

/* Gives cached memory back, as torch.cuda.empty_cache() does. */
PLIM_API enum plim_status plim_allocator_clear(struct plim_allocator *allocator, int deep, uint64_t *freed,
                                               struct plim_error *err);
/* A budget below what is reserved takes effect as blocks are freed. 0: the device's memory. */
PLIM_API enum plim_status plim_allocator_set_budget(struct plim_allocator *allocator, uint64_t budget,
                                                    struct plim_error *err);
/* Share of the device's memory, 0 to 1; counts everything, the overhead as well. */
PLIM_API enum plim_status plim_allocator_set_fraction(struct plim_allocator *allocator, double fraction,
                                                      struct plim_error *err);
/* Tells the allocator that a batch is done. It cleans up when more than 30 % of reserved memory is fragmented. */
PLIM_API void plim_allocator_batch(struct plim_allocator *allocator);

/* Figures under the names of torch.cuda.memory_stats(), as a JSON object, with three fragmentation figures. */
PLIM_API char *plim_allocator_stats(struct plim_allocator *allocator);
PLIM_API void plim_allocator_reset_peaks(struct plim_allocator *allocator);
/* One figure by its name, for example "reserved_bytes.all.peak". PLIM_NOT_FOUND: no such figure. */
PLIM_API enum plim_status plim_allocator_stat(struct plim_allocator *allocator, const char *name,
                                              int64_t *value, struct plim_error *err);
/* Live blocks by owner as a JSON array of {"owner", "bytes", "blocks"}, the largest first, for plim_free. */
PLIM_API char *plim_allocator_holders(struct plim_allocator *allocator);
/* Several lines about the last refusal: the request, who holds what, fragmentation, what to do; for plim_free. NULL: nothing was
 * refused so far. */
PLIM_API char *plim_allocator_explain(struct plim_allocator *allocator);
/* A file for PyTorch's memory_viz (.pickle) or the same as JSON (.json). */
PLIM_API enum plim_status plim_allocator_snapshot(struct plim_allocator *allocator, const char *path,
                                                  struct plim_error *err);

#ifdef __cplusplus
}
#endif
#endif
