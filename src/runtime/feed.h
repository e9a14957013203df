/* feed.h - where rows of tokens are put for the next micro-batch.
 *
 *     struct feed feed;
 *     feed_open(&feed, &exec, &err);
 *     loader_fill(&loader, rows, feed.ids, feed.targets, feed.pos, &tokens, &err);
 *     feed_send(&feed, &err);              // on the device now
 *     feed_close(&feed);
 *
 * On the CPU the three arrays are the tensors themselves; a device with its own memory gets a copy. */
#ifndef PLIM_TRAIN_FEED_H
#define PLIM_TRAIN_FEED_H

#include "exec/exec.h"

struct feed {
    struct exec *exec;
    int32_t *ids, *targets, *pos; /* [rows, T] each */
    int tensor[3];                /* their tensors */
    int32_t *staged;              /* the three arrays; NULL where the host writes tensors directly */
};

enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err);
enum plim_status feed_send(struct feed *feed, struct plim_error *err);
void feed_close(struct feed *feed);

#endif
