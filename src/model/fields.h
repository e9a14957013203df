/* fields.h - one table of the numbers that a model has (fields.inc).
 *
 * A row holds everything about one number: its member in struct model_spec, its key in config.json, GGUF and jobs, its kind, its
 * range and its help text. Reading and writing config.json, checks, GGUF, the keys of jobs, the facts of checkpoints and
 * docs/configuration.md use the table. To add a number, write its member (model.h), its row, and the line that computes with it:
 *
 *     KEY(FINAL_CAP, final_cap, FLOAT, "final_logit_softcapping", 0, 1e9, "soft-cap of logits; 0: none")
 *
 * An architecture lists the fields of its config.json in `keys`: HAS(FINAL_CAP), or [FIELD_HIDDEN] = "n_embd" for a name of its
 * own. Its `defaults` give the values of keys that a file leaves out. Some fields are more than a number: windows, rotary scaling,
 * lists of layers. hf.c, hf_write.c and fields.c have functions for them, listed by field.
 */
#pragma once

#include "base/schema.h"
#include "model/model.h"

enum model_field_id {
#define KEY(id, ...)    FIELD_##id,
#define KEY_OR(id, ...) FIELD_##id,
#define CONFIG(id, ...) FIELD_##id,
#define ALIAS(name, other)
#include "model/fields.inc"
    MODEL_FIELDS
};

/* Which files must have the field. NEED_ALWAYS: both kinds, except a config.json whose architecture derives the number. */
enum field_need { NEED_NOT, NEED_HF, NEED_GGUF, NEED_ALWAYS };

/* Which models model_spec_field describes with the field. */
enum field_shown {
    SHOWN_IF_HAD, /* config.json has it */
    SHOWN_ALWAYS,
    SHOWN_NEVER,
    SHOWN_SET,    /* it is not 0 */
    SHOWN_BY_KEY, /* config.json has it; shown under that name */
    SHOWN_ENCODER,
    SHOWN_SOURCE,
    SHOWN_EXPERTS,
    SHOWN_SPARSE
};

#define ROPE_BITS(kind) (1u << ROPE_##kind)

struct model_field {
    struct schema_row row;    /* path: the field's name; offset: in struct model_spec */
    size_t size;              /* bytes of the member */
    const char *hf, *hf_else; /* key of config.json if not the name; key that another version writes */
    const char *gguf;  /* key behind the architecture's name; NULL: none, or gguf_model.c converts it */
    const char *usual; /* usual value, for errors */
    unsigned rope;     /* member of rope_scaling: the kinds that have it (ROPE_BITS); 0: a key of its own */
    enum field_need need;
    enum field_shown shown;
    bool all;               /* every architecture has it */
    bool job;               /* jobs have the key model.<name> */
    bool null_is_none;      /* null means 0, or -1 for a token; otherwise null means the default */
    bool token;             /* token id; below 0 it is written as null */
    bool omit_zero;         /* 0 is not written */
    bool min_excluded;      /* the value must be above row.min */
    bool checked_elsewhere; /* model_validate checks it together with others */
    bool layer_rule;        /* selects layers; model_complete turns it into a set and clears it */
    bool may_override;      /* a job may set it beside model.path */
    bool sparse_only;       /* exists only with attention_type: sparse */
    bool sets_shapes;       /* parameters' shapes depend on it */
};

extern const struct model_field model_fields[MODEL_FIELDS];

/* Key of the field in the architecture's config.json; NULL: there is none. */
const char *field_key(const struct architecture *arch, enum model_field_id id);
/* Name for errors: the key, or the row's name where there is no key. */
const char *field_name(const struct architecture *arch, enum model_field_id id);

static inline void *field_at(const struct model_field *f, struct model_spec *spec)
{
    return (char *)spec + f->row.offset;
}
/* The value as a number: a BOOL is 0 or 1, a list 0. */
double field_number(const struct model_field *f, const struct model_spec *spec);

/* True when model_spec_field describes this model with the field. */
bool field_shown(const struct model_spec *spec, enum model_field_id id);

/* True when parameters' shapes depend on the key "model.<name>". */
bool model_field_shapes(const char *key);
