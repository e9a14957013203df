/* cmd_generate.c - plimsoll generate: text from a model, as it comes. */
#include "cli/generate.h"
#include "device/registry.h"
#include "model/hf.h"

#include <stdio.h>
#include <string.h>

enum {
    PARALLEL = 8,             /* prompts at once where nobody says */
    STEP_TOKENS = 256,        /* of prompts and answers in one pass, at most */
    STEP_TOKENS_DEVICE = 2048 /* where it is a device with its own memory that computes */
};

#define AT(field) offsetof(struct generate_flags, field)
static const struct option_row rows[] = {
    {"prompt", 'p', OPTION_STRING_LIST, AT(prompts), "TEXT", "prompt"},
    {"prompts-file", 0, OPTION_STRING, AT(prompts_file), "FILE",
     "read one prompt per line or, from a .jsonl file, {\"prompt\": \"...\"}"},
    {"parallel", 0, OPTION_INT, AT(parallel), "N", "maximum number of concurrent prompts (8)"},
    {"tokenizer", 0, OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model, a folder with one, or bytes; default: the model's own, else "
     "bytes"},
    {"max-tokens", 'n', OPTION_INT64, AT(tokens), "N", "maximum number of new tokens (200)"},
    {"temperature", 't', OPTION_DOUBLE, AT(temperature), "X",
     "sampling temperature; 0: always the likeliest token (0.8)"},
    {"top-k", 0, OPTION_INT64, AT(top_k), "K", "sample from the K likeliest tokens; 0: from all (0)"},
    {"top-p", 0, OPTION_DOUBLE, AT(top_p), "P",
     "nucleus sampling: keep the smallest set of tokens with total probability P (1); 0: only "
     "the likeliest"},
    {"min-p", 0, OPTION_DOUBLE, AT(min_p), "P",
     "keep tokens with at least the share P of the likeliest token's probability (0)"},
    {"beams", 0, OPTION_INT, AT(beams), "N", "T5: number of beams of a beam search; 1: sample instead (1)"},
    {"length-penalty", 0, OPTION_DOUBLE, AT(length_penalty), "X",
     "with --beams: divide scores by length^X; positive values favour long texts (1)",
     .given = OPTION_GIVEN(struct generate_flags, penalty_given)},
    {"seed", 0, OPTION_INT64, AT(seed), "N", "random seed; the same seed gives the same text (1)"},
    {"budget", 'b', OPTION_BYTES, AT(budget), "BYTES",
     "memory budget, e.g. 64MiB; default: none, or what a container's limit leaves",
     .given = OPTION_GIVEN(struct generate_flags, budget_given)},
    {"device", 0, OPTION_STRING, AT(device), "NAME",
     CLI_DEVICES ", or auto: a working GPU whose own overhead fits the budget, else the "
                 "CPU (auto)",
     CLI_DEVICE},
    {"threads", 0, OPTION_INT, AT(threads), "N", "CPU threads; 0: one per core (0)"},
    {"adapter", 0, OPTION_STRING, AT(adapter), "DIR",
     "PEFT folder or GGUF file of an adapter; it is merged into the model's weights when they are loaded"},
    {"weights", 0, OPTION_STRING, AT(weights), "KIND",
     "as-is, or quantised on loading to 8 or 4 bits: q8, q4, nf4, fp4, fp8 (as-is)"},
    {"raw", 0, OPTION_FLAG, AT(raw), NULL,
     "continue the prompt literally; by default a model with a chat template answers it as a "
     "user's message"},
    {"echo", 0, OPTION_FLAG, AT(echo), NULL, "print the prompt before the text"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print text, tokens, speed and memory as JSON at the end"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "only the text: no notes, no summary"},
};

static const struct option_example examples[] = {
    {"generate runs/demo --prompt \"The ship \"", "from the newest checkpoint of a run"},
    {"generate small.yaml -p \"Dear \" -n 400 --top-k 40", "from the run of a job file"},
    {"generate ./llama-dir -p \"Once\" -t 0 --json", "the likeliest text, for a program"},
    {"generate ./llama-dir --prompts-file prompts.txt --parallel 16", "one answer per line"},
    {NULL, NULL}};

static const struct command command = {
    .name = "generate",
    .summary = "generate text with a model, inside a budget",
    .usage = "[OPTION...] MODEL|CONFIG",
    .description = "MODEL is a Hugging Face folder, a GGUF file, a checkpoint, or a run folder (its newest "
                   "checkpoint is used). CONFIG means the newest checkpoint in its output.dir. The "
                   "tokenizer is --tokenizer or the one next to the weights; without one, tokens are bytes. "
                   "A model with a chat template answers the prompt as a user's message; --raw continues "
                   "the text instead. Parameters, a cache of exactly the necessary positions and one pass "
                   "are planned and committed before computing. Exits with 3 if they do not fit the budget.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum plim_status check_beams(const struct generate_flags *f, struct plim_error *err)
{
    if (f->beams < 1 || f->beams > ENGINE_BEAMS)
        return plim_fail(err, PLIM_BAD_INPUT, "generate: option '--beams': %d; write 1 to %d", f->beams,
                         ENGINE_BEAMS);
    if (!(f->length_penalty >= -100 && f->length_penalty <= 100) || (f->penalty_given && f->beams == 1))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "generate: option '--length-penalty': %g; write -100 to 100, with --beams of 2 or more",
            f->length_penalty);
    return PLIM_OK;
}

static enum plim_status check_flags(const struct generate_flags *f, struct plim_error *err)
{
    struct sampling s = {
        .temperature = f->temperature, .top_k = f->top_k, .top_p = f->top_p, .min_p = f->min_p};
    bool empty = !f->prompts.count && !f->prompts_file;
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--device': '%s' is no device; write " DEVICE_NAMES, f->device);
    if (f->budget_given && !f->budget)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--budget': 0 bytes hold nothing; write e.g. 64MiB");
    if (weights_kind_parse(f->weights) == WEIGHTS_KINDS)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--weights': '%s'; write " WEIGHTS_KIND_CHOICE, f->weights);
    for (size_t i = 0; i < f->prompts.count; i++) empty = empty || !*f->prompts.items[i];
    if (f->parallel < 0 || f->parallel > 4096)
        return plim_fail(err, PLIM_BAD_INPUT, "generate: option '--parallel': %d; write 1 to 4096",
                         f->parallel);
    if (empty)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--prompt': give at least one character, e.g. -p \"The \"");
    if (f->tokens < 1 || f->tokens > 100000000)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--max-tokens': %lld makes no sense; write e.g. 200",
                         (long long)f->tokens);
    if (f->threads < 0 || f->threads > 1024)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--threads': %d; write 0 for one per core, or up to 1024",
                         f->threads);
    enum plim_status status = check_beams(f, err);
    if (status != PLIM_OK) return status;
    status = sampling_check(&s, err);
    if (status != PLIM_OK) plim_error_prefix(err, "generate");
    return status;
}

/* The model that writes. */
struct writer {
    const struct generation *all;
    struct model_spec spec;
    struct log log;
    struct engine_options options;
    struct engine *engine;
    int64_t tokens; /* of all prompts */
};

/* Room for exactly what prompts and answers need. */
static enum plim_status find_room(const struct generation *g, struct writer *w, struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    const struct model_spec *spec = &w->spec;
    int64_t most = 0, all = 0;
    for (size_t i = 0; i < g->count; i++) {
        int64_t count = (int64_t)g->answers[i].ids.count;
        all += count;
        if (count > most) most = count;
    }
    int parallel = f->parallel ? f->parallel : PARALLEL;
    w->options.parallel = (size_t)parallel < g->count ? parallel : (int)g->count;
    w->options.fewer = true, w->tokens = all;
    if (model_is_encoder(spec))
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: a %s model embeds texts and cannot generate; see plimsoll embed", g->dir,
                         model_architecture_name(spec->arch));
    if (model_has_source(spec)) { /* it has no last position */
        w->options.max_context = most, w->options.max_answer = f->tokens, w->options.beams = f->beams;
        return PLIM_OK;
    }
    if (f->beams > 1)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "generate: option '--beams': %s models have no beam search; only t5 has",
                         model_architecture_name(spec->arch));
    if (most > spec->max_positions)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "a prompt of %lld tokens is beyond the model's %lld positions; shorten it",
                         (long long)most, (long long)spec->max_positions);
    int64_t left = spec->max_positions - most;
    /* The last token is handed out and never read, so it needs no position. */
    w->options.max_context = most + (f->tokens - 1 < left ? f->tokens - 1 : left);
    return PLIM_OK;
}

static enum plim_status writer_init(const struct generation *g, struct writer *w, struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    *w = (struct writer){.all = g, .log = {LOG_LEVEL_WARN, log_to_file, stderr}};
    w->options.model = g->dir;
    w->options.vocab = g->codec.vocab_size;
    w->options.weights = weights_kind_parse(f->weights);
    w->options.adapter = f->adapter;
    w->options.advice = f->beams > 1 ? "ask for fewer tokens or beams" : "ask for fewer tokens";
    w->options.log = f->quiet ? NULL : &w->log;
    enum plim_status status = hf_config_load(g->dir, &w->spec, err);
    return status == PLIM_OK ? find_room(g, w, err) : status;
}

static enum plim_status writer_open(void *arg, struct device *device, struct plim_error *err)
{
    struct writer *w = arg;
    w->options.budget = device_line_on(&w->all->line, &device->facts);
    int64_t most = device->facts.unified_memory ? STEP_TOKENS : STEP_TOKENS_DEVICE;
    w->options.step_tokens = w->tokens < most ? w->tokens : most;
    return engine_open(device, &w->options, &w->engine, err);
}

static enum plim_status generate(struct generation *g, struct device **device_out, struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    struct device_wish wish = {"generate", f->device, "--device cpu", f->threads, f->budget};
    struct writer writer;
    enum plim_status status = writer_init(g, &writer, err);
    if (status == PLIM_OK)
        status = open_model(cli_context(), &wish, &g->line, writer_open, &writer, device_out, err);
    struct device *device = *device_out;
    if (status != PLIM_OK) return status;
    g->plan = *engine_plan(writer.engine);
    status = check_vocabulary(&g->codec, g->dir, writer.spec.vocab_size, err);
    if (status == PLIM_OK && !f->quiet)
        warn_of_bytes(&g->codec, f->tokenizer, g->dir, writer.spec.vocab_size, context_log(cli_context()));
    if (status == PLIM_OK) status = generation_run(g, writer.engine, err);
    g->ledger_peak = ledger_peak(device->ledger[TIER_DEVICE]);
    g->device_used = device->ops->used ? device->ops->used(device) : 0;
    snprintf(g->device, sizeof g->device, "%s", device->ops->name);
    engine_close(writer.engine); /* what is under way ends here */
    if (status == PLIM_OK && g->err.status != PLIM_OK) status = g->err.status, *err = g->err;
    if (status == PLIM_OK && g->stream && g->last && g->last != '\n' && putchar('\n') == EOF)
        g->failed = true;
    if (status == PLIM_OK && (g->failed || fflush(stdout)))
        status = plim_fail(err, PLIM_IO, "standard output: write failed");
    return status;
}

static int generate_and_tell(const struct generate_flags *f, const char *what)
{
    struct generation g = {
        .flags = f, .line = {f->budget, f->budget_given, device_line_default()}, .piece = STRBUF_INIT};
    struct plim_error err = {0};
    struct device *device = NULL;
    int code = 0;
    enum plim_status status = check_flags(f, &err);
    if (status == PLIM_OK) status = find_model(cli_context(), what, g.dir, sizeof g.dir, &err);
    if (status == PLIM_OK) status = generation_read(&g, &err);
    if (status == PLIM_OK) status = generate(&g, &device, &err);
    if (status == PLIM_OK && f->json) code = generation_tell_json(&g);
    if (status == PLIM_OK && !f->json && !f->quiet) generation_tell(&g);
    if (status == PLIM_OK && g.stopped) code = plim_exit_code(PLIM_INTERRUPTED);
    if (device) device->ops->close(device);
    generation_release(&g);
    return status == PLIM_OK ? code : cli_error(&err);
}

static const struct generate_flags defaults = {.device = "auto",
                                               .weights = "as-is",
                                               .tokens = 200,
                                               .temperature = 0.8,
                                               .top_p = 1,
                                               .seed = 1,
                                               .beams = 1,
                                               .length_penalty = 1};

static int run(void *flags, const struct string_list *args)
{
    struct generate_flags *f = flags;
    if (f->top_p == 0) f->top_k = 1; /* the fewest that make up nothing: still one */
    return generate_and_tell(f, args->items[0]);
}

const struct subcommand subcommand_generate = {&command, run, CLI_FLAGS(defaults),
                                               1,        1,   "give one model folder or config file"};
