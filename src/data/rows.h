/* rows.h - rows as named arrays, filled by the loader and fed to a tape.
 *
 *     struct rows rows = {.count = 8, .time = 256, .ids = ids, .pos = pos, .targets = targets};
 *     loader_fill(loader, 8, &rows, &err);            // arrays that are NULL are not wanted
 *     struct rows third = rows_from(&rows, 2);        // the same, from its third row on
 *
 * Names and shapes, with B rows, T positions and S of a source:
 *
 *     ids             [B,T]   tokens
 *     pos             [B,T]   positions; 0 begins a sample
 *     targets         [B,T]   the target at each position, -1: none (pairs: [B/2], see data/objective.h)
 *     lengths         [B]     positions in use; the rest is padding
 *     types           [B,T]   segments of a pair of texts
 *     source.ids      [B,S]   the source that a decoder's row answers
 *     source.lengths  [B]
 *     scores          [B]     similarity of the texts of a pair, the bits of a float; NaN: unknown
 *     reference       [B]     log-probability of the row's targets under the reference model, the bits of a float; NaN: unknown
 *     marks           [B]     kto: 1 for a good completion; orpo: the position of the completion's first target
 */
#pragma once

#include <stdint.h>

enum feed_name {
    FEED_IDS,
    FEED_POS,
    FEED_TARGETS,
    FEED_LENGTHS,
    FEED_TYPES,
    FEED_SOURCE_IDS,
    FEED_SOURCE_LENGTHS,
    FEED_SCORES,
    FEED_REFERENCE,
    FEED_MARKS,
    FEED_COUNT
};

struct rows {
    int64_t count, time, source_time; /* B T S */
    union {
        struct {
            int32_t *ids, *pos, *targets, *lengths, *types, *source_ids, *source_lengths, *scores, *reference,
                *marks;
        };
        int32_t *array[FEED_COUNT]; /* the same arrays, by enum feed_name */
    };
};

/* Label on tapes: "ids", "source.ids". */
const char *rows_label(enum feed_name name);

/* Numbers per row of an array. */
int64_t rows_width(const struct rows *rows, enum feed_name name);

/* The rows from `first` on; missing arrays stay NULL. */
struct rows rows_from(const struct rows *rows, int64_t first);

/* Places the named arrays (bits 1 << name) one after the other in `memory` and returns their total count.
 * NULL memory: only counts. */
int64_t rows_place(struct rows *rows, unsigned names, int32_t *memory);

/* Pads a row from position `used` on: targets become -1, other arrays get harmless values. */
void rows_pad(const struct rows *row, int64_t used);

/* Blanks the rows from `first` on; nothing in them counts. */
void rows_blank(const struct rows *rows, int64_t first);
