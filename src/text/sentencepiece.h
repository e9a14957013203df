/* sentencepiece.h - converts SentencePiece's files (tokenizer.model, spiece.model) to tokenizer.json.
 *
 *     struct strbuf text = STRBUF_INIT, eos = STRBUF_INIT;
 *     if (sentencepiece_is(path)) sentencepiece_write(path, &text, &eos, &err);
 *     ... tokenizer_read(&text, path, ...)
 *
 * Supports Unigram and BPE models with everything the file says: the character map, blanks, byte tokens, user-defined and
 * control symbols. Ids are those of the sentencepiece library; control symbols written out in a text count as tokens, as
 * in transformers. The result uses a few parts that only this program knows ("SentencePiece"), because no part of the
 * tokenizers library behaves exactly the same. It is therefore never saved; checkpoints keep the .model file instead.
 *
 * The file does not say which tokens surround a text. These do: tokenizer_config.json next to it ("add_bos_token",
 * "add_eos_token", "tokenizer_class", "extra_ids", "added_tokens_decoder"), added_tokens.json, or the model_type of
 * config.json. Without them, a BPE model begins texts with BOS, as LLaMA does, and a Unigram model ends them with EOS, as T5
 * does.
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>

/* True if the file begins like a SentencePiece model. */
bool sentencepiece_is(const char *path);

/* Appends the text of tokenizer.json, and the text of the end-of-text token. PLIM_BAD_INPUT: the file is
 * damaged; PLIM_UNSUPPORTED names a feature that is not supported. */
enum plim_status sentencepiece_write(const char *path, struct strbuf *text, struct strbuf *eos,
                                     struct plim_error *err);

/* --- for the two files of it ------------------------------------------------------------------------------------------- */

enum sp_type { SP_NORMAL = 1, SP_UNKNOWN, SP_CONTROL, SP_USER_DEFINED, SP_UNUSED, SP_BYTE };
enum sp_model_type { SP_UNIGRAM = 1, SP_BPE };

struct sp_piece {
    const char *text; /* points into the file; not NUL-terminated */
    size_t len;
    float score;
    int type;
};

struct sp_model {
    const char *path;
    struct strbuf file;
    struct sp_piece *pieces;
    size_t count;
    int64_t type, unk, bos, eos; /* ids; -1: none */
    const unsigned char *char_map;
    size_t char_map_len;
    bool byte_fallback, suffix, dummy_prefix, trim, escape;
};

enum plim_status sp_model_read(struct sp_model *model, const char *path, struct plim_error *err);
void sp_model_release(struct sp_model *model);
