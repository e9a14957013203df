/* cmd_embed.c - plimsoll embed: one vector for each line. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/file.h"
#include "data/inputs.h"
#include "data/json_fields.h"
#include "data/lines.h"
#include "device/registry.h"
#include "mem/os.h"
#include "model/hf.h"
#include "serve/embed_text.h"
#include "serve/vector_file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct embed_flags {
    const char *out, *format, *field, *pooling, *tokenizer, *device, *weights;
    bool normalize, normalize_given, exact, verbose, quiet, budget_given;
    int64_t batch, max_length;
    uint64_t budget, max_line;
    int threads;
};

static const char *const formats[] = {"auto", "npy", "jsonl", NULL};
static const char *const poolings[] = {"mean", "cls", NULL};
static const char *const kinds[] = {WEIGHTS_KIND_NAMES, NULL};

#define AT(field) offsetof(struct embed_flags, field)
static const struct option_row rows[] = {
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "where vectors go; default: standard output"},
    {"format", 0, OPTION_STRING, AT(format), "KIND",
     "of the vectors; npy is a NumPy file of float32 (auto: npy when FILE ends so, else jsonl)",
     .choices = formats},
    {"field", 'f', OPTION_STRING, AT(field), "NAME",
     "lines are JSON, and this field has the text; default: of .jsonl files text, else lines are texts"},
    {"pooling", 0, OPTION_STRING, AT(pooling), "KIND",
     "mean of the tokens or cls, the first; default: as the model's folder says, else mean",
     .choices = poolings},
    {"normalize", 0, OPTION_FLAG, AT(normalize), NULL,
     "vectors of length 1, or with --no-normalize as they are; default: as the model's folder says, else on",
     .given = OPTION_GIVEN(struct embed_flags, normalize_given)},
    {"max-length", 0, OPTION_INT64, AT(max_length), "N",
     "tokens of a line that are read, marks included; default: as the model's folder says, else its "
     "positions"},
    {"exact", 0, OPTION_FLAG, AT(exact), NULL,
     "multiply fp32 as it is; default: where a CPU multiplies bf16 faster, in two bf16 parts, which changes "
     "a "
     "vector by about 0.00002 of its length"},
    {"batch", 0, OPTION_INT64, AT(batch), "N",
     "lines computed together at most; default: as suits their length"},
    {"tokenizer", 't', OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model or a folder with one; default: the model's own"},
    {"max-line", 0, OPTION_BYTES, AT(max_line), "BYTES", "longest line that is accepted (16MiB)"},
    {"budget", 'b', OPTION_BYTES, AT(budget), "BYTES",
     "memory budget, e.g. 256MiB; default: none, or in a container what its limit leaves",
     .given = OPTION_GIVEN(struct embed_flags, budget_given)},
    {"device", 0, OPTION_STRING, AT(device), "NAME",
     "cpu, cuda, cuda:N, or auto: a GPU that works and leaves room in the budget, else the CPU (auto)"},
    {"threads", 0, OPTION_INT, AT(threads), "N", "CPU threads; 0: one per core (0)"},
    {"weights", 0, OPTION_STRING, AT(weights), "KIND",
     "as-is, or in blocks of 8 or 4 bits made while they are read: q8, q4 (as-is)", .choices = kinds},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, "tell how vectors are made, and of padding and memory"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no notes, no summary"},
};

static const struct option_example examples[] = {
    {"embed all-MiniLM-L6-v2/ sentences.txt -o vectors.npy", "a vector for each line"},
    {"embed ./minilm docs.jsonl --field body --budget 256MiB > vectors.jsonl", "of a field, inside a budget"},
    {NULL, NULL}};

static const struct command command = {
    .name = "embed",
    .summary = "make vectors of texts with an encoder, inside a budget",
    .usage = "[OPTION...] MODEL [FILE...]",
    .description =
        "MODEL is a folder of sentence-transformers or of Hugging Face with a BERT, RoBERTa or DistilBERT, a "
        "checkpoint, or a run folder. FILE are files, folders or globs; .gz and .zst are decompressed; none, "
        "or -, is "
        "standard input. Every line gives one vector, an empty one too, and vectors come in the order of "
        "lines. Lines of similar length are computed together. Parameters and the largest batch are planned "
        "and committed before anything is computed; what does not fit the budget exits with 3.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* Lines that are sorted by length before they are cut into batches. */
#define WINDOW 1024

/* One run of the command. */
struct embedding {
    const struct embed_flags *flags;
    struct device_line line;
    struct sentence_config how;
    char dir[CLI_PATH];
    struct codec codec;
    struct device *device;
    struct embedder *embedder;
    struct lines *lines;
    struct text_rows *rows;
    struct vector_file *out;
    float *vectors; /* [WINDOW][C] */
};

static enum plim_status check_flags(const struct embed_flags *f, struct plim_error *err)
{
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "embed: option '--device': '%s' is no device; write auto, cpu, cuda or cuda:1",
                         f->device);
    if (f->budget_given && !f->budget)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "embed: option '--budget': 0 bytes hold nothing; write e.g. 256MiB");
    if (f->threads < 0 || f->threads > 1024)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "embed: option '--threads': %d; write 0 for one per core, or up to 1024",
                         f->threads);
    if (f->batch < 0 || f->batch > 65536)
        return plim_fail(err, PLIM_BAD_INPUT, "embed: option '--batch': %lld; write 1 to 65536",
                         (long long)f->batch);
    if (f->max_length < 0 || f->max_length > 1 << 24)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "embed: option '--max-length': %lld makes no sense; write e.g. 256",
                         (long long)f->max_length);
    if (f->max_line < 64 || f->max_line > (uint64_t)1 << 40)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "embed: option '--max-line': %llu makes no sense; write e.g. 16MiB",
                         (unsigned long long)f->max_line);
    return PLIM_OK;
}

static bool wants_npy(const struct embed_flags *f)
{
    size_t n = f->out ? strlen(f->out) : 0;
    bool ends = n > 4 && !strcmp(f->out + n - 4, ".npy");
    return f->format && strcmp(f->format, "auto") ? !strcmp(f->format, "npy") : ends;
}

/* What the folder says, and then what the options say. */
static enum plim_status find_how(struct embedding *e, const char *what, struct plim_error *err)
{
    const struct embed_flags *f = e->flags;
    enum plim_status status = cli_find_model(what, e->dir, sizeof e->dir, err);
    if (status == PLIM_OK) status = sentence_config_load(e->dir, &e->how, err);
    if (f->pooling) e->how.pooling = strcmp(f->pooling, "cls") ? POOLING_MEAN : POOLING_FIRST;
    if (f->normalize_given) e->how.normalize = f->normalize;
    if (f->max_length) e->how.max_length = f->max_length;
    if (status == PLIM_OK && wants_npy(f) && !f->out)
        status = plim_fail(err, PLIM_BAD_INPUT, "embed: a NumPy file is not written to a pipe; give -o FILE");
    return status;
}

static enum plim_status open_codec(struct embedding *e, struct plim_error *err)
{
    char path[CLI_PATH + 32];
    const char *which = cli_tokenizer_of(e->flags->tokenizer, e->how.path, path, sizeof path);
    if (!which)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: there is no tokenizer.json or SentencePiece model; give --tokenizer",
                         e->how.path);
    enum plim_status status = codec_open_within(which, cli_host_line(&e->line), &e->codec, err);
    if (status == PLIM_OK && !e->codec.tokenizer)
        status =
            plim_fail(err, PLIM_BAD_INPUT, "embed: option '--tokenizer': encoders have no byte tokenizer");
    return status;
}

/* Host bytes beside the embedder's: a window's tokens and vectors, a line. */
static int64_t own_bytes(const struct embedding *e, const struct model_spec *spec, int64_t length)
{
    return text_rows_bytes(&e->codec, length, WINDOW) + WINDOW * spec->hidden_size * (int64_t)sizeof(float) +
           (128 << 10);
}

static enum plim_status open_embedder(struct embedding *e, struct plim_error *err)
{
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct embed_room room = {.how = e->how,
                              .exact = e->flags->exact,
                              .weights = weights_kind_parse(e->flags->weights),
                              .rows = e->flags->batch,
                              .budget = cli_device_line(&e->line, &e->device->facts),
                              .log = e->flags->quiet ? NULL : &log};
    struct model_spec spec;
    enum plim_status status = hf_config_load(e->how.path, &spec, err);
    if (status == PLIM_OK && e->flags->max_length > spec.max_positions)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "embed: option '--max-length': %lld is beyond the model's %lld positions",
                           (long long)e->flags->max_length, (long long)spec.max_positions);
    if (status == PLIM_OK && model_is_encoder(&spec) && spec.vocab_size < e->codec.vocab_size)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s: the tokenizer has %lld tokens, the model only %lld; give its own",
                           e->codec.path, (long long)e->codec.vocab_size, (long long)spec.vocab_size);
    if (status != PLIM_OK) return status;
    room.beside = own_bytes(e, &spec, e->how.max_length ? e->how.max_length : spec.max_positions);
    return embedder_open(&room, e->device, &e->embedder, err);
}

/* Where nobody asked for the card, one without room is left for the CPU. */
static enum plim_status open_model(struct embedding *e, struct plim_error *err)
{
    const struct embed_flags *f = e->flags;
    struct device_wish wish = {"embed", f->device, "--device cpu", f->threads, f->budget};
    enum plim_status status = cli_open_device_as(&wish, &e->device, err);
    if (status == PLIM_OK) status = cli_check_line("embed", &e->line, &e->device->facts, err);
    if (status == PLIM_OK) status = open_embedder(e, err);
    const struct backend *other = backend_fallback();
    bool chosen = e->device && !strcmp(f->device, "auto") && strcmp(e->device->ops->name, other->name);
    if (!chosen || (status != PLIM_NO_FIT && status != PLIM_NO_MEMORY)) return status;
    cli_say("using %s: %s", other->what, err->text);
    e->device->ops->close(e->device), e->device = NULL;
    status = other->open(cli_context(), 0, f->threads, &e->device, err);
    return status == PLIM_OK ? open_embedder(e, err) : status;
}

static enum plim_status open_rest(struct embedding *e, struct plim_error *err)
{
    const struct embed_plan *plan = embedder_plan(e->embedder);
    int64_t width = embedder_spec(e->embedder)->hidden_size;
    e->vectors = malloc((size_t)(WINDOW * width) * sizeof *e->vectors);
    if (!e->vectors) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for vectors");
    enum plim_status status = text_rows_open(&e->codec, plan->time, WINDOW, &e->rows, err);
    if (status != PLIM_OK) return status;
    return vector_file_open(e->flags->out, wants_npy(e->flags) ? VECTORS_NPY : VECTORS_JSONL, width, &e->out,
                            err);
}

/* The text of a line: itself, or a field of it. */
static enum plim_status add_line(struct embedding *e, const struct line *line, const char *field,
                                 struct plim_error *err)
{
    struct json_field f = {
        .name = field, .undo = true, .at = line->text, .len = line->len, .kind = JSON_TEXT};
    struct json_problem problem;
    enum plim_status status = PLIM_OK;
    if (field && !json_fields(line->text, line->len, &f, 1, &problem))
        status = plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    else if (f.kind != JSON_TEXT)
        status = plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not text; give --field", field,
                           json_kind_name(f.kind));
    if (status == PLIM_OK) status = text_rows_add(e->rows, f.at, f.len, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s:%llu", line->path, (unsigned long long)line->number);
    return status;
}

static enum plim_status run_window(struct embedding *e, struct plim_error *err)
{
    int64_t count = text_rows_count(e->rows);
    enum plim_status status = embedder_run(e->embedder, text_rows(e->rows), count, e->vectors, err);
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
    const struct embed_count *c = embedder_count(e->embedder);
    const struct embed_plan *p = embedder_plan(e->embedder);
    struct os_process me = {0};
    char total[BYTES_TEXT], params[BYTES_TEXT], peak[BYTES_TEXT];
    double seconds = c->seconds > 0 ? c->seconds : 1;
    int64_t cut = text_rows_cut(e->rows);
    fprintf(stderr, "%lld vectors of %lld numbers, %.1f lines/s, %.0f tokens/s\n", (long long)c->rows,
            (long long)embedder_spec(e->embedder)->hidden_size, (double)c->rows / seconds,
            (double)c->tokens / seconds);
    if (cut)
        fprintf(stderr, "%lld lines were longer than %lld tokens and lost their end\n", (long long)cut,
                (long long)p->time);
    if (!e->flags->verbose) return;
    os_process_memory(&me, NULL);
    fprintf(stderr, "%s of the tokens%s; %.1f %% of %lld computed positions were padding\n",
            pooling_name(e->how.pooling), e->how.normalize ? ", normalised" : "",
            c->positions ? 100 * (double)(c->positions - c->tokens) / (double)c->positions : 0,
            (long long)c->positions);
    fprintf(stderr,
            "planned %s: parameters %s in %s, batches of up to %lld x %lld tokens; process %s at its peak\n",
            bytes_format(total, (uint64_t)p->total), bytes_format(params, (uint64_t)p->params),
            precision_name(p->precision), (long long)p->rows, (long long)p->time,
            bytes_format(peak, me.peak));
}

static enum plim_status embed(struct embedding *e, const struct string_list *args, struct plim_error *err)
{
    enum plim_status status = check_flags(e->flags, err);
    e->line = (struct device_line){e->flags->budget, e->flags->budget_given, cli_default_line()};
    if (status == PLIM_OK) status = find_how(e, args->items[0], err);
    if (status == PLIM_OK)
        status = lines_open(args->items + 1, (int)args->count - 1, DATA_AUTO, (size_t)e->flags->max_line,
                            &e->lines, err);
    if (status == PLIM_OK) status = open_codec(e, err);
    if (status == PLIM_OK) status = open_model(e, err);
    if (status == PLIM_OK) status = open_rest(e, err);
    if (status == PLIM_OK) status = run_lines(e, err);
    if (status == PLIM_OK) status = vector_file_commit(e->out, err), e->out = NULL;
    if (status == PLIM_OK && !e->flags->quiet) tell(e);
    return status;
}

static void close_all(struct embedding *e)
{
    vector_file_abandon(e->out);
    text_rows_close(e->rows);
    embedder_close(e->embedder);
    if (e->device) e->device->ops->close(e->device);
    codec_close(&e->codec);
    lines_close(e->lines);
    free(e->vectors);
}

static int run(int argc, char **argv)
{
    struct embed_flags f = {.device = "auto", .weights = "as-is", .max_line = 16 << 20};
    struct embedding e = {.flags = &f};
    struct bump store = {0};
    struct options_rest rest;
    struct plim_error err = {0};
    int code = cli_options(&command, argc, argv, &f, &store, &rest);
    if (code < 0 && !rest.args.count) {
        plim_fail(&err, PLIM_BAD_INPUT, "embed: give a model folder, then files; see plimsoll embed --help");
        code = cli_error(&err);
    }
    if (code < 0) code = embed(&e, &rest.args, &err) == PLIM_OK ? 0 : cli_error(&err);
    close_all(&e);
    bump_free(&store);
    return code;
}

const struct subcommand subcommand_embed = {&command, run, false};
