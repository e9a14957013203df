/* server_room.c - what a server takes beside its engine, at most, and the sizes that a budget leaves it. See server.h.
 *
 * A body up to small_bytes is read beside others, on every thread of the front. Larger ones, and whatever a chat template
 * or a decoder can make large, are read one at a time. For each of the two there is a bound on the body, on its JSON as a
 * tree, on the text that a template makes of it, on what tokenizing it takes and on its tokens; answers are counted when a
 * request is taken (call.c). Nothing else that a client sends makes the process larger.
 */
#include "serve/server.h"
#include "serve/server_part.h"
#include "base/minmax.h"

/* Lower bounds of the limits, and the bytes that a call keeps apart from its tokens. */
enum {
    LEAST_CONNECTIONS = 16,
    LEAST_THREADS = 2,
    LEAST_TREE = 128 << 10,
    LIST_TREE = 512 << 10,
    LEAST_ANSWERS = 256 << 10,
    LEAST_BODY = 16 << 10,
    BODY_PART = 32,       /* a body gets smaller once it is more than this part of all, */
    CONNECTIONS_PART = 2, /* and connections fewer */
    LEAST_HEAD = 4 << 10,
    LEAST_SMALL = 1 << 10,
    NONE_SMALL = 1, /* no body is small: all are read one at a time */
    LEAST_CACHE = 32 << 10,
    CACHE_MANY = 4 << 20, /* from here on there is an encoder for each of four requests */
    CALL_BYTES = 4096,
    KEEP = 4 << 10 /* of an encoder's buffers, between two texts */
};

/* Encoder memory as a multiple of a text's bytes, and the amount for an empty text. A token takes 4 bytes, so many
 * texts fit where one does. */
enum {
    ENCODER_TIMES_LEAST = 4,
    ENCODER_TIMES = 8, /* at most */
    ENCODER_SPARE = 16 << 10,
    ENCODER_TRIAL = 64 << 10 /* bytes of a text that is tried */
};

/* Chat memory as a multiple of the text's bytes: the parts of a message joined, twice, and the template's state and
 * output. */
enum { CHAT_TIMES = 4 };

static bool tokenizes(const struct server_options *o) { return o->codec && o->codec->tokenizer; }

int server_encoders(const struct server_options *o) { return o->cache_bytes >= CACHE_MANY ? 4 : 2; }

struct encoder_room server_encoder_room(const struct server_options *o)
{
    return (struct encoder_room){(size_t)(o->cache_bytes / server_encoders(o)), KEEP};
}

static bool encodes_within(const struct tokenizer *tok, const char *text, size_t len, int times)
{
    struct encoder_room room = {LEAST_CACHE, KEEP};
    struct encoder *encoder;
    struct token_list ids = {0};
    if (encoder_open_within(tok, &room, &encoder, NULL) != PLIM_OK) return false;
    encoder_limit(encoder, (size_t)times * len + ENCODER_SPARE);
    bool fits = encoder_encode(encoder, text, len, 0, &ids, NULL) == PLIM_OK;
    token_list_release(&ids);
    encoder_close(encoder);
    return fits;
}

int server_encoder_times(const struct codec *codec)
{
    static const char *const units[] = {"th", "1", "The ship went down to the sea. ", "\n",
                                        "\xe4\xbd\xa0\xe5\xa5\xbd"};
    int times = ENCODER_TIMES_LEAST;
    for (size_t i = 0; codec->tokenizer && i < sizeof units / sizeof *units; i++) {
        STRBUF_AUTO text = STRBUF_INIT;
        while (text.len < ENCODER_TRIAL && !text.failed) strbuf_add(&text, units[i]);
        while (times < ENCODER_TIMES &&
               !encodes_within(codec->tokenizer, strbuf_text(&text), text.len, times))
            times++;
    }
    return times;
}

int64_t server_encoder_limit(const struct server_options *o, int64_t bytes)
{
    return (o->encoder_times ? o->encoder_times : ENCODER_TIMES) * bytes + ENCODER_SPARE;
}

int64_t server_ids_most(const struct server_options *o)
{
    int64_t body = o->limits.body_bytes, listed = o->limits.bodies_bytes / SERVER_ID_BYTES;
    int64_t most = o->context ? max64(2 * o->context + 64, listed) : body;
    return min64(most, body);
}

/* A text of up to `bytes`, its tokens, and what it takes to make these of it. A body of many texts has more tokens than one text
 * may have, and then each is so short that an encoder needs less than they take. */
static int64_t text_bytes(const struct server_options *o, int64_t bytes)
{
    int64_t id = (int64_t)sizeof(int32_t);
    if (o->codec && !tokenizes(o)) return bytes + bytes * id;
    return bytes + min64(bytes, server_ids_most(o)) * id + server_encoder_limit(o, bytes);
}

/* Memory of the threads that read small bodies concurrently. */
static int64_t small_room(const struct server_options *o, int64_t threads)
{
    if (o->small_bytes == NONE_SMALL) return 0;
    return threads * (o->small_bytes * SERVER_TREE_RATIO + text_bytes(o, o->small_bytes));
}

struct server_parts server_parts(const struct server_options *o)
{
    int64_t threads = o->threads ? o->threads : HTTP_THREADS, body = o->limits.body_bytes;
    int64_t chat = CHAT_TIMES * body, text = text_bytes(o, body);
    struct server_parts p = {.connections = http_bytes(&o->limits, (int)threads) +
                                            o->limits.connections * (int64_t)CALL_BYTES,
                             .answers = o->answer_bytes};
    p.requests = o->tree_bytes + (chat > text ? chat : text) + small_room(o, threads);
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

/* Bytes of a token: its event, and its text twice, as long as tokens of large vocabularies can be; and bytes around them. */
enum { ANSWER_TOKEN = 320, ANSWER_SPARE = 32 << 10 };

int64_t server_answers_for(int64_t requests, int64_t tokens)
{
    return max64(SERVER_ANSWERS, requests * (tokens * ANSWER_TOKEN + ANSWER_SPARE));
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

/* Sizes are chosen before the tokenizer is known. */
static int64_t bytes_without_codec(const struct server_options *o)
{
    struct server_options bare = *o;
    bare.codec = NULL;
    return server_bytes(&bare);
}

static int64_t connection_bytes(const struct http_limits *limits)
{
    struct http_limits one_more = *limits;
    one_more.connections++;
    return http_bytes(&one_more, 1) - http_bytes(limits, 1) + CALL_BYTES;
}

/* After everything else, one by one. */
static bool shrink_last(struct server_options *o)
{
    if (halve(&o->limits.head_bytes, LEAST_HEAD)) return true;
    if (o->small_bytes > NONE_SMALL) return o->small_bytes = NONE_SMALL, true;
    if (!o->keep_threads && o->threads > LEAST_THREADS) return o->threads = LEAST_THREADS, true;
    if (o->keep_body || !halve(&o->limits.body_bytes, LEAST_BODY)) return false;
    o->limits.bodies_bytes = o->limits.body_bytes;
    return true;
}

/* Lists have many nodes for their bytes; in large bodies long texts are usual, which have few. */
static int64_t least_tree(int64_t body) { return max64(LEAST_TREE, max64(body, min64(4 * body, LIST_TREE))); }

/* One round of halving; false: every size is at its least. */
static bool shrink(struct server_options *o)
{
    struct http_limits *l = &o->limits;
    int64_t connections = l->connections, body = l->body_bytes;
    bool large = body > bytes_without_codec(o) / BODY_PART;
    bool smaller = large && !o->keep_body && halve(&l->body_bytes, LEAST_BODY);
    smaller = halve(&o->tree_bytes, least_tree(body)) || smaller;
    smaller = halve(&o->answer_bytes, LEAST_ANSWERS) || smaller;
    smaller = halve(&o->small_bytes, LEAST_SMALL) || smaller;
    smaller = halve(&o->cache_bytes, LEAST_CACHE) || smaller;
    smaller = halve(&l->bodies_bytes, l->body_bytes) || smaller;
    int64_t each = connection_bytes(l) * connections;
    bool many = each > bytes_without_codec(o) / CONNECTIONS_PART;
    bool may = !o->keep_connections && (many || !smaller);
    smaller = (may && halve(&connections, LEAST_CONNECTIONS)) || smaller;
    l->connections = (int)connections, l->idle = l->connections / 2;
    return smaller || shrink_last(o);
}

static void set_usual(struct server_options *o)
{
    set(&o->tree_bytes, SERVER_TREE), set(&o->answer_bytes, SERVER_ANSWERS);
    set(&o->small_bytes, SERVER_SMALL), set(&o->cache_bytes, SERVER_CACHE);
    if (!o->threads) o->threads = HTTP_THREADS;
}

void server_fit(struct server_options *o, int64_t bytes)
{
    set_usual(o);
    while (bytes_without_codec(o) > bytes && shrink(o)) continue;
}

int64_t server_share(const struct server_options *usual, int64_t budget)
{
    struct server_options o = *usual;
    int64_t most = 0;
    set_usual(&o);
    for (bool smaller = true; smaller; smaller = shrink(&o)) {
        int64_t from = SERVER_PART * bytes_without_codec(&o), takes = server_bytes(&o);
        if (from <= budget) return takes > most ? takes : most;
        if (takes - (from - budget) > most) most = takes - (from - budget);
    }
    int64_t least = server_bytes(&o);
    return least > most ? least : most;
}
