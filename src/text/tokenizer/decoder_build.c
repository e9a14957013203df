/* decoder_build.c - decoders from tokenizer.json. Sequences are flattened, so a decoder is an array of steps. */
#include "text/tokenizer/decoder_part.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { STEPS_MOST = 64 };

static enum plim_status read_text(struct decoder_step *step, const struct node *spec, const char *key,
                                  const char *fallback, const char *name, struct plim_error *err)
{
    const struct node *value = node_get(spec, key);
    if (value && value->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: decoder: '%s': expected a text", name, value->line,
                         key);
    const char *text = value ? value->as.string.text : fallback;
    step->len = value ? value->as.string.len : strlen(fallback);
    step->text = malloc(step->len + 1);
    if (!step->text) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the decoder", name);
    memcpy(step->text, text, step->len);
    step->text[step->len] = '\0';
    return PLIM_OK;
}

/* A text that must be one code point. */
static enum plim_status read_char(struct decoder_step *step, const struct node *spec, const char *key,
                                  const char *fallback, const char *name, struct plim_error *err)
{
    uint32_t point;
    enum plim_status status = read_text(step, spec, key, fallback, name, err);
    if (status == PLIM_OK && (!step->len || utf8_decode(step->text, step->len, &point) != step->len))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s:%d: decoder: '%s': expected one character", name,
                           spec->line, key);
    return status;
}

static enum plim_status metaspace_build(struct decoder_step *step, const struct node *spec, const char *name,
                                        struct plim_error *err)
{
    const char *scheme = node_string(node_get(spec, "prepend_scheme"), "always");
    step->flag = strcmp(scheme, "never") != 0 && node_bool(node_get(spec, "add_prefix_space"), true);
    return read_char(step, spec, "replacement", "\xe2\x96\x81", name, err);
}

static enum plim_status wordpiece_build(struct decoder_step *step, const struct node *spec, const char *name,
                                        struct plim_error *err)
{
    step->flag = node_bool(node_get(spec, "cleanup"), true);
    return read_text(step, spec, "prefix", "##", name, err);
}

static enum plim_status bpe_build(struct decoder_step *step, const struct node *spec, const char *name,
                                  struct plim_error *err)
{
    return read_text(step, spec, "suffix", "</w>", name, err);
}

static enum plim_status strip_build(struct decoder_step *step, const struct node *spec, const char *name,
                                    struct plim_error *err)
{
    int64_t start = node_int(node_get(spec, "start"), 0), stop = node_int(node_get(spec, "stop"), 0);
    if (start < 0 || stop < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: decoder Strip: 'start' and 'stop' are not below 0",
                         name, spec->line);
    step->start = (size_t)start, step->stop = (size_t)stop;
    return read_char(step, spec, "content", " ", name, err);
}

static enum plim_status replace_build(struct decoder_step *step, const struct node *spec, const char *name,
                                      struct plim_error *err)
{
    return text_replace_read(&step->replace, spec, "decoder", name, err);
}

const struct decoder_kind decoder_kinds[] = {
    {"ByteLevel", NULL, NULL, decoder_byte_level_close, decoder_byte_level_end, decoder_byte_level_piece},
    {"ByteFallback", NULL, NULL, decoder_byte_fallback_close, decoder_byte_fallback_end,
     decoder_byte_fallback_piece},
    {"Metaspace", metaspace_build, NULL, decoder_metaspace_close, NULL, decoder_blank_piece},
    {"WordPiece", wordpiece_build, NULL, decoder_wordpiece_close, NULL, decoder_wordpiece_piece},
    {"BPEDecoder", bpe_build, NULL, decoder_bpe_close, decoder_bpe_end, decoder_blank_piece},
    {"Fuse", NULL, decoder_fuse_put, decoder_fuse_close, decoder_fuse_end, NULL},
    {"Strip", strip_build, decoder_strip_put, decoder_strip_close, NULL, decoder_strip_piece},
    {"Replace", replace_build, NULL, decoder_replace_close, NULL, decoder_replace_piece},
    {0},
};

static struct decoder_step *add_step(struct token_decoder *d)
{
    if (d->count == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct decoder_step *step = realloc(d->step, cap * sizeof *step);
        if (!step) return NULL;
        d->step = step;
        d->cap = cap;
    }
    d->step[d->count] = (struct decoder_step){0};
    return &d->step[d->count++];
}

/* Appends the steps of one node; a Sequence inside is one level deeper (JSON itself is at most 128 deep). */
static enum plim_status add_node(struct token_decoder *d, const struct node *spec, const char *name,
                                 struct plim_error *err)
{
    const struct node *type = node_get(spec, "type"), *list = node_get(spec, "decoders");
    const char *text = node_string(type, NULL);
    enum plim_status status = PLIM_OK;
    if (!text)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: decoder: 'type': expected a text", name, spec->line);
    if (strcmp(text, "Sequence") == 0) {
        if (!list || list->kind != NODE_LIST)
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: decoder Sequence: 'decoders': expected a list",
                             name, spec->line);
        for (size_t i = 0; i < node_count(list) && status == PLIM_OK; i++)
            status = add_node(d, node_item(list, i), name, err);
        return status;
    }
    for (const struct decoder_kind *kind = decoder_kinds; kind->type; kind++) {
        if (strcmp(kind->type, text) != 0) continue;
        if (d->count == STEPS_MOST)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s:%d: decoder: more than %d steps, the most that are read", name, spec->line,
                             STEPS_MOST);
        struct decoder_step *step = add_step(d);
        if (!step) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the decoder", name);
        step->kind = kind;
        return kind->build ? kind->build(step, spec, name, err) : PLIM_OK;
    }
    return plim_fail(err, PLIM_UNSUPPORTED, "%s:%d: decoder type '%s' is not supported", name, type->line,
                     text);
}

enum plim_status token_decoder_build(const struct node *spec, const char *name, struct token_decoder **out,
                                     struct plim_error *err)
{
    *out = NULL;
    if (!spec || spec->kind == NODE_NULL) return PLIM_OK;
    struct token_decoder *d = calloc(1, sizeof *d);
    if (!d) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the decoder", name);
    enum plim_status status = add_node(d, spec, name, err);
    if (status == PLIM_OK)
        *out = d;
    else
        token_decoder_free(d);
    return status;
}

void token_decoder_free(struct token_decoder *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->count; i++) {
        free(d->step[i].text);
        text_replace_release(&d->step[i].replace);
    }
    free(d->step);
    free(d);
}
