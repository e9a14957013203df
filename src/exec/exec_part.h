/* exec_part.h - what the files of exec/ share. */
#pragma once

#include "exec/exec.h"

/* Where a tensor is, on the device or in its host tier. */
void *exec_address(const struct exec *exec, int id);

/* The ranks that have the pieces of this tape's tensors. */
struct comm *exec_pieces(const struct exec *exec);

/* Do exchanges run beside computing? The layout was made for what the facts say. */
bool exec_has_lane(const struct exec *exec);

/* One exchange, its ends resolved. */
struct exchange {
    struct exec *exec;
    struct comm *comm; /* the ranks that take part */
    const struct op *op;
    const struct tensor *from, *to;
    char *a, *b, *work;
    int64_t work_bytes;
    bool add;
};

/* Between the memories of devices (collect_device.c). */
enum plim_status exec_collect_on_device(const struct exchange *x, struct plim_error *err);

/* Until what was given to a device that exchanges with others is done. PLIM_IO: some rank failed, or does not answer. */
enum plim_status exec_await_device(const struct exec *exec, struct plim_error *err);

/* One exchange between ranks (collect.c): done when it returns or, where there is a lane, begun. */
enum plim_status exec_collect(struct exec *exec, const struct device_range *range, int index,
                              struct plim_error *err);

/* Exchanges that are under way (exchanges.c). exec_await: those are done that touch bytes of op `index`, so that it may run.
 * exec_await_all: every one is. */
enum plim_status exec_remember(struct exec *exec, uint64_t ticket, struct exec_span reads,
                               struct exec_span writes, struct plim_error *err);
enum plim_status exec_await(struct exec *exec, int index, struct plim_error *err);
enum plim_status exec_await_all(struct exec *exec, struct plim_error *err);
