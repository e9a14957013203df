/* tokenizer_files.h - tokenizer and side files go with the weights, so that a checkpoint or an export can be talked to. */
#ifndef PLIM_TRAIN_TOKENIZER_FILES_H
#define PLIM_TRAIN_TOKENIZER_FILES_H

#include "base/status.h"

/* The tokenizer at `path` into the folder: a tokenizer.json or a SentencePiece model under its usual name, what lies beside it
 * (tokenizer_config.json, chat_template.jinja, ...), or the tokenizer of a GGUF file as tokenizer.json. NULL: there is none,
 * and nothing is done. */
enum plim_status tokenizer_files_copy(const char *path, const char *dir, struct plim_error *err);

/* Files of a model folder that say how it is used (generation_config.json) into another folder, where they exist. A NULL
 * model, or one that is no folder, has none. */
enum plim_status model_files_copy(const char *model, const char *dir, struct plim_error *err);

/* The names such files have, from 0; NULL after the last. */
const char *tokenizer_file_name(int i);

#endif
