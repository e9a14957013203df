/* cmd_classify.c - plimsoll classify: labels of each text, or of its tokens. */
#include "cli/text_flags.h"
#include "api/labelling.h"
#include "serve/vector_file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct classify_flags {
    struct text_flags text;
    const char *out, *format, *field, *aggregation, *function;
    bool verbose, truncate, top_given, stride_given, ignore_given;
    int64_t top, stride;
    struct string_list ignore;
};

static const char *const formats[] = {"jsonl", "tsv", NULL};

#define AT(field)    offsetof(struct classify_flags, field)
#define GIVEN(field) OPTION_GIVEN(struct classify_flags, field)
static const struct option_row rows[] = {
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "output file; default: standard output"},
    {"format", 0, OPTION_STRING, AT(format), "KIND",
     "output format: jsonl, one object per text; tsv, one line per label with the number of "
     "its text (jsonl)",
     .choices = formats},
    {"field", 'f', OPTION_STRING, AT(field), "NAME",
     "read the text from this field of JSON lines; default: text for .jsonl files, else lines "
     "are texts. The field text_pair has the second of two texts"},
    {"aggregation", 'a', OPTION_STRING, AT(aggregation), "HOW",
     "token labels: none keeps single tokens; simple joins adjacent tokens with the same "
     "label; first, average and max first choose one label per word (none)",
     .choices = aggregation_names},
    {"ignore-label", 0, OPTION_STRING_LIST, AT(ignore), "NAME",
     "token labels: omit this label; '' omits none (O)", .given = GIVEN(ignore_given)},
    {"stride", 0, OPTION_INT64, AT(stride), "N",
     "token labels: read long texts in windows that overlap by N tokens; requires an "
     "aggregation",
     .given = GIVEN(stride_given)},
    {"truncate", 0, OPTION_FLAG, AT(truncate), NULL, "truncate long texts instead of refusing them"},
    {"top-k", 0, OPTION_INT64, AT(top), "N", "text labels: list the N best; 0: all",
     .given = GIVEN(top_given)},
    {"function", 0, OPTION_STRING, AT(function), "NAME",
     "text labels: turn logits into scores with sigmoid, softmax or none; default: softmax, "
     "but sigmoid for one label and for multi_label_classification, and none for regression",
     .choices = label_function_names},
    TEXT_ROWS(struct classify_flags, "maximum line length (64KiB)"),
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "report padding and memory"},
};

static const struct option_example examples[] = {
    {"classify ./ner notes.txt --aggregation simple", "names and places, with their positions"},
    {"classify ./sentiment reviews.jsonl --field review --top-k 3 --budget 512MiB", "the three best labels"},
    {NULL, NULL}};

static const struct command command = {
    .name = "classify",
    .summary = "label texts or their tokens with an encoder, inside a budget",
    .usage = "[OPTION...] MODEL [FILE...]",
    .description = "MODEL is a folder with a BERT, RoBERTa or DistilBERT for token or sequence "
                   "classification, a checkpoint, or a run folder. FILE are files, folders or globs; .gz "
                   "and .zst are decompressed; none, or -, is standard input. Every line gives one line of "
                   "output, in the same order: {\"entities\": [...]} with start and end in characters if "
                   "tokens have labels, {\"label\": ..., \"score\": ...} if texts have. Results equal those "
                   "of transformers' pipelines. Exits with 3 if the model does not fit the budget.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

enum { FLUSH = 32 << 10 };

/* One run of the command. */
struct classifying {
    const struct classify_flags *flags;
    struct text_model model;
    struct labelling *labelling;
    const struct classifier *classifier;
    enum aggregation aggregation;
    enum label_function function;
    struct lines *lines;
    int64_t written;
    struct strbuf line;
    struct vector_file *out;
};

static int index_of(const char *const *names, const char *name)
{
    int i = 0;
    while (name && names[i] && strcmp(names[i], name)) i++;
    return name ? i : 0;
}

static enum plim_status read_flags(struct classifying *c, struct plim_error *err)
{
    const struct classify_flags *f = c->flags;
    c->aggregation = (enum aggregation)index_of(aggregation_names, f->aggregation);
    c->function = (enum label_function)index_of(label_function_names, f->function);
    if (f->stride_given && f->stride < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "classify: option '--stride': %lld; write 0 or more, e.g. 128",
                         (long long)f->stride);
    if (f->stride_given && !c->aggregation)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "classify: option '--stride': tokens in two windows would be reported twice; give "
                         "--aggregation simple, first, average or max");
    if (f->top_given && f->top < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "classify: option '--top-k': %lld; write 0 for all, or more",
                         (long long)f->top);
    return PLIM_OK;
}

/* Options for one kind of labels are refused for the other: they would change nothing. */
static enum plim_status check_kind(const struct classifying *c, struct plim_error *err)
{
    const struct classify_flags *f = c->flags;
    bool tokens = classifier_of_tokens(c->classifier);
    const char *wrong = tokens ? (f->top_given  ? "top-k"
                                  : f->function ? "function"
                                                : NULL)
                               : (f->aggregation    ? "aggregation"
                                  : f->ignore_given ? "ignore-label"
                                  : f->stride_given ? "stride"
                                                    : NULL);
    if (!wrong) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "classify: option '--%s' is for labels of %s; this model labels %s",
                     wrong, tokens ? "whole texts" : "tokens", tokens ? "tokens" : "whole texts");
}

/* --- output --------------------------------------------------------------------------------------------------- */

static enum plim_status flush(struct classifying *c, struct plim_error *err)
{
    enum plim_status status = strbuf_status(&c->line, err);
    if (status == PLIM_OK) status = vector_file_text(c->out, c->line.data, c->line.len, err);
    strbuf_clear(&c->line);
    return status;
}

static enum plim_status write_entities(void *arg, const struct entity_list *list, struct plim_error *err)
{
    struct classifying *c = arg;
    bool json = !c->flags->format || strcmp(c->flags->format, "tsv") != 0;
    enum plim_status status = PLIM_OK;
    struct json_writer w;
    json_writer_init(&w, &c->line, 0);
    if (json) json_begin_object(&w, NULL), json_begin_array(&w, "entities");
    for (size_t i = 0; i < list->count && status == PLIM_OK; i++) {
        const struct entity *e = &list->items[i];
        if (json)
            classifier_write_entity(list, i, c->aggregation, &w);
        else
            strbuf_addf(&c->line, "%lld\t%u\t%u\t%s\t%.6f\t", (long long)c->written + 1, e->begin, e->end,
                        e->name, (double)e->score);
        if (!json) json_quote(&c->line, strbuf_text(&list->words) + e->word_at, e->word_len);
        if (!json) strbuf_addc(&c->line, '\n');
        if (c->line.len > FLUSH) status = flush(c, err);
    }
    if (json) json_end_array(&w), json_end_object(&w), strbuf_addc(&c->line, '\n');
    c->written++;
    return status == PLIM_OK ? flush(c, err) : status;
}

static void write_tsv(struct classifying *c, const float *scores)
{
    size_t best = classifier_best(c->classifier, scores), n = (size_t)c->classifier->spec->num_labels;
    for (size_t i = 0; i < n; i++)
        if (c->flags->top_given || i == best)
            strbuf_addf(&c->line, "%lld\t%s\t%.6f\n", (long long)c->written + 1,
                        c->classifier->names.list.items[i], (double)scores[i]);
}

static void write_json(struct classifying *c, const float *scores)
{
    size_t best = classifier_best(c->classifier, scores);
    struct json_writer w;
    json_writer_init(&w, &c->line, 0);
    json_begin_object(&w, NULL);
    if (c->flags->top_given) {
        classifier_write_labels(c->classifier, scores, c->flags->top, "labels", &w);
    } else {
        json_str(&w, "label", c->classifier->names.list.items[best]);
        json_float(&w, "score", scores[best]);
    }
    json_end_object(&w);
    strbuf_addc(&c->line, '\n');
}

static enum plim_status write_labels(void *arg, const float *scores, struct plim_error *err)
{
    struct classifying *c = arg;
    bool tsv = c->flags->format && !strcmp(c->flags->format, "tsv");
    (tsv ? write_tsv : write_json)(c, scores);
    c->written++;
    return flush(c, err);
}

/* --- texts ---------------------------------------------------------------------------------------------------- */

static enum plim_status add_line(struct classifying *c, const struct line *line, const char *field,
                                 struct plim_error *err)
{
    struct json_field f[2] = {{.name = field}, {.name = "text_pair"}};
    enum plim_status status = text_line(line, f, field ? 2 : 0, err);
    struct label_input in = {f[0].at, f[1].at, f[0].len, f[1].len};
    if (status == PLIM_OK) status = labelling_add(c->labelling, &in, err);
    if (status == PLIM_BAD_INPUT || status == PLIM_NO_FIT)
        plim_error_prefix(err, "%s:%llu", line->path, (unsigned long long)line->number);
    return status;
}

static enum plim_status run_lines(struct classifying *c, struct plim_error *err)
{
    atomic_int *stop = cli_stop_flag();
    enum plim_status status;
    struct line line;
    while ((status = lines_next(c->lines, &line, err)) == PLIM_OK && line.text) {
        const char *field = c->flags->field ? c->flags->field : line.json ? "text" : NULL;
        if (field && !line.len) continue;
        status = add_line(c, &line, field, err);
        if (status == PLIM_OK && *stop)
            status =
                plim_fail(err, PLIM_INTERRUPTED, "classify: stopped after %lld texts", (long long)c->written);
        if (status != PLIM_OK) return status;
    }
    return status == PLIM_OK ? labelling_end(c->labelling, err) : status;
}

/* --- the whole ------------------------------------------------------------------------------------------------ */

static enum plim_status open_rest(struct classifying *c, struct plim_error *err)
{
    const struct classify_flags *f = c->flags;
    static const struct string_list none;
    bool all = f->ignore.count == 1 && !f->ignore.items[0][0];
    enum plim_status status = labelling_open(&c->model, &c->labelling, err);
    if (status != PLIM_OK) return status;
    c->classifier = labelling_classifier(c->labelling);
    status = check_kind(c, err);
    if (status != PLIM_OK) return status;
    struct labelling_how how = {.aggregation = c->aggregation,
                                .function = c->function,
                                .stride = f->stride_given ? f->stride : -1,
                                .truncate = f->truncate,
                                .ignored = all               ? &none
                                           : f->ignore_given ? &f->ignore
                                                             : NULL,
                                .entities = write_entities,
                                .scores = write_labels,
                                .arg = c};
    labelling_begin(c->labelling, &how);
    return vector_file_open(f->out, VECTORS_JSONL, 0, &c->out, err);
}

static void tell(const struct classifying *c)
{
    const struct embed_count *n = embedder_count(c->model.embedder);
    double seconds = n->seconds > 0 ? n->seconds : 1;
    fprintf(stderr, "%lld texts, %.1f texts/s, %.0f tokens/s\n", (long long)c->written,
            (double)c->written / seconds, (double)n->tokens / seconds);
    int64_t cut = labelling_cut(c->labelling);
    if (cut)
        fprintf(stderr, "%lld texts were longer than %lld tokens and lost their end\n", (long long)cut,
                (long long)embedder_plan(c->model.embedder)->time);
    if (c->flags->verbose) text_model_tell(&c->model, "");
}

static enum plim_status classify(struct classifying *c, const struct string_list *args,
                                 struct plim_error *err)
{
    enum plim_status status = read_flags(c, err);
    if (status == PLIM_OK) status = text_flags_check("classify", &c->flags->text, err);
    if (status == PLIM_OK) status = text_model_find(&c->model, args->items[0], err);
    if (status == PLIM_OK)
        status = lines_open(args->items + 1, (int)args->count - 1, DATA_AUTO, (size_t)c->flags->text.max_line,
                            &c->lines, err);
    if (status == PLIM_OK) status = text_model_open(&c->model, err);
    if (status == PLIM_OK) status = open_rest(c, err);
    if (status == PLIM_OK) status = run_lines(c, err);
    if (status == PLIM_OK) status = vector_file_commit(c->out, err), c->out = NULL;
    if (status == PLIM_OK && !c->flags->text.quiet) tell(c);
    return status;
}

static void close_all(struct classifying *c)
{
    vector_file_abandon(c->out);
    labelling_close(c->labelling);
    strbuf_release(&c->line);
    text_model_close(&c->model);
    lines_close(c->lines);
}

static const struct classify_flags defaults = {
    .text = {.device = "auto", .weights = "as-is", .max_line = 64 << 10}};

static int run(void *flags, const struct string_list *args)
{
    const struct classify_flags *f = flags;
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct classifying c = {.flags = f, .model = text_flags_model("classify", &f->text, &log)};
    struct plim_error err = {0};
    c.model.labels = true, c.model.caller_bytes = labelling_bytes;
    int code = cli_code(classify(&c, args, &err), &err);
    close_all(&c);
    return code;
}

const struct subcommand subcommand_classify = {&command, run,     CLI_FLAGS(defaults),
                                               1,        CLI_ANY, "give a model folder, then files"};
