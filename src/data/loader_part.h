/* loader_part.h - blocks of a stream's samples, for loader.c and loader_block.c alone. */
#ifndef PLIM_DATA_LOADER_PART_H
#define PLIM_DATA_LOADER_PART_H

#include "data/loader.h"
#include <pthread.h>

/* Samples in the order of the data. */
struct block {
    int32_t *tokens; /* with TOKEN_QUIET */
    size_t *end;     /* of each sample, in tokens */
    uint64_t samples;
    struct loader_state start; /* of its first sample; index 0; bad, dropped: of those below, met before it */
    bool epoch_end;            /* nothing of the epoch follows; only then, or over, may it hold no sample */
    bool over;                 /* nothing at all follows */
    uint64_t bad, dropped;     /* met while it was made */
    char problem[256];
    enum plim_status status;
    struct plim_error err;
};

struct block_source;

/* All its memory; nothing is read. */
enum plim_status block_source_open(const struct dataset *data, const struct loader_options *options,
                                   struct block_source **out, struct plim_error *err);
void block_source_close(struct block_source *s);

void block_source_set_seed(struct block_source *s, uint64_t seed); /* of what is started from now on */

/* Blocks from a place in the data on. The state's index is the caller's affair. */
enum plim_status block_source_start(struct block_source *s, const struct loader_state *from,
                                    struct plim_error *err);
/* No thread works for it any more, and the block is gone. */
void block_source_rest(struct block_source *s);

/* The next block; the one before it is gone. An error is that of the data, or PLIM_INTERRUPTED: *options.stop was set
 * before there was one. */
enum plim_status block_source_next(struct block_source *s, struct block **out, struct plim_error *err);

size_t block_source_bytes(const struct dataset *data, const struct loader_options *options);

/* --- loader_group.c: the order of samples with options.grouped ------------------------------------------------- */

struct loader_group {
    struct group_sample {
        int64_t sample, place;
        int32_t length;
    } * samples;
    int64_t most;   /* samples of a group */
    int64_t window; /* of them, samples of a window */
    bool made;
    uint64_t key, number; /* which one is here: of which epoch or block */
    int64_t count;        /* its samples that are worth a row */
};

/* Length of a sample; 0: it makes no row. */
typedef enum plim_status group_measure(void *arg, int64_t sample, int64_t *length, struct plim_error *err);

/* All its memory, for so many samples at most. */
enum plim_status loader_group_open(struct loader_group *g, int64_t window, int64_t samples,
                                   struct plim_error *err);
void loader_group_close(struct loader_group *g);
size_t loader_group_bytes(int64_t window, int64_t samples);

/* The sample at `index` of an order of n samples; -1: the place is empty, samples that make no row leave it. `key` names the
 * order as order_sample does. */
enum plim_status loader_group_sample(struct loader_group *g, const struct loader_options *options,
                                     uint64_t key, uint64_t index, uint64_t n, group_measure *measure,
                                     void *arg, int64_t *out, struct plim_error *err);

/* For loader_state.c: a number for the order of rows (equal numbers, equal rows), and the rows of an epoch when each
 * sample is a row and all are known, else 0. */
uint64_t loader_order(const struct loader *loader);
int64_t loader_plain_rows(const struct loader *loader);

#endif
