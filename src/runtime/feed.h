/* feed.h - where tokens are put for the next pass.
 *
 *     struct feed feed;
 *     feed_open(&feed, &exec, &err);
 *     loader_fill(&loader, rows, feed.ids, feed.targets, feed.pos, &tokens, &err);
 *     feed_send(&feed, &err);              // on the device now
 *     feed_close(&feed);
 *
 * Where the host may write tensors directly, the arrays are the tensors; a device with its own memory gets copies. */
#ifndef PLIM_RUNTIME_FEED_H
#define PLIM_RUNTIME_FEED_H

#include "exec/exec.h"

enum { FEED_IDS, FEED_TARGETS, FEED_POS, FEED_COUNT };

struct feed {
    struct exec *exec;
    int32_t *ids, *targets, *pos; /* [rows, T] each; targets: NULL when the tape has none */
    int tensor[FEED_COUNT];       /* their tensors, -1 */
    int32_t *staged;              /* the arrays; NULL where the host writes tensors directly */
};

enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err);
enum plim_status feed_send(struct feed *feed, struct plim_error *err);
void feed_close(struct feed *feed);

/* Host bytes that a feed of `count` tokens takes beside a device like this one. */
int64_t feed_bytes(const struct device_facts *facts, int64_t count);

#endif
