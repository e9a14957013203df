/* feed.h - the inputs of a tape's next pass, by name.
 *
 *     struct feed feed;
 *     feed_open(&feed, &exec, &err);
 *     loader_fill(loader, n, &feed.rows, &err);    // arrays of inputs that the tape lacks are NULL
 *     feed_send(&feed, &err);                      // copies them to the device
 *     feed_close(&feed);
 *
 * Names and shapes are those of data/rows.h. Where the host may write tensors directly, the arrays are the tensors; a
 * device with its own memory gets copies. */
#pragma once

#include "data/rows.h"
#include "exec/exec.h"

struct feed {
    struct exec *exec;
    struct rows rows;
    int tensor[FEED_COUNT]; /* by enum feed_name; -1: the tape has none */
    int32_t *staged;        /* the arrays; NULL where the host writes tensors directly */
    int share[2]; /* tables of rows that share their beginning (data/share.h): pack, wide; -1: none */
    int32_t *table[2];
};

/* PLIM_BUG if an input's shape does not match its name. */
enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err);
enum plim_status feed_send(struct feed *feed, struct plim_error *err);
void feed_close(struct feed *feed);

/* Host memory of a feed with the named arrays (bits 1 << name) for a device with its own memory. packed: of a pair that shares its
 * beginning; 0: none does. */
int64_t feed_bytes(const struct device_facts *facts, const struct rows *rows, unsigned names, int64_t packed);
