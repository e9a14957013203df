/* weights.c - matching names, then pouring data. See weights.h.
 *
 * First every parameter of the tape finds its tensor in the set (or the user hears which ones do not), then
 * the data are read once, converted in blocks, and handed on. Nothing is written to the sink before all
 * matched.
 */
#include "model/weights.h"
#include "model/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SIZE 192

static bool is_weight(const struct tensor *t)
{
    return t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0;
}

int weights_master(const struct tape *tape, int param)
{
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls == CLASS_MASTER && t->owner == param && t->view_of < 0) return i;
    }
    return -1;
}

/* --- matching ---------------------------------------------------------------------------------------------
 */

struct match {
    int param, master;
    const struct safetensor *file;
};

struct matching {
    const struct safetensors *set;
    const struct model_spec *spec;
    const struct tape *tape;
    struct match *items;
    int count;
    bool *used; /* by tensor of the set */
};

static const struct safetensor *find_tensor(const struct matching *m, const char *name)
{
    const char *prefix = m->spec->arch->prefix;
    size_t n = strlen(prefix);
    const struct safetensor *t = safetensors_find(m->set, name);
    if (!t && !strncmp(name, prefix, n)) t = safetensors_find(m->set, name + n);
    return t;
}

static bool same_shape(const struct tensor *t, const struct safetensor *file)
{
    if (t->ndim != file->ndim) return false;
    for (int i = 0; i < t->ndim; i++)
        if (t->dim[i] != file->dim[i]) return false;
    return true;
}

static enum plim_status check_shape(const struct tensor *t, const char *name, const struct safetensor *file,
                                    struct plim_error *err)
{
    char have[96], want[96];
    if (same_shape(t, file)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: tensor '%s' is %s but the model needs %s; config.json and weights differ",
                     file->path, name, safetensors_shape_text(file->ndim, file->dim, have, sizeof have),
                     safetensors_shape_text(t->ndim, t->dim, want, sizeof want));
}

/* The names of up to three missing parameters and how many more there are. */
struct missing {
    int count;
    char names[3 * NAME_SIZE];
    size_t used;
};

static void note_missing(struct missing *lost, const char *name)
{
    if (++lost->count > 3 || lost->used >= sizeof lost->names) return;
    int n = snprintf(lost->names + lost->used, sizeof lost->names - lost->used, "%s'%s'",
                     lost->count > 1 ? ", " : "", name);
    if (n > 0) lost->used += (size_t)n;
}

static enum plim_status fail_missing(const struct missing *lost, struct plim_error *err)
{
    bool head_only = lost->count == 1 && !strcmp(lost->names, "'lm_head.weight'");
    char more[32] = "";
    if (lost->count > 3) snprintf(more, sizeof more, " and %d more", lost->count - 3);
    return plim_fail(err, PLIM_BAD_INPUT, "weights: %s%s missing from the files; %s", lost->names, more,
                     head_only ? "if the model shares it with the embedding, set tie_word_embeddings to true"
                               : "fetch them again, or correct config.json");
}

static enum plim_status match_all(struct matching *m, struct plim_error *err)
{
    struct missing lost = {0};
    char name[NAME_SIZE];
    for (int i = 0; i < m->tape->ntensors; i++) {
        const struct tensor *t = &m->tape->tensors[i];
        if (!is_weight(t)) continue;
        tape_tensor_name(m->tape, i, name, sizeof name);
        const struct safetensor *file = find_tensor(m, name);
        if (!file) {
            note_missing(&lost, name);
            continue;
        }
        enum plim_status status = check_shape(t, name, file, err);
        if (status != PLIM_OK) return status;
        m->used[file - m->set->tensors] = true;
        m->items[m->count++] = (struct match){.param = i, .master = -1, .file = file};
    }
    return lost.count ? fail_missing(&lost, err) : PLIM_OK;
}

/* Each master finds its parameter's match; one pass, because tapes are large. */
static enum plim_status match_masters(struct matching *m, struct plim_error *err)
{
    int *slot = malloc(((size_t)m->tape->ntensors + 1) * sizeof *slot);
    if (!slot) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    for (int i = 0; i < m->tape->ntensors; i++) slot[i] = -1;
    for (int i = 0; i < m->count; i++) slot[m->items[i].param] = i;
    for (int i = m->tape->ntensors - 1; i >= 0; i--) {
        const struct tensor *t = &m->tape->tensors[i];
        if (t->cls == CLASS_MASTER && t->view_of < 0 && t->owner >= 0 && slot[t->owner] >= 0)
            m->items[slot[t->owner]].master = i;
    }
    free(slot);
    return PLIM_OK;
}

/* What checkpoints carry beside parameters: a tied head, masks and tables that are made anew. */
static bool is_expected_extra(const char *name)
{
    static const char *const ends[] = {"lm_head.weight", "rotary_emb.inv_freq", "attn.bias",
                                       "attn.masked_bias"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t k = strlen(ends[i]);
        if (n >= k && !strcmp(name + n - k, ends[i])) return true;
    }
    return false;
}

static void report_unexpected(const struct matching *m, const struct log *log)
{
    const int most = 8;
    int count = 0;
    for (size_t i = 0; i < m->set->count; i++) {
        if (m->used[i] || is_expected_extra(m->set->tensors[i].name)) continue;
        if (count++ < most)
            log_warn(log, "%s: tensor '%s' is not part of this model and is not used",
                     m->set->tensors[i].path, m->set->tensors[i].name);
    }
    if (count > most) log_warn(log, "weights: %d more tensors are not used", count - most);
}

/* --- data -------------------------------------------------------------------------------------------------
 */

#define BLOCK 8192

/* One parameter on its way. */
struct pour {
    const struct weights_sink *sink;
    const struct match *match;
    enum dtype type, master_type;
    uint16_t narrow[BLOCK], low[BLOCK];
};

static enum plim_status put(const struct pour *p, int tensor, int64_t first, const void *elements, int64_t n,
                            struct plim_error *err)
{
    return p->sink->put(p->sink->arg, tensor, first, elements, n, err);
}

/* Elements already in the parameter's type, no master to fill. */
static enum plim_status pour_plain(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    const struct pour *p = arg;
    return put(p, p->match->param, first, elements, n, err);
}

/* bf16 elements whose master has nothing to add: low bits say "no rounding happened". */
static enum plim_status pour_exact(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    struct pour *p = arg;
    enum plim_status status = put(p, p->match->param, first, elements, n, err);
    uint16_t weight, none;
    master_split(0.0f, &weight, &none);
    for (int i = 0; i < BLOCK; i++) p->low[i] = none;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK)
        status = put(p, p->match->master, first + at, p->low, n - at < BLOCK ? n - at : BLOCK, err);
    return status;
}

/* fp32 elements into a narrow parameter and the master that keeps what rounding takes. */
static enum plim_status pour_split(void *arg, int64_t first, const void *elements, int64_t n,
                                   struct plim_error *err)
{
    struct pour *p = arg;
    const float *values = elements;
    enum plim_status status = PLIM_OK;
    for (int64_t at = 0; at < n && status == PLIM_OK; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        const void *master = values + at;
        if (p->master_type == DT_U16) {
            for (int64_t i = 0; i < k; i++) master_split(values[at + i], &p->narrow[i], &p->low[i]);
            master = p->low;
        } else {
            dtype_convert(p->narrow, p->type, values + at, DT_F32, k);
        }
        status = put(p, p->match->param, first + at, p->narrow, k, err);
        if (status == PLIM_OK) status = put(p, p->match->master, first + at, master, k, err);
    }
    return status;
}

static enum plim_status pour_one(const struct matching *m, struct pour *p, struct plim_error *err)
{
    const struct match *match = p->match;
    p->type = m->tape->tensors[match->param].type;
    if (match->master < 0) return safetensors_read(m->set, match->file, p->type, pour_plain, p, err);
    p->master_type = m->tape->tensors[match->master].type;
    if (p->master_type == DT_U16 && match->file->type == DT_BF16)
        return safetensors_read(m->set, match->file, DT_BF16, pour_exact, p, err);
    return safetensors_read(m->set, match->file, DT_F32, pour_split, p, err);
}

static enum plim_status pour_all(const struct matching *m, const struct weights_sink *sink,
                                 const struct log *log, struct plim_error *err)
{
    struct pour *p = malloc(sizeof *p);
    enum plim_status status = PLIM_OK;
    int same = 0;
    if (!p) return plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    p->sink = sink;
    for (int i = 0; i < m->count && status == PLIM_OK; i++) {
        p->match = &m->items[i];
        same += m->tape->tensors[p->match->param].type == p->match->file->type;
        status = pour_one(m, p, err);
    }
    if (status == PLIM_OK && m->count && same == m->count)
        log_info(log, "conversion skipped: already %s", dtype_name(m->items[0].file->type));
    free(p);
    return status;
}

enum plim_status weights_load(const struct safetensors *set, const struct model_spec *spec,
                              const struct tape *tape, const struct weights_sink *sink, const struct log *log,
                              struct plim_error *err)
{
    struct matching m = {.set = set, .spec = spec, .tape = tape};
    enum plim_status status = PLIM_OK;
    m.items = calloc((size_t)tape->ntensors + 1, sizeof *m.items);
    m.used = calloc(set->count + 1, sizeof *m.used);
    if (!m.items || !m.used) status = plim_fail(err, PLIM_NO_MEMORY, "weights: out of memory");
    if (status == PLIM_OK) status = match_all(&m, err);
    if (status == PLIM_OK) status = match_masters(&m, err);
    if (status == PLIM_OK) report_unexpected(&m, log);
    if (status == PLIM_OK) status = pour_all(&m, sink, log, err);
    free(m.items);
    free(m.used);
    return status;
}
