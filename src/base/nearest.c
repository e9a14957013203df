/* nearest.c - optimal string alignment distance, three rows at a time. */
#include "base/nearest.h"
#include "base/minmax.h"
#include <ctype.h>
#include <string.h>

enum { LONGEST = 127 };

static int lower(char c) { return tolower((unsigned char)c); }

/* Both at most LONGEST letters. */
static int distance(const char *a, const char *b)
{
    int rows[3][LONGEST + 1], la = (int)strlen(a), lb = (int)strlen(b);
    int *two = rows[0], *one = rows[1], *now = rows[2]; /* two rows ago, one row ago, this row */
    for (int j = 0; j <= lb; j++) one[j] = two[j] = j;
    for (int i = 1; i <= la; i++) {
        now[0] = i;
        for (int j = 1; j <= lb; j++) {
            int change = one[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            now[j] = (int)min64(change, min64(one[j], now[j - 1]) + 1);
            int swapped =
                i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
            if (swapped) now[j] = (int)min64(now[j], two[j - 2] + 1);
        }
        int *spare = two;
        two = one;
        one = now;
        now = spare;
    }
    return one[lb];
}

struct nearest nearest_begin(const char *word)
{
    int cut = (int)(strlen(word) / 3);
    cut = cut < 1 ? 1 : cut > 4 ? 4 : cut;
    return (struct nearest){.word = word, .best = NULL, .distance = cut + 1};
}

void nearest_offer(struct nearest *near, const char *candidate)
{
    size_t a = strlen(near->word), b = strlen(candidate);
    size_t apart = a > b ? a - b : b - a; /* the distance is at least this */
    if (a > LONGEST || b > LONGEST || apart >= (size_t)near->distance) return;
    int d = distance(near->word, candidate);
    if (d >= near->distance) return;
    near->distance = d;
    near->best = candidate;
}
