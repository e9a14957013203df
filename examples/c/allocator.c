/* allocator.c - a caching allocator with a budget: blocks are reused, and a refusal says who holds the memory.
 *
 *     cc allocator.c $(pkg-config --cflags --libs plimsoll) -o allocator && ./allocator
 */
#include <plimsoll/plimsoll.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    struct plim_error err = {0};
    struct plim_context *context;
    struct plim_allocator *allocator;
    void *weights, *buffer, *block;
    int64_t segments;

    /* The options are PyTorch's. "host" is ordinary memory; "simulated:24GiB" has addresses only, to try options out. */
    struct plim_allocator_options options = {
        .size = sizeof options, .device = "host", .budget = 256 << 20, .conf = "max_split_size_mb:128"};
    if (plim_context_open(NULL, &context, &err) != PLIM_OK ||
        plim_allocator_open(context, &options, &allocator, &err) != PLIM_OK)
        return fprintf(stderr, "%s\n", err.text), 1;

    /* A name for the owner costs nothing and makes reports readable. Without GPU streams, NULL is the stream. */
    if (plim_alloc_for(allocator, 100 << 20, NULL, "weights", &weights, &err) != PLIM_OK) return 1;
    memset(weights, 0, 100 << 20);
    for (int step = 0; step < 1000; step++) { /* the same block each time: one request to the system */
        if (plim_alloc_for(allocator, 30 << 20, NULL, "activations", &buffer, &err) != PLIM_OK) return 1;
        plim_dealloc(allocator, buffer, &err);
        plim_allocator_batch(allocator); /* between two batches it may clean up */
    }
    plim_allocator_stat(allocator, "segment.all.allocated", &segments, &err);
    printf("1001 blocks from %lld segments of the system\n", (long long)segments);

    /* Beyond the budget: an error value. Nothing aborts, and the text says what to do. */
    if (plim_alloc(allocator, 500 << 20, NULL, &block, &err) == PLIM_NO_MEMORY) printf("refused: %s\n", err.text);

    uint64_t freed;
    plim_allocator_clear(allocator, 1, &freed, &err);
    printf("%.0f MB given back\n", freed / 1e6);
    plim_dealloc(allocator, weights, &err);
    plim_allocator_close(allocator);
    plim_context_close(context);
    return 0;
}
