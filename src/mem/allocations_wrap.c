/* allocations_wrap.c - the linker sends our own calls of the allocator here (--wrap). See allocations.h.
 *
 * Two tables behind one lock, both open addressing: sites by their address, which only grows, and living blocks by theirs.
 * A block that is not in the second one was allocated by a library and is none of ours. The tables themselves come from the
 * real functions. Where there is no memory for them, a block is not counted.
 */
#include "mem/allocations.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t len);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t len);
void __wrap_free(void *block);

enum { SITES = 4096 }; /* more than there are calls in the program */

struct block {
    const void *address; /* NULL: the slot is free */
    int64_t bytes;
    int site;
};

/* The allocator is the process's, and so is its book. */
static struct {
    pthread_mutex_t lock;
    struct allocation_site site[SITES];
    struct block *block;
    size_t slots, used; /* slots: a power of two, at least twice as many as are used */
} book = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t scatter(const void *address)
{
    return (size_t)((uint64_t)(uintptr_t)address * 0x9e3779b97f4a7c15u >> 20);
}

static int find_site(const void *site)
{
    for (size_t i = 0, at = scatter(site) % SITES; i < SITES; i++, at = (at + 1) % SITES) {
        if (!book.site[at].site) book.site[at].site = site;
        if (book.site[at].site == site) return (int)at;
    }
    return -1;
}

/* The slot that holds the address, or the free one where it belongs. */
static size_t find_block(const void *address)
{
    size_t at = scatter(address) & (book.slots - 1);
    while (book.block[at].address && book.block[at].address != address) at = (at + 1) & (book.slots - 1);
    return at;
}

static bool grow(void)
{
    size_t slots = book.slots ? 2 * book.slots : 4096, old_slots = book.slots;
    struct block *old = book.block, *wider = __real_calloc(slots, sizeof *wider);
    if (!wider) return false;
    book.block = wider, book.slots = slots;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].address) book.block[find_block(old[i].address)] = old[i];
    __real_free(old);
    return true;
}

static void note(const void *address, size_t bytes, const void *site)
{
    if (!address) return;
    pthread_mutex_lock(&book.lock);
    int s = find_site(site);
    if (s >= 0 && (2 * (book.used + 1) <= book.slots || grow())) {
        book.block[find_block(address)] = (struct block){address, (int64_t)bytes, s};
        book.used++;
        book.site[s].bytes += (int64_t)bytes, book.site[s].blocks++;
    }
    pthread_mutex_unlock(&book.lock);
}

/* Blocks behind the hole move up, so that no look-up ends at it. */
static void close_hole(size_t hole)
{
    size_t mask = book.slots - 1;
    for (size_t at = (hole + 1) & mask; book.block[at].address; at = (at + 1) & mask) {
        size_t home = scatter(book.block[at].address) & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        book.block[hole] = book.block[at];
        book.block[at].address = NULL;
        hole = at;
    }
}

/* Before the block goes: afterwards another thread may have its address. */
static void forget(const void *address)
{
    if (!address) return;
    pthread_mutex_lock(&book.lock);
    size_t at = book.slots ? find_block(address) : 0;
    if (book.slots && book.block[at].address) {
        struct allocation_site *site = &book.site[book.block[at].site];
        site->bytes -= book.block[at].bytes, site->blocks--;
        book.block[at].address = NULL;
        book.used--;
        close_hole(at);
    }
    pthread_mutex_unlock(&book.lock);
}

#define CALLER __builtin_return_address(0)

void *__wrap_malloc(size_t size)
{
    void *block = __real_malloc(size);
    note(block, size, CALLER);
    return block;
}

void *__wrap_calloc(size_t count, size_t size)
{
    void *block = __real_calloc(count, size);
    note(block, count * size, CALLER);
    return block;
}

/* One that fails leaves the old block as it was, uncounted from then on. */
void *__wrap_realloc(void *old, size_t size)
{
    forget(old);
    void *block = __real_realloc(old, size);
    note(block, size, CALLER);
    return block;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    void *block = __real_aligned_alloc(alignment, size);
    note(block, size, CALLER);
    return block;
}

char *__wrap_strdup(const char *text)
{
    char *copy = __real_strdup(text);
    note(copy, strlen(text) + 1, CALLER);
    return copy;
}

char *__wrap_strndup(const char *text, size_t len)
{
    char *copy = __real_strndup(text, len);
    if (copy) note(copy, strlen(copy) + 1, CALLER);
    return copy;
}

void __wrap_free(void *block)
{
    forget(block);
    __real_free(block);
}

bool allocations_counted(void) { return true; }

void allocations_mark(void)
{
    pthread_mutex_lock(&book.lock);
    for (int i = 0; i < SITES; i++) book.site[i].before = book.site[i].bytes;
    pthread_mutex_unlock(&book.lock);
}

static int64_t growth(const struct allocation_site *s) { return s->bytes - s->before; }

int allocations_grown(struct allocation_site *out, int most)
{
    int count = 0;
    pthread_mutex_lock(&book.lock);
    for (int i = 0; i < SITES; i++) {
        const struct allocation_site *s = &book.site[i];
        if (growth(s) <= 0 || (count == most && growth(s) <= growth(&out[most - 1]))) continue;
        int at = count < most ? count++ : most - 1;
        for (; at > 0 && growth(&out[at - 1]) < growth(s); at--) out[at] = out[at - 1];
        out[at] = *s;
    }
    pthread_mutex_unlock(&book.lock);
    return count;
}
