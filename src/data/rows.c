/* rows.c - see rows.h. */
#include "data/rows.h"

#include <stddef.h>
#include <string.h>

enum width { PER_ROW, PER_POSITION, PER_SOURCE };

static const struct {
    const char *label;
    enum width width;
} names[FEED_COUNT] = {
    [FEED_IDS] = {"ids", PER_POSITION},
    [FEED_POS] = {"pos", PER_POSITION},
    [FEED_TARGETS] = {"targets", PER_POSITION},
    [FEED_LENGTHS] = {"lengths", PER_ROW},
    [FEED_TYPES] = {"types", PER_POSITION},
    [FEED_SOURCE_IDS] = {"source.ids", PER_SOURCE},
    [FEED_SOURCE_LENGTHS] = {"source.lengths", PER_ROW},
    [FEED_SCORES] = {"scores", PER_ROW},
    [FEED_REFERENCE] = {"reference", PER_ROW},
    [FEED_MARKS] = {"marks", PER_ROW},
};

const char *rows_label(enum feed_name name) { return names[name].label; }

int64_t rows_width(const struct rows *rows, enum feed_name name)
{
    if (names[name].width == PER_ROW) return 1;
    return names[name].width == PER_SOURCE ? rows->source_time : rows->time;
}

struct rows rows_from(const struct rows *rows, int64_t first)
{
    struct rows out = *rows;
    out.count -= first;
    for (int i = 0; i < FEED_COUNT; i++)
        if (out.array[i]) out.array[i] += first * rows_width(rows, (enum feed_name)i);
    return out;
}

int64_t rows_place(struct rows *rows, unsigned wanted, int32_t *memory)
{
    int64_t count = 0;
    for (int i = 0; i < FEED_COUNT; i++) {
        if (!(wanted >> i & 1)) continue;
        if (memory) rows->array[i] = memory + count;
        count += rows->count * rows_width(rows, (enum feed_name)i);
    }
    return count;
}

void rows_pad(const struct rows *row, int64_t used)
{
    for (int64_t t = used; t < row->time; t++) {
        if (row->ids) row->ids[t] = 0;
        if (row->targets) row->targets[t] = -1;
        if (row->types) row->types[t] = 0;
        if (row->pos) row->pos[t] = t ? row->pos[t - 1] + 1 : 0;
    }
}

void rows_blank(const struct rows *rows, int64_t first)
{
    for (int64_t i = first; i < rows->count; i++) {
        struct rows row = rows_from(rows, i);
        rows_pad(&row, 0);
        if (row.lengths) *row.lengths = 0;
        if (row.reference) *row.reference = 0;
        if (row.marks) *row.marks = 0;
        if (row.source_lengths) *row.source_lengths = 0;
        if (row.source_ids) memset(row.source_ids, 0, (size_t)row.source_time * sizeof *row.source_ids);
    }
}
