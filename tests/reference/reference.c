/* reference.c - the table of reference ops, and the way from real operands to doubles and back.
 *
 * Invariants
 *  1. Loading is exact for every dtype; storing rounds once.
 *  2. A u16 master and its bf16 weight are one number: loading joins them, storing splits the number into
 * both, so the weight's own double is not used when there is a u16 master.
 *  3. All loads happen before any store, so outputs may lie on top of inputs.
 */
#include "reference/reference.h"
#include "reference/reference_ops.h"
#include "tensor/stochastic.h"

#include <math.h>
#include <string.h>

static ref_op *const ops[OP_KIND_COUNT] = {
    [OP_EMBED] = ref_embed,
    [OP_NORM] = ref_norm,
    [OP_LINEAR] = ref_linear,
    [OP_ROPE_TABLE] = ref_rope_table,
    [OP_ATTN] = ref_attn,
    [OP_ROPE] = ref_rope,
    [OP_DROPOUT] = ref_dropout,
    [OP_GLU] = ref_glu,
    [OP_ACT] = ref_act,
    [OP_ADD] = ref_add,
    [OP_ROW_GATE] = ref_row_gate,
    [OP_ROW_GATE_BWD] = ref_row_gate_bwd,
    [OP_ADAPTER_LINEAR] = ref_adapter_linear,
    [OP_TAKE] = ref_take,
    [OP_DORA_NORM] = ref_dora_norm,
    [OP_DORA_NORM_Q] = ref_dora_norm_q,
    [OP_COLUMN_SCALE] = ref_column_scale,
    [OP_COLUMN_SCALE_BWD] = ref_column_scale_bwd,
    [OP_XENT] = ref_xent,
    [OP_PREFERENCE] = ref_preference,
    [OP_KV_APPEND] = ref_kv_append,
    [OP_KV_PUT] = ref_kv_put,
    [OP_ATTN_PAGED] = ref_attn_paged,
    [OP_SAMPLE] = ref_sample,
    [OP_KV_PUT8] = ref_kv_put8,
    [OP_ATTN_PAGED8] = ref_attn_paged,
    [OP_LINEAR_Q] = ref_linear_q,
    [OP_EMBED_Q] = ref_embed_q,
    [OP_EXPERT_LINEAR_Q] = ref_expert_linear_q,
    [OP_LINEAR_Q_DX] = ref_linear_q_dx,
    [OP_EXPERT_LINEAR_Q_DX] = ref_expert_linear_q_dx,
    [OP_SPLIT3] = ref_split3,
    [OP_EMBED_BWD] = ref_embed_bwd,
    [OP_NORM_BWD] = ref_norm_bwd,
    [OP_LINEAR_DX] = ref_linear_dx,
    [OP_LINEAR_DW] = ref_linear_dw,
    [OP_ATTN_BWD] = ref_attn_bwd,
    [OP_GLU_BWD] = ref_glu_bwd,
    [OP_ACT_BWD] = ref_act_bwd,
    [OP_JOIN3] = ref_join3,
    [OP_POOL] = ref_pool,
    [OP_POOL_BWD] = ref_pool_bwd,
    [OP_ROUTE] = ref_route,
    [OP_DISPATCH] = ref_dispatch,
    [OP_EXPERT_LINEAR] = ref_expert_linear,
    [OP_COMBINE] = ref_combine,
    [OP_ROUTER_LOSS] = ref_router_loss,
    [OP_ROUTE_BWD] = ref_route_bwd,
    [OP_EXPERT_LINEAR_DX] = ref_expert_linear_dx,
    [OP_EXPERT_LINEAR_DW] = ref_expert_linear_dw,
    [OP_COMBINE_DW] = ref_combine_dw,
    [OP_SUMSQ] = ref_sumsq,
    [OP_CLIP] = ref_clip,
    [OP_ADAMW] = ref_adamw,
    [OP_SGD] = ref_sgd,
    [OP_ADAMW8] = ref_adamw8,
    [OP_FACTOR_STAT] = ref_factor_stat,
    [OP_ADAFACTOR] = ref_adafactor,
    [OP_QUANTISE8] = ref_quantise8,
    [OP_LINEAR8] = ref_linear8,
    [OP_LINEAR8_DW] = ref_linear8_dw,
    [OP_LINEAR_F8] = ref_linear_f8,
    [OP_FETCH] = ref_copy,
    [OP_STORE] = ref_copy,
};

void reference_run(const struct ref_call *call) { ops[call->op->kind](call); }

size_t reference_bytes(const struct tensor *const *desc)
{
    size_t bytes = 0;
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++)
        if (desc[i]) bytes += (size_t)tensor_count(desc[i]) * sizeof(double);
    return bytes;
}

static double load_one(enum dtype type, const void *bytes, int64_t i)
{
    switch (type) {
    case DT_F32:
        return (double)((const float *)bytes)[i];
    case DT_F64:
        return ((const double *)bytes)[i];
    case DT_BF16:
        return (double)bf16_to_f32(((const uint16_t *)bytes)[i]);
    case DT_F16:
        return (double)f16_to_f32(((const uint16_t *)bytes)[i]);
    case DT_E4M3:
        return (double)e4m3_to_f32(((const uint8_t *)bytes)[i]);
    case DT_E5M2:
        return (double)e5m2_to_f32(((const uint8_t *)bytes)[i]);
    case DT_U16:
        return (double)((const uint16_t *)bytes)[i];
    default:
        return (double)((const uint8_t *)bytes)[i];
    }
}

/* The fp32 number next to x that makes a second rounding, to `type`, equal to rounding x at once: when fp32
 * is inexact its last bit is forced to one ("round to odd"), so that a tie of the narrow type stays no tie.
 */
static float to_odd(double x)
{
    float f = (float)x;
    uint32_t bits;
    if (!isfinite(f) || (double)f == x) return f;
    if (fabs((double)f) > fabs(x)) f = nextafterf(f, 0);
    memcpy(&bits, &f, 4);
    bits |= 1;
    memcpy(&f, &bits, 4);
    return f;
}

static void store_one(enum dtype type, void *bytes, int64_t i, double x)
{
    switch (type) {
    case DT_F32:
        ((float *)bytes)[i] = (float)x;
        break;
    case DT_F64:
        ((double *)bytes)[i] = x;
        break;
    case DT_BF16:
        ((uint16_t *)bytes)[i] = f32_to_bf16(to_odd(x));
        break;
    case DT_F16:
        ((uint16_t *)bytes)[i] = f32_to_f16(to_odd(x));
        break;
    case DT_E4M3:
        ((uint8_t *)bytes)[i] = f32_to_e4m3(to_odd(x));
        break;
    case DT_E5M2:
        ((uint8_t *)bytes)[i] = f32_to_e5m2(to_odd(x));
        break;
    case DT_U16:
        ((uint16_t *)bytes)[i] = (uint16_t)x;
        break;
    default:
        ((uint8_t *)bytes)[i] = (uint8_t)x;
        break;
    }
}

static void load(union ref_array to, const struct tensor *desc, const void *bytes)
{
    int64_t n = tensor_count(desc);
    if (desc->type == DT_I32) {
        memcpy(to.i, bytes, (size_t)n * sizeof(int32_t));
        return;
    }
    for (int64_t i = 0; i < n; i++) to.f[i] = load_one(desc->type, bytes, i);
}

static void load_master(double *to, const uint16_t *weight, const uint16_t *low, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (double)master_join(weight[i], low[i]);
}

void reference_load(struct ref_call *ref, const struct kernel_call *call, void *memory)
{
    const struct update_slots *slots = &op_row(call->op->kind)->update;
    double *next = memory;
    *ref = (struct ref_call){.op = call->op, .accumulate = call->accumulate};
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++) {
        const struct tensor *desc = call->desc[i];
        bool is_out = i >= OP_MAX_IN;
        int slot = is_out ? i - OP_MAX_IN : i;
        union ref_array *array = is_out ? &ref->out[slot] : &ref->in[slot];
        void *const *operands = is_out ? call->out : call->in;
        if (!desc) continue;
        ref->desc[i] = desc;
        array->f = next;
        next += tensor_count(desc);
        int master = is_out ? slots->new_master : slots->master, weight = is_out ? UPDATE_NEW_P : UPDATE_P;
        if (desc->type == DT_U16 && master && slot == master)
            load_master(array->f, operands[weight], operands[slot], tensor_count(desc));
        else
            load(*array, desc, operands[slot]);
    }
}

static void store(const union ref_array *from, const struct tensor *desc, void *bytes)
{
    int64_t n = tensor_count(desc);
    if (desc->type == DT_I32) {
        memcpy(bytes, from->i, (size_t)n * sizeof(int32_t));
        return;
    }
    for (int64_t i = 0; i < n; i++) store_one(desc->type, bytes, i, from->f[i]);
}

/* The weight is the fp32 master rounded, not the double behind it. */
static void store_master(const double *from, const struct tensor *const *desc, int slot, void *const *out)
{
    const struct tensor *weight = desc[OP_MAX_IN + UPDATE_NEW_P], *master = desc[OP_MAX_IN + slot];
    for (int64_t i = 0; i < tensor_count(master); i++) {
        float value = (float)from[i];
        if (master->type == DT_U16) {
            master_split(value, (uint16_t *)out[UPDATE_NEW_P] + i, (uint16_t *)out[slot] + i);
        } else {
            store_one(master->type, out[slot], i, (double)value);
            store_one(weight->type, out[UPDATE_NEW_P], i, (double)value);
        }
    }
}

/* Output `slot` of an optimizer with random bits: the parameter's, m's or v's. */
static void store_stochastic(const struct ref_call *ref, const struct kernel_call *call, int slot)
{
    const struct update_slots *slots = &op_row(call->op->kind)->update;
    const double *scalars = ref->in[slots->scalars].f;
    uint32_t step = (uint32_t)scalars[SCALAR_KEY_HIGH] << 16 | (uint32_t)scalars[SCALAR_KEY_LOW];
    uint32_t key = stochastic_key(step, call->op->attr.stream);
    int64_t n = tensor_count(call->desc[OP_MAX_IN + slot]);
    for (int64_t i = 0; i < n; i++) {
        uint32_t r = stochastic_bits(key, (uint64_t)(call->op->attr.first + i));
        uint32_t bits = slot == UPDATE_NEW_P   ? STOCHASTIC_P(r)
                        : slot == slots->new_m ? STOCHASTIC_M(r)
                                               : STOCHASTIC_V(r);
        ((uint16_t *)call->out[slot])[i] = stochastic_bf16((float)ref->out[slot].f[i], bits);
    }
}

void reference_store(const struct ref_call *ref, const struct kernel_call *call)
{
    const struct update_slots *slots = &op_row(call->op->kind)->update;
    int master = slots->new_master;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const struct tensor *desc = call->desc[OP_MAX_IN + i];
        if (!desc || (master && i == master)) continue;
        if (slots->scalars && call->op->attr.stochastic && desc->type == DT_BF16)
            store_stochastic(ref, call, i);
        else
            store(&ref->out[i], desc, call->out[i]);
    }
    if (master && call->desc[OP_MAX_IN + master])
        store_master(ref->out[master].f, call->desc, master, call->out);
}

static void run_kernel(const struct kernel_call *call)
{
    struct ref_call ref;
    reference_load(&ref, call, call->work);
    reference_run(&ref);
    reference_store(&ref, call);
}

static size_t run_workspace(const struct tensor *const *desc, const struct op *op, int threads)
{
    (void)op, (void)threads;
    return reference_bytes(desc);
}

static const struct kernel kernel = {run_kernel, run_workspace};
#define ROW_KERNEL(kind)   [OP_##kind] = &kernel,
#define ROW_CPU_ONLY(kind) [OP_##kind] = &kernel,
#define ROW_COPY(kind)     [OP_##kind] = &kernel,
#define ROW_NONE(kind)
#define ROW(kind, name, kernels) ROW_##kernels(kind)
const struct kernel *const reference_kernels[OP_KIND_COUNT] = {OP_KINDS(ROW)};
