/* run_metrics.h - a run's state as text for Prometheus: plimsoll_train_*, each with the label run. */
#ifndef PLIM_WATCH_RUN_METRICS_H
#define PLIM_WATCH_RUN_METRICS_H

#include "watch/run_state.h"

void run_metrics(const struct run_state *state, const char *name, struct strbuf *out);

#endif
