/* ledger.h - the memory account of one tier.
 *
 * A ledger holds a budget in bytes, the reserved bytes by class, and the peak. It moves no memory: code reserves
 * bytes here before it takes them and releases them afterwards. Exceeding the budget is an error value
 * (PLIM_NO_MEMORY with the tier, the class and the missing bytes), never an abort. Thread-safe.
 *
 *     static const char *const classes[] = {"param", "grad", "state"};
 *     struct ledger ledger;
 *     ledger_init(&ledger, "host", 64 << 20, classes, 3);
 *     if (ledger_reserve(&ledger, 1, n, &err) != PLIM_OK) return err.status;
 *     ...
 *     ledger_release(&ledger, 1, n);
 *     ledger_destroy(&ledger);
 */
#pragma once

#include "base/fault.h"
#include "base/status.h"
#include <pthread.h>
#include <stdint.h>

enum { LEDGER_CLASSES_MAX = 16 };

#define LEDGER_UNLIMITED UINT64_MAX

/* The numbers of a ledger at one moment. */
struct ledger_state {
    uint64_t budget;
    uint64_t current, peak;
    uint64_t by_class[LEDGER_CLASSES_MAX];      /* sum: current                       */
    uint64_t peak_by_class[LEDGER_CLASSES_MAX]; /* each class's own peak              */
    uint64_t at_peak[LEDGER_CLASSES_MAX];       /* by class when `peak` was reached; sum: peak */
    uint64_t refused;                           /* reservations refused so far        */
    uint64_t broken;                            /* releases of more than was reserved */
};

struct ledger {
    pthread_mutex_t lock;
    const char *tier;
    const char *classes[LEDGER_CLASSES_MAX];
    int class_count;
    struct fault *fault; /* NULL: the process's own; a test may set it after ledger_init */
    struct ledger_state state;
};

/* tier and class names are kept by pointer. 1 to 16 classes. */
void ledger_init(struct ledger *ledger, const char *tier, uint64_t budget, const char *const *classes,
                 int class_count);
void ledger_destroy(struct ledger *ledger);

/* Take bytes; on PLIM_NO_MEMORY nothing has changed. */
enum plim_status ledger_reserve(struct ledger *ledger, int cls, uint64_t bytes, struct plim_error *err);

/* Releases bytes. Releasing more than was reserved is our bug: the class becomes 0 and ledger_check reports it. */
void ledger_release(struct ledger *ledger, int cls, uint64_t bytes);

/* Changes the budget at any time. It may fall below the present use: nothing is taken away, new reservations are
 * refused until use has fallen, and ledger_over returns the excess. */
void ledger_set_budget(struct ledger *ledger, uint64_t budget);

/* Bytes above the budget, 0 when within. */
uint64_t ledger_over(struct ledger *ledger);

/* Bytes that could be reserved now. */
uint64_t ledger_left(struct ledger *ledger);

uint64_t ledger_current(struct ledger *ledger);
uint64_t ledger_peak(struct ledger *ledger);

/* A consistent copy of all numbers. */
void ledger_read(struct ledger *ledger, struct ledger_state *out);

/* Let peaks start again from the present use. */
void ledger_reset_peak(struct ledger *ledger);

/* All invariants: sums agree, peaks are not below use, nothing was released twice. PLIM_BUG names the break.
 */
enum plim_status ledger_check(struct ledger *ledger, struct plim_error *err);
