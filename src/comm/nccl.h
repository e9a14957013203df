/* nccl.h - bytes between the memories of GPUs, by NCCL's library, which is loaded when a run has several ranks with a card each.
 *
 *     nccl_open(comm, &err);                                          // comm->nccl; over what connects the ranks already
 *     why = nccl_gather(comm->nccl, AMONG_ALL, piece, piece_bytes, whole, whole_bytes, stream);
 *     why = nccl_exchange(comm->nccl, AMONG_ALL, from, whole, stride, bytes, to, stream);
 *     nccl_check(comm->nccl, &err);                                   // what went wrong meanwhile
 *     nccl_close(comm->nccl);
 *
 * As with any backend (comm.h), bytes are moved here and added elsewhere, so that the order of sums is that of ranks and bits do
 * not depend on how they came. Each call queues on the caller's stream, waits for nothing and may be captured into a graph;
 * all ranks make the same calls in the same order. Returns NULL or one line about what went wrong.
 *
 * PLIMSOLL_NCCL names the library's file; 0: it is not used, and GPUs exchange through host memory.
 */
#pragma once

#include "comm/comm.h"
#include "tape/tape.h"

struct nccl;

/* Ids go over comm, whose ranks all call this with their card chosen; each rank needs a card of its own. PLIM_UNSUPPORTED:
 * some rank has no library or an old one, and nobody uses it; PLIM_LINK: the cards do not find each other. All ranks get the
 * same. */
enum plim_status nccl_open(struct comm *comm, struct plim_error *err);
void nccl_close(struct nccl *nccl); /* NULL: nothing */

/* Ends what is under way, for a rank that gives up. */
void nccl_abort(struct nccl *nccl);

const char *nccl_gather(struct nccl *nccl, enum among among, const void *piece, size_t piece_bytes,
                        void *whole, size_t whole_bytes, void *stream);
const char *nccl_exchange(struct nccl *nccl, enum among among, const char *from, size_t whole, size_t stride,
                          size_t bytes, char *to, void *stream);

/* PLIM_LINK: another rank, or the link to it, has failed. Where several ranks see it the first of them returns, to tell it. */
enum plim_status nccl_check(struct nccl *nccl, struct plim_error *err);
