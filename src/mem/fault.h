/* fault.h - the memory layer's name for base/fault.h; see there. ledger_reserve passes FAULT_RESERVE,
 * mem_alloc and arena_commit pass FAULT_ALLOC. */
#ifndef PLIM_MEM_FAULT_H
#define PLIM_MEM_FAULT_H

#include "base/fault.h" /* IWYU pragma: export */

#endif
