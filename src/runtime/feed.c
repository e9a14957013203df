/* feed.c - see feed.h. */
#include "runtime/feed.h"

#include <stdlib.h>

enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err)
{
    static const char *const labels[3] = {"ids", "targets", "pos"};
    int32_t **arrays[3] = {&feed->ids, &feed->targets, &feed->pos};
    *feed = (struct feed){.exec = exec};
    for (int i = 0; i < 3; i++) feed->tensor[i] = tape_find(exec->tape, labels[i], -1);
    int64_t count = tensor_count(&exec->tape->tensors[feed->tensor[0]]);
    if (!exec->device->facts.unified_memory) {
        feed->staged = malloc(3 * (size_t)count * sizeof *feed->staged);
        if (!feed->staged) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of tokens");
    }
    for (int i = 0; i < 3; i++)
        *arrays[i] = feed->staged ? feed->staged + i * count : exec_host(exec, feed->tensor[i]);
    return PLIM_OK;
}

enum plim_status feed_send(struct feed *feed, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const int32_t *arrays[3] = {feed->ids, feed->targets, feed->pos};
    for (int i = 0; i < 3 && feed->staged && status == PLIM_OK; i++) {
        int64_t bytes = tensor_bytes(&feed->exec->tape->tensors[feed->tensor[i]]);
        status = exec_write(feed->exec, feed->tensor[i], arrays[i], 0, bytes, err);
    }
    return status;
}

void feed_close(struct feed *feed)
{
    free(feed->staged);
    *feed = (struct feed){0};
}
