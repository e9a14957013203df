/* siblings.h - the other ranks of this machine, as the operating system sees them before they are connected.
 *
 * A library that connects ranks waits for all of them, for as long as it takes. A rank that runs another program, or has ended
 * already, is found here: ranks of one launcher are children of one process and have their number in their environment. */
#pragma once

#include "base/context.h"
#include <stdbool.h>
#include <stddef.h>

/* "rank 1 runs 'sleep 60'"; false: nothing is wrong with those that can be seen. */
bool siblings_astray(const struct context *context, char *out, size_t size);
