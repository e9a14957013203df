/* run_facts.c - see run_facts.h. */
#include "train/run_facts.h"
#include "base/checksum.h"
#include "base/json.h"
#include "base/number.h"
#include "base/schema_value.h"
#include "model/sentence.h"
#include "train/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Configuration keys that are no facts by themselves. A name that ends with a point stands for all keys below it. */
static const char *const left_out[] = {
    "model.", /* the spec has them, also where model.path does */
    /* as fingerprints, or as what several keys come to */
    "data.train", "data.validation", "data.tokenizer", "data.chat_template", "training.preset",
    "training.batch_size", "training.gradient_accumulation_steps", "training.train_batch_size",
    "training.fp16", "training.bf16", "training.beta1", "training.objective", "training.device",
    "training.steps", "training.eval_every", "training.eval_rows",
    /* kept with the plan's knobs, or without influence on any bit */
    "training.micro_batch_size", "training.recompute", "training.recompute_layers",
    "training.gradient_checkpointing", "training.loss_chunks", "training.optimizer_in_backward",
    "training.optimizer_in_forward", "training.zero_stage", "training.state_tier", "training.param_tier",
    "training.grad_tier", "training.offload_layers", "training.host_update", "training.update_before_norm",
    "training.threads", "training.save_every", "training.log_every", "training.max_skipped_steps",
    "training.deepspeed", "training.deepspeed.", "training.zero.", "training.link", "training.network",
    "performance.profile", "training.memory.", "training.dynamic_batching.", "training.max_micro_batch_size",
    "training.eval_strategy", "training.save_strategy", "training.debug", "training.report_to",
    "training.logging_dir", "training.run_name", "training.tf32", "performance.cuda_graphs", "monitoring.",
    "output.", "host_budget", "budget", "profile",
    /* a run that met a bad record may go on without it */
    "data.skip_bad", "data.max_line_bytes", "data.workers", "data.prefetch_factor", "training.epochs",
    "training.eval_batch_size",
    /* only an evaluation reads it, or who compares evaluations */
    "data.score_field", "training.load_best_model_at_end", "training.metric_for_best_model",
    "training.greater_is_better", "training.early_stopping_patience", "training.early_stopping_threshold"};

/* Keys, other than the model's, on which the shapes of saved state depend. */
static const char *const shapes[] = {"training.mixed_precision",
                                     "training.optimizer",
                                     "training.master_weights",
                                     "training.state_dtype",
                                     "training.freeze",
                                     "training.train_only",
                                     "adapter."};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool stands_for(const char *name, const char *key)
{
    size_t n = strlen(name);
    return name[n - 1] == '.' ? !strncmp(name, key, n) : !strcmp(name, key);
}

static bool in_list(const char *const *names, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (stands_for(names[i], key)) return true;
    return false;
}

const char *run_fact_name(const char *key)
{
    static const struct {
        const char *key, *fact;
    } parts[] = {{"training.gradient_accumulation_steps", "training.batch_size"},
                 {"training.fp16", "training.mixed_precision"},
                 {"training.bf16", "training.mixed_precision"}};
    const struct schema_row *row = schema_find(&job_schema, key);
    const char *name = row ? row->path : key;
    for (size_t i = 0; i < COUNT(parts); i++)
        if (!strcmp(parts[i].key, name)) return parts[i].fact;
    return name;
}

bool run_fact_shapes(const char *key)
{
    return model_field_shapes(key) || in_list(shapes, COUNT(shapes), key);
}

bool run_fact_orders(const char *key)
{
    /* Rows without a target are left out, so what is learned decides which rows there are. */
    static const char *const orders[] = {"data.", "training.seed", "training.objective",
                                         "training.completion_only_loss", "training.assistant_only_loss"};
    return in_list(orders, COUNT(orders), key);
}

static void put_model(struct json_writer *w, const struct model_spec *spec)
{
    const char *name;
    json_str(w, "model.architecture", model_architecture_name(spec->arch));
    for (int i = 0;; i++) {
        struct strbuf value = STRBUF_INIT;
        char key[96];
        name = model_spec_field(spec, i, &value);
        if (name && *name) {
            snprintf(key, sizeof key, "model.%s", name);
            json_str(w, key, strbuf_text(&value));
        }
        strbuf_release(&value);
        if (!name) return;
    }
}

static void put_keys(struct json_writer *w, const struct job *job)
{
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        STRBUF_AUTO value = STRBUF_INIT;
        if (row->alias || row->kind == SCHEMA_NOTHING || in_list(left_out, COUNT(left_out), row->path))
            continue;
        schema_exact(row, job, &value);
        json_str(w, row->path, strbuf_text(&value));
    }
}

/* The number, or "any" where it decides nothing. */
static void put_number(struct json_writer *w, const char *key, bool decides, int64_t number)
{
    char text[32] = "any";
    if (decides) snprintf(text, sizeof text, "%lld", (long long)number);
    json_str(w, key, text);
}

static void put_combined(struct json_writer *w, const struct job *job, const struct job_length *length,
                         const struct device *device)
{
    const struct job_training *t = &job->training;
    char text[NUMBER_TEXT];
    int kind = job->schedule.kind;
    bool on_eval = kind == SCHEDULE_GREEDY && job->schedule.on == 1 && job->validation.count;
    put_number(w, "training.batch_size", true, job_rows_of_all(job));
    bool counts = (kind != SCHEDULE_CONSTANT && kind != SCHEDULE_GREEDY) || job->schedule.warmup_ratio > 0;
    put_number(w, "training.steps", counts, length->steps);
    put_number(w, "training.eval_every", on_eval, length->eval_every);
    put_number(w, "training.eval_rows", on_eval, t->eval_rows);
    number_format_double(text, job_beta1(job, (enum optimizer)t->optimizer));
    json_str(w, "training.beta1", text);
    json_str(w, "training.objective", objective_row(job_objective(job))->name);
    if (job->spec.task == TASK_EMBEDDING) json_str(w, "model.pooling", pooling_name(job->spec.pooling));
    if (job->base.count)
        json_str(w, "model.weights", weights_kind_name((enum weights_kind)job->model.weights));
    json_str(w, "training.device", device->ops->name);
    json_str(w, "training.epochs", t->whole_epochs ? "given" : "any");
}

static enum plim_status put_data(struct json_writer *w, const char *key, const struct dataset *data,
                                 struct plim_error *err)
{
    char text[96] = "none";
    if (data) {
        const struct inputs *in = dataset_inputs(data);
        uint64_t number;
        int64_t bytes = 0;
        enum plim_status status = fingerprint_inputs(in, &number, err);
        if (status != PLIM_OK) return status;
        for (int i = 0; i < in->count; i++) bytes += in->file[i].bytes;
        snprintf(text, sizeof text, "%d file%s, %lld bytes, %016" PRIx64, in->count,
                 in->count == 1 ? "" : "s", (long long)bytes, number);
    }
    json_str(w, key, text);
    return PLIM_OK;
}

/* The template, and the special tokens that it may print: they are in a tokenizer_config.json with or beside it. */
static void put_chat(struct json_writer *w, const struct corpus *c)
{
    char text[32] = "none", path[4200];
    const char *keys[] = {c->job->data.chat_template, c->job->data.tokenizer};
    uint64_t number = c->chat ? chat_template_fingerprint(c->chat) : 0;
    for (size_t i = 0; c->chat && i < COUNT(keys); i++) {
        uint64_t value, bytes;
        if (!keys[i] || !*keys[i]) continue;
        snprintf(path, sizeof path, "%s/tokenizer_config.json", keys[i]);
        if (checksum_file(path, &value, &bytes, NULL) != PLIM_OK &&
            (!strstr(keys[i], "tokenizer_config.json") ||
             checksum_file(keys[i], &value, &bytes, NULL) != PLIM_OK))
            continue;
        number = number * 31 + value;
    }
    if (c->chat) snprintf(text, sizeof text, "%016" PRIx64, number);
    json_str(w, "data.chat_template", text);
}

static void put_tokenizer(struct json_writer *w, const struct codec *codec)
{
    char text[64] = "bytes";
    if (codec->tokenizer)
        snprintf(text, sizeof text, "%016" PRIx64 ", end token %d", codec->fingerprint, (int)codec->eos);
    json_str(w, "data.tokenizer", text);
}

enum plim_status run_facts_make(const struct job *job, const struct job_length *length,
                                const struct corpus *corpus, const struct device *device, struct doc **out,
                                struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    *out = NULL;
    struct json_writer w = json_object(&text, 0);
    put_model(&w, &job->spec);
    put_keys(&w, job);
    put_combined(&w, job, length, device);
    enum plim_status status = put_data(&w, "data.train", corpus->train, err);
    if (status == PLIM_OK) status = put_data(&w, "data.validation", corpus->validation, err);
    put_tokenizer(&w, &corpus->codec);
    put_chat(&w, corpus);
    json_end_object(&w);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = json_parse(text.data, text.len, "facts", out, err);
    return status;
}
