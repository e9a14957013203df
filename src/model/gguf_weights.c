/* gguf_weights.c - see gguf_weights.h.
 *
 * The field `offset` of an entry is the place of its tensor among those of the file, so that names need no second table.
 */
#include "model/gguf_weights.h"
#include "model/adapter.h"
#include "model/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How elements lie in the file. */
enum change { AS_IT_IS, PAIRED_QUERIES, PAIRED_KEYS, PLUS_ONE, TRANSPOSED };

struct name_row {
    const char *gguf, *hf; /* %d: a layer; without .weight and .bias */
    enum change change;
};

#define LAYER "model.layers.%d."
#define ENDS_AND_ATTENTION                                                                                   \
    {"token_embd", "model.embed_tokens", AS_IT_IS}, {"output", "lm_head", AS_IT_IS},                         \
        {"blk.%d.attn_v", LAYER "self_attn.v_proj", AS_IT_IS},                                               \
        {"blk.%d.attn_output", LAYER "self_attn.o_proj", AS_IT_IS},                                          \
        {"blk.%d.attn_qkv", LAYER "self_attn.qkv_proj", AS_IT_IS},                                           \
        {"blk.%d.ffn_gate", LAYER "mlp.gate_proj", AS_IT_IS},                                                \
    {                                                                                                        \
        "blk.%d.ffn_down", LAYER "mlp.down_proj", AS_IT_IS                                                   \
    }
#define NORMS(change)                                                                                        \
    {"output_norm", "model.norm", change}, {"blk.%d.attn_norm", LAYER "input_layernorm", change},            \
        {"blk.%d.attn_q_norm", LAYER "self_attn.q_norm", change},                                            \
    {                                                                                                        \
        "blk.%d.attn_k_norm", LAYER "self_attn.k_norm", change                                               \
    }
#define QUERIES_AND_KEYS(q, k)                                                                               \
    {"blk.%d.attn_q", LAYER "self_attn.q_proj", q}, { "blk.%d.attn_k", LAYER "self_attn.k_proj", k }
#define POST_NORMS(change)                                                                                   \
    {"blk.%d.post_attention_norm", LAYER "post_attention_layernorm", change},                                \
    {                                                                                                        \
        "blk.%d.post_ffw_norm", LAYER "post_feedforward_layernorm", change                                   \
    }
#define UP                                                                                                   \
    {                                                                                                        \
        "blk.%d.ffn_up", LAYER "mlp.up_proj", AS_IT_IS                                                       \
    }
#define FFN_NORM                                                                                             \
    {                                                                                                        \
        "blk.%d.ffn_norm", LAYER "post_attention_layernorm", AS_IT_IS                                        \
    }
#define END                                                                                                  \
    {                                                                                                        \
        NULL, NULL, AS_IT_IS                                                                                 \
    }

static const struct name_row llama_names[] = {
    ENDS_AND_ATTENTION, NORMS(AS_IT_IS), UP, FFN_NORM, QUERIES_AND_KEYS(PAIRED_QUERIES, PAIRED_KEYS), END};
static const struct name_row qwen_names[] = {
    ENDS_AND_ATTENTION, NORMS(AS_IT_IS), UP, FFN_NORM, QUERIES_AND_KEYS(AS_IT_IS, AS_IT_IS), END};
static const struct name_row olmo_names[] = {
    ENDS_AND_ATTENTION, NORMS(AS_IT_IS), UP, POST_NORMS(AS_IT_IS), QUERIES_AND_KEYS(AS_IT_IS, AS_IT_IS), END};
static const struct name_row gemma_names[] = {
    ENDS_AND_ATTENTION,
    NORMS(PLUS_ONE),
    UP,
    POST_NORMS(PLUS_ONE),
    QUERIES_AND_KEYS(AS_IT_IS, AS_IT_IS),
    {"blk.%d.ffn_norm", LAYER "pre_feedforward_layernorm", PLUS_ONE},
    END};
static const struct name_row phi_names[] = {ENDS_AND_ATTENTION,
                                            NORMS(AS_IT_IS),
                                            FFN_NORM,
                                            {"blk.%d.ffn_up", LAYER "mlp.gate_up_proj", AS_IT_IS},
                                            END};

#define H "transformer.h.%d."
static const struct name_row gpt2_names[] = {{"token_embd", "transformer.wte", AS_IT_IS},
                                             {"position_embd", "transformer.wpe", AS_IT_IS},
                                             {"output_norm", "transformer.ln_f", AS_IT_IS},
                                             {"output", "lm_head", AS_IT_IS},
                                             {"blk.%d.attn_norm", H "ln_1", AS_IT_IS},
                                             {"blk.%d.attn_qkv", H "attn.c_attn", TRANSPOSED},
                                             {"blk.%d.attn_output", H "attn.c_proj", TRANSPOSED},
                                             {"blk.%d.ffn_norm", H "ln_2", AS_IT_IS},
                                             {"blk.%d.ffn_up", H "mlp.c_fc", TRANSPOSED},
                                             {"blk.%d.ffn_down", H "mlp.c_proj", TRANSPOSED},
                                             END};

static const struct {
    const char *arch;
    const struct name_row *names;
} tables[] = {{"llama", llama_names},  {"mistral", llama_names}, {"smollm3", llama_names},
              {"qwen2", qwen_names},   {"qwen3", qwen_names},    {"olmo2", olmo_names},
              {"gemma2", gemma_names}, {"gemma3", gemma_names},  {"phi3", phi_names},
              {"gpt2", gpt2_names}};

static const struct name_row *names_of(const struct model_spec *spec, const struct name_row *otherwise)
{
    const char *arch = model_architecture_name(spec->arch);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].arch, arch)) return tables[i].names;
    return otherwise;
}

struct gguf_weights {
    struct gguf *file;
    const struct name_row *names;
    int heads, kv_heads;
    bool adapter; /* tensors are an adapter's, under PEFT's names */
    struct safetensor *tensors;
    size_t count;
    struct bump store;
};

/* --- names --------------------------------------------------------------------------------------------------------- */

/* The end of a matrix's name: ".weight" and that. */
static bool is_matrix(const char *end, const char *more)
{
    return !strncmp(end, ".weight", 7) && !strcmp(end + 7, more);
}

/* Row i of a head is row 2 i of the file in its first half, 2 (i - D/2) + 1 in its second; size: rows of a head. */
static int64_t paired_row(int64_t i, int64_t size)
{
    int64_t at = i % size, half = size / 2;
    return i - at + (at < half ? 2 * at : 2 * (at - half) + 1);
}

static bool is_paired(enum change change) { return change == PAIRED_QUERIES || change == PAIRED_KEYS; }

/* The row of a name in the file; *layer is its layer and *end what follows the row's name. */
static const struct name_row *find_row(const struct gguf_weights *w, const char *name, int *layer,
                                       const char **end)
{
    char generic[256];
    int used = 0;
    *layer = -1;
    snprintf(generic, sizeof generic, "%s", name);
    if (sscanf(name, "blk.%d.%n", layer, &used) == 1 && used && *layer >= 0)
        snprintf(generic, sizeof generic, "blk.%%d.%s", name + used);
    for (const struct name_row *row = w->names; row->gguf; row++) {
        size_t n = strlen(row->gguf);
        if (strncmp(generic, row->gguf, n)) continue;
        *end = strchr(name + strlen(name) - (strlen(generic) - n), '.');
        bool known = w->adapter ? is_matrix(generic + n, ".lora_a") || is_matrix(generic + n, ".lora_b")
                                : is_matrix(generic + n, "") || !strcmp(generic + n, ".bias");
        if (known) return row;
    }
    return NULL;
}

/* An adapter's B has the rows of its weight, its A the columns. GGUF has the A of an embedding by tokens. */
static enum change change_of(const struct name_row *row, const char *end)
{
    if (!row || is_matrix(end, "")) return row ? row->change : AS_IT_IS;
    if (is_matrix(end, ".lora_a")) return strcmp(row->gguf, "token_embd") ? AS_IT_IS : TRANSPOSED;
    if (is_matrix(end, ".lora_b")) return is_paired(row->change) ? row->change : AS_IT_IS;
    return row->change;
}

static const char *peft_end(const struct name_row *row, const char *end)
{
    bool first = is_matrix(end, ".lora_a");
    if (!strcmp(row->gguf, "token_embd")) return first ? ".lora_embedding_A" : ".lora_embedding_B";
    return first ? ".lora_A.weight" : ".lora_B.weight";
}

static const char *hf_name(struct gguf_weights *w, const char *, const struct name_row *row, int layer,
                           const char *end)
{
    char text[256];
    const char *number = strstr(row->hf, "%d"), *prefix = w->adapter ? ADAPTER_PREFIX : "";
    if (w->adapter) end = peft_end(row, end);
    if (number)
        snprintf(text, sizeof text, "%s%.*s%d%s%s", prefix, (int)(number - row->hf), row->hf, layer,
                 number + 2, end);
    else
        snprintf(text, sizeof text, "%s%s%s", prefix, row->hf, end);
    return bump_copy(&w->store, text, strlen(text));
}

static enum dtype type_of(const struct block_type *type)
{
    static const struct {
        const char *name;
        enum dtype type;
    } plain[] = {{"F32", DT_F32}, {"F16", DT_F16}, {"BF16", DT_BF16}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(plain[i].name, type->name)) return plain[i].type;
    return type->read ? DT_F32 : DT_COUNT;
}

static bool is_table(const char *name) /* which the metadata's reader has used */
{
    return !strcmp(name, "rope_freqs.weight") || !strncmp(name, "rope_factors_", 13);
}

static enum plim_status add(struct gguf_weights *w, size_t index, struct plim_error *err)
{
    const struct gguf_tensor *t = gguf_at(w->file, index);
    int layer;
    const char *end = "";
    const struct name_row *row = find_row(w, t->name, &layer, &end);
    struct safetensor *s = &w->tensors[w->count++];
    *s = (struct safetensor){.name = row ? hf_name(w, t->name, row, layer, end) : t->name,
                             .type_name = t->type->name,
                             .type = type_of(t->type),
                             .ndim = t->ndim,
                             .count = t->count,
                             .offset = index,
                             .bytes = t->bytes,
                             .path = gguf_path(w->file)};
    memcpy(s->dim, t->dim, sizeof t->dim);
    if (change_of(row, end) == TRANSPOSED && t->ndim == 2) s->dim[0] = t->dim[1], s->dim[1] = t->dim[0];
    return s->name ? PLIM_OK : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(w->file));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static enum plim_status list_tensors(struct gguf_weights *w, struct plim_error *err)
{
    size_t n = 0;
    enum plim_status status = PLIM_OK;
    while (gguf_at(w->file, n)) n++;
    w->tensors = calloc(n + 1, sizeof *w->tensors);
    if (!w->tensors) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(w->file));
    for (size_t i = 0; i < n && status == PLIM_OK; i++)
        if (!is_table(gguf_at(w->file, i)->name)) status = add(w, i, err);
    if (w->count) qsort(w->tensors, w->count, sizeof *w->tensors, by_name);
    for (size_t i = 1; i < w->count && status == PLIM_OK; i++)
        if (!strcmp(w->tensors[i].name, w->tensors[i - 1].name))
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: two tensors are '%s'; the file is damaged",
                               gguf_path(w->file), w->tensors[i].name);
    return status;
}

static void set_model(struct gguf_weights *w, const struct model_spec *spec)
{
    w->heads = spec->num_heads, w->kv_heads = spec->num_kv_heads, w->names = names_of(spec, llama_names);
}

enum plim_status gguf_weights_open(const char *path, struct gguf_weights **out, struct plim_error *err)
{
    struct gguf_weights *w = calloc(1, sizeof *w);
    struct model_spec *spec = malloc(sizeof *spec);
    enum plim_status status = PLIM_OK;
    *out = NULL;
    if (!w || !spec) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    if (status == PLIM_OK) status = gguf_open(path, &w->file, err);
    if (status == PLIM_OK) status = gguf_config_read(w->file, spec, err);
    if (status == PLIM_OK) {
        set_model(w, spec);
        status = list_tensors(w, err);
        gguf_drop_metadata(w->file);
    }
    free(spec);
    if (status == PLIM_OK)
        *out = w;
    else
        gguf_weights_close(w);
    return status;
}

/* --- adapters ------------------------------------------------------------------------------------------------------ */

const char *gguf_architecture(const struct model_spec *spec)
{
    const char *name = model_architecture_name(spec->arch);
    if (!names_of(spec, NULL)) return NULL;
    return strcmp(name, "mistral") ? name : "llama";
}

static enum plim_status check_adapter(const struct gguf_weights *w, const struct model_spec *spec,
                                      double *alpha, struct plim_error *err)
{
    const struct node *meta = gguf_metadata(w->file);
    const char *path = gguf_path(w->file), *name = model_architecture_name(spec->arch),
               *arch = node_string(node_get(meta, "general.architecture"), ""),
               *own = gguf_architecture(spec);
    *alpha = node_float(node_get(meta, "adapter.lora.alpha"), 0);
    if (strcmp(node_string(node_get(meta, "general.type"), ""), "adapter") ||
        strcmp(node_string(node_get(meta, "adapter.type"), ""), "lora") || !(*alpha > 0))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: is not a LoRA adapter: general.type must be adapter, adapter.type lora, and "
                         "adapter.lora.alpha a number above 0",
                         path);
    if (node_get(meta, "adapter.alora.invocation_tokens"))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: an aLoRA adapter is not supported; LoRA is", path);
    if (!own || strcmp(own, arch))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is an adapter of '%.40s', and the model is %s", path, arch,
                         name);
    return PLIM_OK;
}

enum plim_status gguf_adapter_open(const char *path, const struct model_spec *spec, double *alpha,
                                   struct gguf_weights **out, struct plim_error *err)
{
    struct gguf_weights *w = *out = calloc(1, sizeof *w);
    if (!w) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    w->adapter = true;
    set_model(w, spec);
    enum plim_status status = gguf_open(path, &w->file, err);
    if (status == PLIM_OK) status = check_adapter(w, spec, alpha, err);
    if (status == PLIM_OK) status = list_tensors(w, err);
    if (status == PLIM_OK) return status;
    gguf_weights_close(w);
    *out = NULL;
    return status;
}

bool gguf_adapter_name(const struct model_spec *spec, const char *module, bool second, char *out, size_t size,
                       struct gguf_lines *lines)
{
    const char *end = second ? ".weight.lora_b" : ".weight.lora_a";
    for (const struct name_row *row = names_of(spec, NULL); row && row->gguf; row++) {
        const char *number = strstr(row->hf, "%d"), *place = strstr(row->gguf, "%d");
        int layer = 0, used = 0;
        size_t n = number ? (size_t)(number - row->hf) : strlen(row->hf);
        if (strncmp(row->hf, module, n)) continue;
        if (number && sscanf(module + n, "%d%n", &layer, &used) != 1) continue;
        if (strcmp(module + n + used, number ? number + 2 : "")) continue;
        enum change change = change_of(row, end);
        *lines = (struct gguf_lines){change == TRANSPOSED, change == PAIRED_QUERIES ? spec->num_heads
                                                           : change == PAIRED_KEYS  ? spec->num_kv_heads
                                                                                    : 0};
        if (place)
            snprintf(out, size, "%.*s%d%s%s", (int)(place - row->gguf), row->gguf, layer, place + 2, end);
        else
            snprintf(out, size, "%s%s", row->gguf, end);
        return true;
    }
    return false;
}

int64_t gguf_paired_row(int64_t row, int64_t head_rows) { return paired_row(row, head_rows); }

void gguf_weights_close(struct gguf_weights *w)
{
    if (!w) return;
    gguf_close(w->file);
    bump_free(&w->store);
    free(w->tensors);
    free(w);
}

const struct safetensor *gguf_weights_list(const struct gguf_weights *w, size_t *count)
{
    *count = w->count;
    return w->tensors;
}

/* --- data ---------------------------------------------------------------------------------------------------------- */

/* A tensor on its way to a sink. */
struct passing {
    const struct gguf_weights *weights;
    const struct gguf_tensor *t;
    enum dtype type;
    safetensors_sink *sink;
    void *arg;
    float *rows; /* room for what is handed on at once */
    void *out;
};

static enum plim_status hand_on(struct passing *p, int64_t first, int64_t n, struct plim_error *err)
{
    dtype_convert(p->out, p->type, p->rows, DT_F32, n);
    return p->sink(p->arg, first, p->out, n, err);
}

static enum plim_status read_paired(struct passing *p, int heads, struct plim_error *err)
{
    const struct gguf_tensor *t = p->t;
    int64_t rows = t->dim[0], width = t->count / (rows ? rows : 1), size = heads > 0 ? rows / heads : 0;
    enum plim_status status = PLIM_OK;
    for (int64_t i = 0; i < rows && status == PLIM_OK; i++) {
        int64_t from = paired_row(i, size);
        status = gguf_read_at(p->weights->file, t, from * width, width, p->rows, err);
        if (status == PLIM_OK) status = hand_on(p, i * width, width, err);
    }
    return status;
}

static enum plim_status read_less_one(struct passing *p, struct plim_error *err)
{
    int64_t n = p->t->count;
    enum plim_status status = gguf_read_at(p->weights->file, p->t, 0, n, p->rows, err);
    for (int64_t i = 0; i < n; i++) p->rows[i] -= 1.0f;
    return status == PLIM_OK ? hand_on(p, 0, n, err) : status;
}

#define PANEL 32 /* rows of a transposed matrix that are made in one pass over the file */

static enum plim_status read_transposed(struct passing *p, struct plim_error *err)
{
    const struct gguf_tensor *t = p->t;
    int64_t rows = t->dim[0], width = t->dim[1];
    float *row = p->rows + PANEL * rows;
    enum plim_status status = PLIM_OK;
    for (int64_t c = 0; c < width && status == PLIM_OK; c += PANEL) {
        int64_t n = width - c < PANEL ? width - c : PANEL;
        for (int64_t r = 0; r < rows && status == PLIM_OK; r++) {
            status = gguf_read_at(p->weights->file, t, r * width, width, row, err);
            for (int64_t k = 0; k < n; k++) p->rows[k * rows + r] = row[c + k];
        }
        if (status == PLIM_OK) status = hand_on(p, c * rows, n * rows, err);
    }
    return status;
}

/* The most elements that lie in p->rows at a time. */
static int64_t room(const struct gguf_tensor *t, enum change change)
{
    int64_t width = t->ndim > 1 ? t->dim[t->ndim - 1] : 1;
    if (change == TRANSPOSED) return PANEL * t->dim[0] + width;
    return change == PLUS_ONE ? t->count : t->count / t->dim[0];
}

/* Shapes are checked by the one who asks before anything is read; a file may still have a head of a wrong size. */
static enum plim_status find_heads(const struct gguf_weights *w, const struct gguf_tensor *t,
                                   enum change change, int *heads, struct plim_error *err)
{
    *heads = change == PAIRED_QUERIES ? w->heads : w->kv_heads;
    if (!is_paired(change)) return PLIM_OK;
    if (*heads > 0 && t->dim[0] % (2 * *heads) == 0 && t->count / t->dim[0] % t->type->elements == 0)
        return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%s': %lld rows are not whole pairs of %d heads",
                     gguf_path(w->file), t->name, (long long)t->dim[0], *heads);
}

static enum plim_status read_changed(struct passing *p, enum change change, struct plim_error *err)
{
    int heads;
    bool paired = is_paired(change);
    enum plim_status status = find_heads(p->weights, p->t, change, &heads, err);
    if (status != PLIM_OK) return status;
    size_t n = (size_t)room(p->t, change);
    p->rows = malloc(n * sizeof *p->rows + 1), p->out = malloc(n * dtype_size(p->type) + 1);
    if (!p->rows || !p->out)
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", gguf_path(p->weights->file));
    else if (paired)
        status = read_paired(p, heads, err);
    else
        status = change == PLUS_ONE ? read_less_one(p, err) : read_transposed(p, err);
    free(p->rows);
    free(p->out);
    return status;
}

enum plim_status gguf_weights_read(const struct gguf_weights *w, const struct safetensor *t, enum dtype type,
                                   safetensors_sink *sink, void *arg, struct plim_error *err)
{
    const struct gguf_tensor *from = gguf_at(w->file, (size_t)t->offset);
    int layer;
    const char *end = "";
    const struct name_row *row = find_row(w, from->name, &layer, &end);
    enum change change = change_of(row, end);
    struct passing p = {.weights = w, .t = from, .type = type, .sink = sink, .arg = arg};
    if (change == TRANSPOSED && from->ndim != 2) change = AS_IT_IS; /* its bias */
    if (!from->ndim || !from->count) change = AS_IT_IS;
    return change == AS_IT_IS ? gguf_read(w->file, from, type, sink, arg, err)
                              : read_changed(&p, change, err);
}

enum plim_status gguf_weights_read_rows(const struct gguf_weights *w, const struct safetensor *t,
                                        int64_t first, int64_t n, void *out, struct plim_error *err)
{
    const struct gguf_tensor *from = gguf_at(w->file, (size_t)t->offset);
    int layer, heads;
    const char *end = "";
    const struct name_row *row = find_row(w, from->name, &layer, &end);
    enum change change = change_of(row, end);
    int64_t width = from->dim[1], bytes = width / from->type->elements * from->type->bytes;
    enum plim_status status = find_heads(w, from, change, &heads, err);
    if (!is_paired(change))
        return status == PLIM_OK ? gguf_read_blocks(w->file, from, first * width, n * width, out, err)
                                 : status;
    for (int64_t i = 0; i < n && status == PLIM_OK; i++) {
        int64_t at = paired_row(first + i, from->dim[0] / heads);
        status = gguf_read_blocks(w->file, from, at * width, width, (char *)out + i * bytes, err);
    }
    return status;
}
