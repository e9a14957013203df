/* serve_control.c - see serve_control.h. */
#include "cli/serve_control.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void serve_control_stop(void) { kill(getpid(), SIGTERM); }

/* The default: a name in a folder of ours, which is made. False: there is no place for one. */
static bool default_path(int port, char *path, size_t size, const struct log *log)
{
    const char *home = getenv("XDG_RUNTIME_DIR");
    if (!home || *home != '/') {
        log_info(log, "no control socket: XDG_RUNTIME_DIR is not set; --control PATH makes one");
        return false;
    }
    int len = snprintf(path, size, "%s/plimsoll", home);
    if (len < 0 || (size_t)len + 32 > size || (mkdir(path, 0700) != 0 && errno != EEXIST)) {
        log_warn(log, "no control socket: cannot create %.200s/plimsoll: %s", home, strerror(errno));
        return false;
    }
    snprintf(path + len, size - (size_t)len, "/serve-%d.sock", port);
    return true;
}

enum plim_status serve_control_open(const char *path, struct server *server, const struct log *log,
                                    struct control **out, struct plim_error *err)
{
    char chosen[MODEL_PATH];
    struct plim_error why = {0};
    *out = NULL;
    if (path && !strcmp(path, "none")) return PLIM_OK;
    if (!path && !default_path(server_port(server), chosen, sizeof chosen, log)) return PLIM_OK;
    enum plim_status status = control_open(path ? path : chosen, server_control, server, out, &why);
    if (status == PLIM_OK) {
        log_info(log, "control socket %s", path ? path : chosen);
    } else if (!path) {
        log_warn(log, "no control socket: %s", why.text);
        return PLIM_OK;
    } else if (err) {
        *err = why;
        plim_error_prefix(err, "serve: option '--control'");
    }
    return status;
}
