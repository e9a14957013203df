/* gguf_model.c - see gguf_model.h.
 *
 * The table of fields says which key of the metadata is which key of config.json; what is left are the rules by which the two
 * differ: rotary scaling, windows, and what GGUF says by having a tensor or not.
 */
#include "model/gguf_model.h"
#include "base/json.h"
#include "model/arch.h"
#include "model/hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One file on its way into a config.json. */
struct conversion {
    const struct gguf *file;
    const struct architecture *arch;
    struct json_writer w;
    struct plim_error *err;
    enum plim_status status;
};

#define refuse(c, how, ...)                                                                                  \
    do {                                                                                                     \
        if ((c)->status == PLIM_OK) (c)->status = plim_fail((c)->err, (how), __VA_ARGS__);                   \
    } while (0)

static const struct node *meta(const struct conversion *c, const char *key)
{
    return node_get(gguf_metadata(c->file), key);
}

/* The key of the architecture's own: "llama.block_count". */
static const struct node *own(const struct conversion *c, const char *key)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", c->arch->gguf, key);
    return meta(c, full);
}

/* --- sizes ------------------------------------------------------------------------------------------------------ */

/* A file has 1e-6 as the nearest float: the short decimal that is the same float was meant. */
static double meant(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", value);
    double shorter = strtod(text, NULL);
    return (float)shorter == (float)value ? shorter : value;
}

static void put_number(struct conversion *c, const char *gguf, const char *hf)
{
    const struct node *value = own(c, gguf);
    if (value) json_double(&c->w, hf, meant(node_float(value, 0)));
}

/* Copies a field that means the same in both files. */
static void put_field(struct conversion *c, const struct model_field *f, const char *key)
{
    const struct node *value = own(c, f->gguf);
    int64_t n = 0;
    if (value && value->kind == NODE_LIST)
        refuse(c, PLIM_UNSUPPORTED, "%s: key '%s.%s': a number for each layer is not supported",
               gguf_path(c->file), c->arch->gguf, f->gguf);
    else if (!value && f->need >= NEED_GGUF)
        refuse(c, PLIM_BAD_INPUT, "%s: key '%s.%s' is missing; the file is damaged, fetch it again",
               gguf_path(c->file), c->arch->gguf, f->gguf);
    else if (f->row.kind == SCHEMA_FLOAT)
        put_number(c, f->gguf, key);
    else if (value && !node_is_whole(value, &n))
        refuse(c, PLIM_BAD_INPUT, "%s: key '%s.%s': expected a whole number, found %s", gguf_path(c->file),
               c->arch->gguf, f->gguf, node_kind_name(value->kind));
    else if (value)
        json_int(&c->w, key, n);
    if (!value && f->row.kind == SCHEMA_FLOAT && f->null_is_none) json_null(&c->w, key);
}

/* `scaling`: the members of rope_scaling, otherwise all other fields. */
static void put_fields(struct conversion *c, bool scaling)
{
    for (enum model_field_id id = 0; id < MODEL_FIELDS; id++)
        if (model_fields[id].gguf && scaling == (model_fields[id].rope != 0) && field_key(c->arch, id))
            put_field(c, &model_fields[id], field_key(c->arch, id));
}

static void put_sizes(struct conversion *c)
{
    bool gpt2 = !c->arch->rope;
    put_fields(c, false);
    if (gpt2) put_number(c, "attention.layer_norm_epsilon", field_key(c->arch, FIELD_NORM_EPS));
    int64_t key = node_int(own(c, "attention.key_length"), 0);
    int64_t value = node_int(own(c, "attention.value_length"), key);
    if (value != key)
        refuse(c, PLIM_UNSUPPORTED,
               "%s: heads of %lld keys and %lld values are not supported; both must be the same",
               gguf_path(c->file), (long long)key, (long long)value);
    if (!key &&
        !gpt2) { /* GGUF leaves it out where it is hidden size / heads; config.json may mean another */
        int64_t heads = node_int(own(c, "attention.head_count"), 0);
        if (heads > 0) json_int(&c->w, "head_dim", node_int(own(c, "embedding_length"), 0) / heads);
    }
    if (!gpt2 && !own(c, "attention.head_count_kv"))
        json_int(&c->w, "num_key_value_heads", node_int(own(c, "attention.head_count"), 0));
}

/* The rows of the embedding; the list of tokens may be shorter, never longer. */
static void put_vocabulary(struct conversion *c)
{
    const struct gguf_tensor *embed = gguf_find(c->file, "token_embd.weight");
    const struct node *tokens = meta(c, "tokenizer.ggml.tokens");
    if (!embed || embed->ndim != 2) {
        refuse(c, PLIM_BAD_INPUT, "%s: tensor 'token_embd.weight' is %s; the file is damaged, fetch it again",
               gguf_path(c->file), embed ? "no matrix" : "missing");
        return;
    }
    int64_t rows = embed->dim[0], said = node_int(own(c, "vocab_size"), rows);
    if (said != rows)
        refuse(c, PLIM_BAD_INPUT, "%s: key '%s.vocab_size' is %lld but 'token_embd.weight' has %lld rows",
               gguf_path(c->file), c->arch->gguf, (long long)said, (long long)rows);
    if (node_count(tokens) > (size_t)rows)
        refuse(c, PLIM_BAD_INPUT,
               "%s: 'tokenizer.ggml.tokens' has %zu tokens but 'token_embd.weight' only %lld rows",
               gguf_path(c->file), node_count(tokens), (long long)rows);
    json_int(&c->w, "vocab_size", rows);
    json_bool(&c->w, "tie_word_embeddings", !gguf_find(c->file, "output.weight"));
}

static void put_tokens(struct conversion *c)
{
    static const char *const names[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                           {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (node_is_whole(meta(c, names[i][0]), &id))
            json_int(&c->w, names[i][1], id);
        else
            json_null(&c->w, names[i][1]);
    }
    json_begin_array(&c->w, "eos_token_id");
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (node_is_whole(meta(c, ends[i]), &id)) json_int(&c->w, NULL, id);
    json_end_array(&c->w);
}

/* --- norms, biases, caps, windows --------------------------------------------------------------------------------- */

static bool has_bias(const struct conversion *c, const char *name)
{
    return gguf_find(c->file, name) != NULL;
}

static void put_gemma(struct conversion *c)
{
    int64_t heads = node_int(own(c, "attention.head_count"), 1),
            hidden = node_int(own(c, "embedding_length"), 0);
    int64_t scalar = node_int(own(c, "attention.key_length"), heads > 0 ? hidden / heads : 0);
    if (node_int(own(c, "block_count"), 0) == c->arch->gguf_scaled_layers && heads > 0)
        scalar = hidden / heads;
    json_int(&c->w, "query_pre_attn_scalar", scalar);
}

static void put_switches(struct conversion *c)
{
    json_bool(&c->w, "attention_bias", has_bias(c, "blk.0.attn_q.bias"));
    json_bool(&c->w, "mlp_bias", has_bias(c, "blk.0.ffn_gate.bias"));
    if (c->arch->gguf_scaled_layers) put_gemma(c);
    int64_t window = node_int(own(c, "attention.sliding_window"), 0);
    if (window > 0) {
        json_int(&c->w, "sliding_window", window);
    } else if (!c->arch->gguf_scaled_layers) {
        json_null(&c->w, "sliding_window");
    } else {
        refuse(c, PLIM_BAD_INPUT, "%s: key '%s.attention.sliding_window' is missing", gguf_path(c->file),
               c->arch->gguf);
    }
    if (node_int(own(c, "expert_count"), 0) > 0)
        refuse(c, PLIM_UNSUPPORTED, "%s: key '%s.expert_count': experts in GGUF files are not supported",
               gguf_path(c->file), c->arch->gguf);
}

/* --- rotary frequencies ------------------------------------------------------------------------------------------- */

static int read_factors(struct conversion *c, const char *name, float out[MODEL_MAX_HEAD / 2])
{
    const struct gguf_tensor *t = gguf_find(c->file, name);
    if (!t || c->status != PLIM_OK) return 0;
    if (t->count > MODEL_MAX_HEAD / 2 || t->type->elements != 1) {
        refuse(c, PLIM_BAD_INPUT,
               "%s: tensor '%s' has %lld numbers, at most half as many as a head has are expected",
               gguf_path(c->file), name, (long long)t->count);
        return 0;
    }
    c->status = gguf_read_at(c->file, t, 0, t->count, out, c->err);
    return c->status == PLIM_OK ? (int)t->count : 0;
}

static void put_factors(struct conversion *c, const char *key, const float *factors, int n)
{
    json_begin_array(&c->w, key);
    for (int i = 0; i < n; i++) json_double(&c->w, NULL, meant((double)factors[i]));
    json_end_array(&c->w);
}

/* Factors of the llama3 rule with the numbers that all its models have? Then *factor is the one that is free. */
static bool is_llama3(const float *factors, int n, double theta, double *factor)
{
    const double low = 1, high = 4, length = 8192;
    *factor = (double)factors[n - 1];
    for (int i = 0; i < n; i++) {
        double wave = 2 * M_PI * pow(theta, (double)i / n), want = 1;
        double smooth = (length / wave - low) / (high - low);
        if (wave > length / low)
            want = *factor;
        else if (wave >= length / high)
            want = 1 / ((1 - smooth) / *factor + smooth);
        if (fabs((double)factors[i] - want) > 1e-4 * want) return false;
    }
    return *factor > 1;
}

/* rope_freqs.weight: one factor for each frequency, whatever the length of a row. */
static void put_fixed_factors(struct conversion *c, const float *factors, int n)
{
    double factor = 1, theta = node_float(own(c, "rope.freq_base"), 10000);
    if (is_llama3(factors, n, theta, &factor)) {
        json_str(&c->w, "rope_type", "llama3");
        json_double(&c->w, "factor", factor);
        json_double(&c->w, "low_freq_factor", 1);
        json_double(&c->w, "high_freq_factor", 4);
        json_int(&c->w, "original_max_position_embeddings", 8192);
        return;
    }
    json_str(&c->w, "rope_type", "longrope");
    json_double(&c->w, "attention_factor", 1);
    json_int(&c->w, "original_max_position_embeddings", node_int(own(c, "context_length"), 0));
    put_factors(c, "short_factor", factors, n);
    put_factors(c, "long_factor", factors, n);
}

static void put_long_factors(struct conversion *c, const float *longer, int n)
{
    float shorter[MODEL_MAX_HEAD / 2];
    int m = read_factors(c, "rope_factors_short.weight", shorter);
    double attention = node_float(own(c, "rope.scaling.attn_factor"), 0);
    json_str(&c->w, "rope_type", "longrope");
    json_int(&c->w, "original_max_position_embeddings",
             node_int(own(c, "rope.scaling.original_context_length"), 0));
    if (attention > 0) json_double(&c->w, "attention_factor", attention);
    put_factors(c, "short_factor", shorter, m);
    put_factors(c, "long_factor", longer, n);
}

static void put_scaling(struct conversion *c)
{
    const char *type = node_string(own(c, "rope.scaling.type"), "none");
    const struct node *factor = own(c, "rope.scaling.factor");
    if (!strcmp(type, "none") || !strcmp(type, "longrope") || (!own(c, "rope.scaling.type") && !factor)) {
        json_str(&c->w, "rope_type", "default");
        return;
    }
    if (strcmp(type, "linear") && strcmp(type, "yarn"))
        refuse(c, PLIM_UNSUPPORTED,
               "%s: key '%s.rope.scaling.type': '%s' is not supported; none, linear, yarn are",
               gguf_path(c->file), c->arch->gguf, type);
    json_str(&c->w, "rope_type", type);
    put_fields(c, true);
}

static void put_rope(struct conversion *c)
{
    float factors[MODEL_MAX_HEAD / 2];
    int64_t heads = node_int(own(c, "attention.head_count"), 1);
    int64_t size = node_int(own(c, "attention.key_length"),
                            heads > 0 ? node_int(own(c, "embedding_length"), 0) / heads : 0);
    int64_t rotated = node_int(own(c, "rope.dimension_count"), size);
    if (!strcmp(c->arch->gguf, "gpt2")) return;
    json_double(&c->w, "rope_theta", meant(node_float(own(c, "rope.freq_base"), 10000)));
    if (size > 0 && rotated != size)
        json_double(&c->w, "partial_rotary_factor", (double)rotated / (double)size);
    if (own(c, "rope.scaling.original_context_length") && !strcmp(c->arch->gguf, "phi3"))
        json_int(&c->w, "original_max_position_embeddings",
                 node_int(own(c, "rope.scaling.original_context_length"), 0));
    json_begin_object(&c->w, "rope_scaling");
    int n = read_factors(c, "rope_freqs.weight", factors);
    int m = n ? 0 : read_factors(c, "rope_factors_long.weight", factors);
    if (n)
        put_fixed_factors(c, factors, n);
    else if (m)
        put_long_factors(c, factors, m);
    else
        put_scaling(c);
    json_end_object(&c->w);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void find_architecture(struct conversion *c)
{
    const char *name = node_string(meta(c, "general.architecture"), NULL);
    STRBUF_AUTO known = STRBUF_INIT;
    for (int i = 0; model_architecture_at(i); i++) {
        const struct architecture *arch = model_architecture_at(i);
        if (!arch->gguf) continue;
        strbuf_addf(&known, "%s%s", known.len ? ", " : "", arch->gguf);
        if (name && !strcmp(arch->gguf, name)) c->arch = arch;
    }
    if (!name)
        refuse(c, PLIM_BAD_INPUT, "%s: key 'general.architecture' is missing; the file holds no model",
               gguf_path(c->file));
    else if (!c->arch)
        refuse(c, PLIM_UNSUPPORTED, "%s: architecture '%.60s' is not supported; supported: %s",
               gguf_path(c->file), name, strbuf_text(&known));
}

enum plim_status gguf_config_write(const struct gguf *file, struct strbuf *out, struct plim_error *err)
{
    struct conversion c = {.file = file, .err = err};
    find_architecture(&c);
    if (c.status != PLIM_OK) return c.status;
    bool mistral = c.arch == &arch_llama && node_int(own(&c, "attention.sliding_window"), 0) > 0;
    json_writer_init(&c.w, out, 1);
    json_begin_object(&c.w, NULL);
    json_str(&c.w, "model_type", mistral ? "mistral" : architecture_type(c.arch));
    put_sizes(&c);
    put_vocabulary(&c);
    put_tokens(&c);
    put_switches(&c);
    put_rope(&c);
    json_end_object(&c.w);
    return c.status == PLIM_OK ? strbuf_status(out, err) : c.status;
}

enum plim_status gguf_config_read(const struct gguf *file, struct model_spec *spec, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    struct doc *doc = NULL;
    enum plim_status status = gguf_config_write(file, &text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, gguf_path(file), &doc, err);
    if (status == PLIM_OK) status = hf_config_read(&doc->root, gguf_path(file), spec, err);
    doc_free(doc);
    return status;
}

enum plim_status gguf_config_load(const char *path, struct model_spec *spec, struct plim_error *err)
{
    struct gguf *file = NULL;
    enum plim_status status = gguf_open(path, &file, err);
    if (status == PLIM_OK) status = gguf_config_read(file, spec, err);
    gguf_close(file);
    return status;
}
