/* test_coverage.c - the random cases of test_ops.c meet every mask, every way of scoring and every odd shape that kernels have
 * code of their own for: a variant that no case has is not tested, however many cases there are. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "support/op_case.h"

#include <stdio.h>
#include <string.h>

enum { CASES = 120, SEED = 1, LEAST = 2 }; /* as test_ops.c has them */

/* So many cases had it. */
struct count {
    const char *what;
    int n;
};

static void expect(const char *op, const struct count *counts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (counts[i].n < LEAST) fail_msg("%s: %d cases have %s", op, counts[i].n, counts[i].what);
}

/* Operands of attention, by the slots of either direction. */
struct slots {
    int q, k, lengths, bias;
};

static void test_attention(void **state)
{
    (void)state;
    static const struct slots slots[] = {{ATTN_Q, ATTN_K, ATTN_LENGTHS, ATTN_BIAS},
                                         {ATTN_BWD_Q, ATTN_BWD_K, ATTN_BWD_LENGTHS, ATTN_BWD_BIAS}};
    static const int kinds[] = {OP_ATTN, OP_ATTN_BWD};
    for (int d = 0; d < 2; d++) {
        struct count seen[] = {{"mask causal"},
                               {"mask full"},
                               {"mask cross"},
                               {"mask blocks"},
                               {"a window"},
                               {"a soft-cap"},
                               {"a bias"},
                               {"dropout"},
                               {"lengths"},
                               {"standard loops"},
                               {"rows of one"},
                               {"a row of length 1"},
                               {"a row of length 0"},
                               {"heads that share keys"},
                               {"sizes that are no multiple of 8"},
                               {"whole rows"}};
        for (int i = 0; i < CASES; i++) {
            struct op_case c;
            op_case_make(&c, kinds[d], SEED, i);
            const struct op_attr *a = &c.op.attr;
            const struct tensor *q = op_case_in(&c, slots[d].q);
            const int32_t *lengths = c.in[slots[d].lengths];
            bool ones = false, none = false;
            for (int64_t b = 0; lengths && b < q->dim[0]; b++)
                ones |= lengths[b] == 1, none |= lengths[b] == 0;
            const bool has[] = {a->mask == MASK_CAUSAL,
                                a->mask == MASK_FULL,
                                a->mask == MASK_CROSS,
                                a->mask == MASK_BLOCKS,
                                a->mask == MASK_CAUSAL && a->window > 0,
                                a->cap > 0,
                                c.in[slots[d].bias] != NULL,
                                a->dropout > 0,
                                lengths != NULL,
                                a->standard,
                                q->dim[1] == 1,
                                ones,
                                none,
                                q->dim[2] > op_case_in(&c, slots[d].k)->dim[2],
                                q->dim[3] % 8 != 0,
                                a->whole_rows};
            for (size_t k = 0; k < sizeof has / sizeof *has; k++) seen[k].n += has[k];
            op_case_release(&c);
        }
        expect(op_name(kinds[d]), seen, sizeof seen / sizeof *seen);
    }
}

static void test_experts(void **state)
{
    (void)state;
    static const struct {
        int kind, x, w, ends; /* w: of either side, the experts' matrices */
        bool out;
    } ops[] = {{OP_EXPERT_LINEAR, EXPERT_LINEAR_X, EXPERT_LINEAR_W, EXPERT_LINEAR_ENDS, false},
               {OP_EXPERT_LINEAR_DX, EXPERT_LINEAR_DX_DY, EXPERT_LINEAR_DX_W, EXPERT_LINEAR_DX_ENDS, false},
               {OP_EXPERT_LINEAR_DW, EXPERT_LINEAR_DW_DY, EXPERT_LINEAR_DW_DW, EXPERT_LINEAR_DW_ENDS, true}};
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        struct count seen[] = {{"an expert without rows"}, {"all rows with one of several experts"},
                               {"one expert alone"},       {"one row"},
                               {"an expert with one row"}, {"odd sizes"}};
        for (int i = 0; i < CASES; i++) {
            struct op_case c;
            op_case_make(&c, ops[o].kind, SEED, i);
            const struct tensor *w = ops[o].out ? op_case_out(&c, ops[o].w) : op_case_in(&c, ops[o].w);
            const int32_t *ends = c.in[ops[o].ends];
            int64_t experts = w->dim[0], rows = ends[experts - 1], before = 0, busy = 0;
            bool empty = false, single = false;
            for (int64_t e = 0; e < experts; before = ends[e++]) {
                empty |= ends[e] == before, single |= ends[e] == before + 1;
                busy += ends[e] > before;
            }
            const bool has[] = {empty,  busy == 1 && experts > 1,      experts == 1, rows == 1,
                                single, w->dim[1] % 2 && w->dim[2] % 2};
            for (size_t k = 0; k < sizeof has / sizeof *has; k++) seen[k].n += has[k];
            op_case_release(&c);
        }
        expect(op_name(ops[o].kind), seen, sizeof seen / sizeof *seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention), cmocka_unit_test(test_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
