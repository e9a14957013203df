/* reference_experts.c - the router of a mixture of experts, its losses, and the experts' products. */
#include "reference/reference_ops.h"

#include <math.h>
#include <stdlib.h>

struct shape {
    int64_t rows, top, experts;
};

/* Row r's probabilities, and the log of the sum of exponentials. */
static double softmax(const double *x, int64_t n, double *p)
{
    double top = x[0], sum = 0;
    for (int64_t e = 1; e < n; e++)
        if (x[e] > top) top = x[e];
    for (int64_t e = 0; e < n; e++) sum += p[e] = exp(x[e] - top);
    for (int64_t e = 0; e < n; e++) p[e] /= sum;
    return top + log(sum);
}

static void choose(const double *x, int64_t n, int64_t top, int32_t *chosen)
{
    for (int64_t i = 0; i < top; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++) taken |= chosen[j] == e;
            if (!taken && (best < 0 || x[e] > x[best])) best = e;
        }
        chosen[i] = (int32_t)best;
    }
}

static bool is_padding(const int32_t *lengths, const struct tensor *desc, int64_t rows, int64_t r)
{
    if (!lengths) return false;
    int64_t time = rows / desc->dim[0];
    return r % time >= lengths[r / time];
}

void ref_route(const struct ref_call *call)
{
    const struct tensor *weight = ref_out(call, ROUTE_WEIGHT);
    const struct shape s = {weight->dim[0], weight->dim[1], tensor_count(ref_out(call, ROUTE_ENDS))};
    double *p = calloc((size_t)s.experts, sizeof *p), *stat = call->out[ROUTE_STAT].f;
    int32_t *ends = call->out[ROUTE_ENDS].i, at = 0;
    for (int64_t i = 0; i < 3 * s.experts; i++) stat[i] = 0;
    for (int64_t r = 0; r < s.rows; r++) {
        const double *x = call->in[ROUTE_LOGITS].f + r * s.experts;
        int32_t *chosen = call->out[ROUTE_EXPERT].i + r * s.top;
        double *w = call->out[ROUTE_WEIGHT].f + r * s.top, lse = softmax(x, s.experts, p), sum = 0;
        choose(x, s.experts, s.top, chosen);
        for (int64_t i = 0; i < s.top; i++) sum += w[i] = p[chosen[i]];
        for (int64_t i = 0; i < s.top && call->op->attr.norm_topk; i++) w[i] /= sum;
        if (is_padding(call->in[ROUTE_LENGTHS].i, ref_in(call, ROUTE_LENGTHS), s.rows, r)) continue;
        for (int64_t i = 0; i < s.top; i++) stat[chosen[i]] += 1;
        for (int64_t e = 0; e < s.experts; e++) stat[s.experts + e] += p[e];
        stat[2 * s.experts] += lse * lse;
    }
    for (int64_t e = 0; e < s.experts; e++) {
        for (int64_t i = 0; i < s.rows * s.top; i++)
            if (call->out[ROUTE_EXPERT].i[i] == e) call->out[ROUTE_PLACE].i[i] = at++;
        ends[e] = at;
    }
    free(p);
}

void ref_route_bwd(const struct ref_call *call)
{
    const struct tensor *dweight = ref_in(call, ROUTE_BWD_DWEIGHT);
    const struct shape s = {dweight->dim[0], dweight->dim[1],
                            tensor_count(ref_in(call, ROUTE_BWD_LOGITS)) / dweight->dim[0]};
    double *p = calloc((size_t)s.experts, sizeof *p), *dp = calloc((size_t)s.experts, sizeof *dp);
    for (int64_t r = 0; r < s.rows; r++) {
        bool padding = is_padding(call->in[ROUTE_BWD_LENGTHS].i, ref_in(call, ROUTE_BWD_LENGTHS), s.rows, r);
        const double *factor = padding ? NULL : call->in[ROUTE_BWD_FACTOR].f;
        const int32_t *chosen = call->in[ROUTE_BWD_EXPERT].i + r * s.top;
        const double *dw = call->in[ROUTE_BWD_DWEIGHT].f + r * s.top;
        double lse = softmax(call->in[ROUTE_BWD_LOGITS].f + r * s.experts, s.experts, p), sum = 0, mean = 0,
               all = 0;
        for (int64_t i = 0; i < s.top; i++) sum += p[chosen[i]];
        for (int64_t i = 0; i < s.top; i++) mean += p[chosen[i]] / sum * dw[i];
        for (int64_t e = 0; e < s.experts; e++) dp[e] = factor ? factor[e] : 0;
        for (int64_t i = 0; i < s.top; i++)
            dp[chosen[i]] += call->op->attr.norm_topk ? (dw[i] - mean) / sum : dw[i];
        for (int64_t e = 0; e < s.experts; e++) all += p[e] * dp[e];
        for (int64_t e = 0; e < s.experts; e++)
            call->out[ROUTE_BWD_DLOGITS].f[r * s.experts + e] =
                p[e] * (dp[e] - all + (factor ? factor[s.experts] * lse : 0));
    }
    free(p), free(dp);
}

void ref_router_loss(const struct ref_call *call)
{
    const struct tensor *stat = ref_in(call, ROUTER_LOSS_STAT);
    const struct op_attr *attr = &call->op->attr;
    int64_t layers = stat->dim[0], experts = stat->dim[2];
    const double *x = call->in[ROUTER_LOSS_STAT].f;
    double scale = call->in[ROUTER_LOSS_SCALARS].f[SCALAR_AUX_GRAD], rows = 0, z = 0, balance = 0,
           *loss = call->out[ROUTER_LOSS_LOSS].f, *factor = call->out[ROUTER_LOSS_FACTOR].f;
    ref_begin(call, ROUTER_LOSS_LOSS), ref_begin(call, ROUTER_LOSS_LOAD);
    for (int64_t l = 0; l < layers; l++) {
        for (int64_t e = 0; e < experts; e++) {
            rows += x[l * 3 * experts + e] / attr->top_k;
            call->out[ROUTER_LOSS_LOAD].f[l * experts + e] += x[l * 3 * experts + e];
        }
        z += x[(l * 3 + 2) * experts];
    }
    for (int64_t e = 0; e < experts; e++) {
        double n = 0, p = 0;
        for (int64_t l = 0; l < layers; l++) n += x[l * 3 * experts + e], p += x[(l * 3 + 1) * experts + e];
        balance += (double)experts * n * p / rows / rows;
        factor[e] = scale * (double)attr->balance * (double)experts * n / rows / rows;
        factor[experts + e] = e ? 0 : scale * (double)attr->z_loss * 2 / rows;
    }
    loss[0] += (double)attr->balance * balance, loss[1] += (double)attr->z_loss * z / rows, loss[2] += 1;
}

void ref_dispatch(const struct ref_call *call)
{
    const struct tensor *place = ref_in(call, DISPATCH_PLACE);
    int64_t top = place->dim[1], columns = tensor_count(ref_in(call, DISPATCH_X)) / place->dim[0];
    for (int64_t i = 0; i < tensor_count(place); i++)
        for (int64_t c = 0; c < columns; c++)
            call->out[DISPATCH_Y].f[call->in[DISPATCH_PLACE].i[i] * columns + c] =
                call->in[DISPATCH_X].f[i / top * columns + c] *
                (call->in[DISPATCH_WEIGHT].f ? call->in[DISPATCH_WEIGHT].f[i] : 1);
}

void ref_combine(const struct ref_call *call)
{
    const struct tensor *place = ref_in(call, COMBINE_PLACE);
    int64_t top = place->dim[1], columns = tensor_count(ref_out(call, COMBINE_Y)) / place->dim[0];
    for (int64_t r = 0; r < place->dim[0]; r++)
        for (int64_t c = 0; c < columns; c++) {
            double sum = call->in[COMBINE_ADD].f ? call->in[COMBINE_ADD].f[r * columns + c] : 0;
            for (int64_t i = r * top; i < (r + 1) * top; i++)
                sum += call->in[COMBINE_X].f[call->in[COMBINE_PLACE].i[i] * columns + c] *
                       (call->in[COMBINE_WEIGHT].f ? call->in[COMBINE_WEIGHT].f[i] : 1);
            call->out[COMBINE_Y].f[r * columns + c] = sum;
        }
}

void ref_combine_dw(const struct ref_call *call)
{
    const struct tensor *place = ref_in(call, COMBINE_DW_PLACE);
    int64_t top = place->dim[1], columns = tensor_count(ref_in(call, COMBINE_DW_DY)) / place->dim[0];
    for (int64_t i = 0; i < tensor_count(place); i++) {
        double sum = 0;
        for (int64_t c = 0; c < columns; c++)
            sum += call->in[COMBINE_DW_DY].f[i / top * columns + c] *
                   call->in[COMBINE_DW_X].f[call->in[COMBINE_DW_PLACE].i[i] * columns + c];
        call->out[COMBINE_DW_DWEIGHT].f[i] = sum;
    }
}

/* The expert of row j. */
static int64_t expert_of(const int32_t *ends, int64_t j)
{
    int64_t e = 0;
    while (ends[e] <= j) e++;
    return e;
}

void ref_expert_linear(const struct ref_call *call)
{
    const struct tensor *w = ref_in(call, EXPERT_LINEAR_W);
    int64_t m = w->dim[1], k = w->dim[2], rows = tensor_count(ref_in(call, EXPERT_LINEAR_X)) / k;
    for (int64_t j = 0; j < rows; j++) {
        int64_t e = expert_of(call->in[EXPERT_LINEAR_ENDS].i, j);
        for (int64_t i = 0; i < m; i++) {
            double sum = 0;
            for (int64_t c = 0; c < k; c++)
                sum +=
                    call->in[EXPERT_LINEAR_X].f[j * k + c] * call->in[EXPERT_LINEAR_W].f[(e * m + i) * k + c];
            call->out[EXPERT_LINEAR_Y].f[j * m + i] = sum;
        }
    }
}

void ref_expert_linear_dx(const struct ref_call *call)
{
    const struct tensor *w = ref_in(call, EXPERT_LINEAR_DX_W);
    int64_t m = w->dim[1], k = w->dim[2], rows = tensor_count(ref_in(call, EXPERT_LINEAR_DX_DY)) / m;
    const double *add = call->in[EXPERT_LINEAR_DX_ADD].f;
    for (int64_t j = 0; j < rows; j++) {
        int64_t e = expert_of(call->in[EXPERT_LINEAR_DX_ENDS].i, j);
        for (int64_t c = 0; c < k; c++) {
            double sum = add ? add[j * k + c] : 0;
            for (int64_t i = 0; i < m; i++)
                sum += call->in[EXPERT_LINEAR_DX_DY].f[j * m + i] *
                       call->in[EXPERT_LINEAR_DX_W].f[(e * m + i) * k + c];
            call->out[EXPERT_LINEAR_DX_DX].f[j * k + c] = sum;
        }
    }
}

void ref_expert_linear_dw(const struct ref_call *call)
{
    const struct tensor *w = ref_out(call, EXPERT_LINEAR_DW_DW);
    int64_t m = w->dim[1], k = w->dim[2], rows = tensor_count(ref_in(call, EXPERT_LINEAR_DW_DY)) / m;
    ref_begin(call, EXPERT_LINEAR_DW_DW);
    for (int64_t j = 0; j < rows; j++) {
        int64_t e = expert_of(call->in[EXPERT_LINEAR_DW_ENDS].i, j);
        for (int64_t i = 0; i < m; i++)
            for (int64_t c = 0; c < k; c++)
                call->out[EXPERT_LINEAR_DW_DW].f[(e * m + i) * k + c] +=
                    call->in[EXPERT_LINEAR_DW_DY].f[j * m + i] * call->in[EXPERT_LINEAR_DW_X].f[j * k + c];
    }
}
