/* pack_bound.c - what follows from the floors.
 *
 * A column whose unplaced rectangles all have higher supports than its floor rises to the lowest of them,
 * which may raise further supports. When nothing rises any more, every column is piled up with its rectangles
 * in the order of their supports, each at its support or on the pile, whichever is higher. No packing can end
 * lower in that column, so a pile above the goal is the end of this branch.
 */
#include "plan/pack_tree.h"
#include <string.h>

static bool fail_at(struct pack_tree *t, int c)
{
    t->grudge[c] += 1;
    return false;
}

static void find_supports(struct pack_tree *t, struct todo *list, int n, struct part p)
{
    for (int c = p.first; c < p.end; c++) t->lowest[c] = INT64_MAX;
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int64_t support = 0;
        t->columns_left -= x->b - x->a;
        for (int c = x->a; c < x->b; c++) support = t->floor[c] > support ? t->floor[c] : support;
        for (int c = x->a; c < x->b; c++) t->lowest[c] = support < t->lowest[c] ? support : t->lowest[c];
        list[i].support = support;
    }
}

static bool raise_floors(struct pack_tree *t, struct todo *list, int n, struct part p)
{
    for (bool again = true; again;) {
        again = false;
        find_supports(t, list, n, p);
        if (!pack_tree_reserve(t, p.end - p.first)) return false;
        for (int c = p.first; c < p.end; c++) {
            if (!t->rest[c]) continue;
            if (t->lowest[c] > t->floor[c]) {
                pack_tree_set_floor(t, c, t->lowest[c], -1);
                again = true;
            }
            if (t->floor[c] > t->goal - t->rest[c]) return fail_at(t, c);
        }
    }
    return true;
}

/* The list was in the order of the supports; most have not changed, and those that have only moved up. */
static void sort_by_support(struct pack_tree *t, struct todo *list, int n)
{
    int kept = 0, moved = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].support == t->was[i]) {
            t->kept[kept++] = list[i];
            continue;
        }
        int at = moved++;
        for (; at > 0 && t->moved[at - 1].support > list[i].support; at--) t->moved[at] = t->moved[at - 1];
        t->moved[at] = list[i];
    }
    for (int i = 0, k = 0, m = 0; i < n; i++) {
        bool take_kept = m == moved || (k < kept && t->kept[k].support <= t->moved[m].support);
        list[i] = take_kept ? t->kept[k++] : t->moved[m++];
    }
}

static bool piles_fit(struct pack_tree *t, const struct todo *list, int n, struct part p)
{
    memcpy(t->pile + p.first, t->floor + p.first, (size_t)(p.end - p.first) * sizeof *t->pile);
    for (int i = 0; i < n; i++) {
        const struct pack_rect *x = &t->job->rect[list[i].r];
        int64_t support = list[i].support;
        for (int c = x->a; c < x->b; c++)
            t->pile[c] = (t->pile[c] > support ? t->pile[c] : support) + x->size;
    }
    for (int c = p.first; c < p.end; c++)
        if (t->rest[c] && t->pile[c] > t->goal) return fail_at(t, c);
    return true;
}

bool pack_tree_tighten(struct pack_tree *t, struct todo *list, int n, struct part p)
{
    for (int i = 0; i < n; i++) t->was[i] = list[i].support;
    if (!raise_floors(t, list, n, p)) return false;
    sort_by_support(t, list, n);
    return piles_fit(t, list, n, p);
}
