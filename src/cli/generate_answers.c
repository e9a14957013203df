/* generate_answers.c - prompts in, answers out. See generate.h.
 *
 * A single answer is printed as it comes; of several each when it and all before it are whole. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/generate.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS_MOST (64 << 20) /* bytes of a file of prompts */

static const char *const stop_names[] = {"length", "end", "positions", "stopped"};

const char *answer_stop_name(enum answer_stop stop) { return stop_names[stop]; }

/* --- prompts ---------------------------------------------------------------------------------------------- */

static enum plim_status add_prompt(struct generation *g, const char *text, size_t len, struct plim_error *err)
{
    char *copy = bump_copy(&g->store, text, len);
    if (copy && string_list_add(&g->store, &g->prompts, copy)) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the prompts");
}

/* "prompt" of a line of JSON. */
static enum plim_status add_record(struct generation *g, const char *line, size_t len, int64_t number,
                                   struct plim_error *err)
{
    const char *file = g->flags->prompts_file;
    struct doc *doc = NULL;
    enum plim_status status = json_parse(line, len, file, &doc, err);
    const struct node *prompt = status == PLIM_OK ? node_get(&doc->root, "prompt") : NULL;
    const char *text = prompt ? node_string(prompt, NULL) : NULL;
    if (status == PLIM_OK && !text)
        status =
            plim_fail(err, PLIM_BAD_INPUT, "%s:%lld: write {\"prompt\": \"...\"}", file, (long long)number);
    if (status == PLIM_OK) status = add_prompt(g, text, strlen(text), err);
    doc_free(doc);
    return status;
}

static enum plim_status read_file(struct generation *g, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    const char *path = g->flags->prompts_file;
    size_t name = strlen(path);
    bool records = name > 6 && !strcmp(path + name - 6, ".jsonl");
    enum plim_status status = file_read(path, PROMPTS_MOST, &text, err);
    const char *at = strbuf_text(&text), *end = at + text.len;
    for (int64_t number = 1; at < end && status == PLIM_OK; number++) {
        const char *line = at, *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        at = stop + 1;
        if (stop > line && stop[-1] == '\r') stop--;
        if (stop == line) continue;
        status = records ? add_record(g, line, (size_t)(stop - line), number, err)
                         : add_prompt(g, line, (size_t)(stop - line), err);
    }
    strbuf_release(&text);
    return status;
}

static enum plim_status encode(struct generation *g, struct answer *a, struct encoder *encoder,
                               struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = PLIM_OK;
    token_text_init(&a->text, &g->codec);
    if (g->chat)
        status = chat_prompt_text(g->chat, &(struct chat_message){"user", a->prompt}, 1, &text, err);
    else
        strbuf_add(&text, a->prompt);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    if (status == PLIM_OK) /* a template writes the marks itself */
        status =
            codec_encode(encoder, strbuf_text(&text), text.len, g->chat ? 0 : TOKENIZE_SPECIAL, &a->ids, err);
    strbuf_release(&text);
    if (g->flags->json) a->tokens = malloc((size_t)g->flags->tokens * sizeof *a->tokens);
    if (status == PLIM_OK && (!a->ids.count || (g->flags->json && !a->tokens)))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for prompt and answer");
    return status == PLIM_OK ? token_text_follow(&a->text, a->ids.id, a->ids.count, err) : status;
}

enum plim_status generation_read(struct generation *g, struct plim_error *err)
{
    const struct string_list *given = &g->flags->prompts;
    struct encoder *encoder = NULL;
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < given->count && status == PLIM_OK; i++)
        status = add_prompt(g, given->items[i], strlen(given->items[i]), err);
    if (status == PLIM_OK && g->flags->prompts_file) status = read_file(g, err);
    if (status == PLIM_OK && !g->prompts.count)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: contains no prompt", g->flags->prompts_file);
    if (status == PLIM_OK)
        status = open_codec(cli_context(), g->flags->tokenizer, g->dir, device_line_host(&g->line), &g->codec,
                            err);
    if (status == PLIM_OK && !g->flags->raw) {
        status = chat_prompt_open(g->dir, &g->chat, err);
        if (status != PLIM_OK) plim_error_prefix(err, "generate: --raw ignores the chat template");
    }
    if (status == PLIM_OK && g->codec.tokenizer) status = encoder_open(g->codec.tokenizer, &encoder, err);
    if (status == PLIM_OK && !(g->answers = calloc(g->prompts.count, sizeof *g->answers)))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for the prompts");
    for (size_t i = 0; i < g->prompts.count && status == PLIM_OK; i++) {
        g->answers[i] = (struct answer){.all = g, .prompt = g->prompts.items[i], .copy = STRBUF_INIT};
        g->count++;
        status = encode(g, &g->answers[i], encoder, err);
    }
    encoder_close(encoder);
    g->stream = g->count == 1 && !g->flags->json;
    return status;
}

void generation_release(struct generation *g)
{
    for (size_t i = 0; i < g->count; i++) {
        strbuf_release(&g->answers[i].copy);
        token_text_release(&g->answers[i].text);
        token_list_release(&g->answers[i].ids);
        free(g->answers[i].tokens);
    }
    free(g->answers);
    strbuf_release(&g->piece);
    chat_template_free(g->chat);
    codec_close(&g->codec);
    bump_free(&g->store);
}

/* --- answers ---------------------------------------------------------------------------------------------- */

static void print(struct generation *g, const char *bytes, size_t n)
{
    if (!n) return;
    if (fwrite(bytes, 1, n, stdout) != n || fflush(stdout)) g->failed = true;
    g->last = bytes[n - 1];
}

static void put_text(struct answer *a, const char *bytes, size_t n)
{
    if (a->all->stream)
        print(a->all, bytes, n);
    else
        strbuf_addn(&a->copy, bytes, n);
}

/* Answers that are whole, in the order of their prompts. */
static void print_whole(struct generation *g)
{
    while (!g->flags->json && !g->stream && g->printed < g->count && g->answers[g->printed].done) {
        const struct answer *a = &g->answers[g->printed++];
        char head[48];
        print(g, head, (size_t)snprintf(head, sizeof head, "==> %zu <==\n", g->printed));
        if (g->flags->echo) print(g, a->prompt, strlen(a->prompt));
        print(g, strbuf_text(&a->copy), a->copy.len);
        if (g->last != '\n') print(g, "\n", 1);
    }
}

static bool add_token(struct answer *a, int32_t token)
{
    struct generation *g = a->all;
    if (g->codec.eos >= 0 && token == g->codec.eos) return a->ended = true, false;
    if (a->tokens) a->tokens[a->count] = token;
    a->count++;
    strbuf_clear(&g->piece);
    if (token_text_add(&a->text, token, &g->piece, &g->err) != PLIM_OK) return false;
    put_text(a, g->piece.data, g->piece.len);
    return !g->failed;
}

/* The answer is whole; a tokenizer's end-of-text token is an end too, where the model does not know it as one. */
static void end_answer(struct answer *a, enum answer_stop stop)
{
    struct generation *g = a->all;
    a->done = true;
    a->stop = a->ended ? STOP_END : stop;
    strbuf_clear(&g->piece);
    if (g->err.status == PLIM_OK) token_text_end(&a->text, &g->piece, &g->err);
    put_text(a, g->piece.data, g->piece.len);
    g->stopped = g->stopped || a->stop == STOP_ASKED;
    print_whole(g);
}

static void finish(struct answer *a, const struct engine_event *event)
{
    struct generation *g = a->all;
    bool cut = a->limit < g->flags->tokens;
    if (event->finish == FINISH_FAILED && g->err.status == PLIM_OK)
        plim_fail(&g->err, PLIM_IO, "%s", event->why);
    a->prompt_seconds = event->prefill_seconds, a->seconds = event->decode_seconds;
    end_answer(a, event->finish == FINISH_EOS      ? STOP_END
                  : event->finish != FINISH_LENGTH ? STOP_ASKED
                  : cut                            ? STOP_POSITIONS
                                                   : STOP_LENGTH);
}

static bool hear(void *arg, const struct engine_event *event)
{
    struct answer *a = arg;
    bool go_on = true;
    if (event->token >= 0 && !a->ended && a->all->err.status == PLIM_OK) go_on = add_token(a, event->token);
    if (event->finish != FINISH_NONE) finish(a, event);
    return go_on;
}

static struct sampling sampling_of(const struct generate_flags *f)
{
    return (struct sampling){.temperature = f->temperature,
                             .top_k = f->top_k,
                             .top_p = f->top_p,
                             .min_p = f->min_p,
                             .seed = (uint64_t)f->seed};
}

static enum plim_status submit(struct generation *g, struct engine *e, struct answer *a,
                               struct plim_error *err)
{
    const struct generate_flags *f = g->flags;
    const struct engine_plan *plan = engine_plan(e);
    /* The last token of a decoder is never read, so it needs no position. */
    int64_t room = engine_answer_room(plan, (int64_t)a->ids.count) + !plan->answer;
    a->limit = f->tokens < room ? f->tokens : room;
    struct engine_request request = {.prompt = a->ids.id,
                                     .count = (int64_t)a->ids.count,
                                     .tokens = a->limit,
                                     .sampling = sampling_of(f),
                                     .length_penalty = f->length_penalty,
                                     .logprobs = -1,
                                     .hear = hear,
                                     .arg = a};
    return engine_submit(e, &request, NULL, err);
}

/* As many at once as the queue takes; the rest as they finish. */
enum plim_status generation_run(struct generation *g, struct engine *e, struct plim_error *err)
{
    atomic_int *stop = cli_stop_flag();
    enum plim_status status = PLIM_OK;
    size_t next = 0;
    double start = clock_seconds();
    if (g->stream && g->flags->echo) print(g, g->answers[0].prompt, strlen(g->answers[0].prompt));
    while (status == PLIM_OK && (next < g->count || engine_busy(e))) {
        while (next < g->count && status == PLIM_OK)
            if ((status = submit(g, e, &g->answers[next], err)) == PLIM_OK) next++;
        if (status == PLIM_BUSY) status = PLIM_OK;
        if (status == PLIM_OK && *stop) break;
        if (status == PLIM_OK) status = engine_step(e, err);
    }
    g->seconds = clock_seconds() - start;
    return status;
}
