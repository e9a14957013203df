/* sentencepiece.h - SentencePiece's own files (tokenizer.model, spiece.model): read as a tokenizer.json.
 *
 *     struct strbuf text = STRBUF_INIT, eos = STRBUF_INIT;
 *     if (sentencepiece_is(path)) sentencepiece_write(path, &text, &eos, &err);
 *     ... tokenizer_read(&text, path, ...)
 *
 * Unigram and BPE models are read, with everything the file says: the character map, blanks, byte tokens, user-defined and
 * control symbols. Ids are those of the sentencepiece library; control symbols that are written out in a text count as
 * tokens, as in transformers. The text uses a few parts that only this program knows ("SentencePiece"), because no part of
 * the tokenizers library does exactly the same; it is never saved. Checkpoints keep the .model file instead.
 *
 * The file does not say which tokens go around a text. tokenizer_config.json beside it does ("add_bos_token",
 * "add_eos_token", "tokenizer_class", "extra_ids", "added_tokens_decoder"), added_tokens.json, or the model_type of
 * config.json; without all of them a BPE model begins texts with its BOS, as LLaMA's, and a Unigram model ends them with its
 * EOS, as T5's.
 */
#ifndef PLIM_TEXT_SENTENCEPIECE_H
#define PLIM_TEXT_SENTENCEPIECE_H

#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>

/* Does the file begin like one? */
bool sentencepiece_is(const char *path);

/* Appends tokenizer.json's text, and the text of the end-of-text token. PLIM_BAD_INPUT for a damaged file, PLIM_UNSUPPORTED
 * names what is not supported. */
enum plim_status sentencepiece_write(const char *path, struct strbuf *text, struct strbuf *eos,
                                     struct plim_error *err);

/* --- for the two files of it ------------------------------------------------------------------------------------------- */

enum sp_type { SP_NORMAL = 1, SP_UNKNOWN, SP_CONTROL, SP_USER_DEFINED, SP_UNUSED, SP_BYTE };
enum sp_model_type { SP_UNIGRAM = 1, SP_BPE };

struct sp_piece {
    const char *text; /* in the file's bytes: not ended by NUL */
    size_t len;
    float score;
    int type;
};

struct sp_model {
    const char *path;
    struct strbuf file;
    struct sp_piece *pieces;
    size_t count;
    int64_t type, unk, bos, eos; /* ids: -1, none */
    const unsigned char *char_map;
    size_t char_map_len;
    bool byte_fallback, suffix, dummy_prefix, trim, escape;
};

enum plim_status sp_model_read(struct sp_model *model, const char *path, struct plim_error *err);
void sp_model_release(struct sp_model *model);

#endif
