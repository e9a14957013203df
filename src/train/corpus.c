/* corpus.c - see corpus.h. */
#include "train/corpus.h"
#include "mem/os.h"
#include "base/file.h"
#include "data/intake.h"
#include "data/longest_line.h"
#include "store/gguf.h"
#include "train/epoch.h"
#include "train/evaluate.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* Evaluation shuffles nothing; its blocks only decouple it from its worker, and one of those does. */
#define EVAL_BLOCK  256
#define CHAT_LINE   ((uint64_t)2 << 20)
#define LABELS_LINE ((uint64_t)128 << 10)

/* Bytes of text that a token of a usual vocabulary stands for; pieces that are read ahead unless a key says so, and at most. */
enum { USUAL_TOKEN = 4, USUAL_PIECES = 4, MOST_PIECES = 1 << 20 };

static bool is_text(const char *text) { return text && *text; }

static void data_options(const struct corpus *c, const struct string_list *files, struct data_options *out)
{
    const struct job_data *d = &c->job->data;
    bool pair = is_text(d->prompt_field) || is_text(d->response_field);
    bool source = job_objective(c->job) == OBJECTIVE_SOURCE_TARGET; /* a decoder reads it as a prompt */
    const char *prompt = pair || source ? d->prompt_field : d->source_field,
               *response = pair || source ? d->response_field : d->target_field,
               *first = source ? d->source_field : d->first_field,
               *second = source ? d->target_field : d->second_field;
    *out = (struct data_options){.paths = files->items,
                                 .count = (int)files->count,
                                 .time = c->job->max_length,
                                 .format = (enum data_format)d->format,
                                 .rows = (enum data_rows)d->rows,
                                 .overlong = source && !job_given(c->job, &d->overlong)
                                                 ? OVERLONG_REFUSE
                                                 : (enum data_overlong)d->overlong,
                                 .packing = d->packing,
                                 .field = is_text(d->field) ? d->field : NULL,
                                 .prompt_field = is_text(prompt) ? prompt : NULL,
                                 .response_field = is_text(response) ? response : NULL,
                                 .messages_field = is_text(d->messages_field) ? d->messages_field : NULL,
                                 .chosen_field = is_text(d->chosen_field) ? d->chosen_field : NULL,
                                 .rejected_field = is_text(d->rejected_field) ? d->rejected_field : NULL,
                                 .label_field = is_text(d->label_field) ? d->label_field : NULL,
                                 .tools_field = is_text(d->tools_field) ? d->tools_field : NULL,
                                 .learn_all = is_text(d->messages_field) ? !c->job->training.assistant_only
                                                                         : !c->job->training.completion_only,
                                 .objective = job_objective(c->job),
                                 .first_field = is_text(first) ? first : NULL,
                                 .second_field = is_text(second) ? second : NULL,
                                 .score_field = is_text(d->score_field) ? d->score_field : NULL,
                                 .labels = d->labels.items,
                                 .nlabels = (int)d->labels.count,
                                 .source_time = d->max_source_length,
                                 .pair_time = d->pair_length,
                                 .start = (int32_t)c->job->spec.start_token_id,
                                 .chat = c->chat,
                                 .now = &c->now,
                                 .add_special = d->add_special,
                                 .append_eos = d->append_eos,
                                 .skip_bad = d->skip_bad};
}

/* Records may be conversations: messages, preferences, or prompts and responses with a template that the job names. */
static bool may_render(const struct job *job)
{
    const struct job_data *d = &job->data;
    return is_text(d->messages_field) || objective_prefers(job_objective(job)) ||
           (is_text(d->prompt_field) && is_text(d->chat_template));
}

/* A conversation takes many times its bytes while it is rendered, and lists of words and labels while they are read; they are
 * hardly ever so long. */
static uint64_t longest_line(const struct job *job)
{
    const struct job_data *d = &job->data;
    uint64_t usual = d->max_line_bytes;
    if (may_render(job)) usual = CHAT_LINE;
    if (job_objective(job) == OBJECTIVE_TOKEN_LABELS) usual = LABELS_LINE;
    return !job_given(job, &d->max_line_bytes) && usual < d->max_line_bytes ? usual : d->max_line_bytes;
}

/* Dropout's bits follow a row's number in its step. Rows of padding: longest come longest first, and so do all where numbers
 * are dropped: padding then changes no bit of them. */
static bool drops(const struct job *job)
{
    const char *key;
    return model_dropout(&job->spec, &key) > 0;
}

int64_t corpus_pieces(const struct job *job, int64_t factor)
{
    int64_t token = codec_is_bytes(job->data.tokenizer) ? 1 : USUAL_TOKEN;
    int64_t batch = job->training.batch_size * job->max_length * token, slot = (int64_t)INTAKE_SLOT;
    int64_t pieces = (int64_t)ceil((double)factor * (double)batch / (double)slot);
    return pieces < MOST_PIECES ? pieces : MOST_PIECES;
}

/* Ranks share an evaluation's rows, but for pairs: a batch of those is one thing. */
static void loader_options(const struct corpus *c, const struct loader_size *size, bool evaluation,
                           struct loader_options *out)
{
    const struct job *job = c->job;
    const struct job_data *d = &job->data;
    bool whole = evaluation && job_whole_passes(job);
    uint64_t longest = (uint64_t)size->max_line_bytes;
    uint64_t known = (uint64_t)(evaluation ? c->longest_eval : c->longest);
    if (known && known < longest) longest = known;
    bool grouped =
        d->group_by_length && (job_given(job, &d->group_by_length) || d->padding == PADDING_LONGEST);
    *out = (struct loader_options){.seed = (uint64_t)job->training.seed,
                                   .sorted = d->padding == PADDING_LONGEST || (!evaluation && drops(job)),
                                   .grouped = grouped && !evaluation,
                                   .in_order = evaluation,
                                   .once = evaluation,
                                   .whole_epochs = !evaluation && job->training.whole_epochs,
                                   .workers = evaluation && size->workers > 1 ? 1 : (int)size->workers,
                                   .prefetch = (int)size->pieces,
                                   .max_line = (size_t)longest,
                                   .shuffle_samples = evaluation ? EVAL_BLOCK : size->shuffle_samples,
                                   .shuffle_bytes = (size_t)size->shuffle_bytes,
                                   .window_rows = evaluation ? eval_window(job) : job_rows(job),
                                   .rank = whole ? 0 : job->rank,
                                   .ranks = whole || job->ranks < 1 ? 1 : job->ranks};
}

static enum plim_status at_key(const struct corpus *c, const char *key, enum plim_status status,
                               struct plim_error *err)
{
    if (status != PLIM_OK) plim_error_prefix(err, "%s: key '%s'", c->job->name, key);
    return status;
}

static enum plim_status check_vocabulary(const struct corpus *c, int64_t size, const char *what,
                                         struct plim_error *err)
{
    if (size <= c->job->spec.vocab_size) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s has a vocabulary of %lld, the model only %lld; set model.vocab_size or take the model's own "
        "tokenizer",
        what, (long long)size, (long long)c->job->spec.vocab_size);
}

/* A tokenizer is read within the line that the process holds, as far as the job says. */
static enum plim_status open_codec(struct corpus *c, bool within_budget, struct plim_error *err)
{
    const struct job_data *d = &c->job->data;
    uint64_t line = c->job->host_budget ? c->job->host_budget : c->job->budget;
    enum plim_status status = is_text(d->tokenizer) ? file_refuse_pipe(d->tokenizer, err) : PLIM_OK;
    if (status == PLIM_OK) status = codec_open_within(d->tokenizer, within_budget ? line : 0, &c->codec, err);
    if (status == PLIM_OK && c->codec.tokenizer)
        status = check_vocabulary(c, c->codec.vocab_size, d->tokenizer, err);
    return at_key(c, "data.tokenizer", status, err);
}

static enum plim_status open_chat(struct corpus *c, struct plim_error *err)
{
    const struct job_data *d = &c->job->data;
    const char *path = is_text(d->chat_template) ? d->chat_template : d->tokenizer;
    if (!may_render(c->job)) return PLIM_OK;
    bool optional = !is_text(d->chat_template) && !is_text(d->messages_field); /* preferences may be texts */
    if (optional && codec_is_bytes(d->tokenizer)) return PLIM_OK;
    enum plim_status status =
        !is_text(d->chat_template) && codec_is_bytes(d->tokenizer)
            ? plim_fail(err, PLIM_BAD_INPUT,
                        "conversations need the model's template; give its folder or file")
            : file_refuse_pipe(path, err);
    if (status == PLIM_OK) status = chat_template_load(path, NULL, &c->chat, err);
    if (status == PLIM_NOT_FOUND && optional) return PLIM_OK;
    return at_key(c, "data.chat_template", status, err);
}

/* Smaller loaders, from free to costly: no room for lines that hardly ever come, then fewer pieces are read ahead, then
 * fewer threads read them, and at last lines that may come are refused, but none that is known to be there. The rows and their order are the same; blocks of a
 * shuffle are not among these, they are what the order is made of. */
static const struct {
    int64_t max_line_bytes, workers, pieces;
} smaller[] = {{4 << 20, 256, 1024}, {1 << 20, 256, 1024}, {1 << 20, 2, 2},   {1 << 20, 2, 1},
               {1 << 20, 1, 1},      {1 << 20, 0, 1},      {256 << 10, 0, 1}, {64 << 10, 0, 1}};
enum { SMALLER = sizeof smaller / sizeof *smaller };
_Static_assert((int)SMALLER < (int)LOADER_SIZES, "a job has room for every size");

int64_t corpus_bytes(const struct corpus *c, const struct loader_size *size)
{
    struct loader_options loader;
    int64_t sum = (int64_t)c->codec.bytes + (c->chat ? (int64_t)chat_template_bytes(c->chat) : 0);
    if (c->codec.path && gguf_is(c->codec.path))
        sum += (int64_t)c->codec.reading; /* checkpoints write it out */
    loader_options(c, size, false, &loader);
    if (c->train) sum += (int64_t)loader_bytes(c->train, &loader);
    loader_options(c, size, true, &loader);
    if (c->validation) sum += (int64_t)loader_bytes(c->validation, &loader);
    if (c->validation) sum += scoring_bytes(c->job, eval_window(c->job));
    return sum;
}

static void add_size(struct corpus *c, struct loader_size size)
{
    struct loader_sizes *s = &c->sizes;
    size.bytes = corpus_bytes(c, &size);
    if (!s->count || size.bytes < s->at[s->count - 1].bytes) s->at[s->count++] = size;
}

static void measure(struct corpus *c)
{
    const struct job *job = c->job;
    const struct job_data *d = &job->data;
    bool fixed_line = job_given(job, &d->max_line_bytes), fixed_workers = job_given(job, &d->workers),
         fixed_pieces = job_given(job, &d->prefetch_factor);
    struct loader_size size = {.workers = d->workers,
                               .pieces = fixed_pieces ? corpus_pieces(job, d->prefetch_factor) : USUAL_PIECES,
                               .max_line_bytes = (int64_t)longest_line(job),
                               .shuffle_samples = d->shuffle_buffer,
                               .shuffle_bytes = (int64_t)d->shuffle_bytes};
    int64_t there = (int64_t)(c->longest > c->longest_eval ? c->longest : c->longest_eval);
    if (d->skip_bad) there = 0; /* may be refused */
    c->sizes = (struct loader_sizes){.reading = (int64_t)c->codec.reading};
    add_size(c, size);
    for (int i = 0; i < SMALLER; i++) {
        int64_t line = smaller[i].max_line_bytes > there ? smaller[i].max_line_bytes : there;
        if (!fixed_line && line < size.max_line_bytes) size.max_line_bytes = line;
        if (!fixed_workers && smaller[i].workers < size.workers) size.workers = smaller[i].workers;
        if (!fixed_pieces && smaller[i].pieces < size.pieces) size.pieces = smaller[i].pieces;
        add_size(c, size);
    }
}

static enum plim_status open_part(struct corpus *c, const char *key, const struct string_list *files,
                                  struct dataset **out, struct plim_error *err)
{
    struct data_options data;
    data_options(c, files, &data);
    enum plim_status status = dataset_open(&data, &c->codec, out, err);
    if (status == PLIM_OK)
        status = check_vocabulary(c, dataset_vocab_size(*out), dataset_inputs(*out)->file[0].path, err);
    return at_key(c, key, status, err);
}

/* A line of MIN_LINE bytes is always taken: what a file is refused for is what is in it. */
static size_t find_longest(const struct dataset *data)
{
    enum { MIN_LINE = 256 };
    size_t longest = longest_line_of(dataset_inputs(data), dataset_options(data)->format);
    return longest && longest < MIN_LINE ? MIN_LINE : longest;
}

enum plim_status corpus_open(const struct job *job, unsigned parts, struct corpus *out,
                             struct plim_error *err)
{
    *out = (struct corpus){.job = job};
    corpus_set_now(out, (int64_t)time(NULL));
    enum plim_status status = open_codec(out, !(parts & CORPUS_ASKED), err);
    if (status == PLIM_OK) status = open_chat(out, err);
    if (out->codec.tokenizer) os_give_back(); /* what parsing took is not what the tokenizer holds */
    if (status == PLIM_OK && parts & CORPUS_TRAIN)
        status = open_part(out, "data.train", &job->train, &out->train, err);
    if (status == PLIM_OK && parts & CORPUS_VALIDATION && job->validation.count)
        status = open_part(out, "data.validation", &job->validation, &out->validation, err);
    if (out->train) out->longest = find_longest(out->train);
    if (out->validation) out->longest_eval = find_longest(out->validation);
    if (status == PLIM_OK) measure(out);
    if (status != PLIM_OK) corpus_close(out);
    return status;
}

void corpus_set_now(struct corpus *c, int64_t seconds)
{
    time_t t = (time_t)seconds;
    c->seconds = seconds;
    localtime_r(&t, &c->now);
}

void corpus_close(struct corpus *c)
{
    dataset_close(c->train);
    dataset_close(c->validation);
    chat_template_free(c->chat);
    codec_close(&c->codec);
    *c = (struct corpus){0};
}

static enum plim_status open_loader(const struct corpus *c, struct dataset *data, bool evaluation,
                                    struct loader **out, struct plim_error *err)
{
    struct loader_options options;
    loader_options(c, &c->sizes.at[c->sizes.chosen], evaluation, &options);
    options.stop = c->stop;
    return loader_open(data, &options, out, err);
}

enum plim_status corpus_loader(const struct corpus *c, struct dataset *data, struct loader **out,
                               struct plim_error *err)
{
    return open_loader(c, data, false, out, err);
}

enum plim_status corpus_evaluator(const struct corpus *c, struct dataset *data, struct loader **out,
                                  struct plim_error *err)
{
    return open_loader(c, data, true, out, err);
}

enum plim_status corpus_reader(const struct corpus *c, struct dataset *data, struct loader **out,
                               struct plim_error *err)
{
    struct loader_options options;
    loader_options(c, &c->sizes.at[c->sizes.chosen], false, &options);
    options.sorted = options.grouped = options.whole_epochs = false;
    options.in_order = options.once = true;
    if (job_whole_passes(c->job)) options.rank = 0, options.ranks = 1;
    options.stop = c->stop;
    return loader_open(data, &options, out, err);
}

int64_t corpus_rows(struct dataset *data, int64_t wanted)
{
    int64_t known = dataset_samples(data), rows = known > 0 ? known : INT64_MAX / 2;
    return wanted > 0 && wanted < rows ? wanted : rows;
}

static bool are_here(const struct string_list *files)
{
    struct inputs in;
    bool here = inputs_find(files->items, (int)files->count, &in, NULL) == PLIM_OK;
    if (here) inputs_release(&in);
    return here;
}

/* Is the first row of an evaluation one? */
static enum plim_status try_validation(const struct corpus *c, struct plim_error *err)
{
    struct loader_options options = {.in_order = true,
                                     .once = true,
                                     .prefetch = 1,
                                     .max_line = (size_t)c->sizes.at[0].max_line_bytes,
                                     .shuffle_samples = 1,
                                     .shuffle_bytes = (size_t)c->job->data.shuffle_bytes,
                                     .window_rows = 1,
                                     .stop = c->stop};
    struct loader *loader;
    struct loader_window window;
    enum plim_status status = loader_open(c->validation, &options, &loader, err);
    if (status != PLIM_OK) return status;
    status = loader_window(loader, 1, &window, err);
    loader_close(loader);
    return at_key(c, "data.validation", status, err);
}

/* Reads the first records as a run would. */
static enum plim_status try_records(const struct corpus *c, struct job_epoch *epoch, struct plim_error *err)
{
    enum plim_status status = c->train ? epoch_estimate(c, epoch, err) : PLIM_OK;
    status = at_key(c, "data.train", status, err);
    return status == PLIM_OK && c->validation ? try_validation(c, err) : status;
}

enum plim_status corpus_ask(const struct job *job, bool here, bool *missing, struct corpus *out,
                            struct plim_error *err)
{
    bool found = are_here(&job->train) && are_here(&job->validation);
    bool later = !job->train.count || (!here && !found);
    *missing = later && job->train.count;
    return corpus_open(job, CORPUS_ASKED | (later ? 0u : CORPUS_TRAIN | CORPUS_VALIDATION), out, err);
}

enum plim_status corpus_measure(const struct job *job, bool here, struct loader_sizes *loader,
                                struct job_length *length, bool *missing, struct plim_error *err)
{
    struct corpus c;
    struct job_epoch epoch = {0};
    *length = job_length(job, &epoch);
    enum plim_status status = corpus_ask(job, here, missing, &c, err);
    if (status != PLIM_OK) return status;
    *loader = c.sizes;
    status = try_records(&c, &epoch, err);
    *length = job_length(job, &epoch);
    corpus_close(&c);
    return status;
}
