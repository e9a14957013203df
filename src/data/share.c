/* share.c - see share.h. */
#include "data/share.h"

/* Tokens of a row up to its last target. */
static int64_t length_of(const struct rows *rows, int64_t row)
{
    int64_t n = rows->time;
    while (n > 0 && rows->targets[row * rows->time + n - 1] < 0) n--;
    return n;
}

struct packing {
    int32_t *pack, *wide;
    int64_t next, most;
};

/* Token `first` of the rows, and its second copy or -1, as the next packed one. */
static bool put(struct packing *p, int64_t first, int64_t second)
{
    if (p->next == p->most) return false;
    p->pack[2 * p->next] = (int32_t)first, p->pack[2 * p->next + 1] = (int32_t)second;
    p->wide[2 * first] = (int32_t)p->next;
    if (second >= 0) p->wide[2 * second + 1] = (int32_t)p->next;
    p->next++;
    return true;
}

bool share_fill(const struct rows *rows, int64_t packed, int32_t *pack, int32_t *wide)
{
    int64_t pairs = rows->count / 2, time = rows->time;
    struct packing p = {pack, wide, 0, pairs * packed};
    bool fits = true;
    for (int64_t i = 0; i < 2 * p.most; i++) pack[i] = -1;
    for (int64_t i = 0; i < 2 * rows->count * time; i++) wide[i] = -1;
    for (int64_t i = 0; i < pairs && fits; i++) {
        int64_t a = i * time, b = (pairs + i) * time, n = length_of(rows, i), m = length_of(rows, pairs + i),
                t = 0;
        for (; t < n && t < m && rows->ids[a + t] == rows->ids[b + t] && fits; t++)
            fits = put(&p, a + t, b + t);
        for (int64_t k = t; k < n && fits; k++) fits = put(&p, a + k, -1);
        for (int64_t k = t; k < m && fits; k++) fits = put(&p, b + k, -1);
    }
    return fits;
}
