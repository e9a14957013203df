/* fields.c - the table itself; two specs are compared and one is described through it. See fields.h and model.h. */
#include "model/fields.h"
#include "base/number.h"
#include "model/arch.h"

#include <string.h>

#define MEMBER(member) sizeof(((struct model_spec *)0)->member)
#define ROW(kind, member, name, least, most)                                                                 \
    {                                                                                                        \
        name, SCHEMA_##kind, offsetof(struct model_spec, member), .min = least, .max = most                  \
    }

const struct model_field model_fields[MODEL_FIELDS] = {
#define KEY(id, member, kind, name, least, most, help, ...)                                                  \
    [FIELD_##id] = {ROW(kind, member, name, least, most), MEMBER(member), .job = true, ##__VA_ARGS__},
#define KEY_OR(id, member, kind, name, least, most, help, fallback, ...)                                     \
    [FIELD_##id] = {ROW(kind, member, name, least, most), MEMBER(member), .job = true, ##__VA_ARGS__},
#define CONFIG(id, member, kind, name, least, most, help, ...)                                               \
    [FIELD_##id] = {ROW(kind, member, name, least, most), MEMBER(member), ##__VA_ARGS__},
#define ALIAS(name, other)
#include "model/fields.inc"
};
_Static_assert(sizeof(enum rope_kind) == sizeof(int) && sizeof(enum model_task) == sizeof(int) &&
                   sizeof(enum label_problem) == sizeof(int),
               "kinds of scaling and tasks are compared as int");

const char *field_key(const struct architecture *arch, enum model_field_id id)
{
    const struct model_field *f = &model_fields[id];
    const char *name = f->hf ? f->hf : f->row.path, *own = arch->keys[id];
    if (own && *own) return own;
    if (f->rope && arch->rope) return name + strlen("rope_scaling.");
    return own || f->all ? name : NULL;
}

const char *field_name(const struct architecture *arch, enum model_field_id id)
{
    const char *key = field_key(arch, id);
    return key ? key : model_fields[id].row.path;
}

double field_number(const struct model_field *f, const struct model_spec *spec)
{
    const void *at = (const char *)spec + f->row.offset;
    switch (f->row.kind) {
    case SCHEMA_INT64:
        return (double)*(const int64_t *)at;
    case SCHEMA_INT:
        return *(const int *)at;
    case SCHEMA_FLOAT:
        return *(const double *)at;
    case SCHEMA_BOOL:
        return *(const bool *)at;
    default:
        return 0;
    }
}

bool field_shown(const struct model_spec *spec, enum model_field_id id)
{
    const struct model_field *f = &model_fields[id];
    switch (f->shown) {
    case SHOWN_ALWAYS:
        return true;
    case SHOWN_NEVER:
        return false;
    case SHOWN_SET:
        return field_number(f, spec) != 0;
    case SHOWN_ENCODER:
        return spec->arch->encoder;
    case SHOWN_SOURCE:
        return spec->arch->source;
    case SHOWN_EXPERTS:
        return field_key(spec->arch, FIELD_EXPERTS);
    case SHOWN_SPARSE:
        return spec->sparse_block > 0;
    default:
        return !f->layer_rule &&
               (f->rope ? f->rope >> spec->rope.kind & 1 : field_key(spec->arch, id) != NULL);
    }
}

bool model_field_shapes(const char *key)
{
    for (int i = 0; i < MODEL_FIELDS; i++)
        if (model_fields[i].sets_shapes && !strncmp(key, "model.", 6) &&
            !strcmp(key + 6, model_fields[i].row.path))
            return true;
    return !strcmp(key, "model.architecture");
}

const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b)
{
    if (a->arch != b->arch) return "architecture";
    for (int i = 0; i < MODEL_FIELDS; i++) {
        const struct model_field *f = &model_fields[i];
        size_t at = f->row.offset;
        if (!f->layer_rule && memcmp((const char *)a + at, (const char *)b + at, f->size)) return f->row.path;
    }
    size_t ids = (size_t)a->eos_count * sizeof *a->eos_token_ids;
    return memcmp(a->eos_token_ids, b->eos_token_ids, ids) ? "eos_token_id" : NULL;
}

/* --- as text ---------------------------------------------------------------------------------------------- */

/* "0,2,5"; "-" when there is none. */
static void show_layers(const struct layer_set *set, struct strbuf *out)
{
    size_t before = out->len;
    for (int i = 0; i < MODEL_MAX_LAYERS; i++)
        if (layer_set_has(set, i)) strbuf_addf(out, out->len > before ? ",%d" : "%d", i);
    if (out->len == before) strbuf_addc(out, '-');
}

/* The first layer of those with a window, as max_window_layers has it, or all of them where others follow; 0 without a
 * window. */
static void show_sliding(const struct model_spec *s, struct strbuf *out)
{
    int first = 0, last = s->num_layers;
    while (first < last && !layer_set_has(&s->sliding_layers, first)) first++;
    while (last > first && layer_set_has(&s->sliding_layers, last - 1)) last--;
    if (last == first)
        strbuf_addf(out, "%d", s->sliding_window > 0 ? first : 0);
    else
        show_layers(&s->sliding_layers, out);
}

static void show_factors(const struct rope_factors *f, struct strbuf *out)
{
    char number[NUMBER_TEXT];
    for (int i = 0; i < f->count; i++)
        strbuf_addf(out, "%s%s", i ? "," : "", number_format_double(number, f->value[i]));
}

static void show_value(const struct model_spec *s, enum model_field_id id, struct strbuf *out)
{
    switch (id) {
    case FIELD_NO_ROPE:
    case FIELD_DENSE:
        show_layers(id == FIELD_DENSE ? &s->dense_layers : &s->no_rope_layers, out);
        break;
    case FIELD_SLIDING:
        show_sliding(s, out);
        break;
    case FIELD_SHORT:
    case FIELD_LONG:
        show_factors(id == FIELD_LONG ? &s->rope.long_factor : &s->rope.short_factor, out);
        break;
    case FIELD_ROPE:
        strbuf_add(out, rope_kind_name(s->rope.kind));
        break;
    case FIELD_EOS:
        for (int k = 0; k < s->eos_count; k++)
            strbuf_addf(out, k ? ",%lld" : "%lld", (long long)s->eos_token_ids[k]);
        break;
    default:
        schema_value(&model_fields[id].row, s, out);
    }
}

const char *model_spec_field(const struct model_spec *spec, int i, struct strbuf *value)
{
    if (i < 0 || i >= MODEL_FIELDS) return NULL;
    const struct model_field *f = &model_fields[i];
    bool by_key = f->shown == SHOWN_BY_KEY;
    if (!field_shown(spec, i)) return "";
    show_value(spec, i, value);
    return by_key ? field_key(spec->arch, i) : f->row.path;
}
