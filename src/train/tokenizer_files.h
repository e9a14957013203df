/* tokenizer_files.h - copies tokenizer and side files next to the weights, so that a checkpoint or export is
 * usable alone. */
#pragma once

#include "base/status.h"

/* Copies the tokenizer at `path` into the folder: a tokenizer.json or a SentencePiece model under its usual
 * name, with the files next to it (tokenizer_config.json, chat_template.jinja, ...), or a GGUF file's
 * tokenizer as tokenizer.json. NULL: does nothing. */
enum plim_status tokenizer_files_copy(const char *path, const char *dir, struct plim_error *err);

/* Copies files of a model folder that configure its use (generation_config.json), if they exist. A NULL
 * model, or one that is not a folder, has none. */
enum plim_status model_files_copy(const char *model, const char *dir, struct plim_error *err);

/* The i-th name of such files; NULL after the last. */
const char *tokenizer_file_name(int i);
