/* serve_control.h - where the control socket of a server is: as told, else under the user's run-time folder.
 *
 *     serve_control_open(NULL, server, &log, &control, &err);   // $XDG_RUNTIME_DIR/plimsoll/serve-8000.sock, or none
 */
#ifndef PLIM_CLI_SERVE_CONTROL_H
#define PLIM_CLI_SERVE_CONTROL_H

#include "net/control.h"
#include "serve/server.h"

/* `path` "none": none; NULL: the default, and a server goes on without one that cannot be made. The log hears where it is, or why
 * there is none. */
enum plim_status serve_control_open(const char *path, struct server *server, const struct log *log,
                                    struct control **out, struct plim_error *err);
void serve_control_stop(void); /* for server_options.stop: as if SIGTERM had come */

#endif
