/* pending_run.h - runs whose updates wait for the next step, for test_forward_updates.c and test_update_before_norm.c: the state that is
 * left, signals, and folders that go. Includers define _GNU_SOURCE. */
#ifndef PLIM_TESTS_PENDING_RUN_H
#define PLIM_TESTS_PENDING_RUN_H

#include "tier_run.h"

#include <ftw.h>

/* The sum of all kept bytes that a checkpoint would have. */
static double state_of(struct trainer *t)
{
    const struct tape *tape = &t->runtime.plan.tape;
    double sum = 0;
    must(trainer_settle(t, &err));
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *of = &tape->tensors[i];
        bool counts = of->cls == CLASS_PARAM || of->cls == CLASS_STATE || of->cls == CLASS_MASTER;
        if (!(of->flags & TENSOR_KEPT) || of->view_of >= 0 || !counts) continue;
        int64_t bytes = tensor_bytes(of);
        unsigned char *data = malloc((size_t)bytes);
        assert_non_null(data);
        must(exec_read(&t->runtime.exec, i, data, 0, bytes, &err));
        for (int64_t k = 0; k < bytes; k++) sum += (double)data[k] * (double)(k % 251 + 1);
        free(data);
    }
    return sum;
}

/* What happens before a step, by its number from 0. */
typedef void event_between(struct trainer *t, int step);

/* A signal comes with a launch. */
static atomic_int stop;
static int launches_left;
static const struct device_ops *launcher;
static void launch_and_stop(struct device_program *program)
{
    launcher->launch(program);
    if (--launches_left == 0) atomic_store(&stop, 1);
}

/* Runs until the end, or until a signal comes with launch number `launches` (0: none), in step number `steps`; returns the state that is left. */
static double run_until(struct run *run, struct device *device, const char *keys, int launches, int steps,
                        bool resume)
{
    static const char *others[] = {"training.device"};
    const struct string_list accepted = {others, 1};
    struct device_ops ops = *device->ops;
    if (launches) launcher = device->ops, ops.launch = launch_and_stop, device->ops = &ops;
    launches_left = launches, stop = 0;
    must(run_open_with(run, device, keys,
                       (struct train_options){.resume = resume,
                                              .overwrite = !resume,
                                              .accepted = &accepted,
                                              .stop = &stop,
                                              .save_at_end = true}));
    assert_int_equal(trainer_run(run->trainer, &err), launches ? PLIM_INTERRUPTED : PLIM_OK);
    assert_false(run->trainer->pending);
    assert_int_equal(run->trainer->step, launches ? steps : STEPS);
    double state = state_of(run->trainer);
    run_close(run, device);
    return state;
}

static int remove_entry(const char *path, const struct stat *, int, struct FTW *) { return remove(path); }

#endif
