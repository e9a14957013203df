/* test_row_slices.c - on the CPU, an op over all rows and the same op over slices of them give the same bits.
 *
 * Rows are cut at multiples of LOSS_CHUNK_ROWS; outputs that sum over rows (dW, db, the loss) are overwritten
 * by the first slice and added to by the others. The chunked loss, other micro-batch shapes and recomputation
 * rest on this. Operands are made from the patterns of the op table: an operand with R in its pattern has
 * rows.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/rng.h"
#include "device/device.h"
#include "tape/pass.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 2 * LOSS_CHUNK_ROWS + 77, OPERANDS = OP_MAX_IN + OP_MAX_OUT };

/* One op over ROWS rows. */
struct sliced {
    struct op op;
    enum dtype type;
    struct tensor desc[OPERANDS];
    void *data[OPERANDS]; /* NULL when absent */
    bool by_row[OPERANDS];
};

static int64_t letter_size(char letter, const struct op *op)
{
    switch (letter) {
    case 'R':
        return ROWS;
    case 'C':
        return 97;
    case 'K':
    case 'L': /* of a weight without parts */
        return 67;
    case 'M':
        return 53;
    case 'V':
        return 211;
    case 'S':
        return op->attr.layer_norm ? 2 : 1;
    case 'Z':
        return SCALAR_COUNT;
    default:
        return letter - '0';
    }
}

static enum dtype letter_type(char letter, enum dtype compute)
{
    switch (letter) {
    case 'f':
    case 'g': /* gradients of fewer bits are rounded by every slice: only f32 ones are the whole's */
    case 'e':
        return DT_F32;
    case 'd':
        return DT_F64;
    case 'i':
        return DT_I32;
    default:
        return compute;
    }
}

static void fill(struct sliced *s, int i)
{
    const struct tensor *t = &s->desc[i];
    int64_t n = tensor_count(t);
    s->data[i] = aligned_alloc(64, ((size_t)tensor_bytes(t) + 63) / 64 * 64);
    assert_non_null(s->data[i]);
    for (int64_t j = 0; j < n; j++) {
        float x = (float)rng_normal(5, (uint64_t)(s->op.kind * OPERANDS + i), (uint64_t)j);
        uint16_t *narrow = s->data[i];
        if (t->type == DT_I32) ((int32_t *)s->data[i])[j] = j % 11 == 3 ? 0 : (int32_t)(j * 37 % 211);
        if (t->type == DT_F32) ((float *)s->data[i])[j] = x;
        if (t->type == DT_BF16) narrow[j] = f32_to_bf16(x);
        if (t->type == DT_F16) narrow[j] = f32_to_f16(x);
    }
}

static void make_operand(struct sliced *s, int i, const char *pattern)
{
    const char *dims = pattern + 1 + (pattern[1] == '#');
    struct tensor t = {
        .label = "t", .layer = -1, .type = letter_type(pattern[0], s->type), .view_of = -1, .owner = -1};
    bool swap = (pattern[0] == 'w' || pattern[0] == 'g') && s->op.attr.weight_kn;
    int n = (int)strcspn(dims, "?");
    for (int d = 0; d < n; d++) t.dim[t.ndim++] = letter_size(dims[swap ? n - 1 - d : d], &s->op);
    s->desc[i] = t;
    s->by_row[i] = dims[0] == 'R';
    fill(s, i);
}

static void make(struct sliced *s, int kind, enum dtype type, bool variant)
{
    const struct op_row *row = op_row(kind);
    *s = (struct sliced){.op = tape_op(kind, -1), .type = type};
    s->op.attr.layer_norm = s->op.attr.weight_kn = variant;
    s->op.attr.eps = 1e-5f;
    for (int i = 0; i < OP_MAX_IN && row->in[i]; i++) make_operand(s, i, row->in[i]), s->op.in[i] = i;
    for (int i = 0; i < OP_MAX_OUT && row->out[i]; i++)
        make_operand(s, OP_MAX_IN + i, row->out[i]), s->op.out[i] = OP_MAX_IN + i;
}

static void release(struct sliced *s)
{
    for (int i = 0; i < OPERANDS; i++) free(s->data[i]);
}

/* Rows [begin, end), outputs into `out`. */
static void run(struct sliced *s, struct device *dev, int64_t begin, int64_t end, void *const *out)
{
    struct tensor desc[OPERANDS];
    struct kernel_call call = {.op = &s->op, .accumulate = begin > 0, .team = dev->team};
    const struct kernel *kernel = dev->kernels[s->op.kind];
    for (int i = 0; i < OPERANDS; i++) {
        char *base = i < OP_MAX_IN ? s->data[i] : out[i - OP_MAX_IN];
        if (!s->data[i]) continue;
        desc[i] = s->desc[i];
        call.desc[i] = &desc[i];
        if (s->by_row[i])
            base += (size_t)(tensor_bytes(&desc[i]) / ROWS * begin), desc[i].dim[0] = end - begin;
        if (i < OP_MAX_IN)
            call.in[i] = base;
        else
            call.out[i - OP_MAX_IN] = base;
    }
    size_t bytes = kernel->workspace ? kernel->workspace(call.desc, &s->op, threads_count(dev->team)) : 0;
    call.work = aligned_alloc(64, bytes / 64 * 64 + 64);
    assert_non_null(call.work);
    kernel->run(&call);
    free(call.work);
}

static void check(int kind, enum dtype type, bool variant, struct device *dev)
{
    struct sliced s;
    void *whole[OP_MAX_OUT] = {0}, *parts[OP_MAX_OUT] = {0};
    make(&s, kind, type, variant);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!s.data[OP_MAX_IN + i]) continue;
        size_t bytes = (size_t)tensor_bytes(&s.desc[OP_MAX_IN + i]);
        whole[i] = calloc(1, bytes), parts[i] = calloc(1, bytes);
        assert_true(whole[i] && parts[i]);
    }
    run(&s, dev, 0, ROWS, whole);
    for (int64_t begin = 0; begin < ROWS; begin += LOSS_CHUNK_ROWS)
        run(&s, dev, begin, begin + LOSS_CHUNK_ROWS < ROWS ? begin + LOSS_CHUNK_ROWS : ROWS, parts);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!whole[i]) continue;
        if (memcmp(whole[i], parts[i], (size_t)tensor_bytes(&s.desc[OP_MAX_IN + i])))
            fail_msg("%s %s: output %d of slices differs from that of the whole", op_name(kind),
                     dtype_name(type), i);
        free(whole[i]), free(parts[i]);
    }
    release(&s);
}

static void slices_equal_the_whole(void **state)
{
    static const int kinds[] = {OP_EMBED,     OP_NORM,     OP_LINEAR,    OP_XENT,
                                OP_EMBED_BWD, OP_NORM_BWD, OP_LINEAR_DX, OP_LINEAR_DW};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    struct device *dev;
    struct plim_error err = {0};
    (void)state;
    if (device_cpu_open(NULL, 2, &dev, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
            for (int variant = 0; variant < 2; variant++) check(kinds[k], types[t], variant, dev);
    dev->ops->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_equal_the_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
