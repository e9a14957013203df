/* validate.c - whether a spec's numbers agree. See model.h.
 *
 * Limits on single sizes are far above any model and low enough that no product of them overflows int64, so
 * that everything after validation may multiply freely. Errors use the names config.json has for the keys.
 */
#include "model/arch.h"

#include <math.h>

struct size_rule {
    const char *key;
    int64_t value, least, most;
};

static enum plim_status check_sizes(const struct model_spec *spec, struct plim_error *err)
{
    const struct model_keys *keys = spec->arch->keys;
    const struct size_rule rules[] = {
        {"vocab_size", spec->vocab_size, 2, INT64_C(1) << 24},
        {keys->hidden, spec->hidden_size, 1, INT64_C(1) << 18},
        {keys->intermediate, spec->intermediate_size, 1, INT64_C(1) << 20},
        {keys->layers, spec->num_layers, 1, 4096},
        {keys->heads, spec->num_heads, 1, 8192},
        {keys->positions, spec->max_positions, 1, INT64_C(1) << 30},
        {"sliding_window", spec->sliding_window, 0, INT64_C(1) << 30},
        {"type_vocab_size", spec->token_types, 0, INT64_C(1) << 24},
        {"num_labels", spec->num_labels, spec->task == TASK_LABELS, INT64_C(1) << 24},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct size_rule *r = &rules[i];
        if (r->value < r->least || r->value > r->most)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "key '%s': %lld is out of range; it must be from %lld to %lld", r->key,
                             (long long)r->value, (long long)r->least, (long long)r->most);
    }
    return PLIM_OK;
}

/* The divisor of n nearest to wanted; the smaller one of two equally near. */
static int64_t nearest_divisor(int64_t n, int64_t wanted)
{
    for (int64_t step = 0; step < n; step++) {
        if (wanted - step >= 1 && n % (wanted - step) == 0) return wanted - step;
        if (n % (wanted + step) == 0) return wanted + step;
    }
    return 1;
}

static enum plim_status check_heads(const struct model_spec *spec, struct plim_error *err)
{
    const struct model_keys *keys = spec->arch->keys;
    if (spec->head_dim == 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key '%s': %d heads do not divide '%s' %lld; the nearest number that does is %lld",
                         keys->heads, spec->num_heads, keys->hidden, (long long)spec->hidden_size,
                         (long long)nearest_divisor(spec->hidden_size, spec->num_heads));
    if (spec->num_kv_heads < 1 || spec->num_kv_heads > spec->num_heads ||
        spec->num_heads % spec->num_kv_heads)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key '%s': %d key heads do not divide '%s' %d; the nearest number that does is %lld",
                         keys->kv_heads ? keys->kv_heads : "num_key_value_heads", spec->num_kv_heads,
                         keys->heads, spec->num_heads,
                         (long long)nearest_divisor(spec->num_heads, spec->num_kv_heads));
    if (spec->head_dim < 1 || spec->head_dim > 256) /* the most attention kernels take */
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'head_dim': heads of %d numbers are out of range; they must have 1 to 256, e.g. with "
            "more heads",
            spec->head_dim);
    if (spec->arch->rope && spec->head_dim % 2)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "head size %d ('head_dim', or '%s' %lld / '%s' %d) is odd, and rotary positions turn "
            "pairs; use %d",
            spec->head_dim, keys->hidden, (long long)spec->hidden_size, keys->heads, spec->num_heads,
            spec->head_dim + 1);
    return PLIM_OK;
}

static enum plim_status check_rope(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_scaling *r = &spec->rope;
    if (!spec->arch->rope && spec->rope_theta != 0)
        return plim_fail(err, PLIM_UNSUPPORTED, "key 'rope_theta': %s has learned positions; remove the key",
                         spec->arch->name);
    if (!spec->arch->rope) return PLIM_OK;
    if (!(spec->rope_theta >= 1.0) || !isfinite(spec->rope_theta))
        return plim_fail(err, PLIM_BAD_INPUT, "key 'rope_theta': %g must be at least 1; usual is 10000",
                         spec->rope_theta);
    if (r->kind != ROPE_NONE && (!(r->factor >= 1.0) || !isfinite(r->factor)))
        return plim_fail(err, PLIM_BAD_INPUT, "rope scaling: key 'factor': %g must be at least 1", r->factor);
    if (r->kind != ROPE_LLAMA3) return PLIM_OK;
    if (!(r->low_freq_factor > 0) || !(r->high_freq_factor > r->low_freq_factor) ||
        !isfinite(r->high_freq_factor))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "rope scaling: 'high_freq_factor' %g must be greater than 'low_freq_factor' %g; usual are "
            "4 and 1",
            r->high_freq_factor, r->low_freq_factor);
    if (r->original_max_positions < 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "rope scaling: key 'original_max_position_embeddings': %lld must be at least 1",
                         (long long)r->original_max_positions);
    return PLIM_OK;
}

/* A window that the architecture's config.json cannot say would be lost with the first checkpoint. */
static enum plim_status check_window(const struct model_spec *spec, struct plim_error *err)
{
    if (spec->sliding_window == 0 || spec->arch->window != WINDOW_NEVER) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "key 'sliding_window': %s sees every position and its config.json has no such key; remove "
        "it, or write architecture: mistral",
        spec->arch->name);
}

enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err)
{
    enum plim_status status = check_sizes(spec, err);
    if (status == PLIM_OK) status = check_heads(spec, err);
    if (status == PLIM_OK) status = check_rope(spec, err);
    if (status == PLIM_OK) status = check_window(spec, err);
    if (status != PLIM_OK) return status;
    if (!(spec->norm_eps > 0) || !isfinite(spec->norm_eps))
        return plim_fail(err, PLIM_BAD_INPUT, "key '%s': %g must be above 0; usual is 1e-5",
                         spec->arch->keys->norm_eps ? spec->arch->keys->norm_eps : "layer_norm_eps",
                         spec->norm_eps);
    if (!(spec->initializer_range >= 0) || spec->initializer_range > 100)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'initializer_range': %g must be from 0 to 100; usual is 0.02",
                         spec->initializer_range);
    return spec->arch->check ? spec->arch->check(spec, err) : PLIM_OK;
}

/* Token ids outside the vocabulary (an architecture's default beside a small one) can never occur. */
static void drop_unreachable_tokens(struct model_spec *spec)
{
    int kept = 0;
    for (int i = 0; i < spec->eos_count; i++)
        if (spec->eos_token_ids[i] >= 0 && spec->eos_token_ids[i] < spec->vocab_size)
            spec->eos_token_ids[kept++] = spec->eos_token_ids[i];
    spec->eos_count = kept;
    if (spec->bos_token_id >= spec->vocab_size) spec->bos_token_id = -1;
    if (spec->pad_token_id >= spec->vocab_size) spec->pad_token_id = -1;
}

/* Numbers that this kind of scaling does not read say nothing. */
static void drop_unused_scaling(struct rope_scaling *rope)
{
    struct rope_scaling used = {.kind = rope->kind};
    if (rope->kind != ROPE_NONE) used.factor = rope->factor;
    if (rope->kind == ROPE_LLAMA3) used = *rope;
    *rope = used;
}

enum plim_status model_complete(struct model_spec *spec, struct plim_error *err)
{
    if (spec->num_kv_heads == 0) spec->num_kv_heads = spec->num_heads;
    if (spec->head_dim == 0 && spec->num_heads > 0 && spec->hidden_size % spec->num_heads == 0)
        spec->head_dim = (int)(spec->hidden_size / spec->num_heads);
    if (spec->intermediate_size == 0)
        spec->intermediate_size = spec->arch->inner_multiple * spec->hidden_size;
    if (spec->sliding_window == 0) spec->window_first_layer = 0;
    if (spec->rope.kind == ROPE_LLAMA3 && spec->rope.original_max_positions == 0)
        spec->rope.original_max_positions = spec->max_positions;
    drop_unused_scaling(&spec->rope);
    drop_unreachable_tokens(spec);
    return model_validate(spec, err);
}
