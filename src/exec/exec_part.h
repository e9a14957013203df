/* exec_part.h - what the files of exec/ share. */
#ifndef PLIM_EXEC_EXEC_PART_H
#define PLIM_EXEC_EXEC_PART_H

#include "exec/exec.h"

/* Where a tensor is, on the device or in its host tier. */
void *exec_address(const struct exec *exec, int id);

/* One exchange between ranks (collect.c). */
enum plim_status exec_collect(struct exec *exec, int index, int64_t micro, struct plim_error *err);

#endif
