/* bump.h - many small objects, freed in one call.
 *
 *     struct bump store = BUMP_INIT;
 *     char *copy = bump_copy(&store, text, strlen(text));
 *     ...
 *     bump_free(&store);                                 // everything at once
 *
 * Memory comes from the C library in blocks that double up to 1 MiB. Allocation returns NULL when memory is
 * short. Not thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct bump_block;

struct bump {
    struct bump_block *blocks;
    char *at, *end; /* the free part of the newest block */
    size_t total;   /* bytes taken from the C library    */
};

#define BUMP_INIT                                                                                            \
    {                                                                                                        \
        0                                                                                                    \
    }

/* Zeroed memory aligned for any type, or NULL. */
void *bump_alloc(struct bump *bump, size_t bytes);

/* A NUL-terminated copy of text[0..len), or NULL. */
char *bump_copy(struct bump *bump, const char *text, size_t len);

void bump_free(struct bump *bump);

/* A list of strings; the array lives in a bump. Start with {0}. */
struct string_list {
    const char **items;
    size_t count;
    size_t cap;
};

/* Append the pointer itself (no copy of the characters); false when memory is short. */
bool string_list_add(struct bump *bump, struct string_list *list, const char *text);
