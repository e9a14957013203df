/* spec.c - the fields of a model's spec as one table: two specs are compared, and one is described, through it. See model.h. */
#include "base/number.h"
#include "model/arch.h"

#include <string.h>

enum field_form { FIELD_INT64, FIELD_INT, FIELD_DOUBLE, FIELD_BOOL, FIELD_FACTORS, FIELD_LAYERS };

struct field {
    const char *name; /* the configuration key below model., else as config.json has it */
    size_t offset;
    enum field_form form;
    bool (*has)(const struct model_spec *spec); /* only some models have it; NULL: all do */
};

#define FIELD(name, member, form)                                                                            \
    {                                                                                                        \
        name, offsetof(struct model_spec, member), form, NULL                                                \
    }
#define SOME(name, member, form, has)                                                                        \
    {                                                                                                        \
        name, offsetof(struct model_spec, member), form, has                                                 \
    }

static bool has_local_theta(const struct model_spec *spec) { return spec->arch->extras.local_theta; }
static bool has_partial(const struct model_spec *spec) { return spec->arch->extras.partial_rotary; }
static bool has_no_rope(const struct model_spec *spec) { return spec->arch->extras.no_rope; }
static bool has_caps(const struct model_spec *spec) { return spec->arch->extras.caps; }
static bool has_attn_cap(const struct model_spec *spec) { return spec->arch->extras.attn_cap; }
static bool has_factor(const struct model_spec *spec) { return spec->rope.kind >= ROPE_YARN; }
static bool has_experts(const struct model_spec *spec) { return spec->arch->keys->experts; }
static bool has_shared(const struct model_spec *spec) { return spec->arch->extras.shared_expert; }
static bool has_dense(const struct model_spec *spec) { return spec->arch->extras.dense_layers; }
static bool is_sparse(const struct model_spec *spec) { return spec->sparse_block > 0; }
static bool is_yarn(const struct model_spec *spec) { return spec->rope.kind == ROPE_YARN; }
static bool is_longrope(const struct model_spec *spec) { return spec->rope.kind == ROPE_LONGROPE; }

static bool has_unscaled(const struct model_spec *spec) { return spec->unscaled_head; }
static bool model_has_row_labels(const struct model_spec *spec) { return spec->task == TASK_ROW_LABELS; }
static bool has_source(const struct model_spec *spec) { return spec->arch->source; }

static const struct field fields[] = {
    FIELD("vocab_size", vocab_size, FIELD_INT64),
    FIELD("hidden_size", hidden_size, FIELD_INT64),
    FIELD("intermediate_size", intermediate_size, FIELD_INT64),
    FIELD("num_layers", num_layers, FIELD_INT),
    FIELD("num_attention_heads", num_heads, FIELD_INT),
    FIELD("num_key_value_heads", num_kv_heads, FIELD_INT),
    FIELD("head_dim", head_dim, FIELD_INT),
    FIELD("max_position_embeddings", max_positions, FIELD_INT64),
    FIELD("rms_norm_eps", norm_eps, FIELD_DOUBLE),
    FIELD("rope_theta", rope_theta, FIELD_DOUBLE),
    FIELD("rope_scaling.rope_type", rope.kind, FIELD_INT),
    FIELD("rope_scaling.factor", rope.factor, FIELD_DOUBLE),
    FIELD("rope_scaling.low_freq_factor", rope.low_freq_factor, FIELD_DOUBLE),
    FIELD("rope_scaling.high_freq_factor", rope.high_freq_factor, FIELD_DOUBLE),
    FIELD("rope_scaling.original_max_position_embeddings", rope.original_max_positions, FIELD_INT64),
    FIELD("sliding_window", sliding_window, FIELD_INT64),
    FIELD("max_window_layers", sliding_layers, FIELD_LAYERS),
    FIELD("tie_word_embeddings", tie_embeddings, FIELD_BOOL),
    SOME("scale_decoder_outputs", unscaled_head, FIELD_BOOL, has_unscaled),
    FIELD("attention_bias", qkv_bias, FIELD_BOOL),
    FIELD("attention_output_bias", o_bias, FIELD_BOOL),
    FIELD("mlp_bias", mlp_bias, FIELD_BOOL),
    FIELD("initializer_range", initializer_range, FIELD_DOUBLE),
    FIELD("bos_token_id", bos_token_id, FIELD_INT64),
    FIELD("pad_token_id", pad_token_id, FIELD_INT64),
    FIELD("eos_token_id", eos_count, FIELD_INT),
    SOME("rope_local_base_freq", rope_local_theta, FIELD_DOUBLE, has_local_theta),
    SOME("partial_rotary_factor", partial_rotary, FIELD_DOUBLE, has_partial),
    SOME("rope_scaling.attention_factor", rope.attention_factor, FIELD_DOUBLE, has_factor),
    SOME("rope_scaling.beta_fast", rope.beta_fast, FIELD_DOUBLE, is_yarn),
    SOME("rope_scaling.beta_slow", rope.beta_slow, FIELD_DOUBLE, is_yarn),
    SOME("rope_scaling.mscale", rope.mscale, FIELD_DOUBLE, is_yarn),
    SOME("rope_scaling.mscale_all_dim", rope.mscale_all_dim, FIELD_DOUBLE, is_yarn),
    SOME("rope_scaling.truncate", rope.truncate, FIELD_BOOL, is_yarn),
    SOME("rope_scaling.short_factor", rope.short_factor, FIELD_FACTORS, is_longrope),
    SOME("rope_scaling.long_factor", rope.long_factor, FIELD_FACTORS, is_longrope),
    SOME("no_rope_layers", no_rope_layers, FIELD_LAYERS, has_no_rope),
    SOME("query_pre_attn_scalar", query_scalar, FIELD_INT64, has_caps),
    SOME("attn_logit_softcapping", attn_cap, FIELD_DOUBLE, has_attn_cap),
    SOME("final_logit_softcapping", final_cap, FIELD_DOUBLE, has_caps),
    SOME("task", task, FIELD_INT, model_is_encoder),
    SOME("type_vocab_size", token_types, FIELD_INT64, model_is_encoder),
    SOME("num_labels", num_labels, FIELD_INT64, model_is_encoder),
    SOME("problem_type", problem, FIELD_INT, model_has_row_labels),
    SOME("sparse_block_size", sparse_block, FIELD_INT, is_sparse),
    SOME("num_local_blocks", local_blocks, FIELD_INT, is_sparse),
    SOME("num_global_blocks", global_blocks, FIELD_INT, is_sparse),
    SOME("num_experts", num_experts, FIELD_INT, has_experts),
    SOME("num_experts_per_tok", experts_per_token, FIELD_INT, has_experts),
    SOME("shared_expert_intermediate_size", shared_size, FIELD_INT64, has_shared),
    SOME("mlp_only_layers", dense_layers, FIELD_LAYERS, has_dense),
    SOME("dense_intermediate_size", dense_size, FIELD_INT64, has_dense),
    SOME("norm_topk_prob", norm_topk, FIELD_BOOL, has_experts),
    SOME("router_aux_loss_coef", balance_coef, FIELD_DOUBLE, has_experts),
    SOME("router_z_loss_coef", z_coef, FIELD_DOUBLE, has_experts),
    SOME("output_router_logits", router_losses, FIELD_BOOL, has_experts),
    SOME("num_decoder_layers", decoder_layers, FIELD_INT, has_source),
    SOME("relative_attention_num_buckets", bias_buckets, FIELD_INT, has_source),
    SOME("relative_attention_max_distance", bias_reach, FIELD_INT, has_source),
    SOME("gated_feed_forward", gated, FIELD_BOOL, has_source),
    SOME("decoder_start_token_id", start_token_id, FIELD_INT64, has_source),
};
_Static_assert(sizeof(enum rope_kind) == sizeof(int) && sizeof(enum model_task) == sizeof(int) &&
                   sizeof(enum label_problem) == sizeof(int),
               "kinds of scaling and tasks are compared as int");

static const size_t sizes[] = {[FIELD_INT64] = sizeof(int64_t),
                               [FIELD_INT] = sizeof(int),
                               [FIELD_DOUBLE] = sizeof(double),
                               [FIELD_BOOL] = sizeof(bool),
                               [FIELD_FACTORS] = sizeof(struct rope_factors),
                               [FIELD_LAYERS] = sizeof(struct layer_set)};

enum { FIELDS = sizeof fields / sizeof *fields };

const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b)
{
    if (a->arch != b->arch) return "architecture";
    for (size_t i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (memcmp((const char *)a + f->offset, (const char *)b + f->offset, sizes[f->form])) return f->name;
    }
    if (memcmp(a->dropout, b->dropout, sizeof a->dropout)) return "dropout";
    size_t ids = (size_t)a->eos_count * sizeof *a->eos_token_ids;
    return memcmp(a->eos_token_ids, b->eos_token_ids, ids) ? "eos_token_id" : NULL;
}

/* "0,2,5"; "-" when there is none. */
static void put_layers(struct strbuf *out, const struct layer_set *set)
{
    size_t before = out->len;
    for (int i = 0; i < MODEL_MAX_LAYERS; i++)
        if (layer_set_has(set, i)) strbuf_addf(out, out->len > before ? ",%d" : "%d", i);
    if (out->len == before) strbuf_addc(out, '-');
}

static void put_factors(struct strbuf *out, const struct rope_factors *f)
{
    char number[NUMBER_TEXT];
    for (int i = 0; i < f->count; i++) {
        number_format_double(number, f->value[i]);
        strbuf_addf(out, "%s%s", i ? "," : "", number);
    }
}

/* The first layer of those with a window, as max_window_layers has it, or all of them where others follow; 0 without a
 * window. */
static void put_window_layers(struct strbuf *out, const struct model_spec *spec)
{
    int first = 0, last = spec->num_layers;
    while (first < last && !layer_set_has(&spec->sliding_layers, first)) first++;
    while (last > first && layer_set_has(&spec->sliding_layers, last - 1)) last--;
    if (last == first)
        strbuf_addf(out, "%d", spec->sliding_window > 0 ? first : 0);
    else
        put_layers(out, &spec->sliding_layers);
}

static void put_value(struct strbuf *out, const void *at, enum field_form form)
{
    char number[NUMBER_TEXT];
    int64_t wide;
    double real;
    switch (form) {
    case FIELD_INT64:
        memcpy(&wide, at, sizeof wide);
        strbuf_addf(out, "%lld", (long long)wide);
        break;
    case FIELD_INT:
        strbuf_addf(out, "%d", *(const int *)at);
        break;
    case FIELD_DOUBLE:
        memcpy(&real, at, sizeof real);
        number_format_double(number, real);
        strbuf_add(out, number);
        break;
    case FIELD_BOOL:
        strbuf_add(out, *(const bool *)at ? "true" : "false");
        break;
    case FIELD_FACTORS:
        put_factors(out, at);
        break;
    case FIELD_LAYERS:
        put_layers(out, at);
        break;
    }
}

/* Dropouts come after the other fields, by the names that config.json of the architecture has. */
static const char *dropout_field(const struct model_spec *spec, int i, struct strbuf *value)
{
    const char *name = i < MODEL_DROPOUTS ? spec->arch->keys->dropout[i] : NULL;
    if (name) put_value(value, &spec->dropout[i], FIELD_DOUBLE);
    return name;
}

const char *model_spec_field(const struct model_spec *spec, int i, struct strbuf *value)
{
    if (i < 0) return NULL;
    if (i >= (int)FIELDS) return dropout_field(spec, i - (int)FIELDS, value);
    const struct field *f = &fields[i];
    const char *at = (const char *)spec + f->offset;
    if (f->has && !f->has(spec)) return "";
    if (f->offset == offsetof(struct model_spec, sliding_layers)) {
        put_window_layers(value, spec);
    } else if (f->offset == offsetof(struct model_spec, rope.kind)) {
        strbuf_add(value, rope_kind_name(spec->rope.kind));
    } else if (f->offset == offsetof(struct model_spec, eos_count)) {
        for (int k = 0; k < spec->eos_count; k++)
            strbuf_addf(value, k ? ",%lld" : "%lld", (long long)spec->eos_token_ids[k]);
    } else {
        put_value(value, at, f->form);
    }
    return f->name;
}
