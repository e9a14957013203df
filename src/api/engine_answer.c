/* engine_answer.c - a request from its prompt to the last piece of its text. See engine_part.h.
 *
 * The engine owns an answer from submit to the last event, after which it is freed. Its events come on the stepping thread. */
#include "api/chat_prompt.h"
#include "api/engine_part.h"
#include "serve/stop_text.h"
#include "text/token_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)PLIM_FINISH_NONE == FINISH_NONE && (int)PLIM_FINISH_LENGTH == FINISH_LENGTH &&
                  (int)PLIM_FINISH_STOP == FINISH_EOS && (int)PLIM_FINISH_CANCELLED == FINISH_CANCELLED &&
                  (int)PLIM_FINISH_FAILED == FINISH_FAILED,
              "ends of the public API are those of serve/engine.h");

struct answer {
    struct plim_engine *engine;
    answer_hear *hear;
    void *arg;
    bool ignore_eos;
    struct token_text text;
    struct stop_text stop;
    struct stop_string *strings; /* of stop; their text is in `words` */
    char *words;
    struct strbuf raw, piece; /* decoded; certain, and told with the next event */
    int64_t tokens;           /* told */
    enum plim_finish end;     /* decided before the engine knows; NONE: it is not */
    struct plim_error err;    /* why end is FAILED */
};

static void answer_free(struct answer *a)
{
    if (!a) return;
    token_text_release(&a->text);
    stop_text_release(&a->stop);
    strbuf_release(&a->raw);
    strbuf_release(&a->piece);
    free(a->strings);
    free(a->words);
    free(a);
}

/* --- events ------------------------------------------------------------------------------------------------- */

static void fail(struct answer *a) { a->end = PLIM_FINISH_FAILED; }

/* Adds what was decoded, up to a stop string. */
static void add_text(struct answer *a)
{
    if (stop_text_add(&a->stop, strbuf_text(&a->raw), a->raw.len, &a->piece) >= 0) a->end = PLIM_FINISH_STOP;
    strbuf_clear(&a->raw);
    if (strbuf_status(&a->piece, &a->err) != PLIM_OK) fail(a);
}

/* Returns false for an end-of-text token, which is no part of the answer. */
static bool add_token(struct answer *a, int32_t token)
{
    const struct codec *codec = &a->engine->codec;
    if (codec->eos >= 0 && token == codec->eos && !a->ignore_eos) return a->end = PLIM_FINISH_STOP, false;
    a->tokens++;
    if (token_text_add(&a->text, token, &a->raw, &a->err) != PLIM_OK)
        fail(a);
    else
        add_text(a);
    return true;
}

/* Adds the text that waited for more; it may complete a stop string. */
static void add_rest(struct answer *a)
{
    if (token_text_end(&a->text, &a->raw, &a->err) != PLIM_OK) return fail(a);
    add_text(a);
    if (a->end == PLIM_FINISH_NONE) stop_text_end(&a->stop, &a->piece);
}

static bool tell(struct answer *a, const struct engine_event *e, int32_t token, enum plim_finish finish)
{
    struct plim_engine_event event = {.size = sizeof event,
                                      .id = e->id,
                                      .text = strbuf_text(&a->piece),
                                      .text_bytes = a->piece.len,
                                      .token = token,
                                      .logprob = token >= 0 ? e->logprob : 0,
                                      .finish = finish,
                                      .prompt_tokens = e->prompt_tokens,
                                      .tokens = a->tokens,
                                      .queue_seconds = e->queue_seconds,
                                      .prefill_seconds = e->prefill_seconds,
                                      .decode_seconds = e->decode_seconds};
    if (finish == PLIM_FINISH_FAILED) event.why = a->err.text[0] ? a->err.text : e->why;
    bool more = !a->hear || a->hear(a->arg, &event) == 0;
    strbuf_clear(&a->piece);
    return more;
}

static bool hear(void *arg, const struct engine_event *e)
{
    struct answer *a = arg;
    int32_t token = -1;
    if (e->token >= 0 && a->end == PLIM_FINISH_NONE && add_token(a, e->token)) token = e->token;
    if (e->finish == FINISH_NONE) return (token < 0 || tell(a, e, token, PLIM_FINISH_NONE)) && !a->end;
    if (a->end == PLIM_FINISH_NONE) add_rest(a);
    tell(a, e, token, a->end ? a->end : (enum plim_finish)e->finish);
    answer_free(a);
    return false;
}

/* --- submitting --------------------------------------------------------------------------------------------- */

static enum plim_status copy_stops(struct answer *a, const char *const *stop, struct plim_error *err)
{
    size_t count = 0, bytes = 0;
    for (; stop && stop[count]; count++) bytes += strlen(stop[count]);
    if (!count) return PLIM_OK;
    a->strings = calloc(count, sizeof *a->strings);
    a->words = malloc(bytes + 1);
    if (!a->strings || !a->words) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for stop strings");
    char *at = a->words;
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(stop[i]);
        if (!len) return plim_fail(err, PLIM_BAD_INPUT, "request.stop: string %zu is empty", i + 1);
        memcpy(at, stop[i], len);
        a->strings[i] = (struct stop_string){at, len};
        at += len;
    }
    a->stop = (struct stop_text){.strings = a->strings, .count = (int)count};
    return PLIM_OK;
}

/* A decoder continues the text, so that no mark ends it; an encoder-decoder reads it as a whole. A template writes marks itself. */
static unsigned marks(const struct plim_engine *e, const struct plim_request *r)
{
    if (r->chat) return 0;
    return model_has_source(engine_spec(e->model.engine)) ? TOKENIZE_SPECIAL : TOKENIZE_BEFORE;
}

static enum plim_status encode(struct plim_engine *e, const struct plim_request *r, struct token_list *ids,
                               struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = PLIM_OK;
    if (r->chat && !e->chat)
        status = plim_fail(err, e->no_chat.status, "%s", e->no_chat.text);
    else if (r->chat)
        status = chat_prompt_json(e->chat, r->prompt, true, &text, err);
    else
        strbuf_add(&text, r->prompt);
    if (status == PLIM_OK) status = strbuf_status(&text, err);
    pthread_mutex_lock(&e->encoding);
    if (status == PLIM_OK)
        status = codec_encode(e->encoder, strbuf_text(&text), text.len, marks(e, r), ids, err);
    pthread_mutex_unlock(&e->encoding);
    strbuf_release(&text);
    return status;
}

static enum plim_status take_ids(const struct plim_request *r, struct token_list *ids, struct plim_error *err)
{
    if (!token_list_reserve(ids, r->id_count))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for a prompt");
    if (r->id_count) memcpy(ids->id, r->ids, r->id_count * sizeof *ids->id);
    ids->count = r->id_count;
    return PLIM_OK;
}

static enum plim_status read_prompt(struct plim_engine *e, const struct plim_request *r,
                                    struct token_list *ids, struct plim_error *err)
{
    if (!r->prompt == !r->ids)
        return plim_fail(err, PLIM_BAD_INPUT, "set either request.prompt or request.ids");
    if (r->ids && r->chat)
        return plim_fail(err, PLIM_BAD_INPUT, "request.chat needs request.prompt, a JSON array of messages");
    enum plim_status status = r->prompt ? encode(e, r, ids, err) : take_ids(r, ids, err);
    if (status == PLIM_OK && !ids->count)
        status = plim_fail(err, PLIM_BAD_INPUT, "the prompt is empty; give at least one character");
    return status;
}

static struct engine_request request_of(struct answer *a, const struct plim_request *r,
                                        const struct token_list *ids)
{
    return (struct engine_request){.prompt = ids->id,
                                   .count = (int64_t)ids->count,
                                   .tokens = r->max_tokens,
                                   .sampling = {.temperature = r->temperature,
                                                .top_k = r->top_k,
                                                .top_p = r->top_p,
                                                .min_p = r->min_p,
                                                .seed = r->seed,
                                                .repetition_penalty = r->repetition_penalty,
                                                .presence_penalty = r->presence_penalty,
                                                .frequency_penalty = r->frequency_penalty},
                                   .length_penalty = 1,
                                   .logprobs = r->logprobs ? 0 : -1,
                                   .ignore_eos = r->ignore_eos,
                                   .adapter = r->adapter,
                                   .hear = hear,
                                   .arg = a};
}

/* Under the gate. */
static enum plim_status enqueue(struct plim_engine *e, struct engine_request *ask, int64_t *id,
                                struct plim_error *err)
{
    struct engine *engine = e->model.engine;
    if (e->broken.status != PLIM_OK) return *err = e->broken, err->status;
    struct engine_plan plan = engine_plan_now(engine);
    /* The last token of a decoder is never read, so it needs no position. */
    if (!ask->tokens) ask->tokens = engine_answer_room(&plan, ask->count) + !plan.answer;
    if (ask->tokens < 1) ask->tokens = 1; /* the engine names the numbers */
    return engine_submit(engine, ask, id, err);
}

enum plim_status answer_submit(struct plim_engine *e, const struct plim_request *request,
                               const char *function, int64_t *id, struct plim_error *err)
{
    struct plim_request r;
    struct token_list ids = {0};
    enum plim_status status = options_take(&r, sizeof r, request, function, err);
    if (status != PLIM_OK) return status;
    if (r.max_tokens < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: request.max_tokens is negative", function);
    struct answer *a = calloc(1, sizeof *a);
    if (!a) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a request", function);
    a->engine = e, a->hear = r.hear, a->arg = r.arg, a->ignore_eos = r.ignore_eos;
    token_text_init(&a->text, &e->codec);
    status = copy_stops(a, r.stop, err);
    if (status == PLIM_OK) status = read_prompt(e, &r, &ids, err);
    /* The answer of an encoder-decoder is a text of its own. */
    if (status == PLIM_OK && !model_has_source(engine_spec(e->model.engine)))
        status = token_text_follow(&a->text, ids.id, ids.count, err);
    struct engine_request ask = request_of(a, &r, &ids);
    pthread_mutex_lock(&e->gate);
    if (status == PLIM_OK) status = enqueue(e, &ask, id, err);
    pthread_mutex_unlock(&e->gate);
    token_list_release(&ids);
    if (status == PLIM_OK) return PLIM_OK;
    answer_free(a);
    plim_error_prefix(err, "%s", function);
    return status;
}
