/* model.h - what is computed: a model's numbers, and the forward tape they stand for.
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
 * A decoder writes text; an encoder reads rows whole and fills in masked tokens, labels tokens or rows, or makes one vector
 * of a row (enum model_task, heads). An encoder-decoder reads a source whole and writes a target: two stacks of layers. Layers
 * of both are numbered through, the encoder's first, so that whatever counts layers (recomputation, offloading) has one line of
 * them in the order in which they run.
 *
 * Dimensions in comments: B batch, T time, S cache length or source time, C hidden, H heads, K kv heads, D head size,
 * F feed-forward, V vocabulary, P positions, E experts.
 */
#ifndef PLIM_MODEL_MODEL_H
#define PLIM_MODEL_MODEL_H

#include "base/status.h"
#include "base/strbuf.h"
#include "tape/tape.h"
#include <stdbool.h>
#include <stdint.h>

enum rope_kind { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_KIND_COUNT };
const char *rope_kind_name(enum rope_kind kind); /* "default", "linear", "llama3", "yarn", "longrope" */

#define MODEL_MAX_LAYERS  4096
#define MODEL_MAX_EXPERTS 4096
#define MODEL_MAX_HEAD    256 /* numbers of a head: the most attention kernels take */
#define MODEL_ROPE_SETS   2   /* of rotary frequencies that one model may have */

/* Numbers by which frequencies are divided, one each. */
struct rope_factors {
    int count;
    double value[MODEL_MAX_HEAD / 2];
};

/* How rotary frequencies are stretched beyond the length a model was first trained on. */
struct rope_scaling {
    enum rope_kind kind;
    double factor; /* linear, llama3, yarn; longrope: 0 stands for max_positions / original_max_positions */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn, longrope */
    double attention_factor; /* yarn, longrope: of cosines and sines; 0: by the kind's own rule */
    double beta_fast,
        beta_slow; /* yarn: rotations over the original length between which frequencies are blended */
    double mscale, mscale_all_dim;                 /* yarn: both above 0 change its own attention_factor */
    bool truncate;                                 /* yarn: the blend begins and ends at whole numbers */
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
    TASK_TOKENS,     /* says tokens: the next one, or those behind masks */
    TASK_LABELS,     /* one of num_labels for each token */
    TASK_EMBEDDING,  /* a vector for a row: nothing of its own */
    TASK_ROW_LABELS, /* a score of each of num_labels for a row; used, not trained */
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
    double rope_local_theta; /* of layers with a window, without scaling; 0: as everywhere */
    double partial_rotary;   /* share of a head that is rotated, from its front; 0: all of it */
    struct rope_scaling rope;
    int64_t sliding_window;          /* keys a query sees, itself included; 0: all */
    struct layer_set sliding_layers; /* those with the window */
    struct layer_set no_rope_layers; /* those that rotate nothing */
    /* Rules for the two sets, for model_complete: of every so many layers the last one has no window (LAYERS_NONE: no layer
     * is without), or does not rotate; 0: the set stands. */
    int full_every, no_rope_every;
    /* Attention over blocks of keys (op.h, mask blocks): positions of a block, nearest and first blocks that a query sees;
     * sparse_block 0: over all keys. */
    int sparse_block, local_blocks, global_blocks;
    int64_t query_scalar; /* scores are divided by its root; 0: head_dim */
    double score_scale;   /* Granite: scores are multiplied with it instead; 0: none */
    double embed_scale,
        residual_scale;    /* Granite: factors of embeddings and of what a branch adds; 0: none */
    double logits_divisor; /* Granite: logits are divided by it; 0: none */
    bool scale_by_layer;   /* GPT-2: scores of layer i are divided by i + 1, too */
    double attn_cap;       /* soft-cap of scores, 0: none */
    double final_cap;      /* soft-cap of logits, 0: none */
    int num_experts, experts_per_token; /* of each layer's feed-forward part; 0: there is one and no router */
    int64_t shared_size;                /* width of the expert that every token has beside its own; 0: none */
    struct layer_set dense_layers;      /* those without experts, of dense_size */
    int64_t dense_size;
    bool norm_topk;              /* weights of a token's experts add up to 1 */
    double balance_coef, z_coef; /* of the router's losses */
    bool router_losses;          /* config.json's output_router_logits: the first of them counts */
    bool tie_embeddings;         /* the output projection is the embedding */
    bool unscaled_head;          /* T5: numbers are not divided before a tied projection */
    bool qkv_bias, o_bias, mlp_bias;
    double initializer_range;
    /* As in config.json, see model_dropout; only training tapes apply dropout. */
    double dropout[MODEL_DROPOUTS];
    int64_t bos_token_id, pad_token_id;   /* -1: none */
    int64_t eos_token_ids[MODEL_MAX_EOS]; /* the first eos_count are set */
    int eos_count;
    enum model_task task;
    int64_t token_types; /* segments that encoders tell apart; 0: none */
    int64_t num_labels;  /* TASK_LABELS, TASK_ROW_LABELS */
    enum label_problem problem;
    const char *const *labels; /* their names, borrowed (labels.h); NULL: they have none */
    enum pooling pooling;      /* of a row's vector; not part of config.json (sentence.h) */
    bool normalize;            /* to length 1 */
    double pair_scale;         /* of cosines in HEAD_PAIRS */
    /* Encoder-decoder alone: num_layers are the encoder's. */
    int decoder_layers;
    int bias_buckets, bias_reach; /* of relative positions (tape/bias_bucket.h) */
    bool gated;                   /* feed-forward gelu(gate) * up, else relu */
    int64_t start_token_id;       /* what a target begins behind */
};

enum model_head {
    HEAD_LOSS,         /* targets in, loss out: training and evaluation */
    HEAD_LOGITS,       /* "logits" [B,T,V] */
    HEAD_LAST_LOGITS,  /* "logits" of the last token only, [B,V]; wants batch 1 or time 1 */
    HEAD_LABELS,       /* targets are label numbers: training and evaluation of TASK_LABELS */
    HEAD_LABEL_LOGITS, /* "logits" [B,T,labels] */
    HEAD_ROW_LOGITS,   /* "logits" [B,labels] of TASK_ROW_LABELS */
    HEAD_EMBEDDING,    /* "embedding" f32 [B,C], pooled and normalised as the spec says */
    HEAD_PAIRS, /* loss over pairs: rows 0..B/2-1 are anchors, the others their positives in the same order */
    HEAD_SOURCE, /* encoder-decoder with a cache: the source alone, into "cross.k" and "cross.v" [B,S,H,D] of each layer */
};

/* A step of a server: one row of tokens of many requests, whose keys and values lie in blocks of a pool. */
struct model_flat {
    int64_t tokens; /* N; 0: the shape is not flat. batch is 1 and time N then */
    int64_t rows;   /* R: requests of a step, and tokens whose logits are wanted */
    int64_t blocks; /* P, of the pool */
    int64_t reach;  /* M: blocks of one request, at most */
    /* Maximum positions of one request; decides the frequencies where they depend on a row's length. */
    int64_t length;
    bool samples; /* the tape ends with tokens, not with logits */
    /* L: maximum tokens of all requests together that penalties read, if the shape samples; 0: none. */
    int64_t seen;
    int64_t top; /* K: likeliest tokens that are told of a row, at most, where it samples */
    bool coded;  /* keys and values in 8 bits (tensor/kv8.h) */
};

struct model_shape {
    int64_t batch, time;
    int64_t kv_length; /* 0: no cache; otherwise S, the positions the cache holds per row */
    enum model_head head;
    bool whole_rows; /* no row holds several samples */
    bool standard;   /* attention over all scores at once, for debugging */
    struct model_flat flat;
    bool training;       /* numbers are dropped as the spec's dropouts say */
    int64_t longest;     /* positions of the data's longest rows, where these are shorter; 0: they are not */
    int64_t source_time; /* S of an encoder-decoder, else 0 */
    /* HEAD_SOURCE: positions of the cache that it writes, which may hold rows of others; 0: S. */
    int64_t source_cache;
};

/* The architecture called `name` ("llama"), or whose model_type it is; NULL when there is none. */
const struct architecture *model_architecture(const char *name);
/* The i-th architecture, NULL after the last. */
const struct architecture *model_architecture_at(int i);
const char *model_architecture_name(const struct architecture *arch);

/* Everything a spec of that architecture has when a job says nothing; sizes are 0, and so is what follows from them. */
void model_defaults(struct model_spec *spec, const struct architecture *arch);

/* Derive what was left 0 and can be (head_dim, kv heads, GPT-2's feed-forward size), then validate. */
enum plim_status model_complete(struct model_spec *spec, struct plim_error *err);

/* PLIM_BAD_INPUT: a valid model that transformers would refuse to load. For models from scratch, before they are trained. */
enum plim_status model_check_export(const struct model_spec *spec, struct plim_error *err);

/* PLIM_OK, or one line that names the keys which disagree and a number that would work. */
enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err);

/* The name of the first field in which two complete specs differ; NULL: they are the same model. */
const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b);

/* The i-th field of a spec beside its architecture: its name, and its value as text appended to `value`. "": this model has
 * no such field; NULL after the last. */
const char *model_spec_field(const struct model_spec *spec, int i, struct strbuf *value);

/* Append the forward ops of one micro-batch, all in f32, to an empty tape. Validates spec and shape first.
 *
 * The host fills: "ids", "pos" i32[B,T]; of an encoder, and of experts for HEAD_LOSS, "lengths" i32[B], the tokens of each
 * row; of an encoder that tells segments apart "types" i32[B,T]; for HEAD_LOSS and HEAD_LABELS "targets" i32[B,T], for HEAD_PAIRS "targets" i32[B/2], in which
 * pair i has i or -1, and with all three "step.scalars"; of an encoder-decoder "source.ids" i32[B,S] and "source.lengths"
 * i32[B], and for HEAD_SOURCE "source.pos" i32[B,S] in place of ids and pos; once "rope.inv_freq" (model_rope_frequencies, one set after the
 * other). It reads "loss" f64[2] (sum of token losses, number of tokens) or
 * "logits"; of experts also "router.loss" f64[3] (balance, z, number of micro-batches) and "router.load" f32[L,E], the rows
 * of the experts of each layer that has some. Parameters are CLASS_PARAM, labelled with their Hugging Face name; caches are CLASS_KV "kv.k" and
 * "kv.v" [B,S,K,D] per layer. Ops inside layer i have op.layer == i, those of a decoder behind an encoder of L layers L + i, all
 * others -1.
 *
 * A flat shape (HEAD_LAST_LOGITS) has one input instead, "flat", in which "ids", "pos", "slots" i32[N], "rows" i32[R,3],
 * "blocks" i32[R,M] and "last" i32[R] (the tokens whose "logits" [R,V] are wanted) lie one after the other, and one kept
 * CLASS_KV "kv.pool" for all layers; op.h, kv_put and attn_paged, says what is in them. One that samples has "sampling"
 * i32[R,SAMPLE_WORDS] and, with L, "seen" i32[L,2] as the last of its inputs, and beside the logits reads "drawn", in which "tokens" i32[R], "top"
 * i32[R,K] and "logprob" f32[R,K+1] lie one after the other; the pass leaves the tokens in "next" i32[R], too, which are the first ids, so R
 * is N at most. */
enum plim_status model_emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape,
                            struct plim_error *err);

/* Trainable numbers; a tied output projection counts once. The spec must be valid. */
int64_t model_param_count(const struct model_spec *spec);

/* True when the architecture rotates queries and keys (and its tapes have "rope.inv_freq"). */
bool model_uses_rope(const struct model_spec *spec);
/* Numbers of a head that are rotated: head_dim, or the front part of it. */
int model_rotary_size(const struct model_spec *spec);
/* Rows of "rope.inv_freq": 2 where windows have frequencies of their own (Gemma 3: global, local) or where the length of a
 * row decides (longrope: short, long), else 1. */
int model_rope_sets(const struct model_spec *spec);
/* out[model_rotary_size / 2]: what transformers computes for this spec. */
void model_rope_frequencies(const struct model_spec *spec, int set, float *out);
/* Factor of the cosines and sines of that set. */
double model_rope_attention_factor(const struct model_spec *spec, int set);

/* The largest dropout of the spec, and in *key what config.json calls it; 0: there is none. */
double model_dropout(const struct model_spec *spec, const char **key);
/* Every dropout of the spec from now on. */
void model_set_dropout(struct model_spec *spec, double value);

enum param_init_kind { INIT_NORMAL, INIT_ONES, INIT_ZEROS };
struct param_init {
    enum param_init_kind kind;
    float std;      /* INIT_NORMAL: mean 0 */
    int64_t narrow; /* so many numbers from the first on have another one */
    float narrow_std;
};
/* How the parameter with that label (the tensor's, with its %d) starts when a model is trained from nothing.
 */
struct param_init model_param_init(const struct model_spec *spec, const char *label);

/* True for the parameters behind an encoder's last layer, which another task has others of. */
bool model_param_is_head(const struct model_spec *spec, const char *label);

/* The row of the position table that position 0 names: RoBERTa's begin behind its padding's. */
int64_t model_first_position(const struct model_spec *spec);

/* True for an encoder-decoder. */
bool model_has_source(const struct model_spec *spec);
/* Layers of all stacks. */
int model_layers(const struct model_spec *spec);

/* True when rows are read whole and padded by "lengths". */
bool model_is_encoder(const struct model_spec *spec);
/* True when it has labels, of tokens or of rows. */
bool model_has_labels(const struct model_spec *spec);

/* The window of layer i: 0 when it sees everything. */
int64_t model_layer_window(const struct model_spec *spec, int layer);
/* Which set of frequencies layer i rotates with in rows of `length` positions; -1: none. */
int model_layer_rope(const struct model_spec *spec, int layer, int64_t length);

#endif
