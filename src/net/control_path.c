#define _GNU_SOURCE
#include "net/control_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

enum plim_status control_path_open(const char *path, struct control_path *out, struct plim_error *err)
{
    *out = (struct control_path){.folder = -1, .address.sun_family = AF_UNIX};
    const char *name = name_of(path);
    size_t room = sizeof out->address.sun_path;
    out->text = strdup(path);
    char *folder = name == path ? strdup(".") : strndup(path, (size_t)(name - path));
    if (!out->text || !folder) return free(folder), plim_fail(err, PLIM_NO_MEMORY, "%s: no memory", path);
    out->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    if (out->folder < 0) return plim_fail(err, PLIM_IO, "%s: the folder: %s", path, strerror(errno));
    int len = snprintf(out->address.sun_path, room, "/proc/self/fd/%d/%s", out->folder, name);
    if (!*name || (size_t)len >= room)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: no name of a socket; write e.g. FOLDER/control.sock",
                         path);
    return PLIM_OK;
}

int control_path_connect(const struct control_path *path)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&path->address, sizeof path->address) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

void control_path_remove(const struct control_path *path)
{
    struct stat at;
    const char *name = name_of(path->text);
    if (fstatat(path->folder, name, &at, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(at.st_mode))
        unlinkat(path->folder, name, 0);
}

void control_path_close(struct control_path *path)
{
    if (path->made) control_path_remove(path);
    if (path->folder >= 0) close(path->folder);
    free(path->text);
}
