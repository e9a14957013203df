/* server.h - a model behind HTTP: OpenAI's endpoints, /generate in two forms, tokens, health, metrics and a page.
 *
 *     server_open(&options, &server, &err);               // listens at once and says 503 while the model loads
 *     server_ready(server, &(struct server_model){.engine = e, .codec = &codec, .name = "demo"}, &err);
 *     engine_run(e, stop, &err);                          // the caller's thread steps the engine
 *     server_drain(server);                               // new requests get 503, those there are answered
 *     server_stop(server), engine_close(e), server_close(server);
 *
 * ask.h checks a request before it reaches the engine, and the engine checks it against its plan. A request that can
 * never run is answered with 400 and the numbers; with a full queue, 429 and Retry-After. The engine's thread only
 * stores tokens (call.h); text, JSON and sending happen on HTTP threads. If a client disconnects, or is too slow to
 * take its tokens, its request is cancelled.
 *
 * Memory for an answer is reserved when a request is accepted; if too much is reserved, the answer is 429.
 * server_bytes bounds all memory of the server besides the engine. docs/serving.md describes the endpoints.
 */
#pragma once

#include "base/json.h"
#include "net/http.h"
#include "net/secret.h"
#include "serve/engine.h"
#include "text/chat_template.h"
#include "text/codec.h"

struct server;

struct server_options {
    const char *host;
    int port;    /* 0: any free port */
    int threads; /* 0: HTTP_THREADS */
    struct http_limits limits;
    const struct secrets *keys; /* NULL or empty: no key is needed. Borrowed */
    const char *metrics_prefix; /* before every name of /metrics; NULL: none */
    /* Sizes; 0: the usual one. */
    int64_t tree_bytes;   /* maximum for a large body's JSON tree; large bodies are read one at a time */
    int64_t answer_bytes; /* maximum for the answers of all requests */
    int64_t small_bytes;  /* bodies up to this size are read concurrently */
    int64_t cache_bytes;  /* of all encoders, for words seen before */
    int64_t context;      /* tokens of the model's longest request; 0: unknown */
    bool keep_body, keep_connections, keep_threads; /* server_fit leaves these as they are */
    const struct codec *codec; /* for server_bytes, once known; server_ready sets the server's own */
    /* Tokenizing memory as a multiple of a text\'s bytes (server_encoder_times); 0: the maximum. */
    int encoder_times;
    bool runtime_adapters; /* clients may load and unload adapters, which are folders of this machine */
    void (*stop)(void);    /* called for the control socket's "stop", like SIGTERM; NULL: unsupported */
    const struct log *log;
};

/* The model to serve. The server borrows everything here until server_close. */
struct server_model {
    struct engine *engine;
    const struct codec *codec;
    const struct chat_template *chat; /* NULL: none */
    const char *name;
    const char *folder; /* of the model, for the names of its labels */
};

enum plim_status server_open(const struct server_options *options, struct server **out,
                             struct plim_error *err);
enum plim_status server_ready(struct server *s, const struct server_model *model, struct plim_error *err);
void server_drain(struct server *s);
/* The engine has stopped: drains, and answers every open request with 500. */
void server_fail(struct server *s, const char *why);
/* Refuses new requests. Call it before server_stop, so that open requests are answered. */
void server_close_door(struct server *s);
/* Closes the remaining connections. Call it before engine_close, because the engine still knows their requests;
 * server_close comes after. */
void server_stop(struct server *s);
void server_close(struct server *s);

/* A control_answer (net/control.h); arg is the struct server. {"do":"status"}: the contents of /hold.
 * {"do":"budget","bytes":N}: changes the budget; the reply comes when it is applied, or says why it cannot be.
 * {"do":"snapshot","file":F,"format":F}: replies with the order's number; status reports when the file is written
 * (engine_snapshot.h). {"do":"stop"}: finishes open requests first. */
enum plim_status server_control(void *server, const char *what, const struct node *message,
                                struct json_writer *reply, struct plim_error *err);

int server_port(const struct server *s);
int server_active(struct server *s);   /* requests not yet answered to their end */
int server_arriving(struct server *s); /* connections whose request is arriving */

#define SERVER_TREE    ((int64_t)32 << 20)
#define SERVER_ANSWERS ((int64_t)64 << 20)
#define SERVER_SMALL   ((int64_t)16 << 10)
#define SERVER_CACHE   ((int64_t)16 << 20)

/* Maximum memory of a server in addition to its engine, by part. Without options.codec the tokenizer is not
 * counted. */
struct server_parts {
    int64_t connections; /* with the bodies that they send */
    int64_t requests;    /* while they are read */
    int64_t tokenizer;   /* memory kept by tokenizing, not the vocabulary */
    int64_t answers;
};
struct server_parts server_parts(const struct server_options *options);
int64_t server_bytes(const struct server_options *options); /* their sum: for the plan */
/* Room for the answers of so many requests of so many tokens each: at least the usual one. */
int64_t server_answers_for(int64_t requests, int64_t tokens);
/* Measures the bytes that tokenizing takes per byte of ordinary text or of one long word. */
int server_encoder_times(const struct codec *codec);
/* Halves sizes until connections and requests, without the tokenizer, take at most `bytes`, or all are at their
 * minimum. */
void server_fit(struct server_options *options, int64_t bytes);

/* The server gets one part in SERVER_PART of a budget: server_fit(options, budget / SERVER_PART). A plan counts
 * server_share for it, computed from the options before server_fit. That is at least server_bytes, and slightly more
 * where a slightly larger budget would reach the next larger sizes. So a larger budget always leaves more for the
 * engine. */
enum { SERVER_PART = 16 };
int64_t server_share(const struct server_options *usual, int64_t budget);
