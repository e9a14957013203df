/* server.h - a model behind HTTP: OpenAI's endpoints, /generate in two forms, tokens, health, metrics and a page.
 *
 *     server_open(&options, &server, &err);               // listens at once and says 503 while the model loads
 *     server_ready(server, &(struct server_model){.engine = e, .codec = &codec, .name = "demo"});
 *     engine_run(e, stop, &err);                          // the caller's thread steps the engine
 *     server_drain(server);                               // new requests get 503, those there are answered
 *     server_stop(server), engine_close(e), server_close(server);
 *
 * What a request asks is checked before it reaches the engine (ask.h), and the engine checks it against its plan: one that
 * can never run is answered with 400 and the numbers, one that finds the queue full with 429 and Retry-After. The engine's
 * thread only leaves tokens at the door (call.h); text, JSON and sending happen on the front's threads. A client that goes
 * away, or is so slow that its tokens pile up, has its request cancelled.
 *
 * Memory: what a request may come to hold of its answer is counted when it is taken; where that would be too much it is
 * answered with 429. server_bytes is a bound for everything the server takes beside the engine. docs/serving.md has the endpoints.
 */
#ifndef PLIM_SERVE_SERVER_H
#define PLIM_SERVE_SERVER_H

#include "base/json.h"
#include "net/http.h"
#include "net/secret.h"
#include "serve/engine.h"
#include "text/chat_template.h"
#include "text/codec.h"

struct server;

struct server_options {
    const char *host;
    int port;    /* 0: any free one */
    int threads; /* 0: HTTP_THREADS */
    struct http_limits limits;
    const struct secrets *keys; /* NULL or none in it: nobody needs one. Borrowed */
    const char *metrics_prefix; /* before every name of /metrics; NULL: none */
    /* Sizes; 0: the usual one. */
    int64_t tree_bytes;   /* of a large body's JSON while it is read, one at a time */
    int64_t answer_bytes; /* that all requests may come to hold of their answers */
    int64_t small_bytes;  /* bodies up to this are read beside others */
    int64_t cache_bytes;  /* of all encoders, for words seen before */
    int64_t context;      /* tokens of the model's longest request; 0: nobody knows */
    bool keep_body, keep_connections, keep_threads; /* server_fit leaves these as they are */
    const struct codec *codec; /* for server_bytes, once it is known; server_ready sets the server's own */
    int encoder_times; /* of a text's bytes that tokenizing it may take (server_encoder_times); 0: as many as any */
    void (*stop)(void); /* does what SIGTERM does, when the control socket is told to; NULL: it cannot */
    const struct log *log;
};

/* What is served. Everything is borrowed until server_close. */
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
/* The engine will not step any more: drains, and answers whatever is under way with 500. */
void server_fail(struct server *s, const char *why);
/* Nobody new is let in: before server_stop, so that whoever is in can be answered. */
void server_close_door(struct server *s);
/* Hangs up on whoever is left. Before engine_close: the engine still knows of their requests, and server_close comes after it. */
void server_stop(struct server *s);
void server_close(struct server *s);

/* A control_answer (net/control.h); arg is the struct server. {"do":"status"}: what /hold says; {"do":"budget","bytes":N}: another
 * line, answered when it is held or with why it cannot be; {"do":"snapshot","file":F,"format":F}: "order", its number, and status tells
 * when the file is written (engine_snapshot.h); {"do":"stop"}: what is under way is answered first. */
enum plim_status server_control(void *server, const char *what, const struct node *message,
                                struct json_writer *reply, struct plim_error *err);

int server_port(const struct server *s);
int server_active(struct server *s);   /* requests not yet answered to their end */
int server_arriving(struct server *s); /* connections whose request is on its way */

#define SERVER_TREE    ((int64_t)32 << 20)
#define SERVER_ANSWERS ((int64_t)64 << 20)
#define SERVER_SMALL   ((int64_t)16 << 10)
#define SERVER_CACHE   ((int64_t)16 << 20)

/* What a server takes beside its engine, at most, by what takes it. Without options.codec the tokenizer is not counted. */
struct server_parts {
    int64_t connections; /* with the bodies that they send */
    int64_t requests;    /* while they are read */
    int64_t tokenizer;   /* what tokenizing keeps, not the vocabulary */
    int64_t answers;
};
struct server_parts server_parts(const struct server_options *options);
int64_t server_bytes(const struct server_options *options); /* their sum: for the plan */
/* Bytes that tokenizing takes for each byte of a text that people write, or of one long word: found by trying. */
int server_encoder_times(const struct codec *codec);
/* Smaller sizes, halved until connections and requests without the tokenizer take at most `bytes`, or each is at its least. */
void server_fit(struct server_options *options, int64_t bytes);

/* One part in SERVER_PART of a budget is the server's: server_fit(options, budget / SERVER_PART). server_share is what a plan counts for
 * it, given the options before server_fit: at least server_bytes of the sizes, and a little more where a slightly larger budget
 * would get the next larger sizes. So a larger budget always leaves more for the engine. */
enum { SERVER_PART = 16 };
int64_t server_share(const struct server_options *usual, int64_t budget);

#endif
