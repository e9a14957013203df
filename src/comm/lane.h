/* lane.h - the thread on which exchanges run beside computing, and what else comm/ shares. See comm.h.
 *
 *     idle --comm_begin--> busy --the last one done--> idle
 *       busy --an exchange fails--> failed: nothing more is sent, and every ticket is done with that error
 *
 * The lane and its owner never call the backend at the same time: whoever else wants to drains it first, so that a library
 * needs no locks of its own (MPI_THREAD_SERIALIZED).
 */
#pragma once

#include "comm/comm.h"

/* PLIM_NO_MEMORY: no thread. */
enum plim_status lane_open(struct comm *comm, struct plim_error *err);
void lane_close(struct comm_lane *lane); /* NULL: nothing */

/* Until nothing is under way; the lane's error, if it has one. */
enum plim_status lane_drain(struct comm_lane *lane, struct plim_error *err);

/* Sets comm->node and comm->across where they are (nodes.c). All ranks together. */
enum plim_status comm_find_nodes(struct comm *comm, struct plim_error *err);

/* PLIM_BAD_INPUT where ranks are of different builds (same_program.c). All ranks together. */
enum plim_status comm_same_program(struct comm *comm, struct plim_error *err);
