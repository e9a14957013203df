/* mpi_roll.h - who is still there, when an exchange was not answered in time.
 *
 * Ranks that wait in an exchange run out of patience one after the other. Each then says to all others that it is there, and listens for
 * as long as they may differ: who is not heard is the one that the others waited for. The first of those that are there
 * tells it; the rest hold still, for the job is about to be ended.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Writes "rank 1 did not answer within 300 s" and the like. Takes up to a quarter of `seconds`, at most 15 s; ranks that do not
 * tell it hold still for half a minute more. So does one that `waited` for the others and finds everybody's call there: it is the
 * late one itself. */
void mpi_roll_call(int rank, int ranks, double seconds, bool waited, char *text, size_t size);
