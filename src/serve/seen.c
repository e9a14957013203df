/* seen.c - see seen.h. */
#include "serve/seen.h"

#include <stdlib.h>
#include <string.h>

static int by_token(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* The prompt is sorted by itself: the list has no more room than there are different tokens. */
bool seen_init(struct seen *seen, int64_t room, const int32_t *prompt, int64_t count)
{
    *seen = (struct seen){.token = malloc((size_t)room * sizeof *seen->token)};
    int32_t *sorted = malloc((size_t)(count + 1) * sizeof *sorted);
    bool good = seen->token && sorted;
    if (good && count) memcpy(sorted, prompt, (size_t)count * sizeof *sorted);
    if (good) qsort(sorted, (size_t)count, sizeof *sorted, by_token);
    for (int64_t i = 0; i < count && good; i++)
        if (!i || sorted[i] != sorted[i - 1]) seen->token[seen->count++] = (struct seen_token){sorted[i], 0};
    free(sorted);
    if (!good) seen_release(seen);
    return good;
}

void seen_add(struct seen *seen, int32_t token)
{
    int64_t low = 0, high = seen->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (seen->token[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    struct seen_token *at = seen->token + low;
    if (low == seen->count || at->token != token) {
        memmove(at + 1, at, (size_t)(seen->count - low) * sizeof *at);
        *at = (struct seen_token){token, 0}, seen->count++;
    }
    at->times++;
}

void seen_release(struct seen *seen)
{
    free(seen->token);
    *seen = (struct seen){0};
}
