/* spec.c - the fields of a model's spec as one table: two specs are compared, and one is described, through it. See model.h. */
#include "base/number.h"
#include "model/arch.h"

#include <string.h>

enum field_form { FIELD_INT64, FIELD_INT, FIELD_DOUBLE, FIELD_BOOL };

struct field {
    const char *name; /* the configuration key below model., else as config.json has it */
    size_t offset;
    enum field_form form;
};

#define FIELD(name, member, form)                                                                            \
    {                                                                                                        \
        name, offsetof(struct model_spec, member), form                                                      \
    }

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
    FIELD("max_window_layers", window_first_layer, FIELD_INT),
    FIELD("tie_word_embeddings", tie_embeddings, FIELD_BOOL),
    FIELD("attention_bias", qkv_bias, FIELD_BOOL),
    FIELD("attention_output_bias", o_bias, FIELD_BOOL),
    FIELD("mlp_bias", mlp_bias, FIELD_BOOL),
    FIELD("initializer_range", initializer_range, FIELD_DOUBLE),
    FIELD("bos_token_id", bos_token_id, FIELD_INT64),
    FIELD("pad_token_id", pad_token_id, FIELD_INT64),
    FIELD("eos_token_id", eos_count, FIELD_INT),
};
_Static_assert(sizeof(enum rope_kind) == sizeof(int), "the kind of scaling is compared as an int");

static const size_t sizes[] = {[FIELD_INT64] = sizeof(int64_t),
                               [FIELD_INT] = sizeof(int),
                               [FIELD_DOUBLE] = sizeof(double),
                               [FIELD_BOOL] = sizeof(bool)};

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
    if (f->offset == offsetof(struct model_spec, rope.kind)) {
        strbuf_add(value, rope_kind_name(spec->rope.kind));
    } else if (f->offset == offsetof(struct model_spec, eos_count)) {
        for (int k = 0; k < spec->eos_count; k++)
            strbuf_addf(value, k ? ",%lld" : "%lld", (long long)spec->eos_token_ids[k]);
    } else {
        put_value(value, at, f->form);
    }
    return f->name;
}
