/* model.c - the list of architectures and what can be said of a spec from its tables alone. See model.h. */
#include "model/build.h"

#include <math.h>
#include <string.h>

#define ADDRESS(name) &arch_##name,
static const struct architecture *const architectures[] = {MODEL_ARCHITECTURES(ADDRESS)};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

const struct architecture *model_architecture_at(int i)
{
    return i >= 0 && i < ARCHITECTURES ? architectures[i] : NULL;
}

const struct architecture *model_architecture(const char *name)
{
    for (int i = 0; i < ARCHITECTURES; i++)
        if (!strcmp(architectures[i]->name, name) || !strcmp(architecture_type(architectures[i]), name))
            return architectures[i];
    return NULL;
}

const char *model_architecture_name(const struct architecture *arch) { return arch->name; }

void model_file_defaults(struct model_spec *spec, const struct architecture *arch)
{
    *spec = (struct model_spec){.arch = arch,
                                .rope_theta = arch->rope ? 10000.0 : 0.0,
                                .rope = {.beta_fast = 32, .beta_slow = 1, .truncate = true},
                                .initializer_range = 0.02,
                                .bos_token_id = -1,
                                .pad_token_id = -1,
                                .pair_scale = 20};
    arch->defaults(spec);
}

void model_defaults(struct model_spec *spec, const struct architecture *arch)
{
    model_file_defaults(spec, arch);
    spec->num_kv_heads = spec->head_dim = 0, spec->query_scalar = 0, spec->score_scale = 0;
    spec->router_losses = spec->num_experts > 0;
    model_set_dropout(spec, 0);
}

int64_t model_layer_window(const struct model_spec *spec, int layer)
{
    return layer_set_has(&spec->sliding_layers, layer) ? spec->sliding_window : 0;
}

bool model_is_encoder(const struct model_spec *spec) { return spec->arch->encoder; }

bool model_has_labels(const struct model_spec *spec)
{
    return spec->task == TASK_LABELS || spec->task == TASK_ROW_LABELS;
}

const char *label_problem_name(enum label_problem problem)
{
    static const char *const names[PROBLEMS] = {[PROBLEM_REGRESSION] = "regression",
                                                [PROBLEM_SINGLE_LABEL] = "single_label_classification",
                                                [PROBLEM_MULTI_LABEL] = "multi_label_classification"};
    return names[problem];
}

bool model_has_source(const struct model_spec *spec) { return spec->arch->source; }

const char *model_weight_prefix(const struct model_spec *spec) { return spec->arch->prefix; }

int model_layers(const struct model_spec *spec) { return spec->num_layers + spec->decoder_layers; }

int64_t model_first_position(const struct model_spec *spec)
{
    return spec->arch->positions_after_pad ? spec->pad_token_id + 1 : 0;
}

bool model_uses_rope(const struct model_spec *spec) { return spec->arch->rope; }

double model_dropout(const struct model_spec *spec, const char **key)
{
    int most = 0;
    for (int i = 1; i < MODEL_DROPOUTS; i++)
        if (spec->dropout[i] > spec->dropout[most]) most = i;
    *key = field_key(spec->arch, FIELD_DROPOUT_1 + most);
    return spec->dropout[most];
}

void model_set_dropout(struct model_spec *spec, double value)
{
    for (int i = 0; i < MODEL_DROPOUTS; i++)
        spec->dropout[i] = spec->arch->keys[FIELD_DROPOUT_1 + i] ? value : 0;
}

/* --- parameters -------------------------------------------------------------------------------------------
 */

bool param_present(const struct model_spec *spec, const struct param_row *row)
{
    if (!row->label) return false;
    switch (row->when) {
    case WHEN_QKV_BIAS:
        return spec->qkv_bias;
    case WHEN_O_BIAS:
        return spec->o_bias;
    case WHEN_MLP_BIAS:
        return spec->mlp_bias;
    case WHEN_UNTIED:
        return !spec->tie_embeddings;
    case WHEN_GATED:
        return spec->gated;
    case WHEN_PLAIN:
        return !spec->gated;
    case WHEN_DENSE:
        return model_mixtures(spec, spec->num_layers) < spec->num_layers;
    case WHEN_TYPES:
        return spec->token_types > 0;
    case WHEN_SAYS_TOKENS:
        return spec->task == TASK_TOKENS;
    case WHEN_UNTIED_TOKENS:
        return spec->task == TASK_TOKENS && !spec->tie_embeddings;
    case WHEN_SAYS_LABELS:
        return spec->task == TASK_LABELS;
    case WHEN_LABELS_ROWS:
        return spec->task == TASK_ROW_LABELS;
    case WHEN_ANY_LABELS:
        return model_has_labels(spec);
    default:
        return true;
    }
}

int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim)
{
    static const enum model_field_id fields[] = {
        [DIM_V] = FIELD_VOCAB,       [DIM_C] = FIELD_HIDDEN,       [DIM_F] = FIELD_INNER,
        [DIM_D] = FIELD_HEAD_DIM,    [DIM_E] = FIELD_EXPERTS,      [DIM_H] = FIELD_HEADS,
        [DIM_TYPES] = FIELD_TYPES,   [DIM_SHARED] = FIELD_SHARED,  [DIM_DENSE] = FIELD_DENSE_SIZE,
        [DIM_LABELS] = FIELD_LABELS, [DIM_BUCKETS] = FIELD_BUCKETS};
    switch (dim) {
    case DIM_NONE:
    case DIM_ONE:
        return 1;
    case DIM_2F:
        return 2 * spec->intermediate_size;
    case DIM_P:
        return spec->max_positions + model_first_position(spec);
    case DIM_HD:
        return (int64_t)spec->num_heads * spec->head_dim;
    case DIM_KD:
        return (int64_t)spec->num_kv_heads * spec->head_dim;
    case DIM_QKV:
        return (int64_t)(spec->num_heads + 2 * spec->num_kv_heads) * spec->head_dim;
    default:
        return (int64_t)field_number(&model_fields[fields[dim]], spec);
    }
}

bool param_in_layer(const struct model_spec *spec, const struct param_row *row, int layer)
{
    if (row->when != WHEN_MIXTURE && row->when != WHEN_DENSE) return true;
    return layer_set_has(&spec->dense_layers, layer) == (row->when == WHEN_DENSE);
}

int model_mixtures(const struct model_spec *spec, int layers)
{
    int count = 0;
    for (int i = 0; i < layers; i++) count += !layer_set_has(&spec->dense_layers, i);
    return count;
}

int param_copies(const struct model_spec *spec, const struct param_row *row)
{
    if (!strstr(row->label, "%d")) return 1;
    bool second = spec->arch->source && !strncmp(row->label, "decoder.", strlen("decoder."));
    int layers = second ? spec->decoder_layers : spec->num_layers, copies = 0;
    for (int i = 0; i < layers; i++) copies += param_in_layer(spec, row, i);
    return copies;
}

int64_t model_param_count(const struct model_spec *spec)
{
    int64_t total = 0;
    for (int i = 0; i < spec->arch->nparams; i++) {
        const struct param_row *row = &spec->arch->params[i];
        if (!param_present(spec, row)) continue;
        int64_t count = param_copies(spec, row);
        for (int k = 0; k < 3; k++) count *= param_dim_size(spec, row->dim[k]);
        total += count;
    }
    return total;
}

/* T5's rules: a share of the factor. */
static struct param_init init_by_size(const struct model_spec *spec, const struct param_row *row)
{
    int64_t width = row->rule == RULE_BY_HIDDEN ? spec->hidden_size : param_dim_size(spec, row->dim[1]);
    double std = spec->initializer_range / sqrt((double)width);
    struct param_init init = {INIT_NORMAL, .std = (float)std};
    if (row->rule == RULE_QUERIES_BY_WIDTH) {
        init.narrow = param_dim_size(spec, DIM_HD) * width;
        init.narrow_std = (float)(std / sqrt((double)spec->head_dim));
    }
    return init;
}

static struct param_init init_of_rule(const struct model_spec *spec, enum param_rule rule)
{
    float std = (float)spec->initializer_range;
    switch (rule) {
    case RULE_ONES:
        return (struct param_init){.kind = INIT_ONES};
    case RULE_ZEROS:
        return (struct param_init){.kind = INIT_ZEROS};
    case RULE_RESIDUAL:
        std = (float)(spec->initializer_range / sqrt(2.0 * spec->num_layers)); /* fall through */
    default:
        return (struct param_init){.kind = INIT_NORMAL, .std = std};
    }
}

/* The row of a label; NULL: there is none. */
static const struct param_row *row_of(const struct model_spec *spec, const char *label)
{
    for (int i = 0; i < spec->arch->nparams; i++) {
        const struct param_row *row = &spec->arch->params[i];
        if (row->label && !strcmp(row->label, label)) return row;
    }
    return NULL;
}

struct param_init model_param_init(const struct model_spec *spec, const char *label)
{
    const struct param_row *row = row_of(spec, label);
    if (row && row->rule >= RULE_BY_WIDTH) return init_by_size(spec, row);
    return init_of_rule(spec, row ? row->rule : RULE_NORMAL);
}

bool model_param_is_head(const struct model_spec *spec, const char *label)
{
    const struct param_row *row = row_of(spec, label);
    return row && row->when >= WHEN_SAYS_TOKENS;
}

/* Keeps every tensor's element count far from overflow. */
#define MAX_TOKENS (INT64_C(1) << 31)

/* --- the tape ---------------------------------------------------------------------------------------------
 */

static enum plim_status check_flat(const struct model_shape *shape, struct plim_error *err)
{
    const struct model_flat *flat = &shape->flat;
    bool good = shape->batch == 1 && shape->time == flat->tokens && shape->kv_length == 0 &&
                shape->head == HEAD_LAST_LOGITS && flat->rows >= 1 && flat->blocks >= 1 && flat->reach >= 1 &&
                (!flat->samples || flat->rows <= flat->tokens);
    return good ? PLIM_OK : plim_fail(err, PLIM_BUG, "a flat shape whose sizes do not agree");
}

static enum plim_status check_shape(const struct model_spec *spec, const struct model_shape *shape,
                                    struct plim_error *err)
{
    if (shape->batch < 1 || shape->time < 1 || shape->kv_length < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "batch size and sequence length must be at least 1");
    int64_t longest = shape->kv_length > shape->time ? shape->kv_length : shape->time;
    if (!shape->flat.tokens && longest > spec->max_positions)
        return plim_fail(
            err, PLIM_BAD_INPUT, "sequence length %lld is beyond the model's '%s' %lld; use at most that",
            (long long)longest, field_name(spec->arch, FIELD_POSITIONS), (long long)spec->max_positions);
    if (shape->batch > MAX_TOKENS / shape->time || shape->batch > MAX_TOKENS / longest)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "batch size %lld times sequence length %lld is beyond 2^31 tokens",
                         (long long)shape->batch, (long long)longest);
    if (shape->kv_length > 0 && (shape->head == HEAD_LOSS || shape->head == HEAD_PREFERENCE))
        return plim_fail(err, PLIM_BUG, "a tape with a cache has no loss");
    if (shape->kv_length > 0 && shape->kv_length < shape->time)
        return plim_fail(err, PLIM_BAD_INPUT, "a cache of %lld positions cannot take %lld tokens",
                         (long long)shape->kv_length, (long long)shape->time);
    if (spec->arch->source != (shape->source_time > 0) || shape->source_time > MAX_TOKENS / shape->batch)
        return plim_fail(err, PLIM_BUG, "an encoder-decoder, and no other, has a source of some tokens");
    if (shape->flat.tokens && spec->sparse_block > 0)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "block-sparse attention (attention_type: sparse) is for training and evaluation; it "
                         "cannot generate text");
    if (shape->flat.tokens) return check_flat(shape, err);
    if (shape->head == HEAD_LAST_LOGITS && shape->batch > 1 && shape->time > 1)
        return plim_fail(err, PLIM_BUG, "last-token logits need batch 1 or time 1");
    return PLIM_OK;
}

/* Heads by what they want: a task of the model, or that it is an encoder. */
static enum plim_status check_head(const struct model_spec *spec, const struct model_shape *shape,
                                   struct plim_error *err)
{
    enum model_head head = shape->head;
    bool labels = head == HEAD_LABELS || head == HEAD_LABEL_LOGITS || head == HEAD_ROW_LOGITS;
    bool vectors = head == HEAD_EMBEDDING || head == HEAD_PAIRS;
    const char *name = spec->arch->name;
    if (spec->arch->encoder ? head == HEAD_LAST_LOGITS || shape->kv_length > 0 : labels || vectors)
        return plim_fail(
            err, PLIM_UNSUPPORTED, "a %s model %s", name,
            spec->arch->encoder
                ? "cannot generate text; use plimsoll embed or plimsoll classify"
                : "generates text; labels and vectors need an encoder (bert, roberta, distilbert)");
    if (head == HEAD_SOURCE && (!spec->arch->source || shape->kv_length == 0))
        return plim_fail(err, PLIM_BUG, "a %s model has no source to keep", name);
    if (labels && spec->task != (head == HEAD_ROW_LOGITS ? TASK_ROW_LABELS : TASK_LABELS))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "this %s model has no label head; train one, or use a model with labels", name);
    if (!labels && !vectors && spec->task != TASK_TOKENS)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "this %s model has no head for tokens; use a masked-language model", name);
    if ((head == HEAD_PAIRS || head == HEAD_PREFERENCE) && shape->batch % 2)
        return plim_fail(err, PLIM_BAD_INPUT, "%lld rows do not form pairs; use an even batch size",
                         (long long)shape->batch);
    return PLIM_OK;
}

enum plim_status model_emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape,
                            struct plim_error *err)
{
    enum plim_status status = model_validate(spec, err);
    if (status == PLIM_OK) status = check_head(spec, shape, err);
    if (status == PLIM_OK) status = check_shape(spec, shape, err);
    if (status != PLIM_OK) return status;
    struct builder b = {.spec = spec,
                        .shape = shape,
                        .tape = tape,
                        .layer = -1,
                        .part = PART_FORWARD,
                        .types = -1,
                        .lengths = -1,
                        .bias = -1};
    spec->arch->emit(&b);
    tape->loop_end = tape->nops;
    if (tape->failed) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the tape was made");
    return PLIM_OK; /* the executor verifies it: the search makes many and executes one */
}
