/* run_metrics.h - how a run is, as text that Prometheus reads: plimsoll_train_*, each with the label run. */
#ifndef PLIM_WATCH_RUN_METRICS_H
#define PLIM_WATCH_RUN_METRICS_H

#include "watch/run_state.h"

void run_metrics(const struct run_state *state, const char *name, struct strbuf *out);

#endif
