/* test_op_judge.c - the op suite must find faults: devices that are wrong in one way each are put before it.
 *
 * Each faulty kernel is the reference kernel with one fault after it. A suite that lets one pass proves
 * nothing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "reference/reference.h"
#include "support/op_run.h"

#include <string.h>

/* --- faults -----------------------------------------------------------------------------------------------
 */

/* Faults befall the first operand, whichever it is, and the first output that is there. */
enum { FIRST };

static int out_slot(const struct kernel_call *call)
{
    int slot = 0;
    while (!call->out[slot]) slot++;
    return slot;
}

static const struct tensor *out_desc(const struct kernel_call *call)
{
    return call_out(call, out_slot(call));
}

static void run_right(const struct kernel_call *call) { reference_kernels[call->op->kind]->run(call); }

static void writes_past_output(const struct kernel_call *call)
{
    run_right(call);
    ((char *)call->out[out_slot(call)])[tensor_bytes(out_desc(call))] ^= 1;
}

static void writes_before_output(const struct kernel_call *call)
{
    run_right(call);
    ((char *)call->out[out_slot(call)])[-1] ^= 1;
}

static void writes_past_workspace(const struct kernel_call *call)
{
    run_right(call);
    ((char *)call->work)[reference_bytes(call->desc)] ^= 1;
}

static void changes_input(const struct kernel_call *call)
{
    run_right(call);
    ((char *)call->in[FIRST])[0] ^= 1;
}

/* Leaves the last element as it found it. */
static void forgets_last(const struct kernel_call *call)
{
    size_t size = dtype_size(out_desc(call)->type), at = (size_t)tensor_bytes(out_desc(call)) - size;
    char last[8];
    memcpy(last, (char *)call->out[out_slot(call)] + at, size);
    run_right(call);
    memcpy((char *)call->out[out_slot(call)] + at, last, size);
}

/* Off by one unit in the last place of bf16, as truncation instead of rounding would be. */
static void truncates(const struct kernel_call *call)
{
    run_right(call);
    uint16_t *y = call->out[out_slot(call)];
    if (out_desc(call)->type != DT_BF16) return;
    for (int64_t i = 0; i < tensor_count(out_desc(call)); i++) y[i] -= (y[i] & 0x7fff) > 0;
}

static void always_overwrites(const struct kernel_call *call)
{
    struct kernel_call other = *call;
    other.accumulate = false;
    run_right(&other);
}

/* Relative error of 1e-5: far too much for fp32. */
static void is_sloppy(const struct kernel_call *call)
{
    run_right(call);
    float *y = call->out[out_slot(call)];
    if (out_desc(call)->type != DT_F32) return;
    for (int64_t i = 0; i < tensor_count(out_desc(call)); i++) y[i] *= 1 + 1e-5f;
}

/* Writes the output before it has read its inputs. */
static void not_in_place(const struct kernel_call *call)
{
    memset(call->out[out_slot(call)], 0, (size_t)tensor_bytes(out_desc(call)));
    run_right(call);
}

/* Attributes that are not looked at. */
static void with_attr(const struct kernel_call *call, const struct op_attr *attr)
{
    struct kernel_call other = *call;
    struct op op = *call->op;
    op.attr = *attr;
    other.op = &op;
    run_right(&other);
}

static void ignores_window(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.window = 0;
    with_attr(call, &attr);
}

static void window_off_by_one(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.window += attr.window > 0;
    with_attr(call, &attr);
}

/* Of join3. */
static void ignores_table(const struct kernel_call *call)
{
    struct kernel_call other = *call;
    other.in[JOIN3_TABLE] = NULL, other.desc[JOIN3_TABLE] = NULL;
    run_right(&other);
}

static void ignores_decay(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.decay = 0;
    with_attr(call, &attr);
}

static void ignores_nesterov(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.nesterov = false;
    with_attr(call, &attr);
}

/* Samples packed into a row see each other. */
static void ignores_packing(const struct kernel_call *call)
{
    int slot = call->op->kind == OP_ATTN ? ATTN_POS : ATTN_BWD_POS;
    const struct tensor *pos = call->desc[slot];
    struct kernel_call other = *call;
    int32_t straight[1024];
    for (int64_t i = 0; pos && i < tensor_count(pos) && i < 1024; i++)
        straight[i] = (int32_t)(i % pos->dim[1]);
    if (pos && !call->op->attr.cached) other.in[slot] = straight;
    run_right(&other);
}

/* Operands of attention that are not looked at. */
static void without(const struct kernel_call *call, int forward, int backward)
{
    int slot = call->op->kind == OP_ATTN ? forward : backward;
    struct kernel_call other = *call;
    other.in[slot] = NULL, other.desc[slot] = NULL;
    run_right(&other);
}

static void ignores_lengths(const struct kernel_call *call) { without(call, ATTN_LENGTHS, ATTN_BWD_LENGTHS); }

static void ignores_bias(const struct kernel_call *call) { without(call, ATTN_BIAS, ATTN_BWD_BIAS); }

/* Queries behind the length are not zero. */
static void keeps_padding(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    if (attr.mask == MASK_FULL) attr.mask = MASK_CROSS;
    with_attr(call, &attr);
}

static void sees_ahead(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    if (attr.mask == MASK_CAUSAL && !attr.cached) attr.mask = MASK_FULL;
    with_attr(call, &attr);
}

static void forgets_first_blocks(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.global_blocks = 0;
    with_attr(call, &attr);
}

static void one_block_more(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.local_blocks++;
    with_attr(call, &attr);
}

static void ignores_cap(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.cap = 0;
    with_attr(call, &attr);
}

static void ignores_sides(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.two_sided = false;
    with_attr(call, &attr);
}

static void ignores_reach(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.bias_reach *= 2;
    with_attr(call, &attr);
}

static void without_scale(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.scale = 0;
    with_attr(call, &attr);
}

static void without_one(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.plus_one = false;
    with_attr(call, &attr);
}

/* GELU by tanh for GELU by the error function: they differ in the fourth digit. */
static void another_gelu(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    if (attr.activation == ACTIVATION_GELU) attr.activation = ACTIVATION_GELU_TANH;
    with_attr(call, &attr);
}

static void turns_forward(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.back = false;
    with_attr(call, &attr);
}

/* Each micro-batch drops as the first one does. */
static void counts_from_zero(const struct kernel_call *call)
{
    int slot = call->op->kind == OP_ATTN       ? ATTN_SCALARS
               : call->op->kind == OP_ATTN_BWD ? ATTN_BWD_SCALARS
                                               : DROPOUT_SCALARS;
    struct kernel_call other = *call;
    float scalars[SCALAR_COUNT];
    if (call->in[slot]) {
        memcpy(scalars, call->in[slot], sizeof scalars);
        scalars[SCALAR_FIRST_ROW] = 0;
        other.in[slot] = scalars;
    }
    run_right(&other);
}

static void drops_nothing(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.dropout = 0;
    with_attr(call, &attr);
}

static void drops_others(const struct kernel_call *call)
{
    struct op_attr attr = call->op->attr;
    attr.stream++;
    with_attr(call, &attr);
}

/* --- what the suite says ----------------------------------------------------------------------------------
 */

static bool passes(const struct op_case *c, struct device *dev)
{
    struct op_result r, again;
    char why[200];
    bool good = op_run(c, dev, 0, &r, why, sizeof why) && op_compare(c, &r, why, sizeof why) <= 1;
    if (good && op_may_share(c)) {
        good = op_run(c, dev, op_may_share(c), &again, why, sizeof why) &&
               op_same(c, &r, &again, why, sizeof why);
        op_result_release(&again);
    }
    op_result_release(&r);
    return good;
}

enum { CASES = 60, RIGHT_CASES = 15 };

/* Whether some of a few cases of the op find the fault; without a fault all must pass. */
static bool finds_in(int cases, int kind, kernel_run *fault)
{
    const struct kernel *kernels[OP_KIND_COUNT], wrong = {fault, reference_kernels[kind]->workspace};
    struct device dev = {.kernels = kernels};
    bool found = false;
    memcpy(kernels, reference_kernels, sizeof kernels);
    kernels[kind] = &wrong;
    for (int i = 0; i < cases && !found; i++) {
        struct op_case c;
        op_case_make(&c, kind, 77, i);
        found = !passes(&c, &dev);
        op_case_release(&c);
    }
    return found;
}

static bool finds(int kind, kernel_run *fault) { return finds_in(CASES, kind, fault); }

static bool is_tested(int kind)
{
    enum op_class cls = op_row(kind)->cls;
    return cls != OP_CLASS_HOLD && cls != OP_CLASS_COLLECTIVE;
}

static void right_kernels_pass(void **state)
{
    (void)state;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (is_tested(kind)) assert_false(finds_in(RIGHT_CASES, kind, run_right));
}

/* With address sanitizer these are caught by the sanitizer itself, which ends the program. */
static void stray_writes_are_found(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip();
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
    skip();
#endif
#endif
    static const int kinds[] = {OP_NORM, OP_LINEAR, OP_ATTN_BWD, OP_ADAMW};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        assert_true(finds(kinds[i], writes_past_output));
        assert_true(finds(kinds[i], writes_before_output));
        assert_true(finds(kinds[i], writes_past_workspace));
    }
}

static void changed_inputs_are_found(void **state)
{
    (void)state;
    assert_true(finds(OP_LINEAR, changes_input));
    assert_true(finds(OP_EMBED, changes_input));
}

static void forgotten_elements_are_found(void **state)
{
    (void)state;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (is_tested(kind) && kind != OP_KV_APPEND && kind != OP_KV_PUT && kind != OP_KV_PUT8 &&
            kind != OP_CLIP)
            assert_true(finds(kind, forgets_last));
}

static void wrong_rounding_is_found(void **state)
{
    static const int kinds[] = {OP_NORM,    OP_LINEAR, OP_SPLIT3,    OP_GLU,  OP_ADD,
                                OP_DROPOUT, OP_ROPE,   OP_LINEAR_DX, OP_ADAMW};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) assert_true(finds(kinds[i], truncates));
}

static void lost_accumulation_is_found(void **state)
{
    static const int kinds[] = {OP_XENT, OP_EMBED_BWD, OP_NORM_BWD, OP_LINEAR_DW, OP_ATTN_BWD, OP_SUMSQ};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        assert_true(finds(kinds[i], always_overwrites));
}

static void sloppy_arithmetic_is_found(void **state)
{
    static const int kinds[] = {OP_NORM, OP_LINEAR, OP_JOIN3, OP_GLU, OP_ACT_BWD, OP_LINEAR_DW, OP_ADAMW};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) assert_true(finds(kinds[i], is_sloppy));
}

static void broken_sharing_is_found(void **state)
{
    static const int kinds[] = {OP_GLU,     OP_ACT,     OP_ADD,   OP_DROPOUT, OP_ROPE,
                                OP_GLU_BWD, OP_ACT_BWD, OP_ADAMW, OP_SGD};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) assert_true(finds(kinds[i], not_in_place));
}

static void ignored_attributes_are_found(void **state)
{
    static const struct {
        int kind;
        kernel_run *fault;
    } rows[] = {
        {OP_ATTN, ignores_window},       {OP_ATTN_BWD, ignores_window},
        {OP_ATTN, window_off_by_one},    {OP_ATTN_BWD, window_off_by_one},
        {OP_ATTN, ignores_packing},      {OP_ATTN_BWD, ignores_packing},
        {OP_JOIN3, ignores_table},       {OP_ADAMW, ignores_decay},
        {OP_SGD, ignores_decay},         {OP_SGD, ignores_nesterov},
        {OP_ATTN, ignores_lengths},      {OP_ATTN_BWD, ignores_lengths},
        {OP_ATTN, ignores_bias},         {OP_ATTN_BWD, ignores_bias},
        {OP_ATTN, keeps_padding},        {OP_ATTN_BWD, keeps_padding},
        {OP_ATTN, sees_ahead},           {OP_ATTN_BWD, sees_ahead},
        {OP_ATTN, forgets_first_blocks}, {OP_ATTN_BWD, forgets_first_blocks},
        {OP_ATTN, one_block_more},       {OP_ATTN_BWD, one_block_more},
        {OP_ATTN, ignores_cap},          {OP_ATTN_BWD, ignores_cap},
        {OP_ATTN, ignores_sides},        {OP_ATTN_BWD, ignores_sides},
        {OP_ATTN, ignores_reach},        {OP_ATTN_BWD, ignores_reach},
        {OP_ATTN, drops_nothing},        {OP_ATTN_BWD, drops_nothing},
        {OP_EMBED, without_scale},       {OP_EMBED_BWD, without_scale},
        {OP_NORM, without_one},          {OP_NORM_BWD, without_one},
        {OP_ACT, another_gelu},          {OP_ACT_BWD, another_gelu},
        {OP_GLU, another_gelu},          {OP_GLU_BWD, another_gelu},
        {OP_ACT, ignores_cap},           {OP_ACT_BWD, ignores_cap},
        {OP_XENT, ignores_cap},          {OP_ROPE, turns_forward},
        {OP_DROPOUT, drops_nothing},     {OP_DROPOUT, drops_others},
        {OP_DROPOUT, counts_from_zero},  {OP_ATTN, counts_from_zero},
        {OP_ATTN_BWD, counts_from_zero}, {OP_ATTN, drops_others},
        {OP_ATTN_BWD, drops_others},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!finds(rows[i].kind, rows[i].fault)) fail_msg("row %zu: %s", i, op_name(rows[i].kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_pass),           cmocka_unit_test(stray_writes_are_found),
        cmocka_unit_test(changed_inputs_are_found),     cmocka_unit_test(forgotten_elements_are_found),
        cmocka_unit_test(wrong_rounding_is_found),      cmocka_unit_test(lost_accumulation_is_found),
        cmocka_unit_test(sloppy_arithmetic_is_found),   cmocka_unit_test(broken_sharing_is_found),
        cmocka_unit_test(ignored_attributes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
