/* rows.h - the arithmetic of the CPU kernels, for one row or one span of elements.
 *
 * The kernels (norm.c, xent.c, ...) know shapes and divide work among threads; these functions know instructions. There is
 * one table per instruction set, generated from the same source (rows_body.h) with vec.h.
 *
 *     const struct row_ops *rows = row_ops();
 *     rows->add(DT_BF16, y, a, b, n);
 *
 * `t` is the type of every `void *` operand: F32, BF16 or F16. Arithmetic is fp32, results are rounded once.
 * An output may be at exactly the address of an input of the same type (in place); otherwise operands do not overlap.
 * Functions over spans give every element the same result wherever the span is cut. All are pure and thread-safe; lengths
 * may be 0 or more.
 */
#pragma once

#include "device/cpu/cpu_features.h"
#include "tape/tape.h"
#include <stdbool.h>
#include <stdint.h>

/* One row of a norm's backward pass. */
struct row_norm_bwd {
    void *dx;       /* may be dy or add */
    float *dw, *db; /* += ; NULL: none; db comes with dw */
    const void *dy, *x, *w;
    const void *add;  /* NULL: none */
    float mean, rstd; /* from the forward pass; mean for LayerNorm only */
    bool plus_one;    /* RMSNorm: the weight is 1 + w */
};

/* An activation; cap: for ACTIVATION_TANH, cap tanh(x / cap); for ACTIVATION_SCALE, the factor. */
struct row_act {
    enum activation kind;
    float cap;
};

/* Elements from `first` on of a row that tape/dropout.h identifies by `line`. */
struct row_drop {
    uint32_t line, first, below;
    float scale;
};

/* The gradient of a softmax of capped logits. */
struct row_softmax_grad {
    float top, scale, cap;
};

/* The largest logit of a row, and the sum of exp(logit - top). */
struct row_softmax {
    float top;
    double sum;
};

/* A span of parameters under an optimizer. Outputs may be the inputs. */
struct row_update {
    const void *p_in;
    void *p;               /* of type t */
    const void *master_in; /* NULL: none. u16 beside bf16 (master_join), f32 beside f16 */
    void *master;
    const void *g;
    const void *m_in, *v_in; /* SGD: m is the momentum, NULL: none; v unused */
    void *m, *v;
    bool wide_g, wide_state; /* g is f32 instead of t; m and v are f32 instead of bf16 */
    bool stochastic;         /* rounding to bf16, with these (tensor/stochastic.h): */
    uint32_t key, first;     /* first: index of this span in the parameter */
    float multiplier;        /* of g */
    float keep;              /* AdamW: p is multiplied by this first (1 - lr decay) */
    float decay;             /* SGD: decay p is added to g */
    float mix1, beta2, mix2; /* m += mix1 (g - m); v = beta2 v + mix2 g^2 */
    float beta1;             /* SGD: momentum */
    float step, root, eps;   /* AdamW: p -= step m / (sqrt(v) root + eps); SGD: p -= step g */
    bool nesterov;
    /* 8-bit AdamW: codes instead of m and v, with a scale per QUANT8_BLOCK. A span begins with a block. */
    const uint8_t *mq_in, *vq_in;
    uint8_t *mq, *vq;
    const float *m_scale_in, *v_scale_in;
    float *m_scale, *v_scale;
    /* Adafactor: s = step g / sqrt(col), m += mix1 (s - m), p = keep p - s or m */
    const float *col;
};

/* Adafactor's second moment of each element: out = beta2 in + (1 - beta2) (g^2 + eps), g multiplied first. */
struct row_second {
    float *out;
    const float *in;
    const void *g; /* of type t */
    float multiplier, beta2, eps;
};

/* Consecutive heads, of which the first `turned` elements are rotated. */
struct row_heads {
    int64_t count, size, turned;
};

struct row_ops {
    void (*add)(enum dtype t, void *y, const void *a, const void *b, int64_t n); /* y = a + b */
    void (*add_to)(enum dtype t, float *sum, const void *x, int64_t n);          /* sum += x */
    /* y = x by + add, add NULL: none; sum += x by */
    void (*scale_add)(enum dtype t, void *y, const void *x, float by, const void *add, int64_t n);
    void (*add_scaled)(enum dtype t, float *sum, const void *x, float by, int64_t n);
    void (*glu)(enum dtype t, struct row_act a, void *h, const void *gate, const void *up, int64_t n);
    /* dgate and dup may be any two of the inputs. */
    void (*glu_bwd)(enum dtype t, struct row_act a, void *dgate, void *dup, void *h, const void *dh,
                    const void *gate, const void *up, int64_t n);
    void (*act)(enum dtype t, struct row_act a, void *y, const void *x, int64_t n);
    void (*act_bwd)(enum dtype t, struct row_act a, void *dx, void *y, const void *dy, const void *x,
                    int64_t n);
    void (*drop)(enum dtype t, const struct row_drop *drop, void *y, const void *x, const void *add,
                 int64_t n);

    /* table holds turned / 2 cosines, then as many sines. */
    void (*rope)(enum dtype t, void *y, const void *x, const float *table, struct row_heads heads,
                 bool inverse);

    /* One row. stat: rstd, or mean and rstd. b NULL: none. y may not be x. */
    void (*rms)(enum dtype t, void *y, float *stat, const void *x, const void *w, bool plus_one, int64_t n,
                float eps);
    void (*layer)(enum dtype t, void *y, float *stat, const void *x, const void *w, const void *b, int64_t n,
                  float eps);
    void (*rms_bwd)(enum dtype t, const struct row_norm_bwd *row, int64_t n);
    void (*layer_bwd)(enum dtype t, const struct row_norm_bwd *row, int64_t n);

    struct row_softmax (*softmax)(enum dtype t, const void *x, int64_t n);
    /* y = exp(x - top) scale */
    void (*exp_scaled)(enum dtype t, void *y, const void *x, int64_t n, float top, float scale);
    /* x: logits after the cap. y = exp(x - top) scale (1 - (x / cap)^2) */
    void (*exp_capped)(enum dtype t, void *y, const float *x, const struct row_softmax_grad *g, int64_t n);

    double (*sumsq)(enum dtype t, const void *x, int64_t n); /* in fp64 */
    void (*adamw)(enum dtype t, const struct row_update *u, int64_t n);
    void (*sgd)(enum dtype t, const struct row_update *u, int64_t n);
    void (*adamw8)(enum dtype t, const struct row_update *u, int64_t n);
    void (*adafactor)(enum dtype t, const struct row_update *u, int64_t n);

    void (*add_squares)(enum dtype t, float *sum, const void *x, int64_t n); /* sum += x^2 */
    /* Sum of x^2 / col in fp64; second does the same with the moment it has just computed. */
    double (*sumsq_over)(enum dtype t, const void *x, const float *col, int64_t n);
    double (*second)(enum dtype t, const struct row_second *s, int64_t n);
};

/* The table for the machine's level, or for a given one (which the machine must have). */
const struct row_ops *row_ops(void);
const struct row_ops *row_ops_at(enum cpu_level level);

extern const struct row_ops rows_plain;
#if defined(__aarch64__)
extern const struct row_ops rows_neon, rows_neon_bf16;
#endif
#if defined(__x86_64__)
extern const struct row_ops rows_avx2, rows_avx512;
#endif
