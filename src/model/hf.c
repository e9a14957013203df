/* hf.c - config.json. See hf.h.
 *
 * Reading is a sequence of small steps over a reader with a sticky error: the first thing wrong is what the
 * user hears of, and steps after it do nothing. Where a key is missing the architecture's own default stands,
 * which is the default transformers has.
 */
#include "model/hf.h"
#include "base/json.h"
#include "model/arch.h"

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

static void list_architectures(char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; model_architecture_at(i) && used < size; i++)
        used +=
            (size_t)snprintf(buf + used, size - used, "%s%s", i ? ", " : "", model_architecture_at(i)->name);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static void read_architecture(struct reader *r)
{
    char known[128];
    list_architectures(known, sizeof known);
    const char *type = read_string(r, r->root, "model_type", NULL);
    const char *class_name = node_string(node_item(node_get(r->root, "architectures"), 0), NULL);
    const struct architecture *arch = type ? model_architecture(type) : by_class(class_name);
    if (!arch && !type && !class_name)
        refuse(r, PLIM_BAD_INPUT, "%s: key 'model_type' is missing; write one of %s", r->name, known);
    if (!arch) {
        refuse(r, PLIM_UNSUPPORTED, "%s: model type '%s' is not supported; supported: %s", r->name,
               type ? type : class_name, known);
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
    static const char *const same[][2] = {{"silu", "swish"}, {"gelu_new", "gelu_pytorch_tanh"}};
    const char *own = r->spec->arch->activation;
    const char *key = r->spec->arch->keys->activation;
    const char *value = read_string(r, r->root, key, own);
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
    if (node_get(r->root, keys->kv_heads ? keys->kv_heads : "") && !given(r->root, keys->kv_heads))
        spec->num_kv_heads = 0; /* null: as many as query heads, whatever the default */
    if (keys->kv_heads) read_count(r, keys->kv_heads, false, &spec->num_kv_heads);
    read_count(r, "head_dim", false, &spec->head_dim);
    read_size(r, keys->positions, false, &spec->max_positions);
    read_double(r, r->root, keys->norm_eps, &spec->norm_eps);
    read_double(r, r->root, "initializer_range", &spec->initializer_range);
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

static void read_switches(struct reader *r)
{
    if (r->spec->arch->bias_keys) {
        read_bool(r, r->root, "attention_bias", &r->spec->qkv_bias);
        r->spec->o_bias = r->spec->qkv_bias;
        read_bool(r, r->root, "mlp_bias", &r->spec->mlp_bias);
    }
    for (const struct hf_demand *d = r->spec->arch->demands; d && d->key; d++)
        (d->text ? demand_text : demand_bool)(r, d);
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

/* What encoders have beside: segments, labels, and positions that begin behind the padding's. */
static void read_encoder(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct model_keys *keys = spec->arch->keys;
    const struct node *labels = given(r->root, "id2label");
    if (!spec->arch->encoder) return;
    if (keys->types) read_int(r, r->root, keys->types, &spec->token_types);
    if (given(r->root, keys->positions)) spec->max_positions -= model_first_position(spec);
    if (spec->task != TASK_LABELS) return;
    spec->num_labels = 2; /* what transformers takes */
    read_int(r, r->root, "num_labels", &spec->num_labels);
    if (labels && labels->kind != NODE_MAP) wrong_kind(r, labels, "id2label", "a map");
    if (labels) spec->num_labels = (int64_t)node_count(labels);
}

/* --- rotary positions -------------------------------------------------------------------------------------
 */

static void read_rope_kind(struct reader *r, const struct node *scaling)
{
    const char *type = read_string(r, scaling, "rope_type", read_string(r, scaling, "type", "default"));
    for (int kind = 0; kind < ROPE_KIND_COUNT; kind++) {
        if (strcmp(type, rope_kind_name((enum rope_kind)kind))) continue;
        r->spec->rope.kind = (enum rope_kind)kind;
        return;
    }
    refuse(r, PLIM_UNSUPPORTED, "%s: rope type '%s' is not supported; supported: default, linear, llama3",
           r->name, type);
}

static void read_rope(struct reader *r)
{
    struct rope_scaling *rope = &r->spec->rope;
    double partial = 1.0;
    const struct node *scaling = given(r->root, "rope_scaling"); /* the old key wins, as in transformers */
    if (!scaling) scaling = given(r->root, "rope_parameters");
    if (!r->spec->arch->rope) return;
    read_double(r, r->root, "rope_theta", &r->spec->rope_theta);
    read_double(r, r->root, "partial_rotary_factor", &partial);
    if (scaling && scaling->kind != NODE_MAP) wrong_kind(r, scaling, scaling->key, "a map");
    for (size_t i = 0; i < node_count(scaling); i++)
        if (node_item(scaling, i)->kind == NODE_MAP)
            refuse(r, PLIM_UNSUPPORTED, "%s: rotary parameters per layer type ('%s') are not supported",
                   r->name, node_item(scaling, i)->key);
    read_double(r, scaling, "rope_theta", &r->spec->rope_theta);
    read_double(r, scaling, "partial_rotary_factor", &partial);
    if (partial != 1.0)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'partial_rotary_factor': only 1.0 is supported", r->name);
    read_rope_kind(r, scaling);
    read_double(r, scaling, "factor", &rope->factor);
    read_double(r, scaling, "low_freq_factor", &rope->low_freq_factor);
    read_double(r, scaling, "high_freq_factor", &rope->high_freq_factor);
    read_int(r, scaling, "original_max_position_embeddings", &rope->original_max_positions);
}

/* --- sliding windows --------------------------------------------------------------------------------------
 */

/* Where the sliding layers of a layer_types list begin; they must all come last. */
static void read_layer_types(struct reader *r, const struct node *types)
{
    int first = r->spec->num_layers;
    if (types->kind != NODE_LIST || node_count(types) != (size_t)r->spec->num_layers) {
        refuse(r, PLIM_BAD_INPUT, "%s: key 'layer_types': expected a list of %d texts", r->name,
               r->spec->num_layers);
        return;
    }
    for (int i = 0; i < r->spec->num_layers; i++) {
        const char *type = node_string(node_item(types, (size_t)i), "?");
        bool slides = !strcmp(type, "sliding_attention");
        if (!slides && strcmp(type, "full_attention"))
            refuse(r, PLIM_UNSUPPORTED,
                   "%s: layer type '%s' is not supported; supported: full_attention, "
                   "sliding_attention",
                   r->name, type);
        if (slides && r->spec->sliding_window == 0)
            refuse(r, PLIM_BAD_INPUT, "%s: layer %d has sliding_attention but there is no 'sliding_window'",
                   r->name, i);
        if (!slides && first < i)
            refuse(r, PLIM_UNSUPPORTED,
                   "%s: key 'layer_types': full_attention after sliding_attention (layer %d) "
                   "is not supported",
                   r->name, i);
        if (slides && i < first) first = i;
    }
    r->spec->window_first_layer = first;
}

static void read_window(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct node *types = given(r->root, "layer_types");
    int first = 28; /* max_window_layers of transformers when the file has none */
    bool use = false;
    if (spec->arch->window == WINDOW_ALL_LAYERS) {
        if (node_get(r->root, "sliding_window")) spec->sliding_window = 0;
        read_int(r, r->root, "sliding_window", &spec->sliding_window);
    } else if (spec->arch->window == WINDOW_LATE_LAYERS) {
        read_bool(r, r->root, "use_sliding_window", &use);
        if (use) spec->sliding_window = 4096;
        if (use) read_int(r, r->root, "sliding_window", &spec->sliding_window);
        read_count(r, "max_window_layers", false, &first);
        spec->window_first_layer = first;
    }
    if (!types || r->status != PLIM_OK) return;
    read_layer_types(r, types);
    if (spec->arch->window == WINDOW_ALL_LAYERS && spec->sliding_window > 0 && spec->window_first_layer > 0)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'layer_types': %s slides on every layer or none", r->name,
               spec->arch->name);
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
    read_dropout(&r);
    read_tokens(&r);
    read_encoder(&r);
    read_rope(&r);
    read_window(&r);
    if (r.status != PLIM_OK) return r.status;
    enum plim_status status = model_complete(spec, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", name);
    return status;
}

enum plim_status hf_config_load(const char *path, struct model_spec *spec, struct plim_error *err)
{
    struct strbuf file = STRBUF_INIT;
    struct doc *doc = NULL;
    struct stat st;
    strbuf_add(&file, path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) strbuf_add(&file, "/config.json");
    enum plim_status status = strbuf_status(&file, err);
    if (status == PLIM_OK) status = json_load(strbuf_text(&file), &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, strbuf_text(&file), spec, err);
    doc_free(doc);
    strbuf_release(&file);
    return status;
}
