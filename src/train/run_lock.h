/* run_lock.h - one run at a time per output folder, and a check before step 1 that the folder is writable.
 *
 *     struct run_lock lock = RUN_LOCK_NONE;
 *     run_lock_take(&lock, "runs/small", &err);       // PLIM_BAD_INPUT names the process that has it
 *     ... train, save ...
 *     run_lock_release(&lock);
 *
 * The lock is flock(2) on the file .lock in the folder, which holds the process id. The system releases it when the process
 * ends in any way, so a crash leaves nothing to clean up. On a file system without locks the folder is only tested, and
 * `held` stays false.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>

struct run_lock {
    int fd;
    bool held, made_folder; /* made_folder: we created it, and remove it if it stays empty */
    char dir[420];
};

#define RUN_LOCK_NONE                                                                                        \
    {                                                                                                        \
        .fd = -1                                                                                             \
    }

/* Creates the folder if necessary, takes the lock and tests the folder the way a checkpoint uses it: writes,
 * syncs, renames and removes a file in a subfolder. PLIM_BAD_INPUT: another process has the lock, or the
 * folder cannot be created or written. */
enum plim_status run_lock_take(struct run_lock *lock, const char *dir, struct plim_error *err);
void run_lock_release(struct run_lock *lock);
