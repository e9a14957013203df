/* checkpoint.h - a run on disk: atomic, resumable bit for bit, and a Hugging Face directory at once.
 *
 *     output.dir/checkpoint-00000120/config.json, model.safetensors     parameters in the compute type
 *                                   /state/model.safetensors            masters and moments
 *                                   /trainer.json                       step, position, scaler, schedule
 *
 * It is written beside its final name and renamed when every byte is on disk, so a crash or a full disk at any
 * moment leaves the checkpoints that were there before. Data stream from the arena in pieces; nothing is held.
 * Knobs are not part of it: a run may go on under another budget.
 */
#ifndef PLIM_TRAIN_CHECKPOINT_H
#define PLIM_TRAIN_CHECKPOINT_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct job;
struct trainer;
struct checkpoint;

/* The newest complete checkpoint of the job's output folder; *out is NULL when there is none. Refuses one of
 * another model, precision or optimizer, naming what differs. */
enum plim_status checkpoint_find(const struct job *job, struct checkpoint **out, struct plim_error *err);
const char *checkpoint_path(const struct checkpoint *c);
void checkpoint_close(struct checkpoint *c);

enum plim_status checkpoint_restore(struct checkpoint *c, struct trainer *trainer, struct plim_error *err);
/* Saves and then removes what is older than the newest output.keep_checkpoints. path gets its folder. */
enum plim_status checkpoint_save(struct trainer *trainer, char *path, size_t size, struct plim_error *err);

/* Newest complete checkpoint folder below dir into path; 0 when there is none, else its step. */
int64_t checkpoint_newest(const char *dir, char *path, size_t size);

/* How many there are below dir. */
int64_t checkpoint_count(const char *dir);

/* Remove a folder that we made: its files and those of its subfolders, two levels deep. Links are not followed. */
void checkpoint_remove(const char *path);

#endif
