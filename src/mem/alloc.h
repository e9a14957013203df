/* alloc.h - an accounted allocator for small host objects.
 *
 * Every block remembers its heap, class and size, so that a heap knows how many bytes of each class are in
 * use and how many were at most. Sizes are counted as asked for. With a ledger, bytes are reserved there too,
 * and a refusal gives NULL. Blocks are aligned to 16 bytes. Thread-safe.
 *
 *     struct heap heap;
 *     heap_init(&heap, NULL, NULL);
 *     char *p = mem_alloc(&heap, 0, 100);
 *     p = mem_realloc(&heap, 0, p, 200);                 // NULL: p is still valid
 *     mem_free(p);
 *     assert(heap_current(&heap) == 0);                  // no leak
 */
#ifndef PLIM_MEM_ALLOC_H
#define PLIM_MEM_ALLOC_H

#include "base/fault.h"
#include "mem/ledger.h"
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct heap {
    struct ledger *ledger; /* NULL: none */
    struct fault *fault;   /* NULL: the process's own */
    _Atomic uint64_t by_class[LEDGER_CLASSES_MAX];
    _Atomic uint64_t current, peak, blocks;
};

void heap_init(struct heap *heap, struct ledger *ledger, struct fault *fault);

uint64_t heap_current(const struct heap *heap);
uint64_t heap_peak(const struct heap *heap);
uint64_t heap_blocks(const struct heap *heap); /* blocks not yet freed */
uint64_t heap_class(const struct heap *heap, int cls);

/* NULL when memory is short, the ledger refuses or a fault is injected. A heap of NULL is plain, uncounted
 * memory. 0 bytes give a valid block. cls: 0 to 15, the ledger's class when there is a ledger. */
void *mem_alloc(struct heap *heap, int cls, size_t bytes);
void *mem_calloc(struct heap *heap, int cls, size_t count, size_t bytes);

/* Grow or shrink; on NULL the old block is untouched. A NULL block is allocated from heap and cls;
 * otherwise the block stays with the heap and class it came from. */
void *mem_realloc(struct heap *heap, int cls, void *block, size_t bytes);
char *mem_strdup(struct heap *heap, int cls, const char *text);

/* Any block of any heap; NULL is fine. */
void mem_free(void *block);

#endif
