/* job.c - from keys to a checked job. */
#include "job/job.h"
#include "base/nearest.h"
#include "base/yaml.h"
#include "data/dataset.h"
#include "device/registry.h"
#include "job/deepspeed.h"
#include "model/hf.h"
#include "text/gguf_tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void job_init(struct job *job) { *job = (struct job){.name = "defaults"}; }

void job_release(struct job *job)
{
    bump_free(&job->store);
    job_init(job);
}

/* DeepSpeed's keys: of the file that a flag or the job names, or those in the job itself. What they set has its own origin. */
static enum plim_status take_deepspeed(struct job *job, const struct doc *doc,
                                       const struct schema_listener *notes, struct plim_error *err)
{
    static const char key[] = "training.deepspeed";
    const struct node *here = node_path(&doc->root, key);
    const char *file = job->deepspeed_flag ? job->deepspeed_flag : job->deepspeed;
    if (job_origin(job, key)->kind != ORIGIN_DEFAULT) job_origin_set(job, key, ORIGIN_DEFAULT, "default");
    if (file && *file) return deepspeed_load(job, file, notes, err);
    bool inside = here && here->kind == NODE_MAP && job->wishes.use_deepspeed;
    return inside ? deepspeed_take(job, here, doc->name, "training.deepspeed.", notes, err) : PLIM_OK;
}

/* Takes a document, and frees it. */
static enum plim_status read_doc(struct job *job, struct doc *doc, const char *path,
                                 const struct schema_listener *notes, struct plim_error *err)
{
    job->name = bump_copy(&job->store, path, strlen(path));
    enum plim_status status = job->name
                                  ? schema_defaults(&job_schema, job, &job->store, err)
                                  : plim_fail(err, PLIM_NO_MEMORY, "out of memory while %s was read", path);
    struct origin_recorder recorder;
    origin_record(&recorder, job, ORIGIN_FILE, notes);
    recorder.listener.foreign = deepspeed_owns;
    if (status == PLIM_OK)
        status = schema_read(&job_schema, &doc->root, path, job, &job->store, &recorder.listener, err);
    if (status == PLIM_OK) status = take_deepspeed(job, doc, notes, err);
    doc_free(doc);
    return status;
}

enum plim_status job_load(struct job *job, const char *path, const struct schema_listener *notes,
                          struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = yaml_load(path, &doc, err);
    if (status != PLIM_OK) return status == PLIM_IO ? (err->status = PLIM_BAD_INPUT) : status;
    return read_doc(job, doc, path, notes, err);
}

enum plim_status job_parse(struct job *job, const char *text, const char *name,
                           const struct schema_listener *notes, struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = yaml_parse(text, strlen(text), name, &doc, err);
    return status == PLIM_OK ? read_doc(job, doc, name, notes, err) : status;
}

enum plim_status job_set(struct job *job, const char *assignment, const struct schema_listener *notes,
                         struct plim_error *err)
{
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(assignment, "="), assignment);
    const struct schema_row *row = schema_find(&job_schema, key);
    struct origin_recorder recorder;
    if (row && row->offset == offsetof(struct job, deepspeed))
        return plim_fail(err, PLIM_BAD_INPUT, "--set %s: a file is read with the job; write --deepspeed FILE",
                         key);
    notes = origin_record(&recorder, job, ORIGIN_SET, notes);
    enum plim_status status = schema_assign(&job_schema, assignment, job, &job->store, notes, err);
    return status == PLIM_OK && row ? job_override(job, row->path, err) : status;
}

enum plim_status job_set_flag(struct job *job, const char *flag, const char *key, const char *value,
                              const struct schema_listener *notes, struct plim_error *err)
{
    struct origin_recorder recorder;
    notes = origin_record(&recorder, job, ORIGIN_FLAG, notes);
    enum plim_status status = schema_set_from(&job_schema, flag, key, value, job, &job->store, notes, err);
    return status == PLIM_OK ? job_override(job, key, err) : status;
}

static enum plim_status fail_architecture(const struct job *job, struct plim_error *err)
{
    STRBUF_AUTO known = STRBUF_INIT, guess = STRBUF_INIT;
    struct nearest near = nearest_begin(job->model.architecture);
    for (int i = 0; model_architecture_at(i); i++) {
        const char *name = model_architecture_name(model_architecture_at(i));
        strbuf_addf(&known, "%s%s", i ? ", " : "", name);
        nearest_offer(&near, name);
    }
    if (near.best) strbuf_addf(&guess, "did you mean '%s'? ", near.best);
    enum plim_status status =
        plim_fail(err, PLIM_BAD_INPUT, "%s: key 'model.architecture': '%s' is not known; %swrite one of %s",
                  job->name, job->model.architecture, strbuf_text(&guess), strbuf_text(&known));
    return status;
}

/* Copies the fields that the job gives into the spec: those that may differ from the model's files (`overrides`), or all others.
 * model_complete refuses fields that the architecture does not have. */
static void take_keys(struct model_spec *s, const struct job_model *m, bool overrides)
{
    for (int i = 0; i < MODEL_FIELDS; i++) {
        const struct model_field *f = &model_fields[i];
        if (!m->given[i] || f->sparse_only || f->may_override != overrides) continue;
        memcpy(field_at(f, s), (const char *)&m->said + f->row.offset, f->size);
    }
    if (!overrides && m->feed_forward_given) s->gated = m->feed_forward == 1;
    if (overrides && m->given[FIELD_BALANCE]) s->router_losses = s->balance_coef > 0;
}

/* Sizes that no architecture has by itself: all that are missing are told at once. */
static enum plim_status check_sizes_given(const struct job *job, struct plim_error *err)
{
    char list[160] = "";
    int missing = 0;
    for (int i = 0; i < MODEL_FIELDS; i++) {
        const struct model_field *f = &model_fields[i];
        size_t used = strlen(list);
        bool needed = f->job && f->need != NEED_NOT && !f->sparse_only && i != FIELD_INNER;
        if (needed && field_number(f, &job->spec) == 0)
            snprintf(list + used, sizeof list - used, "%smodel.%s", missing++ ? ", " : "", f->row.path);
    }
    if (!missing) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: %s %s missing: %s from scratch needs %s; write %s, or model.path to train a model that exists",
        job->name, list, missing > 1 ? "are" : "is", job->model.architecture, missing > 1 ? "them" : "it",
        missing > 1 ? "them" : "it");
}

/* The model from its own keys. */
static enum plim_status spec_from_keys(struct job *job, struct plim_error *err)
{
    const struct job_model *m = &job->model;
    const struct architecture *arch = model_architecture(m->architecture);
    if (!arch) return fail_architecture(job, err);
    struct model_spec *s = &job->spec;
    model_defaults(s, arch);
    int experts = s->num_experts;
    take_keys(s, m, false);
    if (!s->num_experts) s->num_experts = experts;
    enum plim_status status = check_sizes_given(job, err);
    if (status != PLIM_OK) return status;
    if (!m->given[FIELD_POSITIONS] && s->max_positions < job->max_length) s->max_positions = job->max_length;
    if (m->dropout_given) model_set_dropout(s, m->dropout);
    take_keys(s, m, true);
    status = model_complete(s, err);
    if (status == PLIM_OK) status = model_check_export(s, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", job->name);
    return status;
}

static enum plim_status refuse_beside_path(const struct job *job, const char *key,
                                           const struct model_spec *said, struct plim_error *err)
{
    STRBUF_AUTO wish = STRBUF_INIT, has = STRBUF_INIT;
    const char *name = "";
    for (int i = 0; name && strcmp(name, key); i++) {
        strbuf_clear(&wish), strbuf_clear(&has);
        name = model_spec_field(said, i, &wish);
        model_spec_field(&job->spec, i, &has);
    }
    plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: key 'model.%s': %s, but %s/config.json has %s; remove the key, or model.path for a model from "
        "scratch",
        job->name, key, strbuf_text(&wish), job->model.path, strbuf_text(&has));
    return PLIM_BAD_INPUT;
}

/* A model that is read has its own config.json: a key beside model.path that says otherwise would be ignored. */
static enum plim_status check_beside_path(const struct job *job, struct plim_error *err)
{
    const struct job_model *m = &job->model;
    struct model_spec said = job->spec;
    take_keys(&said, m, false);
    const char *key = model_spec_differs(&said, &job->spec);
    if (key) return refuse_beside_path(job, key, &said, err);
    for (int i = 0; i < MODEL_FIELDS; i++)
        if (m->given[i] && model_fields[i].layer_rule)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key 'model.%s': %s/config.json says which layers these are; remove the key",
                             job->name, model_fields[i].row.path, m->path);
    if (m->attention_type == ATTENTION_WINDOW && job->spec.sliding_window == 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'model.attention_type': sliding_window, but %s/config.json has no window; write flash",
            job->name, m->path);
    return PLIM_OK;
}

/* An override may empty a key: --set model.architecture= */
static bool is_text(const char *text) { return text && *text; }

/* Attention over blocks, which a model of any folder may be given, and which stays the model's own from then on. */
static enum plim_status take_sparse(struct job *job, struct plim_error *err)
{
    const struct job_model *m = &job->model;
    struct model_spec *s = &job->spec;
    if (m->attention_type != ATTENTION_SPARSE && s->sparse_block > 0 && m->attention_given)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'model.attention_type': %s/config.json says sparse; remove the key",
                         job->name, m->path);
    if (m->attention_type == ATTENTION_SPARSE) {
        s->sparse_block = m->said.sparse_block;
        s->local_blocks = m->said.local_blocks, s->global_blocks = m->said.global_blocks;
    }
    int64_t block = s->sparse_block, fits = block;
    if (block == 0 || job->max_length % block == 0) return PLIM_OK;
    while (job->max_length % fits) fits--;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: key 'model.sparse_block_size': blocks of %lld positions do not divide data.max_length "
        "%lld; the next smaller size that does is %lld",
        job->name, (long long)block, (long long)job->max_length, (long long)fits);
}

static enum plim_status find_spec(struct job *job, struct plim_error *err)
{
    if (is_text(job->model.path) && is_text(job->model.architecture))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: model.path and model.architecture exclude each other; keep one", job->name);
    if (!is_text(job->model.path)) job->model.path = NULL;
    if (job->model.path) {
        enum plim_status status = hf_config_load(job->model.path, &job->spec, err);
        if (status == PLIM_OK && job->model.dropout_given) model_set_dropout(&job->spec, job->model.dropout);
        if (status == PLIM_OK) status = check_beside_path(job, err);
        if (status == PLIM_OK) take_keys(&job->spec, &job->model, true);
        if (status == PLIM_OK) status = take_sparse(job, err);
        return status == PLIM_OK ? model_validate(&job->spec, err) : status;
    }
    if (is_text(job->model.architecture)) {
        enum plim_status status = spec_from_keys(job, err);
        if (status == PLIM_OK) status = take_sparse(job, err);
        if (status != PLIM_OK) return status;
        status = model_validate(&job->spec, err);
        if (status != PLIM_OK) plim_error_prefix(err, "%s", job->name);
        return status;
    }
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: no model; write model.path: HF_DIRECTORY or model.architecture: llama", job->name);
}

static enum plim_status settle_precision(struct job *job, struct plim_error *err)
{
    struct job_training *t = &job->training;
    enum plim_status status = job_agree(job, err);
    if (status != PLIM_OK) return status;
    if (t->bf16) t->precision = PRECISION_BF16;
    if (t->fp16) t->precision = PRECISION_F16;
    if ((t->bf16 || t->fp16) && !job_given(job, &t->precision))
        job_origin_follow(job, "training.mixed_precision", t->bf16 ? "training.bf16" : "training.fp16");
    if (job_given(job, &t->tf32) && !job_given(job, &t->matmul_precision)) {
        t->matmul_precision = t->tf32 ? MATMUL_HIGH : MATMUL_HIGHEST;
        job_origin_follow(job, "performance.float32_matmul_precision", "training.tf32");
    }
    if (job_given(job, &t->checkpointing) && !job_given(job, &t->recompute)) {
        t->recompute = t->checkpointing ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        job_origin_follow(job, "training.recompute", "training.gradient_checkpointing");
    }
    return PLIM_OK;
}

/* Refuses settings that contradict each other. */
static enum plim_status check_types(const struct job *job, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    if (t->master && t->precision == PRECISION_F16)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.master_weights': fp16 weights need their fp32 master; write fp32, or "
            "mixed_precision: bf16",
            job->name);
    if (t->state_type && t->optimizer == OPTIMIZER_ADAMW8)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'training.state_dtype': adamw8bit keeps moments in 8 bits; write fp32 or "
                         "optimizer: adamw",
                         job->name);
    if (t->grad_type && precision_type((enum precision)t->precision) != DT_BF16)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.grad_dtype': bf16 gradients come with bf16 weights; write fp32 or "
            "mixed_precision: bf16",
            job->name);
    if (job_given(job, &t->fp8_gradients) && t->precision != PRECISION_F8)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.fp8_gradients': only mixed_precision: fp8 has fp8 gradients; this job's is "
            "%s; remove the key",
            job->name, precision_name((enum precision)t->precision));
    return PLIM_OK;
}

static enum plim_status check_supported(const struct job *job, struct plim_error *err)
{
    struct device_name unused;
    if (!device_name_read(job->training.device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'training.device': '%s' is no device; write " DEVICE_NAMES, job->name,
                         job->training.device);
    if (job->model.attention_type == ATTENTION_WINDOW && job->model.said.sliding_window < 1 &&
        !job->model.path)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'model.attention_type': sliding_window needs model.sliding_window, e.g. 1024",
            job->name);
    if (job->data.padding == PADDING_NONE)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: key 'data.padding': rows of one pass have one length; write longest, or max_length",
            job->name);
    if (job->data.padding == PADDING_LONGEST && job->training.in_backward)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: training.optimizer_in_backward and data.padding: longest exclude each other: a "
                         "step has passes of several lengths; drop one",
                         job->name);
    if (job->data.padding == PADDING_LONGEST && job->training.in_forward)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: training.optimizer_in_forward and data.padding: longest exclude each other: a "
                         "step begins with a pass of any length; drop one",
                         job->name);
    return PLIM_OK;
}

/* Converts the words that training.debug, steps and budget accept besides values. */
static enum plim_status settle_words(struct job *job, struct plim_error *err)
{
    struct job_training *t = &job->training;
    for (size_t i = 0; i < t->debug.count; i++)
        if (strcmp(t->debug.items[i], "underflow_overflow"))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: key 'training.debug': '%.80s' is not known; write underflow_overflow",
                             job->name, t->debug.items[i]);
    t->check_numerics = t->debug.count > 0;
    t->whole_epochs = t->epochs > 0;
    if (t->steps < 1 && t->epochs <= 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: key 'training.steps': %lld asks for training.epochs, which is 0; write one of them",
            job->name, (long long)t->steps);
    return PLIM_OK;
}

/* Checkpoints append names of their own. */
#define OUTPUT_DIR_MAX 400

static enum plim_status check_output(const struct job *job, struct plim_error *err)
{
    if (is_text(job->output_dir) && strlen(job->output_dir) <= OUTPUT_DIR_MAX) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: key 'output.dir': %s; write at most %d bytes, e.g. runs/job",
                     job->name, is_text(job->output_dir) ? "the path is too long" : "is empty",
                     OUTPUT_DIR_MAX);
}

/* Are the data text, and its bytes the tokens? A format that is left open is that of the files. */
static bool reads_bytes(const struct job *job)
{
    struct inputs in;
    if (!codec_is_bytes(job->data.tokenizer) || job->data.format == DATA_TOKENS) return false;
    if (job->data.format != DATA_AUTO) return true;
    if (inputs_find(job->train.items, (int)job->train.count, &in, NULL) != PLIM_OK) return true;
    bool tokens = in.count > 0 && in.file[0].form == FORM_TOKENS;
    inputs_release(&in);
    return !tokens;
}

/* A model's text goes through its own tokenizer, unless the job names another. */
static enum plim_status settle_tokenizer(struct job *job, struct plim_error *err)
{
    char path[4096];
    if (!job->model.path || job_given(job, &job->data.tokenizer)) return PLIM_OK;
    if (!codec_find(job->model.path, path, sizeof path)) return PLIM_OK;
    if (gguf_is(path) && !gguf_file_has_tokenizer(path)) return PLIM_OK;
    if (reads_bytes(job)) {
        job->data.tokenizer = job->model.path;
        job_origin_follow(job, "data.tokenizer", "model.path");
        return PLIM_OK;
    }
    job->data.kept_tokenizer = bump_copy(&job->store, path, strlen(path));
    return job->data.kept_tokenizer ? PLIM_OK
                                    : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", job->name);
}

void job_bytes_text(const struct job *job, struct strbuf *out)
{
    if (job_given(job, &job->data.tokenizer) || !reads_bytes(job)) return;
    strbuf_addf(out, "%s: %s has no tokenizer and data.tokenizer names none; each byte is a token", job->name,
                job->model.path ? job->model.path : "the model");
}

static enum plim_status check_lengths(const struct job *job, struct plim_error *err)
{
    if (job->max_length > job->spec.max_positions && !model_uses_rope(&job->spec))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: data.max_length %lld is beyond the model's %lld learned positions; lower it",
                         job->name, (long long)job->max_length, (long long)job->spec.max_positions);
    if (job->spec.vocab_size < 256 && reads_bytes(job))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: model.vocab_size %lld is too small for the byte tokenizer; write 256 or more",
                         job->name, (long long)job->spec.vocab_size);
    if (job->training.beta1 >= 1 || job->training.beta2 >= 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: key 'training.%s': must be below 1; usual are 0.9 and 0.999", job->name,
                         job->training.beta1 >= 1 ? "beta1" : "beta2");
    if (job->training.in_backward && job->training.clip > 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: training.optimizer_in_backward and training.max_grad_norm exclude each other: clipping "
            "needs all gradients; drop one",
            job->name);
    if (job->training.in_backward && job->training.in_forward)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: training.optimizer_in_backward and training.optimizer_in_forward exclude each "
                         "other: a parameter is updated once; drop one",
                         job->name);
    return PLIM_OK;
}

/* sliding_window in words of block-sparse attention: as many positions as the local blocks have. */
static void settle_window(struct job *job)
{
    struct job_model *m = &job->model;
    const char *blocks = "model.num_local_blocks", *size = "model.sparse_block_size";
    bool by_blocks = job_key_given(job, blocks), given = by_blocks || job_key_given(job, size);
    if (m->attention_type != ATTENTION_WINDOW || m->given[FIELD_WINDOW] || !given) return;
    m->said.sliding_window = (int64_t)m->said.sparse_block * m->said.local_blocks,
    m->given[FIELD_WINDOW] = true;
    job_origin_follow(job, "model.sliding_window", by_blocks ? blocks : size);
}

enum plim_status job_finish(struct job *job, struct plim_error *err)
{
    settle_window(job);
    enum plim_status status = job_take_preset(job, NULL, err);
    if (status == PLIM_OK) status = settle_precision(job, err);
    if (status == PLIM_OK) status = settle_words(job, err);
    if (status == PLIM_OK) status = job_settle_telling(job, err);
    if (status == PLIM_OK) status = job_check_wishes(job, err);
    if (status == PLIM_OK && !job_awaits_device(job)) status = check_types(job, err);
    if (status == PLIM_OK) status = check_supported(job, err);
    if (status == PLIM_OK) status = find_spec(job, err);
    if (status == PLIM_OK) status = job_settle_objective(job, err);
    if (status == PLIM_OK) status = job_settle_adapter(job, err);
    if (status == PLIM_OK) status = job_settle_base(job, err);
    if (status == PLIM_OK) status = settle_tokenizer(job, err);
    if (status == PLIM_OK) status = check_lengths(job, err);
    if (status == PLIM_OK) status = check_output(job, err);
    return status;
}

/* A CPU has bf16 when products of it are faster than of fp32 by more than measurements differ. */
int job_automatic_precision(const struct device_facts *facts)
{
    bool cpu_has_it = facts->flops[DT_BF16] > 1.25 * facts->flops[DT_F32];
    if (facts->unified_memory) return cpu_has_it ? PRECISION_BF16 : PRECISION_F32;
    return facts->capability && facts->capability < 80 ? PRECISION_F16 : PRECISION_BF16;
}

/* Hybrid sharding is between nodes that have several ranks each. */
static enum plim_status check_stage(const struct job *job, const struct device_facts *facts,
                                    struct plim_error *err)
{
    bool nodes = facts->node_ranks > 1 && facts->node_ranks < facts->ranks;
    if (facts->ranks <= 1 || nodes || job->training.zero != ZERO_NODE) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: training.zero_stage 4 needs nodes with the same number of ranks, at least two; "
                     "these %d ranks are not distributed like that; write 3",
                     job->name, facts->ranks);
}

/* Attention over all scores at once is a CPU's: kernels of GPUs never keep them. */
static enum plim_status check_attention(const struct job *job, const struct device_facts *facts,
                                        struct plim_error *err)
{
    const struct origin *o = job_origin(job, "model.use_flash_attention");
    if (job->model.flash || facts->unified_memory) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: key 'model.use_flash_attention': false is for a CPU: attention on a GPU never keeps all "
        "scores; write true, or training.device: cpu to debug with",
        o->kind == ORIGIN_DEFAULT ? job->name : o->where);
}

/* A rate says whether the device multiplies fp8 numbers. Rows of a micro-batch, whatever their number, are whole tiles of the
 * tensor cores if each has whole ones. */
static enum plim_status check_fp8(const struct job *job, const struct device_facts *facts,
                                  struct plim_error *err)
{
    static const char *const keys[] = {"max_length", "max_source_length", "pair_length"};
    const int64_t lengths[] = {job->max_length, job->data.max_source_length, job->data.pair_length};
    if (job->training.precision != PRECISION_F8) return PLIM_OK;
    for (int i = 0; i < 3; i++)
        if (lengths[i] % FP8_MULTIPLE)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: key 'data.%s': fp8 products need rows of a multiple of %d tokens; write %lld, or "
                "training.mixed_precision: bf16",
                job->name, keys[i], FP8_MULTIPLE,
                (long long)((lengths[i] / FP8_MULTIPLE + 1) * FP8_MULTIPLE));
    if (facts->flops[DT_E4M3] > 0) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: key 'training.mixed_precision': fp8 needs a GPU of compute capability 8.9 or newer, or a CPU, "
        "which emulates it; %s has no fp8 products; write bf16",
        job->name, facts->name);
}

enum plim_status job_meet_device(struct job *job, const struct device_facts *facts, struct plim_error *err)
{
    enum plim_status status = job_take_preset(job, facts, err);
    if (status == PLIM_OK) status = job_settle_batch(job, facts->ranks > 1 ? facts->ranks : 1, err);
    if (job->training.precision == PRECISION_AUTO) job->training.precision = job_automatic_precision(facts);
    if (status == PLIM_OK) status = check_types(job, err);
    if (status == PLIM_OK) status = check_fp8(job, facts, err);
    if (status == PLIM_OK) status = check_stage(job, facts, err);
    if (status == PLIM_OK) status = check_attention(job, facts, err);
    return status == PLIM_OK ? job_grant_wishes(job, facts, err) : status;
}

enum plim_status job_check_training(struct job *job, struct plim_error *err)
{
    const char *key;
    if (job->training.eval_strategy == EVERY_NEVER) job->validation.count = 0;
    double dropout = model_dropout(&job->spec, &key);
    enum plim_status status = hf_config_expresses(&job->spec, err);
    if (status == PLIM_OK && dropout >= 1)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s is %g, which leaves nothing to learn from; write less than 1, e.g. 0.1",
                           job->model.dropout_given ? "key 'model.dropout'" : key, dropout);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", job->name);
    return status;
}

/* Where polynomial ends when the job does not say, as in transformers. */
#define POLYNOMIAL_END 1e-7

struct job_schedule job_schedule(const struct job *job)
{
    struct job_schedule s = job->schedule;
    if (s.kind == SCHEDULE_POLYNOMIAL && !job_given(job, &job->schedule.min_lr) && s.min_lr_ratio <= 0)
        s.min_lr = fmin(POLYNOMIAL_END, s.learning_rate);
    if (!job_given(job, &job->schedule.cycles)) s.cycles = s.kind == SCHEDULE_RESTARTS ? 1 : 0.5;
    if (!job_given(job, &job->schedule.stable_steps)) s.stable_steps = -1;
    return s;
}

double job_beta1(const struct job *job, enum optimizer optimizer)
{
    const double *beta1 = &job->training.beta1;
    return optimizer == OPTIMIZER_ADAFACTOR && !job_given(job, beta1) ? 0 : *beta1;
}

void job_micro_bounds(const struct job *job, int64_t *least, int64_t *most)
{
    int64_t limit = job->training.max_micro_batch;
    *least = job->batching.enabled ? job->batching.min : 1;
    *most = job->batching.enabled ? job->batching.max : 0;
    if (limit && (!*most || limit < *most)) *most = limit;
}

bool job_counts_epochs(const struct job *job)
{
    const struct job_training *t = &job->training;
    return t->epochs > 0 || t->save_strategy == EVERY_EPOCH ||
           (t->eval_strategy == EVERY_EPOCH && job->validation.count);
}

int64_t job_epoch_steps(const struct job *job, const struct job_epoch *epoch)
{
    int64_t rows = job_rows_of_all(job);
    return (epoch->rows + rows - 1) / rows;
}

struct job_length job_length(const struct job *job, const struct job_epoch *epoch)
{
    const struct job_training *t = &job->training;
    struct job_length length = {*epoch, t->steps, t->eval_every, t->save_every};
    int64_t each = job_epoch_steps(job, epoch);
    double steps = ceil(t->epochs * (double)each * (1 - 1e-12)); /* 0.1 of 30 steps are 3 */
    if (t->epochs > 0 && (each || epoch->exact)) length.steps = steps < 1 ? 1 : (int64_t)steps;
    if (each && t->eval_strategy == EVERY_EPOCH) length.eval_every = each;
    if (each && t->save_strategy == EVERY_EPOCH) length.save_every = each;
    return length;
}

static enum plim_status refuse_batch(const struct job *job, int ranks, struct plim_error *err)
{
    const struct job_training *t = &job->training;
    const struct origin *o = job_origin(job, "training.train_batch_size");
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: %s: %lld is not batch_size %lld x gradient_accumulation_steps %lld x %d rank%s; "
                     "change one of them, or start another number of ranks (plan: --ranks N)",
                     o->where, o->name ? o->name : "training.train_batch_size", (long long)t->total_batch,
                     (long long)t->batch_size, (long long)t->accumulation, ranks, ranks == 1 ? "" : "s");
}

enum plim_status job_settle_batch(struct job *job, int ranks, struct plim_error *err)
{
    static const char total[] = "training.train_batch_size", batch[] = "training.batch_size",
                      steps[] = "training.gradient_accumulation_steps";
    struct job_training *t = &job->training;
    bool open_batch = !job_key_given(job, batch), open_steps = !job_key_given(job, steps);
    int64_t mine = t->total_batch / ranks;
    if (!t->total_batch) return PLIM_OK;
    if (open_batch && open_steps) t->accumulation = 1;
    if (open_batch) t->batch_size = mine / t->accumulation;
    if (!open_batch && open_steps) t->accumulation = mine / t->batch_size;
    bool positive = t->batch_size > 0 && t->accumulation > 0;
    if (!positive || t->batch_size * t->accumulation * ranks != t->total_batch)
        return refuse_batch(job, ranks, err);
    if (open_batch) job_origin_follow(job, batch, total);
    if (open_steps) job_origin_follow(job, steps, total);
    return PLIM_OK;
}

const char *job_disk_dir(const struct job *job)
{
    return is_text(job->disk_dir) ? job->disk_dir : job->output_dir;
}

int64_t job_rows(const struct job *job) { return job->training.batch_size * job->training.accumulation; }

int64_t job_rows_of_all(const struct job *job) { return job_rows(job) * (job->ranks > 1 ? job->ranks : 1); }
