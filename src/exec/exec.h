/* exec.h - executes a plan on a device: nothing left to decide, nothing left to allocate.
 *
 *     struct exec exec;
 *     exec_open(&exec, device, &plan.tape, &plan.layout, disk);  // disk: NULL unless a tensor lives on disk
 *     exec_write(&exec, ids, host_ids, 0, bytes, &err);
 *     exec_loop(&exec, micro, &err);                             // one micro-batch
 *     exec_update(&exec, &err);                                  // the rest of the tape
 *     exec_read(&exec, loss, host_loss, 0, bytes, &err);
 *
 * The exec borrows tape, layout, device and disk; it owns nothing but its place in the tape. The device's arena
 * must be committed to at least layout.arena_bytes.
 */
#ifndef PLIM_EXEC_EXEC_H
#define PLIM_EXEC_EXEC_H

#include "device/device.h"
#include "exec/disk.h"
#include "plan/layout.h"

#define EXEC_FETCHES    16
#define EXEC_RECORDINGS 4

struct exec {
    struct device *device;
    const struct tape *tape;
    const struct layout *layout;
    struct disk_store *disk;
    struct {
        int tensor; /* root being filled */
        uint64_t ticket;
    } fetching[EXEC_FETCHES];
    int nfetching;
    struct recording {
        int begin, end; /* ops */
        bool first;     /* of the first micro-batch of a window */
        int number;     /* the device's */
    } recordings[EXEC_RECORDINGS];
    int nrecordings;
    bool records;       /* the device records what runs twice; set by exec_tune */
    double *op_seconds; /* by op kind, when the caller wants a profile; else NULL */
    /* Called after each op, when set, with its results in place. */
    void (*inspect)(void *arg, const struct exec *exec, int op);
    void *inspect_arg;
};

/* PLIM_UNSUPPORTED when the device lacks an op of the tape. */
enum plim_status exec_open(struct exec *exec, struct device *device, const struct tape *tape,
                           const struct layout *layout, struct disk_store *disk, struct plim_error *err);

/* For a new arena: what is kept becomes zero, but for the parameters, which are written next. */
void exec_fresh(struct exec *exec);

/* Lets the device learn how to run this tape's ops best and, where it can, record them: worth it when the tape runs
 * many times. Whatever is in the arena outside kept tensors is lost. Forgets what was recorded before. */
enum plim_status exec_tune(struct exec *exec, struct plim_error *err);

/* Ops [begin, end); micro is the index of the micro-batch in its window. */
enum plim_status exec_run(struct exec *exec, int begin, int end, int64_t micro, struct plim_error *err);
enum plim_status exec_loop(struct exec *exec, int64_t micro, struct plim_error *err);
enum plim_status exec_update(struct exec *exec, struct plim_error *err);

/* The address of a device tensor the host may write directly; NULL on a device with its own memory. */
void *exec_host(const struct exec *exec, int tensor);

/* Copy between host memory and a tensor, wherever it lives; offset and bytes within the tensor. */
enum plim_status exec_read(const struct exec *exec, int tensor, void *host, int64_t offset, int64_t bytes,
                           struct plim_error *err);
enum plim_status exec_write(const struct exec *exec, int tensor, const void *host, int64_t offset,
                            int64_t bytes, struct plim_error *err);

#endif
