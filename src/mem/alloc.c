/* alloc.c - a 16-byte header before each block says whose it is.
 *
 * Invariant: for every heap, the sizes of its live blocks sum to `current`, and by class to by_class. The
 * ledger is asked before memory is taken and told after it was given back, so that it is never below the
 * truth.
 */
#include "mem/alloc.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct header {
    struct heap *heap;
    uint64_t size_class; /* size << 4 | class */
};

_Static_assert(sizeof(struct header) == 16, "blocks stay aligned to 16 bytes");
_Static_assert(LEDGER_CLASSES_MAX == 16, "a class takes four bits");

#define LARGEST ((size_t)1 << 59)

static struct header *header_of(void *block) { return (struct header *)block - 1; }

static size_t header_size(const struct header *h) { return (size_t)(h->size_class >> 4); }

static int header_class(const struct header *h) { return (int)(h->size_class & 15); }

static uint64_t header_pack(size_t bytes, int cls) { return (uint64_t)bytes << 4 | (uint64_t)(cls & 15); }

void heap_init(struct heap *heap, struct ledger *ledger, struct fault *fault)
{
    memset(heap, 0, sizeof *heap);
    heap->ledger = ledger;
    heap->fault = fault;
}

uint64_t heap_current(const struct heap *heap) { return atomic_load(&heap->current); }

uint64_t heap_peak(const struct heap *heap) { return atomic_load(&heap->peak); }

uint64_t heap_blocks(const struct heap *heap) { return atomic_load(&heap->blocks); }

uint64_t heap_class(const struct heap *heap, int cls) { return atomic_load(&heap->by_class[cls]); }

static bool charge(struct heap *heap, int cls, size_t bytes)
{
    if (!heap) return true;
    if (heap->ledger && ledger_reserve(heap->ledger, cls, bytes, NULL) != PLIM_OK) return false;
    atomic_fetch_add(&heap->by_class[cls], bytes);
    uint64_t now = atomic_fetch_add(&heap->current, bytes) + bytes, peak = atomic_load(&heap->peak);
    while (now > peak && !atomic_compare_exchange_weak(&heap->peak, &peak, now)) continue;
    return true;
}

static void discharge(struct heap *heap, int cls, size_t bytes)
{
    if (!heap) return;
    atomic_fetch_sub(&heap->by_class[cls], bytes);
    atomic_fetch_sub(&heap->current, bytes);
    if (heap->ledger) ledger_release(heap->ledger, cls, bytes);
}

static void *take(struct heap *heap, int cls, size_t bytes, bool zeroed)
{
    if (bytes > LARGEST || cls < 0 || cls >= LEDGER_CLASSES_MAX) return NULL;
    if (fault_hit(heap ? heap->fault : NULL, FAULT_ALLOC) || !charge(heap, cls, bytes)) return NULL;
    size_t whole = sizeof(struct header) + bytes;
    struct header *h = zeroed ? calloc(1, whole) : malloc(whole);
    if (!h) {
        discharge(heap, cls, bytes);
        return NULL;
    }
    h->heap = heap;
    h->size_class = header_pack(bytes, cls);
    if (heap) atomic_fetch_add(&heap->blocks, 1);
    return h + 1;
}

void *mem_alloc(struct heap *heap, int cls, size_t bytes) { return take(heap, cls, bytes, false); }

void *mem_calloc(struct heap *heap, int cls, size_t count, size_t bytes)
{
    size_t whole;
    if (__builtin_mul_overflow(count, bytes, &whole)) return NULL;
    return take(heap, cls, whole, true);
}

void *mem_realloc(struct heap *heap, int cls, void *block, size_t bytes)
{
    if (!block) return take(heap, cls, bytes, false);
    struct header *h = header_of(block);
    struct heap *owner = h->heap;
    size_t old = header_size(h), more = bytes > old ? bytes - old : 0;
    cls = header_class(h);
    if (bytes > LARGEST || fault_hit(owner ? owner->fault : NULL, FAULT_ALLOC)) return NULL;
    if (!charge(owner, cls, more)) return NULL;
    h = realloc(h, sizeof *h + bytes);
    if (!h) {
        discharge(owner, cls, more);
        return NULL;
    }
    h->size_class = header_pack(bytes, cls);
    if (bytes < old) discharge(owner, cls, old - bytes);
    return h + 1;
}

char *mem_strdup(struct heap *heap, int cls, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = take(heap, cls, bytes, false);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

void mem_free(void *block)
{
    if (!block) return;
    struct header *h = header_of(block);
    struct heap *heap = h->heap;
    int cls = header_class(h);
    size_t bytes = header_size(h);
    free(h);
    discharge(heap, cls, bytes);
    if (heap) atomic_fetch_sub(&heap->blocks, 1);
}
