/* checkpoint_folder.h - checkpoints by name: listing, pruning, and naming a finished one.
 *
 * checkpoint-00000120 is a checkpoint of that step; it is damaged if files are missing. .tmp-checkpoint-... is being written
 * or removed and may be deleted at any time. Only train/ includes this header; other code uses checkpoint.h. */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_PREFIX "checkpoint-"
#define CHECKPOINT_TEMP   ".tmp-"

/* Step of a folder name like checkpoint-00000120, or -1. */
int64_t checkpoint_name_step(const char *name);

/* True if the folder contains something that only we write, so it is not somebody else's model. */
bool checkpoint_is_ours(const char *path);

/* Finds the checkpoint, intact or damaged, with the highest step below `before`. Returns its step; 0:
 * none. */
int64_t checkpoint_below(const char *dir, int64_t before, char *path, size_t size);

/* Renames the complete folder temp to `path`; an existing one is exchanged and removed. */
enum plim_status checkpoint_take_name(const char *temp, const char *path, struct plim_error *err);

/* Keeps the newest `keep` intact checkpoints up to step `newest`, judged by names and sizes, and the one of
 * step `best` (0: none). Also removes leftovers of earlier crashes. */
void checkpoint_prune(const char *dir, int64_t keep, int64_t newest, int64_t best);

/* Removes all checkpoints, intact or damaged. */
void checkpoint_clear(const char *dir);
