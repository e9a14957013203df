/* cmd_chat.c - plimsoll chat: a conversation with a model, line by line, over the engine that serves.
 *
 * Every answer reads the whole conversation; the engine still holds the keys and values of what it has read before. When the
 * conversation outgrows the context, its oldest question and answer are forgotten. */
#define _GNU_SOURCE /* getline */
#include "api/chat_prompt.h"
#include "api/model_text.h"
#include "cli/cli.h"
#include "device/registry.h"
#include "model/hf.h"
#include "serve/engine.h"
#include "text/token_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    STEP_TOKENS = 256,   /* of a prompt in one pass, at most */
    LINE_MOST = 1 << 20, /* bytes of a line */
};

struct chat_flags {
    const char *system, *tokenizer, *device, *weights, *adapter;
    int64_t tokens, context, top_k, seed;
    double temperature, top_p, min_p;
    uint64_t budget;
    int threads;
    bool budget_given, quiet;
};

#define AT(field) offsetof(struct chat_flags, field)
static const struct option_row rows[] = {
    {"system", 0, OPTION_STRING, AT(system), "TEXT", "system message: how the model should behave"},
    {"tokenizer", 0, OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model or a folder with one; default: the model's own"},
    {"max-tokens", 'n', OPTION_INT64, AT(tokens), "N", "maximum tokens of an answer (1024)"},
    {"max-context", 0, OPTION_INT64, AT(context), "N",
     "maximum tokens of the conversation; 0: chosen from model and budget (0)"},
    {"temperature", 't', OPTION_DOUBLE, AT(temperature), "X", "0: always the likeliest token (0.8)"},
    {"top-k", 0, OPTION_INT64, AT(top_k), "K", "sample from the K likeliest tokens; 0: from all (0)"},
    {"top-p", 0, OPTION_DOUBLE, AT(top_p), "P",
     "nucleus sampling: keep the smallest set of tokens with total probability P (1)"},
    {"min-p", 0, OPTION_DOUBLE, AT(min_p), "P",
     "keep tokens with at least the share P of the likeliest token's probability (0)"},
    {"seed", 0, OPTION_INT64, AT(seed), "N",
     "random seed; the same seed and input give the same answers (1)"},
    {"budget", 'b', OPTION_BYTES, AT(budget), "BYTES",
     "memory budget, e.g. 64MiB; default: none, or what a container's limit leaves",
     .given = OPTION_GIVEN(struct chat_flags, budget_given)},
    {"device", 0, OPTION_STRING, AT(device), "NAME", CLI_DEVICES " or auto (auto)", CLI_DEVICE},
    {"threads", 0, OPTION_INT, AT(threads), "N", "CPU threads; 0: one per core (0)"},
    {"adapter", 0, OPTION_STRING, AT(adapter), "DIR",
     "PEFT folder or GGUF file of an adapter; it is merged into the model's weights when they are loaded"},
    {"weights", 0, OPTION_STRING, AT(weights), "KIND",
     "as-is, or quantised on loading to 8 or 4 bits: q8, q4, nf4, fp4, fp8 (as-is)"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no notes"},
};

static const struct option_example examples[] = {
    {"chat ./qwen-dir", "a conversation at the terminal"},
    {"chat ./qwen-dir --system \"Answer in one sentence.\" -t 0",
     "with a system message and without randomness"},
    {"chat ./qwen-dir < questions.txt", "each line is a question"},
    {NULL, NULL}};

static const struct command command = {
    .name = "chat",
    .summary = "talk with a chat model, line by line, inside a budget",
    .usage = "[OPTION...] MODEL|CONFIG",
    .description = "Each line of standard input is a message; the answer is printed as it is generated. The "
                   "model sees the whole conversation until it exceeds the context; then the oldest "
                   "messages are dropped. /clear drops all of them; /exit or the end of input ends the "
                   "program. The model needs a chat template.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

/* One run of the command. */
struct chat {
    const struct chat_flags *flags;
    struct device_line line;
    char dir[MODEL_PATH];
    struct codec codec;
    struct encoder *encoder;
    struct chat_template *template;
    struct device *device;
    struct engine *engine;
    struct chat_message *said; /* the system message first, where there is one */
    size_t count, cap;
    struct token_list ids;
    struct token_text text; /* of the answer under way */
    struct strbuf piece, answer;
    bool done, failed;
    struct plim_error err; /* what went wrong inside of an answer */
};

/* --- what was said ------------------------------------------------------------------------------------------ */

static enum plim_status say(struct chat *c, const char *role, const char *content, struct plim_error *err)
{
    if (c->count == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        struct chat_message *grown = realloc(c->said, cap * sizeof *grown);
        if (grown) c->said = grown, c->cap = cap;
    }
    char *copy = c->count < c->cap ? strdup(content) : NULL;
    if (!copy) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the conversation");
    c->said[c->count++] = (struct chat_message){role, copy};
    return PLIM_OK;
}

/* Messages [first, first + n) are forgotten. */
static void forget(struct chat *c, size_t first, size_t n)
{
    if (!n) return;
    for (size_t i = first; i < first + n; i++) free((char *)c->said[i].content);
    memmove(c->said + first, c->said + first + n, (c->count - first - n) * sizeof *c->said);
    c->count -= n;
}

static size_t first_turn(const struct chat *c) { return c->flags->system != NULL; }

/* --- answers ------------------------------------------------------------------------------------------------ */

static void print(struct chat *c, const struct strbuf *text)
{
    if (text->len && (fwrite(text->data, 1, text->len, stdout) != text->len || fflush(stdout)))
        c->failed = true;
    strbuf_addn(&c->answer, strbuf_text(text), text->len);
}

static bool hear(void *arg, const struct engine_event *event)
{
    struct chat *c = arg;
    bool end = c->codec.eos >= 0 && event->token == c->codec.eos;
    strbuf_clear(&c->piece);
    if (event->token >= 0 && !end && c->err.status == PLIM_OK)
        token_text_add(&c->text, event->token, &c->piece, &c->err);
    if (event->finish == FINISH_FAILED && c->err.status == PLIM_OK)
        plim_fail(&c->err, PLIM_IO, "%s", event->why);
    if (event->finish != FINISH_NONE && c->err.status == PLIM_OK)
        token_text_end(&c->text, &c->piece, &c->err);
    print(c, &c->piece);
    c->done |= event->finish != FINISH_NONE;
    return !end && !c->failed && c->err.status == PLIM_OK;
}

/* The conversation as tokens. */
static enum plim_status encode(struct chat *c, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = chat_prompt_text(c->template, c->said, c->count, &text, err);
    c->ids.count = 0;
    if (status == PLIM_OK) status = codec_encode(c->encoder, strbuf_text(&text), text.len, 0, &c->ids, err);
    strbuf_release(&text);
    if (status == PLIM_OK && !c->ids.count)
        status = plim_fail(err, PLIM_BAD_INPUT, "the template wrote nothing");
    return status;
}

/* Forgets the oldest messages until the rest leaves room for an answer. *room: tokens it may have. */
static enum plim_status fit(struct chat *c, int64_t *room, struct plim_error *err)
{
    const struct engine_plan *plan = engine_plan(c->engine);
    int64_t wanted = c->flags->tokens < plan->context / 4 ? c->flags->tokens : plan->context / 4;
    for (;;) {
        enum plim_status status = encode(c, err);
        if (status != PLIM_OK) return status;
        *room = engine_answer_room(plan, (int64_t)c->ids.count) + 1;
        if (*room >= wanted) break;
        size_t first = first_turn(c), turn = 1;
        while (first + turn < c->count && strcmp(c->said[first + turn].role, "user")) turn++;
        if (first + turn >= c->count) break;
        forget(c, first, turn);
    }
    if (*room < 1)
        return plim_fail(err, PLIM_NO_FIT,
                         "a message of %zu tokens is beyond the context of %lld; shorten it", c->ids.count,
                         (long long)plan->context);
    if (*room > c->flags->tokens) *room = c->flags->tokens;
    return PLIM_OK;
}

static enum plim_status run_answer(struct chat *c, int64_t room, struct plim_error *err)
{
    const struct chat_flags *f = c->flags;
    struct engine_request request = {.prompt = c->ids.id,
                                     .count = (int64_t)c->ids.count,
                                     .tokens = room,
                                     .sampling = {.temperature = f->temperature,
                                                  .top_k = f->top_k,
                                                  .top_p = f->top_p,
                                                  .min_p = f->min_p,
                                                  .seed = (uint64_t)f->seed},
                                     .logprobs = -1,
                                     .hear = hear,
                                     .arg = c};
    c->done = false;
    enum plim_status status = engine_submit(c->engine, &request, NULL, err);
    while (status == PLIM_OK && !c->done) status = engine_step(c->engine, err);
    if (status == PLIM_OK && c->err.status != PLIM_OK) *err = c->err, status = c->err.status;
    if (status == PLIM_OK && (c->failed || putchar('\n') == EOF || fflush(stdout)))
        status = plim_fail(err, PLIM_IO, "standard output: write failed");
    return status;
}

/* A message that does not fit is told and forgotten; other errors end the program. */
static enum plim_status answer(struct chat *c, const char *line, struct plim_error *err)
{
    int64_t room = 0;
    enum plim_status status = say(c, "user", line, err);
    if (status == PLIM_OK) status = fit(c, &room, err);
    if (status == PLIM_NO_FIT) {
        cli_say("%s", err->text);
        forget(c, c->count - 1, 1);
        return *err = (struct plim_error){0}, PLIM_OK;
    }
    token_text_init(&c->text, &c->codec);
    strbuf_clear(&c->answer);
    if (status == PLIM_OK) status = token_text_follow(&c->text, c->ids.id, c->ids.count, err);
    if (status == PLIM_OK) status = run_answer(c, room, err);
    token_text_release(&c->text);
    return status == PLIM_OK ? say(c, "assistant", strbuf_text(&c->answer), err) : status;
}

/* Lines of standard input, until it ends. */
static enum plim_status talk(struct chat *c, struct plim_error *err)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && (!asks || (fputs("> ", stdout) >= 0 && !fflush(stdout))) &&
           (n = getline(&line, &room, stdin)) >= 0) {
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        if (!strcmp(line, "/exit") || !strcmp(line, "/quit")) break;
        if (n > LINE_MOST)
            status = plim_fail(err, PLIM_BAD_INPUT, "standard input: a line of %zd bytes; the most is %d", n,
                               LINE_MOST);
        else if (!strcmp(line, "/clear"))
            forget(c, first_turn(c), c->count - first_turn(c));
        else if (n)
            status = answer(c, line, err);
    }
    free(line);
    return status;
}

/* --- opening ------------------------------------------------------------------------------------------------ */

static enum plim_status check_flags(const struct chat_flags *f, struct plim_error *err)
{
    struct sampling s = {
        .temperature = f->temperature, .top_k = f->top_k, .top_p = f->top_p, .min_p = f->min_p};
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "chat: option '--device': '%s' is no device; write " DEVICE_NAMES, f->device);
    if (weights_kind_parse(f->weights) == WEIGHTS_KINDS)
        return plim_fail(err, PLIM_BAD_INPUT, "chat: option '--weights': '%s'; write " WEIGHTS_KIND_CHOICE,
                         f->weights);
    if (f->tokens < 1 || f->context < 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "chat: options '--max-tokens' and '--max-context': write e.g. 1024");
    if (f->threads < 0 || f->threads > 1024)
        return plim_fail(err, PLIM_BAD_INPUT, "chat: option '--threads': %d; write 0 to 1024", f->threads);
    enum plim_status status = sampling_check(&s, err);
    if (status != PLIM_OK) plim_error_prefix(err, "chat");
    return status;
}

static enum plim_status open_text(struct chat *c, struct plim_error *err)
{
    enum plim_status status =
        open_codec(cli_context(), c->flags->tokenizer, c->dir, device_line_host(&c->line), &c->codec, err);
    if (status == PLIM_OK) status = chat_prompt_open(c->dir, &c->template, err);
    if (status == PLIM_OK && !c->template)
        status =
            plim_fail(err, PLIM_BAD_INPUT,
                      "%s: the model has no chat template; use plimsoll generate to continue a text", c->dir);
    if (status == PLIM_OK && c->codec.tokenizer) status = encoder_open(c->codec.tokenizer, &c->encoder, err);
    if (status == PLIM_OK && c->flags->system) status = say(c, "system", c->flags->system, err);
    return status;
}

static enum plim_status check_model(const struct chat *c, const struct model_spec *spec,
                                    struct plim_error *err)
{
    if (model_is_encoder(spec) || model_has_source(spec))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: a %s model cannot chat", c->dir,
                         model_architecture_name(spec->arch));
    return check_vocabulary(&c->codec, c->dir, spec->vocab_size, err);
}

static enum plim_status open_engine(struct chat *c, struct plim_error *err)
{
    const struct chat_flags *f = c->flags;
    struct model_spec spec;
    struct device_wish wish = {"chat", f->device, "--device cpu", f->threads, f->budget};
    enum plim_status status = hf_config_load(c->dir, &spec, err);
    if (status == PLIM_OK) status = check_model(c, &spec, err);
    if (status == PLIM_OK) status = open_device(cli_context(), &wish, &c->device, err);
    if (status == PLIM_OK)
        status = device_line_check(cli_context(), "chat", &c->line, &c->device->facts, err);
    if (status != PLIM_OK) return status;
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct engine_options options = {.model = c->dir,
                                     .budget = device_line_on(&c->line, &c->device->facts),
                                     .vocab = c->codec.vocab_size,
                                     .weights = weights_kind_parse(f->weights),
                                     .adapter = f->adapter,
                                     .max_context = f->context,
                                     .parallel = 1,
                                     .step_tokens = STEP_TOKENS,
                                     .caller_bytes = LINE_MOST,
                                     .log = f->quiet ? NULL : &log};
    if (c->codec.tokenizer)
        options.caller_bytes += (int64_t)encoder_bytes_most(c->codec.tokenizer, LINE_MOST / 16);
    return engine_open(c->device, &options, &c->engine, err);
}

static int chat(const struct chat_flags *f, const char *what)
{
    struct chat c = {
        .flags = f, .line = {f->budget, f->budget_given, device_line_default()}, .codec = {.eos = -1}};
    struct plim_error err = {0};
    enum plim_status status = check_flags(f, &err);
    if (status == PLIM_OK) status = find_model(cli_context(), what, c.dir, sizeof c.dir, &err);
    if (status == PLIM_OK) status = open_text(&c, &err);
    if (status == PLIM_OK) status = open_engine(&c, &err);
    if (status == PLIM_OK) status = talk(&c, &err);
    engine_close(c.engine);
    if (c.device) c.device->ops->close(c.device);
    forget(&c, 0, c.count);
    free(c.said);
    token_list_release(&c.ids);
    strbuf_release(&c.piece);
    strbuf_release(&c.answer);
    encoder_close(c.encoder);
    chat_template_free(c.template);
    codec_close(&c.codec);
    return status == PLIM_OK ? 0 : cli_error(&err);
}

static const struct chat_flags defaults = {
    .device = "auto", .weights = "as-is", .tokens = 1024, .temperature = 0.8, .top_p = 1, .seed = 1};

static int run(void *flags, const struct string_list *args)
{
    struct chat_flags *f = flags;
    if (f->top_p == 0) f->top_k = 1; /* an empty nucleus: the likeliest token alone */
    return chat(f, args->items[0]);
}

const struct subcommand subcommand_chat = {&command, run, CLI_FLAGS(defaults), 1, 1, "give one model folder"};
