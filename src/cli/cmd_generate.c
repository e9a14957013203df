/* cmd_generate.c - plimsoll generate: text from a model, as it comes. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/json.h"
#include "device/registry.h"
#include "mem/os.h"
#include "model/hf.h"
#include "serve/generate.h"
#include "serve/generate_seq2seq.h"
#include "text/token_text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct generate_flags {
    const char *prompt, *tokenizer, *device;
    int64_t tokens, top_k, seed;
    double temperature, top_p;
    uint64_t budget;
    bool budget_given, json, echo, quiet;
    int threads, beams;
    double length_penalty;
    bool penalty_given;
};

#define AT(field) offsetof(struct generate_flags, field)
static const struct option_row rows[] = {
    {"prompt", 'p', OPTION_STRING, AT(prompt), "TEXT", "what the text begins with; needed"},
    {"tokenizer", 0, OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a folder with one, or bytes; absent: the model's own, else bytes"},
    {"max-tokens", 'n', OPTION_INT64, AT(tokens), "N", "stop after so many tokens (200)"},
    {"temperature", 't', OPTION_DOUBLE, AT(temperature), "X", "0 takes the likeliest token, always (0.8)"},
    {"top-k", 0, OPTION_INT64, AT(top_k), "K", "draw among the K likeliest only; 0: all (0)"},
    {"top-p", 0, OPTION_DOUBLE, AT(top_p), "P",
     "draw among the fewest that make up the share P (1); 0: the likeliest alone"},
    {"beams", 0, OPTION_INT, AT(beams), "N",
     "T5: the likeliest text of a search with so many rows, instead of drawing; 1: none (1)"},
    {"length-penalty", 0, OPTION_DOUBLE, AT(length_penalty), "X",
     "with --beams: scores of texts are divided by length^X; above 0 favours long ones (1)",
     .given = OPTION_GIVEN(struct generate_flags, penalty_given)},
    {"seed", 0, OPTION_INT64, AT(seed), "N", "same seed, same text (1)"},
    {"budget", 'b', OPTION_BYTES, AT(budget), "BYTES", "hold this line, e.g. 64MiB; absent: none",
     .given = OPTION_GIVEN(struct generate_flags, budget_given)},
    {"device", 0, OPTION_STRING, AT(device), "NAME",
     "cpu, cuda, cuda:N, or auto: a GPU that works and leaves room in the budget, else the CPU (auto)"},
    {"threads", 0, OPTION_INT, AT(threads), "N", "CPU threads; 0: one per core (0)"},
    {"echo", 0, OPTION_FLAG, AT(echo), NULL, "print the prompt before the text"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print text, tokens, speed and memory as JSON at the end"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "only the text: no notes, no summary"},
};

static const struct option_example examples[] = {
    {"generate runs/demo --prompt \"The ship \"", "from the newest checkpoint of a run"},
    {"generate small.yaml -p \"Dear \" -n 400 --top-k 40", "from the run of a configuration"},
    {"generate ./llama-dir -p \"Once\" -t 0 --json", "the likeliest text, for a program"},
    {NULL, NULL}};

static const struct command command = {
    .name = "generate",
    .summary = "write text with a trained model, inside a budget",
    .usage = "[OPTION...] MODEL|CONFIG",
    .description =
        "MODEL is a Hugging Face folder, a checkpoint, or a run folder, of which the newest checkpoint is "
        "taken; CONFIG stands for the newest checkpoint of its output.dir. Text goes through --tokenizer, or "
        "the tokenizer.json beside the weights; without one it is bytes. Parameters, a cache of exactly the "
        "positions needed and one pass are planned and "
        "committed before anything is computed; what does not fit the budget exits with 3.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* One run of the command. */
struct generation {
    const struct generate_flags *flags;
    char dir[CLI_PATH];
    struct codec codec;
    struct token_list prompt;
    int64_t count;
    struct token_text text;
    struct strbuf piece; /* text that has become certain */
    bool ended;          /* the tokenizer's end-of-text token came */
    struct plim_error err;
    struct strbuf copy; /* for JSON */
    char last;          /* byte written to stdout */
    bool failed;        /* stdout does not take it */
    int64_t heard;      /* tokens */
    int32_t *tokens;    /* for JSON */
    struct generate_result result;
    struct generate_plan plan;
    uint64_t ledger_peak;
    char device[16];
    size_t device_used; /* what the driver says, 0: the device is the host */
};

static void put_text(struct generation *g, const char *bytes, size_t n)
{
    if (!n) return;
    if (g->flags->json)
        strbuf_addn(&g->copy, bytes, n);
    else if (fwrite(bytes, 1, n, stdout) != n || fflush(stdout))
        g->failed = true;
    g->last = bytes[n - 1];
}

static bool hear(void *arg, int32_t token)
{
    struct generation *g = arg;
    if (g->codec.eos >= 0 && token == g->codec.eos) {
        g->ended = true;
        return false;
    }
    if (g->tokens) g->tokens[g->heard] = token;
    g->heard++;
    strbuf_clear(&g->piece);
    if (token_text_add(&g->text, token, &g->piece, &g->err) != PLIM_OK) return false;
    put_text(g, g->piece.data, g->piece.len);
    return !g->failed;
}

static enum plim_status check_flags(const struct generate_flags *f, struct plim_error *err)
{
    struct sampling s = {f->temperature, f->top_k, f->top_p, (uint64_t)f->seed};
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--device': '%s' is no device; write auto, cpu, cuda or cuda:1",
                         f->device);
    if (f->budget_given && !f->budget)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "generate: option '--budget': 0 bytes hold nothing; write e.g. 64MiB");
    if (!f->prompt || !*f->prompt)
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
    if (f->beams < 1 || f->beams > SEQ2SEQ_MAX_BEAMS)
        return plim_fail(err, PLIM_BAD_INPUT, "generate: option '--beams': %d; write 1 to %d", f->beams,
                         SEQ2SEQ_MAX_BEAMS);
    if (!(f->length_penalty >= -100 && f->length_penalty <= 100) || (f->penalty_given && f->beams == 1))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "generate: option '--length-penalty': %g; write -100 to 100, with --beams of 2 or more",
            f->length_penalty);
    enum plim_status status = sampling_check(&s, err);
    if (status != PLIM_OK) plim_error_prefix(err, "generate");
    return status;
}

/* The tokenizer: as asked, else the one beside the weights, else bytes. */
static enum plim_status open_codec(struct generation *g, struct plim_error *err)
{
    char path[CLI_PATH + 32];
    const char *which = g->flags->tokenizer;
    snprintf(path, sizeof path, "%s/tokenizer.json", g->dir);
    if (!which && file_exists(path)) which = path;
    uint64_t budget = g->flags->budget_given ? g->flags->budget : 0;
    enum plim_status status = codec_open_within(which, budget, &g->codec, err);
    token_text_init(&g->text, &g->codec);
    return status;
}

static enum plim_status read_prompt(struct generation *g, struct plim_error *err)
{
    const char *text = g->flags->prompt;
    size_t len = strlen(text);
    struct encoder *encoder = NULL;
    enum plim_status status = open_codec(g, err);
    if (status == PLIM_OK && g->codec.tokenizer) {
        status = encoder_open(g->codec.tokenizer, &encoder, err);
        if (status == PLIM_OK) status = encoder_encode(encoder, text, len, TOKENIZE_SPECIAL, &g->prompt, err);
        encoder_close(encoder);
    } else if (status == PLIM_OK && token_list_reserve(&g->prompt, len)) {
        for (size_t i = 0; i < len; i++) g->prompt.id[g->prompt.count++] = (unsigned char)text[i];
    }
    if (g->flags->json) g->tokens = malloc((size_t)g->flags->tokens * sizeof *g->tokens);
    if (status == PLIM_OK && (!g->prompt.count || (g->flags->json && !g->tokens)))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for prompt and answer");
    g->count = (int64_t)g->prompt.count;
    return status == PLIM_OK ? token_text_follow(&g->text, g->prompt.id, g->prompt.count, err) : status;
}

static enum plim_status check_vocabulary(const struct generation *g, const struct model_spec *spec,
                                         struct plim_error *err)
{
    if (spec->vocab_size >= g->codec.vocab_size) return PLIM_OK;
    if (!g->codec.tokenizer)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: a vocabulary of %lld is too small for the byte tokenizer; use a model with 256 or more",
            g->dir, (long long)spec->vocab_size);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: the tokenizer has %lld tokens, the model only %lld; give its own", g->codec.path,
                     (long long)g->codec.vocab_size, (long long)spec->vocab_size);
}

/* What writes: an encoder-decoder, or any other model. */
struct writer {
    struct generator *generator;
    struct seq2seq *seq2seq;
};

static enum plim_status writer_open(const struct generation *g, struct device *device,
                                    const struct generate_room *room, struct writer *out,
                                    struct plim_error *err)
{
    struct model_spec spec;
    enum plim_status status = hf_config_load(g->dir, &spec, err);
    if (status != PLIM_OK) return status;
    if (model_has_source(&spec))
        return seq2seq_open(g->dir, device, room, g->flags->beams, &out->seq2seq, err);
    if (g->flags->beams > 1)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "generate: option '--beams': %s writes one text; only t5 searches with beams",
                         model_architecture_name(spec.arch));
    return generator_open(g->dir, device, room, &out->generator, err);
}

static enum plim_status writer_run(const struct generation *g, const struct writer *w,
                                   const struct generate_request *request, struct generate_result *result,
                                   struct plim_error *err)
{
    return w->seq2seq ? seq2seq_run(w->seq2seq, request, g->flags->length_penalty, result, err)
                      : generator_run(w->generator, request, result, err);
}

static void writer_close(struct writer *w)
{
    seq2seq_close(w->seq2seq);
    generator_close(w->generator);
}

/* The device, and on it the model. Where nobody asked for the card, one without room for them is left for the CPU. */
static enum plim_status open_model(struct generation *g, struct device **device, struct writer *writer,
                                   struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct generate_room room = {.prompt = g->count,
                                 .tokens = f->tokens,
                                 .budget = f->budget_given ? (int64_t)f->budget : 0,
                                 .log = f->quiet ? NULL : &log};
    struct device_wish wish = {"generate", f->device, "--device cpu", f->threads, f->budget};
    enum plim_status status = cli_open_device_as(&wish, device, err);
    if (status == PLIM_OK) status = writer_open(g, *device, &room, writer, err);
    const struct backend *other = backend_fallback();
    bool chosen = *device && !strcmp(f->device, "auto") && strcmp((*device)->ops->name, other->name);
    if (!chosen || (status != PLIM_NO_FIT && status != PLIM_NO_MEMORY)) return status;
    fprintf(stderr, "plimsoll: using %s: %s\n", other->what, err->text);
    (*device)->ops->close(*device), *device = NULL;
    status = other->open(0, f->threads, device, err);
    return status == PLIM_OK ? writer_open(g, *device, &room, writer, err) : status;
}

static enum plim_status generate(struct generation *g, struct device **device_out, struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    struct writer writer = {0};
    enum plim_status status = open_model(g, device_out, &writer, err);
    struct device *device = *device_out;
    if (status != PLIM_OK) return status;
    g->plan = writer.seq2seq ? *seq2seq_plan(writer.seq2seq) : *generator_plan(writer.generator);
    status = check_vocabulary(
        g, writer.seq2seq ? seq2seq_spec(writer.seq2seq) : generator_spec(writer.generator), err);
    if (status == PLIM_OK && f->echo && !f->json) put_text(g, f->prompt, strlen(f->prompt));
    struct generate_request request = {.prompt = g->prompt.id,
                                       .count = g->count,
                                       .tokens = f->tokens,
                                       .vocab = g->codec.vocab_size,
                                       .sampling = {f->temperature, f->top_k, f->top_p, (uint64_t)f->seed},
                                       .hear = hear,
                                       .arg = g,
                                       .stop = cli_stop_flag()};
    if (status == PLIM_OK) status = writer_run(g, &writer, &request, &g->result, err);
    if (status == PLIM_OK && g->err.status != PLIM_OK) status = g->err.status, *err = g->err;
    if (g->ended) g->result.stop = GENERATE_END;
    g->result.tokens = g->heard;
    strbuf_clear(&g->piece);
    if (status == PLIM_OK) status = token_text_end(&g->text, &g->piece, err);
    put_text(g, g->piece.data, g->piece.len);
    if (!f->json && g->last && g->last != '\n') put_text(g, "\n", 1);
    if (status == PLIM_OK && g->failed) status = plim_fail(err, PLIM_IO, "standard output: write failed");
    g->ledger_peak = ledger_peak(device->ledger[TIER_DEVICE]);
    g->device_used = device->ops->used ? device->ops->used(device) : 0;
    snprintf(g->device, sizeof g->device, "%s", device->ops->name);
    writer_close(&writer);
    return status;
}

static void tell(const struct generation *g)
{
    struct os_process me = {0};
    char total[BYTES_TEXT], params[BYTES_TEXT], cache[BYTES_TEXT], peak[BYTES_TEXT];
    os_process_memory(&me, NULL);
    uint64_t taken = g->device_used ? g->device_used : me.peak;
    fprintf(stderr, "%lld tokens, %.1f tokens/s, after a prompt of %lld read in %.0f ms (%s)\n",
            (long long)g->result.tokens, g->result.tokens_per_s, (long long)g->count,
            g->result.prompt_seconds * 1e3, generate_stop_name(g->result.stop));
    fprintf(stderr, "planned %s: parameters %s in %s, cache %s for %lld positions; %s %s%s\n",
            bytes_format(total, (uint64_t)g->plan.total), bytes_format(params, (uint64_t)g->plan.params),
            precision_name(g->plan.precision), bytes_format(cache, (uint64_t)g->plan.cache),
            (long long)g->plan.positions, g->device_used ? "the driver says" : "process",
            bytes_format(peak, taken), g->device_used ? "" : " at its peak");
}

static int tell_json(const struct generation *g)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    struct os_process me = {0};
    os_process_memory(&me, NULL);
    json_writer_init(&w, &out, 0);
    json_begin_object(&w, NULL);
    json_str(&w, "model", g->dir);
    json_str(&w, "prompt", g->flags->prompt);
    json_strn(&w, "text", strbuf_text(&g->copy), g->copy.len);
    json_int(&w, "prompt_tokens", g->count);
    json_int(&w, "generated_tokens", g->result.tokens);
    json_begin_array(&w, "tokens");
    for (int64_t i = 0; i < g->result.tokens; i++) json_int(&w, NULL, g->tokens[i]);
    json_end_array(&w);
    json_str(&w, "stop", generate_stop_name(g->result.stop));
    json_double(&w, "prompt_ms", g->result.prompt_seconds * 1e3);
    json_double(&w, "tokens_per_s", g->result.tokens_per_s);
    json_str(&w, "precision", precision_name(g->plan.precision));
    json_str(&w, "device", g->device);
    json_begin_object(&w, "memory");
    if (g->plan.budget)
        json_int(&w, "budget_bytes", g->plan.budget);
    else
        json_null(&w, "budget_bytes");
    json_int(&w, "planned_total", g->plan.total);
    json_int(&w, "arena_bytes", g->plan.arena);
    json_int(&w, "parameter_bytes", g->plan.params);
    json_int(&w, "cache_bytes", g->plan.cache);
    json_int(&w, "positions", g->plan.positions);
    json_int(&w, "ledger_peak", (int64_t)g->ledger_peak);
    if (g->device_used) json_int(&w, "device_used", (int64_t)g->device_used);
    json_int(&w, "rss_peak", (int64_t)me.peak);
    json_end_object(&w);
    json_end_object(&w);
    strbuf_addc(&out, '\n');
    return cli_print(&out);
}

static int generate_and_tell(const struct generate_flags *f, const char *what)
{
    struct generation g = {.flags = f, .copy = STRBUF_INIT, .piece = STRBUF_INIT};
    struct plim_error err = {0};
    struct device *device = NULL;
    int code = 0;
    enum plim_status status = check_flags(f, &err);
    if (status == PLIM_OK) status = cli_find_model(what, g.dir, sizeof g.dir, &err);
    if (status == PLIM_OK) status = read_prompt(&g, &err);
    if (status == PLIM_OK) status = generate(&g, &device, &err);
    if (status == PLIM_OK && f->json) code = tell_json(&g);
    if (status == PLIM_OK && !f->json && !f->quiet) tell(&g);
    if (status == PLIM_OK && g.result.stop == GENERATE_ASKED) code = plim_exit_code(PLIM_INTERRUPTED);
    if (device) device->ops->close(device);
    strbuf_release(&g.copy);
    strbuf_release(&g.piece);
    token_text_release(&g.text);
    token_list_release(&g.prompt);
    codec_close(&g.codec);
    free(g.tokens);
    return status == PLIM_OK ? code : cli_error(&err);
}

static int run(int argc, char **argv)
{
    struct generate_flags f = {.device = "auto",
                               .tokens = 200,
                               .temperature = 0.8,
                               .top_p = 1,
                               .seed = 1,
                               .beams = 1,
                               .length_penalty = 1};
    struct bump store = {0};
    struct options_rest rest;
    struct plim_error err = {0};
    int code = cli_options(&command, argc, argv, &f, &store, &rest);
    if (code < 0 && rest.args.count != 1) {
        plim_fail(&err, PLIM_BAD_INPUT,
                  "generate: give one model folder or config file; see plimsoll generate --help");
        code = cli_error(&err);
    }
    if (f.top_p == 0) f.top_k = 1; /* the fewest that make up nothing: still one */
    if (code < 0) code = generate_and_tell(&f, rest.args.items[0]);
    bump_free(&store);
    return code;
}

const struct subcommand subcommand_generate = {&command, run, false};
