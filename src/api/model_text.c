/* model_text.c - see model_text.h. */
#include "api/model_text.h"
#include "api/find_model.h"
#include "mem/os.h"

/* The limit on the memory of the whole process. */
static uint64_t process_limit(const struct context *context, uint64_t limit)
{
    struct os_process me = {0};
    if (!limit || context->process || os_process_memory(&me, NULL) != PLIM_OK) return limit;
    uint64_t overhead = (uint64_t)context->overhead;
    return me.rss + (limit > overhead ? limit - overhead : 0);
}

enum plim_status open_codec(const struct context *context, const char *asked, const char *model,
                            uint64_t limit, struct codec *out, struct plim_error *err)
{
    char path[MODEL_PATH + 32];
    return codec_open_within(find_tokenizer(asked, model, path, sizeof path), process_limit(context, limit),
                             out, err);
}

enum plim_status check_vocabulary(const struct codec *codec, const char *model, int64_t vocab_size,
                                  struct plim_error *err)
{
    if (vocab_size >= codec->vocab_size) return PLIM_OK;
    if (!codec->tokenizer)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: a vocabulary of %lld is too small for the byte tokenizer; use a model with 256 or more",
            model, (long long)vocab_size);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: the tokenizer has %lld tokens, the model only %lld; give its own",
                     codec->path ? codec->path : model, (long long)codec->vocab_size, (long long)vocab_size);
}

void warn_of_bytes(const struct codec *codec, const char *asked, const char *model, int64_t vocab_size,
                   const struct log *log)
{
    if (!codec->tokenizer && !asked && vocab_size != MODEL_BYTE_TOKENS)
        log_warn(log, "%s has no tokenizer; each byte is a token", model);
}
