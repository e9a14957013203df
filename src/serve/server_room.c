/* server_room.c - what a server takes beside its engine, at most, and the sizes that a budget leaves it. See server.h.
 *
 * A body up to small_bytes is read beside others, on every thread of the front. Larger ones, and whatever a chat template
 * or a decoder can make large, are read one at a time. For each of the two there is a bound on the body, on its JSON as a
 * tree, on the text that a template makes of it, on what tokenizing it takes and on its tokens; answers are counted when a
 * request is taken (call.c). Nothing else that a client sends makes the process larger.
 */
#include "serve/server.h"
#include "serve/server_part.h"

/* What the limits may not go below, and what a call keeps beside its tokens. */
enum {
    LEAST_CONNECTIONS = 64,
    FEW_CONNECTIONS = 16, /* where there is so little that these bytes are too many: */
    FEW_BYTES = 2 << 20,
    LEAST_TREE = 2 << 20,
    FEW_TREE = 256 << 10,
    LEAST_ANSWERS = 2 << 20,
    FEW_ANSWERS = 512 << 10,
    LEAST_BODY = 32 << 10,
    LEAST_HEAD = 4 << 10,
    LEAST_SMALL = 1 << 10,
    LEAST_CACHE = 32 << 10,
    CACHE_MANY = 4 << 20, /* from here on there is an encoder for each of four requests */
    CALL_BYTES = 4096,
    KEEP = 4 << 10 /* of an encoder's buffers, between two texts */
};

/* Of the text's bytes: the parts of a message joined, twice, and what the template holds and writes. */
enum { CHAT_TIMES = 4 };

static bool tokenizes(const struct server_options *o) { return o->codec && o->codec->tokenizer; }

int server_encoders(const struct server_options *o) { return o->cache_bytes >= CACHE_MANY ? 4 : 2; }

struct encoder_room server_encoder_room(const struct server_options *o)
{
    return (struct encoder_room){(size_t)(o->cache_bytes / server_encoders(o)), KEEP};
}

/* A text of up to `bytes`, its tokens, and what it takes to make these of it. */
static int64_t text_bytes(const struct server_options *o, int64_t bytes)
{
    int64_t ids = bytes * (int64_t)sizeof(int32_t);
    return bytes + ids + (tokenizes(o) ? ENCODER_LIMIT(bytes) : 0);
}

struct server_parts server_parts(const struct server_options *o)
{
    int64_t threads = o->threads ? o->threads : HTTP_THREADS, body = o->limits.body_bytes;
    int64_t chat = CHAT_TIMES * body, text = text_bytes(o, body);
    struct server_parts p = {.connections = http_bytes(&o->limits, (int)threads) +
                                            o->limits.connections * (int64_t)CALL_BYTES,
                             .answers = o->answer_bytes};
    p.requests = o->tree_bytes + (chat > text ? chat : text) +
                 threads * (o->small_bytes * SERVER_TREE_RATIO + text_bytes(o, o->small_bytes));
    struct encoder_room room = server_encoder_room(o);
    if (tokenizes(o))
        p.tokenizer = server_encoders(o) * (int64_t)encoder_room_bytes(o->codec->tokenizer, &room);
    return p;
}

int64_t server_bytes(const struct server_options *o)
{
    struct server_parts p = server_parts(o);
    return p.connections + p.requests + p.tokenizer + p.answers;
}

static bool halve(int64_t *value, int64_t least)
{
    if (*value <= least) return false;
    *value = *value / 2 > least ? *value / 2 : least;
    return true;
}

static void set(int64_t *value, int64_t usual)
{
    if (!*value) *value = usual;
}

void server_fit(struct server_options *o, int64_t bytes)
{
    set(&o->tree_bytes, SERVER_TREE), set(&o->answer_bytes, SERVER_ANSWERS);
    set(&o->small_bytes, SERVER_SMALL), set(&o->cache_bytes, SERVER_CACHE);
    struct http_limits *l = &o->limits;
    bool few = bytes < FEW_BYTES;
    int64_t least = few ? FEW_CONNECTIONS : LEAST_CONNECTIONS, tree = few ? FEW_TREE : LEAST_TREE;
    for (bool smaller = true; smaller && server_bytes(o) > bytes;) {
        int64_t connections = l->connections;
        smaller = !o->keep_body && halve(&l->body_bytes, LEAST_BODY);
        smaller = halve(&o->tree_bytes, 2 * l->body_bytes > tree ? 2 * l->body_bytes : tree) || smaller;
        smaller = halve(&o->answer_bytes, few ? FEW_ANSWERS : LEAST_ANSWERS) || smaller;
        smaller = halve(&o->small_bytes, LEAST_SMALL) || smaller;
        smaller = halve(&o->cache_bytes, LEAST_CACHE) || smaller;
        smaller = halve(&l->bodies_bytes, l->body_bytes) || smaller;
        smaller = (few && halve(&l->head_bytes, LEAST_HEAD)) || smaller;
        smaller = (!o->keep_connections && halve(&connections, least)) || smaller;
        l->connections = (int)connections, l->idle = l->connections / 2;
    }
}
