/* hf_write.c - a config.json for an exported model. See hf.h.
 *
 * Rotary parameters are written in the spelling of transformers 4, which version 5 reads too; the other way
 * round would be ignored by older ones.
 */
#include "base/json.h"
#include "model/arch.h"
#include "model/hf.h"
#include "base/file.h"

#include <string.h>
#include <stdio.h>

static const char *torch_name(enum dtype type)
{
    switch (type) {
    case DT_BF16:
        return "bfloat16";
    case DT_F16:
        return "float16";
    default:
        return "float32";
    }
}

static void token_or_null(struct json_writer *w, const char *key, int64_t id)
{
    if (id >= 0)
        json_int(w, key, id);
    else
        json_null(w, key);
}

static void write_tokens(struct json_writer *w, const struct model_spec *spec)
{
    token_or_null(w, "bos_token_id", spec->bos_token_id);
    if (spec->eos_count <= 1) {
        token_or_null(w, "eos_token_id", spec->eos_count ? spec->eos_token_ids[0] : -1);
    } else {
        json_begin_array(w, "eos_token_id");
        for (int i = 0; i < spec->eos_count; i++) json_int(w, NULL, spec->eos_token_ids[i]);
        json_end_array(w);
    }
    token_or_null(w, "pad_token_id", spec->pad_token_id);
}

static void write_factors(struct json_writer *w, const char *key, const struct rope_factors *f)
{
    json_begin_array(w, key);
    for (int i = 0; i < f->count; i++) json_double(w, NULL, f->value[i]);
    json_end_array(w);
}

/* A number that says nothing when it is 0. */
static void write_some(struct json_writer *w, const char *key, double value)
{
    if (value != 0) json_double(w, key, value);
}

static void write_cap(struct json_writer *w, const char *key, double value)
{
    if (value != 0)
        json_double(w, key, value);
    else
        json_null(w, key);
}

static void write_scaling(struct json_writer *w, const struct model_spec *spec)
{
    const struct rope_scaling *r = &spec->rope;
    bool phi = spec->arch->extras.long_rope; /* transformers 4 allows it three keys, and wants this one */
    json_begin_object(w, "rope_scaling");
    json_str(w, phi ? "type" : "rope_type", rope_kind_name(r->kind));
    write_some(w, "factor", r->factor);
    if (r->kind == ROPE_LLAMA3) {
        json_double(w, "low_freq_factor", r->low_freq_factor);
        json_double(w, "high_freq_factor", r->high_freq_factor);
    }
    if (r->kind >= ROPE_LLAMA3 && !phi)
        json_int(w, "original_max_position_embeddings", r->original_max_positions);
    write_some(w, "attention_factor", r->attention_factor);
    if (r->kind == ROPE_YARN) {
        json_double(w, "beta_fast", r->beta_fast);
        json_double(w, "beta_slow", r->beta_slow);
        write_some(w, "mscale", r->mscale);
        write_some(w, "mscale_all_dim", r->mscale_all_dim);
        if (!r->truncate) json_bool(w, "truncate", false);
    }
    if (r->kind == ROPE_LONGROPE) {
        write_factors(w, "short_factor", &r->short_factor);
        write_factors(w, "long_factor", &r->long_factor);
    }
    json_end_object(w);
}

static void write_rope(struct json_writer *w, const struct model_spec *spec)
{
    const struct model_extras *have = &spec->arch->extras;
    json_double(w, "rope_theta", spec->rope_theta);
    if (have->local_theta) json_double(w, "rope_local_base_freq", spec->rope_local_theta);
    if (have->partial_rotary)
        json_double(w, "partial_rotary_factor", spec->partial_rotary > 0 ? spec->partial_rotary : 1);
    if (have->long_rope && spec->rope.kind == ROPE_LONGROPE)
        json_int(w, "original_max_position_embeddings", spec->rope.original_max_positions);
    if (spec->rope.kind == ROPE_NONE)
        json_null(w, "rope_scaling");
    else
        write_scaling(w, spec);
}

static void write_layer_types(struct json_writer *w, const struct model_spec *spec)
{
    json_begin_array(w, "layer_types");
    for (int i = 0; i < spec->num_layers; i++)
        json_str(w, NULL, layer_set_has(&spec->sliding_layers, i) ? "sliding_attention" : "full_attention");
    json_end_array(w);
}

/* How many layers from `first` on have the window, or have none. */
static int alike(const struct model_spec *spec, int first, bool slides)
{
    int n = 0;
    while (first + n < spec->num_layers && layer_set_has(&spec->sliding_layers, first + n) == slides) n++;
    return n;
}

/* Transformers 4 knew layers by these before it knew their types. True: nothing is left to say. */
static bool write_older_window(struct json_writer *w, const struct model_spec *spec)
{
    int first = alike(spec, 0, false);
    if (spec->arch->window == WINDOW_PATTERN) {
        if (spec->arch->extras.window_pattern)
            json_int(w, "sliding_window_pattern", alike(spec, 0, true) + 1);
        return false;
    }
    json_bool(w, "use_sliding_window", spec->sliding_window > 0);
    if (spec->arch->window == WINDOW_NO_ROPE)
        return spec->sliding_window == 0 ||
               !memcmp(&spec->sliding_layers, &spec->no_rope_layers, sizeof spec->sliding_layers);
    json_int(w, "max_window_layers", first);
    return first + alike(spec, first, true) == spec->num_layers;
}

static void write_window(struct json_writer *w, const struct model_spec *spec)
{
    if (spec->arch->window == WINDOW_NEVER) return;
    /* Gemma's masks want a number even where no layer has a window. */
    int64_t idle = spec->arch->window == WINDOW_PATTERN ? spec->max_positions : 0;
    int64_t window = spec->sliding_window > 0 ? spec->sliding_window : idle;
    if (window > 0)
        json_int(w, "sliding_window", window);
    else
        json_null(w, "sliding_window");
    if (spec->arch->window == WINDOW_ALL_LAYERS) return;
    if (!write_older_window(w, spec)) write_layer_types(w, spec);
}

static void write_no_rope(struct json_writer *w, const struct model_spec *spec)
{
    json_begin_array(w, "no_rope_layers");
    for (int i = 0; i < spec->num_layers; i++) json_int(w, NULL, !layer_set_has(&spec->no_rope_layers, i));
    json_end_array(w);
}

static void write_dense_layers(struct json_writer *w, const struct model_spec *spec)
{
    json_int(w, "decoder_sparse_step", 1);
    json_begin_array(w, "mlp_only_layers");
    for (int i = 0; i < spec->num_layers; i++)
        if (layer_set_has(&spec->dense_layers, i)) json_int(w, NULL, i);
    json_end_array(w);
    if (spec->dense_size > 0) json_int(w, "intermediate_size", spec->dense_size);
}

static void write_experts(struct json_writer *w, const struct model_spec *spec)
{
    json_int(w, spec->arch->keys->experts, spec->num_experts);
    json_int(w, "num_experts_per_tok", spec->experts_per_token);
    if (spec->arch->extras.norm_topk) json_bool(w, "norm_topk_prob", spec->norm_topk);
    if (spec->arch->extras.shared_expert) json_int(w, "shared_expert_intermediate_size", spec->shared_size);
    if (spec->arch->extras.dense_layers) write_dense_layers(w, spec);
    json_double(w, "router_aux_loss_coef", spec->balance_coef);
    write_some(w, "router_z_loss_coef", spec->z_coef);
    json_bool(w, "output_router_logits", spec->router_losses);
}

static void write_decoder(struct json_writer *w, const struct model_spec *spec)
{
    const struct model_extras *have = &spec->arch->extras;
    json_int(w, spec->arch->keys->kv_heads, spec->num_kv_heads);
    json_int(w, "head_dim", spec->head_dim);
    if (have->attention_bias) json_bool(w, "attention_bias", spec->qkv_bias);
    if (have->mlp_bias) json_bool(w, "mlp_bias", spec->mlp_bias);
    if (have->caps) json_int(w, "query_pre_attn_scalar", spec->query_scalar);
    if (have->attn_cap) write_cap(w, "attn_logit_softcapping", spec->attn_cap);
    if (have->caps) write_cap(w, "final_logit_softcapping", spec->final_cap);
    write_rope(w, spec);
    write_window(w, spec);
    if (have->no_rope) write_no_rope(w, spec);
    if (spec->arch->keys->experts) write_experts(w, spec);
}

static void write_gpt2(struct json_writer *w, const struct model_spec *spec)
{
    json_int(w, "n_ctx", spec->max_positions);
}

static const char *label_name(const struct model_spec *spec, int64_t i, char *buf, size_t size)
{
    if (spec->labels) return spec->labels[i];
    snprintf(buf, size, "LABEL_%lld", (long long)i);
    return buf;
}

static void write_encoder(struct json_writer *w, const struct model_spec *spec)
{
    char number[24], label[32];
    if (spec->arch->keys->types) json_int(w, spec->arch->keys->types, spec->token_types);
    if (!model_has_labels(spec)) return;
    if (spec->problem) json_str(w, "problem_type", label_problem_name(spec->problem));
    json_begin_object(w, "id2label");
    for (int64_t i = 0; i < spec->num_labels; i++) {
        snprintf(number, sizeof number, "%lld", (long long)i);
        json_str(w, number, label_name(spec, i, label, sizeof label));
    }
    json_end_object(w);
    json_begin_object(w, "label2id");
    for (int64_t i = 0; i < spec->num_labels; i++) json_int(w, label_name(spec, i, label, sizeof label), i);
    json_end_object(w);
}

static void write_source(struct json_writer *w, const struct model_spec *spec)
{
    json_bool(w, "is_encoder_decoder", true);
    json_int(w, spec->arch->keys->head_dim, spec->head_dim);
    json_int(w, "num_decoder_layers", spec->decoder_layers);
    json_int(w, "relative_attention_num_buckets", spec->bias_buckets);
    json_int(w, "relative_attention_max_distance", spec->bias_reach);
    json_int(w, "decoder_start_token_id", spec->start_token_id);
}

static void write_sparse(struct json_writer *w, const struct model_spec *spec)
{
    json_str(w, "attention_type", "sparse");
    json_int(w, "sparse_block_size", spec->sparse_block);
    json_int(w, "num_local_blocks", spec->local_blocks);
    json_int(w, "num_global_blocks", spec->global_blocks);
}

static const char *class_of(const struct model_spec *spec)
{
    return spec->arch->task_classes ? spec->arch->task_classes[spec->task] : spec->arch->hf_class;
}

void hf_config_write(const struct model_spec *spec, enum dtype type, struct strbuf *out)
{
    const struct model_keys *keys = spec->arch->keys;
    struct json_writer w;
    json_writer_init(&w, out, 2);
    json_begin_object(&w, NULL);
    json_begin_array(&w, "architectures");
    json_str(&w, NULL, class_of(spec));
    json_end_array(&w);
    json_str(&w, "model_type", spec->arch->hf_type);
    json_int(&w, "vocab_size", spec->vocab_size);
    json_int(&w, keys->hidden, spec->hidden_size);
    json_int(&w, keys->intermediate, spec->intermediate_size);
    json_int(&w, keys->layers, spec->num_layers);
    json_int(&w, keys->heads, spec->num_heads);
    if (keys->positions) json_int(&w, keys->positions, spec->max_positions + model_first_position(spec));
    json_str(&w, keys->activation, spec->gated ? "gated-gelu" : spec->arch->activation);
    if (keys->norm_eps) json_double(&w, keys->norm_eps, spec->norm_eps);
    json_double(&w, keys->range ? keys->range : "initializer_range", spec->initializer_range);
    json_bool(&w, "tie_word_embeddings", spec->tie_embeddings);
    if (spec->unscaled_head) json_bool(&w, "scale_decoder_outputs", false);
    for (int i = 0; i < MODEL_DROPOUTS && keys->dropout[i]; i++)
        json_double(&w, keys->dropout[i], spec->dropout[i]);
    if (spec->arch->encoder)
        write_encoder(&w, spec);
    else if (spec->arch->source)
        write_source(&w, spec);
    else if (spec->arch->rope)
        write_decoder(&w, spec);
    else
        write_gpt2(&w, spec);
    if (spec->sparse_block > 0) write_sparse(&w, spec);
    write_tokens(&w, spec);
    json_str(&w, "torch_dtype", torch_name(type));
    json_bool(&w, "use_cache", true);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

enum plim_status hf_config_expresses(const struct model_spec *spec, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct model_spec back;
    hf_config_write(spec, DT_F32, &text);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, "config.json", &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, "config.json", &back, err);
    const char *lost = status == PLIM_OK ? model_spec_differs(spec, &back) : NULL;
    if (lost)
        status = plim_fail(err, PLIM_UNSUPPORTED,
                           "key '%s': the config.json of a %s model cannot say it, so a checkpoint would be "
                           "another model; remove the key",
                           lost, spec->arch->name);
    doc_free(doc);
    strbuf_release(&text);
    return status;
}

enum plim_status hf_config_save(const struct model_spec *spec, enum dtype type, const char *dir,
                                struct plim_error *err)
{
    struct strbuf path = STRBUF_INIT, text = STRBUF_INIT;
    strbuf_addf(&path, "%s/config.json", dir);
    hf_config_write(spec, type, &text);
    enum plim_status status = strbuf_status(&path, err);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(strbuf_text(&path), text.data, text.len, err);
    strbuf_release(&path);
    strbuf_release(&text);
    return status;
}
