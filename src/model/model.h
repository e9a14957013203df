/* model.h - a model's numbers, and the forward tape that computes it.
 *
 * A spec is a plain value, usually read from a Hugging Face config.json (hf.h). An architecture is one row of
 * functions and tables; model.c lists them. Nothing here knows devices, budgets or training.
 *
 *     struct model_spec spec;
 *     if (hf_config_load("dir/config.json", &spec, &err) != PLIM_OK) ...
 *     struct tape tape;
 *     tape_init(&tape);
 *     struct model_shape shape = {.batch = 8, .time = 1024, .head = HEAD_LOSS};
 *     if (model_emit(&spec, &shape, &tape, &err) != PLIM_OK) ...
 *     tape_release(&tape);
 *
 * A decoder writes text. An encoder reads whole rows; it fills in masked tokens, labels tokens or rows, or turns a row into
 * one vector (enum model_task, heads). An encoder-decoder reads a whole source and writes a target with two stacks of
 * layers. Their layers have consecutive numbers, the encoder's first, so that passes that count layers (recompute,
 * offload) see one sequence in the order of execution.
 *
 * Dimensions in comments: B batch, T time, S cache length or source time, C hidden, H heads, K kv heads, D head size,
 * F feed-forward, V vocabulary, P positions, E experts.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include "tape/tape.h"
#include <stdbool.h>
#include <stdint.h>

enum rope_kind { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_KIND_COUNT };
const char *rope_kind_name(enum rope_kind kind); /* "default", "linear", "llama3", "yarn", "longrope" */

#define MODEL_MAX_LAYERS  4096
#define MODEL_MAX_EXPERTS 4096
#define MODEL_MAX_HEAD    256 /* limit of the attention kernels */
#define MODEL_ROPE_SETS   2   /* sets of rotary frequencies per model */

/* Divisors of the frequencies, one each. */
struct rope_factors {
    int count;
    double value[MODEL_MAX_HEAD / 2];
};

/* Rotary scaling beyond the length a model was first trained on. */
struct rope_scaling {
    enum rope_kind kind;
    double factor; /* linear, llama3, yarn; longrope: 0 means max_positions / original_max_positions */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn, longrope */
    double attention_factor; /* yarn, longrope: factor of cosines and sines; 0: the kind's own rule */
    /* yarn: frequencies are blended between these numbers of rotations over the original length */
    double beta_fast, beta_slow;
    double mscale, mscale_all_dim; /* yarn: if both are above 0 they change attention_factor */
    bool truncate;                 /* yarn: the blend begins and ends at whole numbers */
    struct rope_factors short_factor, long_factor; /* longrope: up to the original length, beyond it */
};

/* Some layers of a model. */
struct layer_set {
    uint64_t word[MODEL_MAX_LAYERS / 64];
};
static inline bool layer_set_has(const struct layer_set *set, int layer)
{
    return set->word[layer / 64] >> layer % 64 & 1;
}
static inline void layer_set_add(struct layer_set *set, int layer)
{
    set->word[layer / 64] |= UINT64_C(1) << layer % 64;
}

#define LAYERS_NONE INT32_MAX

#define MODEL_MAX_EOS  8
#define MODEL_DROPOUTS 3

struct architecture;

/* Every architecture. Messages list them in this order. */
/* clang-format off */
#define MODEL_ARCHITECTURES(X)                                                                               \
    X(llama) X(mistral) X(qwen2) X(qwen3) X(gemma2) X(gemma3) X(phi3) X(olmo2) X(smollm3) X(granite) X(gpt2) \
    X(mixtral) X(qwen2_moe) X(qwen3_moe) X(olmoe) X(bert) X(roberta) X(distilbert) X(t5)
/* clang-format on */

/* Task of a model; decides the parameters after its last layer. */
enum model_task {
    TASK_TOKENS,     /* predicts tokens: the next one, or masked ones */
    TASK_LABELS,     /* one of num_labels for each token */
    TASK_EMBEDDING,  /* one vector per row; has no head */
    TASK_ROW_LABELS, /* a score for each of num_labels per row; cannot be trained */
    MODEL_TASKS
};

/* Meaning of a row's label scores: config.json's problem_type. */
enum label_problem {
    PROBLEM_UNSAID,
    PROBLEM_REGRESSION,
    PROBLEM_SINGLE_LABEL,
    PROBLEM_MULTI_LABEL,
    PROBLEMS
};
const char *label_problem_name(enum label_problem problem); /* "regression"; NULL: unsaid */

struct model_spec {
    const struct architecture *arch;
    int64_t vocab_size, hidden_size, intermediate_size; /* V C F */
    int num_layers, num_heads, num_kv_heads, head_dim;  /* L H K D; H*D may differ from C */
    int64_t max_positions;
    double norm_eps;
    double rope_theta;
    double rope_local_theta; /* of layers with a window, without scaling; 0: rope_theta */
    double partial_rotary;   /* share of a head that is rotated, from its front; 0: all */
    struct rope_scaling rope;
    int64_t sliding_window;          /* keys a query sees, itself included; 0: all */
    struct layer_set sliding_layers; /* those with the window */
    struct layer_set no_rope_layers; /* those without rotation */
    /* Rules that model_complete turns into the two sets: of every n layers, the last has no window
     * (LAYERS_NONE: all layers have one) or no rotation. 0: the set is already complete. */
    int full_every, no_rope_every;
    /* Block-sparse attention (op.h, mask blocks): block size, and numbers of nearest and first blocks that a
     * query sees. sparse_block 0: attention sees all keys. */
    int sparse_block, local_blocks, global_blocks;
    int64_t query_scalar; /* scores are divided by its square root; 0: head_dim */
    double score_scale;   /* Granite: factor of scores instead; 0: none */
    /* Granite: factors of embeddings and of each branch; 0: none */
    double embed_scale, residual_scale;
    double logits_divisor;              /* Granite: logits are divided by it; 0: none */
    bool scale_by_layer;                /* GPT-2: scores of layer i are also divided by i + 1 */
    double attn_cap;                    /* soft-cap of scores; 0: none */
    double final_cap;                   /* soft-cap of logits; 0: none */
    int num_experts, experts_per_token; /* per layer; 0: no router, one feed-forward part */
    int64_t shared_size;                /* width of the expert that sees every token; 0: none */
    struct layer_set dense_layers;      /* those without experts; their feed-forward size is dense_size */
    int64_t dense_size;
    bool norm_topk;              /* the weights of a token's experts sum to 1 */
    double balance_coef, z_coef; /* coefficients of the router's losses */
    bool router_losses;          /* config.json's output_router_logits: the balance loss counts */
    bool tie_embeddings;         /* the output projection is the embedding */
    bool unscaled_head;          /* T5: the input of a tied projection is not divided */
    bool qkv_bias, o_bias, mlp_bias;
    double initializer_range;
    /* As in config.json, see model_dropout; only training tapes apply dropout. */
    double dropout[MODEL_DROPOUTS];
    int64_t bos_token_id, pad_token_id;   /* -1: none */
    int64_t eos_token_ids[MODEL_MAX_EOS]; /* the first eos_count are set */
    int eos_count;
    enum model_task task;
    int64_t token_types; /* number of segments an encoder distinguishes; 0: none */
    int64_t num_labels;  /* TASK_LABELS, TASK_ROW_LABELS */
    enum label_problem problem;
    const char *const *labels; /* names of the labels, borrowed (labels.h); NULL: none */
    enum pooling pooling;      /* how a row becomes a vector; not in config.json (sentence.h) */
    bool normalize;            /* to length 1 */
    double pair_scale;         /* factor of cosines in HEAD_PAIRS */
    /* Encoder-decoders only; num_layers counts the encoder's layers. */
    int decoder_layers;
    int bias_buckets, bias_reach; /* of relative positions (tape/bias_bucket.h) */
    bool gated;                   /* feed-forward gelu(gate) * up, else relu */
    int64_t start_token_id;       /* first token of every target */
};

enum model_head {
    HEAD_LOSS,         /* targets in, loss out: training and evaluation */
    HEAD_LOGITS,       /* "logits" [B,T,V] */
    HEAD_LAST_LOGITS,  /* "logits" of the last token only, [B,V]; wants batch 1 or time 1 */
    HEAD_PREFERENCE,   /* loss over preferences (tape/preference.h); rows i and B/2 + i are a sample's */
    HEAD_LABELS,       /* targets are label numbers: training and evaluation of TASK_LABELS */
    HEAD_LABEL_LOGITS, /* "logits" [B,T,labels] */
    HEAD_ROW_LOGITS,   /* "logits" [B,labels] of TASK_ROW_LABELS */
    HEAD_EMBEDDING,    /* "embedding" f32 [B,C], pooled and normalised as the spec says */
    HEAD_PAIRS, /* loss over pairs: rows 0..B/2-1 are anchors, the rest their positives in the same order */
    /* Encoder-decoder with a cache: only the source, into "cross.k" and "cross.v" [B,S,H,D] of each layer. */
    HEAD_SOURCE,
};

/* One step of a server: a single row of tokens from many requests, with keys and values in blocks of a
 * pool. */
struct model_flat {
    int64_t tokens; /* N; 0: the shape is not flat. Otherwise batch is 1 and time N */
    int64_t rows;   /* R: maximum requests per step, and tokens with logits */
    int64_t blocks; /* P: blocks of the pool */
    int64_t reach;  /* M: maximum blocks per request */
    /* Maximum positions per request; selects the frequencies if they depend on a row's length. */
    int64_t length;
    bool samples; /* the tape ends with tokens, not with logits */
    /* L: maximum tokens of all requests together that penalties read; 0: none. Used if the shape samples. */
    int64_t seen;
    int64_t top;  /* K: maximum likeliest tokens reported per row, if the shape samples */
    bool coded;   /* keys and values in 8 bits (tensor/kv8.h) */
    bool e4m3;    /* which are e4m3 numbers */
    bool adapted; /* each token has the slot of its adapter (adapter_slots.h) */
};

struct model_shape {
    int64_t batch, time;
    int64_t kv_length; /* S: positions of the cache per row; 0: no cache */
    enum model_head head;
    struct preference_rule preference; /* HEAD_PREFERENCE */
    bool whole_rows;                   /* a row never holds several samples */
    bool standard;                     /* attention over all scores at once, for debugging */
    struct model_flat flat;
    bool training;       /* apply the spec's dropouts */
    int64_t longest;     /* positions of the data's longest rows if these are shorter; 0: they are not */
    int64_t source_time; /* S of an encoder-decoder, else 0 */
    /* HEAD_SOURCE: positions of the cache it writes, which may hold other rows too; 0: S. */
    int64_t source_cache;
};

/* The architecture with that name ("llama") or model_type; NULL: none. */
const struct architecture *model_architecture(const char *name);
/* The i-th architecture, NULL after the last. */
const struct architecture *model_architecture_at(int i);
const char *model_architecture_name(const struct architecture *arch);

/* A job's defaults for that architecture. Sizes, and values that follow from them, are 0. */
void model_defaults(struct model_spec *spec, const struct architecture *arch);

/* Derives values that are 0 (head_dim, kv heads, GPT-2's feed-forward size), then validates. */
enum plim_status model_complete(struct model_spec *spec, struct plim_error *err);

/* PLIM_BAD_INPUT: the model is valid, but transformers would refuse to load it. Check new models before
 * training. */
enum plim_status model_check_export(const struct model_spec *spec, struct plim_error *err);

/* PLIM_OK, or one line that names the conflicting keys and a value that would work. */
enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err);

/* The name of the first field in which two complete specs differ; NULL: the specs are equal. */
const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b);

/* Name of the i-th field of a spec after its architecture; appends its value to `value`. "": this model has
 * no such field; NULL after the last. */
const char *model_spec_field(const struct model_spec *spec, int i, struct strbuf *value);

/* Appends the forward ops of one micro-batch, all in f32, to an empty tape. Validates spec and shape first.
 *
 * The host fills these inputs:
 *     ids, pos          i32[B,T]  always, except for HEAD_SOURCE
 *     lengths           i32[B]    encoders, and experts with HEAD_LOSS or HEAD_PREFERENCE: tokens per row
 *     types             i32[B,T]  encoders with segments
 *     targets           i32[B,T]  HEAD_LOSS, HEAD_PREFERENCE and HEAD_LABELS; HEAD_PAIRS: i32[B/2], where pair i has i or -1
 *     reference         f32[B]    HEAD_PREFERENCE, except for ORPO: log-probabilities under the reference model
 *     marks             i32[B]    HEAD_PREFERENCE, for KTO and ORPO (data/rows.h)
 *     step.scalars                with all four of these heads
 *     source.ids        i32[B,S]  encoder-decoders
 *     source.lengths    i32[B]    encoder-decoders
 *     source.pos        i32[B,S]  HEAD_SOURCE
 *     rope.inv_freq               once (model_rope_frequencies, one set after the other)
 * It reads "loss" f64[2] (sum of token losses, number of tokens) or "logits". HEAD_PREFERENCE: "loss" counts samples, and
 * there are "preference" f64[12] (enum preference_stat) and "sums" f32[B], the log-probabilities of rows. Experts add "router.loss" f64[3] (balance,
 * z, number of micro-batches) and "router.load" f32[L,E], the rows each expert received per layer.
 *
 * Parameters are CLASS_PARAM, labelled with their Hugging Face name. Caches are CLASS_KV "kv.k" and "kv.v" [B,S,K,D] per
 * layer. Ops inside layer i have op.layer == i (L + i in a decoder after an encoder of L layers), all others -1.
 *
 * A flat shape (HEAD_LAST_LOGITS) has a single input "flat", the concatenation of "ids", "pos", "slots" i32[N], "adapters"
 * i32[N] if the shape is adapted, "rows" i32[R,3], "blocks" i32[R,M] and "last" i32[R], the tokens whose "logits" [R,V] are wanted. One kept CLASS_KV "kv.pool"
 * serves all layers (op.h: kv_put, attn_paged). If the shape samples, the input ends with "sampling" i32[R,SAMPLE_WORDS]
 * and, with L, "seen" i32[L,2]. The host then also reads "drawn": "tokens" i32[R], "top" i32[R,K] and "logprob"
 * f32[R,K+1], concatenated. The pass copies the tokens to "next" i32[R], which become the first ids; so R is at most N. */
enum plim_status model_emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape,
                            struct plim_error *err);

/* Number of trainable values; a tied output projection counts once. The spec must be valid. */
int64_t model_param_count(const struct model_spec *spec);

/* True if the architecture rotates queries and keys (its tapes then have "rope.inv_freq"). */
bool model_uses_rope(const struct model_spec *spec);
/* Rotated numbers per head: head_dim, or the front part of it. */
int model_rotary_size(const struct model_spec *spec);
/* Rows of "rope.inv_freq". 2 if windows have their own frequencies (Gemma 3: global, local) or if they depend
 * on a row's length (longrope: short, long); else 1. */
int model_rope_sets(const struct model_spec *spec);
/* out[model_rotary_size / 2]: the frequencies transformers computes for this spec. */
void model_rope_frequencies(const struct model_spec *spec, int set, float *out);
/* Factor of that set's cosines and sines. */
double model_rope_attention_factor(const struct model_spec *spec, int set);

/* The largest dropout of the spec; *key is its name in config.json. 0: none. */
double model_dropout(const struct model_spec *spec, const char **key);
/* Sets every dropout of the spec. */
void model_set_dropout(struct model_spec *spec, double value);

enum param_init_kind { INIT_NORMAL, INIT_ONES, INIT_ZEROS, INIT_UNIFORM, INIT_ROW_NORMS };
struct param_init {
    enum param_init_kind kind;
    float std;      /* INIT_NORMAL: mean 0; INIT_UNIFORM: from -std to std */
    int64_t narrow; /* the first `narrow` numbers use narrow_std */
    float narrow_std;
};
/* Initial values of the parameter with that label (the tensor's, with its %d) when training starts from
 * scratch. */
struct param_init model_param_init(const struct model_spec *spec, const char *label);

/* True for parameters after an encoder's last layer; they belong to a task and differ between tasks. */
bool model_param_is_head(const struct model_spec *spec, const char *label);

/* Prefix of parameter names that some files leave out: "model.". */
const char *model_weight_prefix(const struct model_spec *spec);

/* The row of the position table used for position 0. RoBERTa's positions start after the padding row. */
int64_t model_first_position(const struct model_spec *spec);

/* True for an encoder-decoder. */
bool model_has_source(const struct model_spec *spec);
/* Layers of all stacks. */
int model_layers(const struct model_spec *spec);

/* True when rows are read whole and padded by "lengths". */
bool model_is_encoder(const struct model_spec *spec);
/* True if tokens or rows have labels. */
bool model_has_labels(const struct model_spec *spec);

/* The window of layer i; 0: it sees everything. */
int64_t model_layer_window(const struct model_spec *spec, int layer);
/* The set of frequencies that layer i uses in rows of `length` positions; -1: none. */
int model_layer_rope(const struct model_spec *spec, int layer, int64_t length);
