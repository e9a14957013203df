/* cmd_embed.c - plimsoll embed: one vector for each line. */
#include "cli/text_flags.h"
#include "serve/embed_text.h"
#include "serve/vector_file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct embed_flags {
    struct text_flags text;
    const char *out, *format, *field, *pooling;
    bool normalize, normalize_given, verbose;
};

static const char *const formats[] = {"auto", "npy", "jsonl", NULL};
static const char *const poolings[] = {"mean", "cls", NULL};

#define AT(field) offsetof(struct embed_flags, field)
static const struct option_row rows[] = {
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "output file; default: standard output"},
    {"format", 0, OPTION_STRING, AT(format), "KIND",
     "output format; npy is a NumPy file of float32 (auto: npy if FILE ends in .npy, else "
     "jsonl)",
     .choices = formats},
    {"field", 'f', OPTION_STRING, AT(field), "NAME",
     "read the text from this field of JSON lines; default: text for .jsonl files, else lines "
     "are texts"},
    {"pooling", 0, OPTION_STRING, AT(pooling), "KIND",
     "mean of the tokens, or cls, the first token; default: from the model's folder, else mean",
     .choices = poolings},
    {"normalize", 0, OPTION_FLAG, AT(normalize), NULL,
     "scale vectors to length 1; default: from the model's folder, else on",
     .given = OPTION_GIVEN(struct embed_flags, normalize_given)},
    TEXT_ROWS(struct embed_flags, "maximum line length (16MiB)"),
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "report pooling, padding and memory"},
};

static const struct option_example examples[] = {
    {"embed all-MiniLM-L6-v2/ sentences.txt -o vectors.npy", "one vector per line"},
    {"embed ./minilm docs.jsonl --field body --budget 256MiB > vectors.jsonl",
     "embed one field, inside a budget"},
    {NULL, NULL}};

static const struct command command = {
    .name = "embed",
    .summary = "embed texts with an encoder, inside a budget",
    .usage = "[OPTION...] MODEL [FILE...]",
    .description = "MODEL is a sentence-transformers or Hugging Face folder with a BERT, RoBERTa or "
                   "DistilBERT, a checkpoint, or a run folder. FILE are files, folders or globs; .gz and "
                   ".zst are decompressed; none, or -, is standard input. Every line, even an empty one, "
                   "gives one vector, in the order of lines. Lines of similar length are computed together. "
                   "Parameters and the largest batch are planned and committed before computing. Exits with "
                   "3 if they do not fit the budget.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* One run of the command. */
struct embedding {
    const struct embed_flags *flags;
    struct text_model model;
    struct lines *lines;
    struct text_rows *rows;
    struct vector_file *out;
    float *vectors; /* [EMBED_WINDOW][C] */
};

static bool wants_npy(const struct embed_flags *f)
{
    size_t n = f->out ? strlen(f->out) : 0;
    bool ends = n > 4 && !strcmp(f->out + n - 4, ".npy");
    return f->format && strcmp(f->format, "auto") ? !strcmp(f->format, "npy") : ends;
}

/* Reads the folder's settings, then applies the options. */
static enum plim_status find_how(struct embedding *e, const char *what, struct plim_error *err)
{
    const struct embed_flags *f = e->flags;
    struct sentence_config *how = &e->model.how;
    enum plim_status status = text_flags_check("embed", &f->text, err);
    if (status == PLIM_OK) status = text_model_find(&e->model, what, err);
    if (f->pooling) how->pooling = strcmp(f->pooling, "cls") ? POOLING_MEAN : POOLING_FIRST;
    if (f->normalize_given) how->normalize = f->normalize;
    if (status == PLIM_OK && wants_npy(f) && !f->out)
        status =
            plim_fail(err, PLIM_BAD_INPUT, "embed: a NumPy file cannot be written to a pipe; give -o FILE");
    return status;
}

static enum plim_status open_rest(struct embedding *e, struct plim_error *err)
{
    const struct embed_plan *plan = embedder_plan(e->model.embedder);
    int64_t width = embedder_width(e->model.embedder);
    e->vectors = malloc((size_t)(EMBED_WINDOW * width) * sizeof *e->vectors);
    if (!e->vectors) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for vectors");
    enum plim_status status = text_rows_open(&e->model.codec, plan->time, EMBED_WINDOW, &e->rows, err);
    if (status != PLIM_OK) return status;
    return vector_file_open(e->flags->out, wants_npy(e->flags) ? VECTORS_NPY : VECTORS_JSONL, width, &e->out,
                            err);
}

static enum plim_status add_line(struct embedding *e, const struct line *line, const char *field,
                                 struct plim_error *err)
{
    struct json_field f = {.name = field};
    enum plim_status status = text_line(line, &f, field ? 1 : 0, err);
    if (status == PLIM_OK) status = text_rows_add(e->rows, f.at, f.len, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s:%llu", line->path, (unsigned long long)line->number);
    return status;
}

static enum plim_status run_window(struct embedding *e, struct plim_error *err)
{
    int64_t count = text_rows_count(e->rows);
    enum plim_status status = embedder_run(e->model.embedder, text_rows(e->rows), count, e->vectors, err);
    if (status == PLIM_OK) status = vector_file_put(e->out, e->vectors, count, err);
    text_rows_clear(e->rows);
    return status;
}

static enum plim_status run_lines(struct embedding *e, struct plim_error *err)
{
    atomic_int *stop = cli_stop_flag();
    enum plim_status status;
    struct line line;
    while ((status = lines_next(e->lines, &line, err)) == PLIM_OK && line.text) {
        const char *field = e->flags->field ? e->flags->field : line.json ? "text" : NULL;
        if (field && !line.len) continue;
        status = add_line(e, &line, field, err);
        if (status == PLIM_OK && text_rows_full(e->rows)) status = run_window(e, err);
        if (status == PLIM_OK && *stop)
            status = plim_fail(err, PLIM_INTERRUPTED, "embed: stopped; nothing is written");
        if (status != PLIM_OK) return status;
    }
    return status == PLIM_OK && text_rows_count(e->rows) ? run_window(e, err) : status;
}

static void tell(const struct embedding *e)
{
    const struct embed_count *c = embedder_count(e->model.embedder);
    double seconds = c->seconds > 0 ? c->seconds : 1;
    int64_t cut = text_rows_cut(e->rows);
    char how[64];
    fprintf(stderr, "%lld vectors of %lld numbers, %.1f lines/s, %.0f tokens/s\n", (long long)c->rows,
            (long long)embedder_width(e->model.embedder), (double)c->rows / seconds,
            (double)c->tokens / seconds);
    if (cut)
        fprintf(stderr, "%lld lines were longer than %lld tokens and lost their end\n", (long long)cut,
                (long long)embedder_plan(e->model.embedder)->time);
    if (!e->flags->verbose) return;
    snprintf(how, sizeof how, "%s of the tokens%s; ", pooling_name(e->model.how.pooling),
             e->model.how.normalize ? ", normalised" : "");
    text_model_tell(&e->model, how);
}

static enum plim_status embed(struct embedding *e, const struct string_list *args, struct plim_error *err)
{
    enum plim_status status = find_how(e, args->items[0], err);
    if (status == PLIM_OK)
        status = lines_open(args->items + 1, (int)args->count - 1, DATA_AUTO, (size_t)e->flags->text.max_line,
                            &e->lines, err);
    if (status == PLIM_OK) status = text_model_open(&e->model, err);
    if (status == PLIM_OK) status = open_rest(e, err);
    if (status == PLIM_OK) status = run_lines(e, err);
    if (status == PLIM_OK) status = vector_file_commit(e->out, err), e->out = NULL;
    if (status == PLIM_OK && !e->flags->text.quiet) tell(e);
    return status;
}

static void close_all(struct embedding *e)
{
    vector_file_abandon(e->out);
    text_rows_close(e->rows);
    text_model_close(&e->model);
    lines_close(e->lines);
    free(e->vectors);
}

static const struct embed_flags defaults = {
    .text = {.device = "auto", .weights = "as-is", .max_line = 16 << 20}};

static int run(void *flags, const struct string_list *args)
{
    const struct embed_flags *f = flags;
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct embedding e = {.flags = f, .model = text_flags_model("embed", &f->text, &log)};
    struct plim_error err = {0};
    e.model.caller_bytes = embed_bytes;
    int code = cli_code(embed(&e, args, &err), &err);
    close_all(&e);
    return code;
}

const struct subcommand subcommand_embed = {&command, run,     CLI_FLAGS(defaults),
                                            1,        CLI_ANY, "give a model folder, then files"};
