/* test_quantised_rows.c - linear_q and linear_f8: a row has the same bits alone and among others, and in one launch with what makes its
 * rows as op by op.
 *
 *     OP_DEVICE  cpu (default) or cuda
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "device/cuda/cuda_workspace.h"
#include "device/device.h"
#include "support/op_device.h"
#include "support/pace.h"
#include "tape/quantised.h"
#include "tensor/f8_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = CUDA_Q_ROWS, LINES = 48, ALIGN = 256, ROOM = 128 << 20 };

static struct plim_error err;
static uint32_t random_state = 1;

static uint32_t draw(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static float small_number(void) { return ((float)(draw() % 2001) - 1000.0f) / 700.0f; }

/* Operands in an image of the arena. */
struct scene {
    struct device *dev;
    unsigned char *image;
    size_t bytes;
    struct tensor t[16];
    size_t at[16];
    int count;
};

static int add(struct scene *s, enum dtype type, enum tensor_class cls, int64_t rows, int64_t columns)
{
    int id = s->count++;
    s->t[id] = (struct tensor){.label = "t",
                               .type = type,
                               .cls = cls,
                               .ndim = 2,
                               .dim = {rows, columns},
                               .view_of = -1,
                               .owner = -1};
    s->at[id] = s->bytes;
    s->bytes += ((size_t)(rows * columns) * dtype_size(type) + ALIGN - 1) / ALIGN * ALIGN;
    assert_true(s->bytes <= ROOM);
    uint16_t *to = (uint16_t *)(void *)(s->image + s->at[id]);
    for (int64_t i = 0; type == DT_BF16 && i < rows * columns; i++) to[i] = f32_to_bf16(small_number());
    return id;
}

/* The lines that attr says. */
static int add_lines(struct scene *s, int64_t k, struct op_attr *attr)
{
    struct quantised_part p;
    int id = add(s, DT_U8, CLASS_PARAM, 1, quantised_bytes(attr, k));
    unsigned char *rows = malloc((size_t)(PANEL_LINES * k * 2));
    assert_non_null(rows);
    for (int i = 0; quantised_part(attr, k, i, &p); i++)
        for (int64_t line = 0; line < p.lines; line += PANEL_LINES) {
            int64_t blocks = PANEL_LINES * k / p.type->elements;
            for (int64_t b = 0; b < blocks * p.type->bytes; b++) rows[b] = (unsigned char)draw();
            for (int64_t b = 0; b < blocks; b++)
                for (int f = 0; f < BLOCK_FIELDS; f++)
                    for (int h = 0; p.type->field[f].unit == 2 && h < p.type->field[f].bytes; h += 2) {
                        uint16_t scale = f32_to_f16(0.001f * small_number());
                        memcpy(rows + b * p.type->bytes + p.type->field[f].at + h, &scale, sizeof scale);
                    }
            panel_pack(p.type, k, rows,
                       s->image + s->at[id] + p.offset + line / PANEL_LINES * panel_bytes(p.type, k));
        }
    free(rows);
    return id;
}

/* Lines of two types, so that one op is two launches where types have kernels of their own. */
static int add_weight(struct scene *s, int first, int second, int64_t k, struct op_attr *attr)
{
    attr->lines[0] = (struct op_lines){first, LINES - 24}, attr->lines[1] = (struct op_lines){second, 24};
    return add_lines(s, k, attr);
}

static struct op linear_q(int x, int w, int y, const struct op_attr *attr)
{
    struct op op = tape_op(OP_LINEAR_Q, -1);
    op.attr = *attr, op.in[LINEAR_Q_X] = x, op.in[LINEAR_Q_W] = w, op.out[LINEAR_Q_Y] = y;
    return op;
}

enum { F8 = BLOCK_FP4_DQ + 1 }; /* behind the numbers of block types */

/* e4m3 codes that are numbers, and scales. */
static struct op linear_f8(struct scene *s, int x, int64_t k, int y)
{
    struct op op = tape_op(OP_LINEAR_F8, -1);
    int w = add(s, DT_U8, CLASS_PARAM, 1, f8_bytes(LINES, k));
    unsigned char *to = s->image + s->at[w];
    for (int64_t i = 0; i < LINES * k; i++) to[i] = f32_to_e4m3(small_number());
    for (int64_t i = 0; i < LINES; i++) {
        float scale = 0.01f * (float)(i + 1);
        memcpy(to + LINES * k + 4 * i, &scale, sizeof scale);
    }
    op.attr.lines[0].lines = LINES;
    op.in[LINEAR_F8_X] = x, op.in[LINEAR_F8_W] = w, op.out[LINEAR_F8_Y] = y;
    return op;
}

static struct op linear_of(struct scene *s, int first, int second, int x, int64_t k, int y)
{
    struct op_attr attr = {0};
    if (first == F8) return linear_f8(s, x, k, y);
    int w = add_weight(s, first, second == F8 ? first : second, k, &attr);
    return linear_q(x, w, y, &attr);
}

static const char *type_name(int type) { return type == F8 ? "e4m3" : block_type_of((uint32_t)type)->name; }

/* `rows` rows from row `first` on: operands with ROWS rows are cut. */
static struct kernel_call call_of(struct scene *s, const struct op *op, struct tensor *cut, int64_t first,
                                  int64_t rows, size_t work)
{
    char *base = s->dev->ops->base(s->dev);
    struct kernel_call call = {.op = op, .team = s->dev->team, .work = base + work};
    for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
        int id = k < OP_MAX_IN ? op->in[k] : op->out[k - OP_MAX_IN];
        if (id < 0) continue;
        cut[k] = s->t[id];
        size_t skip = 0;
        if (cut[k].dim[0] == ROWS)
            cut[k].dim[0] = rows, skip = (size_t)(first * cut[k].dim[1]) * dtype_size(cut[k].type);
        call.desc[k] = &cut[k];
        *(k < OP_MAX_IN ? &call.in[k] : &call.out[k - OP_MAX_IN]) = base + s->at[id] + skip;
    }
    return call;
}

/* Runs the ops over rows [first, first + rows), op by op or at once. False: the device does not run them at once. */
static bool run(struct scene *s, const struct op *ops, int count, int64_t first, int64_t rows, bool at_once)
{
    static struct tensor cut[4][OP_MAX_IN + OP_MAX_OUT];
    struct kernel_call calls[4];
    size_t work = s->bytes;
    for (int i = 0; i < count; i++) {
        calls[i] = call_of(s, &ops[i], cut[i], first, rows, work);
        work += (op_device_scratch(s->dev, &calls[i]) + ALIGN - 1) / ALIGN * ALIGN;
        assert_true(work <= ROOM);
    }
    if (at_once && (!s->dev->ops->fuses || !s->dev->ops->fuses(s->dev, calls, count))) return false;
    calls[0].passed = at_once && draw() % 2;
    if (at_once)
        s->dev->ops->run_many(s->dev, calls, count);
    else
        for (int i = 0; i < count; i++) s->dev->ops->run(s->dev, &calls[i]);
    assert_int_equal(s->dev->ops->sync(s->dev, &err), PLIM_OK);
    return true;
}

static void restore(struct scene *s)
{
    assert_int_equal(s->dev->ops->write(s->dev, 0, s->image, s->bytes, &err), PLIM_OK);
}

static void read_rows(struct scene *s, int id, int64_t first, int64_t rows, uint16_t *out)
{
    size_t width = (size_t)s->t[id].dim[1] * sizeof *out;
    assert_int_equal(
        s->dev->ops->read(s->dev, s->at[id] + (size_t)first * width, out, (size_t)rows * width, &err),
        PLIM_OK);
}

static void open_scene(struct scene *s, struct device *dev)
{
    *s = (struct scene){.dev = dev, .image = malloc(ROOM)};
    assert_non_null(s->image);
    assert_int_equal(dev->ops->commit(dev, ROOM, &err), PLIM_OK);
}

static const int types[] = {BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K, F8};
enum { TYPES = sizeof types / sizeof *types };

/* How many warps have a panel of 16 lines to share follows from how many panels a multiprocessor has: 8, 4, 2 and 1 on this device. */
static void rows_do_not_know_how_work_is_shared_out(void **state)
{
    /* A CPU that stands for a card has 4 multiprocessors, a card a hundred and more. */
    static const int64_t sizes[2][4] = {{48, 160, 400, 600}, {48, 6000, 12000, 20000}};
    static uint16_t all[8 * 20000], one[20000];
#if defined(PLIMSOLL_CUDA_ON_CPU)
    const int64_t *lines = sizes[0];
#else
    const int64_t *lines = sizes[op_device_is_card()];
#endif
    for (int t = 0; t < TYPES - 1; t++)
        for (int i = 0; i < 4; i++) {
            /* One chunk; some chains; all chains, some of two chunks. */
            static const int64_t k[] = {2304, 256, 1280, 2048};
            struct scene s;
            struct op_attr attr = {.lines = {{types[t], (int)lines[i]}}};
            open_scene(&s, *state);
            int x = add(&s, DT_BF16, CLASS_ACT, ROWS, k[(i + t) % 4]),
                y = add(&s, DT_BF16, CLASS_ACT, ROWS, lines[i]);
            struct op op = linear_q(x, add_lines(&s, k[(i + t) % 4], &attr), y, &attr);
            restore(&s);
            run(&s, &op, 1, 0, 64, false); /* in larger tiles all warps share a panel */
            read_rows(&s, y, 0, 8, all);
            for (int64_t rows = 1; rows <= 8; rows += 7) {
                restore(&s);
                run(&s, &op, 1, 0, rows, false);
                read_rows(&s, y, rows - 1, 1, one);
                if (memcmp(one, all + (rows - 1) * lines[i], (size_t)lines[i] * sizeof *one))
                    fail_msg("%s, %lld lines of %lld: %lld rows have other bits than 64", type_name(types[t]),
                             (long long)lines[i], (long long)k[(i + t) % 4], (long long)rows);
            }
            free(s.image);
        }
}

static void rows_do_not_know_each_other(void **state)
{
    static const int64_t counts[] = {1, 3, 8, 9, 20, 33, 64, 65, 100};
    static uint16_t all[ROWS * LINES], some[ROWS * LINES];
    for (int t = 0; t < TYPES; t++)
        for (int64_t k = 256; k <= 2304; k *= 3) {
            struct scene s;
            /* More rows of e4m3 are another kernel's on a GPU. */
            int64_t most = types[t] == F8 ? CUDA_F8_ROWS : ROWS;
            open_scene(&s, *state);
            int x = add(&s, DT_BF16, CLASS_ACT, ROWS, k), y = add(&s, DT_BF16, CLASS_ACT, ROWS, LINES);
            struct op op = linear_of(&s, types[t], types[(t + 1) % TYPES], x, k, y);
            restore(&s);
            run(&s, &op, 1, ROWS - most, most, false);
            read_rows(&s, y, 0, ROWS, all);
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c += EVERY) {
                if (counts[c] > most / 2 && most < ROWS) break;
                int64_t rows = counts[c], first = ROWS - rows - (int64_t)(draw() % 8);
                restore(&s);
                run(&s, &op, 1, first, rows, false);
                read_rows(&s, y, first, rows, some);
                if (memcmp(some, all + first * LINES, (size_t)(rows * LINES) * sizeof *some))
                    fail_msg("%s, k %lld: %lld rows from %lld on have other bits than among %d",
                             type_name(types[t]), (long long)k, (long long)rows, (long long)first, ROWS);
            }
            free(s.image);
        }
}

/* A norm sums squares in its own order: results of it and of what reads it agree to a rounding of bf16. */
static void check_close(const uint16_t *a, const uint16_t *b, int64_t count, bool bits, const char *what,
                        int64_t rows)
{
    float largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        float x = bf16_to_f32(a[i]), y = bf16_to_f32(b[i]);
        largest = fmaxf(largest, fabsf(x)), worst = fmaxf(worst, fabsf(x - y));
        assert_true(isfinite(x) && isfinite(y));
    }
    if (worst > (bits ? 0 : 0.02f * largest))
        fail_msg("%s, %lld rows: %g of %g differs", what, (long long)rows, (double)worst, (double)largest);
}

static void ops_at_once_are_ops_one_by_one(void **state)
{
    static const int64_t counts[] = {1, 2, 5, 8, 9, 40, ROWS};
    static uint16_t single[2][ROWS * LINES], fused[2][ROWS * LINES];
    /* Longer gated rows; from the second on they are for e4m3, which has a kernel for each. */
    static const int64_t longer[] = {4864, 9216, 17408, 33024};
    enum { NORM, GLU, PLAIN, LONG_GLU, PATTERNS = LONG_GLU + sizeof longer / sizeof *longer };
    int seen = 0;
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int t = 0; t < TYPES; t++) {
            struct scene s;
            struct op ops[3];
            int count = 0;
            const int64_t k = pattern >= LONG_GLU ? longer[pattern - LONG_GLU] : 2048;
            if (pattern > LONG_GLU && types[t] != F8) continue;
            open_scene(&s, *state);
            int a = add(&s, DT_BF16, CLASS_ACT, ROWS, k), b = add(&s, DT_BF16, CLASS_ACT, ROWS, k),
                w = add(&s, DT_BF16, CLASS_PARAM, 1, k), stat = add(&s, DT_F32, CLASS_ACT, ROWS, 1),
                x = add(&s, DT_BF16, CLASS_ACT, ROWS, k), y[2];
            s.t[w].ndim = 1, s.t[w].dim[0] = k;
            ops[0] = tape_op(pattern == NORM ? OP_NORM : OP_GLU, -1);
            ops[0].attr.eps = 1e-5f, ops[0].attr.activation = ACTIVATION_SILU;
            ops[0].in[0] = a, ops[0].in[1] = pattern == NORM ? w : b, ops[0].out[0] = x;
            if (pattern == NORM) ops[0].out[NORM_STAT] = stat;
            count += pattern != PLAIN;
            for (int i = 0; i < 2; i++) {
                y[i] = add(&s, DT_BF16, CLASS_ACT, ROWS, LINES);
                ops[count++] = linear_of(&s, types[t], types[(t + 2 * i) % TYPES], x, k, y[i]);
            }
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c += EVERY) {
                if (pattern == LONG_GLU && types[t] != F8 && counts[c] > 2)
                    break; /* one row is what differs */
                restore(&s);
                if (!run(&s, ops, count, 0, counts[c], true)) continue;
                for (int i = 0; i < 2; i++) read_rows(&s, y[i], 0, counts[c], fused[i]);
                restore(&s);
                run(&s, ops, count, 0, counts[c], false);
                for (int i = 0; i < 2; i++) {
                    read_rows(&s, y[i], 0, counts[c], single[i]);
                    check_close(single[i], fused[i], counts[c] * LINES, pattern != NORM, op_name(ops[0].kind),
                                counts[c]);
                }
                seen++;
            }
            free(s.image);
        }
    if (!seen) skip(); /* a CPU runs op by op */
}

/* A norm, two products and their gated unit, which alone is written: whole panels and not, one panel of a block's warps and several. */
static void a_gated_unit_is_made_with_its_products(void **state)
{
    static const struct {
        int64_t lines, k;
    } sizes[] = {{48, 256}, {24, 2048}, {1000, 512}, {9216, 256}};
    static uint16_t single[9216], fused[9216];
    int seen = 0;
    for (int t = 0; t < TYPES - 1; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct scene s;
            struct op ops[4] = {tape_op(OP_NORM, -1), {0}, {0}, tape_op(OP_GLU, -1)};
            const int64_t k = sizes[i].k, lines = sizes[i].lines;
            open_scene(&s, *state);
            int a = add(&s, DT_BF16, CLASS_ACT, 1, k), w = add(&s, DT_BF16, CLASS_PARAM, 1, k),
                stat = add(&s, DT_F32, CLASS_ACT, 1, 1), x = add(&s, DT_BF16, CLASS_ACT, 1, k),
                h = add(&s, DT_BF16, CLASS_ACT, 1, lines), y[2];
            s.t[w].ndim = 1, s.t[w].dim[0] = k;
            ops[0].attr.eps = 1e-5f, ops[3].attr.activation = ACTIVATION_SILU;
            ops[0].in[NORM_X] = a, ops[0].in[NORM_W] = w, ops[0].out[NORM_Y] = x,
            ops[0].out[NORM_STAT] = stat;
            for (int n = 0; n < 2; n++) {
                struct op_attr attr = {.lines = {{types[t], (int)lines}}};
                y[n] = add(&s, DT_BF16, CLASS_ACT, 1, lines);
                ops[1 + n] = linear_q(x, add_lines(&s, k, &attr), y[n], &attr);
            }
            ops[3].in[GLU_GATE] = y[0], ops[3].in[GLU_UP] = y[1], ops[3].out[GLU_H] = h;
            restore(&s);
            bool runs = run(&s, ops, 4, 0, 1, true);
            if (runs) read_rows(&s, h, 0, 1, fused);
            restore(&s);
            if (runs) assert_true(run(&s, ops, 3, 0, 1, true));
            run(&s, ops + 3, 1, 0, 1, false);
            read_rows(&s, h, 0, 1, single);
            if (runs) check_close(single, fused, lines, true, type_name(types[t]), 1);
            seen += runs;
            free(s.image);
        }
    if (!seen) skip(); /* a CPU runs op by op */
    assert_int_equal(seen, (TYPES - 1) * (sizeof sizes / sizeof *sizes));
}

/* Two rows and the weights under way fill the shared memory of a card of 8.9 or 9.0 to the last byte: the kernel has variables of its own there. */
static void wide_rows_leave_room(void **state)
{
    static const struct {
        int type;
        int64_t k;
    } cases[] = {{BLOCK_Q5_K, 1536}, {BLOCK_Q4_0, 3584},  {BLOCK_Q4_K, 4608},
                 {BLOCK_Q8_0, 5632}, {BLOCK_Q4_K, 15872}, {BLOCK_Q5_K, 16896}};
    static uint16_t both[2 * LINES], one[LINES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene s;
        open_scene(&s, *state);
        int64_t k = cases[i].k;
        int x = add(&s, DT_BF16, CLASS_ACT, ROWS, k), y = add(&s, DT_BF16, CLASS_ACT, ROWS, LINES);
        struct op op = linear_of(&s, cases[i].type, cases[i].type, x, k, y);
        restore(&s);
        run(&s, &op, 1, 0, 2, false);
        read_rows(&s, y, 0, 2, both);
        for (int64_t row = 0; row < 2; row++) {
            run(&s, &op, 1, row, 1, false);
            read_rows(&s, y, row, 1, one);
            if (memcmp(one, both + row * LINES, sizeof one))
                fail_msg("%s, k %lld: row %lld has other bits alone", type_name(cases[i].type), (long long)k,
                         (long long)row);
        }
        free(s.image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_know_each_other),
        cmocka_unit_test(rows_do_not_know_how_work_is_shared_out),
        cmocka_unit_test(ops_at_once_are_ops_one_by_one),
        cmocka_unit_test(a_gated_unit_is_made_with_its_products),
        cmocka_unit_test(wide_rows_leave_room),
    };
    return cmocka_run_group_tests(tests, op_device_open, op_device_close);
}
