/* fake_pjrt.h - a PJRT plug-in that computes nothing and fails to order (fake_pjrt.c builds build/<preset>/tests/fake_pjrt.so).
 *
 * FAKE_PJRT is read whenever the plug-in is loaded. It is a list of settings with commas between them:
 *
 *     fail=CALL:N:CODE[:event]   the Nth call (0: every one) of PJRT_CALL fails with this code, or the event it returns does
 *     lose=CALL:N                from the Nth call of PJRT_CALL on, every call fails with UNAVAILABLE: the device is lost
 *     lack=CALL                  the function is not in the list
 *     functions=N                the list ends after N functions
 *     size=CALL:N                the call takes arguments of N bytes only, and says so
 *     major=N, devices=N         version; number of devices (1)
 *     known=NAME+NAME            options of the client; any other is refused, and all are without this
 *     limit=BYTES                device memory as reported; "stats=none": not reported; "pool=1": kept when it is freed
 *     holds=BYTES                device memory as it is: more is RESOURCE_EXHAUSTED; where absent, as much as you like
 *     temp=BYTES                 that an executable says it needs while it runs; "memory=none": it does not say
 *     own=1                      the device uses our memory in place
 *     report=FILE                live objects and calls are written there when a client is destroyed
 *
 * Under the name libcuda.so.1 it is the driver of a card of 1 GiB. Results of a program are zero, or its donated arguments. */
#pragma once

enum fake_kind {
    FAKE_CLIENTS,
    FAKE_ERRORS,
    FAKE_EVENTS,
    FAKE_BUFFERS,
    FAKE_EXECUTABLES,
    FAKE_LOADED,
    FAKE_SERIALIZED,
    FAKE_KINDS
};

/* What is live. */
struct fake_pjrt {
    long live[FAKE_KINDS];
    long calls[128];  /* by enum pjrt_function, since the plug-in was loaded */
    long misuses;     /* an object that was used after its end, or of another kind */
    long options;     /* that the last client was given */
    char create[256]; /* their names and values */
};

/* Exported by the plug-in beside GetPjrtApi. */
typedef const struct fake_pjrt *fake_pjrt_now(void);
