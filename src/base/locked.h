/* locked.h - a mutex that is held to the end of a block.
 *
 *     LOCKED(&queue->lock);        // a declaration: released wherever the block is left
 */
#pragma once

#include <pthread.h>

static inline pthread_mutex_t *locked_take(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void locked_give(pthread_mutex_t **mutex) { pthread_mutex_unlock(*mutex); }

#define LOCKED(mutex)                                                                                        \
    pthread_mutex_t *locked __attribute__((cleanup(locked_give), unused)) = locked_take(mutex)
