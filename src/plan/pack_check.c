/* pack_check.c - whether offsets clash.
 *
 * The checker walks through time with the set of live items ordered by address. As long as nothing clashes,
 * the live items are disjoint, so a new one can only clash with its neighbours in that order. The set is a
 * bitmap over the ranks of the offsets with summary bitmaps above it: a neighbour is found in a step per
 * level, and a level has a 64th of the bits of the one below.
 *
 * It may not fail, so there is a slow form without memory of its own.
 */
#include "plan/pack_internal.h"

enum { LEVELS = 6 }; /* 64^6 ranks: more than an int can count */

struct rank_set {
    uint64_t *level[LEVELS];
    int levels;
};

static size_t words(size_t bits) { return bits / 64 + 1; }

static bool rank_set_init(struct rank_set *set, struct bump *store, int n)
{
    size_t bits = (size_t)n;
    set->levels = 0;
    do {
        set->level[set->levels] = bump_alloc(store, words(bits) * sizeof(uint64_t));
        if (!set->level[set->levels++]) return false;
        bits = words(bits);
    } while (bits > 1);
    return true;
}

static void rank_set_add(struct rank_set *set, int rank)
{
    for (int l = 0; l < set->levels; l++, rank /= 64) set->level[l][rank / 64] |= (uint64_t)1 << rank % 64;
}

static void rank_set_remove(struct rank_set *set, int rank)
{
    for (int l = 0; l < set->levels; l++, rank /= 64)
        if (set->level[l][rank / 64] &= ~((uint64_t)1 << rank % 64)) return;
}

static int rank_set_first_in(const struct rank_set *set, int level, int word, bool up)
{
    for (;; level--) {
        uint64_t bits = set->level[level][word];
        word = word * 64 + (up ? __builtin_ctzll(bits) : 63 - __builtin_clzll(bits));
        if (level == 0) return word;
    }
}

/* The nearest member above (up) or below `rank`; -1: none. */
static int rank_set_next(const struct rank_set *set, int rank, bool up)
{
    for (int l = 0; l < set->levels; l++, rank /= 64) {
        uint64_t bits = set->level[l][rank / 64], bit = (uint64_t)1 << rank % 64;
        bits &= up ? ~(bit | (bit - 1)) : bit - 1;
        if (!bits) continue;
        int at = rank / 64 * 64 + (up ? __builtin_ctzll(bits) : 63 - __builtin_clzll(bits));
        return l == 0 ? at : rank_set_first_in(set, l - 1, at, up);
    }
    return -1;
}

static uint64_t ordered(int64_t value) { return (uint64_t)value ^ (uint64_t)1 << 63; }

/* Both are alive and x does not start above y: does x reach into y? */
static bool reaches(const struct pack_item *x, const struct pack_item *y)
{
    return (uint64_t)y->offset - (uint64_t)x->offset < (uint64_t)x->size;
}

static bool real(const struct pack_item *x) { return x->size > 0 && x->lower < x->upper; }

static bool clash(const struct pack_item *x, const struct pack_item *y)
{
    if (!real(x) || !real(y) || x->lower >= y->upper || y->lower >= x->upper) return false;
    return x->offset <= y->offset ? reaches(x, y) : reaches(y, x);
}

static int slow_conflict(const struct pack_item *items, int n, int *a, int *b)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (clash(&items[k], &items[i])) {
                *a = k, *b = i;
                return 1;
            }
    return 0;
}

struct walk {
    struct bump store;
    struct pack_key *by_offset, *starts, *ends, *tmp;
    int *rank; /* of an item, by offset */
    struct rank_set live;
    int n;
};

static bool walk_init(struct walk *w, const struct pack_item *items, int n)
{
    size_t room = (size_t)n + 1;
    w->by_offset = bump_alloc(&w->store, room * sizeof *w->by_offset);
    w->starts = bump_alloc(&w->store, room * sizeof *w->starts);
    w->ends = bump_alloc(&w->store, room * sizeof *w->ends);
    w->tmp = bump_alloc(&w->store, room * sizeof *w->tmp);
    w->rank = bump_alloc(&w->store, room * sizeof *w->rank);
    if (!w->by_offset || !w->starts || !w->ends || !w->tmp || !w->rank) return false;
    for (int i = 0; i < n; i++) {
        if (!real(&items[i])) continue;
        w->by_offset[w->n] = (struct pack_key){ordered(items[i].offset), i};
        w->starts[w->n] = (struct pack_key){ordered(items[i].lower), i};
        w->ends[w->n++] = (struct pack_key){ordered(items[i].upper), i};
    }
    pack_sort(w->by_offset, w->tmp, w->n);
    pack_sort(w->starts, w->tmp, w->n);
    pack_sort(w->ends, w->tmp, w->n);
    for (int i = 0; i < w->n; i++) w->rank[w->by_offset[i].index] = i;
    return rank_set_init(&w->live, &w->store, w->n);
}

/* The live neighbour in address order that item i clashes with, or -1. */
static int clashing_neighbour(const struct walk *w, const struct pack_item *items, int i)
{
    int under = rank_set_next(&w->live, w->rank[i], false), over = rank_set_next(&w->live, w->rank[i], true);
    if (under >= 0 && reaches(&items[w->by_offset[under].index], &items[i])) return w->by_offset[under].index;
    if (over >= 0 && reaches(&items[i], &items[w->by_offset[over].index])) return w->by_offset[over].index;
    return -1;
}

static int fast_conflict(struct walk *w, const struct pack_item *items, int *a, int *b)
{
    for (int s = 0, e = 0; s < w->n;) {
        if (w->ends[e].key <= w->starts[s].key) {
            rank_set_remove(&w->live, w->rank[w->ends[e++].index]);
            continue;
        }
        int i = w->starts[s++].index, other = clashing_neighbour(w, items, i);
        if (other >= 0) {
            *a = other < i ? other : i;
            *b = other < i ? i : other;
            return 1;
        }
        rank_set_add(&w->live, w->rank[i]);
    }
    return 0;
}

int pack_conflict(const struct pack_item *items, int n, int *a, int *b)
{
    int first = -1, second = -1;
    struct walk w = {.store = BUMP_INIT};
    int found = walk_init(&w, items, n) ? fast_conflict(&w, items, &first, &second)
                                        : slow_conflict(items, n, &first, &second);
    bump_free(&w.store);
    if (found && a) *a = first;
    if (found && b) *b = second;
    return found;
}
