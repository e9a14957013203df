/* variables.h - checks the program's own environment variables once, before a command runs.
 *
 * Code that reads them treats an invalid value as missing, so without this check a typo would go unnoticed. Variables that
 * set keys of a job are checked with the job (job/environment.h). */
#pragma once

#include "base/status.h"

/* PLIM_BAD_INPUT: "environment: variable PLIMSOLL_CPU: expected ..., found ...". An empty value counts as
 * missing. */
enum plim_status variables_check(struct plim_error *err);
