/* bump.c - a chain of blocks; only the newest has free room.
 *
 * Invariant: at <= end, both NULL before the first block; at is aligned to 16 after every allocation.
 */
#include "base/bump.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20, ALIGN = 16 };

struct bump_block {
    struct bump_block *older;
    _Alignas(ALIGN) char bytes[];
};

/* A new block at least as large as all before it together (up to the limit), and as the request. */
static bool more(struct bump *bump, size_t bytes)
{
    size_t usual = bump->total ? bump->total : FIRST_BLOCK;
    if (usual > LARGEST_BLOCK) usual = LARGEST_BLOCK;
    size_t room = bytes > usual ? bytes : usual;
    struct bump_block *block = calloc(1, sizeof *block + room);
    if (!block) return false;
    block->older = bump->blocks;
    bump->blocks = block;
    bump->at = block->bytes;
    bump->end = block->bytes + room;
    bump->total += sizeof *block + room;
    return true;
}

void *bump_alloc(struct bump *bump, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes == 0) bytes = ALIGN;
    if (!bump->at || (size_t)(bump->end - bump->at) < bytes)
        if (!more(bump, bytes)) return NULL;
    void *got = bump->at;
    bump->at += bytes;
    return got;
}

char *bump_copy(struct bump *bump, const char *text, size_t len)
{
    char *copy = len < SIZE_MAX ? bump_alloc(bump, len + 1) : NULL;
    if (!copy) return NULL;
    if (len) memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

void bump_free(struct bump *bump)
{
    for (struct bump_block *block = bump->blocks; block;) {
        struct bump_block *older = block->older;
        free(block);
        block = older;
    }
    *bump = (struct bump)BUMP_INIT;
}

bool string_list_add(struct bump *bump, struct string_list *list, const char *text)
{
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 8;
        const char **items = bump_alloc(bump, cap * sizeof *items);
        if (!items) return false;
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->count++] = text;
    return true;
}
