/* control_path.h - addresses of control sockets, for paths of any length.
 *
 * The kernel limits a socket's path to 107 bytes. So the folder is opened, and the address is /proc/self/fd/FOLDER/NAME.
 */
#pragma once

#include "base/status.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/un.h>

struct control_path {
    char *text; /* as given */
    int folder; /* open, or -1 */
    bool made;  /* we created the socket and remove it when closing */
    struct sockaddr_un address;
};

/* PLIM_IO: the folder cannot be opened; PLIM_BAD_INPUT: the name is too long. */
enum plim_status control_path_open(const char *path, struct control_path *out, struct plim_error *err);
int control_path_connect(const struct control_path *path); /* a connected socket; -1: see errno */
void control_path_remove(const struct control_path *path); /* removes a socket; leaves anything else */
void control_path_close(struct control_path *path);
