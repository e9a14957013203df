/* gguf_tokenizer.h - the tokenizer in a GGUF file, as the tokenizer.json and tokenizer_config.json of the same model.
 *
 *     struct strbuf text = STRBUF_INIT;
 *     if (gguf_tokenizer_write(file, &text, &err) == PLIM_OK) tokenizer_read(&text, path, quota, &tok, &err);
 *
 * Two kinds (tokenizer.ggml.model): "gpt2", BPE over bytes, of which tokenizer.ggml.pre names the rule that splits words;
 * and "llama", SentencePiece's BPE by scores, whose merges are found anew from the scores as transformers does. Another
 * kind, or a rule that is not in our table, is PLIM_UNSUPPORTED and named: text split otherwise would be other tokens.
 */
#ifndef PLIM_TEXT_GGUF_TOKENIZER_H
#define PLIM_TEXT_GGUF_TOKENIZER_H

#include "base/strbuf.h"
#include "store/gguf.h"

/* Appends tokenizer.json. PLIM_BAD_INPUT where lists of the file disagree. */
enum plim_status gguf_tokenizer_write(const struct gguf *file, struct strbuf *out, struct plim_error *err);

/* Appends tokenizer_config.json: special tokens by name, chat template. */
enum plim_status gguf_tokenizer_config_write(const struct gguf *file, struct strbuf *out,
                                             struct plim_error *err);

/* Has the file a tokenizer at all? By its path: false as well where it cannot be read. */
bool gguf_has_tokenizer(const struct gguf *file);
bool gguf_file_has_tokenizer(const char *path);

#endif
