/* checkpoint_folder.h - checkpoints by name: which there are, which goes, how a finished one gets its name.
 *
 * Names tell what a folder is: checkpoint-00000120 is a checkpoint of that step, and a damaged one when some of its files are
 * gone; .tmp-checkpoint-... is one that is being written or removed and may go at any time. Only train/ includes this
 * header; what others need is in checkpoint.h. */
#ifndef PLIM_TRAIN_CHECKPOINT_FOLDER_H
#define PLIM_TRAIN_CHECKPOINT_FOLDER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_PREFIX "checkpoint-"
#define CHECKPOINT_TEMP   ".tmp-"

/* Step of a folder name like checkpoint-00000120, or -1. */
int64_t checkpoint_name_step(const char *name);

/* Has the folder something in it that only we write? Then it is no model of somebody else's. */
bool checkpoint_is_ours(const char *path);

/* The checkpoint, whole or damaged, of the highest step below `before` in dir; its step, or 0: there is none. */
int64_t checkpoint_below(const char *dir, int64_t before, char *path, size_t size);

/* The complete folder temp takes the name `path`; one that is there is exchanged for it and removed. */
enum plim_status checkpoint_take_name(const char *temp, const char *path, struct plim_error *err);

/* Keep the newest `keep` that are whole up to step `newest`, as far as names and sizes tell, and the one of step `best` besides
 * (0: none). What earlier crashes left half-written or half-removed goes, too. */
void checkpoint_prune(const char *dir, int64_t keep, int64_t newest, int64_t best);

/* No checkpoint is left, whole or damaged. */
void checkpoint_clear(const char *dir);

#endif
