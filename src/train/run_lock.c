/* run_lock.c - see run_lock.h.
 *
 * The lock file is removed on release. A process that opened it just before would then lock a file without a name while
 * a third one makes a new file: so after locking, the name must still stand for the locked file. */
#include "train/run_lock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME     ".lock"
#define ATTEMPTS 100

static enum plim_status unusable(const char *dir, const char *what, struct plim_error *err)
{
    int code = errno;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "key 'output.dir': %s: %s: %s; checkpoints could not be saved there, choose another folder", dir,
        what, strerror(code));
}

static void lock_path(const struct run_lock *lock, char *path, size_t size)
{
    snprintf(path, size, "%s/" NAME, lock->dir);
}

static enum plim_status name_holder(const struct run_lock *lock, struct plim_error *err)
{
    char text[32] = {0};
    long pid = pread(lock->fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
    char who[64] = "another process";
    if (pid > 0) snprintf(who, sizeof who, "process %ld", pid);
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "key 'output.dir': %s: %s is training into it; wait until it ends, or choose another folder",
        lock->dir, who);
}

/* The name still stands for the file that is locked. */
static bool is_current(const struct run_lock *lock, const char *path)
{
    struct stat mine, named;
    return !fstat(lock->fd, &mine) && !stat(path, &named) && mine.st_ino == named.st_ino &&
           mine.st_dev == named.st_dev;
}

static enum plim_status take(struct run_lock *lock, struct plim_error *err)
{
    char path[480], text[32];
    lock_path(lock, path, sizeof path);
    for (int i = 0; i < ATTEMPTS; i++) {
        lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock->fd < 0) return unusable(lock->dir, "cannot make a file", err);
        if (flock(lock->fd, LOCK_EX | LOCK_NB)) {
            if (errno == EWOULDBLOCK) return name_holder(lock, err);
            return PLIM_OK; /* no locks here: held stays false */
        }
        if (is_current(lock, path)) {
            lock->held = true;
            int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
            if (ftruncate(lock->fd, 0) || pwrite(lock->fd, text, (size_t)n, 0) != n)
                return unusable(lock->dir, "cannot write", err);
            return PLIM_OK;
        }
        close(lock->fd), lock->fd = -1;
    }
    return plim_fail(err, PLIM_BAD_INPUT, "key 'output.dir': %s: other runs keep starting and ending in it",
                     lock->dir);
}

static bool write_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    bool good = write(fd, "plimsoll\n", 9) == 9 && fsync(fd) == 0;
    int code = errno;
    good = close(fd) == 0 && good;
    if (code) errno = code;
    return good;
}

/* Tries on a small scale what saving will do. */
static enum plim_status try_folder(const struct run_lock *lock, struct plim_error *err)
{
    char temp[480], moved[480], file[520];
    snprintf(temp, sizeof temp, "%s/.tmp-try-%ld", lock->dir, (long)getpid());
    snprintf(moved, sizeof moved, "%s/.tmp-tried-%ld", lock->dir, (long)getpid());
    snprintf(file, sizeof file, "%s/file", temp);
    if (mkdir(temp, 0777) && errno != EEXIST) return unusable(lock->dir, "cannot make a folder in it", err);
    enum plim_status status = PLIM_OK;
    if (!write_file(file)) status = unusable(lock->dir, "cannot write", err);
    if (status == PLIM_OK && rename(temp, moved)) status = unusable(lock->dir, "cannot rename", err);
    const char *last = status == PLIM_OK ? moved : temp;
    snprintf(file, sizeof file, "%s/file", last);
    unlink(file);
    rmdir(last);
    return status;
}

enum plim_status run_lock_take(struct run_lock *lock, const char *dir, struct plim_error *err)
{
    struct plim_error why = {0};
    *lock = (struct run_lock)RUN_LOCK_NONE;
    snprintf(lock->dir, sizeof lock->dir, "%s", dir);
    lock->made_folder = !file_exists(dir);
    if (file_make_dirs(dir, &why) != PLIM_OK)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'output.dir': %s; checkpoints could not be saved there, choose another folder",
                         why.text);
    enum plim_status status = take(lock, err);
    if (status == PLIM_OK) status = try_folder(lock, err);
    if (status != PLIM_OK) run_lock_release(lock);
    return status;
}

void run_lock_release(struct run_lock *lock)
{
    char path[480];
    lock_path(lock, path, sizeof path);
    if (lock->held) unlink(path);
    if (lock->made_folder && lock->dir[0])
        rmdir(lock->dir); /* fails, as it should, when something is in it */
    if (lock->fd >= 0) close(lock->fd);
    *lock = (struct run_lock)RUN_LOCK_NONE;
}
