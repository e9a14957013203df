/* validate.c - whether a spec's numbers agree. See model.h.
 *
 * Limits on single sizes are far above any model and low enough that no product of them overflows int64, so
 * that everything after validation may multiply freely. Errors use the names config.json has for the keys.
 */
#include "base/number.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Names of the architectures that have the field, for an error: "mixtral, olmoe". */
static const char *who_has(enum model_field_id id, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = 0;
    for (int i = 0; model_architecture_at(i) && used < size; i++)
        if (field_key(model_architecture_at(i), id))
            used += (size_t)snprintf(buf + used, size - used, "%s%s", used ? ", " : "",
                                     model_architecture_at(i)->name);
    return buf;
}

/* A number that its config.json cannot say would be lost with the first checkpoint. */
static enum plim_status check_had(const struct model_spec *spec, const struct model_spec *usual,
                                  enum model_field_id id, struct plim_error *err)
{
    const struct model_field *f = &model_fields[id];
    char list[256];
    if (!memcmp((const char *)spec + f->row.offset, (const char *)usual + f->row.offset, f->size))
        return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED,
                     "key '%s': %s does not have it; remove the key, or write architecture: %s", f->row.path,
                     spec->arch->name, who_has(id, list, sizeof list));
}

static enum plim_status check_range(const struct model_spec *spec, enum model_field_id id,
                                    struct plim_error *err)
{
    const struct model_field *f = &model_fields[id];
    double value = field_number(f, spec), least = f->row.min, most = f->row.max;
    char is[NUMBER_TEXT], low[NUMBER_TEXT], high[NUMBER_TEXT];
    if (least == most || (value >= least && value <= most && !(f->min_excluded && value == least)))
        return PLIM_OK;
    number_format_double(is, value), number_format_double(low, least), number_format_double(high, most);
    return plim_fail(err, PLIM_BAD_INPUT, "%skey '%s': %s is out of range; it must be %s %s %s %s%s%s",
                     f->rope ? "rope scaling: " : "", field_name(spec->arch, id), is,
                     f->min_excluded ? "above" : "from", low, f->min_excluded ? "and at most" : "to", high,
                     f->usual ? "; usual is " : "", f->usual ? f->usual : "");
}

/* Checks every number alone: its range, and that the architecture has it. */
static enum plim_status check_fields(const struct model_spec *spec, struct plim_error *err)
{
    struct model_spec usual;
    enum plim_status status = PLIM_OK;
    model_defaults(&usual, spec->arch);
    for (enum model_field_id id = 0; id < MODEL_FIELDS && status == PLIM_OK; id++) {
        const struct model_field *f = &model_fields[id];
        bool derived = id == FIELD_FACTOR && spec->rope.kind == ROPE_LONGROPE && spec->rope.factor == 0;
        if (f->checked_elsewhere || f->layer_rule || derived) continue;
        if (f->rope && !(f->rope >> spec->rope.kind & 1)) continue;
        if (f->sparse_only && spec->sparse_block == 0) continue;
        status = field_key(spec->arch, id) ? check_range(spec, id, err) : check_had(spec, &usual, id, err);
    }
    return status;
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
    const char *heads = field_name(spec->arch, FIELD_HEADS), *hidden = field_name(spec->arch, FIELD_HIDDEN);
    if (spec->head_dim == 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key '%s': %d heads do not divide '%s' %lld; the nearest number that does is %lld",
                         heads, spec->num_heads, hidden, (long long)spec->hidden_size,
                         (long long)nearest_divisor(spec->hidden_size, spec->num_heads));
    if (!field_key(spec->arch, FIELD_KV_HEADS) && spec->num_kv_heads != spec->num_heads)
        return plim_fail(err, PLIM_BAD_INPUT, "%s has one key head per query head: %d of %d given",
                         spec->arch->name, spec->num_kv_heads, spec->num_heads);
    if (!spec->arch->rope && !spec->arch->source &&
        (int64_t)spec->num_heads * spec->head_dim != spec->hidden_size)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: '%s' %d times head size %d must be '%s' %lld",
                         spec->arch->name, heads, spec->num_heads, spec->head_dim, hidden,
                         (long long)spec->hidden_size);
    if (spec->num_kv_heads < 1 || spec->num_kv_heads > spec->num_heads ||
        spec->num_heads % spec->num_kv_heads)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key '%s': %d key heads do not divide '%s' %d; the nearest number that does is %lld",
                         field_name(spec->arch, FIELD_KV_HEADS), spec->num_kv_heads, heads, spec->num_heads,
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
            spec->head_dim, hidden, (long long)spec->hidden_size, heads, spec->num_heads, spec->head_dim + 1);
    return PLIM_OK;
}

static enum plim_status check_rotation(const struct model_spec *spec, struct plim_error *err)
{
    int size = model_rotary_size(spec);
    if (size >= 2 && size % 2 == 0 && size <= spec->head_dim) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "key 'partial_rotary_factor': %g of heads of %d numbers is %d, and an even number from 2 to "
        "%d can be rotated",
        spec->partial_rotary, spec->head_dim, size, spec->head_dim);
}

static enum plim_status check_llama3(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_scaling *r = &spec->rope;
    if (r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "rope scaling: 'high_freq_factor' %g must be greater than 'low_freq_factor' %g; usual are "
        "4 and 1",
        r->high_freq_factor, r->low_freq_factor);
}

static enum plim_status check_yarn(const struct model_spec *spec, struct plim_error *err)
{
    const struct rope_scaling *r = &spec->rope;
    if (r->beta_fast >= r->beta_slow) return PLIM_OK;
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
    enum rope_kind kind = spec->rope.kind;
    if (kind != ROPE_NONE && kind != ROPE_LONGROPE && field_key(spec->arch, FIELD_LONG_ROPE))
        return plim_fail(err, PLIM_UNSUPPORTED, "rope type '%s' is not supported; %s models have longrope",
                         rope_kind_name(kind), spec->arch->name);
    return checks[kind] ? checks[kind](spec, err) : PLIM_OK;
}

static enum plim_status check_rope(const struct model_spec *spec, struct plim_error *err)
{
    if (!spec->arch->rope) return PLIM_OK;
    enum plim_status status = check_rotation(spec, err);
    return status == PLIM_OK ? check_scaling(spec, err) : status;
}

/* Experts of a token, and layers without experts. */
static enum plim_status check_experts(const struct model_spec *spec, struct plim_error *err)
{
    const char *key = field_key(spec->arch, FIELD_EXPERTS);
    int mixtures = model_mixtures(spec, spec->num_layers);
    if (mixtures < 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "key 'mlp_only_layers': no layer has experts then; write the model without them as %s",
            "qwen2 or qwen3");
    if (mixtures < spec->num_layers && spec->dense_size < 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'intermediate_size': %lld is out of range; it must be from 1 to %d",
                         (long long)spec->dense_size, 1 << 20);
    if (key && spec->experts_per_token > spec->num_experts)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "key 'num_experts_per_tok': %d of '%s' %d experts; it must be from 1 to %d",
                         spec->experts_per_token, key, spec->num_experts, spec->num_experts);
    return PLIM_OK;
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
    return PLIM_OK;
}

enum plim_status model_validate(const struct model_spec *spec, struct plim_error *err)
{
    enum plim_status status = check_fields(spec, err);
    if (status == PLIM_OK) status = check_heads(spec, err);
    if (status == PLIM_OK) status = check_rope(spec, err);
    if (status == PLIM_OK) status = check_experts(spec, err);
    if (status == PLIM_OK) status = check_sparse(spec, err);
    if (status == PLIM_OK && model_has_labels(spec) && spec->num_labels < 1)
        status = plim_fail(err, PLIM_BAD_INPUT, "key 'num_labels': %lld is out of range; it must be from 1",
                           (long long)spec->num_labels);
    return status == PLIM_OK && spec->arch->check ? spec->arch->check(spec, err) : status;
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
static void drop_unused_scaling(struct model_spec *spec)
{
    for (int i = 0; i < MODEL_FIELDS; i++)
        if (model_fields[i].rope && !(model_fields[i].rope >> spec->rope.kind & 1))
            memset(field_at(&model_fields[i], spec), 0, model_fields[i].size);
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
    bool full = spec->full_every != 0 && spec->full_every != LAYERS_NONE && window != WINDOW_PATTERN &&
                window != WINDOW_LATE_LAYERS;
    bool still = spec->no_rope_every > 0 && !field_key(spec->arch, FIELD_NO_ROPE);
    if (!full && !still) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED, "key '%s': %s has no such layers; remove the key",
                     model_fields[full ? FIELD_FULL_EVERY : FIELD_NO_ROPE_EVERY].row.path, spec->arch->name);
}

enum plim_status model_check_export(const struct model_spec *spec, struct plim_error *err)
{
    if (!spec->arch->heads_divide || spec->num_heads < 1 || spec->hidden_size % spec->num_heads == 0)
        return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "key '%s': %d heads do not divide '%s' %lld, and transformers refuses such a %s even "
                     "with head_dim, so "
                     "its export could not be loaded; the nearest number that does is %lld",
                     field_name(spec->arch, FIELD_HEADS), spec->num_heads,
                     field_name(spec->arch, FIELD_HIDDEN), (long long)spec->hidden_size, spec->arch->name,
                     (long long)nearest_divisor(spec->hidden_size, spec->num_heads));
}

enum plim_status model_complete(struct model_spec *spec, struct plim_error *err)
{
    if (spec->num_kv_heads == 0) spec->num_kv_heads = spec->num_heads;
    if (spec->head_dim == 0 && spec->num_heads > 0 && spec->hidden_size % spec->num_heads == 0)
        spec->head_dim = (int)(spec->hidden_size / spec->num_heads);
    if (spec->intermediate_size == 0)
        spec->intermediate_size = spec->arch->inner_multiple * spec->hidden_size;
    if (spec->query_scalar == 0 && field_key(spec->arch, FIELD_QUERY_SCALAR))
        spec->query_scalar = spec->head_dim;
    if (spec->score_scale == 0 && field_key(spec->arch, FIELD_SCORE_SCALE) && spec->head_dim > 0)
        spec->score_scale = 1 / sqrt((double)spec->head_dim);
    if (spec->partial_rotary == 1) spec->partial_rotary = 0;
    if (spec->decoder_layers == 0 && spec->arch->source) spec->decoder_layers = spec->num_layers;
    if (spec->start_token_id < 0 && spec->arch->source) spec->start_token_id = spec->pad_token_id;
    enum plim_status status = check_pattern(spec, err);
    if (status != PLIM_OK) return status;
    settle_layers(spec);
    if (spec->rope.kind >= ROPE_LLAMA3 && spec->rope.original_max_positions == 0)
        spec->rope.original_max_positions = spec->max_positions;
    drop_unused_scaling(spec);
    drop_unreachable_tokens(spec);
    return model_validate(spec, err);
}
