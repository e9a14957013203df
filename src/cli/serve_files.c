/* serve_files.c - see serve_files.h. */
#include "cli/serve_files.h"

#include <sys/resource.h>

/* Beside connections: the model's files, sockets, threads that compute and read; of each thread of the front a few. */
enum { OTHERS = 48, OF_THREAD = 8, LEAST_CONNECTIONS = 8 };

enum plim_status serve_files(struct http_limits *limits, int threads, const struct log *log,
                             struct plim_error *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return PLIM_OK;
    rlim_t others = OTHERS + (rlim_t)threads * OF_THREAD, need = others + (rlim_t)limits->connections;
    if (files.rlim_cur >= need) return PLIM_OK;
    struct rlimit more = {files.rlim_max == RLIM_INFINITY || files.rlim_max > need ? need : files.rlim_max,
                          files.rlim_max};
    if (more.rlim_cur > files.rlim_cur && setrlimit(RLIMIT_NOFILE, &more) == 0) files = more;
    if (files.rlim_cur >= need) return PLIM_OK;
    if (files.rlim_cur < others + LEAST_CONNECTIONS)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "serve: the limit of %llu open files is below the %llu that a server needs; raise it "
            "(ulimit -n 1024)",
            (unsigned long long)files.rlim_cur, (unsigned long long)(others + LEAST_CONNECTIONS));
    int connections = (int)(files.rlim_cur - others);
    log_warn(log, "only %d connections instead of %d: the limit of open files is %llu (ulimit -n)",
             connections, limits->connections, (unsigned long long)files.rlim_cur);
    limits->connections = connections, limits->idle = connections / 2;
    return PLIM_OK;
}
