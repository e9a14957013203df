/* score_merges.c - see score_merges.h. */
#include "text/score_merges.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* Two pieces that make a third. */
struct merge {
    int32_t left, right, whole;
    int32_t left_length, right_length; /* characters */
    double score;
};

struct merges {
    const struct scored_piece *pieces;
    size_t npieces;
    struct merge *items;
    size_t count, cap;
    int32_t *slots; /* ids by hash of their text, -1: free */
    size_t mask;
};

static int32_t find_id(const struct merges *m, const char *text, size_t len)
{
    for (size_t at = hash64(text, len, 0) & m->mask; m->slots[at] >= 0; at = (at + 1) & m->mask) {
        const struct scored_piece *other = &m->pieces[m->slots[at]];
        if (other->len == len && !memcmp(other->text, text, len)) return m->slots[at];
    }
    return -1;
}

static bool index_pieces(struct merges *m)
{
    size_t size = 16;
    while (size < 2 * m->npieces) size *= 2;
    m->slots = malloc(size * sizeof *m->slots), m->mask = size - 1;
    if (!m->slots) return false;
    memset(m->slots, 0xff, size * sizeof *m->slots);
    for (size_t i = 0; i < m->npieces; i++) {
        if (!m->pieces[i].part) continue;
        size_t at = hash64(m->pieces[i].text, m->pieces[i].len, 0) & m->mask;
        while (m->slots[at] >= 0) at = (at + 1) & m->mask;
        m->slots[at] = (int32_t)i;
    }
    return true;
}

static bool add_merge(struct merges *m, const struct merge *merge)
{
    if (m->count == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 4096;
        struct merge *grown = realloc(m->items, cap * sizeof *grown);
        if (!grown) return false;
        m->items = grown, m->cap = cap;
    }
    m->items[m->count++] = *merge;
    return true;
}

static bool is_continuation(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Every way in which piece `id` is two others. */
static bool split_piece(struct merges *m, int32_t id)
{
    const char *s = m->pieces[id].text;
    size_t len = m->pieces[id].len;
    int32_t length = 0, before = 0;
    for (size_t i = 0; i < len; i++) length += !is_continuation(s[i]);
    for (size_t cut = 1; cut < len; cut++) {
        before += !is_continuation(s[cut - 1]);
        if (is_continuation(s[cut])) continue;
        struct merge merge = {.whole = id,
                              .left = find_id(m, s, cut),
                              .right = find_id(m, s + cut, len - cut),
                              .left_length = before,
                              .right_length = length - before,
                              .score = m->pieces[id].score};
        if (merge.left >= 0 && merge.right >= 0 && !add_merge(m, &merge)) return false;
    }
    return true;
}

/* The best score first, then the longest left and right part, then the order of pieces. */
static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    const int32_t first[] = {y->left_length, y->right_length, x->whole, x->left, x->right};
    const int32_t second[] = {x->left_length, x->right_length, y->whole, y->left, y->right};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (first[i] != second[i]) return first[i] < second[i] ? -1 : 1;
    return 0;
}

bool score_merges_write(struct json_writer *w, const struct scored_piece *pieces, size_t count, bool ranked)
{
    struct merges m = {.pieces = pieces, .npieces = count};
    bool enough = index_pieces(&m);
    int64_t rank = 0;
    for (size_t i = 0; i < count && enough; i++)
        if (pieces[i].whole) enough = split_piece(&m, (int32_t)i);
    if (enough && m.count) qsort(m.items, m.count, sizeof *m.items, by_rank);
    for (size_t i = 0; i < m.count && enough; i++) {
        const struct scored_piece *parts[] = {&pieces[m.items[i].left], &pieces[m.items[i].right]};
        json_begin_array(w, NULL);
        for (int k = 0; k < 2; k++) json_strn(w, NULL, parts[k]->text, parts[k]->len);
        rank += i && m.items[i].score != m.items[i - 1].score;
        if (ranked) json_int(w, NULL, rank);
        json_end_array(w);
    }
    free(m.items);
    free(m.slots);
    return enough;
}
