/* arch.h - what an architecture is: one struct, filled by one file each (llama.c, gemma3.c, gpt2.c, ...).
 *
 * The parameter table is the single place that says which parameters exist, their shapes and how they start:
 * counting, initialising and emitting all read it. Only model/ includes this header.
 */
#ifndef PLIM_MODEL_ARCH_H
#define PLIM_MODEL_ARCH_H

#include "model/model.h"

/* A size taken from the spec. */
enum param_dim {
    DIM_NONE,
    DIM_V,
    DIM_C,
    DIM_F,
    DIM_2F,
    DIM_P,
    DIM_D,
    DIM_HD,
    DIM_KD,
    DIM_QKV,
    DIM_E,
    DIM_ONE,
    DIM_SHARED,
    DIM_DENSE,
    DIM_TYPES,
    DIM_LABELS,
    DIM_H,
    DIM_BUCKETS
};

/* Which specs have the parameter. */
enum param_when {
    WHEN_ALWAYS,
    WHEN_QKV_BIAS,
    WHEN_O_BIAS,
    WHEN_MLP_BIAS,
    WHEN_UNTIED,
    WHEN_TYPES,         /* segments are told apart */
    WHEN_GATED,         /* the feed-forward has a gate */
    WHEN_PLAIN,         /* it has none */
    WHEN_MIXTURE,       /* in layers with experts */
    WHEN_DENSE,         /* in layers without, of a model that has others */
    WHEN_SAYS_TOKENS,   /* TASK_TOKENS; from here on they are a task's head */
    WHEN_UNTIED_TOKENS, /* both */
    WHEN_SAYS_LABELS,   /* TASK_LABELS */
    WHEN_LABELS_ROWS,   /* TASK_ROW_LABELS */
    WHEN_ANY_LABELS,    /* either */
};

/* INIT_NORMAL of a matrix that ends a residual branch may be narrowed by 1/sqrt(2 L). The last three are T5's: initializer_range
 * is its factor, of 1 / sqrt(numbers of a row); of 1 / sqrt(C); of a row's again, and queries by a further 1 / sqrt(D). */
enum param_rule {
    RULE_NORMAL,
    RULE_RESIDUAL,
    RULE_ONES,
    RULE_ZEROS,
    RULE_BY_WIDTH,
    RULE_BY_HIDDEN,
    RULE_QUERIES_BY_WIDTH
};

struct param_row {
    const char *
        label; /* Hugging Face name; %d: one per layer, {q,k,v}: three in one, {}: one per expert (weights_part); NULL: no such parameter */
    enum param_dim dim[3];
    enum param_rule rule;
    enum param_when when;
    /* Another name that files may have for it. Of experts [E, joint_parts * M, K], in which each expert's matrix is part
     * joint_part of its own; 0 parts: the same tensor. NULL: there is none. */
    const char *joint;
    int joint_part, joint_parts;
};

/* What config.json calls the sizes. */
struct model_keys {
    const char *hidden, *intermediate, *layers, *heads, *kv_heads, *positions, *norm_eps, *activation;
    const char *head_dim, *range;        /* NULL: "head_dim", "initializer_range" */
    const char *experts;                 /* NULL: it has none */
    const char *dropout[MODEL_DROPOUTS]; /* NULL: fewer */
    double dropout_absent;               /* what transformers takes when the key is missing */
    bool last_dropout_follows;           /* the third one, when it is missing, is the first */
    const char *types;                   /* NULL: it has none */
};

/* What config.json of some architectures has beside the sizes; NULL or false: this one has no such key. */
struct model_extras {
    bool attention_bias, mlp_bias;
    bool caps;           /* final_logit_softcapping, and query_pre_attn_scalar */
    bool attn_cap;       /* attn_logit_softcapping */
    bool local_theta;    /* rope_local_base_freq */
    bool partial_rotary; /* partial_rotary_factor */
    bool no_rope;        /* no_rope_layers, no_rope_layer_interval */
    bool window_pattern; /* sliding_window_pattern */
    bool norm_topk;      /* norm_topk_prob */
    bool shared_expert;  /* shared_expert_intermediate_size */
    bool dense_layers;   /* mlp_only_layers, decoder_sparse_step; intermediate_size is their width */
    /* Phi-3: rope types are default and longrope, by other names too, and the original length stands beside them. */
    bool long_rope;
    bool
        heads_divide; /* transformers refuses heads that do not divide hidden_size, even where head_dim is given */
    /* What transformers takes when the file has no such key; models from scratch have the general rule. */
    int kv_heads_absent, head_dim_absent, query_scalar_absent;
};

/* A switch config.json may carry that we compute in one position only; text: a choice instead. */
struct hf_demand {
    const char *key;
    bool only;
    bool null_only; /* any value at all asks for what we do not compute */
    const char *text;
};

/* Which keys say that attention slides: none; sliding_window for all layers; with use_sliding_window and
 * max_window_layers beside it; sliding_window for all but every n-th layer; with use_sliding_window for layers without
 * rotation. All but the first two have layer_types too. */
enum window_keys { WINDOW_NEVER, WINDOW_ALL_LAYERS, WINDOW_LATE_LAYERS, WINDOW_PATTERN, WINDOW_NO_ROPE };

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
    bool source;              /* encoder-decoder: a source is read whole before a target is written */
    bool positions_after_pad; /* see model_first_position */
    int inner_multiple;       /* feed-forward size in hidden sizes when none is given; 0: it must be */
    bool norm_plus_one;       /* a norm's weight is 1 + w */
    bool scaled_embed;        /* embeddings are multiplied with the root of the hidden size */
    enum activation act;
    enum activation row_act; /* between the two projections of TASK_ROW_LABELS */
    struct model_extras extras;
    enum window_keys window;
    const struct hf_demand *demands; /* ends with a NULL key; NULL: none */
    void (*defaults)(struct model_spec *spec);
    enum plim_status (*check)(const struct model_spec *spec, struct plim_error *err); /* optional */
    void (*emit)(struct builder *b);
};

extern const struct architecture arch_llama, arch_mistral, arch_qwen2, arch_qwen3, arch_gemma2, arch_gemma3,
    arch_phi3, arch_olmo2, arch_smollm3, arch_gpt2, arch_mixtral, arch_qwen2_moe, arch_qwen3_moe, arch_olmoe;
extern const struct architecture arch_bert, arch_roberta, arch_distilbert, arch_t5;

/* How many tensors a row stands for: one, or one per layer of its stack that has it. */
int param_copies(const struct model_spec *spec, const struct param_row *row);
bool param_present(const struct model_spec *spec, const struct param_row *row);
/* Whether a layer has a parameter that the model has. */
bool param_in_layer(const struct model_spec *spec, const struct param_row *row, int layer);
/* Layers with experts among the first `layers`. */
int model_mixtures(const struct model_spec *spec, int layers);
int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim);

#endif
