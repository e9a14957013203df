/* run_page.h - a run on a page: an HTTP server on the loopback that shows a run's folder, while it runs or afterwards.
 *
 *     struct run_page *page;
 *     run_page_open("runs/small", 0, &page, &err);
 *     printf("http://127.0.0.1:%d\n", run_page_port(page));
 *     run_page_close(page);
 *
 * What is there:
 *
 *     /              the page (data/watch.html), which needs nothing but what follows
 *     /map.js        the arena's map, as plan --html has it
 *     /state         {"run", "live", "log":{"bytes","id"}, "plan":{"bytes","id"}, "status": what the run answers, or null}
 *     /log/OFFSET    bytes of the log from there on, at most RUN_PAGE_PIECE
 *     /plan/OFFSET   likewise of the plan's snapshot; the header ETag says of which one
 *     /metrics       for Prometheus
 *
 * The run knows nothing of it. A thread of the page reads the folder and, while somebody looks, asks the run's socket twice a
 * second at most, however many ask: requests are answered from what that thread has read. Paths are numbers and names of the
 * table, nothing of a request becomes a file's name. Memory is bounded by the connections that the front takes (net/http.h).
 */
#ifndef PLIM_WATCH_RUN_PAGE_H
#define PLIM_WATCH_RUN_PAGE_H

#include "watch/run_state.h"
#include "base/status.h"

enum { RUN_PAGE_PIECE = 256 << 10, RUN_PAGE_CONNECTIONS = 64 };

struct run_page;

/* `port` 0: any free one. PLIM_IO, PLIM_BAD_INPUT: no run there, or the port cannot be had; PLIM_UNSUPPORTED: this build has no
 * HTTP. */
enum plim_status run_page_open(const char *run, int port, struct run_page **out, struct plim_error *err);
int run_page_port(const struct run_page *page);
void run_page_close(struct run_page *page); /* NULL is fine */

/* How a run is, as text that Prometheus reads: plimsoll_train_*, each with the label run (run_metrics.c). */
void run_metrics(const struct run_state *state, const char *name, struct strbuf *out);

#endif
