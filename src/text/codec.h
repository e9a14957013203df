/* codec.h - a tokenizer with what a dataset needs to know of it; without one, text is bytes.
 *
 *     struct codec codec;
 *     codec_open("model/tokenizer.json", &codec, &err);      // NULL or "bytes": token = byte
 *     ... codec.vocab_size, codec.eos
 *     codec_close(&codec);
 *
 * A SentencePiece model (sentencepiece.h) is read in place of a tokenizer.json, and a GGUF file (gguf_tokenizer.h) stands for
 * the tokenizer in it. The end-of-text token is that of the GGUF file, or the eos_token of a tokenizer_config.json beside the tokenizer, else the first special
 * token with a usual name (</s>, <|endoftext|>, ...). Read-only once open; threads may share it.
 */
#ifndef PLIM_TEXT_CODEC_H
#define PLIM_TEXT_CODEC_H

#include "base/status.h"
#include "text/tokenizer.h"

struct codec {
    struct tokenizer *tokenizer; /* NULL: bytes */
    int64_t vocab_size;
    int32_t eos;          /* -1: none */
    uint64_t fingerprint; /* of the tokenizer.json that is read or made; 0: bytes */
    char *path;           /* of its file; NULL: bytes */
    size_t bytes;         /* held, with the tokenizer */
    size_t reading;       /* the most that was held while it was read */
};

enum plim_status codec_open(const char *path, struct codec *out, struct plim_error *err);
/* codec_open for a process limited to `budget` bytes in total; 0: no limit. Reading takes more memory than the
 * tokenizer holds in the end. PLIM_NO_FIT: that peak does not fit next to the process's present memory. Memory that
 * becomes free is returned to the system. */
enum plim_status codec_open_within(const char *path, uint64_t budget, struct codec *out,
                                   struct plim_error *err);
void codec_close(struct codec *codec);

/* The tokenizer of a model: tokenizer.json, tokenizer.model or spiece.model in its folder, or the GGUF file itself. False:
 * there is none. */
bool codec_find(const char *model, char *path, size_t size);

/* Is it the name of the built-in byte tokenizer, or no name at all? */
bool codec_is_bytes(const char *path);

/* Another end-of-text token, by its text. PLIM_BAD_INPUT when the vocabulary has none such. */
enum plim_status codec_set_eos(struct codec *codec, const char *text, struct plim_error *err);

/* tokenizer_decode and tokenizer_piece, with bytes as well. */
enum plim_status codec_decode(const struct codec *codec, const int32_t *ids, size_t count, unsigned flags,
                              struct strbuf *out, struct plim_error *err);
enum plim_status codec_piece(const struct codec *codec, int32_t id, unsigned flags, struct strbuf *out,
                             struct plim_error *err);

#endif
