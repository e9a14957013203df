/* control_path.h - where a control socket is, however long its path: the address names the open folder.
 *
 * The kernel takes 107 bytes of a path. The folder is opened and the address is /proc/self/fd/FOLDER/NAME.
 */
#ifndef PLIM_NET_CONTROL_PATH_H
#define PLIM_NET_CONTROL_PATH_H

#include "base/status.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/un.h>

struct control_path {
    char *text; /* as it was given */
    int folder; /* open, or -1 */
    bool made;  /* the socket there is ours: removed when closed */
    struct sockaddr_un address;
};

/* PLIM_IO: the folder cannot be opened; PLIM_BAD_INPUT: the name is too long. */
enum plim_status control_path_open(const char *path, struct control_path *out, struct plim_error *err);
int control_path_connect(const struct control_path *path); /* a connected socket; -1: errno says why not */
void control_path_remove(const struct control_path *path); /* a socket; anything else stays */
void control_path_close(struct control_path *path);

#endif
