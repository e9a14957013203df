/* cmd_tokenize.c - plimsoll tokenize: text and JSON lines become a token file. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/table.h"
#include "data/pretokenize.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <sched.h>
#include <unistd.h>

struct tokenize_flags {
    const char *out, *tokenizer, *format, *field, *prompt, *response, *messages, *chat, *eos;
    int64_t threads;
    uint64_t max_line;
    bool append_eos, add_special, resume, skip_bad, quiet;
};

static const char *const formats[] = {"auto", "text", "lines", "jsonl", "csv", NULL};

#define AT(field) offsetof(struct tokenize_flags, field)
static const struct option_row rows[] = {
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "token file to write; required"},
    {"tokenizer", 't', OPTION_STRING, AT(tokenizer), "FILE",
     "tokenizer.json, a SentencePiece model or a folder with one; default: bytes"},
    {"format", 0, OPTION_STRING, AT(format), "KIND", "format of the input (auto: by content and name)",
     .choices = formats},
    {"field", 'f', OPTION_STRING, AT(field), "NAME", "JSON lines: the field with the text (text)"},
    {"prompt-field", 0, OPTION_STRING, AT(prompt), "NAME",
     "JSON lines: field with the prompt of a pair; only the response is learned"},
    {"response-field", 0, OPTION_STRING, AT(response), "NAME", "JSON lines: field with the response"},
    {"messages-field", 0, OPTION_STRING, AT(messages), "NAME", "JSON lines: field with a conversation"},
    {"chat-template", 0, OPTION_STRING, AT(chat), "FILE",
     "template for conversations; default: the one next to the tokenizer"},
    {"append-eos", 0, OPTION_FLAG, AT(append_eos), NULL, "end each document with the end-of-text token"},
    {"eos", 0, OPTION_STRING, AT(eos), "TOKEN", "the end-of-text token; default: from tokenizer_config.json"},
    {"special", 0, OPTION_FLAG, AT(add_special), NULL,
     "add the tokenizer's special tokens, e.g. BOS (the default)"},
    {"threads", 0, OPTION_INT64, AT(threads), "N", "encoding threads; 0: one per core (0)",
     .expected = "0 for one per core, or up to 256", .most = 256},
    {"max-line", 0, OPTION_BYTES, AT(max_line), "BYTES", "maximum line length (16MiB)", CLI_MAX_LINE},
    {"skip-bad", 0, OPTION_FLAG, AT(skip_bad), NULL,
     "skip and count bad lines instead of stopping at the first"},
    {"resume", 0, OPTION_FLAG, AT(resume), NULL, "continue after a stop or a crash (the default)"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no progress and no summary"},
};

static const struct option_example examples[] = {
    {"tokenize corpus.jsonl.zst -t llama/ -o corpus.tok --append-eos", "the field text of every line"},
    {"tokenize 'books/*.txt' -t gpt2/tokenizer.json -o books.tok", "each file is a document"},
    {"tokenize qa.jsonl -t llama/ -o qa.tok --prompt-field q --response-field a", "only answers are learned"},
    {NULL, NULL}};

static const struct command command = {
    .name = "tokenize",
    .summary = "convert text and JSON lines to a token file",
    .usage = "[OPTION...] IN... -o OUT",
    .description = "IN are files, folders or globs; .gz and .zst are decompressed. The result can be used "
                   "as data.train; docs/data.md describes its format. It is identical for any number of "
                   "threads. While it is incomplete there are OUT.part and a journal; running the same "
                   "command again after a stop continues from there, unless --no-resume is given.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

struct screen {
    bool bar, quiet;
    double started, told;
    uint64_t begun; /* bytes that an earlier run had done */
    bool any;
};

static void draw(void *arg, const struct pretokenize_progress *p)
{
    struct screen *s = arg;
    double now = clock_seconds();
    char done[BYTES_TEXT], all[BYTES_TEXT];
    if (!s->any) s->begun = p->bytes, s->any = true;
    if (s->quiet || (!s->bar && now - s->told < 10 && p->bytes < p->total_bytes)) return;
    s->told = now;
    double seconds = now - s->started, speed = seconds > 0 ? (double)(p->bytes - s->begun) / seconds : 0;
    STRBUF_AUTO line = STRBUF_INIT;
    if (s->bar) {
        strbuf_addf(&line, "\r\033[K");
        table_bar(&line, p->total_bytes ? (double)p->bytes / (double)p->total_bytes : 1, 20);
        strbuf_addc(&line, ' ');
    }
    strbuf_addf(&line, "%s of %s, %.1f M tokens, %.1f MB/s", bytes_format(done, p->bytes),
                bytes_format(all, p->total_bytes), (double)p->tokens / 1e6, speed / 1e6);
    if (!s->bar || p->bytes == p->total_bytes) strbuf_addc(&line, '\n');
    if (!line.failed) fwrite(line.data, 1, line.len, stderr);
}

static void tell(const struct tokenize_flags *f, const struct pretokenize_result *r, double seconds)
{
    const struct pretokenize_progress *p = &r->progress;
    char read[BYTES_TEXT];
    fprintf(stderr, "%s: %llu tokens in %llu samples, %s read in %.1f s (%.1f MB/s)\n", f->out,
            (unsigned long long)p->tokens, (unsigned long long)p->samples, bytes_format(read, r->input_bytes),
            seconds, seconds > 0 ? (double)r->input_bytes / seconds / 1e6 : 0);
    if (p->bad)
        fprintf(stderr, "bad lines skipped: %llu%s%s\n", (unsigned long long)p->bad,
                r->problem[0] ? ", the first: " : "", r->problem); /* none: an earlier start met them */
}

static int online_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static enum data_format format_of(const char *name)
{
    static const enum data_format values[] = {DATA_AUTO, DATA_TEXT, DATA_LINES, DATA_JSONL, DATA_CSV};
    for (int i = 0; name && formats[i]; i++)
        if (!strcmp(name, formats[i])) return values[i];
    return DATA_AUTO;
}

static enum plim_status check(const struct tokenize_flags *f, struct plim_error *err)
{
    if (!f->out || !*f->out)
        return plim_fail(err, PLIM_BAD_INPUT, "tokenize: option '--output' is required; write -o FILE");
    return PLIM_OK;
}

static enum plim_status open_codec(const struct tokenize_flags *f, struct codec *codec,
                                   struct chat_template **chat, struct plim_error *err)
{
    enum plim_status status = codec_open(f->tokenizer, codec, err);
    if (status == PLIM_OK && f->eos) status = codec_set_eos(codec, f->eos, err);
    if (status == PLIM_OK && f->append_eos && codec->eos < 0)
        status = plim_fail(
            err, PLIM_BAD_INPUT,
            "tokenize: option '--append-eos': the tokenizer names no end-of-text token; give --eos");
    const char *template = f->chat ? f->chat : f->tokenizer;
    if (status == PLIM_OK && f->messages && !template)
        status =
            plim_fail(err, PLIM_BAD_INPUT, "tokenize: conversations need --chat-template or --tokenizer");
    if (status == PLIM_OK && f->messages) status = chat_template_load(template, NULL, chat, err);
    return status;
}

static enum plim_status tokenize(const struct tokenize_flags *f, const struct string_list *in,
                                 struct plim_error *err)
{
    struct codec codec = {0};
    struct chat_template *chat = NULL;
    struct pretokenize_result result;
    struct screen screen = {.bar = isatty(STDERR_FILENO) && cli_colour(STDERR_FILENO), .quiet = f->quiet};
    enum plim_status status = check(f, err);
    if (status != PLIM_OK) return status;
    status = open_codec(f, &codec, &chat, err);
    time_t seconds = time(NULL);
    struct tm now = {0};
    localtime_r(&seconds, &now);
    struct pretokenize_options options = {
        .data = {.paths = in->items,
                 .count = (int)in->count,
                 .format = format_of(f->format),
                 .field = f->field,
                 .prompt_field = f->prompt,
                 .response_field = f->response,
                 .messages_field = f->messages,
                 .chat = chat,
                 .now = &now,
                 .add_special = f->add_special,
                 .append_eos = f->append_eos,
                 .skip_bad = f->skip_bad},
        .codec = &codec,
        .out = f->out,
        .workers = f->threads ? (int)f->threads : online_cpus(),
        .prefetch = 4,
        .max_line = (size_t)f->max_line,
        .resume = f->resume,
        .stop = cli_stop_flag(),
        .hear = draw,
        .arg = &screen,
    };
    screen.started = screen.told = clock_seconds();
    if (status == PLIM_OK) status = pretokenize(&options, &result, err);
    if (screen.bar && screen.any && !f->quiet && status != PLIM_OK) fprintf(stderr, "\n");
    if (status == PLIM_OK && !f->quiet && !f->tokenizer)
        cli_say("tokenize: no --tokenizer; each byte is a token");
    if (status == PLIM_OK && !f->quiet) tell(f, &result, clock_seconds() - screen.started);
    chat_template_free(chat);
    codec_close(&codec);
    return status;
}

static const struct tokenize_flags defaults = {.resume = true, .add_special = true, .max_line = 16 << 20};

static int run(void *flags, const struct string_list *args)
{
    struct plim_error err = {0};
    return cli_code(tokenize(flags, args, &err), &err);
}

const struct subcommand subcommand_tokenize = {&command, run,     CLI_FLAGS(defaults),
                                               1,        CLI_ANY, "give files, folders or globs"};
