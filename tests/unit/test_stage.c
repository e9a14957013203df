/* run-tests: not=tsan */
/* test_stage.c - copies between a device and a disk in two steps: whatever is fetched, changed and stored in whatever order,
 * the same bytes arrive, no copy crosses both tiers, and reads run ahead. */
#include "base/rng.h"
#include "tape/pass.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TAPES = 200, FAR = 5, ACTS = 14, BYTES = 1 << 16, STAGE = 96 };

static struct plim_error err;

static int tensor(struct tape *tape, enum tier tier, int64_t rows, int64_t row, unsigned flags)
{
    struct tensor t = {.label = "t",
                       .layer = -1,
                       .type = DT_U8,
                       .cls = tier == TIER_DEVICE ? CLASS_WORK : CLASS_STATE,
                       .tier = tier,
                       .ndim = 2,
                       .dim = {rows, row},
                       .flags = flags,
                       .view_of = -1,
                       .owner = -1};
    return tape_tensor(tape, &t);
}

static void copy(struct tape *tape, int kind, int from, int to)
{
    struct op op = tape_op(kind, -1);
    op.in[MOVE_FROM] = from, op.out[MOVE_TO] = to;
    tape_append(tape, &op);
}

/* Tensors on disk of several sizes; parts of them are fetched, changed (an op with that buffer as its only operand) and
 * stored, to where they were or elsewhere, some twice. */
static void draw_tape(struct tape *tape, uint64_t seed)
{
    int far[FAR];
    tape_init(tape);
    for (int i = 0; i < FAR; i++)
        far[i] = tensor(tape, TIER_DISK, 1 + (int64_t)rng_below(1, seed, (uint64_t)i, 40),
                        1 + (int64_t)rng_below(2, seed, (uint64_t)i, 60), TENSOR_KEPT);
    for (uint64_t a = 0; a < ACTS; a++) {
        int of = far[rng_below(3, seed, a, FAR)];
        int64_t all = tape->tensors[of].dim[0], row = tape->tensors[of].dim[1];
        int64_t first = (int64_t)rng_below(4, seed, a, (uint64_t)all),
                rows = 1 + (int64_t)rng_below(5, seed, a, (uint64_t)(all - first));
        int part = rows == all ? of : tape_view_rows(tape, of, first, rows);
        int near = tensor(tape, TIER_DEVICE, rows, row, 0);
        copy(tape, OP_FETCH, part, near);
        struct op change = tape_op(OP_ACT, -1);
        change.in[0] = change.out[0] = near, change.attr.first = (int64_t)a;
        tape_append(tape, &change);
        if (rng_below(6, seed, a, 4)) copy(tape, OP_STORE, near, part);
        if (a == ACTS / 2) tape->loop_end = tape->nops;
    }
}

struct memory {
    unsigned char bytes[BYTES];
    int offset[4096]; /* by root */
};

static unsigned char *at(struct memory *m, const struct tape *tape, int id)
{
    return m->bytes + m->offset[tape_root(tape, id)] + tape->tensors[id].view_offset;
}

/* Ops one after the other; disk tensors come first, and so lie at the same place whatever is added to a tape. */
static void interpret(const struct tape *tape, struct memory *m)
{
    int used = 0;
    for (int i = 0; i < tape->ntensors; i++) {
        if (tape->tensors[i].view_of >= 0) continue;
        m->offset[i] = used;
        used += (int)tensor_bytes(&tape->tensors[i]);
    }
    assert_true(used <= BYTES && tape->ntensors <= 4096);
    for (int i = 0; i < BYTES; i++) m->bytes[i] = (unsigned char)(i * 31 + (i >> 7));
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        size_t n = (size_t)tensor_bytes(&tape->tensors[op->in[0]]);
        assert_int_equal(n, tensor_bytes(&tape->tensors[op->out[0]]));
        unsigned char *to = at(m, tape, op->out[0]);
        if (op_moves(op)) memmove(to, at(m, tape, op->in[0]), n);
        for (size_t k = 0; k < n && !op_moves(op); k++)
            to[k] = (unsigned char)(to[k] * 3 + op->attr.first + (int64_t)k);
    }
}

/* No copy between disk and device is left, and none through a stage is larger than it. */
static int check_copies(const struct tape *tape)
{
    int ahead = 0, most = 0;
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (!op_moves(op)) continue;
        enum tier far = tape->tensors[move_far(op)].tier, near = tape->tensors[move_near(op)].tier;
        assert_int_equal(far - near, 1);
        if (op->kind == OP_FETCH) ahead += far == TIER_DISK ? 1 : -1;
        if (ahead > most) most = ahead;
        assert_true(ahead >= 0);
    }
    assert_int_equal(ahead, 0);
    return most;
}

static void test_same_bytes(void **state)
{
    (void)state;
    struct memory *want = malloc(sizeof *want), *got = malloc(sizeof *got);
    int deepest = 0;
    assert_true(want && got);
    for (uint64_t seed = 0; seed < TAPES; seed++) {
        struct tape tape;
        draw_tape(&tape, seed);
        interpret(&tape, want);
        int disk = 0;
        for (int i = 0; i < FAR; i++) disk += (int)tensor_bytes(&tape.tensors[i]);
        assert_int_equal(pass_stage(&tape, STAGE, &err), PLIM_OK);
        interpret(&tape, got);
        if (memcmp(want->bytes, got->bytes, (size_t)disk))
            fail_msg("tape %d: other bytes on disk", (int)seed);
        int ahead = check_copies(&tape);
        if (ahead > deepest) deepest = ahead;
        tape_release(&tape);
    }
    assert_int_equal(deepest, 4);
    free(want), free(got);
}

/* Nothing on disk: the tape stays as it is. */
static void test_nothing_to_stage(void **state)
{
    (void)state;
    struct tape tape;
    tape_init(&tape);
    int far = tensor(&tape, TIER_HOST, 4, 4, TENSOR_KEPT), near = tensor(&tape, TIER_DEVICE, 4, 4, 0);
    copy(&tape, OP_FETCH, far, near);
    assert_int_equal(pass_stage(&tape, STAGE, &err), PLIM_OK);
    assert_int_equal(tape.nops, 1);
    assert_int_equal(tape.ntensors, 2);
    tape_release(&tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bytes),
                                       cmocka_unit_test(test_nothing_to_stage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
