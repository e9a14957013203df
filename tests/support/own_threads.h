/* own_threads.h - how many threads this process has.
 *
 * The kernel lists a thread for a moment after it was joined. From before it can be joined it is marked as ending, and such threads do
 * not count.
 */
#ifndef PLIM_TESTS_OWN_THREADS_H
#define PLIM_TESTS_OWN_THREADS_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static inline int thread_is_ending(const char *task)
{
    enum { PF_EXITING = 4 };
    char path[300], line[512] = "";
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", task);
    FILE *f = fopen(path, "r");
    if (!f) return 1; /* it has gone */
    const char *name_end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return !name_end || (sscanf(name_end, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && flags & PF_EXITING);
}

static inline int own_threads(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        n += task->d_name[0] != '.' && !thread_is_ending(task->d_name);
    if (tasks) closedir(tasks);
    return n;
}

#endif
