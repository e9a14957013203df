/* hf.c - config.json. See hf.h.
 *
 * The table of fields is read row by row with a sticky error: the first thing wrong is what the user hears of. Where a key is
 * missing the architecture's own default stands, which is the default transformers has. Fields that are more than a number
 * have a reader of their own.
 */
#include "model/hf.h"
#include "model/quantised_config.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/schema_value.h"
#include "store/safetensors.h"
#include "model/arch.h"
#include "model/gguf_model.h"
#include "store/gguf.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct reader {
    const struct node *root;
    const struct node *scaling,
        *sliding; /* rotary parameters, and those of layers with a window; NULL: none */
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

/* Stores one value. model_validate checks ranges later, when all numbers are known. */
static void read_value(struct reader *r, const struct node *map, const char *key, const struct model_field *f)
{
    const struct node *node = given(map, key);
    struct schema_row row = f->row;
    row.min = row.max = 0;
    if (!node || r->status != PLIM_OK) return;
    r->status = schema_store(&row, node, r->spec, NULL, r->err);
    if (r->status != PLIM_OK) plim_error_prefix(r->err, "%s:%d: key '%s'", r->name, node->line, key);
}

/* Reads a field as its row describes it. */
static void read_field(struct reader *r, enum model_field_id id)
{
    const struct model_field *f = &model_fields[id];
    const struct node *map = f->rope ? r->scaling : r->root;
    const char *key = field_key(r->spec->arch, id);
    bool derived = id == FIELD_INNER && r->spec->arch->inner_multiple;
    if (!key) return;
    if (f->hf_else && !given(map, key)) key = f->hf_else;
    if ((f->need == NEED_HF || f->need == NEED_ALWAYS) && !derived && !given(map, key))
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s' is missing; add it", r->name, key);
    if (f->null_is_none && node_get(map, key) && !given(map, key))
        memset(field_at(f, r->spec), f->token ? 0xff : 0, f->size); /* -1, or 0 */
    read_value(r, map, key, f);
}

static void read_bool(struct reader *r, const char *key, bool *out)
{
    const struct node *node = given(r->root, key);
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

/* Reads a number from 0 on that is not a field. */
static int read_count(struct reader *r, const char *key, int fallback)
{
    const struct node *node = given(r->root, key);
    int64_t n = fallback;
    if (node && !node_is_whole(node, &n)) wrong_kind(r, node, key, "a whole number");
    if (n < 0 || n > INT32_MAX)
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s': %lld is out of range", r->name, key, (long long)n);
    return (int)n;
}

static void read_demand(struct reader *r, const struct hf_demand *d)
{
    const struct node *node = given(r->root, d->key);
    if (!node) return;
    const char *is = node->kind == NODE_BOOL ? (node_bool(node, false) ? "true" : "false")
                                             : node_string(node, node_kind_name(node->kind));
    if (strcmp(is, d->only))
        refuse(r, PLIM_UNSUPPORTED, "%s: key '%s': %s is not supported; only %s is", r->name, d->key, is,
               d->only);
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
        if (!strcmp(architecture_type(model_architecture_at(i)), type)) return model_architecture_at(i);
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
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 architecture_type(arch));
        nearest_offer(&near, type ? architecture_type(arch) : arch->hf_class);
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
    model_file_defaults(r->spec, arch);
    if (task < MODEL_TASKS) r->spec->task = task;
}

static void read_activation(struct reader *r, enum model_field_id id)
{
    static const char *const same[][2] = {
        {"silu", "swish"}, {"gelu_new", "gelu_pytorch_tanh"}, {"gelu_pytorch_tanh", "gelu_new"}};
    const char *own = r->spec->arch->activation;
    const char *key = field_key(r->spec->arch, id);
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

/* --- fields that are more than a number -------------------------------------------------------------------
 */

/* Layers that have a feed-forward part instead of experts, from both keys. */
static void read_dense_layers(struct reader *r, int step)
{
    struct model_spec *spec = r->spec;
    const struct node *list = given(r->root, "mlp_only_layers");
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
}

/* Where every layer is a mixture, others are refused by name, and noise on the router is everywhere. */
static void read_dense(struct reader *r, enum model_field_id id)
{
    const struct node *dense = given(r->root, "mlp_only_layers");
    if (!field_key(r->spec->arch, FIELD_EXPERTS)) return;
    int step = read_count(r, "decoder_sparse_step", 1);
    double noise = node_float(given(r->root, "router_jitter_noise"), 0);
    if (noise != 0)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'router_jitter_noise': %g is not supported; only 0 is", r->name,
               noise);
    if (field_key(r->spec->arch, id)) {
        read_dense_layers(r, step);
        return;
    }
    if (dense && (dense->kind != NODE_LIST || node_count(dense)))
        refuse(r, PLIM_UNSUPPORTED,
               "%s: key 'mlp_only_layers': layers without experts are not supported; only [] is", r->name);
    if (step != 1)
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'decoder_sparse_step': %d is not supported; only 1 is", r->name,
               step);
}

/* Without dense layers the key means nothing. */
static void read_dense_size(struct reader *r, enum model_field_id id)
{
    int layers = r->spec->num_layers;
    if (layers <= MODEL_MAX_LAYERS && model_mixtures(r->spec, layers) < layers) read_field(r, id);
}

static void read_switches(struct reader *r)
{
    for (int i = 0; i < MODEL_DEMANDS; i++) read_demand(r, &r->spec->arch->demands[i]);
    const struct node *quantised = given(r->root, "quantization_config");
    struct quant_config unused;
    struct plim_error why = {0};
    enum plim_status status = quantised ? quant_config_read(quantised, r->name, &unused, &why) : PLIM_OK;
    if (status != PLIM_OK) refuse(r, status, "%s", why.text);
}

static void read_eos(struct reader *r, enum model_field_id id)
{
    struct model_spec *spec = r->spec;
    const char *key = field_key(spec->arch, id);
    const struct node *eos = node_get(r->root, key);
    if (!eos) return;
    spec->eos_count = 0;
    if (eos->kind == NODE_NULL) return;
    size_t n = eos->kind == NODE_LIST ? node_count(eos) : 1;
    if (n > MODEL_MAX_EOS)
        refuse(r, PLIM_UNSUPPORTED, "%s: key '%s': more than %d ids", r->name, key, MODEL_MAX_EOS);
    for (size_t i = 0; i < n && i < MODEL_MAX_EOS; i++) {
        const struct node *item = eos->kind == NODE_LIST ? node_item(eos, i) : eos;
        if (!node_is_whole(item, &spec->eos_token_ids[i])) wrong_kind(r, item, key, "a whole number");
        spec->eos_count++;
    }
}

/* Version 5 of transformers writes tie_word_embeddings: true for every T5 and says with scale_decoder_outputs what the key
 * said before: whether the head is the embedding. With false it may still be, without the scale: the files decide
 * (find_head). */
static void read_scaled_head(struct reader *r, enum model_field_id id)
{
    struct model_spec *spec = r->spec;
    bool tied = spec->tie_embeddings, scaled = tied;
    if (!field_key(spec->arch, id)) return;
    read_bool(r, field_key(spec->arch, id), &scaled);
    spec->tie_embeddings = tied || scaled;
    spec->unscaled_head = tied && !scaled;
}

static void read_problem(struct reader *r, enum model_field_id id)
{
    if (r->spec->task != TASK_ROW_LABELS) return;
    const char *said = read_string(r, r->root, model_fields[id].row.path, NULL);
    for (int i = PROBLEM_REGRESSION; said && i < PROBLEMS; i++)
        if (!strcmp(said, label_problem_name((enum label_problem)i)))
            r->spec->problem = (enum label_problem)i;
    if (said && r->spec->problem == PROBLEM_UNSAID)
        refuse(r, PLIM_BAD_INPUT,
               "%s: key 'problem_type': '%s' is unknown; write regression, single_label_classification or "
               "multi_label_classification",
               r->name, said);
}

/* A file must not leave it at 0; only a job may, and then gets the size of a head. */
static void read_query_scalar(struct reader *r, enum model_field_id id)
{
    const char *key = field_key(r->spec->arch, id);
    read_field(r, id);
    if (key && r->spec->query_scalar < 1)
        refuse(r, PLIM_BAD_INPUT, "%s: key '%s': %lld must be at least 1", r->name, key,
               (long long)r->spec->query_scalar);
}

static void read_labels(struct reader *r, enum model_field_id id)
{
    const struct node *labels = given(r->root, "id2label");
    if (!model_has_labels(r->spec)) return;
    r->spec->num_labels = 2; /* what transformers takes */
    read_field(r, id);
    if (labels && labels->kind != NODE_MAP) wrong_kind(r, labels, "id2label", "a map");
    if (labels) r->spec->num_labels = (int64_t)node_count(labels);
}

/* Keys of our own, which other programs do not read: attention over blocks of keys. */
static void read_sparse(struct reader *r, enum model_field_id id)
{
    if (!strcmp(node_string(given(r->root, "attention_type"), ""), "sparse")) read_field(r, id);
}

/* --- rotary positions -------------------------------------------------------------------------------------
 */

/* Phi-3's first files called longrope su and yarn. */
static const char *rope_type(struct reader *r, const struct node *scaling)
{
    const char *type = read_string(r, scaling, "rope_type", read_string(r, scaling, "type", "default"));
    bool older = field_key(r->spec->arch, FIELD_LONG_ROPE) && (!strcmp(type, "su") || !strcmp(type, "yarn"));
    return older ? "longrope" : type;
}

static void read_rope_kind(struct reader *r, enum model_field_id id)
{
    const char *type = rope_type(r, r->scaling);
    if (!field_key(r->spec->arch, id)) return;
    for (int kind = 0; kind < ROPE_KIND_COUNT; kind++) {
        if (strcmp(type, rope_kind_name((enum rope_kind)kind))) continue;
        r->spec->rope.kind = (enum rope_kind)kind;
        return;
    }
    refuse(r, PLIM_UNSUPPORTED,
           "%s: rope type '%s' is not supported; supported: default, linear, llama3, yarn, longrope", r->name,
           type);
}

static void read_factors(struct reader *r, enum model_field_id id)
{
    const char *key = field_key(r->spec->arch, id);
    const struct node *list = given(r->scaling, key);
    struct rope_factors *out = field_at(&model_fields[id], r->spec);
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

/* Phi-3 has it beside the scaling. */
static void read_original(struct reader *r, enum model_field_id id)
{
    const char *beside = field_key(r->spec->arch, FIELD_LONG_ROPE);
    if (beside)
        read_value(r, r->root, beside, &model_fields[id]);
    else
        read_field(r, id);
}

/* Base and share of rotation stand beside the scaling or in it. */
static void read_rotation(struct reader *r, enum model_field_id id)
{
    const char *key = model_fields[id].row.path;
    double *partial = &r->spec->partial_rotary;
    if (!r->spec->arch->rope) return;
    read_value(r, r->root, key, &model_fields[id]);
    read_value(r, r->scaling, key, &model_fields[id]);
    if (*partial != 0 && *partial != 1 && !field_key(r->spec->arch, FIELD_PARTIAL))
        refuse(r, PLIM_UNSUPPORTED, "%s: key 'partial_rotary_factor': only 1.0 is supported", r->name);
}

static void read_local_theta(struct reader *r, enum model_field_id id)
{
    read_field(r, id);
    read_value(r, r->sliding, "rope_theta", &model_fields[id]);
}

/* Rotary parameters may be given per layer type. Those of layers without a window alone may be scaled. */
static void split_scaling(struct reader *r)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    bool nested = false, local = field_key(r->spec->arch, FIELD_LOCAL_THETA);
    for (size_t i = 0; i < node_count(r->scaling); i++) nested |= node_item(r->scaling, i)->kind == NODE_MAP;
    if (!nested) return;
    for (size_t i = 0; i < node_count(r->scaling); i++) {
        const char *key = node_item(r->scaling, i)->key;
        if (!local || (strcmp(key, types[0]) && strcmp(key, types[1])))
            refuse(r, PLIM_UNSUPPORTED, "%s: rotary parameters per layer type ('%s') are not supported",
                   r->name, key);
    }
    r->sliding = given(r->scaling, types[1]), r->scaling = given(r->scaling, types[0]);
    if (strcmp(rope_type(r, r->sliding), "default"))
        refuse(r, PLIM_UNSUPPORTED,
               "%s: rope type '%s' of sliding_attention is not supported; only default is", r->name,
               rope_type(r, r->sliding));
}

static void find_scaling(struct reader *r)
{
    if (!r->spec->arch->rope) return;
    r->scaling = given(r->root, "rope_scaling"); /* the old key wins, as in transformers */
    if (!r->scaling) r->scaling = given(r->root, "rope_parameters");
    if (r->scaling && r->scaling->kind != NODE_MAP) wrong_kind(r, r->scaling, r->scaling->key, "a map");
    if (r->status == PLIM_OK) split_scaling(r);
}

/* --- layers that differ -----------------------------------------------------------------------------------
 */

/* no_rope_layers has 1 for a layer that rotates. */
static void read_no_rope(struct reader *r, enum model_field_id id)
{
    struct model_spec *spec = r->spec;
    const struct node *list = given(r->root, field_key(spec->arch, id));
    read_field(r, FIELD_NO_ROPE_EVERY);
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

/* sliding_window and use_sliding_window, without which there is none; `absent` when only the size is missing. */
static void read_switched_window(struct reader *r, int64_t absent)
{
    bool use = false;
    read_bool(r, "use_sliding_window", &use);
    r->spec->sliding_window = use ? absent : 0;
    if (use) read_field(r, FIELD_WINDOW);
}

static void read_late_window(struct reader *r)
{
    read_switched_window(r, 4096);
    r->spec->full_every = 0;
    int first = read_count(r, "max_window_layers", 28); /* of transformers when the file has none */
    for (int i = first; i < r->spec->num_layers && i < MODEL_MAX_LAYERS; i++)
        layer_set_add(&r->spec->sliding_layers, i);
}

static void read_window(struct reader *r, enum model_field_id id)
{
    enum window_keys window = r->spec->arch->window;
    const struct node *types = given(r->root, "layer_types"), *size = node_get(r->root, "sliding_window");
    if (window == WINDOW_LATE_LAYERS) read_late_window(r);
    if (window == WINDOW_NO_ROPE) read_switched_window(r, 0);
    if (window == WINDOW_ALL_LAYERS || window == WINDOW_PATTERN) {
        if (size) r->spec->sliding_window = 0; /* which null leaves */
        read_field(r, id);
    }
    read_field(r, FIELD_FULL_EVERY);
    if (types && r->status == PLIM_OK) read_layer_types(r, types);
}

/* ----------------------------------------------------------------------------------------------------------
 */

static void (*const readers[MODEL_FIELDS])(struct reader *, enum model_field_id) = {
    [FIELD_QUERY_SCALAR] = read_query_scalar,
    [FIELD_GATED] = read_activation,
    [FIELD_UNSCALED] = read_scaled_head,
    [FIELD_LABELS] = read_labels,
    [FIELD_PROBLEM] = read_problem,
    [FIELD_THETA] = read_rotation,
    [FIELD_PARTIAL] = read_rotation,
    [FIELD_LOCAL_THETA] = read_local_theta,
    [FIELD_ROPE] = read_rope_kind,
    [FIELD_ORIGINAL] = read_original,
    [FIELD_SHORT] = read_factors,
    [FIELD_LONG] = read_factors,
    [FIELD_WINDOW] = read_window,
    [FIELD_NO_ROPE] = read_no_rope,
    [FIELD_DENSE] = read_dense,
    [FIELD_DENSE_SIZE] = read_dense_size,
    [FIELD_EOS] = read_eos,
    [FIELD_SPARSE_BLOCK] = read_sparse,
    [FIELD_LOCAL_BLOCKS] = read_sparse,
    [FIELD_GLOBAL_BLOCKS] = read_sparse,
};

static void read_fields(struct reader *r)
{
    struct model_spec *spec = r->spec;
    const struct architecture *arch = spec->arch;
    find_scaling(r);
    for (enum model_field_id id = 0; id < MODEL_FIELDS; id++) {
        const struct model_field *f = &model_fields[id];
        if (readers[id])
            readers[id](r, id);
        else if (f->row.kind != SCHEMA_NOTHING && !f->layer_rule)
            read_field(r, id);
    }
    if (field_key(arch, FIELD_QKV_BIAS)) spec->o_bias = spec->qkv_bias;
    if (given(r->root, field_key(arch, FIELD_POSITIONS))) spec->max_positions -= model_first_position(spec);
    if (spec->dropout[2] == -1) spec->dropout[2] = spec->dropout[0];
    struct rope_scaling *rope = &spec->rope;
    if (rope->kind == ROPE_YARN && !given(r->scaling, "factor") && rope->original_max_positions > 0)
        rope->factor = (double)spec->max_positions / (double)rope->original_max_positions;
}

enum plim_status hf_config_read(const struct node *root, const char *name, struct model_spec *spec,
                                struct plim_error *err)
{
    struct reader r = {.root = root, .name = name, .spec = spec, .err = err, .status = PLIM_OK};
    if (root->kind != NODE_MAP) return plim_fail(err, PLIM_BAD_INPUT, "%s: expected a map of keys", name);
    read_architecture(&r);
    if (r.status != PLIM_OK) return r.status;
    read_switches(&r);
    read_fields(&r);
    if (r.status != PLIM_OK) return r.status;
    enum plim_status status = model_complete(spec, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", name);
    return status;
}

/* For a T5 that ties its head and does not scale: a head in the files is a separate one; without it the embedding is
 * the head. */
static void find_head(const char *folder, struct model_spec *spec)
{
    struct safetensors set;
    if (!spec->unscaled_head || safetensors_open(folder, &set, NULL) != PLIM_OK) return;
    if (safetensors_find(&set, "lm_head.weight")) spec->tie_embeddings = spec->unscaled_head = false;
    safetensors_close(&set);
}

enum plim_status hf_config_load(const char *path, struct model_spec *spec, struct plim_error *err)
{
    STRBUF_AUTO file = STRBUF_INIT;
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
    return status;
}
