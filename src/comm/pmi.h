/* pmi.h - a process manager for ranks that have none: those that torchrun, deepspeed or accelerate started.
 *
 *     struct pmi *pmi;
 *     pmi_open(&meeting, &pmi, &err);      // ranks meet (meet.h); PMI_FD, PMI_RANK and PMI_SIZE are set for MPI_Init
 *     ...                                  // MPI_Init of MPICH asks over that connection, a thread of rank 0 answers
 *     pmi_leave(pmi);                      // before MPI_Finalize
 *     pmi_free(pmi);                       // behind it
 *
 * Only how ranks find each other goes this way (PMI 1: what each puts under a name, and barriers); bytes are MPI's. The
 * connections also tell who is there, which is a launcher's part elsewhere: a rank that ends without pmi_leave is
 * told by pmi_gone, for rank 0 to tell (rank 1, where it was rank 0), and pmi_abort or MPI_Abort of any rank ends the process of every one.
 */
#pragma once

#include "comm/meet.h"

struct pmi;

/* As meet; PLIM_NO_MEMORY. */
enum plim_status pmi_open(struct meeting *meeting, struct pmi **out, struct plim_error *err);
/* Names the rank that has ended, as reported by comm.gone; NULL: none. */
const char *pmi_gone(struct pmi *pmi);
/* Ends the processes of all ranks, this one included. */
void pmi_abort(struct pmi *pmi, int code);
void pmi_leave(struct pmi *pmi); /* NULL: nothing */
void pmi_free(struct pmi *pmi);  /* NULL: nothing; rank 0 waits a little for the others to leave */
