/* loader_part.h - blocks of a stream's samples; internal to loader.c and loader_block.c. */
#pragma once

#include "data/loader.h"
#include <pthread.h>

/* Samples in the order of the data. */
struct block {
    int32_t *tokens; /* with TOKEN_QUIET */
    size_t *end;     /* of each sample, in tokens */
    uint64_t samples;
    struct loader_state start; /* of its first sample; index is 0; bad and dropped were counted before it */
    bool epoch_end;            /* the epoch's last block; only this one, or the last of all, may be empty */
    bool over;                 /* the last block of all */
    uint64_t bad, dropped;     /* counted while it was made */
    char problem[256];
    enum plim_status status;
    struct plim_error err;
};

struct block_source;

/* Allocates all memory; reads nothing. */
enum plim_status block_source_open(const struct dataset *data, const struct loader_options *options,
                                   struct block_source **out, struct plim_error *err);
void block_source_close(struct block_source *s);

void block_source_set_seed(struct block_source *s, uint64_t seed); /* for blocks started from now on */

/* Delivers blocks from a position on. Ignores the state's index. */
enum plim_status block_source_start(struct block_source *s, const struct loader_state *from,
                                    struct plim_error *err);
/* Stops all threads and discards the block. */
void block_source_rest(struct block_source *s);

/* Delivers the next block and discards the previous one. Errors are those of the data, or PLIM_INTERRUPTED:
 * *options.stop was set first. */
enum plim_status block_source_next(struct block_source *s, struct block **out, struct plim_error *err);

size_t block_source_bytes(const struct dataset *data, const struct loader_options *options);

/* --- loader_group.c: the order of samples with options.grouped ------------------------------------------------- */

struct loader_group {
    struct group_sample {
        int64_t sample, place;
        int32_t length;
    } * samples;
    int64_t most;   /* samples of a group */
    int64_t window; /* samples of a window */
    bool made;
    uint64_t key, number; /* which group is here: its epoch or block, and its number */
    int64_t count;        /* its samples that make a row */
};

/* Reports the length of a sample; 0: it makes no row. */
typedef enum plim_status group_measure(void *arg, int64_t sample, int64_t *length, struct plim_error *err);

/* Allocates all memory, for at most `samples` samples. */
enum plim_status loader_group_open(struct loader_group *g, int64_t window, int64_t samples,
                                   struct plim_error *err);
void loader_group_close(struct loader_group *g);
size_t loader_group_bytes(int64_t window, int64_t samples);

/* The sample at `index` in an order of n samples; -1: the place is empty because some samples make no row.
 * `key` names the order, as in order_sample. */
enum plim_status loader_group_sample(struct loader_group *g, const struct loader_options *options,
                                     uint64_t key, uint64_t index, uint64_t n, group_measure *measure,
                                     void *arg, int64_t *out, struct plim_error *err);

/* For loader_state.c: a hash of the order of rows (equal numbers, equal rows); and the rows of an epoch if
 * each sample is a row and all are known, else 0. */
uint64_t loader_order(const struct loader *loader);
int64_t loader_plain_rows(const struct loader *loader);
