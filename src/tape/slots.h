/* slots.h - operands by name: op->in[LINEAR_W], call->out[ATTN_LSE], op->out[ADAMW_NEW_M].
 *
 * Each op of the table in op.h has two lists: its inputs, then its outputs, in the order of the table. Outputs that replace
 * an input have NEW in their name, so that no output is named like an input. Optional operands have slots too.
 *
 * These are plain constants: the same number selects an operand's id (struct op), its address (struct kernel_call), its
 * pattern (struct op_row) and, among descriptors, desc[LINEAR_W] or desc[OP_MAX_IN + LINEAR_Y]. */
#pragma once

enum { EMBED_IDS, EMBED_W, EMBED_ADD };
enum { EMBED_Y };

enum { NORM_X, NORM_W, NORM_BIAS };
enum { NORM_Y, NORM_STAT };

enum { LINEAR_X, LINEAR_W, LINEAR_BIAS, LINEAR_ADD };
enum { LINEAR_Y };

enum { LINEAR_Q_X, LINEAR_Q_W, LINEAR_Q_BIAS, LINEAR_Q_ADD };
enum { LINEAR_Q_Y };

enum { EMBED_Q_IDS, EMBED_Q_W };
enum { EMBED_Q_Y };

enum { EXPERT_LINEAR_Q_X, EXPERT_LINEAR_Q_W, EXPERT_LINEAR_Q_ENDS };
enum { EXPERT_LINEAR_Q_Y };

enum { ROPE_TABLE_POS, ROPE_TABLE_INV_FREQ };
enum { ROPE_TABLE_TABLE };

enum { ROPE_X, ROPE_TABLE };
enum { ROPE_Y };

enum { ATTN_Q, ATTN_K, ATTN_V, ATTN_POS, ATTN_LENGTHS, ATTN_BIAS, ATTN_SCALARS };
enum { ATTN_O, ATTN_LSE };

enum { GLU_GATE, GLU_UP };
enum { GLU_H };

enum { ACT_X };
enum { ACT_Y };

enum { ADD_A, ADD_B };
enum { ADD_Y };

enum { ROW_GATE_X, ROW_GATE_GATE, ROW_GATE_ADD };
enum { ROW_GATE_Y };

enum { ROW_GATE_BWD_DY, ROW_GATE_BWD_X, ROW_GATE_BWD_GATE };
enum { ROW_GATE_BWD_DX, ROW_GATE_BWD_DGATE };

enum { ROW_NORM_W };
enum { ROW_NORM_Y };

enum { COLUMN_SCALE_X, COLUMN_SCALE_M, COLUMN_SCALE_NORM, COLUMN_SCALE_BIAS, COLUMN_SCALE_ADD };
enum { COLUMN_SCALE_Y };

enum {
    COLUMN_SCALE_BWD_DY,
    COLUMN_SCALE_BWD_X,
    COLUMN_SCALE_BWD_M,
    COLUMN_SCALE_BWD_NORM,
    COLUMN_SCALE_BWD_BIAS,
};
enum { COLUMN_SCALE_BWD_DX, COLUMN_SCALE_BWD_DM };

enum { DROPOUT_X, DROPOUT_SCALARS, DROPOUT_ADD };
enum { DROPOUT_Y };

enum { XENT_LOGITS, XENT_TARGETS, XENT_SCALARS };
enum { XENT_LOSS, XENT_DLOGITS, XENT_HITS };

enum { KV_APPEND_K, KV_APPEND_V, KV_APPEND_POS, KV_APPEND_KC, KV_APPEND_VC };
enum { KV_APPEND_NEW_KC, KV_APPEND_NEW_VC };

enum { KV_PUT_K, KV_PUT_V, KV_PUT_SLOTS, KV_PUT_POOL };
enum { KV_PUT_NEW_POOL };

enum { ATTN_PAGED_Q, ATTN_PAGED_POOL, ATTN_PAGED_ROWS, ATTN_PAGED_BLOCKS };
enum { ATTN_PAGED_O };

enum { SAMPLE_LOGITS, SAMPLE_ROWS, SAMPLE_SEEN };
enum { SAMPLE_TOKEN, SAMPLE_NEXT, SAMPLE_TOP, SAMPLE_LOGPROB };

enum { SPLIT3_X, SPLIT3_TABLE };
enum { SPLIT3_Q, SPLIT3_K, SPLIT3_V };

enum { ROUTE_LOGITS, ROUTE_LENGTHS };
enum { ROUTE_WEIGHT, ROUTE_EXPERT, ROUTE_PLACE, ROUTE_ENDS, ROUTE_STAT };

enum { DISPATCH_X, DISPATCH_PLACE, DISPATCH_WEIGHT };
enum { DISPATCH_Y };

enum { EXPERT_LINEAR_X, EXPERT_LINEAR_W, EXPERT_LINEAR_ENDS };
enum { EXPERT_LINEAR_Y };

enum { COMBINE_X, COMBINE_PLACE, COMBINE_WEIGHT, COMBINE_ADD };
enum { COMBINE_Y };

enum { ROUTER_LOSS_STAT, ROUTER_LOSS_SCALARS };
enum { ROUTER_LOSS_LOSS, ROUTER_LOSS_LOAD, ROUTER_LOSS_FACTOR };

enum { EMBED_BWD_IDS, EMBED_BWD_DY };
enum { EMBED_BWD_DW };

enum { NORM_BWD_DY, NORM_BWD_X, NORM_BWD_W, NORM_BWD_STAT, NORM_BWD_ADD };
enum { NORM_BWD_DX, NORM_BWD_DW, NORM_BWD_DBIAS };

enum { LINEAR_DX_DY, LINEAR_DX_W, LINEAR_DX_ADD };
enum { LINEAR_DX_DX };

enum { LINEAR_DW_DY, LINEAR_DW_X };
enum { LINEAR_DW_DW, LINEAR_DW_DBIAS };

enum {
    ATTN_BWD_DO,
    ATTN_BWD_Q,
    ATTN_BWD_K,
    ATTN_BWD_V,
    ATTN_BWD_O,
    ATTN_BWD_LSE,
    ATTN_BWD_POS,
    ATTN_BWD_LENGTHS,
    ATTN_BWD_BIAS,
    ATTN_BWD_SCALARS,
};
enum { ATTN_BWD_DQ, ATTN_BWD_DK, ATTN_BWD_DV, ATTN_BWD_DBIAS };

enum { GLU_BWD_DH, GLU_BWD_GATE, GLU_BWD_UP };
enum { GLU_BWD_DGATE, GLU_BWD_DUP, GLU_BWD_H };

enum { ACT_BWD_DY, ACT_BWD_X };
enum { ACT_BWD_DX, ACT_BWD_Y };

enum { JOIN3_Q, JOIN3_K, JOIN3_V, JOIN3_TABLE };
enum { JOIN3_X };

enum { POOL_X, POOL_LENGTHS };
enum { POOL_Y, POOL_STAT };

enum { POOL_BWD_DY, POOL_BWD_Y, POOL_BWD_STAT, POOL_BWD_LENGTHS };
enum { POOL_BWD_DX };

enum { ROUTE_BWD_DWEIGHT, ROUTE_BWD_LOGITS, ROUTE_BWD_EXPERT, ROUTE_BWD_FACTOR, ROUTE_BWD_LENGTHS };
enum { ROUTE_BWD_DLOGITS };

enum { EXPERT_LINEAR_DX_DY, EXPERT_LINEAR_DX_W, EXPERT_LINEAR_DX_ENDS, EXPERT_LINEAR_DX_ADD };
enum { EXPERT_LINEAR_DX_DX };

enum { EXPERT_LINEAR_DW_DY, EXPERT_LINEAR_DW_X, EXPERT_LINEAR_DW_ENDS };
enum { EXPERT_LINEAR_DW_DW };

enum { COMBINE_DW_DY, COMBINE_DW_X, COMBINE_DW_PLACE };
enum { COMBINE_DW_DWEIGHT };

/* Ops of the update. The first input has the shape of the parameter: the parameter itself or its gradient. The steps
 * of all optimizers begin with the parameter and its gradient; struct update_slots (op.h) says where the rest is. */
enum { UPDATE_SHAPE };
enum { UPDATE_P = UPDATE_SHAPE, UPDATE_G };
enum { UPDATE_NEW_P };

enum { SUMSQ_GRAD = UPDATE_SHAPE };
enum { SUMSQ_SUM };

enum { CLIP_SUMS, CLIP_SCALARS };
enum { CLIP_COEF };

enum {
    ADAMW_P = UPDATE_P,
    ADAMW_G = UPDATE_G,
    ADAMW_M,
    ADAMW_V,
    ADAMW_MASTER,
    ADAMW_SCALARS,
    ADAMW_COEF,
};
enum { ADAMW_NEW_P = UPDATE_NEW_P, ADAMW_NEW_M, ADAMW_NEW_V, ADAMW_NEW_MASTER };

enum { SGD_P = UPDATE_P, SGD_G = UPDATE_G, SGD_M, SGD_MASTER, SGD_SCALARS, SGD_COEF };
enum { SGD_NEW_P = UPDATE_NEW_P, SGD_NEW_M, SGD_NEW_MASTER };

enum {
    ADAMW8_P = UPDATE_P,
    ADAMW8_G = UPDATE_G,
    ADAMW8_MQ,
    ADAMW8_VQ,
    ADAMW8_MS,
    ADAMW8_VS,
    ADAMW8_MASTER,
    ADAMW8_SCALARS,
    ADAMW8_COEF,
};
enum {
    ADAMW8_NEW_P = UPDATE_NEW_P,
    ADAMW8_NEW_MQ,
    ADAMW8_NEW_VQ,
    ADAMW8_NEW_MS,
    ADAMW8_NEW_VS,
    ADAMW8_NEW_MASTER,
};

enum {
    FACTOR_STAT_G = UPDATE_SHAPE,
    FACTOR_STAT_ROW,
    FACTOR_STAT_COL,
    FACTOR_STAT_SCALARS,
    FACTOR_STAT_COEF,
};
enum { FACTOR_STAT_NEW_ROW, FACTOR_STAT_NEW_COL, FACTOR_STAT_FACTOR };

enum {
    ADAFACTOR_P = UPDATE_P,
    ADAFACTOR_G = UPDATE_G,
    ADAFACTOR_ROW,
    ADAFACTOR_COL,
    ADAFACTOR_FACTOR,
    ADAFACTOR_M,
    ADAFACTOR_MASTER,
    ADAFACTOR_SCALARS,
    ADAFACTOR_COEF,
};
enum { ADAFACTOR_NEW_P = UPDATE_NEW_P, ADAFACTOR_NEW_M, ADAFACTOR_NEW_MASTER };

/* fetch and store. */
enum { MOVE_FROM };
enum { MOVE_TO };
