/* file.c - plain POSIX calls, retried when interrupted, reported with the path. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/bytes.h"
#include "base/fault.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The kernel moves at most this much per call anyway. */
#define CALL_MAX ((size_t)0x7ffff000)

static enum plim_status fail(struct plim_error *err, const char *path, const char *doing)
{
    int code = errno; /* before anything else can change it */
    return plim_fail(err, PLIM_IO, "%s: cannot %s: %s", path, doing, strerror(code));
}

static enum plim_status fail_memory(struct plim_error *err, const char *path)
{
    return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

static enum plim_status fail_large(struct plim_error *err, const char *path, uint64_t max_bytes)
{
    char most[BYTES_TEXT];
    return plim_fail(err, PLIM_BAD_INPUT, "%s: larger than %s, the maximum for this file", path,
                     bytes_format(most, max_bytes));
}

/* Read to the end of the file, which may be a pipe or grow meanwhile: the size is only a hint. */
static enum plim_status read_all(int fd, const char *path, uint64_t max_bytes, uint64_t hint,
                                 struct strbuf *out, struct plim_error *err)
{
    size_t before = out->len;
    strbuf_reserve(out, (size_t)(hint < max_bytes ? hint : max_bytes) + 1);
    for (;;) {
        if (!strbuf_reserve(out, 4096)) return fail_memory(err, path);
        size_t room = out->cap - out->len - 1;
        ssize_t n = read(fd, out->data + out->len, room < CALL_MAX ? room : CALL_MAX);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(err, path, "read");
        if (n == 0) return PLIM_OK;
        out->len += (size_t)n;
        out->data[out->len] = '\0';
        if (out->len - before > max_bytes) return fail_large(err, path, max_bytes);
    }
}

static enum plim_status fail_pipe(struct plim_error *err, const char *path)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s: is a pipe; give a file, because it is read more than once",
                     path);
}

enum plim_status file_refuse_pipe(const char *path, struct plim_error *err)
{
    struct stat st;
    return !stat(path, &st) && S_ISFIFO(st.st_mode) ? fail_pipe(err, path) : PLIM_OK;
}

/* Opening a pipe to read waits for a writer, perhaps for ever; so it is opened without waiting, and then waited for a
 * while. Any other file is opened as usual. */
static enum plim_status open_any(const char *path, bool pipe_will_do, int *fd, struct stat *st,
                                 struct plim_error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return fail(err, path, "open");
    enum plim_status status = fstat(*fd, st) < 0 ? fail(err, path, "read") : PLIM_OK;
    if (status == PLIM_OK && S_ISFIFO(st->st_mode)) {
        struct pollfd wait = {.fd = *fd, .events = POLLIN};
        if (!pipe_will_do)
            status = fail_pipe(err, path);
        else if (poll(&wait, 1, 1000 * FILE_PIPE_SECONDS) == 0)
            status = plim_fail(err, PLIM_BAD_INPUT,
                               "%s: is a pipe, and nothing came through it for %d s; give a file", path,
                               FILE_PIPE_SECONDS);
    }
    if (status == PLIM_OK && fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) & ~O_NONBLOCK) < 0)
        status = fail(err, path, "open");
    if (status != PLIM_OK) close(*fd), *fd = -1;
    return status;
}

enum plim_status file_open(const char *path, int *fd, struct plim_error *err)
{
    struct stat st;
    return open_any(path, false, fd, &st, err);
}

enum plim_status file_read(const char *path, uint64_t max_bytes, struct strbuf *out, struct plim_error *err)
{
    struct stat st;
    int fd;
    enum plim_status status = open_any(path, true, &fd, &st, err);
    if (status != PLIM_OK) return status;
    if (S_ISDIR(st.st_mode))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: is a folder, expected a file", path);
    else if (st.st_size > 0 && (uint64_t)st.st_size > max_bytes)
        status = fail_large(err, path, max_bytes);
    else
        status = read_all(fd, path, max_bytes, st.st_size > 0 ? (uint64_t)st.st_size : 0, out, err);
    close(fd);
    return status;
}

enum plim_status file_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path,
                                 struct plim_error *err)
{
    char *at = buf;
    while (n > 0) {
        ssize_t got = pread(fd, at, n < CALL_MAX ? n : CALL_MAX, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail(err, path, "read");
        if (got == 0)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: ends at byte %llu, %zu bytes too early", path,
                             (unsigned long long)offset, n);
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return PLIM_OK;
}

enum plim_status file_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path,
                                  struct plim_error *err)
{
    fault_may_die();
    if (fault_hit(NULL, FAULT_WRITE)) {
        errno = ENOSPC;
        return fail(err, path, "write");
    }
    const char *at = buf;
    while (n > 0) {
        ssize_t put = pwrite(fd, at, n < CALL_MAX ? n : CALL_MAX, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail(err, path, "write");
        at += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return PLIM_OK;
}

enum plim_status file_sync_parent(const char *path, struct plim_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder) return fail_memory(err, path);
    enum plim_status status = PLIM_OK;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) status = fail(err, folder, "open");
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to do then. */
    if (fd >= 0 && fsync(fd) < 0 && errno != EINVAL) status = fail(err, folder, "sync");
    if (fd >= 0) close(fd);
    free(folder);
    return status;
}

enum plim_status file_refuse_special(const char *path, struct plim_error *err)
{
    struct stat st;
    if (stat(path, &st) || S_ISREG(st.st_mode)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: is a %s and would be replaced by a file; give another name",
                     path,
                     S_ISDIR(st.st_mode)    ? "folder"
                     : S_ISFIFO(st.st_mode) ? "pipe"
                     : S_ISSOCK(st.st_mode) ? "socket"
                                            : "device");
}

static void forget(struct file_atomic *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->temp);
    *f = (struct file_atomic){.fd = -1};
}

enum plim_status file_atomic_begin(struct file_atomic *f, const char *path, struct plim_error *err)
{
    *f = (struct file_atomic){.fd = -1};
    enum plim_status status = file_refuse_special(path, err);
    if (status != PLIM_OK) return status;
    f->path = strdup(path);
    size_t len = strlen(path) + 32;
    f->temp = malloc(len);
    if (!f->path || !f->temp) {
        forget(f);
        return fail_memory(err, path);
    }
    /* The name is ours alone: process id and a number; an old crash's left-over is stepped over. */
    for (unsigned i = 0; i < 1000 && f->fd < 0; i++) {
        snprintf(f->temp, len, "%s.tmp.%ld.%u", path, (long)getpid(), i);
        f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno != EEXIST) break;
    }
    if (f->fd >= 0) return PLIM_OK;
    status = fail(err, f->temp, "create");
    forget(f);
    return status;
}

enum plim_status file_atomic_commit(struct file_atomic *f, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    fault_may_die();
    if (fsync(f->fd) < 0) {
        status = fail(err, f->temp, "sync");
        goto out;
    }
    int closed = close(f->fd);
    f->fd = -1;
    if (closed < 0) {
        status = fail(err, f->temp, "close");
        goto out;
    }
    fault_may_die();
    if (rename(f->temp, f->path) < 0)
        status = fail(err, f->path, "replace");
    else
        status = file_sync_parent(f->path, err);
out:
    if (status != PLIM_OK) unlink(f->temp);
    forget(f);
    return status;
}

void file_atomic_abandon(struct file_atomic *f)
{
    if (f->temp) unlink(f->temp);
    forget(f);
}

enum plim_status file_write_atomic(const char *path, const void *data, size_t len, struct plim_error *err)
{
    struct file_atomic f;
    enum plim_status status = file_atomic_begin(&f, path, err);
    if (status == PLIM_OK) status = file_pwrite_full(f.fd, data, len, 0, path, err);
    if (status == PLIM_OK) return file_atomic_commit(&f, err);
    file_atomic_abandon(&f);
    return status;
}

static enum plim_status make_dir(const char *path, struct plim_error *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0) return PLIM_OK;
    int code = errno;
    if (code == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return PLIM_OK;
    errno = code;
    return fail(err, path, "create the folder");
}

enum plim_status file_make_dirs(const char *path, struct plim_error *err)
{
    char *copy = strdup(path);
    if (!copy) return fail_memory(err, path);
    enum plim_status status = PLIM_OK;
    for (char *at = copy + (*copy == '/'); status == PLIM_OK && *at;) {
        at += strcspn(at, "/");
        char after = *at;
        *at = '\0';
        status = make_dir(copy, err);
        *at = after;
        at += strspn(at, "/");
    }
    free(copy);
    return status;
}

int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

int64_t file_free_bytes(const char *folder)
{
    struct statvfs fs;
    char *path = strdup(*folder ? folder : ".");
    int failed = path ? statvfs(path, &fs) : -1;
    while (failed && path && errno == ENOENT) { /* up to the first folder that is there */
        char *slash = strrchr(path, '/');
        if (slash == path && !path[1]) break;
        if (!slash)
            strcpy(path, ".");
        else
            slash[slash == path] = '\0';
        failed = statvfs(path, &fs);
    }
    free(path);
    if (failed) return -1;
    if (fault_hit(NULL, FAULT_DISK)) return 0;
    return (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}
