/* serve_files.h - the limit on open files of a server; each connection is one.
 *
 *     serve_files(&limits, threads, &log, &err);           // before the server listens
 */
#pragma once

#include "base/log.h"
#include "net/http.h"

/* Raises the process's limit if possible. If that is not enough, lowers the number of connections and logs a
 * warning. PLIM_BAD_INPUT: almost none would be left. */
enum plim_status serve_files(struct http_limits *limits, int threads, const struct log *log,
                             struct plim_error *err);
