/* checkpoint.h - a run on disk: atomic, resumable bit for bit, and a Hugging Face directory at once.
 *
 *     output.dir/checkpoint-00000120/config.json, model.safetensors     parameters in the compute type
 *                                   /state/model.safetensors            masters and moments
 *                                   /trainer.json                       step, position, scaler, schedule
 *                                   /manifest.json                      checksums of all these, what decided them, knobs
 *
 * It is written beside its final name and renamed when every byte is on disk, so a crash or a full disk at any
 * moment leaves the checkpoints that were there before. Data stream from the arena in pieces; nothing is held.
 *
 * Several ranks write at once, each what it has: state/piece-0000R-of-0000N.safetensors with state/model.pieces.json, and the same
 * for parameters unless output.gather_weights has rank 0 write them as one file (store/safetensors.h reads either). Nothing in it
 * depends on who goes on from it: one rank, or another number of them, at any stage.
 *
 * A run may go on under another budget; what of the plan decides bits is kept while the budget allows (run_start.h).
 */
#ifndef PLIM_TRAIN_CHECKPOINT_H
#define PLIM_TRAIN_CHECKPOINT_H

#include "base/node.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trainer;
struct checkpoint;
struct comm;

/* The newest checkpoint of an output folder; *out is NULL when there is none. Every byte of it is read and held
 * against its manifest: PLIM_BAD_INPUT names what is damaged, and the newest one before it that is whole. Several ranks call it
 * together and share the reading; comm NULL: one is alone. */
enum plim_status checkpoint_find(const char *dir, struct comm *comm, struct checkpoint **out,
                                 struct plim_error *err);
const char *checkpoint_path(const struct checkpoint *c);
/* NULL: the checkpoint is of a version that wrote none. */
const struct node *checkpoint_manifest(const struct checkpoint *c);
void checkpoint_close(struct checkpoint *c);

/* Applies that check to a model read from `dir`; `parts` are those of manifest.h. A folder that is not a checkpoint
 * passes. *checked is false for a checkpoint without a manifest, whose bytes cannot be verified. */
enum plim_status checkpoint_check(const char *dir, unsigned parts, bool *checked, struct plim_error *err);

/* order_changed: the caller knows that rows come in another order now; when they do, they begin at the first one. */
enum plim_status checkpoint_restore(struct checkpoint *c, struct trainer *trainer, bool order_changed,
                                    struct plim_error *err);
/* Saves and then removes what is older than the newest output.keep_checkpoints. path gets its folder. All ranks together; what goes
 * wrong on one is every rank's error. */
enum plim_status checkpoint_save(struct trainer *trainer, char *path, size_t size, struct plim_error *err);

/* Newest checkpoint folder below dir, whole or damaged, into path; 0 when there is none, else its step. */
int64_t checkpoint_newest(const char *dir, char *path, size_t size);

/* How many there are below dir. */
int64_t checkpoint_count(const char *dir);

/* Remove a folder that we made: its files and those of its subfolders, two levels deep. Links are not followed. */
void checkpoint_remove(const char *path);

#endif
