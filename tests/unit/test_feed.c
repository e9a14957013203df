/* test_feed.c - a feed finds the inputs that a tape has, by name, and sends those and no others. */
#include "device/registry.h"
#include "runtime/feed.h"
#include "support/fake_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { B = 3, T = 5, S = 7, V = 11, C = 4 };

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

static int input(struct tape *tape, const char *label, int64_t rows, int64_t time)
{
    struct tensor t = {.label = label,
                       .type = DT_I32,
                       .cls = CLASS_IO,
                       .flags = TENSOR_INPUT,
                       .ndim = time ? 2 : 1,
                       .dim = {rows, time},
                       .layer = -1,
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(tape, &t);
}

static int table(struct tape *tape)
{
    struct tensor t = {.label = "table",
                       .type = DT_F32,
                       .cls = CLASS_PARAM,
                       .flags = TENSOR_KEPT,
                       .ndim = 2,
                       .dim = {V, C},
                       .layer = -1,
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(tape, &t);
}

/* So that the input has a place in the arena. */
static void read_input(struct tape *tape, int ids, int64_t time)
{
    struct op op = tape_op(OP_EMBED, -1);
    struct tensor y = {.label = "y",
                       .type = DT_F32,
                       .cls = CLASS_ACT,
                       .flags = TENSOR_OUTPUT,
                       .ndim = 3,
                       .dim = {B, time, C},
                       .layer = -1,
                       .view_of = -1,
                       .owner = -1};
    op.in[EMBED_IDS] = ids, op.in[EMBED_W] = tape_find(tape, "table", -1);
    op.out[EMBED_Y] = tape_tensor(tape, &y);
    tape_append(tape, &op);
    tape->loop_end = tape->nops;
}

struct rig {
    struct tape tape;
    struct layout layout;
    struct exec exec;
    struct feed feed;
};

static void rig_open(struct rig *rig, struct device *device)
{
    struct layout_options options = {.facts = &device->facts, .accumulation = 1};
    must(layout_make(&rig->tape, &options, &rig->layout, &err));
    must(device->ops->commit(device, (size_t)rig->layout.arena_bytes, &err));
    must(exec_open(&rig->exec, device, &rig->tape, &rig->layout, NULL, &err));
    must(feed_open(&rig->feed, &rig->exec, &err));
}

static void rig_close(struct rig *rig, struct device *device)
{
    feed_close(&rig->feed);
    exec_close(&rig->exec);
    layout_release(&rig->layout);
    tape_release(&rig->tape);
    must(device->ops->commit(device, 0, &err));
}

/* An encoder-decoder's inputs: those that are there have arrays of their shapes, in any order of the tape. */
static void build_both_sides(struct tape *tape)
{
    tape_init(tape);
    table(tape);
    read_input(tape, input(tape, "source.ids", B, S), S);
    read_input(tape, input(tape, "types", B, T), T);
    read_input(tape, input(tape, "ids", B, T), T);
}

static void check_arrays(const struct feed *feed)
{
    assert_int_equal(feed->rows.count, B);
    assert_int_equal(feed->rows.time, T);
    assert_int_equal(feed->rows.source_time, S);
    assert_true(feed->rows.ids && feed->rows.types && feed->rows.source_ids);
    assert_true(!feed->rows.pos && !feed->rows.targets && !feed->rows.lengths && !feed->rows.source_lengths);
    assert_int_equal(rows_width(&feed->rows, FEED_SOURCE_IDS), S);
}

static void test_inputs_by_name(void **state)
{
    (void)state;
    struct rig rig = {0};
    struct fake *f = fake_open(PROMPT);
    int32_t seen[B * S];
    build_both_sides(&rig.tape);
    rig_open(&rig, &f->device);
    check_arrays(&rig.feed);
    assert_non_null(rig.feed.staged);
    for (int i = 0; i < B * S; i++) rig.feed.rows.source_ids[i] = i % V;
    for (int i = 0; i < B * T; i++) rig.feed.rows.ids[i] = 1, rig.feed.rows.types[i] = 0;
    int before = f->writes;
    must(feed_send(&rig.feed, &err));
    assert_int_equal(f->writes, before + 3);
    must(exec_read(&rig.exec, rig.feed.tensor[FEED_SOURCE_IDS], seen, 0, sizeof seen, &err));
    assert_memory_equal(seen, rig.feed.rows.source_ids, sizeof seen);
    rig_close(&rig, &f->device);
    f->device.ops->close(&f->device);

    struct device *cpu;
    must(device_cpu_open(NULL, 1, &cpu, &err));
    build_both_sides(&rig.tape);
    rig_open(&rig, cpu);
    check_arrays(&rig.feed);
    assert_null(rig.feed.staged);
    assert_ptr_equal(rig.feed.rows.types, exec_host(&rig.exec, rig.feed.tensor[FEED_TYPES]));
    rig_close(&rig, cpu);
    cpu->ops->close(cpu);
}

static void test_shapes_that_rows_lack(void **state)
{
    (void)state;
    struct rig rig = {0};
    struct device *cpu;
    must(device_cpu_open(NULL, 1, &cpu, &err));
    build_both_sides(&rig.tape);
    read_input(&rig.tape, input(&rig.tape, "pos", B, T + 1), T + 1);
    struct layout_options options = {.facts = &cpu->facts, .accumulation = 1};
    must(layout_make(&rig.tape, &options, &rig.layout, &err));
    must(cpu->ops->commit(cpu, (size_t)rig.layout.arena_bytes, &err));
    must(exec_open(&rig.exec, cpu, &rig.tape, &rig.layout, NULL, &err));
    assert_int_equal(feed_open(&rig.feed, &rig.exec, &err), PLIM_BUG);
    assert_non_null(strstr(err.text, "pos"));
    rig_close(&rig, cpu);
    cpu->ops->close(cpu);
}

static void test_blank_rows(void **state)
{
    (void)state;
    int32_t memory[B * (4 * T + S + 5)];
    struct rows rows = {.count = B, .time = T, .source_time = S};
    memset(memory, 0x55, sizeof memory);
    assert_int_equal(rows_place(&rows, (1u << FEED_COUNT) - 1, memory), B * (4 * T + S + 5));
    rows_blank(&rows, 1);
    assert_int_equal(rows.ids[T - 1], 0x55555555); /* the row before them is as it was */
    assert_int_equal(rows.source_lengths[0], 0x55555555);
    for (int i = T; i < B * T; i++)
        assert_true(rows.ids[i] == 0 && rows.targets[i] == -1 && rows.types[i] == 0 && rows.pos[i] == i % T);
    for (int i = 1; i < B; i++) assert_true(rows.lengths[i] == 0 && rows.source_lengths[i] == 0);
    for (int i = S; i < B * S; i++) assert_int_equal(rows.source_ids[i], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs_by_name),
        cmocka_unit_test(test_shapes_that_rows_lack),
        cmocka_unit_test(test_blank_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
