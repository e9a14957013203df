/* mpi_roll.c - see mpi_roll.h. */
#include "comm/mpi/mpi_roll.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROLL 77 /* a tag that no exchange uses */
#define HOLD 30 /* seconds */
#define LATE 3  /* seconds: another rank may be telling it just now */

static void pause_a_little(void) { nanosleep(&(struct timespec){0, 10000000}, NULL); }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Everybody but this rank is told and listened to; how many were not heard. *late: all had called before. */
static int listen(int rank, int ranks, double seconds, bool *heard, bool *late)
{
    char here = 1, *there = calloc((size_t)ranks, 1);
    MPI_Request *in = calloc((size_t)ranks, sizeof *in), out;
    double until = now() + seconds;
    int missing = ranks - 1;
    for (int r = 0; r < ranks && there && in; r++) {
        if (r == rank) continue;
        MPI_Irecv(&there[r], 1, MPI_BYTE, r, ROLL, MPI_COMM_WORLD, &in[r]);
        MPI_Isend(&here, 1, MPI_BYTE, r, ROLL, MPI_COMM_WORLD, &out);
        MPI_Request_free(&out); /* the process ends before anybody could ask what became of it */
    }
    for (int looks = 0; there && in && missing && now() < until; looks++) {
        for (int r = 0; r < ranks; r++) {
            int done = 0;
            if (r == rank || heard[r]) continue;
            MPI_Test(&in[r], &done, MPI_STATUS_IGNORE);
            heard[r] = done, missing -= done;
        }
        *late = !missing && looks == 0;
        pause_a_little();
    }
    return missing; /* what was begun stays: the job ends */
}

static void tell(const bool *heard, int rank, int ranks, int missing, double seconds, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, missing == 1 ? "rank" : "ranks");
    for (int r = 0, told = 0; r < ranks && n < size; r++) {
        if (r == rank || heard[r]) continue;
        n += (size_t)snprintf(text + n, size - n, told++ ? ", %d" : " %d", r);
    }
    if (n < size) snprintf(text + n, size - n, " did not answer within %.0f s", seconds);
}

void mpi_roll_call(int rank, int ranks, double seconds, bool waited, char *text, size_t size)
{
    double most = seconds / 4 < 1 ? 1 : seconds / 4 > 15 ? 15 : seconds / 4;
    bool *heard = calloc((size_t)ranks, sizeof *heard);
    bool late = false;
    int missing = heard ? listen(rank, ranks, most, heard, &late) : 0, first = 0;
    if (missing)
        tell(heard, rank, ranks, missing, seconds, text, size);
    else
        snprintf(text, size, "ranks wait for each other, and none answered within %.0f s", seconds);
    while (heard && first < rank && !heard[first]) first++;
    bool holds = first < rank || (late && waited);
    for (double until = now() + (holds ? HOLD : late ? LATE : 0); now() < until;) pause_a_little();
    free(heard);
}
