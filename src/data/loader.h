/* loader.h - rows for training and evaluation, in an order that is a pure function of seed and data.
 *
 *     struct loader *loader;
 *     loader_open(data, &(struct loader_options){.seed = 1, .workers = 2, ...}, &loader, &err);
 *     struct loader_window w;
 *     loader_window(loader, rows, &w, &err);                   // the rows of one optimizer step; w.targets
 *     loader_fill(loader, n, &rows, &err);                     // its rows, n at a time, in any split
 *     loader_state(loader, &state);                            // where to go on; small
 *     loader_close(loader);
 *
 * Rows have T positions: ids, targets (-1: not counted) and pos. A sample begins at pos 0. With packing, samples
 * that fit whole share a row, and pos restarting at 0 keeps attention inside each; what is left over is padded
 * with targets -1. Without, each sample has a row.
 *
 * The order depends neither on the number of workers nor on how rows are asked for. Rank r of n gets the rows
 * whose number in the window is r modulo n, and the state counts global rows: a run may go on with another
 * number of ranks and neither repeats nor skips one. Where windows are sorted, all ranks' rows are sorted together and dealt
 * out like that: row b of rank r is row b * n + r of the step, as one rank has them, and ranks have rows of like lengths.
 *
 * Rows of like lengths. With options.sorted the rows of a window come longest first, so that a caller may cut it into
 * passes of few lengths. With options.grouped also the samples of a window are of like length: in the shuffled order groups
 * of LOADER_GROUP windows are sorted by length and cut into windows, which are shuffled again. Which rows there are in an
 * epoch does not change, and a group is a pure function of seed, data and window size.
 *
 * A row of a source and a target takes the same share of both sides: the larger of what its target takes of T and its source
 * of S. A row that needs half of T positions is given half of S, too.
 *
 * Streams are shuffled in blocks of shuffle_samples samples (or shuffle_bytes of tokens, whichever is less); one
 * block is consumed while the next is made. A block's order is a pure function of seed and of the place in the
 * data where it begins. Nothing is read or started before the first window, but loader_open takes the memory for all that
 * may come (loader_bytes), and a machine that has not got it says so then.
 */
#ifndef PLIM_DATA_LOADER_H
#define PLIM_DATA_LOADER_H

#include "base/node.h"
#include "base/strbuf.h"
#include "data/dataset.h"
#include "data/rows.h"
#include <stdatomic.h>

#define LOADER_GROUP 32 /* windows */

struct loader_options {
    uint64_t seed;
    bool sorted;       /* rows of a window, longest first */
    bool grouped;      /* windows of samples of like length; needs window_rows */
    bool in_order;     /* no shuffling */
    bool once;         /* one epoch, then windows come up short */
    bool whole_epochs; /* a window ends with its epoch: the last one of each has the rows that are left */
    int workers, prefetch;
    size_t max_line; /* bytes of a line that is accepted: the loader has memory for one such */
    int64_t shuffle_samples;
    size_t shuffle_bytes;
    int64_t window_rows;    /* of the largest window */
    int rank, ranks;        /* ranks 0: one */
    const atomic_int *stop; /* set by a signal: looking for rows ends; NULL: never */
};

/* Where a loader stands: before row `rows` of the global order. */
struct loader_state {
    uint64_t rows;
    uint64_t epoch;
    uint64_t index; /* samples done: of the epoch, or of the block that begins at: */
    uint64_t visit, offset, line, skip;
    uint64_t bad, dropped; /* counted before that block (by index: up to here) */
};

struct loader_window {
    int64_t rows;     /* of this rank; fewer than asked for only at the end of `once`, or of `whole_epochs` */
    int64_t all_rows; /* of all ranks */
    /* Rows of the rank that has the most. All ranks cut these into passes, so they have equally many. */
    int64_t slots;
    int64_t targets;       /* counted targets in them */
    int64_t all_targets;   /* of all ranks' rows */
    int64_t positions;     /* in use, of this rank's rows, sources counted too */
    int64_t all_positions; /* of all ranks' rows */
    uint64_t epoch;        /* of the first row; counted from 0 */
    /* [slots] positions that rows need, in the order in which they are filled. Where rows are sorted, every rank
     * has the same values: the longest over all ranks. Valid until the next window. */
    const int32_t *lengths;
};

struct loader_stats {
    uint64_t bad;        /* records skipped */
    uint64_t dropped;    /* samples without a target, or too long with data.overlong: drop */
    const char *problem; /* the first bad record; NULL: none */
};

struct loader;

/* data and what it borrows stay the caller's until loader_close. */
enum plim_status loader_open(struct dataset *data, const struct loader_options *options, struct loader **out,
                             struct plim_error *err);
void loader_close(struct loader *loader);

/* Begin a window of `rows` rows per rank after the last one (loader_window_of: of so many for all ranks together). Errors are those of the data: "file:line: what"; or
 * PLIM_INTERRUPTED, when *stop is set before there are so many: the next window begins where this one did. */
enum plim_status loader_window(struct loader *loader, int64_t rows, struct loader_window *out,
                               struct plim_error *err);
enum plim_status loader_window_of(struct loader *loader, int64_t all_rows, struct loader_window *out,
                                  struct plim_error *err);

/* The next n rows of the window into the arrays that are there; ids must be. Rows may have fewer positions than T when all
 * of these n are as short. Rows from n on are blank. */
enum plim_status loader_fill(struct loader *loader, int64_t n, const struct rows *rows,
                             struct plim_error *err);

/* Forget the window: the next one begins where it began. */
void loader_rewind(struct loader *loader);

/* The state before the present window while rows of it are left to fill, else after it. */
void loader_state(const struct loader *loader, struct loader_state *out);
/* Go on from a state; PLIM_BAD_INPUT when it lies outside the data. */
enum plim_status loader_seek(struct loader *loader, const struct loader_state *state, struct plim_error *err);

/* The state as a JSON object, and back. Reading refuses a state of other data or options by name. `rows` alone
 * (position) is enough for data read by index without packing: that is what early checkpoints have. */
void loader_save(const struct loader *loader, struct strbuf *out);
enum plim_status loader_restore(struct loader *loader, const struct node *saved, uint64_t position,
                                struct plim_error *err);

void loader_stats(const struct loader *loader, struct loader_stats *out);
int loader_ranks(const struct loader *loader);    /* that share its rows */
int64_t loader_time(const struct loader *loader); /* T: the most positions of a row */
uint64_t loader_seed(const struct loader *loader);
void loader_set_seed(struct loader *loader, uint64_t seed); /* before the first window */

/* The most memory a loader takes, with its dataset and without its codec: known before anything is read. */
size_t loader_bytes(const struct dataset *data, const struct loader_options *options);

#endif
