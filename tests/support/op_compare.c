/* op_compare.c - the judge: a device's result against the reference. See op_run.h. */
#include "support/op_run.h"

#include "reference/reference.h"
#include "tensor/stochastic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The case as a kernel call whose outputs are given images; nothing runs on it, it is only read. */
static struct kernel_call call_of(const struct op_case *c, void *const *out)
{
    struct kernel_call call = {.op = &c->op, .accumulate = c->op.accumulate == ACC_ADD};
    for (int i = 0; i < OP_MAX_IN; i++) call.desc[i] = op_case_in(c, i), call.in[i] = c->in[i];
    for (int i = 0; i < OP_MAX_OUT; i++) call.desc[OP_MAX_IN + i] = op_case_out(c, i), call.out[i] = out[i];
    return call;
}

/* A u16 master was joined with its weight: it is as fine as fp32. */
static enum dtype fineness(const struct tensor *t) { return t->type == DT_U16 ? DT_F32 : t->type; }

/* Is this output rounded with random bits? */
static bool is_stochastic(const struct op_case *c, int slot)
{
    int master = op_row(c->kind)->update.new_master;
    if (!master || !c->op.attr.stochastic || op_case_out(c, slot)->type != DT_BF16) return false;
    return slot != UPDATE_NEW_P || !op_case_out(c, master);
}

static uint32_t step_key(const struct op_case *c)
{
    const float *scalars = c->in[op_row(c->kind)->update.scalars];
    uint32_t bits = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    return stochastic_key(bits, c->op.attr.stream);
}

/* The random bits are known and rounding with them ascends: the result lies between those of the ends of the range
 * that arithmetic may err in. */
static double judge_stochastic(const struct op_case *c, int slot, int64_t i, double got, double want,
                               double rms)
{
    uint32_t r = stochastic_bits(step_key(c), (uint64_t)(c->op.attr.first + i));
    uint32_t bits = slot == UPDATE_NEW_P                    ? STOCHASTIC_P(r)
                    : slot == op_row(c->kind)->update.new_m ? STOCHASTIC_M(r)
                                                            : STOCHASTIC_V(r);
    double slack = c->inner[slot] * (fabs(want) + rms + c->scale[slot]) + 0x1p-149;
    double low = (double)bf16_to_f32(stochastic_bf16((float)(want - slack), bits));
    double high = (double)bf16_to_f32(stochastic_bf16((float)(want + slack), bits));
    return got >= low && got <= high ? 0 : (double)INFINITY;
}

static double rms_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += isfinite(x[i]) ? x[i] * x[i] : 0;
    return sqrt(sum / (double)n);
}

/* Error of one element in units of its tolerance. */
static double judge(const struct op_case *c, int slot, int64_t i, double got, double want, double rms)
{
    enum dtype type = fineness(op_case_out(c, slot));
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : (double)INFINITY;
    if (is_stochastic(c, slot) && !c->exact) return judge_stochastic(c, slot, i, got, want, rms);
    if (got == want) return 0;
    if (c->exact || !isfinite(want)) return (double)INFINITY;
    if (type == DT_U8) return fabs(got - want) <= 1 ? 0.5 : (double)INFINITY; /* beside a tie */
    double inner = c->inner[slot], base = c->by_element ? 0 : rms + c->scale[slot];
    double tolerance =
        1.1 * dtype_unit(type) * fmax(fabs(want), dtype_tiny(type)) + inner * (fabs(want) + base);
    return fabs(got - want) / tolerance;
}

static double compare_reals(const struct op_case *c, int slot, const double *got, const double *want,
                            char *why, size_t size)
{
    int64_t n = tensor_count(op_case_out(c, slot)), at = 0;
    double worst = 0, rms = rms_of(want, n), errors = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = judge(c, slot, i, got[i], want[i], rms);
        if (e > worst) worst = e, at = i;
        if (isfinite(want[i])) errors += (got[i] - want[i]) * (got[i] - want[i]);
    }
    /* All elements together must do better than each alone: arithmetic errs at random, so its rms is well
     * below its worst. Rounding to the output's type may not be random (equal values round alike). */
    enum dtype type = fineness(op_case_out(c, slot));
    double allowed = 1.1 * dtype_unit(type) * (rms + dtype_tiny(type)) +
                     (0.25 + 1 / sqrt((double)n)) * c->inner[slot] * (2 * rms + c->scale[slot]);
    double norm = sqrt(errors / (double)n);
    bool by_norm = !c->exact && !c->by_element && norm > 0 && norm / allowed > worst;
    if (is_stochastic(c, slot) || type == DT_U8) by_norm = false;
    if (by_norm)
        snprintf(why, size, "output %d: rms error %.3g, rms of the reference %.3g", slot, norm, rms);
    else
        snprintf(why, size, "output %d element %lld: %.9g, reference %.9g", slot, (long long)at, got[at],
                 want[at]);
    return by_norm ? norm / allowed : worst;
}

static double compare_ints(int slot, const int32_t *got, const int32_t *want, int64_t n, char *why,
                           size_t size)
{
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue;
        snprintf(why, size, "output %d element %lld: %d, reference %d", slot, (long long)i, got[i], want[i]);
        return (double)INFINITY;
    }
    return 0;
}

/* An fp16 weight is its master rounded, whatever the master's own error. */
static double compare_rounding(const struct op_case *c, const struct op_result *r, char *why, size_t size)
{
    int master = op_row(c->kind)->update.new_master;
    if (!master || c->type != DT_F16 || !r->out[master] || c->exact) return 0;
    for (int64_t i = 0; i < tensor_count(op_case_out(c, UPDATE_NEW_P)); i++) {
        if (((uint16_t *)r->out[UPDATE_NEW_P])[i] == f32_to_f16(((float *)r->out[master])[i])) continue;
        snprintf(why, size, "element %lld: the weight is not its master rounded", (long long)i);
        return (double)INFINITY;
    }
    return 0;
}

double op_compare(const struct op_case *c, const struct op_result *r, char *why, size_t size)
{
    struct kernel_call before = call_of(c, c->out), after = call_of(c, r->out);
    struct ref_call want, got;
    size_t bytes = reference_bytes(before.desc);
    char *memory = malloc(2 * bytes + 1), place[160];
    double worst = 0;
    if (!memory) abort();
    reference_load(&want, &before, memory);
    reference_run(&want);
    reference_load(&got, &after, memory + bytes);
    why[0] = 0;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const struct tensor *t = op_case_out(c, i);
        if (!t) continue;
        double e = t->type == DT_I32
                       ? compare_ints(i, got.out[i].i, want.out[i].i, tensor_count(t), place, sizeof place)
                       : compare_reals(c, i, got.out[i].f, want.out[i].f, place, sizeof place);
        if (e > worst) worst = e, snprintf(why, size, "%s", place);
    }
    double e = compare_rounding(c, r, place, sizeof place);
    if (e > worst) worst = e, snprintf(why, size, "%s", place);
    free(memory);
    return worst;
}

bool op_same(const struct op_case *c, const struct op_result *a, const struct op_result *b, char *why,
             size_t size)
{
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const struct tensor *t = op_case_out(c, i);
        if (!t) continue;
        const unsigned char *x = a->out[i], *y = b->out[i];
        for (int64_t j = 0; j < tensor_bytes(t); j++) {
            if (x[j] == y[j]) continue;
            snprintf(why, size, "output %d differs in element %lld", i,
                     (long long)(j / (int64_t)dtype_size(t->type)));
            return false;
        }
    }
    return true;
}
