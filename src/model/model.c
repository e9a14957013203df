/* model.c - the list of architectures and what can be said of a spec from its tables alone. See model.h. */
#include "model/build.h"

#include <math.h>
#include <string.h>

static const struct architecture *const architectures[] = {&arch_llama, &arch_mistral, &arch_qwen2,
                                                           &arch_gpt2};
enum { ARCHITECTURES = sizeof architectures / sizeof architectures[0] };

const struct architecture *model_architecture_at(int i)
{
    return i >= 0 && i < ARCHITECTURES ? architectures[i] : NULL;
}

const struct architecture *model_architecture(const char *name)
{
    for (int i = 0; i < ARCHITECTURES; i++)
        if (!strcmp(architectures[i]->name, name) || !strcmp(architectures[i]->hf_type, name))
            return architectures[i];
    return NULL;
}

const char *model_architecture_name(const struct architecture *arch) { return arch->name; }

void model_defaults(struct model_spec *spec, const struct architecture *arch)
{
    *spec = (struct model_spec){.arch = arch,
                                .rope_theta = arch->rope ? 10000.0 : 0.0,
                                .initializer_range = 0.02,
                                .bos_token_id = -1,
                                .pad_token_id = -1};
    arch->defaults(spec);
}

int64_t model_layer_window(const struct model_spec *spec, int layer)
{
    return layer >= spec->window_first_layer ? spec->sliding_window : 0;
}

bool model_uses_rope(const struct model_spec *spec) { return spec->arch->rope; }

double model_dropout(const struct model_spec *spec, const char **key)
{
    int most = 0;
    for (int i = 1; i < MODEL_DROPOUTS; i++)
        if (spec->dropout[i] > spec->dropout[most]) most = i;
    *key = spec->arch->keys->dropout[most];
    return spec->dropout[most];
}

void model_set_dropout(struct model_spec *spec, double value)
{
    for (int i = 0; i < MODEL_DROPOUTS; i++) spec->dropout[i] = spec->arch->keys->dropout[i] ? value : 0;
}

/* --- parameters -------------------------------------------------------------------------------------------
 */

bool param_present(const struct model_spec *spec, const struct param_row *row)
{
    switch (row->when) {
    case WHEN_QKV_BIAS:
        return spec->qkv_bias;
    case WHEN_O_BIAS:
        return spec->o_bias;
    case WHEN_MLP_BIAS:
        return spec->mlp_bias;
    case WHEN_UNTIED:
        return !spec->tie_embeddings;
    default:
        return true;
    }
}

int64_t param_dim_size(const struct model_spec *spec, enum param_dim dim)
{
    switch (dim) {
    case DIM_V:
        return spec->vocab_size;
    case DIM_C:
        return spec->hidden_size;
    case DIM_F:
        return spec->intermediate_size;
    case DIM_P:
        return spec->max_positions;
    case DIM_HD:
        return (int64_t)spec->num_heads * spec->head_dim;
    case DIM_QKV:
        return (int64_t)(spec->num_heads + 2 * spec->num_kv_heads) * spec->head_dim;
    default:
        return 1;
    }
}

int64_t model_param_count(const struct model_spec *spec)
{
    int64_t total = 0;
    for (int i = 0; i < spec->arch->nparams; i++) {
        const struct param_row *row = &spec->arch->params[i];
        if (!param_present(spec, row)) continue;
        int64_t copies = strstr(row->label, "%d") ? spec->num_layers : 1;
        total += copies * param_dim_size(spec, row->dim[0]) * param_dim_size(spec, row->dim[1]);
    }
    return total;
}

static struct param_init init_of_rule(const struct model_spec *spec, enum param_rule rule)
{
    float std = (float)spec->initializer_range;
    switch (rule) {
    case RULE_ONES:
        return (struct param_init){INIT_ONES, 0};
    case RULE_ZEROS:
        return (struct param_init){INIT_ZEROS, 0};
    case RULE_RESIDUAL:
        std = (float)(spec->initializer_range / sqrt(2.0 * spec->num_layers)); /* fall through */
    default:
        return (struct param_init){INIT_NORMAL, std};
    }
}

struct param_init model_param_init(const struct model_spec *spec, const char *label)
{
    for (int i = 0; i < spec->arch->nparams; i++)
        if (!strcmp(spec->arch->params[i].label, label))
            return init_of_rule(spec, spec->arch->params[i].rule);
    return init_of_rule(spec, RULE_NORMAL);
}

/* Keeps every tensor's element count far from overflow. */
#define MAX_TOKENS (INT64_C(1) << 31)

/* --- the tape ---------------------------------------------------------------------------------------------
 */

static enum plim_status check_flat(const struct model_shape *shape, struct plim_error *err)
{
    const struct model_flat *flat = &shape->flat;
    bool good = shape->batch == 1 && shape->time == flat->tokens && shape->kv_length == 0 &&
                shape->head == HEAD_LAST_LOGITS && flat->rows >= 1 && flat->blocks >= 1 && flat->reach >= 1;
    return good ? PLIM_OK : plim_fail(err, PLIM_BUG, "a flat shape whose sizes do not agree");
}

static enum plim_status check_shape(const struct model_spec *spec, const struct model_shape *shape,
                                    struct plim_error *err)
{
    if (shape->batch < 1 || shape->time < 1 || shape->kv_length < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "batch size and sequence length must be at least 1");
    int64_t longest = shape->kv_length > shape->time ? shape->kv_length : shape->time;
    if (!shape->flat.tokens && longest > spec->max_positions)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "sequence length %lld is beyond the model's '%s' %lld; use at most that",
                         (long long)longest, spec->arch->keys->positions, (long long)spec->max_positions);
    if (shape->batch > MAX_TOKENS / shape->time || shape->batch > MAX_TOKENS / longest)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "batch size %lld times sequence length %lld is beyond 2^31 tokens",
                         (long long)shape->batch, (long long)longest);
    if (shape->kv_length > 0 && shape->head == HEAD_LOSS)
        return plim_fail(err, PLIM_BUG, "a tape with a cache has no loss");
    if (shape->kv_length > 0 && shape->kv_length < shape->time)
        return plim_fail(err, PLIM_BAD_INPUT, "a cache of %lld positions cannot take %lld tokens",
                         (long long)shape->kv_length, (long long)shape->time);
    if (shape->flat.tokens) return check_flat(shape, err);
    if (shape->head == HEAD_LAST_LOGITS && shape->batch > 1 && shape->time > 1)
        return plim_fail(err, PLIM_BUG, "last-token logits need batch 1 or time 1");
    return PLIM_OK;
}

enum plim_status model_emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape,
                            struct plim_error *err)
{
    enum plim_status status = model_validate(spec, err);
    if (status == PLIM_OK) status = check_shape(spec, shape, err);
    if (status != PLIM_OK) return status;
    struct builder b = {.spec = spec, .shape = shape, .tape = tape, .layer = -1, .part = PART_FORWARD};
    spec->arch->emit(&b);
    tape->loop_end = tape->nops;
    if (tape->failed) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the tape was made");
    return PLIM_OK; /* the executor verifies it: the search makes many and executes one */
}
