/* test_disk_order.c - requests of the disk tier that touch the same bytes keep their order, shown without a race.
 *
 * The engine here stands in for io_uring's (the linker takes this disk_uring_open before the library's). It moves no byte
 * before it is waited for, and then moves the newest piece first: the worst order that an engine may choose. Its first
 * submit waits until the test has asked for everything, so the mover always finds the second request while the first one
 * is under way. */
#include "device/registry.h"
#include "exec/disk.h"
#include "exec/disk_engine.h"
#include "exec/exec.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { PIECE = 64 << 10, LENGTH = 4 * PIECE, FILE_BYTES = 16 * PIECE };

/* The engine is the mover's alone, but for the gate. */
static struct worst_engine {
    struct disk_engine base;
    const struct disk_buffers *buffers;
    struct disk_piece pieces[DISK_SLOTS_MOST];
    int count, most; /* under way: now, and at most */
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
} worst = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

static void set_gate(bool open)
{
    pthread_mutex_lock(&worst.lock);
    worst.open = open;
    pthread_cond_broadcast(&worst.opened);
    pthread_mutex_unlock(&worst.lock);
}

static int worst_submit(struct disk_engine *engine, const struct disk_piece *piece)
{
    (void)engine;
    pthread_mutex_lock(&worst.lock);
    while (!worst.open) pthread_cond_wait(&worst.opened, &worst.lock);
    pthread_mutex_unlock(&worst.lock);
    worst.pieces[worst.count++] = *piece;
    if (worst.count > worst.most) worst.most = worst.count;
    return 0;
}

static int worst_wait(struct disk_engine *engine, struct disk_done *out)
{
    (void)engine;
    const struct disk_piece *p = &worst.pieces[--worst.count];
    char *memory = disk_piece_memory(worst.buffers, p);
    ssize_t n = p->write ? pwrite(p->fd, memory, p->n, (off_t)p->offset)
                         : pread(p->fd, memory, p->n, (off_t)p->offset);
    *out = (struct disk_done){p->slot, n < 0 ? -errno : n};
    return 0;
}

static void worst_close(struct disk_engine *engine) { (void)engine; }

static const struct disk_engine_ops worst_ops = {"worst", worst_submit, worst_wait, worst_close};

struct disk_engine *disk_uring_open(const struct disk_buffers *buffers, char *why, size_t size)
{
    (void)why, (void)size;
    worst.base.ops = &worst_ops, worst.buffers = buffers, worst.count = worst.most = 0;
    return &worst.base;
}

/* Two requests, the second asked for while the first one is under way; `shift` bytes lie between their beginnings. */
struct two {
    bool first_writes, second_writes;
    int64_t shift;
};

static const struct two table[] = {
    {true, false, 0},
    {true, false, LENGTH - 4096},
    {true, false, 4096 - LENGTH},
    {true, false, PIECE + 100},
    {false, true, 0},
    {false, true, LENGTH - 4096},
    {false, true, PIECE + 100},
    {true, true, 0},
    {true, true, 4096 - LENGTH},
    {true, true, LENGTH - 1},
};

static uint64_t ask(struct disk_store *disk, bool writes, char *memory, uint64_t at)
{
    return writes ? disk_write_behind(disk, memory, LENGTH, at) : disk_prefetch(disk, memory, LENGTH, at);
}

/* The same requests on a copy in memory, one after the other. */
static void apply(char *file, bool writes, char *memory, uint64_t at)
{
    if (writes)
        memcpy(file + at, memory, LENGTH);
    else
        memcpy(memory, file + at, LENGTH);
}

struct memories {
    char *file, *got, *first, *second, *want_first, *want_second;
};

static void fill(const struct memories *m)
{
    for (int i = 0; i < FILE_BYTES; i++) m->file[i] = (char)(i * 7 + (i >> 10));
    memset(m->first, 'a', LENGTH), memset(m->second, 'b', LENGTH);
    memset(m->want_first, 'a', LENGTH), memset(m->want_second, 'b', LENGTH);
}

static void check(const struct two *t, bool no_direct, const struct memories *m)
{
    struct plim_error err = {0};
    struct disk_options options = {.depth = 8, .piece = PIECE, .no_direct = no_direct};
    struct disk_store *disk;
    uint64_t at = 6 * PIECE, other = (uint64_t)((int64_t)at + t->shift);
    fill(m);
    set_gate(true);
    if (disk_open(".", FILE_BYTES, &options, &disk, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(disk_write(disk, m->file, FILE_BYTES, 0, &err), PLIM_OK);
    assert_int_equal(disk_settle(disk, &err), PLIM_OK);
    set_gate(false);
    ask(disk, t->first_writes, m->first, at);
    ask(disk, t->second_writes, m->second, other);
    set_gate(true);
    assert_int_equal(disk_settle(disk, &err), PLIM_OK);
    apply(m->file, t->first_writes, m->want_first, at);
    apply(m->file, t->second_writes, m->want_second, other);
    assert_int_equal(disk_read(disk, m->got, FILE_BYTES, 0, &err), PLIM_OK);
    disk_close(disk);
    if (memcmp(m->first, m->want_first, LENGTH) || memcmp(m->second, m->want_second, LENGTH) ||
        memcmp(m->got, m->file, FILE_BYTES))
        fail_msg("a %s overtakes a %s %lld bytes before it", t->second_writes ? "write" : "read",
                 t->first_writes ? "write" : "read", (long long)t->shift);
}

static void *aligned(size_t n)
{
    void *p = aligned_alloc(4096, n);
    assert_non_null(p);
    return p;
}

static void test_order(void **state)
{
    (void)state;
    struct memories m = {aligned(FILE_BYTES), aligned(FILE_BYTES), aligned(LENGTH),
                         aligned(LENGTH),     aligned(LENGTH),     aligned(LENGTH)};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int cached = 0; cached < 2; cached++) check(&table[i], cached, &m);
    free(m.file), free(m.got), free(m.first), free(m.second), free(m.want_first), free(m.want_second);
}

/* Order is kept where it matters only: requests that do not touch, and reads of the same bytes, are under way together. */
static void test_together(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct disk_options options = {.depth = 16, .piece = PIECE};
    char *memory = aligned(2 * LENGTH);
    for (int writes = 0; writes < 2; writes++) {
        struct disk_store *disk;
        memset(memory, 'c', 2 * LENGTH);
        set_gate(true);
        if (disk_open(".", FILE_BYTES, &options, &disk, &err) != PLIM_OK) fail_msg("%s", err.text);
        set_gate(false);
        ask(disk, writes, memory, 0);
        ask(disk, false, memory + LENGTH, writes ? LENGTH : 0);
        set_gate(true);
        assert_int_equal(disk_settle(disk, &err), PLIM_OK);
        assert_int_equal(worst.most, 2 * LENGTH / PIECE);
        disk_close(disk);
    }
    free(memory);
}

static int tensor(struct tape *tape, enum tier tier, unsigned flags)
{
    return tape_tensor(tape, &(struct tensor){.label = "t",
                                              .type = DT_F32,
                                              .cls = CLASS_STATE,
                                              .flags = flags,
                                              .tier = tier,
                                              .ndim = 1,
                                              .dim = {LENGTH / 4},
                                              .layer = -1,
                                              .view_of = -1,
                                              .owner = -1});
}

static void *open_later(void *arg)
{
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    set_gate(true);
    return arg;
}

/* Behind a hold the bytes that are being written are free: what comes there then is not what the file gets. */
static void test_hold(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct disk_options options = {.depth = 8, .piece = PIECE, .no_direct = true};
    struct device *device;
    struct disk_store *disk;
    struct tape tape;
    struct layout layout;
    struct exec exec;
    pthread_t later;
    struct op store = tape_op(OP_STORE, -1), hold = tape_op(OP_HOLD, -1);
    tape_init(&tape);
    int near = tensor(&tape, TIER_DEVICE, TENSOR_INPUT), far = tensor(&tape, TIER_DISK, TENSOR_KEPT);
    store.in[MOVE_FROM] = hold.in[0] = near, store.out[MOVE_TO] = far, store.attr.behind = true;
    tape_append(&tape, &store), tape_append(&tape, &hold);
    assert_int_equal(device_cpu_open(NULL, 1, &device, &err), PLIM_OK);
    struct layout_options how = {.facts = &device->facts, .accumulation = 1};
    assert_int_equal(layout_make(&tape, &how, &layout, &err), PLIM_OK);
    assert_int_equal(device->ops->commit(device, (size_t)layout.arena_bytes, &err), PLIM_OK);
    set_gate(true);
    assert_int_equal(disk_open(".", LENGTH, &options, &disk, &err), PLIM_OK);
    assert_int_equal(exec_open(&exec, device, &tape, &layout, disk, &err), PLIM_OK);
    char *memory = exec_host(&exec, near), *got = aligned(LENGTH);
    memset(memory, 'a', LENGTH);
    set_gate(false);
    pthread_create(&later, NULL, open_later, NULL);
    assert_int_equal(exec_run(&exec, 0, 2, 0, &err), PLIM_OK);
    memset(memory, 'b', LENGTH);
    pthread_join(later, NULL);
    assert_int_equal(disk_settle(disk, &err), PLIM_OK);
    assert_int_equal(disk_read(disk, got, LENGTH, 0, &err), PLIM_OK);
    for (int i = 0; i < LENGTH; i++) assert_int_equal(got[i], 'a');
    exec_close(&exec), disk_close(disk), layout_release(&layout), tape_release(&tape), free(got);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_together),
                                       cmocka_unit_test(test_hold)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
