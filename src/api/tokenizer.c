/* tokenizer.c - tokenizers of plimsoll/text.h.
 *
 * An encoder serves one thread at a time, so that each call borrows one; a few are kept for later calls. */
#include "api/find_model.h"
#include "api/handle.h"
#include "text/codec.h"
#include <plimsoll/text.h>

#include <pthread.h>
#include <string.h>

enum { SPARE = 8 };

struct plim_tokenizer {
    struct handle handle;
    struct codec codec;
    pthread_mutex_t lock;
    struct encoder *spare[SPARE]; /* guarded by the lock */
    int spares;
};

enum plim_status plim_tokenizer_open(struct plim_context *context, const char *path,
                                     struct plim_tokenizer **out, struct plim_error *err)
{
    static const char me[] = "plim_tokenizer_open";
    char found[MODEL_PATH + 32];
    if (!handle_is(context, HANDLE_CONTEXT, me, err)) return PLIM_BAD_INPUT;
    if (!path || !out) return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    *out = NULL;
    struct plim_tokenizer *t = handle_new(sizeof *t, HANDLE_TOKENIZER, context, err);
    if (!t) return PLIM_NO_MEMORY;
    pthread_mutex_init(&t->lock, NULL);
    const char *which = !codec_is_bytes(path) && codec_find(path, found, sizeof found) ? found : path;
    enum plim_status status = codec_open(which, &t->codec, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s", me);
        plim_tokenizer_close(t);
        return status;
    }
    *out = t;
    return PLIM_OK;
}

void plim_tokenizer_close(struct plim_tokenizer *t)
{
    if (!handle_is(t, HANDLE_TOKENIZER, "plim_tokenizer_close", NULL)) return;
    while (t->spares) encoder_close(t->spare[--t->spares]);
    codec_close(&t->codec);
    pthread_mutex_destroy(&t->lock);
    handle_free(t);
}

int64_t plim_tokenizer_vocab(const struct plim_tokenizer *t)
{
    return handle_is(t, HANDLE_TOKENIZER, "plim_tokenizer_vocab", NULL) ? t->codec.vocab_size : 0;
}

int32_t plim_tokenizer_eos(const struct plim_tokenizer *t)
{
    return handle_is(t, HANDLE_TOKENIZER, "plim_tokenizer_eos", NULL) ? t->codec.eos : -1;
}

/* *out stays NULL where text is bytes. */
static enum plim_status borrow(struct plim_tokenizer *t, struct encoder **out, struct plim_error *err)
{
    *out = NULL;
    if (!t->codec.tokenizer) return PLIM_OK;
    pthread_mutex_lock(&t->lock);
    if (t->spares) *out = t->spare[--t->spares];
    pthread_mutex_unlock(&t->lock);
    return *out ? PLIM_OK : encoder_open(t->codec.tokenizer, out, err);
}

static void give_back(struct plim_tokenizer *t, struct encoder *encoder)
{
    pthread_mutex_lock(&t->lock);
    if (encoder && t->spares < SPARE) t->spare[t->spares++] = encoder, encoder = NULL;
    pthread_mutex_unlock(&t->lock);
    encoder_close(encoder);
}

enum plim_status plim_tokenizer_encode(const struct plim_tokenizer *tokenizer, const char *text, size_t bytes,
                                       int special, int32_t *ids, size_t room, size_t *count,
                                       struct plim_error *err)
{
    static const char me[] = "plim_tokenizer_encode";
    struct token_list list = {0};
    struct encoder *encoder;
    if (!handle_is(tokenizer, HANDLE_TOKENIZER, me, err)) return PLIM_BAD_INPUT;
    if ((!text && bytes) || (!ids && room) || !count)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    struct plim_tokenizer *t =
        (struct plim_tokenizer *)(uintptr_t)tokenizer; /* only its spare encoders change */
    enum plim_status status = borrow(t, &encoder, err);
    if (status == PLIM_OK)
        status = codec_encode(encoder, text ? text : "", bytes, special ? TOKENIZE_SPECIAL : 0, &list, err);
    give_back(t, encoder);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", me);
    *count = status == PLIM_OK ? list.count : 0;
    size_t n = *count < room ? *count : room;
    if (n) memcpy(ids, list.id, n * sizeof *ids);
    token_list_release(&list);
    return status;
}

/* Without a tokenizer an id is a byte. */
static enum plim_status check_ids(const struct codec *codec, const int32_t *ids, size_t count,
                                  struct plim_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= codec->vocab_size)
            return plim_fail(err, PLIM_BAD_INPUT, "id %d is outside the vocabulary of %lld", ids[i],
                             (long long)codec->vocab_size);
    return PLIM_OK;
}

enum plim_status plim_tokenizer_decode(const struct plim_tokenizer *t, const int32_t *ids, size_t count,
                                       int skip_special, char **text, struct plim_error *err)
{
    static const char me[] = "plim_tokenizer_decode";
    struct strbuf out = STRBUF_INIT;
    if (!handle_is(t, HANDLE_TOKENIZER, me, err)) return PLIM_BAD_INPUT;
    if ((!ids && count) || !text) return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    *text = NULL;
    enum plim_status status = check_ids(&t->codec, ids, count, err);
    if (status == PLIM_OK)
        status = codec_decode(&t->codec, ids, count, skip_special ? TOKENIZE_SKIP_SPECIAL : 0, &out, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", me);
    if (status == PLIM_OK && !(*text = text_give(&out)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", me);
    strbuf_release(&out);
    return status;
}
