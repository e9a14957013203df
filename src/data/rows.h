/* rows.h - rows as named arrays: what data fill and what a tape is fed with.
 *
 *     struct rows rows = {.count = 8, .time = 256, .ids = ids, .pos = pos, .targets = targets};
 *     loader_fill(loader, 8, &rows, &err);            // arrays that are NULL are not wanted
 *     struct rows third = rows_from(&rows, 2);        // the same, from its third row on
 *
 * Names and shapes, with B rows, T positions and S of a source:
 *
 *     ids             [B,T]   tokens
 *     pos             [B,T]   positions; 0 begins a sample
 *     targets         [B,T]   what is learned at each position, -1: nothing (pairs: [B/2], see data/objective.h)
 *     lengths         [B]     positions in use; those behind are padding
 *     types           [B,T]   segments of a pair of texts
 *     source.ids      [B,S]   what a decoder's rows answer
 *     source.lengths  [B]
 *     scores          [B]     how alike the texts of a pair are, the bits of a float; not a number: nobody says
 */
#ifndef PLIM_DATA_ROWS_H
#define PLIM_DATA_ROWS_H

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
    FEED_COUNT
};

struct rows {
    int64_t count, time, source_time; /* B T S */
    union {
        struct {
            int32_t *ids, *pos, *targets, *lengths, *types, *source_ids, *source_lengths, *scores;
        };
        int32_t *array[FEED_COUNT]; /* the same, by enum feed_name */
    };
};

/* As tapes label them: "ids", "source.ids". */
const char *rows_label(enum feed_name name);

/* Numbers that one row has in an array. */
int64_t rows_width(const struct rows *rows, enum feed_name name);

/* The rows from `first` on; arrays that are not there stay NULL. */
struct rows rows_from(const struct rows *rows, int64_t first);

/* Arrays of the named kinds (bits 1 << name) one behind the other in `memory`. Returns how many numbers they are; NULL
 * memory: nothing is set. */
int64_t rows_place(struct rows *rows, unsigned names, int32_t *memory);

/* Positions of a row from `used` on are padding: targets -1, the rest what does no harm. */
void rows_pad(const struct rows *row, int64_t used);

/* The rows from `first` on hold nothing that counts. */
void rows_blank(const struct rows *rows, int64_t first);

#endif
