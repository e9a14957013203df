/* run-tests: long */
/* test_exec.c - the disk tier, and that state on it gives the same bits as state in the arena. */
#include "comm/lane.h"
#include "support/model_run.h"
#include "support/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static struct plim_error err;
static const struct disk_options plain;

#define PIECES 200
#define PIECE  4096

static void fill(unsigned char *to, int piece)
{
    for (int i = 0; i < PIECE; i++) to[i] = (unsigned char)(piece * 31 + i);
}

static struct disk_store *open_filled(void)
{
    struct disk_store *far;
    unsigned char data[PIECE];
    if (disk_open("/tmp", (uint64_t)PIECES * PIECE, &plain, &far, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (int i = 0; i < PIECES; i++) {
        fill(data, i);
        assert_int_equal(disk_write(far, data, PIECE, (uint64_t)i * PIECE, &err), PLIM_OK);
    }
    return far;
}

/* More requests than the ring holds: asking waits for room instead of losing any. */
static void test_read_ahead(void **state)
{
    (void)state;
    struct disk_store *far = open_filled();
    unsigned char *got = calloc(PIECES, PIECE), want[PIECE];
    uint64_t tickets[PIECES];
    assert_non_null(got);
    for (int i = 0; i < PIECES; i++) {
        int piece = PIECES - 1 - i;
        tickets[piece] = disk_prefetch(far, got + (size_t)piece * PIECE, PIECE, (uint64_t)piece * PIECE);
    }
    for (int i = 0; i < PIECES; i++) { /* waiting in another order than asking */
        assert_int_equal(disk_wait(far, tickets[i], &err), PLIM_OK);
        fill(want, i);
        assert_memory_equal(got + (size_t)i * PIECE, want, PIECE);
    }
    assert_int_equal(disk_read(far, got, PIECE, 5 * PIECE, &err), PLIM_OK);
    fill(want, 5);
    assert_memory_equal(got, want, PIECE);
    disk_close(far);
    free(got);
}

/* Closing with requests under way: they finish, nothing hangs. */
static void test_close_in_flight(void **state)
{
    (void)state;
    unsigned char *got = calloc(PIECES, PIECE), want[PIECE];
    assert_non_null(got);
    for (int round = 0; round < 5; round++) {
        struct disk_store *far = open_filled();
        for (int i = 0; i < 30; i++) disk_prefetch(far, got + (size_t)i * PIECE, PIECE, (uint64_t)i * PIECE);
        disk_close(far);
        fill(want, 29);
        assert_memory_equal(got + 29 * PIECE, want, PIECE);
    }
    free(got);
}

/* A read that fails is told to whoever waits, and stays told. */
static void test_errors_are_kept(void **state)
{
    (void)state;
    struct disk_store *far = open_filled();
    unsigned char got[PIECE];
    uint64_t good = disk_prefetch(far, got, PIECE, 0);
    assert_int_equal(disk_wait(far, good, &err), PLIM_OK);
    uint64_t bad = disk_prefetch(far, got, PIECE, (uint64_t)(PIECES + 1) * PIECE);
    assert_int_not_equal(disk_wait(far, bad, &err), PLIM_OK);
    assert_true(err.text[0] != 0);
    assert_int_not_equal(disk_read(far, got, PIECE, 0, &err), PLIM_OK);
    disk_close(far);
}

static void test_no_folder(void **state)
{
    (void)state;
    struct disk_store *far = NULL;
    assert_int_not_equal(disk_open("/proc/none", 4096, &plain, &far, &err), PLIM_OK);
    assert_null(far);
    assert_int_not_equal(disk_open("/tmp", UINT64_C(1) << 62, &plain, &far, &err),
                         PLIM_OK); /* no disk has that much */
    assert_null(far);
    disk_close(NULL);
}

/* --- exchanges beside computing --- */

enum { N = 1000 };

static const char *late_gather(struct comm *comm, const void *piece, size_t bytes, void *whole, size_t all)
{
    (void)all;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    for (int r = 0; r < comm->ranks; r++) memcpy((char *)whole + (size_t)r * bytes, piece, bytes);
    return NULL;
}

static int row(struct tape *tape, unsigned flags, int64_t count)
{
    return tape_tensor(tape, &(struct tensor){.label = "t",
                                              .type = DT_F32,
                                              .cls = CLASS_ACT,
                                              .flags = flags,
                                              .ndim = 1,
                                              .dim = {count},
                                              .layer = -1,
                                              .view_of = -1,
                                              .owner = -1});
}

/* An op that writes what an exchange still sends waits for it. */
static void test_what_is_sent_is_not_overwritten(void **state)
{
    (void)state;
    const struct comm_ops late = {.name = "late", .gather = late_gather};
    struct comm comm = {.ops = &late, .ranks = 2};
    struct device *device;
    struct tape tape;
    struct layout layout;
    struct exec exec;
    struct op gather = tape_op(OP_GATHER, -1), add = tape_op(OP_ADD, -1);
    tape_init(&tape);
    int x = row(&tape, TENSOR_INPUT, N), y = row(&tape, TENSOR_INPUT, N),
        whole = row(&tape, TENSOR_OUTPUT, 2 * N);
    gather.in[MOVE_FROM] = x, gather.out[MOVE_TO] = whole;
    add.in[ADD_A] = add.in[ADD_B] = y, add.out[ADD_Y] = x;
    tape_append(&tape, &gather), tape_append(&tape, &add);
    assert_int_equal(device_cpu_open(NULL, 1, &device, &err), PLIM_OK);
    assert_int_equal(lane_open(&comm, &err), PLIM_OK);
    device->comm = &comm, device->facts.async_exchanges = true;
    struct layout_options how = {.facts = &device->facts, .accumulation = 1};
    assert_int_equal(layout_make(&tape, &how, &layout, &err), PLIM_OK);
    assert_int_equal(device->ops->commit(device, (size_t)layout.arena_bytes, &err), PLIM_OK);
    assert_int_equal(exec_open(&exec, device, &tape, &layout, NULL, &err), PLIM_OK);
    float *from = exec_host(&exec, x), *other = exec_host(&exec, y), *got = exec_host(&exec, whole);
    for (int i = 0; i < N; i++) from[i] = (float)i, other[i] = -1;
    assert_int_equal(exec_run(&exec, 0, 2, 0, &err), PLIM_OK);
    for (int i = 0; i < N; i++) assert_true(got[i] == (float)i && got[N + i] == (float)i && from[i] == -2);
    lane_close(comm.lane);
    device->comm = NULL;
    exec_close(&exec), layout_release(&layout), tape_release(&tape);
    device->ops->close(device);
}

/* Slices of 64 bytes, of several rows, of whole parameters: the same bits as without. */
static void test_state_on_disk(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-tied", "gpt2", "qwen2", "gemma3", "phi3"};
    static const int64_t slices[] = {640, 5000, 4 << 20};
    for (size_t m = 0; m<3; m += EVERY> 10 ? 2 : 1)
        for (int precision = (int)m % EVERY; precision < PRECISION_COUNT; precision += EVERY) {
            struct model_run device, disk;
            struct rig_options o = {
                .loss_chunks = 1, .precision = (enum precision)precision, .global_norm = true};
            model_run(&device, models[m], &o, 3);
            o.offload = (struct offload_options){.state_tier = TIER_DISK,
                                                 .grad_tier = m % 2 ? TIER_DISK : TIER_DEVICE,
                                                 .param_tier = precision % 2 ? TIER_DISK : TIER_DEVICE,
                                                 .param_share = (int)m * 5,
                                                 .slice_bytes = slices[(m + (size_t)precision) % 3]};
            model_run(&disk, models[m], &o, 3);
            if (!model_run_same(&device, &disk)) fail_msg("%s, %s", models[m], precision_name(o.precision));
            o.global_norm = false, o.in_backward = true;
            struct model_run inside;
            model_run(&inside, models[m], &o, 3);
            o.offload = (struct offload_options){0};
            model_run(&device, models[m], &o, 3);
            if (!model_run_same(&device, &inside)) fail_msg("%s in backward", models[m]);
        }
}

/* Every optimizer in slices: those of 8 bits are cut at blocks, Adafactor's statistics stay whole, and random bits
 * belong to an element wherever it is computed. */
static void test_every_optimizer_in_slices(void **state)
{
    (void)state;
    static const int64_t slices[] = {640, 5000, 4 << 20};
    static const char *const models[] = {"gpt2", "llama-untied"};
    for (int optimizer = 0; optimizer<OPTIMIZER_COUNT; optimizer += EVERY> 10 ? 2 : 1)
        for (int way = optimizer % EVERY; way < 6; way += EVERY) {
            struct model_run device, disk, inside, one;
            bool light = way % 2;
            struct rig_options o = {.loss_chunks = 1,
                                    .optimizer = (enum optimizer)optimizer,
                                    .precision = light ? PRECISION_BF16 : PRECISION_F32,
                                    .no_master = light,
                                    .narrow_state = light && optimizer != OPTIMIZER_ADAMW8,
                                    .narrow_grads = light,
                                    .global_norm = true};
            const char *model = models[way / 2 % 2];
            model_run(&device, model, &o, 3);
            assert_true(device.loss[2] < device.loss[0]);
            o.threads = 1;
            model_run(&one, model, &o, 3);
            o.offload = (struct offload_options){.state_tier = TIER_DISK,
                                                 .grad_tier = way % 3 ? TIER_DISK : TIER_DEVICE,
                                                 .param_tier = way % 2 ? TIER_DISK : TIER_DEVICE,
                                                 .slice_bytes = slices[way / 2]};
            model_run(&disk, model, &o, 3);
            o.global_norm = false, o.in_backward = true, o.offload.grad_tier = TIER_DEVICE;
            model_run(&inside, model, &o, 3);
            if (!model_run_same(&device, &one)) fail_msg("%s, one thread", optimizer_name(o.optimizer));
            if (!model_run_same(&device, &disk)) fail_msg("%s on disk", optimizer_name(o.optimizer));
            o.offload = (struct offload_options){0};
            model_run(&device, model, &o, 3);
            if (!model_run_same(&device, &inside)) fail_msg("%s in backward", optimizer_name(o.optimizer));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_optimizer_in_slices),
        cmocka_unit_test(test_read_ahead),
        cmocka_unit_test(test_close_in_flight),
        cmocka_unit_test(test_errors_are_kept),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_what_is_sent_is_not_overwritten),
        cmocka_unit_test(test_state_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
