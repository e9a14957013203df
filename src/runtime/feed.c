/* feed.c - see feed.h. */
#include "runtime/feed.h"
#include "data/share.h"

#include <stdlib.h>

/* Numbers of both tables. */
static int64_t table_count(const struct rows *rows, int64_t packed)
{
    return packed ? rows->count * (packed + 2 * rows->time) : 0;
}

int64_t feed_bytes(const struct device_facts *facts, const struct rows *rows, unsigned names, int64_t packed)
{
    struct rows shape = *rows;
    int64_t count = rows_place(&shape, names, NULL) + table_count(rows, packed);
    return facts->unified_memory ? 0 : count * (int64_t)sizeof(int32_t);
}

/* Positions of a pair; 0: rows share nothing. */
static int64_t packed_of(const struct feed *feed)
{
    int pack = feed->share[0];
    return pack < 0 ? 0 : feed->exec->tape->tensors[pack].dim[0] / (feed->rows.count / 2);
}

/* The inputs of the tape, and the sizes of the rows that they take. */
static enum plim_status find_inputs(struct feed *feed, struct plim_error *err)
{
    const struct tape *tape = feed->exec->tape;
    for (int i = 0; i < FEED_COUNT; i++) feed->tensor[i] = tape_find(tape, rows_label((enum feed_name)i), -1);
    feed->share[0] = tape_find(tape, "share.pack", -1), feed->share[1] = tape_find(tape, "share.wide", -1);
    int ids = feed->tensor[FEED_IDS], source = feed->tensor[FEED_SOURCE_IDS];
    if (ids >= 0) feed->rows.count = tape->tensors[ids].dim[0], feed->rows.time = tape->tensors[ids].dim[1];
    if (source >= 0) feed->rows.source_time = tape->tensors[source].dim[1];
    for (int i = 0; i < FEED_COUNT; i++) {
        if (feed->tensor[i] < 0) continue;
        int64_t most = feed->rows.count * rows_width(&feed->rows, (enum feed_name)i);
        const struct tensor *t = &tape->tensors[feed->tensor[i]];
        if (dtype_size(t->type) != sizeof(int32_t) || tensor_count(t) > most)
            return plim_fail(err, PLIM_BUG, "input %s has no shape that rows have", t->label);
    }
    return PLIM_OK;
}

enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err)
{
    *feed = (struct feed){.exec = exec};
    enum plim_status status = find_inputs(feed, err);
    if (status != PLIM_OK) return status;
    unsigned names = 0;
    for (int i = 0; i < FEED_COUNT; i++) names |= (unsigned)(feed->tensor[i] >= 0) << i;
    int64_t bytes = feed_bytes(&exec->device->facts, &feed->rows, names, packed_of(feed));
    if (bytes) {
        feed->staged = malloc((size_t)bytes);
        if (!feed->staged) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of tokens");
        int64_t count = rows_place(&feed->rows, names, feed->staged);
        feed->table[0] = feed->staged + count;
        feed->table[1] = feed->table[0] + feed->rows.count * packed_of(feed);
        return PLIM_OK;
    }
    for (int i = 0; i < FEED_COUNT; i++)
        if (feed->tensor[i] >= 0) feed->rows.array[i] = exec_host(exec, feed->tensor[i]);
    for (int k = 0; k < 2 && feed->share[k] >= 0; k++) feed->table[k] = exec_host(exec, feed->share[k]);
    return PLIM_OK;
}

/* Tables of rows that share their beginning, from the tokens that were fed. */
static enum plim_status send_tables(struct feed *feed, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    if (feed->share[0] < 0) return PLIM_OK;
    if (!share_fill(&feed->rows, packed_of(feed), feed->table[0], feed->table[1]))
        return plim_fail(err, PLIM_BUG, "a pair is longer than data.pair_length");
    for (int k = 0; k < 2 && feed->staged && status == PLIM_OK; k++) {
        int64_t bytes = tensor_bytes(&feed->exec->tape->tensors[feed->share[k]]);
        status = exec_write(feed->exec, feed->share[k], feed->table[k], 0, bytes, err);
    }
    return status;
}

enum plim_status feed_send(struct feed *feed, struct plim_error *err)
{
    enum plim_status status = send_tables(feed, err);
    for (int i = 0; i < FEED_COUNT && feed->staged && status == PLIM_OK; i++) {
        if (feed->tensor[i] < 0) continue;
        int64_t bytes = tensor_bytes(&feed->exec->tape->tensors[feed->tensor[i]]);
        status = exec_write(feed->exec, feed->tensor[i], feed->rows.array[i], 0, bytes, err);
    }
    return status;
}

void feed_close(struct feed *feed)
{
    free(feed->staged);
    *feed = (struct feed){0};
}
