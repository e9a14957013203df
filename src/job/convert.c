/* convert.c - see convert.h: a table of names for each of the other trainers, and one walk over the file. Values are set in a
 * job by our own keys, so that they are checked as ours are; the job is then printed. */
#include "job/convert.h"
#include "base/json.h"
#include "base/number.h"
#include "job/deepspeed.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

struct converting {
    const struct node *root;
    const char *file;
    struct job job;
    struct conversion *out;
};

/* How a value is carried over. */
struct carry;
typedef void carry_how(struct converting *c, const struct carry *row, const struct node *value);

struct carry {
    const char *theirs, *ours;
    carry_how *how;
    const char *fallback; /* theirs, where the file does not say and ours is another */
};

/* ---- saying what is left ---- */

/* "args.json:12: deepspeed: ds.json is not carried over: ..." */
static void leave(struct converting *c, const struct node *value, const char *why)
{
    struct strbuf text = STRBUF_INIT, line = STRBUF_INIT, *left = &c->out->left;
    json_plain(&text, value);
    strbuf_addf(&line, "%s:%d: %.100s: %.80s%s is not carried over: %s", c->file, value->line,
                value->key ? value->key : "", strbuf_text(&text), text.len > 80 ? "..." : "", why);
    origin_put_comment(left, strbuf_text(&line), line.len); /* one line, whatever the file holds */
    strbuf_addc(left, '\n');
    strbuf_release(&text);
    strbuf_release(&line);
}

/* Nothing is asked for: null, false, 0, "", [], {}. */
static bool is_nothing(const struct node *v)
{
    switch (v->kind) {
    case NODE_NULL:
        return true;
    case NODE_BOOL:
        return !v->as.boolean;
    case NODE_INT:
        return v->as.integer == 0;
    case NODE_FLOAT:
        return v->as.real == 0;
    case NODE_STRING:
        return v->as.string.len == 0 || !strcmp(v->as.string.text, "none");
    default:
        return node_count(v) == 0;
    }
}

/* ---- setting a key of ours ---- */

static void set_text(struct converting *c, const char *ours, const struct node *value, const char *text)
{
    struct origin_recorder recorder;
    struct plim_error why = {0};
    char where[320];
    snprintf(where, sizeof where, "%.200s:%d, %.80s", c->file, value->line, value->key);
    const struct schema_listener *listener = origin_record(&recorder, &c->job, ORIGIN_FILE, NULL);
    if (schema_set_from(&job_schema, where, ours, text, &c->job, &c->job.store, listener, &why) != PLIM_OK) {
        const char *colon = strstr(why.text, "': ");
        leave(c, value, colon ? colon + 3 : why.text);
    }
}

static void as_it_is(struct converting *c, const struct carry *row, const struct node *value)
{
    struct strbuf text = STRBUF_INIT;
    if (value->kind == NODE_NULL) return;
    if (value->kind == NODE_LIST || value->kind == NODE_MAP) {
        leave(c, value, "a single value was expected");
        return;
    }
    json_plain(&text, value);
    set_text(c, row->ours, value, strbuf_text(&text));
    strbuf_release(&text);
}

/* Their "off" is the default that ours leaves to the planner. */
static void where_asked(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) as_it_is(c, row, value);
}

static void where_positive(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(value, 0) > 0) as_it_is(c, row, value);
}

/* max_steps is the stronger of the two. */
static void epochs(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(node_get(c->root, "max_steps"), 0) <= 0) as_it_is(c, row, value);
}

static void ratio(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(node_get(c->root, "warmup_steps"), 0) <= 0) where_positive(c, row, value);
}

static void cpu(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) set_text(c, row->ours, value, "cpu");
}

static void automatic(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!strcmp(node_string(value, ""), "auto"))
        set_text(c, "training.mixed_precision", value, "auto");
    else
        where_asked(c, row, value);
}

/* A model folder has its tokenizer. */
static void model(struct converting *c, const struct carry *row, const struct node *value)
{
    as_it_is(c, row, value);
    if (!node_get(c->root, "tokenizer_config")) set_text(c, "data.tokenizer", value, node_string(value, ""));
}

static void words(struct converting *c, const struct carry *row, const struct node *value)
{
    struct strbuf text = STRBUF_INIT;
    for (size_t i = 0; i < node_count(value); i++)
        strbuf_addf(&text, "%s%s", i ? "," : "", node_string(node_item(value, i), "?"));
    if (value->kind == NODE_STRING) strbuf_add(&text, value->as.string.text);
    if (text.len && strcmp(text.data, "none")) set_text(c, row->ours, value, text.data);
    strbuf_release(&text);
}

static void once_an_epoch(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(value, 0) == 1)
        set_text(c, row->ours, value, "epoch");
    else if (!is_nothing(value))
        leave(c, value, "write a number of steps");
}

static void report(struct converting *c, const struct carry *row, const struct node *value)
{
    static const char *const known[] = {"tensorboard", "wandb", "all"};
    struct strbuf words = STRBUF_INIT;
    size_t count = value->kind == NODE_LIST ? node_count(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const struct node *one = value->kind == NODE_LIST ? node_item(value, i) : value;
        const char *word = node_string(one, "");
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(known[k], word)) k++;
        if (k < sizeof known / sizeof *known)
            strbuf_addf(&words, "%s%s", words.len ? "," : "", word);
        else if (!is_nothing(one) && strcmp(word, "none"))
            leave(c, value, "write tensorboard or wandb; train --log FILE writes lines of JSON");
    }
    if (words.len) set_text(c, row->ours, value, words.data);
    strbuf_release(&words);
}

static void needless(struct converting *c, const struct carry *row, const struct node *value)
{
    (void)c, (void)row, (void)value;
}

static void deepspeed(struct converting *c, const struct carry *row, const struct node *value)
{
    (void)row;
    if (!is_nothing(value)) leave(c, value, "convert that file, too, or write training.deepspeed: FILE");
}

static bool is_file(const char *path)
{
    static const char *const ends[] = {".json", ".jsonl", ".ndjson", ".txt", ".gz", ".zst", NULL};
    size_t len = strlen(path);
    for (int i = 0; ends[i]; i++)
        if (len > strlen(ends[i]) && !strcmp(path + len - strlen(ends[i]), ends[i])) return true;
    return *path == '/' || *path == '.';
}

/* Axolotl: a list of maps with a path each. */
static void datasets(struct converting *c, const struct carry *row, const struct node *value)
{
    struct strbuf paths = STRBUF_INIT;
    for (size_t i = 0; i < node_count(value); i++) {
        const struct node *one = node_item(value, i), *path = node_get(one, "path");
        const char *text = node_string(path, "");
        if (!is_file(text) || strchr(text, ','))
            leave(c, path ? path : value, "no file of this machine; write files into data.train");
        else
            strbuf_addf(&paths, "%s%s", paths.len ? "," : "", text);
        if (node_get(one, "type")) leave(c, node_get(one, "type"), "name the fields, see docs/data.md");
        const struct node *messages = node_get(one, "field_messages"), *field = node_get(one, "field");
        if (messages) set_text(c, "data.messages_field", messages, node_string(messages, ""));
        if (field) set_text(c, "data.field", field, node_string(field, ""));
    }
    if (paths.len) set_text(c, row->ours, value, paths.data);
    strbuf_release(&paths);
}

/* ---- the names ---- */

/* What both have under the same name. */
#define SHARED                                                                                               \
    {"gradient_accumulation_steps", "training.gradient_accumulation_steps", as_it_is, NULL},                 \
        {"max_steps", "training.steps", where_positive, NULL},                                               \
        {"weight_decay", "training.weight_decay", as_it_is, NULL},                                           \
        {"adam_beta1", "training.beta1", as_it_is, NULL}, {"adam_beta2", "training.beta2", as_it_is, NULL},  \
        {"adam_epsilon", "training.eps", as_it_is, NULL},                                                    \
        {"warmup_steps", "training.warmup_steps", where_positive, NULL},                                     \
        {"warmup_ratio", "training.warmup_ratio", ratio, NULL}, {"bf16", "training.bf16", automatic, NULL},  \
        {"fp16", "training.fp16", where_asked, NULL}, {"tf32", "training.tf32", where_asked, NULL},          \
        {"gradient_checkpointing", "training.gradient_checkpointing", where_asked, NULL},                    \
        {"eval_strategy", "training.eval_strategy", as_it_is, NULL},                                         \
        {"evaluation_strategy", "training.eval_strategy", as_it_is, NULL},                                   \
        {"eval_steps", "training.eval_every", where_positive, NULL},                                         \
        {"save_strategy", "training.save_strategy", as_it_is, NULL},                                         \
        {"save_total_limit", "output.keep_checkpoints", where_positive, NULL},                               \
        {"logging_steps", "training.log_every", where_positive, NULL},                                       \
        {"group_by_length", "data.group_by_length", where_asked, NULL},                                      \
        {"dataloader_num_workers", "data.workers", where_positive, NULL},                                    \
        {"dataloader_prefetch_factor", "data.prefetch_factor", where_positive, NULL},                        \
        {"dataloader_pin_memory", NULL, needless, NULL}, {"torch_compile", NULL, needless, NULL},            \
        {"report_to", "training.report_to", report, NULL}, {"deepspeed", NULL, deepspeed, NULL},             \
    {                                                                                                        \
        "output_dir", "output.dir", as_it_is, NULL                                                           \
    }

static const struct carry training_arguments[] = {
    SHARED,
    {"per_device_train_batch_size", "training.batch_size", as_it_is, NULL},
    {"per_gpu_train_batch_size", "training.batch_size", as_it_is, NULL},
    {"train_batch_size", NULL, needless, NULL}, /* of all cards: the product of others */
    {"per_device_eval_batch_size", "training.eval_batch_size", as_it_is, NULL},
    {"eval_batch_size", "training.eval_batch_size", as_it_is, NULL},
    {"num_train_epochs", "training.epochs", epochs, "3"},
    {"epochs", "training.epochs", epochs, NULL},
    {"learning_rate", "training.learning_rate", as_it_is, "5e-5"},
    {"lr_scheduler_type", "training.lr_scheduler", as_it_is, "linear"},
    {"max_grad_norm", "training.max_grad_norm", as_it_is, "1"},
    {"optim", "training.optimizer", as_it_is, NULL},
    {"save_steps", "training.save_every", where_positive, "500"},
    {"seed", "training.seed", as_it_is, "42"},
    {"debug", "training.debug", words, NULL},
    {"use_cpu", "training.device", cpu, NULL},
    {"no_cuda", "training.device", cpu, NULL},
    /* of Python's program alone */
    {"overwrite_output_dir", NULL, needless, NULL},
    {"do_train", NULL, needless, NULL},
    {"do_eval", NULL, needless, NULL},
    {"do_predict", NULL, needless, NULL},
    {"prediction_loss_only", NULL, needless, NULL},
    {"logging_dir", "training.logging_dir", where_asked, NULL},
    {"logging_strategy", NULL, needless, NULL},
    {"logging_first_step", NULL, needless, NULL},
    {"logging_nan_inf_filter", NULL, needless, NULL},
    {"log_level", NULL, needless, NULL},
    {"log_level_replica", NULL, needless, NULL},
    {"log_on_each_node", NULL, needless, NULL},
    {"run_name", "training.run_name", where_asked, NULL},
    {"disable_tqdm", NULL, needless, NULL},
    {"remove_unused_columns", NULL, needless, NULL},
    {"save_safetensors", NULL, needless, NULL},
    {"save_on_each_node", NULL, needless, NULL},
    {"dataloader_drop_last", NULL, needless, NULL},
    {"dataloader_persistent_workers", NULL, needless, NULL},
    {"ddp_timeout", NULL, needless, NULL},
    {"ddp_backend", NULL, needless, NULL},
    {"local_rank", NULL, needless, NULL},
    {"_n_gpu", NULL, needless, NULL},
    {"past_index", NULL, needless, NULL},
    {"half_precision_backend", NULL, needless, NULL},
    {"fp16_backend", NULL, needless, NULL},
    {"fp16_opt_level", NULL, needless, NULL},
    {"fsdp_config", NULL, needless, NULL},
    {"accelerator_config", NULL, needless, NULL},
    {"hub_strategy", NULL, needless, NULL},
    {"hub_token", NULL, needless, NULL},
    {"push_to_hub_token", NULL, needless, NULL},
    {"ray_scope", NULL, needless, NULL},
    {"skip_memory_metrics", NULL, needless, NULL},
    {"eval_delay", NULL, needless, NULL},
    {"tpu_num_cores", NULL, needless, NULL},
};

static const struct carry axolotl[] = {
    SHARED,
    {"base_model", "model.path", model, NULL},
    {"tokenizer_config", "data.tokenizer", as_it_is, NULL},
    {"base_model_config", NULL, needless, NULL},
    {"model_type", NULL, needless, NULL},
    {"tokenizer_type", NULL, needless, NULL},
    {"sequence_len", "data.max_length", as_it_is, NULL},
    {"sample_packing", "data.packing", where_asked, NULL},
    {"pad_to_sequence_len", NULL, needless, NULL}, /* as our padding: max_length */
    {"micro_batch_size", "training.batch_size", as_it_is, NULL},
    {"eval_batch_size", "training.eval_batch_size", as_it_is, NULL},
    {"num_epochs", "training.epochs", epochs, NULL},
    {"learning_rate", "training.learning_rate", as_it_is, NULL},
    {"lr_scheduler", "training.lr_scheduler", as_it_is, NULL},
    {"optimizer", "training.optimizer", as_it_is, NULL},
    {"max_grad_norm", "training.max_grad_norm", as_it_is, NULL},
    {"gradient_clipping", "training.max_grad_norm", as_it_is, NULL},
    {"flash_attention", "model.use_flash_attention", where_asked, NULL},
    {"save_steps", "training.save_every", where_positive, NULL},
    {"seed", "training.seed", as_it_is, NULL},
    {"datasets", "data.train", datasets, NULL},
    {"saves_per_epoch", "training.save_strategy", once_an_epoch, NULL},
    {"evals_per_epoch", "training.eval_strategy", once_an_epoch, NULL},
    {"strict", NULL, needless, NULL},
    {"dataset_prepared_path", NULL, needless, NULL},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static const struct trainer_names {
    const char *title;
    const struct carry *rows;
    size_t count;
    const char *marks[6]; /* one of them is in every such file */
} others[] = {
    {"Axolotl", axolotl, COUNT(axolotl), {"base_model", "sequence_len", "micro_batch_size", "datasets"}},
    {"TrainingArguments",
     training_arguments,
     COUNT(training_arguments),
     {"per_device_train_batch_size", "num_train_epochs", "lr_scheduler_type", "output_dir", "optim",
      "learning_rate"}},
};

static bool has_one(const struct node *root, const char *const *names, int count)
{
    for (int i = 0; i < count && names[i]; i++)
        if (node_get(root, names[i])) return true;
    return false;
}

static enum plim_status recognise(const struct node *root, const char *file, const struct trainer_names **out,
                                  struct plim_error *err)
{
    static const char *const own[] = {"model", "data", "training"};
    *out = NULL;
    for (size_t i = 0; root->kind == NODE_MAP && i < COUNT(others) && !*out; i++)
        if (has_one(root, others[i].marks, 6)) *out = &others[i];
    if (*out) return PLIM_OK;
    if (root->kind == NODE_MAP && has_one(root, own, COUNT(own)))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: this is a job file already; see plimsoll config show %s",
                         file, file);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: neither TrainingArguments or DeepSpeed's configuration as JSON nor Axolotl's YAML; "
                     "write a job file by hand, see "
                     "docs/configuration.md",
                     file);
}

static void carry_all(struct converting *c, const struct trainer_names *names)
{
    for (size_t i = 0; i < node_count(c->root); i++) {
        const struct node *value = node_item(c->root, i);
        size_t at = 0;
        while (at < names->count && strcmp(names->rows[at].theirs, value->key)) at++;
        if (at < names->count)
            names->rows[at].how(c, &names->rows[at], value);
        else if (!is_nothing(value))
            leave(c, value, "there is no such key here");
    }
}

/* Defaults of the other trainer that the file relies on. */
static void carry_defaults(struct converting *c, const struct trainer_names *names)
{
    for (size_t i = 0; i < names->count; i++) {
        const struct carry *row = &names->rows[i];
        struct node value = {.kind = NODE_STRING, .key = row->theirs};
        if (!row->fallback || node_get(c->root, row->theirs)) continue;
        value.as.string.text = row->fallback, value.as.string.len = strlen(row->fallback);
        if (row->how == epochs &&
            (c->job.training.epochs > 0 || node_float(node_get(c->root, "max_steps"), 0) > 0))
            continue;
        set_text(c, row->ours, &value, row->fallback);
        char where[96];
        snprintf(where, sizeof where, "default of %s", names->title);
        job_origin_set(&c->job, row->ours, ORIGIN_FILE, where);
    }
}

static void print(struct converting *c, const char *title)
{
    struct strbuf *out = &c->out->yaml;
    strbuf_add(out, "# From ");
    origin_put_comment(out, c->file, strlen(c->file));
    strbuf_addf(out, ", which has the names of %s.\n", title);
    if (!c->job.model.path) strbuf_add(out, "# Add the model: model: {path: FOLDER}\n");
    if (!c->job.train.count) strbuf_add(out, "# Add the data: data: {train: FILE, tokenizer: FOLDER}\n");
    strbuf_addc(out, '\n');
    job_settings_yaml(&c->job, false, out);
    for (const char *line = strbuf_text(&c->out->left); *line; line = strchr(line, '\n') + 1)
        strbuf_addf(out, "%s# %.*s\n", line == strbuf_text(&c->out->left) ? "\n" : "",
                    (int)strcspn(line, "\n"), line);
}

/* A key that is needless is left, with what replaces it. */
static void leave_needless(void *arg, const char *where, const char *path, const char *note)
{
    struct converting *c = arg;
    struct strbuf line = STRBUF_INIT;
    strbuf_addf(&line, "%s: %s is not carried over: %s", where, path, note);
    origin_put_comment(&c->out->left, strbuf_text(&line), line.len);
    strbuf_addc(&c->out->left, '\n');
    strbuf_release(&line);
}

static enum plim_status carry_deepspeed(struct converting *c, struct plim_error *err)
{
    struct schema_listener notes = {leave_needless, c, NULL, NULL};
    return deepspeed_take(&c->job, c->root, c->file, "", &notes, err);
}

enum plim_status job_convert(const struct node *root, const char *file, struct conversion *out,
                             struct plim_error *err)
{
    const struct trainer_names *names = NULL;
    *out = (struct conversion){0};
    struct converting c = {.root = root, .file = file, .out = out};
    bool ds = deepspeed_marks(root);
    enum plim_status status = ds ? PLIM_OK : recognise(root, file, &names, err);
    if (status != PLIM_OK) return status;
    job_init(&c.job);
    status = schema_defaults(&job_schema, &c.job, &c.job.store, err);
    if (status == PLIM_OK && ds) status = carry_deepspeed(&c, err);
    if (status == PLIM_OK) {
        if (!ds) carry_all(&c, names), carry_defaults(&c, names);
        print(&c, ds ? "DeepSpeed" : names->title);
        status = strbuf_status(&out->yaml, err);
    }
    job_release(&c.job);
    if (status != PLIM_OK) conversion_release(out);
    return status;
}

void conversion_release(struct conversion *c)
{
    strbuf_release(&c->yaml);
    strbuf_release(&c->left);
}
