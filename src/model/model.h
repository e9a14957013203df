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
 * Dimensions in comments: B batch, T time, S cache length, C hidden, H heads, K kv heads, D head size,
 * F feed-forward, V vocabulary, P positions.
 */
#ifndef PLIM_MODEL_MODEL_H
#define PLIM_MODEL_MODEL_H

#include "base/status.h"
#include "base/strbuf.h"
#include "tape/tape.h"
#include <stdbool.h>
#include <stdint.h>

enum rope_kind { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_KIND_COUNT };
const char *rope_kind_name(enum rope_kind kind); /* "default", "linear", "llama3" */

/* How rotary frequencies are stretched beyond the length a model was first trained on. */
struct rope_scaling {
    enum rope_kind kind;
    double factor;                            /* linear, llama3 */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3 */
};

#define MODEL_MAX_EOS  8
#define MODEL_DROPOUTS 3

struct architecture;

struct model_spec {
    const struct architecture *arch;
    int64_t vocab_size, hidden_size, intermediate_size; /* V C F */
    int num_layers, num_heads, num_kv_heads, head_dim;  /* L H K D; H*D may differ from C */
    int64_t max_positions;
    double norm_eps;
    double rope_theta;
    struct rope_scaling rope;
    int64_t sliding_window; /* keys a query sees, itself included; 0: all */
    int window_first_layer; /* layers before this one see everything even with a window */
    bool tie_embeddings;    /* the output projection is the embedding */
    bool qkv_bias, o_bias, mlp_bias;
    double initializer_range;
    double dropout
        [MODEL_DROPOUTS]; /* as config.json has them, see model_dropout; only tapes that train drop numbers */
    int64_t bos_token_id, pad_token_id;   /* -1: none */
    int64_t eos_token_ids[MODEL_MAX_EOS]; /* the first eos_count are set */
    int eos_count;
};

enum model_head {
    HEAD_LOSS,        /* targets in, loss out: training and evaluation */
    HEAD_LOGITS,      /* "logits" [B,T,V] */
    HEAD_LAST_LOGITS, /* "logits" of the last token only, [B,V]; wants batch 1 or time 1 */
};

/* A step of a server: one row of tokens of many requests, whose keys and values lie in blocks of a pool. */
struct model_flat {
    int64_t tokens; /* N; 0: the shape is not flat. batch is 1 and time N then */
    int64_t rows;   /* R: requests of a step, and tokens whose logits are wanted */
    int64_t blocks; /* P, of the pool */
    int64_t reach;  /* M: blocks of one request, at most */
};

struct model_shape {
    int64_t batch, time;
    int64_t kv_length; /* 0: no cache; otherwise S, the positions the cache holds per row */
    enum model_head head;
    bool whole_rows; /* no row holds several samples */
    bool standard;   /* attention over all scores at once, for debugging */
    struct model_flat flat;
    bool training; /* numbers are dropped as the spec's dropouts say */
};

/* The architecture called `name` ("llama"), or whose model_type it is; NULL when there is none. */
const struct architecture *model_architecture(const char *name);
/* The i-th architecture, NULL after the last. */
const struct architecture *model_architecture_at(int i);
const char *model_architecture_name(const struct architecture *arch);

/* Everything a spec of that architecture has when nothing is said; sizes are 0. */
void model_defaults(struct model_spec *spec, const struct architecture *arch);

/* Derive what was left 0 and can be (head_dim, kv heads, GPT-2's feed-forward size), then validate. */
enum plim_status model_complete(struct model_spec *spec, struct plim_error *err);

/* PLIM_OK, or one line that names the keys which disagree and a number that would work. */
enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err);

/* The name of the first field in which two complete specs differ; NULL: they are the same model. */
const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b);

/* The i-th field of a spec beside its architecture: its name, and its value as text appended to `value`. NULL
 * after the last. */
const char *model_spec_field(const struct model_spec *spec, int i, struct strbuf *value);

/* Append the forward ops of one micro-batch, all in f32, to an empty tape. Validates spec and shape first.
 *
 * The host fills: "ids", "pos" i32[B,T]; for HEAD_LOSS "targets" i32[B,T] and "step.scalars"; once
 * "rope.inv_freq" (model_rope_frequencies). It reads "loss" f64[2] (sum of token losses, number of tokens) or
 * "logits". Parameters are CLASS_PARAM, labelled with their Hugging Face name; caches are CLASS_KV "kv.k" and
 * "kv.v" [B,S,K,D] per layer. Ops inside layer i have op.layer == i, all others -1.
 *
 * A flat shape (HEAD_LAST_LOGITS) has one input instead, "flat", in which "ids", "pos", "slots" i32[N], "rows" i32[R,3],
 * "blocks" i32[R,M] and "last" i32[R] (the tokens whose "logits" [R,V] are wanted) lie one after the other, and one kept
 * CLASS_KV "kv.pool" for all layers; op.h, kv_put and attn_paged, says what is in them. */
enum plim_status model_emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape,
                            struct plim_error *err);

/* Trainable numbers; a tied output projection counts once. The spec must be valid. */
int64_t model_param_count(const struct model_spec *spec);

/* True when the architecture rotates queries and keys (and its tapes have "rope.inv_freq"). */
bool model_uses_rope(const struct model_spec *spec);
/* out[head_dim / 2]: what transformers computes for this spec. */
void model_rope_frequencies(const struct model_spec *spec, float *out);

/* The largest dropout of the spec, and in *key what config.json calls it; 0: there is none. */
double model_dropout(const struct model_spec *spec, const char **key);
/* Every dropout of the spec from now on. */
void model_set_dropout(struct model_spec *spec, double value);

enum param_init_kind { INIT_NORMAL, INIT_ONES, INIT_ZEROS };
struct param_init {
    enum param_init_kind kind;
    float std; /* INIT_NORMAL: mean 0 */
};
/* How the parameter with that label (the tensor's, with its %d) starts when a model is trained from nothing.
 */
struct param_init model_param_init(const struct model_spec *spec, const char *label);

/* The window of layer i: 0 when it sees everything. */
int64_t model_layer_window(const struct model_spec *spec, int layer);

#endif
