/* gguf_tokenizer.h - converts the tokenizer of a GGUF file to tokenizer.json and tokenizer_config.json.
 *
 *     struct strbuf text = STRBUF_INIT;
 *     if (gguf_tokenizer_write(file, &text, &err) == PLIM_OK) tokenizer_read(&text, path, quota, &tok, &err);
 *
 * Two kinds (tokenizer.ggml.model) are supported. "gpt2" is byte-level BPE; tokenizer.ggml.pre names its rule for splitting
 * words. "llama" is SentencePiece's BPE with scores; its merges are derived from the scores, as in transformers. Another
 * kind or an unknown rule is PLIM_UNSUPPORTED: a different split would give different tokens.
 */
#pragma once

#include "base/strbuf.h"
#include "store/gguf.h"

/* Appends tokenizer.json. PLIM_BAD_INPUT if lists of the file disagree. */
enum plim_status gguf_tokenizer_write(const struct gguf *file, struct strbuf *out, struct plim_error *err);

/* Appends tokenizer_config.json: special tokens by name, chat template. */
enum plim_status gguf_tokenizer_config_write(const struct gguf *file, struct strbuf *out,
                                             struct plim_error *err);

/* True if the file has a tokenizer. By path: also false if the file cannot be read. */
bool gguf_has_tokenizer(const struct gguf *file);
bool gguf_file_has_tokenizer(const char *path);
