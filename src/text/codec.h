/* codec.h - a tokenizer with the facts that a dataset needs; without a tokenizer, tokens are bytes.
 *
 *     struct codec codec;
 *     codec_open("model/tokenizer.json", &codec, &err);      // NULL or "bytes": token = byte
 *     ... codec.vocab_size, codec.eos
 *     codec_close(&codec);
 *
 * A SentencePiece model (sentencepiece.h) or a GGUF file with a tokenizer (gguf_tokenizer.h) works as well. The end-of-text
 * token is the GGUF file's, or the eos_token of a tokenizer_config.json next to the tokenizer, or else the first special
 * token with a usual name (</s>, <|endoftext|>, ...). Read-only once open; threads may share it.
 */
#pragma once

#include "base/status.h"
#include "text/tokenizer.h"

struct codec {
    struct tokenizer *tokenizer; /* NULL: bytes */
    int64_t vocab_size;
    int32_t eos;          /* -1: none */
    uint64_t fingerprint; /* of the tokenizer.json, read or converted; 0: bytes */
    char *path;           /* of its file; NULL: bytes */
    size_t bytes;         /* memory, including the tokenizer */
    size_t reading;       /* peak memory while it was read */
};

enum plim_status codec_open(const char *path, struct codec *out, struct plim_error *err);
/* codec_open for a process limited to `budget` bytes in total; 0: no limit. Reading takes more memory than the
 * tokenizer holds in the end. PLIM_NO_FIT: that peak does not fit next to the process's present memory. Memory that
 * becomes free is returned to the system. */
enum plim_status codec_open_within(const char *path, uint64_t budget, struct codec *out,
                                   struct plim_error *err);
void codec_close(struct codec *codec);

/* Finds a model's tokenizer: tokenizer.json, tokenizer.model or spiece.model in its folder, or the GGUF file
 * itself. Returns false if there is none. */
bool codec_find(const char *model, char *path, size_t size);

/* True for NULL and for the name of the built-in byte tokenizer. */
bool codec_is_bytes(const char *path);

/* Sets the end-of-text token by its text. PLIM_BAD_INPUT when the vocabulary does not have it. */
enum plim_status codec_set_eos(struct codec *codec, const char *text, struct plim_error *err);

/* encoder_encode, or one id per byte if `encoder` is NULL: that of a codec without a tokenizer. */
enum plim_status codec_encode(struct encoder *encoder, const char *text, size_t len, unsigned flags,
                              struct token_list *out, struct plim_error *err);
/* tokenizer_decode and tokenizer_piece; they also handle bytes. */
enum plim_status codec_decode(const struct codec *codec, const int32_t *ids, size_t count, unsigned flags,
                              struct strbuf *out, struct plim_error *err);
enum plim_status codec_piece(const struct codec *codec, int32_t id, unsigned flags, struct strbuf *out,
                             struct plim_error *err);
