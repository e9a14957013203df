/* run_page.h - an HTTP server on the loopback that shows a run's folder as a page, during the run or afterwards.
 *
 *     struct run_page *page;
 *     run_page_open("runs/small", 0, &page, &err);
 *     printf("http://127.0.0.1:%d\n", run_page_port(page));
 *     run_page_close(page);
 *
 * Paths:
 *
 *     /              the page (data/watch.html); it uses only the paths below
 *     /map.js        draws the arena map, as in plan --html
 *     /state         {"run", "live", "log":{"bytes","id"}, "plan":{"bytes","id"}, "status": the run's reply, or null}
 *     /log/OFFSET    bytes of the log from there on, at most RUN_PAGE_PIECE
 *     /plan/OFFSET   likewise of the plan's snapshot; the header ETag identifies it
 *     /metrics       for Prometheus
 *
 * The run does not know of the page. A thread reads the folder and, while somebody looks, queries the run's socket at most
 * twice a second; all requests are answered from its results. Paths are matched against this table, so a request never
 * becomes a file name. Memory is bounded by the number of connections (net/http.h).
 */
#pragma once

#include "watch/run_state.h"
#include "base/status.h"

enum { RUN_PAGE_PIECE = 256 << 10, RUN_PAGE_CONNECTIONS = 64 };

struct run_page;

/* `port` 0: any free port. PLIM_IO, PLIM_BAD_INPUT: there is no run, or the port is not available.
 * PLIM_UNSUPPORTED: this build has no HTTP. */
enum plim_status run_page_open(const char *run, int port, struct run_page **out, struct plim_error *err);
int run_page_port(const struct run_page *page);
void run_page_close(struct run_page *page); /* NULL is fine */

/* How a run is, as text that Prometheus reads: plimsoll_train_*, each with the label run (run_metrics.c). */
void run_metrics(const struct run_state *state, const char *name, struct strbuf *out);
