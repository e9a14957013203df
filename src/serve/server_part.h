/* server_part.h - what the endpoints share: the server's state, and short ways to read a body and to answer. */
#ifndef PLIM_SERVE_SERVER_PART_H
#define PLIM_SERVE_SERVER_PART_H

#include "base/json.h"
#include "serve/ask.h"
#include "serve/metrics.h"
#include "serve/server.h"
#include <stdatomic.h>

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };
enum { SERVER_ENCODERS = 4 };    /* at most */
enum { SERVER_ID_BYTES = 8 };    /* of a token in JSON */
enum { SERVER_TREE_RATIO = 64 }; /* bytes of a tree for one of JSON, at most */

struct server {
    struct http *http;
    struct server_options options;
    struct server_model model;
    _Atomic int state;
    struct metrics metrics;
    int64_t created;
    _Atomic uint64_t requests; /* so far */
    uint64_t secret;           /* for ids and seeds that nobody gave */
    pthread_mutex_t large;     /* held while a large body is read */
    pthread_mutex_t lock;
    struct call *calls;
    int64_t answers; /* bytes that requests may come to hold of their answers */
    pthread_cond_t returned;
    size_t piece_most;                        /* bytes of text that a token of an answer adds */
    size_t longest;                           /* bytes of text that a token stands for; 0: nobody knows */
    struct encoder *encoder[SERVER_ENCODERS]; /* that nobody uses */
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
    NEEDS_ROOM = 16 /* a small body can become a large text: one request at a time */
};
struct endpoint {
    const char *method, *path;
    void (*handle)(struct server *s, struct http_exchange *x);
    unsigned flags;
};

/* The endpoints, one file each. */
void api_completions(struct server *s, struct http_exchange *x);
void api_chat(struct server *s, struct http_exchange *x);
void api_models(struct server *s, struct http_exchange *x);
void api_embeddings(struct server *s, struct http_exchange *x);
void api_classify(struct server *s, struct http_exchange *x);
void api_generate(struct server *s, struct http_exchange *x);
void api_tokenize(struct server *s, struct http_exchange *x);
void api_detokenize(struct server *s, struct http_exchange *x);
void api_health(struct server *s, struct http_exchange *x);
void api_metrics(struct server *s, struct http_exchange *x);
void api_hold(struct server *s, struct http_exchange *x);
void api_page(struct server *s, struct http_exchange *x);

/* State, blocks, bytes and queue, as members of an object that is open. */
void server_write_status(struct server *s, struct json_writer *w);

/* Answers. */
void reply_json(struct http_exchange *x, int status, struct strbuf *json);
void reply_refusal(struct server *s, struct http_exchange *x, const struct refusal *why);

/* The body as JSON; the caller frees the document. False: *why. */
bool body_parse(struct server *s, struct http_exchange *x, struct doc **out, struct refusal *why);
/* body_parse and ask_read, and that the model is ours. */
bool body_ask(struct server *s, struct http_exchange *x, enum ask_form form, struct doc **doc,
              struct ask *ask, struct refusal *why);
bool model_is_ours(const struct server *s, const struct ask *ask, struct refusal *why);

/* Refuses with 503 where the server is shutting down. */
bool server_is_draining(struct server *s, struct refusal *why);

/* Text to tokens, appended. `param` stands in refusals. A text of more than `most` tokens is refused as soon as that is sure. */
bool server_encode(struct server *s, const char *text, size_t len, unsigned flags, const char *param,
                   int64_t most, struct token_list *out, struct refusal *why);
/* An encoder that nobody else uses, for texts of up to so many bytes; waits for one. */
struct encoder *server_borrow(struct server *s, size_t text_bytes);
void server_give_back(struct server *s, struct encoder *encoder);
/* As many tokens of a prompt as are counted: more than fit, so that a refusal can say how many too many. */
int64_t server_tokens_most(const struct server *s);
/* Bytes that a text of so many may take while it is tokenized: enough for what people write, and for one long word. */
int64_t server_encoder_limit(const struct server_options *options, int64_t bytes);
/* Tokens of one text, at most. */
int64_t server_ids_most(const struct server_options *options);
/* Encoders of a server, and how large they are (server_room.c). */
int server_encoders(const struct server_options *options);
struct encoder_room server_encoder_room(const struct server_options *options);
/* The marks around a prompt: in front, and behind those that a model reads whole; none where the body says so. */
unsigned server_prompt_flags(const struct server *s, const struct ask *ask);
/* A list of token ids of the vocabulary, appended. */
bool server_read_ids(const struct server *s, const struct node *list, const char *param,
                     struct token_list *out, struct refusal *why);
/* A conversation as the model's template writes it (chat_text.c). */
bool server_render_chat(struct server *s, const struct ask *ask, struct strbuf *out, struct refusal *why);
/* Tokens to text, appended; special ones are part of it. At most as long as a body. */
bool server_decode(const struct server *s, const struct token_list *ids, const char *param,
                   struct strbuf *out, struct refusal *why);

/* A number nobody can guess, another one each time. */
uint64_t server_number(struct server *s);

#endif
