/* arch.h - what an architecture is: one struct, filled by one file each (llama.c, gemma3.c, gpt2.c, ...).
 *
 * The parameter table is the single place that says which parameters exist, their shapes and how they start:
 * counting, initialising and emitting all read it. Only model/ includes this header.
 */
#ifndef PLIM_MODEL_ARCH_H
#define PLIM_MODEL_ARCH_H

#include "model/fields.h"

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
    /* Hugging Face name; %d: one per layer, {q,k,v}: three in one, {}: one per expert (weights_part). NULL: no
     * such parameter. */
    const char *label;
    enum param_dim dim[3];
    enum param_rule rule;
    enum param_when when;
    /* Another name that files may have for it. Of experts [E, joint_parts * M, K], in which each expert's matrix is part
     * joint_part of its own; 0 parts: the same tensor. NULL: there is none. */
    const char *joint;
    int joint_part, joint_parts;
};

/* For struct architecture's keys: a field that config.json has under the table's name. */
#define HAS(id) [FIELD_##id] = ""

/* A switch config.json may carry that we compute in one position only. */
struct hf_demand {
    const char *key, *only; /* "false", "absolute", "null" */
};
#define MODEL_DEMANDS 4

/* Which keys say that attention slides: none; sliding_window for all layers; with use_sliding_window and
 * max_window_layers beside it; sliding_window for all but every n-th layer; with use_sliding_window for layers without
 * rotation. All but the first two have layer_types too. */
enum window_keys { WINDOW_NEVER, WINDOW_ALL_LAYERS, WINDOW_LATE_LAYERS, WINDOW_PATTERN, WINDOW_NO_ROPE };

struct builder;

struct architecture {
    const char *name;                /* "llama" */
    const char *hf_type;             /* config.json model_type; NULL: the name */
    const char *hf_class;            /* config.json architectures[0] */
    const char *const *task_classes; /* hf_class of each task; NULL: hf_class, and TASK_TOKENS only */
    const char *activation;
    const char *prefix; /* what some checkpoints leave out of the names: "model." */
    const char *gguf;   /* what GGUF files call it; NULL: there are none */
    /* Which fields config.json has, and under which name: HAS(id), or a name of its own. NULL: it has no such field. */
    const char *keys[MODEL_FIELDS];
    const struct param_row *params;
    int nparams;
    bool rope;
    bool encoder;             /* rows are read whole */
    bool source;              /* encoder-decoder: a source is read whole before a target is written */
    bool positions_after_pad; /* see model_first_position */
    int inner_multiple;       /* feed-forward size in hidden sizes when none is given; 0: it must be */
    bool norm_plus_one;       /* a norm's weight is 1 + w */
    bool scaled_embed;        /* embeddings are multiplied with the root of the hidden size */
    bool heads_divide; /* transformers refuses heads that do not divide hidden_size, even with head_dim */
    int gguf_scaled_layers; /* Gemma in GGUF: with so many layers scores are divided by the root of hidden size / heads */
    enum activation act;
    enum activation row_act; /* between the two projections of TASK_ROW_LABELS */
    enum window_keys window;
    struct hf_demand demands[MODEL_DEMANDS];
    void (*defaults)(struct model_spec *spec); /* what transformers takes where config.json says nothing */
    enum plim_status (*check)(const struct model_spec *spec, struct plim_error *err); /* optional */
    void (*emit)(struct builder *b);
};

#define DECLARE(name) extern const struct architecture arch_##name;
MODEL_ARCHITECTURES(DECLARE)
#undef DECLARE

static inline const char *architecture_type(const struct architecture *arch)
{
    return arch->hf_type ? arch->hf_type : arch->name;
}

/* Spec of a config.json that leaves every key out: the defaults of transformers. */
void model_file_defaults(struct model_spec *spec, const struct architecture *arch);

/* How many tensors a row stands for: one, or one per layer of its stack that has it. */
int param_copies(const struct model_spec *spec, const struct param_row *row);
bool param_present(const struct model_spec *spec, const struct param_row *row);
/* Whether a layer has a parameter that the model has. */
bool param_in_layer(const struct model_spec *spec, const struct param_row *row, int layer);
/* Layers with experts among the first `layers`. */
int model_mixtures(const struct model_spec *spec, int layers);
int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim);

#endif
