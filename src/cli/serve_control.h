/* serve_control.h - opens a server's control socket: at the given path, else in the user's run-time folder.
 *
 *     serve_control_open(NULL, server, &log, &control, &err);   // $XDG_RUNTIME_DIR/plimsoll/serve-8000.sock, or none
 */
#pragma once

#include "net/control.h"
#include "serve/server.h"

/* `path` "none": no socket; NULL: the default path, and failure is not fatal. Logs the path, or why there is
 * no socket. */
enum plim_status serve_control_open(const char *path, struct server *server, const struct log *log,
                                    struct control **out, struct plim_error *err);
void serve_control_stop(void); /* for server_options.stop: acts like SIGTERM */
