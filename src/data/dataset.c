/* dataset.c - see dataset.h. */
#include "data/dataset.h"
#include "base/file.h"
#include "text/chat_template.h"
#include "base/hash.h"
#include "data/byte_stream.h"
#include "data/record_chat.h"
#include "store/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file read by index. */
struct indexed_file {
    struct token_file *tokens; /* a token file */
    int fd;                    /* or text as bytes */
    int mark;                  /* bytes of the byte order mark before it */
    int64_t length;            /* in tokens */
    int64_t first;             /* sample of this file in the whole */
};

struct dataset {
    struct data_options options;
    struct objective_rules rules;
    const struct codec *codec;
    struct inputs inputs;
    struct indexed_file *files; /* NULL: a stream */
    int64_t samples, vocab_size;
    bool by_window;        /* samples are windows of T + 1 over each file */
    unsigned char *window; /* [T + 1], bytes */
    int last;              /* file read last: only its pages are resident */
};

int64_t dataset_time(const struct dataset *data) { return data->options.time; }
const struct data_options *dataset_options(const struct dataset *data) { return &data->options; }
const struct objective_rules *dataset_rules(const struct dataset *data) { return &data->rules; }
void dataset_set_reference(struct dataset *data, const struct reference *reference)
{
    data->rules.reference = reference;
}
const struct inputs *dataset_inputs(const struct dataset *data) { return &data->inputs; }
int64_t dataset_samples(const struct dataset *data) { return data->samples; }
int64_t dataset_vocab_size(const struct dataset *data) { return data->vocab_size; }

static enum data_format format_of(enum data_form form)
{
    return form == FORM_TOKENS ? DATA_TOKENS : form == FORM_TEXT ? DATA_TEXT : DATA_JSONL;
}

enum data_form data_form_of(enum data_format format, enum data_form found)
{
    static const enum data_form forms[] = {
        [DATA_AUTO] = FORM_TEXT,        [DATA_TEXT] = FORM_TEXT,     [DATA_LINES] = FORM_TEXT,
        [DATA_JSONL] = FORM_JSON_LINES, [DATA_TOKENS] = FORM_TOKENS, [DATA_CSV] = FORM_CSV,
        [DATA_CONLL] = FORM_CONLL};
    bool records = found == FORM_JSON_ARRAY || found == FORM_PARQUET;
    return format == DATA_AUTO || (format == DATA_JSONL && records) ? found : forms[format];
}

static enum plim_status check_file(const struct data_options *o, const struct input_file *f,
                                   struct plim_error *err)
{
    if (o->format != DATA_AUTO && (o->format == DATA_TOKENS) != (f->form == FORM_TOKENS))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is %sa token file; change data.format", f->path,
                         f->form == FORM_TOKENS ? "" : "not ");
    if (f->form == FORM_REFUSED && o->format != DATA_TEXT)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is %s; %s (data.format: text takes any bytes as text)",
                         f->path, f->what, f->advice);
    if (f->bytes < 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: the data file is empty; give a file with at least two bytes of text", f->path);
    if (f->bytes < 2 && f->form == FORM_TEXT)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: the data file holds one byte; text needs two, one to read and one to learn",
                         f->path);
    return PLIM_OK;
}

/* One format for all files. */
static enum plim_status settle_format(struct dataset *d, struct plim_error *err)
{
    struct data_options *o = &d->options;
    for (int i = 0; i < d->inputs.count; i++) {
        struct input_file *f = &d->inputs.file[i], *first = &d->inputs.file[0];
        enum plim_status status = check_file(o, f, err);
        if (status != PLIM_OK) return status;
        f->form = data_form_of(o->format, f->form);
        if (format_of(f->form) != format_of(first->form))
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s looks like %s, %s like %s; give files of one kind, or say which with data.format",
                first->path, form_name(first->form), f->path, form_name(f->form));
        if (f->form == FORM_CONLL && o->objective != OBJECTIVE_TOKEN_LABELS)
            return plim_fail(
                err, PLIM_BAD_INPUT,
                "%s: looks like CoNLL data, words with labels; set training.objective: token_labels, or "
                "data.format: text",
                f->path);
    }
    if (o->format != DATA_LINES) o->format = format_of(d->inputs.file[0].form);
    return PLIM_OK;
}

/* Reads the column names of every table, so that a missing field is reported before anything is planned. */
static enum plim_status check_sheets(struct dataset *d, struct plim_error *err)
{
    struct intake_options intake;
    struct sheet_want want;
    enum plim_status status = PLIM_OK;
    dataset_intake_options(d, &intake);
    record_want(&intake.rules, intake.skip_bad, &want);
    for (int i = 0; i < d->inputs.count && status == PLIM_OK; i++) {
        struct byte_stream *s = NULL;
        if (!form_is_sheet(d->inputs.file[i].form)) continue;
        status = byte_stream_open(&d->inputs.file[i], &want, &s, err);
        if (status == PLIM_OK) d->inputs.file[i].sheet_bytes = (int64_t)byte_stream_sheet_bytes(s);
        byte_stream_close(s);
    }
    return status;
}

static enum record_kind record_kind_of(const struct data_options *o)
{
    if (o->format == DATA_TEXT) return RECORD_TEXT;
    if (o->objective == OBJECTIVE_TOKEN_LABELS) return RECORD_LABELS;
    if (o->objective == OBJECTIVE_KTO) return RECORD_UNPAIRED;
    if (objective_prefers(o->objective)) return RECORD_PREFERENCE;
    if (objective_row(o->objective)->two_parts) return RECORD_TWO;
    if (o->format == DATA_LINES) return RECORD_LINE;
    if (o->messages_field) return RECORD_CHAT;
    return o->prompt_field ? RECORD_PAIR : RECORD_JSON;
}

/* Checks the objective's requirements on the data. */
static enum plim_status check_objective(const struct dataset *d, struct plim_error *err)
{
    const struct data_options *o = &d->options;
    const struct objective_row *row = objective_row(o->objective);
    if (o->objective == OBJECTIVE_NEXT_TOKEN) return PLIM_OK;
    if (row->two_parts && o->format != DATA_JSONL)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "objective %s reads records with fields (JSON lines, CSV, Parquet), and %s looks like %s; "
            "set data.format",
            row->name, d->inputs.file[0].path, form_name(d->inputs.file[0].form));
    bool refuses = o->overlong == OVERLONG_REFUSE && o->objective == OBJECTIVE_SOURCE_TARGET;
    if (row->two_parts && (o->rows == ROWS_STREAM || (o->overlong != OVERLONG_TRUNCATE && !refuses)))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "objective %s has one row per record; remove data.rows: stream and data.overlong",
                         row->name);
    if (o->packing)
        return plim_fail(err, PLIM_BAD_INPUT, "objective %s has one row per sample; remove data.packing",
                         row->name);
    if (o->messages_field && objective_prefers(o->objective))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "objective %s reads prompts and completions, which may be conversations; remove "
                         "data.messages_field",
                         row->name);
    if (!objective_prefers(o->objective) && (o->prompt_field || o->messages_field))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "objective %s has neither prompts nor messages; remove those fields", row->name);
    if (o->objective == OBJECTIVE_MASKED_TOKENS && d->rules.mask < 0)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "objective masked_tokens needs a tokenizer with [MASK] or <mask>; set data.tokenizer");
    if (o->objective == OBJECTIVE_TOKEN_LABELS && o->nlabels < 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "objective token_labels needs the names of the labels; write data.labels: [O, B-PER, ...]");
    return PLIM_OK;
}

static enum plim_status check_fields(const struct dataset *d, struct plim_error *err)
{
    const struct data_options *o = &d->options;
    if (o->overlong == OVERLONG_REFUSE && o->objective != OBJECTIVE_SOURCE_TARGET)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "data.overlong: refuse is for objective source_target; write truncate, split or drop");
    if (!o->prompt_field != !o->response_field && !objective_prefers(o->objective))
        return plim_fail(err, PLIM_BAD_INPUT, "a pair needs both fields; only '%s' is given",
                         o->prompt_field ? o->prompt_field : o->response_field);
    if (o->prompt_field && o->messages_field)
        return plim_fail(err, PLIM_BAD_INPUT, "fields of pairs and of messages exclude each other; keep one");
    if (o->messages_field && !o->chat)
        return plim_fail(err, PLIM_BAD_INPUT, "messages need a chat template, and none was found");
    if (o->format != DATA_JSONL && (o->prompt_field || o->messages_field))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "fields are for JSON lines, CSV and Parquet, and %s looks like %s; set data.format",
                         d->inputs.file[0].path, form_name(d->inputs.file[0].form));
    if (o->format == DATA_TEXT && o->rows == ROWS_SAMPLES && o->overlong != OVERLONG_SPLIT)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "text files are running text: drop data.rows: samples, or set data.format: lines");
    if (o->rows == ROWS_STREAM && (o->prompt_field || o->messages_field))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "pairs and messages are samples of their own: drop data.rows: stream");
    return PLIM_OK;
}

static enum plim_status open_tokens(struct dataset *d, struct indexed_file *x, const char *path,
                                    struct plim_error *err)
{
    enum plim_status status = token_file_open(path, &x->tokens, err);
    if (status != PLIM_OK) return status;
    const struct token_file_header *h = token_file_header(x->tokens);
    x->length = (int64_t)h->tokens;
    if ((int64_t)h->vocab_size > d->vocab_size) d->vocab_size = (int64_t)h->vocab_size;
    if (d->codec->tokenizer && h->fingerprint != d->codec->fingerprint)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: was made with another tokenizer than %s; make it again, or drop data.tokenizer",
                         path, d->codec->path);
    if (h->flags & (TOKEN_FILE_MASK | TOKEN_FILE_LINES) && d->options.rows == ROWS_AUTO)
        d->options.rows = ROWS_SAMPLES;
    return PLIM_OK;
}

static enum plim_status open_bytes(struct indexed_file *x, const struct input_file *f, struct plim_error *err)
{
    char head[3];
    x->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (x->fd < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: cannot open the data file: %s", f->path, strerror(errno));
    bool marked =
        pread(x->fd, head, sizeof head, 0) == sizeof head && !memcmp(head, "\xef\xbb\xbf", sizeof head);
    x->mark = marked ? (int)sizeof head : 0;
    x->length = f->bytes - x->mark;
    return PLIM_OK;
}

static enum plim_status open_indexed(struct dataset *d, struct plim_error *err)
{
    bool tokens = d->options.format == DATA_TOKENS;
    d->files = calloc((size_t)(unsigned)d->inputs.count, sizeof *d->files);
    d->window = malloc((size_t)d->options.time + 1);
    if (!d->files || !d->window)
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data files were opened");
    for (int i = 0; i < d->inputs.count; i++) d->files[i].fd = -1;
    if (tokens) d->vocab_size = 1;
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < d->inputs.count && status == PLIM_OK; i++)
        status = tokens ? open_tokens(d, &d->files[i], d->inputs.file[i].path, err)
                        : open_bytes(&d->files[i], &d->inputs.file[i], err);
    if (d->options.rows == ROWS_AUTO) d->options.rows = ROWS_STREAM;
    d->by_window = d->options.rows == ROWS_STREAM;
    if (status == PLIM_OK && !d->by_window && d->options.overlong == OVERLONG_SPLIT)
        status =
            plim_fail(err, PLIM_BAD_INPUT,
                      "%s: is a token file, whose samples cannot be split; set data.rows: stream or another "
                      "data.overlong",
                      d->inputs.file[0].path);
    for (int i = 0; i < d->inputs.count && status == PLIM_OK; i++) {
        struct indexed_file *x = &d->files[i];
        x->first = d->samples;
        int64_t targets = x->length > 1 ? x->length - 1 : 0;
        d->samples += d->by_window ? (targets + d->options.time - 1) / d->options.time
                                   : (int64_t)token_file_header(x->tokens)->samples;
    }
    if (status == PLIM_OK && !d->samples)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: holds no sample", d->inputs.file[0].path);
    return status;
}

static bool any_compressed(const struct inputs *in)
{
    for (int i = 0; i < in->count; i++)
        if (in->file[i].compression) return true;
    return false;
}

/* Bytes of plain files need neither tokenizer nor decompression: they are read where they lie. */
static bool is_indexed(const struct dataset *d)
{
    if (d->options.format == DATA_TOKENS) return true;
    return d->options.format == DATA_TEXT && d->options.rows != ROWS_SAMPLES && !d->codec->tokenizer &&
           !any_compressed(&d->inputs);
}

enum plim_status dataset_open(const struct data_options *options, const struct codec *codec,
                              struct dataset **out, struct plim_error *err)
{
    if (options->count < 1)
        return plim_fail(err, PLIM_BAD_INPUT, "no file is given; write e.g. data: {train: [corpus.txt]}");
    struct dataset *d = calloc(1, sizeof *d);
    if (!d) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data files were opened");
    d->options = *options, d->codec = codec, d->vocab_size = codec->vocab_size;
    if (!d->options.field) d->options.field = "text";
    if (!d->options.tools_field) d->options.tools_field = "tools";
    if (!d->options.source_time) d->options.source_time = options->time;
    d->rules = (struct objective_rules){.objective = options->objective,
                                        .codec = codec,
                                        .time = options->time,
                                        .source_time = d->options.source_time,
                                        .pair_time = d->options.pair_time,
                                        .mask = -1,
                                        .start = options->start};
    if (options->objective == OBJECTIVE_MASKED_TOKENS) d->rules.mask = objective_mask_token(codec);
    enum plim_status status = inputs_find(options->paths, options->count, &d->inputs, err);
    if (status == PLIM_OK && options->making) inputs_leave_out(&d->inputs, options->making, ".part");
    if (status == PLIM_OK && !d->inputs.count)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: holds no data file", options->paths[0]);
    if (status == PLIM_OK) status = settle_format(d, err);
    if (status == PLIM_OK) status = check_fields(d, err);
    if (status == PLIM_OK) status = check_objective(d, err);
    if (status == PLIM_OK && is_indexed(d)) status = open_indexed(d, err);
    if (status == PLIM_OK && d->options.rows == ROWS_AUTO)
        d->options.rows = d->options.format == DATA_TEXT ? ROWS_STREAM : ROWS_SAMPLES;
    if (status == PLIM_OK) status = check_sheets(d, err);
    if (status != PLIM_OK) {
        dataset_close(d);
        return status;
    }
    *out = d;
    return PLIM_OK;
}

void dataset_close(struct dataset *d)
{
    if (!d) return;
    for (int i = 0; d->files && i < d->inputs.count; i++) {
        token_file_close(d->files[i].tokens);
        if (d->files[i].fd >= 0) close(d->files[i].fd);
    }
    free(d->files);
    free(d->window);
    inputs_release(&d->inputs);
    free(d);
}

/* The file that holds a sample. */
static int locate(const struct dataset *d, int64_t i)
{
    int low = 0, high = d->inputs.count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (d->files[mid].first <= i)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Where sample i lies in its file, cut to T + 1 tokens. */
static enum plim_status span(struct dataset *d, int file, int64_t i, uint64_t *first, uint64_t *count,
                             struct plim_error *err)
{
    struct indexed_file *x = &d->files[file];
    uint64_t most = (uint64_t)d->options.time + 1;
    if (file != d->last && d->files[d->last].tokens) token_file_rest(d->files[d->last].tokens);
    d->last = file;
    i -= x->first;
    enum plim_status status = PLIM_OK;
    if (d->by_window) {
        *first = (uint64_t)(i * d->options.time);
        *count = (uint64_t)x->length - *first;
    } else {
        status = token_file_sample(x->tokens, (uint64_t)i, first, count, err);
        if (status == PLIM_OK && *count > most && d->options.overlong == OVERLONG_DROP) *count = 0;
    }
    if (*count > most) *count = most;
    return status;
}

/* Have the system read what will be asked for soon. */
static void hint(const struct dataset *d, int file, uint64_t first, uint64_t count)
{
    const struct indexed_file *x = &d->files[file];
    if (x->tokens)
        token_file_hint(x->tokens, first, count);
    else
        posix_fadvise(x->fd, (off_t)first + x->mark, (off_t)count, POSIX_FADV_WILLNEED);
}

enum plim_status dataset_measure(struct dataset *d, int64_t i, int64_t *length, int64_t *targets,
                                 struct plim_error *err)
{
    int file = locate(d, i);
    uint64_t first = 0, count = 0, wanted = 0;
    enum plim_status status = span(d, file, i, &first, &count, err);
    if (status == PLIM_OK && count > 1) {
        wanted = count - 1;
        hint(d, file, first, count);
        if (d->files[file].tokens)
            status = token_file_targets(d->files[file].tokens, first + 1, (size_t)count - 1, &wanted, err);
    }
    *length = (int64_t)count, *targets = (int64_t)wanted;
    return status;
}

enum plim_status dataset_sample(struct dataset *d, int64_t i, int32_t *tokens, int64_t *length,
                                int64_t *targets, struct plim_error *err)
{
    int file = locate(d, i);
    struct indexed_file *x = &d->files[file];
    uint64_t first = 0, count = 0;
    enum plim_status status = span(d, file, i, &first, &count, err);
    *length = (int64_t)count, *targets = 0;
    if (status != PLIM_OK) return status;
    if (x->tokens) {
        status = token_file_read(x->tokens, first, (size_t)count, tokens, err);
    } else {
        first += (uint64_t)x->mark;
        status = file_pread_full(x->fd, d->window, (size_t)count, first, d->inputs.file[file].path, err);
        for (uint64_t t = 0; t < count; t++) tokens[t] = d->window[t];
    }
    for (uint64_t t = 1; status == PLIM_OK && t < count; t++) *targets += token_is_target(tokens[t]);
    return status;
}

static const char *or_usual(const char *name, const char *usual) { return name ? name : usual; }

static void set_preference(const struct dataset *d, struct record_rules *rules)
{
    const struct data_options *o = &d->options;
    bool single = o->objective == OBJECTIVE_KTO;
    rules->field[0] = or_usual(o->prompt_field, "prompt");
    rules->field[1] =
        single ? or_usual(o->response_field, "completion") : or_usual(o->chosen_field, "chosen");
    rules->field[2] = single ? or_usual(o->label_field, "label") : or_usual(o->rejected_field, "rejected");
    rules->part_most[0] = (size_t)o->time + 1;
}

/* Fields and sizes of records that an objective other than the next token takes. */
static void set_parts(const struct dataset *d, struct record_rules *rules)
{
    static const char *const usual[OBJECTIVES][2] = {[OBJECTIVE_TOKEN_LABELS] = {"tokens", "labels"},
                                                     [OBJECTIVE_SENTENCE_PAIRS] = {"text_a", "text_b"},
                                                     [OBJECTIVE_SOURCE_TARGET] = {"source", "target"}};
    const struct data_options *o = &d->options;
    bool source = o->objective == OBJECTIVE_SOURCE_TARGET;
    rules->part_most[0] = (size_t)(source ? o->source_time : o->time), rules->part_most[1] = (size_t)o->time;
    rules->whole_second = source && o->overlong == OVERLONG_REFUSE;
    rules->keep_marks = o->rows == ROWS_SAMPLES && o->overlong == OVERLONG_TRUNCATE;
    rules->labels = o->labels, rules->nlabels = o->nlabels;
    if (!objective_row(o->objective)->two_parts) return;
    rules->most = (size_t)objective_sample_most(&d->rules);
    rules->field[0] = o->first_field ? o->first_field : usual[o->objective][0];
    rules->field[1] = o->second_field ? o->second_field : usual[o->objective][1];
    if (objective_prefers(o->objective)) set_preference(d, rules);
    if (o->objective == OBJECTIVE_TOKEN_LABELS && !o->second_field) rules->other_labels = "ner_tags";
    if (o->objective == OBJECTIVE_SENTENCE_PAIRS)
        rules->score_field = o->score_field ? o->score_field : "score";
}

void dataset_intake_options(const struct dataset *d, struct intake_options *out)
{
    const struct data_options *o = &d->options;
    bool whole = o->rows == ROWS_STREAM || o->overlong == OVERLONG_SPLIT;
    *out = (struct intake_options){.inputs = &d->inputs,
                                   .rules = {.kind = record_kind_of(o),
                                             .field = {o->field, NULL},
                                             .codec = d->codec,
                                             .chat = o->chat,
                                             .now = o->now,
                                             .add_special = o->add_special,
                                             .append_eos = o->append_eos,
                                             .learn_all = o->learn_all,
                                             .most = whole ? 0 : (size_t)o->time + 2},
                                   .skip_bad = o->skip_bad};
    if (out->rules.kind == RECORD_CHAT) out->rules.field[0] = o->messages_field;
    if (o->objective != OBJECTIVE_NEXT_TOKEN) set_parts(d, &out->rules);
    if (out->rules.kind == RECORD_PAIR)
        out->rules.field[0] = o->prompt_field, out->rules.field[1] = o->response_field;
    if (record_renders(&out->rules)) out->rules.tools_field = o->tools_field;
}

static uint64_t add_text(uint64_t hash, const char *text)
{
    return text ? hash64(text, strlen(text), hash) : hash64("", 0, hash + 1);
}

static uint64_t add_objective(uint64_t hash, const struct data_options *o)
{
    int64_t numbers[] = {o->objective, o->source_time, o->start, o->nlabels};
    hash = add_text(add_text(hash64(numbers, sizeof numbers, hash), o->first_field), o->second_field);
    for (int i = 0; i < o->nlabels; i++) hash = add_text(hash, o->labels[i]);
    if (!objective_prefers(o->objective)) return hash;
    if (o->pair_time) hash = hash64(&o->pair_time, sizeof o->pair_time, hash);
    return add_text(add_text(add_text(hash, o->chosen_field), o->rejected_field), o->label_field);
}

uint64_t dataset_identity(const struct dataset *d)
{
    const struct data_options *o = &d->options;
    int64_t numbers[] = {o->append_eos ? d->codec->eos : -1,
                         o->time,
                         o->format,
                         o->rows,
                         o->overlong,
                         o->packing,
                         d->samples,
                         o->add_special,
                         o->append_eos,
                         d->inputs.count,
                         (int64_t)d->codec->fingerprint};
    uint64_t hash = hash64(numbers, sizeof numbers, 0);
    const char *texts[] = {o->field, o->prompt_field, o->response_field, o->messages_field};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) hash = add_text(hash, texts[i]);
    uint64_t chat = o->chat ? chat_template_fingerprint(o->chat) : 0;
    hash = hash64(&chat, sizeof chat, hash);
    if (o->learn_all) hash = add_text(hash, "all");
    if (strcmp(o->tools_field, "tools")) hash = add_text(hash, o->tools_field);
    for (int i = 0; i < d->inputs.count; i++)
        hash = hash64(&d->inputs.file[i].fingerprint, sizeof d->inputs.file[i].fingerprint, hash);
    return o->objective == OBJECTIVE_NEXT_TOKEN ? hash : add_objective(hash, o);
}

size_t dataset_bytes_most(const struct dataset *d)
{
    size_t sum = sizeof *d + (size_t)d->inputs.count * (sizeof(struct input_file) + 256);
    if (!d->files) return sum;
    size_t mapped = 0;
    sum += (size_t)d->inputs.count * sizeof *d->files + (size_t)d->options.time + 1;
    for (int i = 0; i < d->inputs.count; i++) {
        uint64_t bytes = (uint64_t)d->inputs.file[i].bytes;
        if (!d->files[i].tokens) continue;
        sum += token_file_bytes_most(bytes);
        if (token_file_working(bytes) > mapped) mapped = token_file_working(bytes);
    }
    return sum + mapped; /* of one at a time: the file before it rests */
}
