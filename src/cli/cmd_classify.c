/* cmd_classify.c - plimsoll classify: labels of each text, or of its tokens. */
#include "cli/text_model.h"
#include "base/minmax.h"
#include "serve/classify.h"
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
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "where labels go; default: standard output"},
    {"format", 0, OPTION_STRING, AT(format), "KIND",
     "jsonl: an object for each text; tsv: a line for each label, with the number of its text (jsonl)",
     .choices = formats},
    {"field", 'f', OPTION_STRING, AT(field), "NAME",
     "lines are JSON, and this field has the text; default: of .jsonl files text, else lines are texts. A "
     "field text_pair has the second one of two texts"},
    {"aggregation", 'a', OPTION_STRING, AT(aggregation), "HOW",
     "labels of tokens: none leaves tokens as they are; simple joins neighbours with one label; first, "
     "average "
     "and max decide for whole words before (none)",
     .choices = aggregation_names},
    {"ignore-label", 0, OPTION_STRING_LIST, AT(ignore), "NAME",
     "labels of tokens: leave it out; may be repeated, and '' leaves nothing out (O)",
     .given = GIVEN(ignore_given)},
    {"stride", 0, OPTION_INT64, AT(stride), "N",
     "labels of tokens: read long texts in windows that share N tokens; wants an aggregation",
     .given = GIVEN(stride_given), .expected = "0 or more, e.g. 128", .most = INT64_MAX},
    {"truncate", 0, OPTION_FLAG, AT(truncate), NULL, "cut off what does not fit; default: refuse long texts"},
    {"top-k", 0, OPTION_INT64, AT(top), "N", "labels of texts: the N best as a list; 0: all of them",
     .given = GIVEN(top_given), .expected = "0 for all, or more", .most = INT64_MAX},
    {"function", 0, OPTION_STRING, AT(function), "NAME",
     "labels of texts: what makes scores of logits: sigmoid, softmax, none; default: softmax, but sigmoid "
     "for "
     "one label and for multi_label_classification, and none for regression",
     .choices = label_function_names},
    TEXT_ROWS(struct classify_flags, "longest line that is accepted (64KiB)"),
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "tell of padding and memory"},
};

static const struct option_example examples[] = {
    {"classify ./ner notes.txt --aggregation simple", "names and places, with where they are"},
    {"classify ./sentiment reviews.jsonl --field review --top-k 3 --budget 512MiB", "the three best labels"},
    {NULL, NULL}};

static const struct command command = {
    .name = "classify",
    .summary = "label texts or their tokens with an encoder, inside a budget",
    .usage = "[OPTION...] MODEL [FILE...]",
    .description =
        "MODEL is a folder of a BERT, RoBERTa or DistilBERT for token or sequence classification, a "
        "checkpoint, "
        "or a run folder. FILE are files, folders or globs; .gz and .zst are decompressed; none, or -, is "
        "standard input. Every line gives one line, in the same order: {\"entities\": [...]} where tokens "
        "have "
        "labels, with start and end in characters, and {\"label\": ..., \"score\": ...} where texts have. "
        "Results "
        "are those of transformers' pipelines. What does not fit the budget exits with 3.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* Texts are read until they have so many tokens together, and then computed. */
enum { WINDOW = 512, WINDOW_TOKENS = 8192, TEXT_TOKENS = 16384, FLUSH = 32 << 10 };

/* One run of the command. */
struct classifying {
    const struct classify_flags *flags;
    struct text_model model;
    struct classifier classifier;
    enum aggregation aggregation;
    enum label_function function;
    struct label_form form;
    struct lines *lines;
    struct encoder *encoder;
    struct label_text texts[WINDOW];
    int count;
    size_t tokens; /* of all rows of the window */
    int64_t written, cut;
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
    if (f->stride_given && !c->aggregation)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "classify: option '--stride': tokens of two windows would be told twice; give "
                         "--aggregation simple, first, average or max");
    return PLIM_OK;
}

/* Options for one kind of labels are refused for the other: they would change nothing. */
static enum plim_status check_kind(const struct classifying *c, struct plim_error *err)
{
    const struct classify_flags *f = c->flags;
    bool tokens = classifier_of_tokens(&c->classifier);
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

/* Tokens that one text may have, where the model takes `length` at once. */
static int64_t text_tokens(const struct text_flags *f, int64_t length)
{
    int64_t bytes = (int64_t)f->max_line, usual = bytes < TEXT_TOKENS ? bytes : TEXT_TOKENS;
    return max64(max64(usual, bytes / 4), 4 * length);
}

/* Host bytes beside the embedder's: tokens and logits of a window, what encodes a text, and the entities of one. Windows of a long
 * text double its tokens at most, and lists grow by a half. */
static int64_t own_bytes(const struct text_model *m, const struct model_spec *spec, int64_t length)
{
    int64_t one = text_tokens(m->flags, length), all = WINDOW_TOKENS + one,
            longest = (int64_t)m->flags->max_line;
    int64_t each = 2 * (int64_t)(4 * sizeof(int32_t) + sizeof(struct token_span)) + 2 * spec->num_labels * 4;
    int64_t entities = 2 * (int64_t)sizeof(struct entity) + 32;
    return all * each + 2 * WINDOW * (int64_t)sizeof(struct label_text) + (one + 3 * length) * entities +
           4 * longest + (int64_t)encoder_bytes_most(m->codec.tokenizer, (size_t)longest) +
           ENCODER_LIMIT(longest) + (256 << 10);
}

/* --- output --------------------------------------------------------------------------------------------------- */

static enum plim_status flush(struct classifying *c, struct plim_error *err)
{
    enum plim_status status = strbuf_status(&c->line, err);
    if (status == PLIM_OK) status = vector_file_text(c->out, c->line.data, c->line.len, err);
    strbuf_clear(&c->line);
    return status;
}

static enum plim_status write_entities(struct classifying *c, const struct entity_list *list,
                                       struct plim_error *err)
{
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
    return status;
}

static void write_tsv(struct classifying *c, const float *scores)
{
    size_t best = classifier_best(&c->classifier, scores), n = (size_t)c->classifier.spec->num_labels;
    for (size_t i = 0; i < n; i++)
        if (c->flags->top_given || i == best)
            strbuf_addf(&c->line, "%lld\t%s\t%.6f\n", (long long)c->written + 1,
                        c->classifier.names.list.items[i], (double)scores[i]);
}

static void write_labels(struct classifying *c, const float *scores)
{
    size_t best = classifier_best(&c->classifier, scores);
    if (c->flags->format && !strcmp(c->flags->format, "tsv")) return write_tsv(c, scores);
    struct json_writer w = json_object(&c->line, 0);
    if (c->flags->top_given) {
        classifier_write_labels(&c->classifier, scores, c->flags->top, &w);
    } else {
        json_str(&w, "label", c->classifier.names.list.items[best]);
        json_float(&w, "score", scores[best]);
    }
    json_end_object(&w);
    strbuf_addc(&c->line, '\n');
}

/* --- a window ------------------------------------------------------------------------------------------------- */

static enum plim_status tell_entities(struct classifying *c, const struct label_text *t, float *logits,
                                      struct plim_error *err)
{
    bool all = c->flags->ignore.count == 1 && !c->flags->ignore.items[0][0];
    static const struct string_list none;
    struct entity_how how = classifier_how(&c->classifier, c->aggregation,
                                           all                      ? &none
                                           : c->flags->ignore_given ? &c->flags->ignore
                                                                    : NULL);
    struct entity_list list = {0};
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < t->row_count && status == PLIM_OK; i++) {
        status = entities_of_row(&list, &how, t, &t->rows[i], logits, err);
        logits += t->rows[i].count * how.nlabels;
    }
    if (t->row_count > 1) entities_overlapping(&list);
    if (status == PLIM_OK) status = write_entities(c, &list, err);
    entity_list_release(&list);
    return status;
}

static enum plim_status tell_window(struct classifying *c, float *logits, struct plim_error *err)
{
    size_t width = (size_t)embedder_width(c->model.embedder);
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < c->count && status == PLIM_OK; i++, c->written++) {
        const struct label_text *t = &c->texts[i];
        size_t numbers = width;
        c->cut += t->cut;
        if (embedder_per_token(c->model.embedder)) {
            numbers = t->ids.count * width;
            status = tell_entities(c, t, logits, err);
        } else {
            classifier_scores(&c->classifier, c->function, logits);
            write_labels(c, logits);
        }
        logits += numbers;
        if (status == PLIM_OK) status = flush(c, err);
    }
    return status;
}

static enum plim_status run_window(struct classifying *c, struct plim_error *err)
{
    int64_t nrows = 0, at = 0, width = embedder_width(c->model.embedder);
    for (int i = 0; i < c->count; i++) nrows += (int64_t)c->texts[i].row_count;
    int64_t results = embedder_per_token(c->model.embedder) ? (int64_t)c->tokens : nrows;
    struct embed_row *list = malloc((size_t)(nrows + 1) * sizeof *list);
    float *logits = malloc((size_t)(results * width + 1) * sizeof *logits);
    enum plim_status status = PLIM_OK;
    if (!list || !logits) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for the texts of a batch");
    for (int i = 0; i < c->count && status == PLIM_OK; i++)
        for (size_t k = 0; k < c->texts[i].row_count; k++) {
            const struct label_row *r = &c->texts[i].rows[k];
            list[at++] = (struct embed_row){c->texts[i].ids.id + r->first_id, (int64_t)r->count, r->second};
        }
    if (status == PLIM_OK) status = embedder_run(c->model.embedder, list, nrows, logits, err);
    if (status == PLIM_OK) status = tell_window(c, logits, err);
    for (int i = 0; i < c->count; i++) label_text_release(&c->texts[i]);
    c->count = 0, c->tokens = 0;
    free(list);
    free(logits);
    return status;
}

static enum plim_status add_line(struct classifying *c, const struct line *line, const char *field,
                                 struct plim_error *err)
{
    struct json_field f[2] = {{.name = field}, {.name = "text_pair"}};
    struct label_text *t = &c->texts[c->count];
    enum plim_status status = text_model_line(line, f, field ? 2 : 0, err);
    struct label_input in = {f[0].at, f[1].at, f[0].len, f[1].len};
    if (status == PLIM_OK)
        status = label_text_read(t, c->encoder, c->model.codec.tokenizer, &c->form, &in, err);
    if (status != PLIM_OK) {
        label_text_release(t);
        plim_error_prefix(err, "%s:%llu", line->path, (unsigned long long)line->number);
        return status;
    }
    c->count++, c->tokens += t->ids.count;
    return PLIM_OK;
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
        if (status == PLIM_OK && (c->count == WINDOW || c->tokens >= WINDOW_TOKENS))
            status = run_window(c, err);
        if (status == PLIM_OK && *stop)
            status =
                plim_fail(err, PLIM_INTERRUPTED, "classify: stopped after %lld texts", (long long)c->written);
        if (status != PLIM_OK) return status;
    }
    return status == PLIM_OK && c->count ? run_window(c, err) : status;
}

/* --- the whole ------------------------------------------------------------------------------------------------ */

static enum plim_status open_rest(struct classifying *c, struct plim_error *err)
{
    const struct embed_plan *plan = embedder_plan(c->model.embedder);
    const struct classify_flags *f = c->flags;
    enum plim_status status = classifier_open(
        &c->classifier, c->model.how.path, embedder_spec(c->model.embedder), c->model.codec.tokenizer, err);
    if (status == PLIM_OK) status = check_kind(c, err);
    if (status == PLIM_OK) status = encoder_open(c->model.codec.tokenizer, &c->encoder, err);
    if (status != PLIM_OK) return status;
    encoder_limit(c->encoder, (size_t)ENCODER_LIMIT(f->text.max_line));
    c->form = (struct label_form){.time = plan->time,
                                  .most = text_tokens(&f->text, plan->time),
                                  .stride = f->stride_given ? f->stride : -1,
                                  .truncate = f->truncate,
                                  .spans = classifier_of_tokens(&c->classifier)};
    return vector_file_open(f->out, VECTORS_JSONL, 0, &c->out, err);
}

static void tell(const struct classifying *c)
{
    const struct embed_count *n = embedder_count(c->model.embedder);
    double seconds = n->seconds > 0 ? n->seconds : 1;
    fprintf(stderr, "%lld texts, %.1f texts/s, %.0f tokens/s\n", (long long)c->written,
            (double)c->written / seconds, (double)n->tokens / seconds);
    if (c->cut)
        fprintf(stderr, "%lld texts were longer than %lld tokens and lost their end\n", (long long)c->cut,
                (long long)embedder_plan(c->model.embedder)->time);
    if (c->flags->verbose) text_model_tell(&c->model, "");
}

static enum plim_status classify(struct classifying *c, const struct string_list *args,
                                 struct plim_error *err)
{
    enum plim_status status = read_flags(c, err);
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
    for (int i = 0; i < c->count; i++) label_text_release(&c->texts[i]);
    encoder_close(c->encoder);
    strbuf_release(&c->line);
    classifier_close(&c->classifier);
    text_model_close(&c->model);
    lines_close(c->lines);
    free(c);
}

static const struct classify_flags defaults = {.text = {.model = MODEL_FLAGS, .max_line = 64 << 10}};

static int run(void *flags, const struct string_list *args)
{
    const struct classify_flags *f = flags;
    struct classifying *c = calloc(1, sizeof *c);
    struct plim_error err = {0};
    if (!c) return cli_error((plim_fail(&err, PLIM_NO_MEMORY, "classify: out of memory"), &err));
    c->flags = f;
    c->model = (struct text_model){
        .command = "classify", .flags = &f->text, .labels = true, .caller_bytes = own_bytes};
    int code = cli_code(classify(c, args, &err), &err);
    close_all(c);
    return code;
}

const struct subcommand subcommand_classify = {&command, run,     CLI_FLAGS(defaults),
                                               1,        CLI_ANY, "give a model folder, then files"};
