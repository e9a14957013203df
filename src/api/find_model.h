/* find_model.h - from the path that people give to the folder or file with the weights.
 *
 *     char path[MODEL_PATH], tokenizer[MODEL_PATH];
 *     find_model(context, "runs/demo", path, sizeof path, &err);
 *     find_tokenizer(NULL, path, tokenizer, sizeof tokenizer);
 */
#pragma once

#include "base/context.h"
#include "base/status.h"

#define MODEL_PATH 1024

/* A GGUF file and a folder with config.json are taken as they are. A run folder stands for its best or newest checkpoint, a
 * job file for that of its output.dir. */
enum plim_status find_model(const struct context *context, const char *what, char *path, size_t size,
                            struct plim_error *err);

/* Verifies a checkpoint's checksums; PLIM_BAD_INPUT names the damaged file. find_model calls it. */
enum plim_status check_weights(const struct context *context, const char *path, struct plim_error *err);

/* The tokenizer to use: `asked`, else the file next to the weights or inside a GGUF file; NULL: bytes. */
const char *find_tokenizer(const char *asked, const char *model, char *path, size_t size);

/* The last part of a path: "demo" of "runs/demo/". */
void model_name(const char *what, char *name, size_t size);
