/* arch.h - what an architecture is: one struct, filled by one file each (llama.c, mistral.c, qwen2.c,
 * gpt2.c, bert.c, roberta.c, distilbert.c).
 *
 * The parameter table is the single place that says which parameters exist, their shapes and how they start:
 * counting, initialising and emitting all read it. Only model/ includes this header.
 */
#ifndef PLIM_MODEL_ARCH_H
#define PLIM_MODEL_ARCH_H

#include "model/model.h"

/* A size taken from the spec. */
enum param_dim { DIM_NONE, DIM_V, DIM_C, DIM_F, DIM_P, DIM_HD, DIM_QKV, DIM_TYPES, DIM_LABELS };

/* Which specs have the parameter. */
enum param_when {
    WHEN_ALWAYS,
    WHEN_QKV_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS,
    WHEN_UNTIED,
    WHEN_TYPES,         /* segments are told apart */
    WHEN_SAYS_TOKENS,   /* TASK_TOKENS; from here on they are a task's head */
    WHEN_UNTIED_TOKENS, /* both */
    WHEN_SAYS_LABELS,   /* TASK_LABELS */
};

/* INIT_NORMAL of a matrix that ends a residual branch may be narrowed by 1/sqrt(2 L). */
enum param_rule { RULE_NORMAL, RULE_RESIDUAL, RULE_ONES, RULE_ZEROS };

struct param_row {
    const char *label; /* Hugging Face name; %d: one per layer, {q,k,v}: three in one (weights_parts) */
    enum param_dim dim[2];
    enum param_rule rule;
    enum param_when when;
};

/* What config.json calls the sizes. */
struct model_keys {
    const char *hidden, *intermediate, *layers, *heads, *kv_heads, *positions, *norm_eps, *activation;
    const char *dropout[MODEL_DROPOUTS]; /* NULL: fewer */
    double dropout_absent;               /* what transformers takes when the key is missing */
    bool last_dropout_follows;           /* the third one, when it is missing, is the first */
    const char *types;                   /* NULL: it has none */
};

/* A switch config.json may carry that we compute in one position only; text: a choice instead. */
struct hf_demand {
    const char *key;
    bool only;
    const char *text;
};

/* Which keys say that attention slides: none, sliding_window for all layers, or with use_sliding_window and
 * max_window_layers beside it. */
enum window_keys { WINDOW_NEVER, WINDOW_ALL_LAYERS, WINDOW_LATE_LAYERS };

struct builder;

struct architecture {
    const char *name;                /* "llama" */
    const char *hf_type;             /* config.json model_type */
    const char *hf_class;            /* config.json architectures[0] */
    const char *const *task_classes; /* hf_class of each task; NULL: hf_class, and TASK_TOKENS only */
    const char *activation;
    const char *prefix; /* what some checkpoints leave out of the names: "model." */
    const struct model_keys *keys;
    const struct param_row *params;
    int nparams;
    bool rope;
    bool encoder;             /* rows are read whole */
    bool positions_after_pad; /* see model_first_position */
    int inner_multiple;       /* feed-forward size in hidden sizes when none is given; 0: it must be */
    bool bias_keys;           /* attention_bias and mlp_bias are read */
    enum window_keys window;
    const struct hf_demand *demands; /* ends with a NULL key; NULL: none */
    void (*defaults)(struct model_spec *spec);
    enum plim_status (*check)(const struct model_spec *spec, struct plim_error *err); /* optional */
    void (*emit)(struct builder *b);
};

extern const struct architecture arch_llama, arch_mistral, arch_qwen2, arch_gpt2;
extern const struct architecture arch_bert, arch_roberta, arch_distilbert;

bool param_present(const struct model_spec *spec, const struct param_row *row);
int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim);

#endif
