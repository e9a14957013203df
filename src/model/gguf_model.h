/* gguf_model.h - the model spec of a GGUF file, equal to the one that config.json of the same model gives.
 *
 *     struct model_spec spec;
 *     if (gguf_config_load("model.gguf", &spec, &err) != PLIM_OK) ...
 *
 * Metadata are converted to a config.json (gguf_config_write), which hf.h reads; so every check exists once.
 * Architectures: llama (with a window: Mistral), qwen2, qwen3, gemma2, gemma3, phi3, olmo2, smollm3, gpt2. Facts missing
 * from the metadata come from the tensors: vocabulary, biases, a tied output, factors of rotary frequencies. An error
 * names the first feature that is not supported.
 */
#pragma once

#include "base/strbuf.h"
#include "model/model.h"
#include "store/gguf.h"

enum plim_status gguf_config_load(const char *path, struct model_spec *spec, struct plim_error *err);

/* Appends the config.json. PLIM_BAD_INPUT names a key that is missing or disagrees with the tensors. */
enum plim_status gguf_config_write(const struct gguf *file, struct strbuf *out, struct plim_error *err);

/* Reads the spec from an open file. */
enum plim_status gguf_config_read(const struct gguf *file, struct model_spec *spec, struct plim_error *err);
