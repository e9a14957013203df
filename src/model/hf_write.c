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

static void write_eos(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (spec->eos_count == 1) {
        json_int(w, key, spec->eos_token_ids[0]);
    } else if (!spec->eos_count) {
        json_null(w, key);
    } else {
        json_begin_array(w, key);
        for (int i = 0; i < spec->eos_count; i++) json_int(w, NULL, spec->eos_token_ids[i]);
        json_end_array(w);
    }
}

static void write_factors(struct json_writer *w, const struct rope_factors *f, const char *key)
{
    json_begin_array(w, key);
    for (int i = 0; i < f->count; i++) json_double(w, NULL, f->value[i]);
    json_end_array(w);
}

static void write_truncate(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (!spec->rope.truncate) json_bool(w, key, false);
}

/* Phi-3 has it beside the scaling, in which transformers 4 allows it three keys. */
static void write_original(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (!field_key(spec->arch, FIELD_LONG_ROPE)) json_int(w, key, spec->rope.original_max_positions);
}
static void write_long_rope(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (spec->rope.kind == ROPE_LONGROPE) json_int(w, key, spec->rope.original_max_positions);
}

static void write_field(struct json_writer *w, const struct model_spec *spec, enum model_field_id id);

static void write_rope(struct json_writer *w, const struct model_spec *spec, const char *)
{
    bool phi = field_key(spec->arch, FIELD_LONG_ROPE); /* which wants the older name of the type */
    if (spec->rope.kind == ROPE_NONE) {
        json_null(w, "rope_scaling");
        return;
    }
    json_begin_object(w, "rope_scaling");
    json_str(w, phi ? "type" : "rope_type", rope_kind_name(spec->rope.kind));
    for (enum model_field_id id = 0; id < MODEL_FIELDS; id++)
        if (model_fields[id].rope >> spec->rope.kind & 1) write_field(w, spec, id);
    json_end_object(w);
}

static void write_partial(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    json_double(w, key, spec->partial_rotary > 0 ? spec->partial_rotary : 1);
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
        if (field_key(spec->arch, FIELD_FULL_EVERY))
            json_int(w, field_key(spec->arch, FIELD_FULL_EVERY), alike(spec, 0, true) + 1);
        return false;
    }
    json_bool(w, "use_sliding_window", spec->sliding_window > 0);
    if (spec->arch->window == WINDOW_NO_ROPE)
        return spec->sliding_window == 0 ||
               !memcmp(&spec->sliding_layers, &spec->no_rope_layers, sizeof spec->sliding_layers);
    json_int(w, "max_window_layers", first);
    return first + alike(spec, first, true) == spec->num_layers;
}

static void write_window(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    /* Gemma's masks want a number even where no layer has a window. */
    int64_t idle = spec->arch->window == WINDOW_PATTERN ? spec->max_positions : 0;
    int64_t window = spec->sliding_window > 0 ? spec->sliding_window : idle;
    if (window > 0)
        json_int(w, key, window);
    else
        json_null(w, key);
    if (spec->arch->window == WINDOW_ALL_LAYERS) return;
    if (!write_older_window(w, spec)) write_layer_types(w, spec);
}

static void write_no_rope(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    json_begin_array(w, key);
    for (int i = 0; i < spec->num_layers; i++) json_int(w, NULL, !layer_set_has(&spec->no_rope_layers, i));
    json_end_array(w);
}

static void write_dense(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    json_int(w, "decoder_sparse_step", 1);
    json_begin_array(w, key);
    for (int i = 0; i < spec->num_layers; i++)
        if (layer_set_has(&spec->dense_layers, i)) json_int(w, NULL, i);
    json_end_array(w);
}

static void write_positions(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    json_int(w, key, spec->max_positions + model_first_position(spec));
}

static void write_activation(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    json_str(w, key, spec->gated ? "gated-gelu" : spec->arch->activation);
}

static void write_unscaled(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (spec->unscaled_head) json_bool(w, key, false);
}

static void write_true(struct json_writer *w, const struct model_spec *, const char *key)
{
    json_bool(w, key, true);
}

/* GPT-2 and encoders derive it. */
static void write_head_dim(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (spec->arch->rope || spec->arch->source) json_int(w, key, spec->head_dim);
}

static void write_sparse(struct json_writer *w, const struct model_spec *spec, const char *key)
{
    if (spec->sparse_block == 0) return;
    json_str(w, "attention_type", "sparse");
    json_int(w, key, spec->sparse_block);
}

static const char *label_name(const struct model_spec *spec, int64_t i, char *buf, size_t size)
{
    if (spec->labels) return spec->labels[i];
    snprintf(buf, size, "LABEL_%lld", (long long)i);
    return buf;
}

static void write_labels(struct json_writer *w, const struct model_spec *spec, const char *)
{
    char number[24], label[32];
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

/* --- all of it -------------------------------------------------------------------------------------------- */

static void (*const writers[MODEL_FIELDS])(struct json_writer *, const struct model_spec *,
                                           const char *key) = {
    [FIELD_EOS] = write_eos,           [FIELD_TRUNCATE] = write_truncate,
    [FIELD_ORIGINAL] = write_original, [FIELD_LONG_ROPE] = write_long_rope,
    [FIELD_ROPE] = write_rope,         [FIELD_PARTIAL] = write_partial,
    [FIELD_WINDOW] = write_window,     [FIELD_NO_ROPE] = write_no_rope,
    [FIELD_DENSE] = write_dense,       [FIELD_POSITIONS] = write_positions,
    [FIELD_GATED] = write_activation,  [FIELD_UNSCALED] = write_unscaled,
    [FIELD_SOURCE] = write_true,       [FIELD_HEAD_DIM] = write_head_dim,
    [FIELD_CONTEXT] = write_positions, [FIELD_SPARSE_BLOCK] = write_sparse,
    [FIELD_LABELS] = write_labels,
};

/* Writes a number as its row describes it. */
static void write_number(struct json_writer *w, const struct model_field *f, const char *key, double value)
{
    if (f->omit_zero && value == 0) return;
    if ((f->token && value < 0) || (f->null_is_none && !f->token && value == 0))
        json_null(w, key);
    else if (f->row.kind == SCHEMA_BOOL)
        json_bool(w, key, value != 0);
    else if (f->row.kind == SCHEMA_FLOAT)
        json_double(w, key, value);
    else
        json_int(w, key, (int64_t)value);
}

static void write_field(struct json_writer *w, const struct model_spec *spec, enum model_field_id id)
{
    const struct model_field *f = &model_fields[id];
    const char *key = field_key(spec->arch, id);
    if (!key || f->layer_rule || (f->sparse_only && spec->sparse_block == 0)) return;
    if (id == FIELD_SHORT || id == FIELD_LONG)
        write_factors(w, id == FIELD_LONG ? &spec->rope.long_factor : &spec->rope.short_factor, key);
    else if (writers[id])
        writers[id](w, spec, key);
    else
        write_number(w, f, key, field_number(f, spec));
}

static const char *class_of(const struct model_spec *spec)
{
    return spec->arch->task_classes ? spec->arch->task_classes[spec->task] : spec->arch->hf_class;
}

void hf_config_write(const struct model_spec *spec, enum dtype type, struct strbuf *out)
{
    struct json_writer w = json_object(out, 2);
    json_begin_array(&w, "architectures");
    json_str(&w, NULL, class_of(spec));
    json_end_array(&w);
    json_str(&w, "model_type", architecture_type(spec->arch));
    for (enum model_field_id id = 0; id < MODEL_FIELDS; id++)
        if (!model_fields[id].rope) write_field(&w, spec, id);
    json_str(&w, "torch_dtype", dtype_torch(type));
    json_bool(&w, "use_cache", true);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

enum plim_status hf_config_expresses(const struct model_spec *spec, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct model_spec back;
    hf_config_write(spec, DT_F32, &text);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, "config.json", &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, "config.json", &back, err);
    const char *lost = status == PLIM_OK ? model_spec_differs(spec, &back) : NULL;
    if (lost)
        status =
            plim_fail(err, PLIM_UNSUPPORTED,
                      "key '%s': the config.json of a %s model cannot express it, so a checkpoint would be a "
                      "different model; remove the key",
                      lost, spec->arch->name);
    doc_free(doc);
    return status;
}

enum plim_status hf_config_save(const struct model_spec *spec, enum dtype type, const char *dir,
                                struct plim_error *err)
{
    STRBUF_AUTO path = STRBUF_INIT, text = STRBUF_INIT;
    strbuf_addf(&path, "%s/config.json", dir);
    hf_config_write(spec, type, &text);
    enum plim_status status = strbuf_status(&path, err);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(strbuf_text(&path), text.data, text.len, err);
    return status;
}
