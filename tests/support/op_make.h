/* op_make.h - how the makers of op cases (op_make_*.c) describe operands. Used by nothing else. */
#ifndef PLIM_TESTS_SUPPORT_OP_MAKE_H
#define PLIM_TESTS_SUPPORT_OP_MAKE_H

#include "support/op_case.h"

#define F32_UNIT 0x1p-24

typedef void op_maker(struct op_case *c);

op_maker make_embed, make_norm, make_linear, make_rope_table, make_attn, make_glu, make_act, make_add,
    make_xent, make_preference, make_kv_append, make_split3, make_rope, make_dropout, make_pool, make_kv_put,
    make_attn_paged, make_kv_put8, make_attn_paged8, make_dora_norm,
    make_take;        /* op_make_forward.c, op_make_attn.c */
op_maker make_sample; /* op_make_sample.c */
op_maker make_embed_bwd, make_norm_bwd, make_linear_dx, make_linear_dw, make_attn_bwd, make_glu_bwd,
    make_act_bwd, make_join3, make_pool_bwd; /* op_make_backward.c, op_make_attn.c */
op_maker make_route, make_dispatch, make_expert_linear, make_combine, make_router_loss, make_route_bwd,
    make_expert_linear_dx, make_expert_linear_dw, make_combine_dw, make_row_gate,
    make_row_gate_bwd; /* op_make_experts.c */
op_maker make_adapter_linear, make_column_scale,
    make_column_scale_bwd; /* op_make_forward.c, op_make_backward.c */
op_maker make_sumsq, make_clip, make_adamw, make_sgd, make_adamw8, make_factor_stat, make_adafactor,
    make_fetch, make_store; /* op_make_update.c */

op_maker make_linear_q, make_embed_q, make_expert_linear_q, make_linear_q_dx, make_dora_norm_q,
    make_expert_linear_q_dx; /* op_make_quantised.c */

op_maker make_quantise8, make_linear8, make_linear8_dw, make_linear_f8; /* op_make_fp8.c */

/* Random numbers of the case. */
int64_t case_below(struct op_case *c, int64_t n); /* [0,n) */
bool case_flip(struct op_case *c);
double case_uniform(struct op_case *c, double low, double high);
double case_normal(struct op_case *c);
int64_t case_pick(struct op_case *c, const int64_t *from, int n);
#define PICK(c, ...)                                                                                         \
    case_pick(c, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

#define DIMS(...)                                                                                            \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }

/* Declare an operand. Floating inputs are filled with normal numbers of deviation 1, integer ones with zero;
 * outputs with 0xff, or with normal numbers by case_acc when the op adds to them. */
void case_in(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim);
void case_out(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim);
void case_acc(struct op_case *c, int slot, enum dtype type, int ndim, const int64_t *dim);
/* An output that is the same tensor as an input. */
void case_same(struct op_case *c, int out_slot, int in_slot);

/* Leading dimensions of row-wise operands: [rows] or [B,T] with the same product. */
struct lead {
    int ndim;
    int64_t dim[3], rows;
};
struct lead case_lead(struct op_case *c, int64_t max_rows);
/* One in six: rows of an adapter and the sizes of its matrix, one of them small; otherwise returns false and sets nothing. */
bool case_adapter(struct op_case *c, struct lead *lead, int64_t *m, int64_t *k);
/* Sometimes cuts the m lines of a linear's weight, which is then not weight_kn, into parts; their number, 1: it is whole. */
int64_t case_parts(struct op_case *c, int64_t m);
void case_in_rows(struct op_case *c, int slot, enum dtype type, struct lead lead, int64_t width);
void case_out_rows(struct op_case *c, int slot, enum dtype type, struct lead lead, int64_t width);

/* Elements of an input, as a number and rounded to its dtype. */
double case_get(const struct op_case *c, int slot, int64_t i);
void case_set(struct op_case *c, int slot, int64_t i, double value);
void case_set_int(struct op_case *c, int slot, int64_t i, int32_t value);
int64_t case_count(const struct op_case *c, int slot);
void case_fill(struct op_case *c, int slot, double mean, double deviation);

/* Fill inputs from the reference: run op `kind` with the case's attributes on inputs `from` and leave its
 * outputs in inputs `to`. Slot lists end with -1. */
void case_forward(struct op_case *c, int kind, const int *from, const int *to);

/* The scalars of a step, with the random bits and the first row that stochastic rounding and dropout read. */
void case_scalars(struct op_case *c, int slot);

void case_note(struct op_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Lengths of rows of up to `time`: of all sizes, some 0 or 1. */
void case_lengths(struct op_case *c, int slot, int64_t rows, int64_t time);

/* Any pooling, its scale and whether it normalises. */
void case_pooling(struct op_case *c);

/* Any activation, and what its inputs may spread by; the tanh may have a cap. */
void case_activation(struct op_case *c);
/* Numbers of a gate, or of the first halves of joint rows, many of them where the activation is shut. */
void case_fill_gates(struct op_case *c, int slot, int64_t width);

/* The largest |x| in units of its row's deviation: what subtracting the mean magnifies roundings by. */
double case_magnified(const struct op_case *c, int slot, int64_t width, bool layer);

/* Allowed relative error of a sum of n terms in fp32, relative to the size of the result. */
double sum_error(int64_t n);

#endif
