/* feed.c - see feed.h. */
#include "runtime/feed.h"

#include <stdlib.h>

int64_t feed_bytes(const struct device_facts *facts, int64_t count)
{
    return facts->unified_memory ? 0 : FEED_COUNT * count * (int64_t)sizeof(int32_t);
}

enum plim_status feed_open(struct feed *feed, struct exec *exec, struct plim_error *err)
{
    static const char *const labels[FEED_COUNT] = {"ids", "targets", "pos"};
    int32_t **arrays[FEED_COUNT] = {&feed->ids, &feed->targets, &feed->pos};
    *feed = (struct feed){.exec = exec};
    for (int i = 0; i < FEED_COUNT; i++) feed->tensor[i] = tape_find(exec->tape, labels[i], -1);
    int64_t count = tensor_count(&exec->tape->tensors[feed->tensor[FEED_IDS]]);
    int64_t bytes = feed_bytes(&exec->device->facts, count);
    if (bytes) {
        feed->staged = malloc((size_t)bytes);
        if (!feed->staged) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of tokens");
    }
    for (int i = 0; i < FEED_COUNT; i++)
        if (feed->tensor[i] >= 0)
            *arrays[i] = feed->staged ? feed->staged + i * count : exec_host(exec, feed->tensor[i]);
    return PLIM_OK;
}

enum plim_status feed_send(struct feed *feed, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const int32_t *arrays[FEED_COUNT] = {feed->ids, feed->targets, feed->pos};
    for (int i = 0; i < FEED_COUNT && feed->staged && status == PLIM_OK; i++) {
        if (feed->tensor[i] < 0) continue;
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
