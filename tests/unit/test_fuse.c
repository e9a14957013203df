/* run-tests: not=tsan */
/* test_fuse.c - which neighbouring ops are one launch: the patterns, what ties them together, and bytes that forbid it. */
#include "plan/fuse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { ROWS = 2, WIDTH = 64 };

static struct tape tape;
static struct layout layout;
static int limit; /* ops of a run that the device has a kernel for */

static bool can(void *arg, int begin, int count)
{
    assert_null(arg);
    assert_true(begin + count <= tape.nops);
    return count <= limit;
}

static int tensor(enum tensor_class cls, unsigned flags, int64_t rows, int64_t columns)
{
    return tape_tensor(&tape, &(struct tensor){.label = "t",
                                               .layer = -1,
                                               .type = DT_BF16,
                                               .cls = cls,
                                               .flags = flags,
                                               .ndim = 2,
                                               .dim = {rows, columns},
                                               .view_of = -1,
                                               .owner = -1});
}

static int rows(unsigned flags) { return tensor(CLASS_ACT, flags, ROWS, WIDTH); }

/* Rows that are still there afterwards, so that no result takes their bytes. */
static int given(void) { return rows(TENSOR_INPUT | TENSOR_OUTPUT); }

static void linear_of(int kind, int x)
{
    struct op op = tape_op(kind, -1);
    op.in[LINEAR_X] = x, op.in[LINEAR_W] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
    op.out[LINEAR_Y] = rows(TENSOR_OUTPUT);
    tape_append(&tape, &op);
}

static void linear(int x) { linear_of(OP_LINEAR, x); }

static int norm(int x)
{
    struct op op = tape_op(OP_NORM, -1);
    op.in[NORM_X] = x, op.in[NORM_W] = tensor(CLASS_PARAM, TENSOR_KEPT, 1, WIDTH);
    op.out[NORM_Y] = rows(0), op.out[NORM_STAT] = tensor(CLASS_ACT, 0, ROWS, 1);
    tape_append(&tape, &op);
    return op.out[NORM_Y];
}

static int glu(int gate, int up)
{
    struct op op = tape_op(OP_GLU, -1);
    op.in[GLU_GATE] = gate, op.in[GLU_UP] = up, op.out[GLU_H] = rows(0);
    tape_append(&tape, &op);
    return op.out[GLU_H];
}

/* All ops of the tape, laid out as for a device with its own memory. */
static void lay_out(void)
{
    struct device_facts facts = {.align = 16};
    struct plim_error err = {0};
    facts_set_memory(&facts, MEMORY_CARD);
    tape.loop_end = tape.nops;
    struct layout_options options = {.facts = &facts, .accumulation = 1};
    assert_int_equal(layout_make(&tape, &options, &layout, &err), PLIM_OK);
}

static int end_of(int begin) { return fuse_end(&tape, &layout, begin, tape.nops, can, NULL); }

static int begin(void **state)
{
    (void)state;
    tape_init(&tape);
    limit = FUSE_MOST;
    return 0;
}

static int end(void **state)
{
    (void)state;
    layout_release(&layout);
    tape_release(&tape);
    return 0;
}

static void test_a_norm_goes_with_the_linears_that_read_it(void **state)
{
    (void)state;
    int y = norm(given());
    linear(y), linear(y), linear(y);
    lay_out();
    assert_int_equal(end_of(0), 3);
    assert_int_equal(end_of(1), 3); /* two linears of the same rows */
    assert_int_equal(end_of(3), 4);
    limit = 2;
    assert_int_equal(end_of(0), 2);
    limit = 1;
    assert_int_equal(end_of(0), 1);
    limit = FUSE_MOST;
    assert_int_equal(fuse_end(&tape, &layout, 0, 2, can, NULL), 2);
    tape.loop_end = 1; /* the rest is the update */
    assert_int_equal(end_of(0), 1);
}

/* Rounded rows lie in the first product's scratch, and results that die with it or begin behind it would lie there too. */
static size_t much_scratch(const struct device_facts *facts, const struct tape *t, const struct op *op)
{
    (void)facts, (void)t;
    return op->kind == OP_LINEAR_F8 ? 4096 : 0;
}

static bool meets_scratch(int op, int id)
{
    int64_t from = layout.work_offset[op], to = from + layout.work_bytes[op];
    return from < layout.offset[id] + tensor_bytes(&tape.tensors[id]) && layout.offset[id] < to;
}

static void test_rows_in_8_bits_have_bytes_of_their_own(void **state)
{
    (void)state;
    struct device_facts facts = {.align = 16, .workspace = much_scratch};
    struct plim_error err = {0};
    facts_set_memory(&facts, MEMORY_CARD);
    int y = norm(given());
    for (int i = 0; i < 2; i++) {
        struct op op = tape_op(OP_LINEAR_F8, -1);
        op.in[LINEAR_F8_X] = y, op.in[LINEAR_F8_W] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
        op.out[LINEAR_F8_Y] = rows(0);
        tape_append(&tape, &op);
    }
    int gate = tape.ops[1].out[LINEAR_F8_Y], up = tape.ops[2].out[LINEAR_F8_Y], h = glu(gate, up);
    linear_of(OP_LINEAR_F8, h);
    tape.loop_end = tape.nops;
    struct layout_options options = {.facts = &facts, .accumulation = 1};
    assert_int_equal(layout_make(&tape, &options, &layout, &err), PLIM_OK);
    assert_int_equal(fuse_kept_apart(&tape, 0), 3);
    assert_int_equal(fuse_kept_apart(&tape, 1), 2);
    assert_int_equal(fuse_kept_apart(&tape, 3), 5);
    assert_int_equal(end_of(0), 3);
    assert_int_equal(end_of(3), 5);
    assert_false(meets_scratch(1, up));
    assert_false(meets_scratch(1, tape.ops[0].out[NORM_STAT]));
    assert_false(meets_scratch(4, up));
    assert_int_equal(layout.offset[h], layout.offset[gate]); /* in place all the same */
    assert_false(meets_scratch(4, gate));
}

static void test_weights_in_blocks_go_with_them_too(void **state)
{
    (void)state;
    int y = norm(given());
    linear_of(OP_LINEAR_Q, y), linear_of(OP_LINEAR_Q, y);
    lay_out();
    assert_int_equal(end_of(0), 3);
    assert_int_equal(end_of(1), 3);
}

static void test_a_linear_of_other_rows_stays_alone(void **state)
{
    (void)state;
    int x = given(), other = given();
    norm(x);
    linear(other);
    lay_out();
    assert_int_equal(end_of(0), 1);
}

static void test_a_gated_unit_that_is_read_later_stays_alone(void **state)
{
    (void)state;
    int h = glu(given(), given());
    linear(h);
    linear(given());
    lay_out();
    assert_int_equal(end_of(0), 2);
    layout_release(&layout);
    tape.ops[2].in[LINEAR_X] = h;
    lay_out();
    assert_int_equal(end_of(0), 3);
    limit = 2; /* the second linear would read what is not written */
    assert_int_equal(end_of(0), 1);
}

static void test_bytes_that_others_read_forbid_it(void **state)
{
    (void)state;
    int x = given(), y = norm(x);
    linear(y);
    lay_out();
    const struct op *second = &tape.ops[1];
    assert_int_equal(end_of(0), 2);
    int64_t *out = &layout.offset[second->out[LINEAR_Y]], place = *out;
    *out = layout.offset[x] + 16;
    assert_int_equal(end_of(0), 1);
    *out = layout.offset[tape.ops[0].out[NORM_STAT]]; /* read by nobody: the kernel leaves it out */
    assert_int_equal(end_of(0), 2);
    *out = place;
    assert_int_equal(end_of(0), 2);
}

/* An adapter's product and the scale after it; returns the product's result. */
static int scaled_product(int x)
{
    struct op product = tape_op(OP_LINEAR, -1), scale = tape_op(OP_ACT, -1);
    product.in[LINEAR_X] = x, product.in[LINEAR_W] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
    product.out[LINEAR_Y] = scale.in[ACT_X] = rows(0), scale.out[ACT_Y] = rows(TENSOR_OUTPUT);
    tape_append(&tape, &product);
    tape_append(&tape, &scale);
    return product.out[LINEAR_Y];
}

/* Their gradients, in the order of a tape. */
static void scaled_product_gradients(int dy, int u)
{
    struct op dx = tape_op(OP_LINEAR_DX, -1), scale = tape_op(OP_ACT_BWD, -1), dw = tape_op(OP_LINEAR_DW, -1);
    dx.in[LINEAR_DX_DY] = dw.in[LINEAR_DW_DY] = dy;
    dx.in[LINEAR_DX_W] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
    dx.out[LINEAR_DX_DX] = scale.in[ACT_BWD_DY] = rows(0), scale.in[ACT_BWD_X] = u;
    scale.out[ACT_BWD_DX] = rows(TENSOR_OUTPUT), scale.out[ACT_BWD_Y] = dw.in[LINEAR_DW_X] = rows(0);
    dw.out[LINEAR_DW_DW] = tensor(CLASS_GRAD, TENSOR_OUTPUT, WIDTH, WIDTH);
    tape_append(&tape, &dx);
    tape_append(&tape, &scale);
    tape_append(&tape, &dw);
}

static void test_a_product_goes_with_the_scale_that_takes_its_bytes(void **state)
{
    (void)state;
    int u = scaled_product(given()), later = given();
    lay_out();
    assert_int_equal(end_of(0), 2);
    layout.offset[tape.ops[1].out[ACT_Y]] = layout.offset[u];
    assert_int_equal(end_of(0), 2);
    layout_release(&layout);
    linear(later);
    tape.ops[2].in[LINEAR_X] = u;
    lay_out();
    assert_int_equal(end_of(0), 2);
    layout.offset[tape.ops[1].out[ACT_Y]] = layout.offset[u]; /* which must be written */
    assert_int_equal(end_of(0), 1);
}

static void test_gradients_of_a_scaled_product_read_dy_once(void **state)
{
    (void)state;
    scaled_product_gradients(given(), given());
    lay_out();
    const struct op *dx = &tape.ops[0], *dw = &tape.ops[2];
    assert_int_equal(end_of(0), 3);
    layout.offset[dw->out[LINEAR_DW_DW]] = layout.offset[dx->out[LINEAR_DX_DX]]; /* dead by then */
    assert_int_equal(end_of(0), 3);
    layout.offset[dw->out[LINEAR_DW_DW]] = layout.offset[dx->in[LINEAR_DX_DY]];
    assert_int_equal(end_of(0), 2); /* the scale alone */
    limit = 1;
    assert_int_equal(end_of(0), 1);
    limit = FUSE_MOST, tape.ops[2].in[LINEAR_DW_DY] = dx->in[LINEAR_DX_W];
    assert_int_equal(end_of(0), 2);
}

/* A product with the adapters of rows; returns its result. */
static int adapted(int x, int add, unsigned flags)
{
    struct op op = tape_op(OP_ADAPTER_LINEAR, -1);
    op.in[ADAPTER_LINEAR_X] = x, op.in[ADAPTER_LINEAR_W] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
    op.in[ADAPTER_LINEAR_SLOT] = given(), op.in[ADAPTER_LINEAR_ADD] = add;
    op.out[ADAPTER_LINEAR_Y] = rows(flags);
    tape_append(&tape, &op);
    return op.out[ADAPTER_LINEAR_Y];
}

static void test_adapters_go_with_the_product_beside_them(void **state)
{
    (void)state;
    int x = given(), base = given(), u = given();
    adapted(x, -1, TENSOR_OUTPUT), linear(x), adapted(u, base, TENSOR_OUTPUT);
    adapted(x, -1, TENSOR_OUTPUT), linear(x);
    lay_out();
    assert_int_equal(end_of(0), 3);
    assert_int_equal(end_of(3), 5);
    layout.offset[tape.ops[1].out[LINEAR_Y]] = layout.offset[u];
    assert_int_equal(end_of(0), 2);
    layout.offset[tape.ops[1].out[LINEAR_Y]] = layout.offset[tape.ops[0].out[ADAPTER_LINEAR_Y]];
    assert_int_equal(end_of(0), 1);
}

static void test_a_norm_goes_with_adapters_and_their_product(void **state)
{
    (void)state;
    int h = norm(given());
    adapted(h, -1, TENSOR_OUTPUT), linear(h), linear(h);
    lay_out();
    assert_int_equal(end_of(0), 3);
    limit = 2;
    assert_int_equal(end_of(0), 1);
}

static void test_adapters_go_with_the_gated_unit_they_are_for(void **state)
{
    (void)state;
    int gate = rows(TENSOR_INPUT), up = adapted(given(), given(), 0);
    glu(gate, up);
    lay_out();
    assert_int_equal(end_of(0), 2);
    layout_release(&layout);
    linear(up); /* which must be written */
    lay_out();
    assert_int_equal(end_of(0), 1);
}

/* The unit lies on its gate, which is not written. */
static void test_a_gated_unit_is_made_with_its_products(void **state)
{
    (void)state;
    int y = norm(given());
    linear_of(OP_LINEAR_Q, y), linear_of(OP_LINEAR_Q, y);
    for (int i = 1; i < 3; i++) tape.tensors[tape.ops[i].out[LINEAR_Y]].flags = 0;
    int h = glu(tape.ops[1].out[LINEAR_Y], tape.ops[2].out[LINEAR_Y]);
    linear_of(OP_LINEAR_Q, h);
    lay_out();
    assert_int_equal(fuse_kept_apart(&tape, 0), 4);
    assert_int_equal(layout.offset[h], layout.offset[tape.ops[1].out[LINEAR_Y]]);
    assert_int_equal(end_of(0), 4);
    limit = 3;
    assert_int_equal(end_of(0), 3);
}

static void test_products_that_are_read_later_are_gated_by_themselves(void **state)
{
    (void)state;
    int y = norm(given());
    linear_of(OP_LINEAR_Q, y), linear_of(OP_LINEAR_Q, y); /* the caller reads them */
    linear_of(OP_LINEAR_Q, glu(tape.ops[1].out[LINEAR_Y], tape.ops[2].out[LINEAR_Y]));
    lay_out();
    assert_int_equal(end_of(0), 3);
}

static int heads_of(int64_t tokens, int64_t count)
{
    int id = tensor(CLASS_ACT, 0, 1, tokens);
    struct tensor *t = &tape.tensors[id];
    t->ndim = 4, t->dim[2] = count, t->dim[3] = WIDTH;
    return id;
}

/* Heads are split, kept and attended with, and what attention leaves is multiplied. */
static void attend(int64_t tokens)
{
    struct op split = tape_op(OP_SPLIT3, 0), put = tape_op(OP_KV_PUT, 0), attn = tape_op(OP_ATTN_PAGED, 0);
    split.in[SPLIT3_X] = tensor(CLASS_ACT, 0, tokens, 4 * WIDTH), split.in[SPLIT3_TABLE] = given();
    tape.ops[0].out[NORM_Y] = split.in[SPLIT3_X];
    split.out[SPLIT3_Q] = heads_of(tokens, 2), split.out[SPLIT3_K] = heads_of(tokens, 1);
    split.out[SPLIT3_V] = heads_of(tokens, 1);
    tape_append(&tape, &split);
    put.in[KV_PUT_K] = split.out[SPLIT3_K], put.in[KV_PUT_V] = split.out[SPLIT3_V];
    put.in[KV_PUT_SLOTS] = given();
    put.in[KV_PUT_POOL] = put.out[KV_PUT_NEW_POOL] = tensor(CLASS_PARAM, TENSOR_KEPT, WIDTH, WIDTH);
    tape_append(&tape, &put);
    attn.in[ATTN_PAGED_Q] = split.out[SPLIT3_Q], attn.in[ATTN_PAGED_POOL] = put.out[KV_PUT_NEW_POOL];
    attn.in[ATTN_PAGED_ROWS] = given(), attn.in[ATTN_PAGED_BLOCKS] = given();
    attn.out[ATTN_PAGED_O] = heads_of(tokens, 2);
    tape_append(&tape, &attn);
    linear(attn.out[ATTN_PAGED_O]);
}

/* Of few rows, whose joint row lives until attention is done. Otherwise its bytes may be the result's. */
static void test_heads_are_split_where_attention_needs_them(void **state)
{
    (void)state;
    norm(given());
    attend(FUSE_FEW_ROWS);
    lay_out();
    int x = tape.ops[1].in[SPLIT3_X];
    assert_int_equal(fuse_kept_apart(&tape, 1), 4);
    assert_int_equal(layout.life[x].last, 3);
    assert_int_equal(end_of(1), 4);
    limit = 2;
    assert_int_equal(end_of(1), 3);
}

static void test_many_heads_are_split_by_themselves(void **state)
{
    (void)state;
    norm(given());
    attend(FUSE_FEW_ROWS + 1);
    lay_out();
    assert_int_equal(fuse_kept_apart(&tape, 1), 2);
    assert_int_equal(layout.life[tape.ops[1].in[SPLIT3_X]].last, 1);
}

static void test_queries_that_are_read_later_are_split_by_themselves(void **state)
{
    (void)state;
    norm(given());
    attend(FUSE_FEW_ROWS);
    linear(tape.ops[1].out[SPLIT3_Q]);
    lay_out();
    assert_int_equal(end_of(1), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_norm_goes_with_the_linears_that_read_it, begin, end),
        cmocka_unit_test_setup_teardown(test_weights_in_blocks_go_with_them_too, begin, end),
        cmocka_unit_test_setup_teardown(test_rows_in_8_bits_have_bytes_of_their_own, begin, end),
        cmocka_unit_test_setup_teardown(test_a_linear_of_other_rows_stays_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_a_gated_unit_that_is_read_later_stays_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_bytes_that_others_read_forbid_it, begin, end),
        cmocka_unit_test_setup_teardown(test_a_product_goes_with_the_scale_that_takes_its_bytes, begin, end),
        cmocka_unit_test_setup_teardown(test_gradients_of_a_scaled_product_read_dy_once, begin, end),
        cmocka_unit_test_setup_teardown(test_adapters_go_with_the_product_beside_them, begin, end),
        cmocka_unit_test_setup_teardown(test_a_norm_goes_with_adapters_and_their_product, begin, end),
        cmocka_unit_test_setup_teardown(test_adapters_go_with_the_gated_unit_they_are_for, begin, end),
        cmocka_unit_test_setup_teardown(test_a_gated_unit_is_made_with_its_products, begin, end),
        cmocka_unit_test_setup_teardown(test_products_that_are_read_later_are_gated_by_themselves, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_heads_are_split_where_attention_needs_them, begin, end),
        cmocka_unit_test_setup_teardown(test_many_heads_are_split_by_themselves, begin, end),
        cmocka_unit_test_setup_teardown(test_queries_that_are_read_later_are_split_by_themselves, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
