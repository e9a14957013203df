/* variables.h - the program's own environment variables, checked once before a command runs.
 *
 * Wherever one of them is read, a value that cannot be read counts as none; so a slip would act in silence. Variables that stand
 * for keys of a job are checked with it (job/environment.h). */
#ifndef PLIM_CLI_VARIABLES_H
#define PLIM_CLI_VARIABLES_H

#include "base/status.h"

/* PLIM_BAD_INPUT: "environment: variable PLIMSOLL_CPU: expected ..., found ...". An empty one counts as absent. */
enum plim_status variables_check(struct plim_error *err);

#endif
