/* op.c - the op table. See op.h. */
#include "tape/op_cost.h"
#include "tape/pass_grad.h"

#define NAME(kind, name, kernels) [OP_##kind] = #name,
static const char *const names[OP_KIND_COUNT] = {OP_KINDS(NAME)};
#undef NAME

const char *op_name(int kind) { return names[kind]; }

const struct op_row op_rows[OP_KIND_COUNT] = {
    [OP_EMBED] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EMBED_IDS] = "i#R", [EMBED_W] = "xVC", [EMBED_ADD] = "x#RC?"},
            .out = {[EMBED_Y] = "x#RC"},
            .shares = {[EMBED_Y] = SHARES(EMBED_ADD)},
            .grad = grad_embed,
            .cost = cost_embed,
        },
    [OP_NORM] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[NORM_X] = "x#RC", [NORM_W] = "xC", [NORM_BIAS] = "xC?"},
            .out = {[NORM_Y] = "x#RC", [NORM_STAT] = "f#RS"},
            .cheap = true,
            .grad = grad_norm,
        },
    [OP_LINEAR] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[LINEAR_X] = "x#RK", [LINEAR_W] = "wMK", [LINEAR_BIAS] = "xM?", [LINEAR_ADD] = "x#RM?"},
            .out = {[LINEAR_Y] = "x#RM"},
            .shares = {[LINEAR_Y] = SHARES(LINEAR_ADD)},
            .grad = grad_linear,
            .cost = cost_linear,
        },
    [OP_ROPE_TABLE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROPE_TABLE_POS] = "iBT", [ROPE_TABLE_INV_FREQ] = "fE"},
            .out = {[ROPE_TABLE_TABLE] = "f#BT2E"},
            .grad = grad_none,
        },
    [OP_ROPE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROPE_X] = "xBTHD", [ROPE_TABLE] = "fBTE"},
            .out = {[ROPE_Y] = "xBTHD"},
            .shares = {[ROPE_Y] = SHARES(ROPE_X)},
            .cheap = true,
            .grad = grad_rope,
        },
    [OP_ATTN] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ATTN_Q] = "xBTHD",
                   [ATTN_K] = "xBSKD",
                   [ATTN_V] = "xBSKD",
                   [ATTN_POS] = "iBT?",
                   [ATTN_LENGTHS] = "iB?",
                   [ATTN_BIAS] = "xRH?",
                   [ATTN_SCALARS] = "fZ?"},
            .out = {[ATTN_O] = "xBTHD", [ATTN_LSE] = "fBHT"},
            .grad = grad_attn,
            .cost = cost_attn,
        },
    [OP_GLU] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[GLU_GATE] = "j#N", [GLU_UP] = "x#N?"},
            .out = {[GLU_H] = "x#N"},
            .shares = {[GLU_H] = SHARES(GLU_GATE)},
            .cheap = true,
            .grad = grad_glu,
            .cost = cost_glu,
        },
    [OP_ACT] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ACT_X] = "x#N"},
            .out = {[ACT_Y] = "x#N"},
            .shares = {[ACT_Y] = SHARES(ACT_X)},
            .cheap = true,
            .grad = grad_act,
            .cost = cost_act,
        },
    [OP_ADD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ADD_A] = "x#N", [ADD_B] = "x#N"},
            .out = {[ADD_Y] = "x#N"},
            .shares = {[ADD_Y] = SHARES(ADD_A)},
            .grad = grad_add,
        },
    [OP_ROW_GATE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROW_GATE_X] = "x#RC", [ROW_GATE_GATE] = "x#R", [ROW_GATE_ADD] = "x#RC?"},
            .out = {[ROW_GATE_Y] = "x#RC"},
            .shares = {[ROW_GATE_Y] = SHARES(ROW_GATE_ADD)},
            .grad = grad_row_gate,
        },
    [OP_ROW_GATE_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROW_GATE_BWD_DY] = "x#RC", [ROW_GATE_BWD_X] = "x#RC", [ROW_GATE_BWD_GATE] = "x#R"},
            .out = {[ROW_GATE_BWD_DX] = "x#RC", [ROW_GATE_BWD_DGATE] = "x#R"},
        },
    [OP_DROPOUT] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[DROPOUT_X] = "x#N", [DROPOUT_SCALARS] = "fZ", [DROPOUT_ADD] = "x#N?"},
            .out = {[DROPOUT_Y] = "x#N"},
            .shares = {[DROPOUT_Y] = SHARES(DROPOUT_X)},
            .grad = grad_dropout,
        },
    [OP_XENT] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[XENT_LOGITS] = "x#RV", [XENT_TARGETS] = "i#R", [XENT_SCALARS] = "fZ"},
            .out = {[XENT_LOSS] = "d2", [XENT_DLOGITS] = "x#RV?", [XENT_HITS] = "d1?"},
            .shares = {[XENT_DLOGITS] = SHARES(XENT_LOGITS)},
        },
    [OP_KV_APPEND] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[KV_APPEND_K] = "xBTKD",
                   [KV_APPEND_V] = "xBTKD",
                   [KV_APPEND_POS] = "iBT",
                   [KV_APPEND_KC] = "xBSKD",
                   [KV_APPEND_VC] = "xBSKD"},
            .out = {[KV_APPEND_NEW_KC] = "xBSKD", [KV_APPEND_NEW_VC] = "xBSKD"},
            .writes_kept = true,
        },
    [OP_KV_PUT] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[KV_PUT_K] = "xBTKD",
                   [KV_PUT_V] = "xBTKD",
                   [KV_PUT_SLOTS] = "i#BT",
                   [KV_PUT_POOL] = "xPLKE"},
            .out = {[KV_PUT_NEW_POOL] = "xPLKE"},
            .writes_kept = true,
            .cost = cost_kv_put,
        },
    [OP_ATTN_PAGED] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ATTN_PAGED_Q] = "xBTHD",
                   [ATTN_PAGED_POOL] = "xPLKE",
                   [ATTN_PAGED_ROWS] = "iR3",
                   [ATTN_PAGED_BLOCKS] = "iRM"},
            .out = {[ATTN_PAGED_O] = "xBTHD"},
            .cost = cost_attn_paged,
        },
    [OP_SAMPLE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[SAMPLE_LOGITS] = "x#RV", [SAMPLE_ROWS] = "iRP", [SAMPLE_SEEN] = "iL2?"},
            .out = {[SAMPLE_TOKEN] = "i#R",
                    [SAMPLE_NEXT] = "i#R?",
                    [SAMPLE_TOP] = "i#RK?",
                    [SAMPLE_LOGPROB] = "f#RE?"},
        },
    [OP_KV_PUT8] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[KV_PUT_K] = "xBTKD",
                   [KV_PUT_V] = "xBTKD",
                   [KV_PUT_SLOTS] = "i#BT",
                   [KV_PUT_POOL] = "qPLKE"},
            .out = {[KV_PUT_NEW_POOL] = "qPLKE"},
            .writes_kept = true,
            .cost = cost_kv_put,
        },
    [OP_ATTN_PAGED8] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ATTN_PAGED_Q] = "xBTHD",
                   [ATTN_PAGED_POOL] = "qPLKE",
                   [ATTN_PAGED_ROWS] = "iR3",
                   [ATTN_PAGED_BLOCKS] = "iRM"},
            .out = {[ATTN_PAGED_O] = "xBTHD"},
            .cost = cost_attn_paged,
        },
    [OP_LINEAR_Q] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[LINEAR_Q_X] = "x#RK",
                   [LINEAR_Q_W] = "qQ",
                   [LINEAR_Q_BIAS] = "xM?",
                   [LINEAR_Q_ADD] = "x#RM?"},
            .out = {[LINEAR_Q_Y] = "x#RM"},
            .shares = {[LINEAR_Q_Y] = SHARES(LINEAR_Q_ADD)},
            .cost = cost_linear_q,
        },
    [OP_EMBED_Q] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EMBED_Q_IDS] = "i#R", [EMBED_Q_W] = "qQ"},
            .out = {[EMBED_Q_Y] = "x#RC"},
            .cost = cost_embed_q,
        },
    [OP_EXPERT_LINEAR_Q] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EXPERT_LINEAR_Q_X] = "x#RK", [EXPERT_LINEAR_Q_W] = "qQ", [EXPERT_LINEAR_Q_ENDS] = "iE"},
            .out = {[EXPERT_LINEAR_Q_Y] = "x#RM"},
            .cost = cost_expert_linear_q,
        },
    [OP_SPLIT3] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[SPLIT3_X] = "xBTL", [SPLIT3_TABLE] = "fBTE?"},
            .out = {[SPLIT3_Q] = "xBTHD", [SPLIT3_K] = "xBTKD", [SPLIT3_V] = "xBTKD"},
            .grad = grad_split3,
        },
    [OP_ROUTE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROUTE_LOGITS] = "x#RE", [ROUTE_LENGTHS] = "iB?"},
            .out = {[ROUTE_WEIGHT] = "fRK",
                    [ROUTE_EXPERT] = "iRK",
                    [ROUTE_PLACE] = "iRK",
                    [ROUTE_ENDS] = "iE",
                    [ROUTE_STAT] = "f3E"},
            .grad = grad_route,
        },
    [OP_DISPATCH] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[DISPATCH_X] = "x#RC", [DISPATCH_PLACE] = "iRK", [DISPATCH_WEIGHT] = "fRK?"},
            .out = {[DISPATCH_Y] = "x#RKC"},
            .cheap = true,
            .grad = grad_dispatch,
        },
    [OP_EXPERT_LINEAR] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EXPERT_LINEAR_X] = "x#RK", [EXPERT_LINEAR_W] = "xEMK", [EXPERT_LINEAR_ENDS] = "iE"},
            .out = {[EXPERT_LINEAR_Y] = "x#RM"},
            .grad = grad_expert_linear,
            .cost = cost_expert_linear,
        },
    [OP_COMBINE] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[COMBINE_X] = "x#RKC",
                   [COMBINE_PLACE] = "iRK",
                   [COMBINE_WEIGHT] = "fRK?",
                   [COMBINE_ADD] = "x#RC?"},
            .out = {[COMBINE_Y] = "x#RC"},
            .shares = {[COMBINE_Y] = SHARES(COMBINE_ADD)},
            .grad = grad_combine,
        },
    [OP_ROUTER_LOSS] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROUTER_LOSS_STAT] = "fL3E", [ROUTER_LOSS_SCALARS] = "fZ"},
            .out = {[ROUTER_LOSS_LOSS] = "d3", [ROUTER_LOSS_LOAD] = "fLE", [ROUTER_LOSS_FACTOR] = "f2E"},
            .grad = grad_router_loss,
        },
    [OP_EMBED_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EMBED_BWD_IDS] = "i#R", [EMBED_BWD_DY] = "x#RC"},
            .out = {[EMBED_BWD_DW] = "eVC"},
            .cost = cost_embed_bwd,
        },
    [OP_NORM_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[NORM_BWD_DY] = "x#RC",
                   [NORM_BWD_X] = "x#RC",
                   [NORM_BWD_W] = "xC",
                   [NORM_BWD_STAT] = "f#RS",
                   [NORM_BWD_ADD] = "x#RC?"},
            .out = {[NORM_BWD_DX] = "x#RC", [NORM_BWD_DW] = "eC", [NORM_BWD_DBIAS] = "eC?"},
            .shares = {[NORM_BWD_DX] = SHARES(NORM_BWD_ADD)},
        },
    [OP_LINEAR_DX] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[LINEAR_DX_DY] = "x#RM", [LINEAR_DX_W] = "wMK", [LINEAR_DX_ADD] = "x#RK?"},
            .out = {[LINEAR_DX_DX] = "x#RK"},
            .shares = {[LINEAR_DX_DX] = SHARES(LINEAR_DX_ADD)},
            .cost = cost_linear_dx,
        },
    [OP_LINEAR_DW] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[LINEAR_DW_DY] = "x#RM", [LINEAR_DW_X] = "x#RK"},
            .out = {[LINEAR_DW_DW] = "gMK", [LINEAR_DW_DBIAS] = "eM?"},
            .cost = cost_linear_dw,
        },
    [OP_ATTN_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ATTN_BWD_DO] = "xBTHD",
                   [ATTN_BWD_Q] = "xBTHD",
                   [ATTN_BWD_K] = "xBSKD",
                   [ATTN_BWD_V] = "xBSKD",
                   [ATTN_BWD_O] = "xBTHD",
                   [ATTN_BWD_LSE] = "fBHT",
                   [ATTN_BWD_POS] = "iBT?",
                   [ATTN_BWD_LENGTHS] = "iB?",
                   [ATTN_BWD_BIAS] = "xRH?",
                   [ATTN_BWD_SCALARS] = "fZ?"},
            .out = {[ATTN_BWD_DQ] = "xBTHD",
                    [ATTN_BWD_DK] = "xBSKD",
                    [ATTN_BWD_DV] = "xBSKD",
                    [ATTN_BWD_DBIAS] = "eRH?"},
            .cost = cost_attn_bwd,
        },
    [OP_GLU_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[GLU_BWD_DH] = "x#N", [GLU_BWD_GATE] = "j#N", [GLU_BWD_UP] = "x#N?"},
            .out = {[GLU_BWD_DGATE] = "j#N", [GLU_BWD_DUP] = "x#N?", [GLU_BWD_H] = "x#N?"},
            .shares = {[GLU_BWD_DGATE] = SHARES(GLU_BWD_GATE),
                       [GLU_BWD_DUP] = SHARES(GLU_BWD_UP),
                       [GLU_BWD_H] = SHARES(GLU_BWD_DH)},
            .cost = cost_glu_bwd,
        },
    [OP_ACT_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ACT_BWD_DY] = "x#N", [ACT_BWD_X] = "x#N"},
            .out = {[ACT_BWD_DX] = "x#N", [ACT_BWD_Y] = "x#N?"},
            .shares = {[ACT_BWD_DX] = SHARES(ACT_BWD_DY), [ACT_BWD_Y] = SHARES(ACT_BWD_X)},
            .cost = cost_act_bwd,
        },
    [OP_JOIN3] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[JOIN3_Q] = "xBTHD", [JOIN3_K] = "xBTKD", [JOIN3_V] = "xBTKD", [JOIN3_TABLE] = "fBTE?"},
            .out = {[JOIN3_X] = "xBTL"},
        },
    [OP_POOL] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[POOL_X] = "xBTC", [POOL_LENGTHS] = "iB?"},
            .out = {[POOL_Y] = "eBC", [POOL_STAT] = "fB"},
            .grad = grad_pool,
        },
    [OP_POOL_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[POOL_BWD_DY] = "xBC",
                   [POOL_BWD_Y] = "xBC",
                   [POOL_BWD_STAT] = "fB",
                   [POOL_BWD_LENGTHS] = "iB?"},
            .out = {[POOL_BWD_DX] = "xBTC"},
        },
    [OP_ROUTE_BWD] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[ROUTE_BWD_DWEIGHT] = "fRK",
                   [ROUTE_BWD_LOGITS] = "x#RE",
                   [ROUTE_BWD_EXPERT] = "iRK",
                   [ROUTE_BWD_FACTOR] = "f2E?",
                   [ROUTE_BWD_LENGTHS] = "iB?"},
            .out = {[ROUTE_BWD_DLOGITS] = "x#RE"},
            .shares = {[ROUTE_BWD_DLOGITS] = SHARES(ROUTE_BWD_LOGITS)},
        },
    [OP_EXPERT_LINEAR_DX] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EXPERT_LINEAR_DX_DY] = "x#RM",
                   [EXPERT_LINEAR_DX_W] = "xEMK",
                   [EXPERT_LINEAR_DX_ENDS] = "iE",
                   [EXPERT_LINEAR_DX_ADD] = "x#RK?"},
            .out = {[EXPERT_LINEAR_DX_DX] = "x#RK"},
            .shares = {[EXPERT_LINEAR_DX_DX] = SHARES(EXPERT_LINEAR_DX_ADD)},
            .cost = cost_expert_linear_dx,
        },
    [OP_EXPERT_LINEAR_DW] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[EXPERT_LINEAR_DW_DY] = "x#RM",
                   [EXPERT_LINEAR_DW_X] = "x#RK",
                   [EXPERT_LINEAR_DW_ENDS] = "iE"},
            .out = {[EXPERT_LINEAR_DW_DW] = "eEMK"},
            .cost = cost_expert_linear_dw,
        },
    [OP_COMBINE_DW] =
        {
            .cls = OP_CLASS_COMPUTE,
            .in = {[COMBINE_DW_DY] = "x#RC", [COMBINE_DW_X] = "x#RKC", [COMBINE_DW_PLACE] = "iRK"},
            .out = {[COMBINE_DW_DWEIGHT] = "fRK"},
        },
    [OP_SUMSQ] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[SUMSQ_GRAD] = "e#N"},
            .out = {[SUMSQ_SUM] = "d1"},
            .together = true,
        },
    [OP_CLIP] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[CLIP_SUMS] = "dG", [CLIP_SCALARS] = "fZ"},
            .out = {[CLIP_COEF] = "f4"},
        },
    [OP_ADAMW] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[ADAMW_P] = "x#N",
                   [ADAMW_G] = "e#N",
                   [ADAMW_M] = "s#N",
                   [ADAMW_V] = "s#N",
                   [ADAMW_MASTER] = "m#N?",
                   [ADAMW_SCALARS] = "fZ",
                   [ADAMW_COEF] = "f4?"},
            .out = {[ADAMW_NEW_P] = "x#N",
                    [ADAMW_NEW_M] = "s#N",
                    [ADAMW_NEW_V] = "s#N",
                    [ADAMW_NEW_MASTER] = "m#N?"},
            .shares = {[ADAMW_NEW_P] = SHARES(ADAMW_P),
                       [ADAMW_NEW_M] = SHARES(ADAMW_M),
                       [ADAMW_NEW_V] = SHARES(ADAMW_V),
                       [ADAMW_NEW_MASTER] = SHARES(ADAMW_MASTER)},
            .together = true,
            .on_cpu = true,
            .update = {.m = ADAMW_M,
                       .v = ADAMW_V,
                       .master = ADAMW_MASTER,
                       .scalars = ADAMW_SCALARS,
                       .coef = ADAMW_COEF,
                       .new_m = ADAMW_NEW_M,
                       .new_v = ADAMW_NEW_V,
                       .new_master = ADAMW_NEW_MASTER},
        },
    [OP_SGD] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[SGD_P] = "x#N",
                   [SGD_G] = "e#N",
                   [SGD_M] = "s#N?",
                   [SGD_MASTER] = "m#N?",
                   [SGD_SCALARS] = "fZ",
                   [SGD_COEF] = "f4?"},
            .out = {[SGD_NEW_P] = "x#N", [SGD_NEW_M] = "s#N?", [SGD_NEW_MASTER] = "m#N?"},
            .shares = {[SGD_NEW_P] = SHARES(SGD_P),
                       [SGD_NEW_M] = SHARES(SGD_M),
                       [SGD_NEW_MASTER] = SHARES(SGD_MASTER)},
            .on_cpu = true,
            .update = {.m = SGD_M,
                       .master = SGD_MASTER,
                       .scalars = SGD_SCALARS,
                       .coef = SGD_COEF,
                       .new_m = SGD_NEW_M,
                       .new_master = SGD_NEW_MASTER},
        },
    [OP_ADAMW8] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[ADAMW8_P] = "x#N",
                   [ADAMW8_G] = "e#N",
                   [ADAMW8_MQ] = "q#N",
                   [ADAMW8_VQ] = "q#N",
                   [ADAMW8_MS] = "f%N",
                   [ADAMW8_VS] = "f%N",
                   [ADAMW8_MASTER] = "m#N?",
                   [ADAMW8_SCALARS] = "fZ",
                   [ADAMW8_COEF] = "f4?"},
            .out = {[ADAMW8_NEW_P] = "x#N",
                    [ADAMW8_NEW_MQ] = "q#N",
                    [ADAMW8_NEW_VQ] = "q#N",
                    [ADAMW8_NEW_MS] = "f%N",
                    [ADAMW8_NEW_VS] = "f%N",
                    [ADAMW8_NEW_MASTER] = "m#N?"},
            .shares = {[ADAMW8_NEW_P] = SHARES(ADAMW8_P),
                       [ADAMW8_NEW_MQ] = SHARES(ADAMW8_MQ),
                       [ADAMW8_NEW_VQ] = SHARES(ADAMW8_VQ),
                       [ADAMW8_NEW_MS] = SHARES(ADAMW8_MS),
                       [ADAMW8_NEW_VS] = SHARES(ADAMW8_VS),
                       [ADAMW8_NEW_MASTER] = SHARES(ADAMW8_MASTER)},
            .update = {.m = ADAMW8_MQ,
                       .v = ADAMW8_VQ,
                       .m_scale = ADAMW8_MS,
                       .v_scale = ADAMW8_VS,
                       .master = ADAMW8_MASTER,
                       .scalars = ADAMW8_SCALARS,
                       .coef = ADAMW8_COEF,
                       .new_m = ADAMW8_NEW_MQ,
                       .new_v = ADAMW8_NEW_VQ,
                       .new_m_scale = ADAMW8_NEW_MS,
                       .new_v_scale = ADAMW8_NEW_VS,
                       .new_master = ADAMW8_NEW_MASTER},
            .cost = cost_adamw8,
        },
    [OP_FACTOR_STAT] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[FACTOR_STAT_G] = "e#RC",
                   [FACTOR_STAT_ROW] = "fR",
                   [FACTOR_STAT_COL] = "fC?",
                   [FACTOR_STAT_SCALARS] = "fZ",
                   [FACTOR_STAT_COEF] = "f4?"},
            .out = {[FACTOR_STAT_NEW_ROW] = "fR", [FACTOR_STAT_NEW_COL] = "fC?", [FACTOR_STAT_FACTOR] = "f2"},
            .shares = {[FACTOR_STAT_NEW_ROW] = SHARES(FACTOR_STAT_ROW),
                       [FACTOR_STAT_NEW_COL] = SHARES(FACTOR_STAT_COL)},
            .whole = true,
        },
    [OP_ADAFACTOR] =
        {
            .cls = OP_CLASS_UPDATE,
            .in = {[ADAFACTOR_P] = "x#RC",
                   [ADAFACTOR_G] = "e#RC",
                   [ADAFACTOR_ROW] = "fR",
                   [ADAFACTOR_COL] = "fC?",
                   [ADAFACTOR_FACTOR] = "f2",
                   [ADAFACTOR_M] = "s#RC?",
                   [ADAFACTOR_MASTER] = "m#RC?",
                   [ADAFACTOR_SCALARS] = "fZ",
                   [ADAFACTOR_COEF] = "f4?"},
            .out =
                {[ADAFACTOR_NEW_P] = "x#RC", [ADAFACTOR_NEW_M] = "s#RC?", [ADAFACTOR_NEW_MASTER] = "m#RC?"},
            .shares = {[ADAFACTOR_NEW_P] = SHARES(ADAFACTOR_P),
                       [ADAFACTOR_NEW_M] = SHARES(ADAFACTOR_M),
                       [ADAFACTOR_NEW_MASTER] = SHARES(ADAFACTOR_MASTER)},
            .update = {.m = ADAFACTOR_M,
                       .master = ADAFACTOR_MASTER,
                       .scalars = ADAFACTOR_SCALARS,
                       .coef = ADAFACTOR_COEF,
                       .new_m = ADAFACTOR_NEW_M,
                       .new_master = ADAFACTOR_NEW_MASTER},
        },
    [OP_FETCH] =
        {
            .cls = OP_CLASS_MOVE,
            .in = {[MOVE_FROM] = "y#N"},
            .out = {[MOVE_TO] = "y#N"},
            .cost = cost_move,
        },
    [OP_STORE] =
        {
            .cls = OP_CLASS_MOVE,
            .in = {[MOVE_FROM] = "y#N"},
            .out = {[MOVE_TO] = "y#N"},
            .writes_kept = true,
            .cost = cost_move,
        },
    [OP_HOLD] =
        {
            .cls = OP_CLASS_HOLD,
            .in = {"*", "*?", "*?", "*?", "*?", "*?", "*?", "*?", "*?", "*?"},
            .cost = cost_hold,
        },
    [OP_GATHER] =
        {
            .cls = OP_CLASS_COLLECTIVE,
            .in = {[MOVE_FROM] = "*"},
            .out = {[MOVE_TO] = "*"},
            .cost = cost_gather,
        },
    [OP_REDUCE] =
        {
            .cls = OP_CLASS_COLLECTIVE,
            .in = {[MOVE_FROM] = "*"},
            .out = {[MOVE_TO] = "*"},
            .writes_kept = true,
            .cost = cost_reduce,
        },
    [OP_PIECE] =
        {
            .cls = OP_CLASS_COLLECTIVE,
            .in = {[MOVE_FROM] = "*"},
            .out = {[MOVE_TO] = "*"},
        },
    [OP_SUM] =
        {
            .cls = OP_CLASS_COLLECTIVE,
            .in = {[MOVE_FROM] = "*"},
            .out = {[MOVE_TO] = "*"},
            .cost = cost_sum,
        },
};
