/* hf.c - config.json. See hf.h.
 *
 * Reading is a sequence of small steps over a reader with a sticky error: the first thing wrong is what the
 * user hears of, and steps after it do nothing. Where a key is missing the architecture's own default stands,
 * which is the default transformers has.
 */
#include "model/hf.h"
#include "base/json.h"
#include "base/nearest.h"
#include "store/safetensors.h"
#include "model/arch.h"
#include "model/gguf_model.h"
#include "store/gguf.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct reader {
    const struct node *root;
    const char *name;
    struct model_spec *spec;
    struct plim_error *err;
    enum plim_status status;
};

#define refuse(r, how, ...)                                                                                  \
    do {                                                                                                     \
        if ((r)->status == PLIM_OK) (r)->status = plim_fail((r)->err, (how), __VA_ARGS__);                   \
    } while (0)

/* The value of a key, NULL when it is missing or null. */
static const struct node *given(const struct node *map, const char *key)
{
    const struct node *node = key ? node_get(map, key) : NULL;
    return node && node->kind != NODE_NULL ? node : NULL;
}

static void wrong_kind(struct reader *r, const struct node *node, const char *key, const char *wanted)
{
    refuse(r, PLIM_BAD_INPUT, "%s:%d: key '%s': expected %s, found %s", r->name, node->line, key, wanted,
           node_kind_name(node->kind));
}

/* --- one key ----------------------------------------------------------------------------------------------
 */

static void read_int(struct reader *r, const struct node *map, const char *key, int64_t *out)
{
    const struct node *node = given(map, key);
    if (node && !node_is_whole(node, out)) wrong_kind(r, node, key, "a whole number");
}

static void read_double(struct reader *r, const struct node *map, const char *key, double *out)
{
    const struct node *node = given(map, key);
    if (!node) return;
    if (node->kind != NODE_INT && node->kind != NODE_FLOAT) wrong_kind(r, node, key, "a number");
    *out = node_float(node, *out);
}

static void read_bool(struct reader *r, const struct node *map, const char *key, bool *out)
{
    const struct node *node = given(map, key);
    if (!node) return;
    if (node->kind != NODE_BOOL) wrong_kind(r, node, key, "true or false");
    *out = node_bool(node, *out);
}

static const char *read_string(struct reader *r, const struct node *map, const char *key,
                               const char *fallback)
{
    const struct node *node = given(map, key);
    if (node && node->kind != NODE_STRING) wrong_kind(r, node, key, "a text");
    return node_string(node, fallback);
}

/* A size that fits int; what is too large is left for validation to name, not silently wrapped. */
static void read_count(struct reader *r, const char *key, bool required, int *out)
{
    int64_t wide = *out;
    if (required && !given(r->root, key))
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s' is missing; add it", r->name, key);
    read_int(r, r->root, key, &wide);
    if (wide < 0 || wide > INT32_MAX)
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s': %lld is out of range", r->name, key, (long long)wide);
    *out = (int)wide;
}

static void read_size(struct reader *r, const char *key, bool required, int64_t *out)
{
    if (required && !given(r->root, key))
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s' is missing; add it", r->name, key);
    read_int(r, r->root, key, out);
}

/* A switch transformers knows and we compute only in one position. */
static void demand_bool(struct reader *r, const struct hf_demand *d)
{
    bool value = d->only;
    read_bool(r, r->root, d->key, &value);
    if (value != d->only)
        refuse(r, PLIM_UNSUPPORTED, "%s: key '%s': %s is not supported; only %s is", r->name, d->key,
               value ? "true" : "false", d->only ? "true" : "false");
}

static void demand_text(struct reader *r, const struct hf_demand *d)
{
    const char *value = read_string(r, r->root, d->key, d->text);
    if (strcmp(value, d->text))
        refuse(r, PLIM_UNSUPPORTED, "%s: key '%s': '%s' is not supported; only '%s' is", r->name, d->key,
               value, d->text);
}

static void demand_null(struct reader *r, const struct hf_demand *d)
{
    if (given(r->root, d->key))
        refuse(r, PLIM_UNSUPPORTED, "%s: key '%s' is not supported; only null is", r->name, d->key);
}

static void read_demand(struct reader *r, const struct hf_demand *d)
{
    (d->null_only ? demand_null : d->text ? demand_text : demand_bool)(r, d);
}

/* A number of which null is none; `absent` when the key is missing. */
static void read_or_none(struct reader *r, const char *key, double absent, double *out)
{
    *out = node_get(r->root, key) ? 0 : absent;
    read_double(r, r->root, key, out);
}

/* --- which model ------------------------------------------------------------------------------------------
 */

/* The task that a class of transformers is for, MODEL_TASKS: none of this architecture's. */
static enum model_task task_of(const struct architecture *arch, const char *class_name)
{
    if (!strcmp(arch->hf_class, class_name)) return TASK_TOKENS;
    for (int task = 0; arch->task_classes && task < MODEL_TASKS; task++)
        if (!strcmp(arch->task_classes[task], class_name)) return (enum model_task)task;
    return MODEL_TASKS;
}

static const struct architecture *by_class(const char *class_name)
{
    for (int i = 0; class_name && model_architecture_at(i); i++)
        if (task_of(model_architecture_at(i), class_name) < MODEL_TASKS) return model_architecture_at(i);
    return NULL;
}

/* By model_type alone: "gemma3" is what we call the text model, and another model's type. */
static const struct architecture *by_type(const char *type)
{
    for (int i = 0; type && model_architecture_at(i); i++)
        if (!strcmp(model_architecture_at(i)->hf_type, type)) return model_architecture_at(i);
    return NULL;
}

static void refuse_architecture(struct reader *r, const char *type, const char *class_name)
{
    const char *word = type ? type : class_name;
    char known[512] = "", guess[96] = "";
    size_t used = 0;
    struct nearest near = nearest_begin(word ? word : "");
    for (int i = 0; model_architecture_at(i) && used < sizeof known; i++) {
        const struct architecture *arch = model_architecture_at(i);
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", arch->hf_type);
        nearest_offer(&near, type ? arch->hf_type : arch->hf_class);
    }
    if (!word) {
        refuse(r, PLIM_BAD_INPUT, "%s: key 'model_type' is missing; write one of %s", r->name, known);
        return;
    }
    if (near.best) snprintf(guess, sizeof guess, "; the nearest is '%s'", near.best);
    refuse(r, PLIM_UNSUPPORTED, "%s: model type '%s' is not supported%s; supported: %s", r->name, word, guess,
           known);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static void read_architecture(struct reader *r)
{
    const char *type = read_string(r, r->root, "model_type", NULL);
    const char *class_name = node_string(node_item(node_get(r->root, "architectures"), 0), NULL);
    const struct architecture *arch = type ? by_type(type) : by_class(class_name);
    if (!arch) {
        refuse_architecture(r, type, class_name);
        return;
    }
    enum model_task task = class_name ? task_of(arch, class_name) : TASK_TOKENS;
    if (task == MODEL_TASKS && !ends_with(class_name, "Model"))
        refuse(r, PLIM_UNSUPPORTED, "%s: architecture '%s' is not supported; %s models must be '%s'%s%s%s",
               r->name, class_name, arch->name, arch->hf_class, arch->task_classes ? " or '" : "",
               arch->task_classes ? arch->task_classes[TASK_LABELS] : "", arch->task_classes ? "'" : "");
    model_defaults(r->spec, arch);
    if (task < MODEL_TASKS) r->spec->task = task;
}

static void read_activation(struct reader *r)
{
    static const char *const same[][2] = {
        {"silu", "swish"}, {"gelu_new", "gelu_pytorch_tanh"}, {"gelu_pytorch_tanh", "gelu_new"}};
    const char *own = r->spec->arch->activation;
    const char *key = r->spec->arch->keys->activation;
    const char *value = read_string(r, r->root, key, own);
    r->spec->gated = r->spec->arch->source && !strcmp(value, "gated-gelu");
    if (r->spec->gated) return;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (!strcmp(own, same[i][0]) && !strcmp(value, same[i][1])) return;
    if (strcmp(value, own))
        refuse(r, PLIM_UNSUPPORTED,
               "%s: key '%s': activation '%s' is not supported; %s models must have '%s'", r->name, key,
               value, r->spec->arch->name, own);
}

/* --- sizes and switches -----------------------------------------------------------------------------------
 */

static void read_sizes(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct model_keys *keys = spec->arch->keys;
    read_size(r, "vocab_size", true, &spec->vocab_size);
    read_size(r, keys->hidden, true, &spec->hidden_size);
    read_size(r, keys->intermediate, spec->arch->inner_multiple == 0, &spec->intermediate_size);
    read_count(r, keys->layers, true, &spec->num_layers);
    read_count(r, keys->heads, true, &spec->num_heads);
    if (spec->arch->extras.kv_heads_absent) spec->num_kv_heads = spec->arch->extras.kv_heads_absent;
    if (node_get(r->root, keys->kv_heads ? keys->kv_heads : "") && !given(r->root, keys->kv_heads))
        spec->num_kv_heads = 0; /* null: as many as query heads, whatever the default */
    if (keys->kv_heads) read_count(r, keys->kv_heads, false, &spec->num_kv_heads);
    const char *head_dim = keys->head_dim ? keys->head_dim : "head_dim";
    if (!node_get(r->root, head_dim)) spec->head_dim = spec->arch->extras.head_dim_absent;
    read_count(r, head_dim, false, &spec->head_dim);
    read_size(r, keys->positions, false, &spec->max_positions);
    read_double(r, r->root, keys->norm_eps, &spec->norm_eps);
    read_double(r, r->root, keys->range ? keys->range : "initializer_range", &spec->initializer_range);
    read_bool(r, r->root, "tie_word_embeddings", &spec->tie_embeddings);
}

static void read_dropout(struct reader *r)
{
    const struct model_keys *keys = r->spec->arch->keys;
    for (int i = 0; i < MODEL_DROPOUTS && keys->dropout[i]; i++) {
        double *share = &r->spec->dropout[i];
        *share = i > 1 && keys->last_dropout_follows ? r->spec->dropout[0] : keys->dropout_absent;
        read_double(r, r->root, keys->dropout[i], share);
        if (!(*share >= 0 && *share <= 1))
            refuse(r, PLIM_BAD_INPUT, "%s: key '%s': %g is no share between 0 and 1", r->name,
                   keys->dropout[i], *share);
    }
}

static void read_extras(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct model_extras *have = &spec->arch->extras;
    if (have->attention_bias) {
        read_bool(r, r->root, "attention_bias", &spec->qkv_bias);
        spec->o_bias = spec->qkv_bias;
    }
    if (have->mlp_bias) read_bool(r, r->root, "mlp_bias", &spec->mlp_bias);
    if (have->attn_cap) read_or_none(r, "attn_logit_softcapping", spec->attn_cap, &spec->attn_cap);
    if (have->caps) {
        read_or_none(r, "final_logit_softcapping", spec->final_cap, &spec->final_cap);
        spec->query_scalar = have->query_scalar_absent;
        read_int(r, r->root, "query_pre_attn_scalar", &spec->query_scalar);
        if (spec->query_scalar < 1)
            refuse(r, PLIM_BAD_INPUT, "%s: key 'query_pre_attn_scalar': %lld must be at least 1", r->name,
                   (long long)spec->query_scalar);
    }
}

/* Layers that have a feed-forward part instead of experts, from both keys. */
static void read_dense_layers(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct node *list = given(r->root, "mlp_only_layers");
    int step = 1;
    read_count(r, "decoder_sparse_step", false, &step);
    if (step < 1)
        refuse(r, PLIM_BAD_INPUT, "%s: key 'decoder_sparse_step': %d must be at least 1", r->name, step);
    for (int i = 0; step > 1 && i < spec->num_layers && i < MODEL_MAX_LAYERS; i++)
        if ((i + 1) % step) layer_set_add(&spec->dense_layers, i);
    if (list && list->kind != NODE_LIST) wrong_kind(r, list, "mlp_only_layers", "a list");
    for (size_t i = 0; list && i < node_count(list); i++) {
        int64_t layer = -1;
        if (!node_is_whole(node_item(list, i), &layer) || layer < 0 || layer >= MODEL_MAX_LAYERS)
            refuse(r, PLIM_BAD_INPUT, "%s: key 'mlp_only_layers': expected numbers of layers", r->name);
        else if (layer < spec->num_layers)
            layer_set_add(&spec->dense_layers, (int)layer);
    }
    if (model_mixtures(spec, spec->num_layers < MODEL_MAX_LAYERS ? spec->num_layers : 0) < spec->num_layers)
        read_size(r, "intermediate_size", true, &spec->dense_size);
}

/* Where every layer is a mixture, others are refused by name, and noise on the router is everywhere. */
static void read_mixture_demands(struct reader *r)
{
    const struct node *dense = given(r->root, "mlp_only_layers");
    int64_t step = 1;
    double noise = 0;
    read_double(r, r->root, "router_jitter_noise", &noise);
    if (noise != 0)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'router_jitter_noise': %g is not supported; only 0 is", r->name,
               noise);
    if (r->spec->arch->extras.dense_layers) {
        read_dense_layers(r);
        return;
    }
    read_int(r, r->root, "decoder_sparse_step", &step);
    if (dense && (dense->kind != NODE_LIST || node_count(dense)))
        refuse(r, PLIM_UNSUPPORTED,
               "%s: key 'mlp_only_layers': layers without experts are not supported; only [] is", r->name);
    if (step != 1)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'decoder_sparse_step': %lld is not supported; only 1 is",
               r->name, (long long)step);
}

/* Transformers 5 writes num_experts of some models as num_local_experts. */
static void read_experts(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const char *key = spec->arch->keys->experts;
    if (!key) return;
    read_count(r, given(r->root, key) ? key : "num_local_experts", false, &spec->num_experts);
    read_count(r, "num_experts_per_tok", false, &spec->experts_per_token);
    if (spec->arch->extras.norm_topk) read_bool(r, r->root, "norm_topk_prob", &spec->norm_topk);
    if (spec->arch->extras.shared_expert)
        read_size(r, "shared_expert_intermediate_size", false, &spec->shared_size);
    read_double(r, r->root, "router_aux_loss_coef", &spec->balance_coef);
    read_double(r, r->root, "router_z_loss_coef", &spec->z_coef);
    spec->router_losses = false;
    read_bool(r, r->root, "output_router_logits", &spec->router_losses);
    read_mixture_demands(r);
}

static void read_switches(struct reader *r)
{
    for (const struct hf_demand *d = r->spec->arch->demands; d && d->key; d++) read_demand(r, d);
    const struct node *quantised = given(r->root, "quantization_config");
    if (quantised)
        refuse(r, PLIM_UNSUPPORTED, "%s: the weights are quantised ('%s'); use the original checkpoint",
               r->name, node_string(node_get(quantised, "quant_method"), "unknown method"));
}

static void read_tokens(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct node *eos = node_get(r->root, "eos_token_id");
    if (node_get(r->root, "bos_token_id") && !given(r->root, "bos_token_id")) spec->bos_token_id = -1;
    read_int(r, r->root, "bos_token_id", &spec->bos_token_id);
    if (node_get(r->root, "pad_token_id") && !given(r->root, "pad_token_id")) spec->pad_token_id = -1;
    read_int(r, r->root, "pad_token_id", &spec->pad_token_id);
    if (!eos) return;
    spec->eos_count = 0;
    if (eos->kind == NODE_NULL) return;
    size_t n = eos->kind == NODE_LIST ? node_count(eos) : 1;
    if (n > MODEL_MAX_EOS)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'eos_token_id': more than %d ids", r->name, MODEL_MAX_EOS);
    for (size_t i = 0; i < n && i < MODEL_MAX_EOS; i++) {
        const struct node *item = eos->kind == NODE_LIST ? node_item(eos, i) : eos;
        if (!node_is_whole(item, &spec->eos_token_ids[i]))
            wrong_kind(r, item, "eos_token_id", "a whole number");
        spec->eos_count++;
    }
}

/* What an encoder-decoder has beside. Version 5 of transformers writes tie_word_embeddings: true for every T5 and says with
 * scale_decoder_outputs what the key said before: whether the head is the embedding. With false it may still be, without the
 * scale: the files decide (find_head). */
static void read_source(struct reader *r)
{
    struct model_spec *spec = r->spec;
    if (!spec->arch->source) return;
    spec->decoder_layers = spec->num_layers;
    read_count(r, "num_decoder_layers", false, &spec->decoder_layers);
    read_count(r, "relative_attention_num_buckets", false, &spec->bias_buckets);
    read_count(r, "relative_attention_max_distance", false, &spec->bias_reach);
    bool tied = spec->tie_embeddings, scaled = tied;
    read_bool(r, r->root, "scale_decoder_outputs", &scaled);
    spec->tie_embeddings = tied || scaled;
    spec->unscaled_head = tied && !scaled;
    spec->start_token_id = spec->pad_token_id; /* what transformers takes for T5 */
    read_int(r, r->root, "decoder_start_token_id", &spec->start_token_id);
}

static void read_problem(struct reader *r)
{
    const char *said = read_string(r, r->root, "problem_type", NULL);
    for (int i = PROBLEM_REGRESSION; said && i < PROBLEMS; i++)
        if (!strcmp(said, label_problem_name((enum label_problem)i)))
            r->spec->problem = (enum label_problem)i;
    if (said && r->spec->problem == PROBLEM_UNSAID)
        refuse(r, PLIM_BAD_INPUT,
               "%s: key 'problem_type': '%s' is unknown; write regression, single_label_classification or "
               "multi_label_classification",
               r->name, said);
}

/* What encoders have beside: segments, labels, and positions that begin behind the padding's. */
static void read_encoder(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct model_keys *keys = spec->arch->keys;
    const struct node *labels = given(r->root, "id2label");
    if (!spec->arch->encoder) return;
    if (keys->types) read_int(r, r->root, keys->types, &spec->token_types);
    if (given(r->root, keys->positions)) spec->max_positions -= model_first_position(spec);
    if (!model_has_labels(spec)) return;
    spec->num_labels = 2; /* what transformers takes */
    read_int(r, r->root, "num_labels", &spec->num_labels);
    if (labels && labels->kind != NODE_MAP) wrong_kind(r, labels, "id2label", "a map");
    if (labels) spec->num_labels = (int64_t)node_count(labels);
    if (spec->task == TASK_ROW_LABELS) read_problem(r);
}

/* Keys of our own, which other programs do not read: attention over blocks of keys. */
static void read_sparse(struct reader *r)
{
    struct model_spec *spec = r->spec;
    if (strcmp(node_string(given(r->root, "attention_type"), ""), "sparse")) return;
    read_count(r, "sparse_block_size", true, &spec->sparse_block);
    read_count(r, "num_local_blocks", true, &spec->local_blocks);
    read_count(r, "num_global_blocks", true, &spec->global_blocks);
}

/* --- rotary positions -------------------------------------------------------------------------------------
 */

/* Phi-3's first files called longrope su and yarn. */
static const char *rope_type(struct reader *r, const struct node *scaling)
{
    const char *type = read_string(r, scaling, "rope_type", read_string(r, scaling, "type", "default"));
    bool older = r->spec->arch->extras.long_rope && (!strcmp(type, "su") || !strcmp(type, "yarn"));
    return older ? "longrope" : type;
}

static void read_rope_kind(struct reader *r, const struct node *scaling)
{
    const char *type = rope_type(r, scaling);
    for (int kind = 0; kind < ROPE_KIND_COUNT; kind++) {
        if (strcmp(type, rope_kind_name((enum rope_kind)kind))) continue;
        r->spec->rope.kind = (enum rope_kind)kind;
        return;
    }
    refuse(r, PLIM_UNSUPPORTED,
           "%s: rope type '%s' is not supported; supported: default, linear, llama3, yarn, longrope", r->name,
           type);
}

static void read_factors(struct reader *r, const struct node *scaling, const char *key,
                         struct rope_factors *out)
{
    const struct node *list = given(scaling, key);
    if (!list) return;
    if (list->kind != NODE_LIST || node_count(list) > MODEL_MAX_HEAD / 2) {
        wrong_kind(r, list, key, "a list of numbers, at most half as many as a head has");
        return;
    }
    for (size_t i = 0; i < node_count(list); i++) {
        const struct node *item = node_item(list, i);
        if (item->kind != NODE_INT && item->kind != NODE_FLOAT) wrong_kind(r, item, key, "a number");
        out->value[out->count++] = node_float(item, 0);
    }
}

static void read_scaling(struct reader *r, const struct node *scaling)
{
    struct rope_scaling *rope = &r->spec->rope;
    read_rope_kind(r, scaling);
    rope->beta_fast = 32, rope->beta_slow = 1, rope->truncate = true;
    read_double(r, scaling, "factor", &rope->factor);
    read_double(r, scaling, "low_freq_factor", &rope->low_freq_factor);
    read_double(r, scaling, "high_freq_factor", &rope->high_freq_factor);
    read_int(r, scaling, "original_max_position_embeddings", &rope->original_max_positions);
    read_double(r, scaling, "attention_factor", &rope->attention_factor);
    read_double(r, scaling, "beta_fast", &rope->beta_fast);
    read_double(r, scaling, "beta_slow", &rope->beta_slow);
    read_double(r, scaling, "mscale", &rope->mscale);
    read_double(r, scaling, "mscale_all_dim", &rope->mscale_all_dim);
    read_bool(r, scaling, "truncate", &rope->truncate);
    read_factors(r, scaling, "short_factor", &rope->short_factor);
    read_factors(r, scaling, "long_factor", &rope->long_factor);
    if (rope->kind == ROPE_YARN && !given(scaling, "factor") && rope->original_max_positions > 0)
        rope->factor = (double)r->spec->max_positions / (double)rope->original_max_positions;
    if (!r->spec->arch->extras.long_rope) return;
    rope->original_max_positions = 4096; /* beside the scaling, and that wins */
    read_int(r, r->root, "original_max_position_embeddings", &rope->original_max_positions);
}

/* Of rotary parameters per layer type: those of layers without a window, which alone may be scaled. Others are refused. */
static const struct node *read_local_rope(struct reader *r, const struct node *scaling)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    double *local = &r->spec->rope_local_theta;
    bool nested = false;
    for (size_t i = 0; i < node_count(scaling); i++) nested |= node_item(scaling, i)->kind == NODE_MAP;
    if (r->spec->arch->extras.local_theta) read_double(r, r->root, "rope_local_base_freq", local);
    if (!nested) return scaling;
    for (size_t i = 0; i < node_count(scaling); i++) {
        const char *key = node_item(scaling, i)->key;
        bool known = !strcmp(key, types[0]) || !strcmp(key, types[1]);
        if (!r->spec->arch->extras.local_theta || !known)
            refuse(r, PLIM_UNSUPPORTED, "%s: rotary parameters per layer type ('%s') are not supported",
                   r->name, key);
    }
    const struct node *sliding = given(scaling, types[1]);
    read_double(r, sliding, "rope_theta", local);
    if (strcmp(rope_type(r, sliding), "default"))
        refuse(r, PLIM_UNSUPPORTED,
               "%s: rope type '%s' of sliding_attention is not supported; only default is", r->name,
               rope_type(r, sliding));
    return given(scaling, types[0]);
}

static void read_rope(struct reader *r)
{
    const struct node *scaling = given(r->root, "rope_scaling"); /* the old key wins, as in transformers */
    const struct node *whole = given(r->root, "rope_parameters");
    double *partial = &r->spec->partial_rotary;
    if (!scaling) scaling = whole;
    if (!r->spec->arch->rope) return;
    read_double(r, r->root, "rope_theta", &r->spec->rope_theta);
    read_double(r, r->root, "partial_rotary_factor", partial);
    if (scaling && scaling->kind != NODE_MAP) wrong_kind(r, scaling, scaling->key, "a map");
    scaling = read_local_rope(r, scaling);
    read_double(r, scaling, "rope_theta", &r->spec->rope_theta);
    read_double(r, scaling, "partial_rotary_factor", partial);
    if (*partial != 0 && *partial != 1 && !r->spec->arch->extras.partial_rotary)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'partial_rotary_factor': only 1.0 is supported", r->name);
    read_scaling(r, scaling);
}

/* --- layers that differ -----------------------------------------------------------------------------------
 */

/* no_rope_layers has 1 for a layer that rotates. */
static void read_no_rope(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct node *list = given(r->root, "no_rope_layers");
    if (!spec->arch->extras.no_rope) return;
    read_count(r, "no_rope_layer_interval", false, &spec->no_rope_every);
    if (!list) return;
    spec->no_rope_every = 0;
    if (list->kind != NODE_LIST || node_count(list) < (size_t)spec->num_layers) {
        refuse(r, PLIM_BAD_INPUT, "%s: key 'no_rope_layers': expected a list of %d numbers", r->name,
               spec->num_layers);
        return;
    }
    for (int i = 0; i < spec->num_layers && i < MODEL_MAX_LAYERS; i++) {
        const struct node *item = node_item(list, (size_t)i);
        int64_t rotates = 0;
        if (!node_is_whole(item, &rotates)) wrong_kind(r, item, "no_rope_layers", "0 or 1");
        if (!rotates) layer_set_add(&spec->no_rope_layers, i);
    }
}

static void read_layer_types(struct reader *r, const struct node *types)
{
    struct model_spec *spec = r->spec;
    if (types->kind != NODE_LIST || node_count(types) != (size_t)spec->num_layers) {
        refuse(r, PLIM_BAD_INPUT, "%s: key 'layer_types': expected a list of %d texts", r->name,
               spec->num_layers);
        return;
    }
    spec->sliding_layers = (struct layer_set){0}, spec->full_every = 0;
    for (int i = 0; i < spec->num_layers && i < MODEL_MAX_LAYERS; i++) {
        const char *type = node_string(node_item(types, (size_t)i), "?");
        bool slides = !strcmp(type, "sliding_attention");
        if (!slides && strcmp(type, "full_attention"))
            refuse(r, PLIM_UNSUPPORTED,
                   "%s: layer type '%s' is not supported; supported: full_attention, "
                   "sliding_attention",
                   r->name, type);
        if (slides && spec->sliding_window == 0)
            refuse(r, PLIM_BAD_INPUT, "%s: layer %d has sliding_attention but there is no 'sliding_window'",
                   r->name, i);
        if (slides != layer_set_has(&spec->sliding_layers, 0) && i > 0 &&
            spec->arch->window == WINDOW_ALL_LAYERS)
            refuse(r, PLIM_UNSUPPORTED, "%s: key 'layer_types': %s slides on every layer or none", r->name,
                   spec->arch->name);
        if (slides) layer_set_add(&spec->sliding_layers, i);
    }
}

/* sliding_window, which null takes away. */
static void read_window_size(struct reader *r)
{
    if (node_get(r->root, "sliding_window")) r->spec->sliding_window = 0;
    read_int(r, r->root, "sliding_window", &r->spec->sliding_window);
}

/* ... and use_sliding_window, without which there is none; `absent` when only the size is missing. */
static void read_switched_window(struct reader *r, int64_t absent)
{
    bool use = false;
    read_bool(r, r->root, "use_sliding_window", &use);
    r->spec->sliding_window = use ? absent : 0;
    if (use) read_int(r, r->root, "sliding_window", &r->spec->sliding_window);
}

static void read_late_window(struct reader *r)
{
    int first = 28; /* max_window_layers of transformers when the file has none */
    read_switched_window(r, 4096);
    read_count(r, "max_window_layers", false, &first);
    r->spec->full_every = 0;
    for (int i = first; i < r->spec->num_layers && i < MODEL_MAX_LAYERS; i++)
        layer_set_add(&r->spec->sliding_layers, i);
}

static void read_window(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct node *types = given(r->root, "layer_types");
    if (spec->arch->window == WINDOW_ALL_LAYERS || spec->arch->window == WINDOW_PATTERN) read_window_size(r);
    if (spec->arch->window == WINDOW_LATE_LAYERS) read_late_window(r);
    if (spec->arch->window == WINDOW_NO_ROPE) read_switched_window(r, 0);
    if (spec->arch->extras.window_pattern) read_count(r, "sliding_window_pattern", false, &spec->full_every);
    if (types && r->status == PLIM_OK) read_layer_types(r, types);
}

/* ----------------------------------------------------------------------------------------------------------
 */

enum plim_status hf_config_read(const struct node *root, const char *name, struct model_spec *spec,
                                struct plim_error *err)
{
    struct reader r = {.root = root, .name = name, .spec = spec, .err = err, .status = PLIM_OK};
    if (root->kind != NODE_MAP) return plim_fail(err, PLIM_BAD_INPUT, "%s: expected a map of keys", name);
    read_architecture(&r);
    if (r.status != PLIM_OK) return r.status;
    read_activation(&r);
    read_sizes(&r);
    read_switches(&r);
    read_extras(&r);
    read_experts(&r);
    read_dropout(&r);
    read_tokens(&r);
    read_encoder(&r);
    read_source(&r);
    read_rope(&r);
    read_no_rope(&r);
    read_window(&r);
    read_sparse(&r);
    if (r.status != PLIM_OK) return r.status;
    enum plim_status status = model_complete(spec, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", name);
    return status;
}

/* Of a T5 that ties its head and does not scale: a head in the files is one of its own, and without it the embedding is it. */
static void find_head(const char *folder, struct model_spec *spec)
{
    struct safetensors set;
    if (!spec->unscaled_head || safetensors_open(folder, &set, NULL) != PLIM_OK) return;
    if (safetensors_find(&set, "lm_head.weight")) spec->tie_embeddings = spec->unscaled_head = false;
    safetensors_close(&set);
}

enum plim_status hf_config_load(const char *path, struct model_spec *spec, struct plim_error *err)
{
    struct strbuf file = STRBUF_INIT;
    struct doc *doc = NULL;
    struct stat st;
    if (gguf_is(path)) return gguf_config_load(path, spec, err);
    strbuf_add(&file, path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) strbuf_add(&file, "/config.json");
    enum plim_status status = strbuf_status(&file, err);
    if (status == PLIM_OK) status = json_load(strbuf_text(&file), &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, strbuf_text(&file), spec, err);
    if (status == PLIM_OK) find_head(path, spec);
    doc_free(doc);
    strbuf_release(&file);
    return status;
}
