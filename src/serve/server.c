/* server.c - see server.h. The table of endpoints, who may use them, and what they share. */
#include "serve/server.h"
#include "serve/call.h"
#include "serve/engine_adapters.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "mem/os.h"
#include "net/http_answers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

static const struct endpoint endpoints[] = {
    {"POST", "/v1/completions", api_completions, NEEDS_KEY | NEEDS_MODEL | NEEDS_TEXT},
    {"POST", "/v1/chat/completions", api_chat, NEEDS_KEY | NEEDS_MODEL | NEEDS_TEXT | NEEDS_ROOM},
    {"POST", "/v1/embeddings", api_embeddings, NEEDS_KEY | NEEDS_MODEL | NEEDS_VECTORS},
    {"POST", "/v1/classify", api_classify, NEEDS_KEY | NEEDS_MODEL | NEEDS_LABELS},
    {"GET", "/v1/models", api_models, NEEDS_KEY | NEEDS_MODEL},
    {"POST", "/v1/load_lora_adapter", api_load_adapter, NEEDS_KEY | NEEDS_MODEL | NEEDS_TEXT},
    {"POST", "/v1/unload_lora_adapter", api_unload_adapter, NEEDS_KEY | NEEDS_MODEL | NEEDS_TEXT},
    {"POST", "/generate", api_generate, NEEDS_KEY | NEEDS_MODEL | NEEDS_TEXT},
    {"POST", "/tokenize", api_tokenize, NEEDS_KEY | NEEDS_MODEL | NEEDS_ROOM},
    {"POST", "/detokenize", api_detokenize, NEEDS_KEY | NEEDS_MODEL | NEEDS_ROOM},
    {"GET", "/health", api_health, 0},
    {"GET", "/metrics", api_metrics, NEEDS_KEY},
    {"GET", "/hold", api_hold, NEEDS_KEY},
    {"GET", "/", api_page, 0},
};
enum { ENDPOINTS = sizeof endpoints / sizeof endpoints[0] };

/* --- who may ----------------------------------------------------------------------------------------------- */

static bool has_keys(const struct server *s) { return s->options.keys && s->options.keys->count; }

static bool shows_key(const struct server *s, const struct http_exchange *x)
{
    const char *shown = http_header(x, "Authorization");
    if (!has_keys(s) || !shown || strncasecmp(shown, "Bearer ", 7)) return false;
    shown += 7;
    while (*shown == ' ') shown++;
    return secrets_match(s->options.keys, shown, strlen(shown));
}

/* "http://host:port" of a page that the same server has sent. */
static bool same_origin(const char *origin, const char *host)
{
    const char *after = strstr(origin, "://");
    return host && after && !strcasecmp(after + 3, host);
}

/* Browsers reach servers of the machine they run on. A page from elsewhere must not use ours: neither under its own name
 * (Origin) nor under one of its own that was made to point here (Host). Whoever shows a key is no such page. */
static bool check_browser(const struct server *s, const struct http_exchange *x, struct refusal *why)
{
    const char *origin = http_header(x, "Origin"), *host = http_header(x, "Host");
    const char *site = http_header(x, "Sec-Fetch-Site");
    if (shows_key(s, x)) return true;
    if (http_is_loopback(s->http) && host && !host_is_address(host))
        return refuse(why, 403, NULL, "host_refused",
                      "this server answers to 127.0.0.1 and localhost, not to the name '%.80s'", host);
    bool posts = !strcmp(http_method(x), "POST");
    if (posts && ((origin && !same_origin(origin, host)) || (site && !strcmp(site, "cross-site"))))
        return refuse(why, 403, NULL, "origin_refused",
                      "requests of web pages from elsewhere are refused unless they show a key");
    return true;
}

static const struct endpoint *find(const struct http_exchange *x, const char **allowed)
{
    const char *method = http_method(x);
    if (!strcmp(method, "HEAD")) method = "GET";
    *allowed = NULL;
    for (int i = 0; i < ENDPOINTS; i++) {
        if (strcmp(endpoints[i].path, http_path(x))) continue;
        if (!strcmp(endpoints[i].method, method)) return &endpoints[i];
        *allowed = strcmp(endpoints[i].method, "GET") ? endpoints[i].method : "GET, HEAD";
    }
    return NULL;
}

/* Refuses a request when the model cannot produce what the endpoint returns. */
static bool check_kind(const struct server *s, const struct endpoint *e, struct refusal *why)
{
    struct engine_plan plan = engine_plan_now(s->model.engine);
    const char *name = s->model.name;
    if ((e->flags & (NEEDS_TEXT | NEEDS_VECTORS)) && plan.labels)
        return refuse(why, 501, NULL, "unsupported", "'%s' labels texts: /v1/classify is for it", name);
    if ((e->flags & NEEDS_TEXT) && plan.width)
        return refuse(why, 501, NULL, "unsupported",
                      "'%s' makes embeddings and writes no text: /v1/embeddings is for it", name);
    if ((e->flags & NEEDS_VECTORS) && !plan.width)
        return refuse(why, 501, NULL, "unsupported", "'%s' writes text and makes no embeddings", name);
    if ((e->flags & NEEDS_LABELS) && !plan.labels)
        return refuse(why, 501, NULL, "unsupported",
                      "'%s' has no labels: /v1/classify needs a model for token or sequence classification",
                      name);
    return true;
}

bool server_is_draining(struct server *s, struct refusal *why)
{
    if (atomic_load(&s->state) != SERVER_DRAINING) return false;
    refuse(why, 503, NULL, "shutting_down", "the server is shutting down");
    return true;
}

static bool check_state(struct server *s, const struct endpoint *e, struct refusal *why)
{
    if (!(e->flags & NEEDS_MODEL)) return true;
    if (atomic_load(&s->state) == SERVER_LOADING)
        return refuse(why, 503, NULL, "loading", "the model is being loaded; try again later");
    return e->handle == api_models || !server_is_draining(s, why);
}

static bool check(struct server *s, struct http_exchange *x, struct refusal *why)
{
    const char *allowed;
    const struct endpoint *e = find(x, &allowed);
    if (!check_browser(s, x, why)) return false;
    if (!e && allowed) {
        http_set_header(x, "Allow", allowed);
        return refuse(why, 405, NULL, "method_not_allowed", "%.60s takes %s", http_path(x), allowed);
    }
    if (!e) return refuse(why, 404, NULL, "not_found", "there is no %.60s here", http_path(x));
    if ((e->flags & NEEDS_KEY) && has_keys(s) && !shows_key(s, x)) {
        http_set_header(x, "WWW-Authenticate", "Bearer");
        return refuse(why, 401, NULL, "invalid_api_key",
                      "a key is needed: send it as 'Authorization: Bearer KEY'");
    }
    if (!check_state(s, e, why)) return false;
    return !(e->flags & NEEDS_MODEL) || check_kind(s, e, why);
}

/* --- the front's calls -------------------------------------------------------------------------------------- */

static void on_begin(void *arg, struct http_exchange *x)
{
    struct refusal why = {0};
    if (!check(arg, x, &why)) reply_refusal(arg, x, &why);
}

static void on_handle(void *arg, struct http_exchange *x)
{
    const char *allowed;
    const struct endpoint *e = find(x, &allowed);
    struct server *s = arg;
    struct refusal why = {0};
    size_t len;
    if (!check_state(s, e, &why)) return reply_refusal(s, x, &why); /* it was ready when the head came */
    http_body(x, &len);
    /* One of them at a time: server_room.c counts what one takes. */
    bool large = (e->flags & NEEDS_ROOM) || len > (size_t)s->options.small_bytes;
    if (large) pthread_mutex_lock(&s->large);
    e->handle(s, x); /* on_begin has refused what there is not */
    if (len > (size_t)s->options.small_bytes) os_give_back();
    if (large) pthread_mutex_unlock(&s->large);
}

static void on_more(void *, struct http_exchange *x)
{
    struct call *call = http_user(x);
    if (call) call_more(call);
}

static void on_end(void *arg, struct http_exchange *x, bool lost)
{
    struct server *s = arg;
    struct call *call = http_user(x);
    metrics_answered(&s->metrics, lost ? 499 : http_status(x));
    if (call) call_end(call);
}

static const struct http_service service = {on_begin, on_handle, on_more, on_end};

/* --- life --------------------------------------------------------------------------------------------------- */

enum plim_status server_open(const struct server_options *options, struct server **out,
                             struct plim_error *err)
{
    struct server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while the server was set up");
    s->options = *options;
    server_fit(&s->options, INT64_MAX); /* sizes that nobody gave are the usual ones */
    s->created = (int64_t)clock_wall();
    if (getrandom(&s->secret, sizeof s->secret, 0) != sizeof s->secret)
        s->secret = (uint64_t)(clock_wall() * 1e9) ^ (uint64_t)(uintptr_t)s;
    metrics_init(&s->metrics);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->large, NULL);
    pthread_cond_init(&s->returned, NULL);
    struct http_options http = {.host = options->host,
                                .port = options->port,
                                .threads = options->threads,
                                .limits = options->limits,
                                .service = &service,
                                .arg = s,
                                .log = options->log};
    enum plim_status status = http_open(&http, &s->http, err);
    if (status == PLIM_OK) return *out = s, PLIM_OK;
    server_close(s);
    return status;
}

/* Beside a token's own text: blanks that decoders put, a character in place of bytes that are none. */
enum { PIECE_SPARE = 4 };

enum plim_status server_ready(struct server *s, const struct server_model *model, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const struct tokenizer *tok = model->codec->tokenizer;
    struct encoder_room room = server_encoder_room(&s->options);
    s->model = *model, s->options.codec = model->codec;
    s->options.encoder_times = server_encoder_times(model->codec);
    s->longest = tok ? tokenizer_longest(tok) : 1;
    s->piece_most = PIECE_SPARE + (tok ? tokenizer_text_most(tok) : 1);
    while (tok && s->encoders < server_encoders(&s->options) && status == PLIM_OK) {
        status = encoder_open_within(tok, &room, &s->encoder[s->encoders], err);
        if (status == PLIM_OK) s->encoders++;
    }
    if (status == PLIM_OK && engine_plan(model->engine)->labels)
        status = classifier_open(&s->classifier, model->folder, engine_spec(model->engine), tok, err);
    if (status != PLIM_OK) return status;
    engine_on_told(model->engine, call_wake_all, s);
    atomic_store(&s->state, SERVER_READY);
    return status;
}

void server_drain(struct server *s) { atomic_store(&s->state, SERVER_DRAINING); }

void server_fail(struct server *s, const char *why)
{
    server_drain(s);
    call_fail_all(s, why);
}

void server_stop(struct server *s)
{
    if (!s || !s->http) return;
    http_close(s->http), s->http = NULL;
    if (s->model.engine) engine_on_told(s->model.engine, NULL, NULL);
}

void server_close(struct server *s)
{
    if (!s) return;
    server_stop(s);
    call_wake_all(s); /* of a step that failed while it was told */
    for (int i = 0; i < s->encoders; i++) encoder_close(s->encoder[i]);
    pthread_cond_destroy(&s->returned);
    pthread_mutex_destroy(&s->large);
    pthread_mutex_destroy(&s->lock);
    metrics_release(&s->metrics);
    classifier_close(&s->classifier);
    free(s);
}

void server_close_door(struct server *s) { http_close_door(s->http); }
int server_port(const struct server *s) { return http_port(s->http); }
int server_active(struct server *s) { return http_active(s->http); }
int server_arriving(struct server *s) { return http_arriving(s->http); }

uint64_t server_number(struct server *s)
{
    uint64_t words[2] = {s->secret, atomic_fetch_add(&s->requests, 1)};
    return hash64(words, sizeof words, s->secret);
}

/* --- answers ------------------------------------------------------------------------------------------------ */

void reply_json(struct http_exchange *x, int status, struct strbuf *json)
{
    strbuf_addc(json, '\n');
    http_answer(x, status, "application/json", json);
}

/* Seconds after which a full queue is worth another try: what a request takes on average, from 1 to 60. */
static int retry_after(struct server *s)
{
    double mean = metrics_mean(&s->metrics, METRIC_E2E);
    return mean < 1 ? 1 : mean > 60 ? 60 : (int)ceil(mean);
}

void reply_refusal(struct server *s, struct http_exchange *x, const struct refusal *why)
{
    struct strbuf out = STRBUF_INIT;
    char seconds[16];
    if (why->status == 429 || why->status == 503) {
        snprintf(seconds, sizeof seconds, "%d", retry_after(s));
        http_set_header(x, "Retry-After", seconds);
    }
    refusal_write(why, &out);
    reply_json(x, why->status, &out);
}

/* --- bodies ------------------------------------------------------------------------------------------------- */

bool body_parse(struct server *s, struct http_exchange *x, struct doc **out, struct refusal *why)
{
    struct plim_error err = {0};
    struct strbuf body = http_take_body(x);
    int64_t small = s->options.small_bytes;
    struct quota quota = {.most = (uint64_t)(small * SERVER_TREE_RATIO), .why = "the most for a request"};
    *out = NULL;
    if (body.len > (size_t)small) quota.most = (uint64_t)s->options.tree_bytes;
    if (json_parse_taking(&body, "body", &quota, out, &err) == PLIM_OK) return true;
    return refuse(why, 400, NULL, "invalid_json", "%s", err.text);
}

bool model_is_ours(const struct server *s, const struct ask *ask, struct refusal *why)
{
    if (!ask->model || !strcmp(ask->model, s->model.name)) return true;
    if (engine_has_adapter(s->model.engine, ask->model)) return true;
    return refuse(why, 404, "model", "model_not_found",
                  "there is no model '%.100s' here; this server has '%s'", ask->model, s->model.name);
}

bool body_ask(struct server *s, struct http_exchange *x, enum ask_form form, struct doc **doc,
              struct ask *ask, struct refusal *why)
{
    return body_parse(s, x, doc, why) && ask_read(&(*doc)->root, form, ask, why) &&
           model_is_ours(s, ask, why);
}

/* --- tokens ------------------------------------------------------------------------------------------------- */

struct encoder *server_borrow(struct server *s, size_t text_bytes)
{
    pthread_mutex_lock(&s->lock);
    while (!s->encoders) pthread_cond_wait(&s->returned, &s->lock);
    struct encoder *encoder = s->encoder[--s->encoders];
    pthread_mutex_unlock(&s->lock);
    int64_t small = s->options.small_bytes;
    int64_t bytes = text_bytes > (size_t)small ? s->options.limits.body_bytes : small;
    encoder_limit(encoder, (size_t)server_encoder_limit(&s->options, bytes));
    return encoder;
}

void server_give_back(struct server *s, struct encoder *encoder)
{
    LOCKED(&s->lock);
    s->encoder[s->encoders++] = encoder;
    pthread_cond_signal(&s->returned);
}

int64_t server_tokens_most(const struct server *s)
{
    return min64(2 * engine_plan_now(s->model.engine).context + 64, server_ids_most(&s->options));
}

static bool refuse_longer(struct server *s, const char *param, int64_t most, struct refusal *why)
{
    return refuse(why, 400, param, "context_length_exceeded",
                  "this server's context is %lld tokens; %s has more than %lld",
                  (long long)engine_plan_now(s->model.engine).context, param, (long long)most);
}

/* Encoders want room for a few ids before they know how many there are. */
enum { IDS_SPARE = 64 };

static enum plim_status encode(struct server *s, const char *text, size_t len, unsigned flags,
                               struct token_list *out, struct plim_error *err)
{
    struct encoder *encoder = server_borrow(s, len);
    enum plim_status status = encoder_encode(encoder, text, len, flags, out, err);
    server_give_back(s, encoder);
    return status;
}

bool server_encode(struct server *s, const char *text, size_t len, unsigned flags, const char *param,
                   int64_t most, struct token_list *out, struct refusal *why)
{
    struct plim_error err = {0};
    if (s->longest && len / s->longest > (size_t)most) return refuse_longer(s, param, most, why);
    if (!s->model.codec->tokenizer) {
        if (!token_list_reserve(out, len)) return refuse(why, 503, param, "out_of_memory", "out of memory");
        for (size_t i = 0; i < len; i++) out->id[out->count++] = (unsigned char)text[i];
        return true;
    }
    out->most = out->count + (size_t)most + IDS_SPARE;
    enum plim_status status = encode(s, text, len, flags, out, &err);
    if (out->full || out->count > (size_t)most) return refuse_longer(s, param, most, why);
    if (status == PLIM_NO_FIT) return refuse(why, 413, param, "text_too_large", "%s: %s", param, err.text);
    return status == PLIM_OK || refuse_error(why, param, &err);
}

unsigned server_prompt_flags(const struct server *s, const struct ask *ask)
{
    struct engine_plan plan = engine_plan_now(s->model.engine);
    if (!ask->special) return 0;
    return plan.answer || plan.width ? TOKENIZE_SPECIAL : TOKENIZE_BEFORE;
}

bool server_read_ids(const struct server *s, const struct node *list, const char *param,
                     struct token_list *out, struct refusal *why)
{
    int64_t id;
    if (!token_list_reserve(out, node_count(list) + 1))
        return refuse(why, 503, param, "out_of_memory", "out of memory");
    for (size_t i = 0; i < node_count(list); i++) {
        if (!node_is_whole(node_item(list, i), &id) || id < 0 || id >= s->model.codec->vocab_size)
            return refuse(why, 422, param, "invalid_value",
                          "%s: item %zu is no token of the vocabulary of %lld", param, i,
                          (long long)s->model.codec->vocab_size);
        out->id[out->count++] = (int32_t)id;
    }
    return true;
}

bool server_decode(const struct server *s, const struct token_list *ids, const char *param,
                   struct strbuf *out, struct refusal *why)
{
    struct plim_error err = {0};
    out->most = (size_t)s->options.limits.body_bytes;
    if (codec_decode(s->model.codec, ids->id, ids->count, 0, out, &err) == PLIM_OK) return true;
    if (!out->full) return refuse_error(why, param, &err);
    return refuse(why, 413, param, "text_too_large", "%s: they are a text of more than %lld bytes", param,
                  (long long)s->options.limits.body_bytes);
}
