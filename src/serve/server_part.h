/* server_part.h - shared by the endpoints: the server's state, and helpers to read a body and to answer. */
#pragma once

#include "base/json.h"
#include "serve/ask.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include <stdatomic.h>

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };
enum { SERVER_ENCODERS = 4 };    /* maximum */
enum { SERVER_ID_BYTES = 8 };    /* of a token in JSON */
enum { SERVER_TREE_RATIO = 64 }; /* maximum bytes of a tree per byte of JSON */

struct server {
    struct http *http;
    struct server_options options;
    struct server_model model;
    _Atomic int state;
    struct metrics metrics;
    int64_t created;
    _Atomic uint64_t requests; /* so far */
    uint64_t secret;           /* for generated ids and seeds */
    pthread_mutex_t large;     /* held while a large body is read */
    pthread_mutex_t lock;
    struct call *calls;
    struct call *waking; /* calls to wake when the step is told: only the stepping thread touches it */
    int64_t answers;     /* bytes reserved for the answers of all requests */
    pthread_cond_t returned;
    size_t piece_most;                        /* bytes of text that a token of an answer adds */
    size_t longest;                           /* longest text of a token; 0: unknown */
    struct encoder *encoder[SERVER_ENCODERS]; /* not in use */
    int encoders;
    struct classifier classifier; /* of a model with labels */
};

/* A row of the table of endpoints. */
enum {
    NEEDS_KEY = 1,
    NEEDS_MODEL = 2,
    NEEDS_TEXT = 4, /* of the model */
    NEEDS_VECTORS = 8,
    NEEDS_LABELS = 32,
    NEEDS_ROOM = 16 /* a small body can give a large text: one request at a time */
};
typedef void api_function(struct server *s, struct http_exchange *x);
struct endpoint {
    const char *method, *path;
    api_function *handle;
    unsigned flags;
};

/* The endpoints. Related ones share a file: api_openai.c, api_status.c, api_tokens.c. */
api_function api_load_adapter, api_unload_adapter;
api_function api_completions, api_chat, api_models, api_embeddings, api_classify, api_generate, api_tokenize,
    api_detokenize, api_health, api_metrics, api_hold, api_page;

/* Writes state, blocks, bytes and queue as members of the open object. */
void server_write_status(struct server *s, struct json_writer *w);

/* Answers. */
void reply_json(struct http_exchange *x, int status, struct strbuf *json);
void reply_refusal(struct server *s, struct http_exchange *x, const struct refusal *why);

/* Parses the body as JSON; the caller frees the document. Returns false with *why set. */
bool body_parse(struct server *s, struct http_exchange *x, struct doc **out, struct refusal *why);
/* body_parse, ask_read, and a check that the model is the served one. */
bool body_ask(struct server *s, struct http_exchange *x, enum ask_form form, struct doc **doc,
              struct ask *ask, struct refusal *why);
bool model_is_ours(const struct server *s, const struct ask *ask, struct refusal *why);

/* Refuses with 503 while the server is shutting down. */
bool server_is_draining(struct server *s, struct refusal *why);

/* Appends the tokens of a text. `param` appears in refusals. A text of more than `most` tokens is refused as soon as
 * that is certain. */
bool server_encode(struct server *s, const char *text, size_t len, unsigned flags, const char *param,
                   int64_t most, struct token_list *out, struct refusal *why);
/* Returns an unused encoder for texts of up to this many bytes; waits for one. */
struct encoder *server_borrow(struct server *s, size_t text_bytes);
void server_give_back(struct server *s, struct encoder *encoder);
/* Number of a prompt's tokens that are counted: more than fit, so that a refusal can name the excess. */
int64_t server_tokens_most(const struct server *s);
/* Maximum memory for tokenizing a text of this size: enough for ordinary text and for one long word. */
int64_t server_encoder_limit(const struct server_options *options, int64_t bytes);
/* Maximum tokens of one text. */
int64_t server_ids_most(const struct server_options *options);
/* Number and sizes of a server's encoders (server_room.c). */
int server_encoders(const struct server_options *options);
struct encoder_room server_encoder_room(const struct server_options *options);
/* Adds the marks around a prompt: before it, and after it for models that read whole texts; none if the body disables
 * them. */
unsigned server_prompt_flags(const struct server *s, const struct ask *ask);
/* Appends a list of token ids. */
bool server_read_ids(const struct server *s, const struct node *list, const char *param,
                     struct token_list *out, struct refusal *why);
/* Renders a conversation with the model's template (chat_text.c). */
bool server_render_chat(struct server *s, const struct ask *ask, struct strbuf *out, struct refusal *why);
/* Appends the text of tokens, including special ones. At most as long as a body. */
bool server_decode(const struct server *s, const struct token_list *ids, const char *param,
                   struct strbuf *out, struct refusal *why);

/* An unpredictable number, different each time. */
uint64_t server_number(struct server *s);
