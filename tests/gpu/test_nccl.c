/* run-tests: serial, not=asan, not=tsan
 *
 * test_nccl.c - NCCL itself on one card: a communicator of one rank, whose exchanges are part of a recorded step; and what is said
 * when the library is missing, is another one, or waits for a rank that never comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/nccl.h"
#include "device/registry.h"
#include "exec/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 40000, BYTES = COUNT * 4, LAUNCHES = 3 };

/* One rank, or what one sees of two: it agrees with itself. */
static const char *gather_self(struct comm *comm, const void *piece, size_t bytes, void *whole, size_t all)
{
    for (int r = 0; r < comm->ranks && (size_t)r * bytes < all; r++)
        memcpy((char *)whole + (size_t)r * bytes, piece, bytes);
    return NULL;
}

static const char *broadcast_self(struct comm *comm, void *data, size_t bytes, int root)
{
    (void)comm, (void)data, (void)bytes, (void)root;
    return NULL;
}

static const struct comm_ops self_ops = {.name = "self", .gather = gather_self, .broadcast = broadcast_self};

static struct comm self_comm(int ranks)
{
    return (struct comm){.ops = &self_ops, .ranks = ranks, .local_ranks = 1, .patience = 4};
}

static struct device *open_card(void)
{
    struct plim_error err = {0};
    struct device *device = NULL;
    const struct backend *cuda = backend_find("cuda");
    if (!cuda || cuda->open(NULL, &(struct device_name){0}, 1, &device, &err) != PLIM_OK) {
        printf("# no card: %s\n", err.text);
        skip();
    }
    return device;
}

/* The card with its communicator, or the test is skipped. */
static struct device *open_joined(struct comm *comm)
{
    struct plim_error err = {0};
    struct device *device = open_card();
    size_t before = device->facts.overhead_bytes;
    device->comm = comm;
    device->facts.ranks = 1;
    enum plim_status status = exec_join_devices(device, &err);
    if (status == PLIM_UNSUPPORTED) {
        printf("# %s\n", err.text);
        device->ops->close(device);
        skip();
    }
    if (status != PLIM_OK) fail_msg("%s", err.text);
    printf("# NCCL takes %zu bytes of the card with one rank\n", device->facts.overhead_bytes - before);
    return device;
}

static void close_joined(struct device *device)
{
    nccl_close(device->comm->nccl);
    device->ops->close(device);
}

/* --- a recorded step ---------------------------------------------------------------------------------------------- */

/* [a | gathered | parts | sum]: what a rank has, the same gathered, sent to itself, and added to the sum. */
struct step {
    struct device *device;
    char *a, *whole, *parts, *sum;
};

static const char *begin_gather(void *arg, void *stream)
{
    struct step *s = arg;
    return nccl_gather(s->device->comm->nccl, AMONG_ALL, s->a, BYTES, s->whole, BYTES, stream);
}

static const char *begin_reduce(void *arg, void *stream)
{
    struct step *s = arg;
    struct device_parts parts = {
        .parts = s->parts, .out = s->sum, .ranks = 1, .count = COUNT, .type = DT_F32, .add = true};
    const char *why =
        nccl_exchange(s->device->comm->nccl, AMONG_ALL, s->whole, BYTES, BYTES, BYTES, s->parts, stream);
    if (!why) s->device->ops->add_parts(s->device, &parts, stream);
    return why;
}

/* The exchange of the only op. */
static enum plim_status give_step(const struct device_range *range, int op)
{
    struct step *s = range->arg;
    assert_int_equal(op, 0);
    struct plim_error err = {0};
    struct device_exchange gather = {.from = s->a,
                                     .to = s->whole,
                                     .from_bytes = BYTES,
                                     .to_bytes = BYTES,
                                     .begin = begin_gather,
                                     .arg = s};
    struct device_exchange reduce = {.from = s->whole,
                                     .to = s->sum,
                                     .work = s->parts,
                                     .from_bytes = BYTES,
                                     .to_bytes = BYTES,
                                     .work_bytes = BYTES,
                                     .begin = begin_reduce,
                                     .arg = s};
    enum plim_status status = s->device->ops->exchange(s->device, &gather, &err);
    return status == PLIM_OK ? s->device->ops->exchange(s->device, &reduce, &err) : status;
}

static void runs_in_a_recorded_step(void **state)
{
    (void)state;
    struct comm comm = self_comm(1);
    struct device *device = open_joined(&comm);
    struct plim_error err = {0};
    assert_int_equal(device->ops->commit(device, 4 * BYTES, &err), PLIM_OK);
    device->ops->fill(device, 0, 4 * BYTES, FILL_ZERO);
    float *host = malloc(BYTES);
    for (int i = 0; i < COUNT; i++) host[i] = (float)(i % 1000) * 0.25f;
    assert_int_equal(device->ops->write(device, 0, host, BYTES, &err), PLIM_OK);
    char *base = device->ops->base(device);
    struct step step = {.device = device,
                        .a = base,
                        .whole = base + BYTES,
                        .parts = base + 2 * (size_t)BYTES,
                        .sum = base + 3 * (size_t)BYTES};
    struct op op = {.kind = OP_GATHER};
    struct tape tape = {.ops = &op, .nops = 1, .loop_end = 1};
    struct layout layout = {.nops = 1};
    struct device_range range = {&tape, &layout, 0, 1, .first = true, .collect = give_step, .arg = &step};
    struct device_program *program;
    device->ops->compile(device, &range, &program, NULL);
    assert_non_null(program);
    for (int i = 0; i < LAUNCHES; i++) device->ops->launch(program);
    assert_int_equal(device->ops->sync(device, &err), PLIM_OK);
    assert_int_equal(nccl_check(comm.nccl, &err), PLIM_OK);
    assert_int_equal(device->ops->read(device, 3 * (size_t)BYTES, host, BYTES, &err), PLIM_OK);
    for (int i = 0; i < COUNT; i++) {
        float wanted = (float)LAUNCHES * (float)(i % 1000) * 0.25f;
        if (host[i] != wanted) fail_msg("element %d is %g, not %g", i, (double)host[i], (double)wanted);
    }
    device->ops->program_free(program);
    free(host);
    close_joined(device);
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

static void a_wrong_library_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *file, *said;
    } cases[] = {{"/nonexistent/libnccl.so", "NCCL is not installed"},
                 {"libc.so.6", "NCCL's library has no nccl"}};
    struct device *device = open_card();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct comm comm = self_comm(1);
        struct plim_error err = {0};
        char pair[96];
        snprintf(pair, sizeof pair, "PLIMSOLL_NCCL=%s", cases[i].file);
        comm.context = &(struct context){.environment = (char *[]){pair, NULL}};
        assert_int_equal(nccl_open(&comm, &err), PLIM_UNSUPPORTED);
        if (!strstr(err.text, cases[i].said)) fail_msg("%s: %s", cases[i].file, err.text);
    }
    device->ops->close(device);
}

/* The last: a thread is left in the library. */
static void a_rank_that_never_comes_is_not_waited_for(void **state)
{
    (void)state;
    struct comm alone = self_comm(1), comm = self_comm(2);
    struct plim_error err = {0};
    open_joined(&alone);
    assert_int_equal(nccl_open(&comm, &err), PLIM_LINK);
    printf("# %s\n", err.text);
    assert_non_null(strstr(err.text, "rank 0 of 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_in_a_recorded_step),
        cmocka_unit_test(a_wrong_library_is_named),
        cmocka_unit_test(a_rank_that_never_comes_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
