/* run_metrics.h - a run's state as text for Prometheus: plimsoll_train_*, each with the label run. */
#pragma once

#include "watch/run_state.h"

void run_metrics(const struct run_state *state, const char *name, struct strbuf *out);
