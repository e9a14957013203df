/* run_lock.h - one run at a time in an output folder, and proof before step 1 that the folder can be written.
 *
 *     struct run_lock lock = RUN_LOCK_NONE;
 *     run_lock_take(&lock, "runs/small", &err);       // PLIM_BAD_INPUT names the process that has it
 *     ... train, save ...
 *     run_lock_release(&lock);
 *
 * The lock is flock(2) on the file .lock in the folder, which holds the process id: the system gives it back when a
 * process ends in whatever way, so a crash leaves nothing to clean up. On a file system without locks the folder is
 * only tried, and `held` stays false.
 */
#ifndef PLIM_TRAIN_RUN_LOCK_H
#define PLIM_TRAIN_RUN_LOCK_H

#include "base/status.h"
#include <stdbool.h>

struct run_lock {
    int fd;
    bool held, made_folder; /* made_folder: it was not there before; it goes again if nothing came into it */
    char dir[420];
};

#define RUN_LOCK_NONE                                                                                        \
    {                                                                                                        \
        .fd = -1                                                                                             \
    }

/* Makes the folder when it is not there, takes the lock and tries the folder as a checkpoint would use it: a file in a
 * folder of its own is written, synced, renamed and removed. PLIM_BAD_INPUT: another process has the lock, or the
 * folder cannot be made or written. */
enum plim_status run_lock_take(struct run_lock *lock, const char *dir, struct plim_error *err);
void run_lock_release(struct run_lock *lock);

#endif
