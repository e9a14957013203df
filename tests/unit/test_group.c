/* run-tests: not=tsan */
/* test_group.c - which ops are a group, and what a layout does for groups: scratch of all of them at once, nothing taken
 * over, on a device with its own memory; on the CPU everything as if there were none. */
#include "plan/layout.h"
#include "tape/group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

enum { N = 100, SCRATCH = 1000, ALIGN = 256 };

static struct plim_error err;

static int tensor(struct tape *tape, enum dtype type, enum tensor_class cls, unsigned flags, int64_t count)
{
    return tape_tensor(tape, &(struct tensor){.label = "t",
                                              .layer = -1,
                                              .type = type,
                                              .cls = cls,
                                              .flags = flags,
                                              .ndim = 1,
                                              .dim = {count},
                                              .view_of = -1,
                                              .owner = -1});
}

static int input(struct tape *tape) { return tensor(tape, DT_F32, CLASS_GRAD, TENSOR_INPUT, N); }

static void sumsq(struct tape *tape, int grad, int sums, int64_t at)
{
    struct op op = tape_op(OP_SUMSQ, -1);
    op.in[SUMSQ_GRAD] = grad, op.out[SUMSQ_SUM] = tape_view_rows(tape, sums, at, 1);
    tape_append(tape, &op);
}

static void adamw(struct tape *tape, int p, int g, int m, int v, int scalars)
{
    struct op op = tape_op(OP_ADAMW, -1);
    op.in[ADAMW_P] = op.out[ADAMW_NEW_P] = p, op.in[ADAMW_G] = g, op.in[ADAMW_M] = op.out[ADAMW_NEW_M] = m,
    op.in[ADAMW_V] = op.out[ADAMW_NEW_V] = v, op.in[ADAMW_SCALARS] = scalars;
    tape_append(tape, &op);
}

static int kept(struct tape *tape) { return tensor(tape, DT_F32, CLASS_STATE, TENSOR_KEPT, N); }

/* `count` sums of squares, each into its own element; all of them in the update part. */
static int many_sums(struct tape *tape, int count)
{
    tape_init(tape);
    int sums = tensor(tape, DT_F64, CLASS_WORK, 0, count);
    for (int i = 0; i < count; i++) sumsq(tape, input(tape), sums, i);
    return sums;
}

static void test_sums_are_a_group(void **state)
{
    (void)state;
    struct tape tape;
    many_sums(&tape, TAPE_GROUP_MOST + 6);
    assert_int_equal(tape_group_end(&tape, 0), TAPE_GROUP_MOST);
    assert_int_equal(tape_group_end(&tape, TAPE_GROUP_MOST), TAPE_GROUP_MOST + 6);
    assert_int_equal(tape_group_end(&tape, 3), TAPE_GROUP_MOST + 3);
    assert_int_equal(tape_group_end(&tape, tape.nops - 1), tape.nops);
    tape_release(&tape);
}

static void test_a_group_ends(void **state)
{
    (void)state;
    struct tape tape;
    int sums = many_sums(&tape, 8);
    tape.loop_end = 3;
    assert_int_equal(tape_group_end(&tape, 0), 3);
    assert_int_equal(tape_group_end(&tape, 3), 8);
    tape.ops[5].attr.on_host = true;
    assert_int_equal(tape_group_end(&tape, 3), 5);
    assert_int_equal(tape_group_end(&tape, 5), 6);
    tape.ops[5].attr.on_host = false;
    tape.ops[6].kind = OP_ACT;
    assert_int_equal(tape_group_end(&tape, 3), 6);
    assert_int_equal(tape_group_end(&tape, 6), 7);
    tape.ops[6].kind = OP_SUMSQ;
    tape.ops[7].out[SUMSQ_SUM] = tape.ops[4].out[SUMSQ_SUM]; /* the same element twice */
    assert_int_equal(tape_group_end(&tape, 3), 7);
    tape.ops[7].out[SUMSQ_SUM] = sums; /* all of them */
    assert_int_equal(tape_group_end(&tape, 3), 7);
    tape_release(&tape);
}

static void test_updates_are_a_group(void **state)
{
    (void)state;
    struct tape tape;
    tape_init(&tape);
    int scalars = tensor(&tape, DT_F32, CLASS_IO, TENSOR_INPUT, SCALAR_COUNT), p[6], g[6], m[6], v[6];
    for (int i = 0; i < 6; i++) {
        p[i] = kept(&tape), g[i] = input(&tape), m[i] = kept(&tape), v[i] = kept(&tape);
        adamw(&tape, p[i], g[i], m[i], v[i], scalars);
    }
    assert_int_equal(tape_group_end(&tape, 0), 6);
    tape.ops[3].in[ADAMW_G] = g[1]; /* read twice */
    assert_int_equal(tape_group_end(&tape, 0), 6);
    tape.ops[3].in[ADAMW_G] = p[1]; /* read what another one writes */
    assert_int_equal(tape_group_end(&tape, 0), 3);
    assert_int_equal(tape_group_end(&tape, 2), 6);
    tape.ops[3].in[ADAMW_G] = g[3];
    tape.ops[4].in[ADAMW_V] = tape.ops[4].out[ADAMW_NEW_V] = g[2]; /* write what another one reads */
    assert_int_equal(tape_group_end(&tape, 0), 4);
    tape.ops[4].in[ADAMW_V] = tape.ops[4].out[ADAMW_NEW_V] = m[2]; /* written twice */
    assert_int_equal(tape_group_end(&tape, 0), 4);
    tape.ops[4].in[ADAMW_V] = tape.ops[4].out[ADAMW_NEW_V] = v[4];
    tape.ops[5].in[ADAMW_P] = tape.ops[5].out[ADAMW_NEW_P] = scalars; /* write what all others read */
    assert_int_equal(tape_group_end(&tape, 0), 5);
    tape_release(&tape);
}

/* Rows of one parameter, one after the other and with a gap that is filled later. */
static void test_views(void **state)
{
    (void)state;
    struct tape tape;
    tape_init(&tape);
    int p = kept(&tape), m = kept(&tape), v = kept(&tape), g = input(&tape), scalars = input(&tape);
    static const int order[] = {0, 1, 3, 2};
    for (int i = 0; i < 4; i++) {
        int64_t at = order[i] * 25;
        adamw(&tape, tape_view_rows(&tape, p, at, 25), tape_view_rows(&tape, g, at, 25),
              tape_view_rows(&tape, m, at, 25), tape_view_rows(&tape, v, at, 25), scalars);
    }
    assert_int_equal(tape_group_end(&tape, 0), 3);
    assert_int_equal(tape_group_end(&tape, 1), 3);
    assert_int_equal(tape_group_end(&tape, 2), 4);
    tape_release(&tape);
}

static size_t scratch(const struct device_facts *facts, const struct tape *tape, const struct op *op)
{
    (void)facts, (void)tape;
    return op->kind == OP_SUMSQ ? SCRATCH : 0;
}

static void lay_out(const struct tape *tape, enum memory_kind memory, struct layout *out)
{
    struct device_facts facts = {.align = ALIGN, .workspace = scratch};
    facts_set_memory(&facts, memory);
    struct layout_options options = {.facts = &facts, .accumulation = 1};
    if (layout_make(tape, &options, out, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (layout_verify(tape, out, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void test_scratch_of_a_group(void **state)
{
    (void)state;
    enum { COUNT = 5, WORK = (SCRATCH + ALIGN - 1) / ALIGN * ALIGN };
    struct tape tape;
    struct layout host, device;
    many_sums(&tape, COUNT);
    lay_out(&tape, MEMORY_PROCESS, &host);
    lay_out(&tape, MEMORY_CARD, &device);
    assert_null(host.group_end);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(layout_group_end(&host, i), i + 1);
        assert_int_equal(layout_group_end(&device, i), COUNT);
    }
    assert_int_equal(host.by_class[CLASS_WORK], ALIGN + WORK);
    assert_int_equal(device.by_class[CLASS_WORK], ALIGN + COUNT * WORK);
    assert_int_equal(device.lower_bound, host.lower_bound + (COUNT - 1) * WORK);
    assert_int_equal(device.arena_bytes, device.lower_bound);
    device.work_offset[1] = device.work_offset[3];
    assert_int_equal(layout_verify(&tape, &device, &err), PLIM_BUG);
    layout_release(&host);
    layout_release(&device);
    tape_release(&tape);
}

/* Gradients that end in a group and results that begin there: in turn they may share bytes, at once they may not. */
static void test_lives_in_a_group(void **state)
{
    (void)state;
    enum { COUNT = 4 };
    struct tape tape;
    struct layout host, device;
    int grad[COUNT], result[COUNT];
    tape_init(&tape);
    int p = kept(&tape), m = kept(&tape), v = kept(&tape), scalars = input(&tape);
    for (int i = 0; i < COUNT; i++) {
        int64_t at = i * 25;
        grad[i] = tensor(&tape, DT_F32, CLASS_GRAD, TENSOR_INPUT, 25);
        result[i] = tensor(&tape, DT_F32, CLASS_ACT, 0, 25);
        adamw(&tape, tape_view_rows(&tape, p, at, 25), grad[i], tape_view_rows(&tape, m, at, 25),
              tape_view_rows(&tape, v, at, 25), scalars);
        tape.ops[i].out[ADAMW_NEW_P] = result[i];
    }
    lay_out(&tape, MEMORY_PROCESS, &host);
    lay_out(&tape, MEMORY_CARD, &device);
    assert_int_equal(device.group_end[0], COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(host.life[result[i]].first, i);
        assert_int_equal(device.life[result[i]].first, 0);
        for (int k = 0; k < COUNT; k++) assert_true(device.offset[result[i]] != device.offset[grad[k]]);
    }
    assert_true(device.arena_bytes > host.arena_bytes);
    layout_release(&host);
    layout_release(&device);
    tape_release(&tape);
}

/* An output may take over an input where an op is for itself, not where another of its group may still read it. */
static void test_nothing_is_taken_over(void **state)
{
    (void)state;
    for (int count = 1; count < 3; count++) {
        struct tape tape;
        struct layout device;
        tape_init(&tape);
        int scalars = input(&tape), from = -1, to = -1;
        for (int i = 0; i < count; i++) {
            struct op make = tape_op(OP_ACT, -1);
            make.in[ACT_X] = input(&tape), make.out[ACT_Y] = from = tensor(&tape, DT_F32, CLASS_ACT, 0, N);
            tape_append(&tape, &make);
            to = tensor(&tape, DT_F32, CLASS_ACT, 0, N);
        }
        int made = tape.nops;
        for (int i = 0; i < count; i++) {
            adamw(&tape, tape.ops[i].out[ACT_Y], input(&tape), kept(&tape), kept(&tape), scalars);
            tape.ops[made + i].out[ADAMW_NEW_P] = i + 1 < count ? tensor(&tape, DT_F32, CLASS_ACT, 0, N) : to;
        }
        lay_out(&tape, MEMORY_CARD, &device);
        assert_int_equal(device.group_end[made], made + count);
        assert_int_equal(device.buffer[to] == from, count == 1);
        layout_release(&device);
        tape_release(&tape);
    }
}

/* ... nor where the op reads the input through another slot as well. */
static void test_read_twice_is_not_taken_over(void **state)
{
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        struct tape tape;
        struct layout host;
        int made[2], to;
        tape_init(&tape);
        for (int i = 0; i < 2; i++) {
            struct op make = tape_op(OP_ACT, -1);
            made[i] = tensor(&tape, DT_F32, CLASS_ACT, 0, N);
            make.in[ACT_X] = input(&tape), make.out[ACT_Y] = made[i];
            tape_append(&tape, &make);
        }
        struct op add = tape_op(OP_ADD, -1);
        to = tensor(&tape, DT_F32, CLASS_ACT, 0, N);
        add.in[ADD_A] = made[0], add.in[ADD_B] = made[!twice], add.out[ADD_Y] = to;
        tape_append(&tape, &add);
        lay_out(&tape, MEMORY_PROCESS, &host);
        assert_int_equal(host.buffer[to] == to, twice);
        layout_release(&host);
        tape_release(&tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_a_group),      cmocka_unit_test(test_a_group_ends),
        cmocka_unit_test(test_updates_are_a_group),   cmocka_unit_test(test_views),
        cmocka_unit_test(test_scratch_of_a_group),    cmocka_unit_test(test_lives_in_a_group),
        cmocka_unit_test(test_nothing_is_taken_over), cmocka_unit_test(test_read_twice_is_not_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
