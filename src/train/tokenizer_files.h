/* tokenizer_files.h - the tokenizer goes with the weights, so that a checkpoint or an export can be talked to. */
#ifndef PLIM_TRAIN_TOKENIZER_FILES_H
#define PLIM_TRAIN_TOKENIZER_FILES_H

#include "base/status.h"

/* The tokenizer.json at `path` (under that name) and what lies beside it (tokenizer_config.json,
 * special_tokens_map.json, chat_template.jinja) into the folder. NULL: there is none, and nothing is done. */
enum plim_status tokenizer_files_copy(const char *path, const char *dir, struct plim_error *err);

/* tokenizer.json and tokenizer_config.json of a GGUF file into the folder; nothing where it holds no tokenizer. */
enum plim_status tokenizer_files_from_gguf(const char *path, const char *dir, struct plim_error *err);

/* The names such files have, from 0; NULL after the last. */
const char *tokenizer_file_name(int i);

#endif
