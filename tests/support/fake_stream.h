/* fake_stream.h - what the fake device hands to libraries as a stream: they queue calls on it, and the device makes them when it
 * likes, again for every launch of a program. */
#ifndef PLIM_TESTS_FAKE_STREAM_H
#define PLIM_TESTS_FAKE_STREAM_H

#include <stdbool.h>
#include <stddef.h>

struct fake_stream {
    /* call(arg) later; so many bytes of arg are copied. */
    void (*queue)(struct fake_stream *, void (*call)(const void *arg), const void *arg, size_t bytes);
    bool stuck; /* set by a call that waits for ever: the device is never idle again */
};

#endif
