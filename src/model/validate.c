/* validate.c - whether a spec's numbers agree. See model.h.
 *
 * Limits on single sizes are far above any model and low enough that no product of them overflows int64, so
 * that everything after validation may multiply freely. Errors use the names config.json has for the keys.
 */
#include "model/arch.h"

#include <math.h>
#include <string.h>

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
        {keys->layers, spec->num_layers, 1, MODEL_MAX_LAYERS},
        {keys->heads, spec->num_heads, 1, 8192},
        {keys->positions ? keys->positions : "max_position_embeddings", spec->max_positions, 1,
         INT64_C(1) << 30},
        {"sliding_window", spec->sliding_window, 0, INT64_C(1) << 30},
        {"type_vocab_size", spec->token_types, 0, INT64_C(1) << 24},
        {"num_labels", spec->num_labels, model_has_labels(spec), INT64_C(1) << 24},
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
    if (spec->head_dim < 1 || spec->head_dim > MODEL_MAX_HEAD)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'head_dim': heads of %d numbers are out of range; they must have 1 to 256, e.g. with "
            "more heads",
            spec->head_dim);
    if (spec->arch->rope && spec->partial_rotary == 0 && spec->head_dim % 2)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "head size %d ('head_dim', or '%s' %lld / '%s' %d) is odd, and rotary positions turn "
            "pairs; use %d",
            spec->head_dim, keys->hidden, (long long)spec->hidden_size, keys->heads, spec->num_heads,
            spec->head_dim + 1);
    return PLIM_OK;
}

static enum plim_status check_rotation(const struct model_spec *spec, struct plim_error *err)
{
    int size = model_rotary_size(spec);
    double local = spec->rope_local_theta;
    if (!(spec->rope_theta >= 1.0) || !isfinite(spec->rope_theta))
        return plim_fail(err, PLIM_BAD_INPUT, "key 'rope_theta': %g must be at least 1; usual is 10000",
                         spec->rope_theta);
    if (local != 0 && !spec->arch->extras.local_theta)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'rope_local_base_freq': %s rotates all layers alike; remove the key",
                         spec->arch->name);
    if (local != 0 && (!(local >= 1.0) || !isfinite(local)))
        return plim_fail(err, PLIM_BAD_INPUT, "key 'rope_local_base_freq': %g must be at least 1", local);
    if (spec->partial_rotary != 0 && !spec->arch->extras.partial_rotary)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'partial_rotary_factor': %s rotates whole heads; remove the key",
                         spec->arch->name);
    if (size < 2 || size % 2 || size > spec->head_dim)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'partial_rotary_factor': %g of heads of %d numbers is %d, and an even number "
                         "from 2 to %d can be rotated",
                         spec->partial_rotary, spec->head_dim, size, spec->head_dim);
    return PLIM_OK;
}

static enum plim_status check_llama3(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_scaling *r = &spec->rope;
    if (r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor && isfinite(r->high_freq_factor))
        return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "rope scaling: 'high_freq_factor' %g must be greater than 'low_freq_factor' %g; usual are "
        "4 and 1",
        r->high_freq_factor, r->low_freq_factor);
}

static enum plim_status check_yarn(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_scaling *r = &spec->rope;
    if (r->beta_slow > 0 && r->beta_fast >= r->beta_slow && isfinite(r->beta_fast)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "rope scaling: 'beta_fast' %g must be at least 'beta_slow' %g; usual are 32 and 1",
                     r->beta_fast, r->beta_slow);
}

static enum plim_status check_longrope(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_factors *lists[] = {&spec->rope.short_factor, &spec->rope.long_factor};
    int wanted = model_rotary_size(spec) / 2;
    if (spec->rope_local_theta > 0)
        return plim_fail(err, PLIM_UNSUPPORTED, "rope scaling: %s with 'longrope' is not supported",
                         spec->arch->name);
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "long_factor" : "short_factor";
        if (lists[i]->count != wanted)
            return plim_fail(err, PLIM_BAD_INPUT, "rope scaling: key '%s' has %d numbers and must have %d",
                             key, lists[i]->count, wanted);
        for (int k = 0; k < wanted; k++)
            if (!(lists[i]->value[k] > 0) || !isfinite(lists[i]->value[k]))
                return plim_fail(err, PLIM_BAD_INPUT, "rope scaling: key '%s': %g must be above 0", key,
                                 lists[i]->value[k]);
    }
    return PLIM_OK;
}

static enum plim_status check_scaling(const struct model_spec *spec, struct plim_error *err)
{
    static enum plim_status (*const checks[ROPE_KIND_COUNT])(const struct model_spec *,
                                                             struct plim_error *) = {
        [ROPE_LLAMA3] = check_llama3, [ROPE_YARN] = check_yarn, [ROPE_LONGROPE] = check_longrope};
    const struct rope_scaling *r = &spec->rope;
    bool derived = r->kind == ROPE_LONGROPE && r->factor == 0;
    if (r->kind == ROPE_NONE) return PLIM_OK;
    if (spec->arch->extras.long_rope && r->kind != ROPE_LONGROPE)
        return plim_fail(err, PLIM_UNSUPPORTED, "rope type '%s' is not supported; %s models have longrope",
                         rope_kind_name(r->kind), spec->arch->name);
    if (!derived && (!(r->factor >= 1.0) || !isfinite(r->factor)))
        return plim_fail(err, PLIM_BAD_INPUT, "rope scaling: key 'factor': %g must be at least 1", r->factor);
    if (!(r->attention_factor >= 0) || !isfinite(r->attention_factor))
        return plim_fail(err, PLIM_BAD_INPUT, "rope scaling: key 'attention_factor': %g must be above 0",
                         r->attention_factor);
    enum plim_status status = checks[r->kind] ? checks[r->kind](spec, err) : PLIM_OK;
    if (status != PLIM_OK || r->kind == ROPE_LINEAR || r->original_max_positions > 1) return status;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "rope scaling: key 'original_max_position_embeddings': %lld must be above 1",
                     (long long)r->original_max_positions);
}

static enum plim_status check_rope(const struct model_spec *spec, struct plim_error *err)
{
    if (!spec->arch->rope && spec->rope_theta != 0)
        return plim_fail(err, PLIM_UNSUPPORTED, "key 'rope_theta': %s has %s positions; remove the key",
                         spec->arch->name, spec->arch->source ? "relative" : "learned");
    if (!spec->arch->rope) return PLIM_OK;
    enum plim_status status = check_rotation(spec, err);
    return status == PLIM_OK ? check_scaling(spec, err) : status;
}

static bool is_positive(double x) { return x >= 0 && isfinite(x); }

/* What only some architectures have. */
static enum plim_status check_extras(const struct model_spec *spec, struct plim_error *err)
{
    const struct model_extras *have = &spec->arch->extras;
    static const struct layer_set none;
    const struct {
        const char *key;
        bool known, used, good;
    } rules[] = {
        {"query_pre_attn_scalar", have->caps, spec->query_scalar != 0, spec->query_scalar >= 0},
        {"attn_logit_softcapping", have->attn_cap, spec->attn_cap != 0, is_positive(spec->attn_cap)},
        {"final_logit_softcapping", have->caps, spec->final_cap != 0, is_positive(spec->final_cap)},
        {"no_rope_layer_interval", have->no_rope, memcmp(&spec->no_rope_layers, &none, sizeof none) != 0,
         true},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].used && !rules[i].known)
            return plim_fail(err, PLIM_UNSUPPORTED, "key '%s': %s has no such thing; remove the key",
                             rules[i].key, spec->arch->name);
        if (!rules[i].good) return plim_fail(err, PLIM_BAD_INPUT, "key '%s' must be above 0", rules[i].key);
    }
    return PLIM_OK;
}

/* A shared expert, and layers without experts. */
static enum plim_status check_mixture(const struct model_spec *spec, struct plim_error *err)
{
    const struct model_extras *have = &spec->arch->extras;
    if (!have->shared_expert && spec->shared_size)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'shared_expert_intermediate_size': %s has no shared expert; remove the key, or "
                         "write architecture: qwen2_moe",
                         spec->arch->name);
    if (have->shared_expert && (spec->shared_size < 1 || spec->shared_size > INT64_C(1) << 20))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'shared_expert_intermediate_size': %lld is out of range; it must be from 1 to %d",
            (long long)spec->shared_size, 1 << 20);
    int mixtures = model_mixtures(spec, spec->num_layers);
    if (mixtures < 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'mlp_only_layers': no layer has experts then; write the model without them as %s",
            "qwen2 or qwen3");
    if (mixtures < spec->num_layers && (spec->dense_size < 1 || spec->dense_size > INT64_C(1) << 20))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'intermediate_size': %lld is out of range; it must be from 1 to %d",
                         (long long)spec->dense_size, 1 << 20);
    return PLIM_OK;
}

static enum plim_status check_experts(const struct model_spec *spec, struct plim_error *err)
{
    const char *key = spec->arch->keys->experts;
    bool any = spec->num_experts || spec->experts_per_token || spec->z_coef != 0;
    if (!key && any)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "key 'num_experts': %s has no experts; remove the key, or write "
                         "architecture: mixtral, qwen2_moe, qwen3_moe or olmoe",
                         spec->arch->name);
    enum plim_status status = check_mixture(spec, err);
    if (!key || status != PLIM_OK) return status;
    if (spec->num_experts < 1 || spec->num_experts > MODEL_MAX_EXPERTS)
        return plim_fail(err, PLIM_BAD_INPUT, "key '%s': %d is out of range; it must be from 1 to %d", key,
                         spec->num_experts, MODEL_MAX_EXPERTS);
    if (spec->experts_per_token < 1 || spec->experts_per_token > spec->num_experts)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'num_experts_per_tok': %d of '%s' %d experts; it must be from 1 to %d",
                         spec->experts_per_token, key, spec->num_experts, spec->num_experts);
    if (!is_positive(spec->balance_coef) || !is_positive(spec->z_coef))
        return plim_fail(err, PLIM_BAD_INPUT, "key '%s': %g must be at least 0",
                         is_positive(spec->balance_coef) ? "router_z_loss_coef" : "router_aux_loss_coef",
                         is_positive(spec->balance_coef) ? spec->z_coef : spec->balance_coef);
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

static enum plim_status check_sparse(const struct model_spec *spec, struct plim_error *err)
{
    if (spec->sparse_block == 0) return PLIM_OK;
    if (spec->arch->encoder || spec->arch->source)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "key 'attention_type': sparse attention looks back, and %s reads rows whole; write flash",
            spec->arch->name);
    if (spec->sliding_window > 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'attention_type': sparse attention and a sliding_window of %lld exclude each other; "
            "keep one",
            (long long)spec->sliding_window);
    const struct size_rule rules[] = {{"sparse_block_size", spec->sparse_block, 1, 1 << 20},
                                      {"num_local_blocks", spec->local_blocks, 1, 1 << 20},
                                      {"num_global_blocks", spec->global_blocks, 0, 1 << 20}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].value < rules[i].least || rules[i].value > rules[i].most)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "key '%s': %lld is out of range; it must be from %lld to %lld", rules[i].key,
                             (long long)rules[i].value, (long long)rules[i].least, (long long)rules[i].most);
    return PLIM_OK;
}

enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err)
{
    enum plim_status status = check_sizes(spec, err);
    if (status == PLIM_OK) status = check_heads(spec, err);
    if (status == PLIM_OK) status = check_rope(spec, err);
    if (status == PLIM_OK) status = check_window(spec, err);
    if (status == PLIM_OK) status = check_extras(spec, err);
    if (status == PLIM_OK) status = check_experts(spec, err);
    if (status == PLIM_OK) status = check_sparse(spec, err);
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
    struct rope_scaling used = {.kind = rope->kind}, given = *rope;
    if (rope->kind != ROPE_NONE) used.factor = given.factor;
    if (rope->kind >= ROPE_LLAMA3) used.original_max_positions = given.original_max_positions;
    if (rope->kind == ROPE_LLAMA3)
        used.low_freq_factor = given.low_freq_factor, used.high_freq_factor = given.high_freq_factor;
    if (rope->kind >= ROPE_YARN) used.attention_factor = given.attention_factor;
    if (rope->kind == ROPE_YARN) {
        used.beta_fast = given.beta_fast, used.beta_slow = given.beta_slow, used.truncate = given.truncate;
        used.mscale = given.mscale, used.mscale_all_dim = given.mscale_all_dim;
    }
    if (rope->kind == ROPE_LONGROPE)
        used.short_factor = given.short_factor, used.long_factor = given.long_factor;
    *rope = used;
}

/* All layers but every `without`-th. */
static struct layer_set layers_but_every(int layers, int without)
{
    struct layer_set set = {0};
    for (int i = 0; i < layers; i++)
        if ((i + 1) % without) layer_set_add(&set, i);
    return set;
}

/* Rules become sets. */
static void settle_layers(struct model_spec *spec)
{
    static const struct layer_set none;
    int layers = spec->num_layers < MODEL_MAX_LAYERS ? spec->num_layers : MODEL_MAX_LAYERS;
    if (spec->no_rope_every > 0) {
        struct layer_set rotating = layers_but_every(layers, spec->no_rope_every);
        spec->no_rope_layers = none;
        for (int i = 0; i < layers; i++)
            if (!layer_set_has(&rotating, i)) layer_set_add(&spec->no_rope_layers, i);
    }
    if (spec->full_every > 0)
        spec->sliding_layers = spec->arch->window == WINDOW_NO_ROPE
                                   ? spec->no_rope_layers
                                   : layers_but_every(layers, spec->full_every);
    spec->no_rope_every = spec->full_every = 0;
    if (spec->sliding_window == 0) spec->sliding_layers = none;
    bool nowhere = !memcmp(&spec->sliding_layers, &none, sizeof none);
    if (nowhere && spec->arch->window == WINDOW_PATTERN)
        spec->sliding_window = 0; /* its files always have one */
}

/* A rule that config.json cannot say, before it becomes a set that has none. */
static enum plim_status check_pattern(const struct model_spec *spec, struct plim_error *err)
{
    enum window_keys window = spec->arch->window;
    bool free = window == WINDOW_PATTERN || window == WINDOW_LATE_LAYERS;
    if (free || spec->full_every == 0 || spec->full_every == LAYERS_NONE) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "key 'sliding_window_pattern': %s has no such layers; remove the key", spec->arch->name);
}

enum plim_status model_check_export(const struct model_spec *spec, struct plim_error *err)
{
    const struct model_keys *keys = spec->arch->keys;
    if (!spec->arch->extras.heads_divide || spec->num_heads < 1 || spec->hidden_size % spec->num_heads == 0)
        return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "key '%s': %d heads do not divide '%s' %lld, and transformers refuses such a %s even "
                     "with head_dim, so "
                     "its export could not be loaded; the nearest number that does is %lld",
                     keys->heads, spec->num_heads, keys->hidden, (long long)spec->hidden_size,
                     spec->arch->name, (long long)nearest_divisor(spec->hidden_size, spec->num_heads));
}

enum plim_status model_complete(struct model_spec *spec, struct plim_error *err)
{
    if (spec->num_kv_heads == 0) spec->num_kv_heads = spec->num_heads;
    if (spec->head_dim == 0 && spec->num_heads > 0 && spec->hidden_size % spec->num_heads == 0)
        spec->head_dim = (int)(spec->hidden_size / spec->num_heads);
    if (spec->intermediate_size == 0)
        spec->intermediate_size = spec->arch->inner_multiple * spec->hidden_size;
    if (spec->query_scalar == 0 && spec->arch->extras.caps) spec->query_scalar = spec->head_dim;
    if (spec->partial_rotary == 1) spec->partial_rotary = 0;
    if (spec->decoder_layers == 0 && spec->arch->source) spec->decoder_layers = spec->num_layers;
    enum plim_status status = check_pattern(spec, err);
    if (status != PLIM_OK) return status;
    settle_layers(spec);
    if (spec->rope.kind >= ROPE_LLAMA3 && spec->rope.original_max_positions == 0)
        spec->rope.original_max_positions = spec->max_positions;
    drop_unused_scaling(&spec->rope);
    drop_unreachable_tokens(spec);
    return model_validate(spec, err);
}
