/* serve_files.h - open files that a server may have: every connection is one.
 *
 *     serve_files(&limits, threads, &log, &err);           // before the server listens
 */
#ifndef PLIM_CLI_SERVE_FILES_H
#define PLIM_CLI_SERVE_FILES_H

#include "base/log.h"
#include "net/http.h"

/* Raises the process's limit where it may. Where that is not enough there will be fewer connections, and a warning says so;
 * PLIM_BAD_INPUT when there would be hardly any. */
enum plim_status serve_files(struct http_limits *limits, int threads, const struct log *log,
                             struct plim_error *err);

#endif
