/* convert.c - see convert.h: a table of names for each of the other trainers (convert_keys.c), and one walk over the file. Values
 * are set in a job by our own keys, so that they are checked as ours are; the job is then printed. A name that neither becomes
 * one of ours nor is known to be without effect is refused, and all such are told. */
#include "job/convert.h"
#include "base/json.h"
#include "base/number.h"
#include "base/schema_value.h"
#include "job/convert_keys.h"
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

/* ---- saying what does not become a key ---- */

/* "args.json:12: optim: lion is not converted: ..." */
static void put_line(struct converting *c, struct strbuf *out, const struct node *value, const char *what,
                     const char *why)
{
    STRBUF_AUTO text = STRBUF_INIT, line = STRBUF_INIT;
    char where[32] = "";
    if (value->key && strstr(value->key, "hub_token")) /* a secret */
        strbuf_add(&text, "...");
    else
        json_plain(&text, value);
    if (value->line) snprintf(where, sizeof where, ":%d", value->line);
    strbuf_addf(&line, "%s%s: %.100s: %.80s%s%s %s: %s", c->file, where, value->key ? value->key : "",
                strbuf_text(&text), text.len > 80 ? "..." : "", value->line ? "" : " (the default)", what,
                why);
    origin_put_comment(out, strbuf_text(&line), line.len); /* one line, whatever the file holds */
    strbuf_addc(out, '\n');
}

static void refuse(struct converting *c, const struct node *value, const char *why)
{
    put_line(c, &c->out->refused, value, "cannot be converted", why);
    c->out->refusals++;
}

static void leave(struct converting *c, const struct node *value, const char *why)
{
    put_line(c, &c->out->left, value, "is left out", why);
}

/* Nothing is asked for: null, false, 0, "", "none", [], {}. */
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

/* Two names of the file that are one of ours have to agree. */
static void set_text(struct converting *c, const char *ours, const struct node *value, const char *text)
{
    struct origin_recorder recorder;
    struct plim_error why = {0};
    STRBUF_AUTO before = STRBUF_INIT, after = STRBUF_INIT;
    const struct schema_row *row = schema_find(&job_schema, ours);
    struct origin said = *job_origin(&c->job, ours);
    char where[320];
    snprintf(where, sizeof where, "%.200s:%d, %.80s", c->file, value->line, value->key);
    if (!value->line) snprintf(where, sizeof where, "default of %.80s", value->key);
    const struct schema_listener *listener = origin_record(&recorder, &c->job, ORIGIN_FILE, NULL);
    schema_exact(row, &c->job, &before);
    if (schema_set_from(&job_schema, where, ours, text, &c->job, &c->job.store, listener, &why) != PLIM_OK)
        refuse(c, value, why.text + why.place);
    schema_exact(row, &c->job, &after);
    if (said.kind == ORIGIN_FILE && strcmp(strbuf_text(&before), strbuf_text(&after))) {
        char clash[480];
        snprintf(clash, sizeof clash, "%.300s means the same and differs; keep one", said.where);
        refuse(c, value, clash);
    }
}

void carry_set(struct converting *c, const struct carry *row, const struct node *value)
{
    STRBUF_AUTO text = STRBUF_INIT;
    if (value->kind == NODE_NULL) return;
    if (value->kind == NODE_LIST || value->kind == NODE_MAP) {
        refuse(c, value, "a single value was expected");
        return;
    }
    json_plain(&text, value);
    set_text(c, row->ours, value, strbuf_text(&text));
}

/* Their "off" is the default that ours leaves to the planner. */
void carry_asked(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) carry_set(c, row, value);
}

void carry_positive(struct converting *c, const struct carry *row, const struct node *value)
{
    bool number = value->kind == NODE_INT || value->kind == NODE_FLOAT;
    if (!number || node_float(value, 0) > 0) carry_set(c, row, value);
}

void carry_needless(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) leave(c, value, row->text);
}

void carry_off(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) refuse(c, value, row->text);
}

void carry_fixed(struct converting *c, const struct carry *row, const struct node *value)
{
    STRBUF_AUTO text = STRBUF_INIT;
    json_plain(&text, value);
    if (value->kind != NODE_NULL && strcmp(strbuf_text(&text), row->ours)) refuse(c, value, row->text);
}

/* Keys of an adapter that the file does not ask for mean nothing there either. */
void carry_adapter(struct converting *c, const struct carry *row, const struct node *value)
{
    static const char *const marks[] = {"adapter",      "use_peft",         "load_in_4bit",
                                        "load_in_8bit", "quantization_bit", "finetuning_type"};
    bool asked = false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const struct node *mark = node_get(c->root, marks[i]);
        asked = asked || (mark && !is_nothing(mark) && strcmp(node_string(mark, ""), "full"));
    }
    (asked ? carry_off : carry_needless)(c, row, value);
}

/* max_steps is the stronger of the two. */
void carry_epochs(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(node_get(c->root, "max_steps"), 0) <= 0) carry_set(c, row, value);
}

/* Below 1 it is a share of all steps. */
void carry_warmup(struct converting *c, const struct carry *row, const struct node *value)
{
    static const struct carry share = {"warmup_steps", carry_set, "training.warmup_ratio"};
    double number = node_float(value, 0);
    carry_positive(c, number > 0 && number < 1 ? &share : row, value);
}

void carry_ratio(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(node_get(c->root, "warmup_steps"), 0) <= 0) carry_positive(c, row, value);
}

void carry_cpu(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!is_nothing(value)) set_text(c, row->ours, value, "cpu");
}

void carry_precision(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!strcmp(node_string(value, ""), "auto"))
        set_text(c, "training.mixed_precision", value, "auto");
    else
        carry_asked(c, row, value);
}

/* A model folder has its tokenizer. */
void carry_model(struct converting *c, const struct carry *row, const struct node *value)
{
    carry_set(c, row, value);
    if (!node_get(c->root, "tokenizer_config")) set_text(c, "data.tokenizer", value, node_string(value, ""));
}

void carry_words(struct converting *c, const struct carry *row, const struct node *value)
{
    STRBUF_AUTO text = STRBUF_INIT;
    for (size_t i = 0; i < node_count(value); i++)
        strbuf_addf(&text, "%s%s", i ? "," : "", node_string(node_item(value, i), "?"));
    if (value->kind == NODE_STRING) strbuf_add(&text, value->as.string.text);
    if (text.len && strcmp(text.data, "none")) set_text(c, row->ours, value, text.data);
}

void carry_once_an_epoch(struct converting *c, const struct carry *row, const struct node *value)
{
    if (node_float(value, 0) == 1)
        set_text(c, row->ours, value, "epoch");
    else if (!is_nothing(value))
        refuse(c, value, "write a number of steps");
}

void carry_report(struct converting *c, const struct carry *row, const struct node *value)
{
    static const char *const known[] = {"tensorboard", "wandb", "all"};
    STRBUF_AUTO words = STRBUF_INIT;
    size_t count = value->kind == NODE_LIST ? node_count(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const struct node *one = value->kind == NODE_LIST ? node_item(value, i) : value;
        const char *word = node_string(one, "");
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(known[k], word)) k++;
        if (k < sizeof known / sizeof *known)
            strbuf_addf(&words, "%s%s", words.len ? "," : "", word);
        else if (!is_nothing(one) && strcmp(word, "none"))
            refuse(c, value, "write tensorboard or wandb; train --log FILE writes lines of JSON");
    }
    if (words.len) set_text(c, row->ours, value, words.data);
}

void carry_deepspeed(struct converting *c, const struct carry *row, const struct node *value)
{
    if (value->kind == NODE_MAP && node_count(value))
        refuse(c, value, "put it into a separate file, and write the file's name here");
    else
        carry_asked(c, row, value);
}

static bool is_file(const char *path)
{
    static const char *const ends[] = {".json", ".jsonl", ".ndjson", ".txt", ".gz", ".zst", NULL};
    size_t len = strlen(path);
    for (int i = 0; ends[i]; i++)
        if (len > strlen(ends[i]) && !strcmp(path + len - strlen(ends[i]), ends[i])) return true;
    return *path == '/' || *path == '.';
}

/* Names of files, or of data sets that are somewhere else. */
void carry_files(struct converting *c, const struct carry *row, const struct node *value)
{
    if (is_nothing(value)) return;
    if (value->kind != NODE_STRING || !is_file(value->as.string.text))
        refuse(c, value, row->text);
    else
        set_text(c, row->ours, value, value->as.string.text);
}

/* Reads the type of an Axolotl data set. */
static void dataset_type(struct converting *c, const struct node *one, const struct node *value)
{
    const struct node *messages = node_get(one, "field_messages");
    const char *type = node_string(value, "");
    if (!strcmp(type, "completion")) return;
    if (strcmp(type, "chat_template"))
        refuse(c, value, "name the fields instead: data.prompt_field and others, see docs/data.md");
    else if (!messages)
        set_text(c, "data.messages_field", value, "messages");
}

static void dataset_key(struct converting *c, const struct node *one, const struct node *value)
{
    static const struct carry rows[] = {
        {"field", carry_set, "data.field"},
        {"field_messages", carry_set, "data.messages_field"},
        {"split", carry_fixed, "train", .text = "a file has no splits; remove it"},
        {"ds_type", carry_fixed, "json", .text = "files are JSON lines or text; remove it"},
    };
    size_t i = 0;
    if (!strcmp(value->key, "path")) return;
    if (!strcmp(value->key, "type")) {
        dataset_type(c, one, value);
        return;
    }
    while (i < sizeof rows / sizeof *rows && strcmp(rows[i].theirs, value->key)) i++;
    if (i == sizeof rows / sizeof *rows)
        refuse(c, value, "not supported; see docs/data.md");
    else
        rows[i].how(c, &rows[i], value);
}

/* Axolotl: a list of maps with a path each. */
void carry_datasets(struct converting *c, const struct carry *row, const struct node *value)
{
    STRBUF_AUTO paths = STRBUF_INIT;
    for (size_t i = 0; i < node_count(value); i++) {
        const struct node *one = node_item(value, i), *path = node_get(one, "path");
        const char *text = node_string(path, "");
        if (!is_file(text) || strchr(text, ','))
            refuse(c, path ? path : value, "not a file on this machine; list files in data.train");
        else
            strbuf_addf(&paths, "%s%s", paths.len ? "," : "", text);
        for (size_t k = 0; one->kind == NODE_MAP && k < node_count(one); k++)
            dataset_key(c, one, node_item(one, k));
    }
    if (value->kind != NODE_LIST && !is_nothing(value)) refuse(c, value, "expected a list of data sets");
    if (paths.len) set_text(c, row->ours, value, paths.data);
}

/* transformers' warmup_stable_decay falls along a cosine unless it is told otherwise. */
void carry_scheduler(struct converting *c, const struct carry *row, const struct node *value)
{
    const struct node *decay = node_path(c->root, "lr_scheduler_kwargs.decay_type");
    carry_set(c, row, value);
    if (!decay && !strcmp(node_string(value, ""), "warmup_stable_decay"))
        set_text(c, "training.decay_type", value, "cosine");
}

void carry_kwargs(struct converting *c, const struct carry *, const struct node *value)
{
    if (value->kind != NODE_MAP && !is_nothing(value)) refuse(c, value, "expected names and values");
    for (size_t i = 0; value->kind == NODE_MAP && i < node_count(value); i++) {
        const struct node *one = node_item(value, i);
        char key[160];
        snprintf(key, sizeof key, "training.lr_scheduler_kwargs.%.100s", one->key);
        const struct schema_row *ours = schema_find(&job_schema, key);
        if (ours)
            carry_set(c, &(struct carry){one->key, carry_set, ours->path}, one);
        else
            refuse(c, one, "schedules here have no such argument; see docs/schedules.md");
    }
}

/* A share that counts where the schedule is a cosine. */
void carry_floor(struct converting *c, const struct carry *row, const struct node *value)
{
    if (!strcmp(node_string(node_get(c->root, "lr_scheduler"), "cosine"), "cosine"))
        carry_positive(c, row, value);
    else
        carry_needless(c, &(struct carry){.text = "it counts only with lr_scheduler: cosine"}, value);
}

/* Without eval_steps evaluations are as often as log lines are, 500 steps unless said. */
void carry_eval_strategy(struct converting *c, const struct carry *row, const struct node *value)
{
    const struct node *every = node_get(c->root, "eval_steps"), *log = node_get(c->root, "logging_steps");
    carry_set(c, row, value);
    if (strcmp(node_string(value, ""), "steps") || (every && every->kind != NODE_NULL)) return;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)node_int(log, 500));
    set_text(c, "training.eval_every", value, text);
}

void carry_project(struct converting *c, const struct carry *row, const struct node *value)
{
    if (is_nothing(value)) return;
    carry_set(c, row, value);
    set_text(c, "training.report_to", value, "wandb");
}

/* Padding is never learned, so its token does not matter. */
void carry_tokens(struct converting *c, const struct carry *, const struct node *value)
{
    for (size_t i = 0; value->kind == NODE_MAP && i < node_count(value); i++) {
        const struct node *one = node_item(value, i);
        if (strcmp(one->key, "pad_token") && !is_nothing(one))
            refuse(c, one, "the tokenizer's files say it; change them, or remove it");
        else
            carry_needless(c, &(struct carry){.text = "padding is never learned"}, one);
    }
    if (value->kind != NODE_MAP && !is_nothing(value)) refuse(c, value, "expected names and tokens");
}

/* Axolotl's eager_attention: true and LLaMA-Factory's flash_attn: disabled. */
void carry_eager(struct converting *c, const struct carry *row, const struct node *value)
{
    bool asked =
        !strcmp(node_string(value, ""), "disabled") || (value->kind == NODE_BOOL && value->as.boolean);
    if (asked) set_text(c, row->ours, value, "false");
    if (!asked) carry_needless(c, &(struct carry){.text = "attention is always of that kind"}, value);
}

/* ---- the walk ---- */

static bool has_one(const struct node *root, const char *const *names, int count)
{
    for (int i = 0; i < count && names[i]; i++)
        if (node_get(root, names[i])) return true;
    return false;
}

/* torchtune's files are nests of Python's objects. */
static bool has_components(const struct node *root)
{
    for (size_t i = 0; i < node_count(root); i++)
        if (node_get(node_item(root, i), "_component_")) return true;
    return false;
}

static enum plim_status recognise(const struct node *root, const char *file, const struct trainer_names **out,
                                  struct plim_error *err)
{
    static const char *const own[] = {"model", "data", "training"};
    *out = NULL;
    if (root->kind == NODE_MAP && has_components(root))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: torchtune's configuration is not converted: it names objects of Python; write a job "
            "file by hand, see docs/configuration.md",
            file);
    for (size_t i = 0; root->kind == NODE_MAP && i < trainer_count && !*out; i++)
        if (has_one(root, trainers[i].marks, TRAINER_MARKS)) *out = &trainers[i];
    if (*out) return PLIM_OK;
    if (root->kind == NODE_MAP && has_one(root, own, sizeof own / sizeof *own))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: this is a job file already; see plimsoll config show %s",
                         file, file);
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: neither TrainingArguments or DeepSpeed's configuration as JSON nor YAML of Axolotl or "
        "LLaMA-Factory; write a job file by hand, see docs/configuration.md",
        file);
}

static bool fits(const char *pattern, const char *name)
{
    size_t len = strlen(pattern);
    return pattern[len - 1] == '*' ? !strncmp(pattern, name, len - 1) : !strcmp(pattern, name);
}

static const struct carry *find_row(const struct trainer_names *names, const char *name)
{
    for (int t = 0; t < TRAINER_TABLES; t++)
        for (size_t i = 0; i < names->tables[t].count; i++)
            if (fits(names->tables[t].rows[i].theirs, name)) return &names->tables[t].rows[i];
    return NULL;
}

static void carry_all(struct converting *c, const struct trainer_names *names)
{
    for (size_t i = 0; i < node_count(c->root); i++) {
        const struct node *value = node_item(c->root, i);
        const struct carry *row = find_row(names, value->key);
        if (row)
            row->how(c, row, value);
        else if (value->kind != NODE_NULL)
            refuse(c, value, "this setting is not supported; remove it to train without it");
    }
}

/* Defaults of the other trainer that the file relies on. */
static void carry_defaults(struct converting *c, const struct trainer_names *names)
{
    for (int t = 0; t < TRAINER_TABLES; t++)
        for (size_t i = 0; i < names->tables[t].count; i++) {
            const struct carry *row = &names->tables[t].rows[i];
            const struct node *said = node_get(c->root, row->theirs);
            struct node value = {.kind = NODE_STRING, .key = row->theirs};
            if (!row->fallback || (said && said->kind != NODE_NULL)) continue;
            if (row->how != carry_fixed && job_origin(&c->job, row->ours)->kind == ORIGIN_FILE) continue;
            value.as.string.text = row->fallback, value.as.string.len = strlen(row->fallback);
            row->how(c, row, &value);
            char where[96];
            snprintf(where, sizeof where, "default of %s", names->title);
            if (row->how != carry_fixed && job_origin(&c->job, row->ours)->kind == ORIGIN_FILE)
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

/* Keys that are each possible and contradict each other. */
static void check_together(struct converting *c)
{
    struct plim_error why = {0};
    c->job.name = c->file;
    enum plim_status status = job_agree(&c->job, &why);
    if (status == PLIM_OK) status = job_check_wishes(&c->job, &why);
    if (status == PLIM_OK) return;
    origin_put_comment(&c->out->refused, why.text, strlen(why.text));
    strbuf_addc(&c->out->refused, '\n');
    c->out->refusals++;
}

/* A key that is needless is left, with what replaces it. */
static void leave_needless(void *arg, const char *where, const char *path, const char *note)
{
    struct converting *c = arg;
    STRBUF_AUTO line = STRBUF_INIT;
    strbuf_addf(&line, "%s: %s is left out: %s", where, path, note);
    origin_put_comment(&c->out->left, strbuf_text(&line), line.len);
    strbuf_addc(&c->out->left, '\n');
}

static enum plim_status take_deepspeed(struct converting *c, struct plim_error *err)
{
    struct schema_listener notes = {leave_needless, c, NULL, NULL};
    return deepspeed_take_all(&c->job, c->root, c->file, &notes, &c->out->refused, &c->out->refusals, err);
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
    if (status == PLIM_OK && ds) status = take_deepspeed(&c, err);
    if (status == PLIM_OK) {
        if (!ds) carry_all(&c, names), carry_defaults(&c, names);
        print(&c, ds ? "DeepSpeed" : names->title);
        check_together(&c);
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
    strbuf_release(&c->refused);
}
