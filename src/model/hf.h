/* hf.h - Hugging Face config.json, read and written.
 *
 *     struct model_spec spec;
 *     if (hf_config_load("checkpoint/", &spec, &err) != PLIM_OK) ...
 *
 * Supported: the causal language models and encoders of docs/models.md (for Bert, Roberta and DistilBert the classes
 * ForMaskedLM, ForTokenClassification and Model, which gives a vector), as written by transformers 4 (rope_theta,
 * rope_scaling) and 5 (rope_parameters). A setting that would be computed differently from transformers is refused by name
 * with PLIM_UNSUPPORTED: other activations, rotary types, attention layouts, quantised weights. Keys that do not change
 * the computation are ignored. Dropout changes training only; the spec keeps it, and the trainer refuses it if need be.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"
#include "model/model.h"

/* `root` is the parsed file; `name` appears in errors. On PLIM_OK the spec is complete and valid. */
enum plim_status hf_config_read(const struct node *root, const char *name, struct model_spec *spec,
                                struct plim_error *err);

/* `path` is the file or the folder that holds config.json, or a GGUF file (gguf_model.h). */
enum plim_status hf_config_load(const char *path, struct model_spec *spec, struct plim_error *err);

/* A config.json that transformers (4 and 5) loads as this model; `type` is that of the saved weights. */
void hf_config_write(const struct model_spec *spec, enum dtype type, struct strbuf *out);

/* PLIM_UNSUPPORTED names the key of a complete spec that config.json cannot express; the saved model would
 * differ from the trained one. */
enum plim_status hf_config_expresses(const struct model_spec *spec, struct plim_error *err);

/* Writes that text to dir/config.json atomically. */
enum plim_status hf_config_save(const struct model_spec *spec, enum dtype type, const char *dir,
                                struct plim_error *err);
