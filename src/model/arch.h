/* arch.h - the definition of an architecture: one struct, filled by one file each (llama.c, gemma3.c, gpt2.c, ...).
 *
 * The parameter table alone says which parameters exist, their shapes and their initial values; counting, initialising
 * and emitting all read it. Only model/ includes this header.
 */
#pragma once

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
    WHEN_TYPES,         /* the model distinguishes segments */
    WHEN_GATED,         /* the feed-forward has a gate */
    WHEN_PLAIN,         /* the feed-forward has no gate */
    WHEN_MIXTURE,       /* in layers with experts */
    WHEN_DENSE,         /* in layers without experts, if other layers have them */
    WHEN_SAYS_TOKENS,   /* TASK_TOKENS; this and the following belong to a task's head */
    WHEN_UNTIED_TOKENS, /* both conditions */
    WHEN_SAYS_LABELS,   /* TASK_LABELS */
    WHEN_LABELS_ROWS,   /* TASK_ROW_LABELS */
    WHEN_ANY_LABELS,    /* either */
};

/* Initial values. RULE_RESIDUAL is for the matrix that ends a residual branch; its deviation may be divided
 * by sqrt(2 L). The last three are T5's, where initializer_range is a factor. BY_WIDTH divides it by the root
 * of a row's length, BY_HIDDEN by sqrt(C), QUERIES_BY_WIDTH by the root of a row's length times D. */
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
    /* Hugging Face name; %d: one per layer, {q,k,v}: three tensors in one, {}: one per expert (weights_part).
     * NULL: the architecture has no such parameter. */
    const char *label;
    enum param_dim dim[3];
    enum param_rule rule;
    enum param_when when;
    /* Alternative name in files, or NULL. With joint_parts > 0 that tensor holds all experts, [E, joint_parts
     * * M, K], and this parameter is part joint_part of each expert's block. With 0 it is the same tensor
     * under another name. */
    const char *joint;
    int joint_part, joint_parts;
};

/* For struct architecture's keys: a field that config.json has under the table's name. */
#define HAS(id) [FIELD_##id] = ""

/* A switch of config.json of which only one value is supported. */
struct hf_demand {
    const char *key, *only; /* "false", "absolute", "null" */
};
#define MODEL_DEMANDS 4

/* Keys that say which layers have a sliding window: none; sliding_window, for all layers; the same with
 * use_sliding_window and max_window_layers; sliding_window, for all but every n-th layer; use_sliding_window,
 * for layers without rotation. All but the first two also have layer_types. */
enum window_keys { WINDOW_NEVER, WINDOW_ALL_LAYERS, WINDOW_LATE_LAYERS, WINDOW_PATTERN, WINDOW_NO_ROPE };

struct builder;

struct architecture {
    const char *name;                /* "llama" */
    const char *hf_type;             /* config.json model_type; NULL: the name */
    const char *hf_class;            /* config.json architectures[0] */
    const char *const *task_classes; /* hf_class of each task; NULL: hf_class, and TASK_TOKENS only */
    const char *activation;
    const char *prefix; /* omitted from names in some checkpoints: "model." */
    const char *gguf;   /* architecture name in GGUF files; NULL: there are none */
    /* Key of each field in config.json: HAS(id) for the table's name, or a name. NULL: config.json has no
     * such field. */
    const char *keys[MODEL_FIELDS];
    const struct param_row *params;
    int nparams;
    bool rope;
    bool encoder;             /* rows are read as a whole */
    bool source;              /* encoder-decoder: reads a whole source before it writes a target */
    bool positions_after_pad; /* see model_first_position */
    int inner_multiple;       /* default feed-forward size in hidden sizes; 0: it must be given */
    bool norm_plus_one;       /* a norm's weight is 1 + w */
    bool scaled_embed;        /* embeddings are multiplied by sqrt(hidden size) */
    bool heads_divide; /* transformers requires that heads divide hidden_size, even if head_dim is given */
    /* Gemma in GGUF: with this many layers, scores are divided by sqrt(hidden size / heads) */
    int gguf_scaled_layers;
    enum activation act;
    enum activation row_act; /* between the two projections of TASK_ROW_LABELS */
    enum window_keys window;
    struct hf_demand demands[MODEL_DEMANDS];
    void (*defaults)(struct model_spec *spec); /* the values transformers uses for missing keys */
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

/* Spec of an empty config.json: the defaults of transformers. */
void model_file_defaults(struct model_spec *spec, const struct architecture *arch);

/* Number of tensors a row describes: one, or one per layer that has it. */
int param_copies(const struct model_spec *spec, const struct param_row *row);
bool param_present(const struct model_spec *spec, const struct param_row *row);
/* Whether a layer has a parameter that the model has. */
bool param_in_layer(const struct model_spec *spec, const struct param_row *row, int layer);
/* Layers with experts among the first `layers`. */
int model_mixtures(const struct model_spec *spec, int layers);
int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim);
