/* file_order.c - stands before the C library (LD_PRELOAD) and writes down, in order, what a program does to files: one line each in
 * the file that FILE_ORDER names.
 *
 *     W path          bytes were written
 *     S path          a file or folder was synced
 *     R old<TAB>new   a name was changed
 *
 * tests/fault/sync_order.py holds the lines against what a crash may not lose. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int order = -1;
static ssize_t (*real_write)(int, const void *, size_t);

__attribute__((constructor)) static void open_order(void)
{
    const char *path = getenv("FILE_ORDER");
    *(void **)&real_write = dlsym(RTLD_NEXT, "write");
    if (path) order = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void put(char what, const char *a, const char *b)
{
    char line[2 * PATH_MAX + 8];
    int len = snprintf(line, sizeof line, "%c %s%s%s\n", what, a, b ? "\t" : "", b ? b : "");
    if (order >= 0 && len > 0 && real_write(order, line, (size_t)len) != len) abort();
}

static void put_fd(char what, int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (order < 0 || len <= 0 || path[0] != '/') return;
    path[len] = '\0';
    put(what, path, NULL);
}

/* The last part of a name may be new: its folder is resolved. */
static void whole(const char *path, char out[PATH_MAX])
{
    char folder[PATH_MAX], *found;
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    found = realpath(folder, NULL);
    if (snprintf(out, PATH_MAX, "%s/%s", found ? found : "?", slash ? slash + 1 : path) >= PATH_MAX) abort();
    free(found);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *buf, size_t n)
{
    if (fd != order) put_fd('W', fd);
    return real_write(fd, buf, n);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    put_fd('W', fd);
    return REAL(pwrite)(fd, buf, n, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    put_fd('W', fd);
    return REAL(pwrite64)(fd, buf, n, at);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *there, size_t n, unsigned flags)
{
    put_fd('W', to);
    return REAL(copy_file_range)(from, at, to, there, n, flags);
}

int fsync(int fd)
{
    int result = REAL(fsync)(fd);
    put_fd('S', fd);
    return result;
}

int fdatasync(int fd)
{
    int result = REAL(fdatasync)(fd);
    put_fd('S', fd);
    return result;
}

int rename(const char *from, const char *to)
{
    char old[PATH_MAX], new[PATH_MAX];
    whole(from, old), whole(to, new);
    int result = REAL(rename)(from, to);
    if (!result) put('R', old, new);
    return result;
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    whole(from, old), whole(to, new);
    int result = REAL(renameat2)(a, from, b, to, flags);
    if (!result) put('R', old, new);
    return result;
}
