/* checkpoint.h - a run on disk: atomic, resumable bit for bit, and a Hugging Face directory at once.
 *
 *     output.dir/checkpoint-00000120/config.json, model.safetensors     parameters in the compute type
 *                                   /state/model.safetensors            masters and moments
 *                                   /trainer.json                       step, position, scaler, schedule
 *                                   /manifest.json                      their checksums, the settings behind them, knobs
 *
 * It is written under a temporary name and renamed when every byte is on disk, so a crash or a full disk leaves the
 * earlier checkpoints intact. Data stream from the arena in pieces; nothing is held in memory.
 *
 * Ranks write concurrently, each its own part: state/piece-0000R-of-0000N.safetensors with state/model.pieces.json,
 * and likewise for parameters unless output.gather_weights makes rank 0 write them as one file (store/safetensors.h
 * reads either). A checkpoint can be resumed by any number of ranks at any stage.
 *
 * A run may resume under another budget; settings of the plan that decide bits are kept while the budget allows
 * (run_start.h).
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trainer;
struct checkpoint;
struct comm;

/* Opens the newest checkpoint of an output folder; *out is NULL if there is none. Reads every byte and compares it
 * with the manifest: PLIM_BAD_INPUT names the damage and the newest intact checkpoint before it. Ranks call it
 * together and share the reading; comm NULL: single rank. */
enum plim_status checkpoint_find(const char *dir, struct comm *comm, struct checkpoint **out,
                                 struct plim_error *err);
const char *checkpoint_path(const struct checkpoint *c);
/* NULL: written by a version without manifests. */
const struct node *checkpoint_manifest(const struct checkpoint *c);
void checkpoint_close(struct checkpoint *c);

/* Applies that check to a model read from `dir`; `parts` are those of manifest.h. A folder that is not a checkpoint
 * passes. *checked is false for a checkpoint without a manifest, whose bytes cannot be verified. */
enum plim_status checkpoint_check(const char *dir, unsigned parts, bool *checked, struct plim_error *err);

/* order_changed: the order of rows has changed, so reading starts at the first row. */
enum plim_status checkpoint_restore(struct checkpoint *c, struct trainer *trainer, bool order_changed,
                                    struct plim_error *err);
/* Saves, then removes checkpoints older than the newest output.keep_checkpoints. path receives the folder. All ranks
 * call it together; an error on one is returned by all. */
enum plim_status checkpoint_save(struct trainer *trainer, char *path, size_t size, struct plim_error *err);

/* Puts the newest checkpoint folder below dir, intact or damaged, into path. Returns its step; 0: none. */
int64_t checkpoint_newest(const char *dir, char *path, size_t size);

/* Number of checkpoints below dir. */
int64_t checkpoint_count(const char *dir);

/* Removes a folder that we made: its files and those of its subfolders, two levels deep. Does not follow links. */
void checkpoint_remove(const char *path);
