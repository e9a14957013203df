/* weights_save.c - a Hugging Face folder from a tape's parameters. See weights.h.
 *
 * The header of a file comes before its data, so the list of tensors is made first; then each parameter is
 * fetched, converted and written in blocks.
 */
#include "base/bump.h"
#include "base/file.h"
#include "model/hf.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 16384

struct saving {
    const struct tape *tape;
    const struct weights_source *source;
    enum dtype type; /* of the files */
    struct safetensors_entry *entries;
    struct source {
        int param;
        int64_t first, count; /* elements of it */
    } * sources;              /* of each entry */
    size_t count;
    struct bump store;
    uint16_t low[BLOCK];
    float raw[BLOCK], out[BLOCK]; /* room for any type a parameter has */
};

static bool is_weight(const struct tensor *t)
{
    return t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0;
}

static size_t count_parts(const struct tape *tape)
{
    size_t n = 0;
    for (int i = 0; i < tape->ntensors; i++)
        if (is_weight(&tape->tensors[i])) n += (size_t)weights_part_count(tape, i);
    return n;
}

static enum plim_status list_entries(struct saving *s, const struct model_spec *spec, struct plim_error *err)
{
    for (int i = 0; i < s->tape->ntensors; i++) {
        int count = is_weight(&s->tape->tensors[i]) ? weights_part_count(s->tape, i) : 0;
        for (int k = 0; k < count; k++) {
            const struct weights_part part = weights_part(spec, s->tape, i, k), *p = &part;
            struct safetensors_entry *e = &s->entries[s->count];
            *e = (struct safetensors_entry){
                .name = bump_copy(&s->store, p->name, strlen(p->name)), .type = s->type, .ndim = p->ndim};
            if (!e->name) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
            memcpy(e->dim, p->dim, sizeof p->dim);
            s->sources[s->count++] = (struct source){i, p->first, p->count};
        }
    }
    return PLIM_OK;
}

static enum plim_status get(struct saving *s, int tensor, int64_t first, void *out, int64_t n,
                            struct plim_error *err)
{
    return s->source->get(s->source->arg, tensor, first, out, n, err);
}

/* The block's values in the type of the files, in s->out. */
static enum plim_status fetch_block(struct saving *s, int param, int master, int64_t first, int64_t n,
                                    struct plim_error *err)
{
    enum dtype type = s->tape->tensors[param].type;
    bool widen = s->type == DT_F32 && master >= 0;
    bool joined = widen && s->tape->tensors[master].type == DT_U16;
    if (widen && !joined) return get(s, master, first, s->out, n, err);
    enum plim_status status = get(s, param, first, s->raw, n, err);
    if (status == PLIM_OK && joined) status = get(s, master, first, s->low, n, err);
    if (status != PLIM_OK) return status;
    if (!joined) {
        dtype_convert(s->out, s->type, s->raw, type, n);
        return PLIM_OK;
    }
    const unsigned char *weights = (const unsigned char *)s->raw;
    for (int64_t i = 0; i < n; i++) {
        uint16_t weight;
        memcpy(&weight, weights + 2 * i, 2);
        s->out[i] = master_join(weight, s->low[i]);
    }
    return PLIM_OK;
}

static enum plim_status save_tensor(struct saving *s, struct safetensors_writer *w, const struct source *from,
                                    struct plim_error *err)
{
    int master = weights_master(s->tape, from->param);
    int64_t count = from->count;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < count && status == PLIM_OK; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        status = fetch_block(s, from->param, master, from->first + at, n, err);
        if (status == PLIM_OK)
            status = safetensors_writer_put(w, s->out, (size_t)n * dtype_size(s->type), err);
    }
    return status;
}

static enum plim_status save_tensors(struct saving *s, const char *dir, uint64_t shard_bytes,
                                     struct plim_error *err)
{
    struct safetensors_writer w;
    enum plim_status status = safetensors_writer_begin(&w, dir, s->entries, s->count, shard_bytes, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < s->count && status == PLIM_OK; i++)
        status = save_tensor(s, &w, &s->sources[i], err);
    if (status == PLIM_OK) return safetensors_writer_end(&w, err);
    safetensors_writer_abandon(&w);
    return status;
}

enum plim_status weights_save(const struct tape *tape, const struct model_spec *spec,
                              const struct weights_source *source, const char *dir,
                              const struct weights_save_options *options, struct plim_error *err)
{
    enum plim_status status;
    struct saving *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    s->tape = tape, s->source = source, s->type = options->type;
    size_t room = count_parts(tape) + 1;
    s->entries = calloc(room, sizeof *s->entries);
    s->sources = calloc(room, sizeof *s->sources);
    if (!s->entries || !s->sources) {
        status = plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
        goto out;
    }
    status = list_entries(s, spec, err);
    if (status == PLIM_OK) status = file_make_dirs(dir, err);
    if (status == PLIM_OK) status = save_tensors(s, dir, options->shard_bytes, err);
    if (status == PLIM_OK) status = hf_config_save(spec, options->type, dir, err);
out:
    bump_free(&s->store);
    free(s->entries);
    free(s->sources);
    free(s);
    return status;
}
