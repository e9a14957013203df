/* gguf_model.h - what a GGUF file says of its model, as the spec that config.json of the same model would give.
 *
 *     struct model_spec spec;
 *     if (gguf_config_load("model.gguf", &spec, &err) != PLIM_OK) ...
 *
 * Metadata become a config.json (gguf_config_write) which hf.h reads, so that every check is made once. Architectures:
 * llama (with a window: Mistral), qwen2, qwen3, gemma2, gemma3, phi3, olmo2, smollm3, gpt2. What the metadata leave out is
 * taken from the tensors: the vocabulary, biases, a tied output, the factors of rotary frequencies. What a file asks for
 * that is not computed here is named.
 */
#ifndef PLIM_MODEL_GGUF_MODEL_H
#define PLIM_MODEL_GGUF_MODEL_H

#include "base/strbuf.h"
#include "model/model.h"
#include "store/gguf.h"

enum plim_status gguf_config_load(const char *path, struct model_spec *spec, struct plim_error *err);

/* Appends the config.json. PLIM_BAD_INPUT names a key that is missing or disagrees with the tensors. */
enum plim_status gguf_config_write(const struct gguf *file, struct strbuf *out, struct plim_error *err);

/* Reads the spec from an open file. */
enum plim_status gguf_config_read(const struct gguf *file, struct model_spec *spec, struct plim_error *err);

#endif
