/* loader.h - rows for training and evaluation, in an order that is a pure function of seed and data.
 *
 *     struct loader *loader;
 *     loader_open(data, &(struct loader_options){.seed = 1, .workers = 2, ...}, &loader, &err);
 *     struct loader_window w;
 *     loader_window(loader, rows, &w, &err);                   // the rows of one optimizer step; w.targets
 *     loader_fill(loader, n, &rows, &err);                     // its rows, n at a time, in any split
 *     loader_state(loader, &state);                            // where to continue; small
 *     loader_close(loader);
 *
 * Rows have T positions: ids, targets (-1: not counted) and pos. A sample begins at pos 0. With packing, samples that fit
 * share a row; pos restarts at 0, which keeps attention inside each sample, and the rest of the row is padded with targets
 * -1. Without packing each sample has a row.
 *
 * The order depends neither on the number of workers nor on how rows are requested. Rank r of n gets the rows whose number
 * in the window is r modulo n. The state counts global rows, so a run may continue with another number of ranks without
 * repeating or skipping a row. Sorted windows sort the rows of all ranks together first: row b of rank r is then row
 * b * n + r of the step, and ranks have rows of similar lengths.
 *
 * Similar lengths. With options.sorted the rows of a window come longest first, so a caller can cut the window into passes
 * of few lengths. With options.grouped the samples of a window also have similar lengths: groups of LOADER_GROUP windows of
 * the shuffled order are sorted by length and cut into windows, which are shuffled again. The rows of an epoch stay the
 * same, and a group is a pure function of seed, data and window size.
 *
 * A row with a source and a target uses the same share of both: the larger of its target's share of T and its source's
 * share of S. A row that needs half of T positions gets half of S as well.
 *
 * Streams are shuffled in blocks of shuffle_samples samples (or shuffle_bytes of tokens, whichever is less). One block is
 * consumed while the next is made. A block's order is a pure function of seed and of its position in the data. Nothing is
 * read or started before the first window, but loader_open allocates all memory (loader_bytes), so a machine that lacks it
 * fails there.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"
#include "data/dataset.h"
#include "data/rows.h"
#include <stdatomic.h>

#define LOADER_GROUP 32 /* windows */

struct loader_options {
    uint64_t seed;
    bool sorted;       /* rows of a window come longest first */
    bool grouped;      /* windows of samples with similar lengths; needs window_rows */
    bool in_order;     /* no shuffling */
    bool once;         /* one epoch; then windows are short */
    bool whole_epochs; /* a window ends with its epoch; the last one has the remaining rows */
    int workers, prefetch;
    size_t max_line; /* maximum bytes of a line; memory for one such line is allocated */
    int64_t shuffle_samples;
    size_t shuffle_bytes;
    int64_t window_rows;    /* of the largest window */
    int rank, ranks;        /* ranks 0: one */
    const atomic_int *stop; /* set by a signal to stop looking for rows; NULL: never */
};

/* A loader's position: before row `rows` of the global order. */
struct loader_state {
    uint64_t rows;
    uint64_t epoch;
    uint64_t index; /* samples done: of the epoch, or of the block that begins at the place below */
    uint64_t visit, offset, line, skip;
    uint64_t bad, dropped; /* counted before that block (by index: so far) */
};

struct loader_window {
    int64_t rows;     /* of this rank; fewer than requested only at the end of `once` or of `whole_epochs` */
    int64_t all_rows; /* of all ranks */
    /* Rows of the rank with the most. All ranks cut this number into passes, so they have equally many. */
    int64_t slots;
    int64_t targets;       /* counted targets in them */
    int64_t all_targets;   /* of all ranks' rows */
    int64_t positions;     /* used by this rank's rows, including sources */
    int64_t all_positions; /* of all ranks' rows */
    uint64_t epoch;        /* of the first row; from 0 */
    /* [slots] positions that rows need, in the order of loader_fill. If rows are sorted, all ranks have the
     * same values: the maximum over ranks. Valid until the next window. */
    const int32_t *lengths;
};

struct loader_stats {
    uint64_t bad;        /* records skipped */
    uint64_t dropped;    /* samples without a target, or too long with data.overlong: drop */
    const char *problem; /* the first bad record; NULL: none */
};

struct loader;

/* The loader borrows data until loader_close. */
enum plim_status loader_open(struct dataset *data, const struct loader_options *options, struct loader **out,
                             struct plim_error *err);
void loader_close(struct loader *loader);

/* Begins the next window, of `rows` rows per rank (loader_window_of: of all_rows for all ranks together).
 * Errors are those of the data, "file:line: what", or PLIM_INTERRUPTED if *stop was set first; the next
 * window then begins where this one did. */
enum plim_status loader_window(struct loader *loader, int64_t rows, struct loader_window *out,
                               struct plim_error *err);
enum plim_status loader_window_of(struct loader *loader, int64_t all_rows, struct loader_window *out,
                                  struct plim_error *err);

/* Fills the arrays that are not NULL with the next n rows of the window; ids is required. Rows may have fewer
 * than T positions if all n are that short. Rows from n on are blank. */
enum plim_status loader_fill(struct loader *loader, int64_t n, const struct rows *rows,
                             struct plim_error *err);

/* Abandons the window: the next one begins where it began. */
void loader_rewind(struct loader *loader);

/* The state before the current window while some of its rows are not filled, else after it. */
void loader_state(const struct loader *loader, struct loader_state *out);
/* Continues from a state; PLIM_BAD_INPUT when it is outside the data. */
enum plim_status loader_seek(struct loader *loader, const struct loader_state *state, struct plim_error *err);

/* Converts the state to a JSON object and back. Restoring refuses a state of other data or options by name.
 * For data read by index without packing, `position` alone is enough; early checkpoints have nothing else. */
void loader_save(const struct loader *loader, struct strbuf *out);
enum plim_status loader_restore(struct loader *loader, const struct node *saved, uint64_t position,
                                struct plim_error *err);

void loader_stats(const struct loader *loader, struct loader_stats *out);
int loader_ranks(const struct loader *loader);    /* number of ranks that share its rows */
int64_t loader_time(const struct loader *loader); /* T: maximum positions of a row */
uint64_t loader_seed(const struct loader *loader);
void loader_set_seed(struct loader *loader, uint64_t seed); /* before the first window */

/* Maximum memory of a loader with its dataset, without its codec. Known before anything is read. */
size_t loader_bytes(const struct dataset *data, const struct loader_options *options);
