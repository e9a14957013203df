/* terminal.c - whether somebody looks at what is written, for progress bars and colours. See cli.h.
 *
 * Open MPI gives each rank a terminal of its own and passes on what comes out of it, wherever that goes. There the launcher's
 * stream decides, which is that of the nearest ancestor with another one. */
#include "cli/cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANCESTORS = 16 };

/* The parent of a process; 0: unknown. */
static int parent_of(int pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    const char *end = strrchr(text, ')'); /* names may hold anything */
    int parent = 0;
    return end && sscanf(end + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

static bool is_terminal_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    bool is = fd >= 0 && isatty(fd);
    if (fd >= 0) close(fd);
    return is;
}

static bool launcher_has_terminal(int fd)
{
    struct stat mine, theirs;
    char path[64];
    int pid = getppid();
    if (fstat(fd, &mine)) return false;
    for (int i = 0; i < ANCESTORS && pid > 1; i++, pid = parent_of(pid)) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        if (stat(path, &theirs)) return false;
        if (theirs.st_rdev != mine.st_rdev || theirs.st_ino != mine.st_ino) return is_terminal_file(path);
    }
    return false;
}

bool cli_is_terminal(int fd)
{
    if (!isatty(fd)) return false;
    return !getenv("OMPI_COMM_WORLD_SIZE") || launcher_has_terminal(fd);
}
