/* deepspeed.h - DeepSpeed's JSON, read as it is: every key becomes one of ours, is needless, or is refused by name.
 *
 *     deepspeed_load(&job, "ds.json", &notes, &err);      // after the job file: both say the same, or it is an error
 *     deepspeed_auto_text(&job, &out);                    // what "auto" came to, when the device is known
 *
 * A key that the planner makes needless is told to the listener with what replaces it; one whose wish cannot be granted is
 * PLIM_UNSUPPORTED with what to write instead. Where a section is there and ours has another default than DeepSpeed, theirs is
 * taken. "auto" leaves a key to the job, the number of ranks or the planner.
 */
#ifndef PLIM_JOB_DEEPSPEED_H
#define PLIM_JOB_DEEPSPEED_H

#include "base/node.h"
#include "base/schema.h"

struct job;

/* A key of the file that says "auto". */
struct deepspeed_auto {
    const char *theirs, *where; /* "train_batch_size", "ds.json:3" */
    const char *ours;           /* "training.train_batch_size" */
};

enum { DEEPSPEED_AUTOS = 48 };
struct deepspeed_autos {
    struct deepspeed_auto items[DEEPSPEED_AUTOS];
    int count;
};

enum plim_status deepspeed_load(struct job *job, const char *path, const struct schema_listener *notes,
                                struct plim_error *err);

/* The same from a tree; `name` is the file it stands in, `prefix` what precedes its keys there ("training.deepspeed."). Keys that
 * are not DeepSpeed's, but ours below that prefix, are passed over. */
enum plim_status deepspeed_take(struct job *job, const struct node *root, const char *name,
                                const char *prefix, const struct schema_listener *notes,
                                struct plim_error *err);

/* The same, and keys that are wrong or cannot be granted are all told: a line each is added to `refused`, and counted. */
enum plim_status deepspeed_take_all(struct job *job, const struct node *root, const char *name,
                                    const struct schema_listener *notes, struct strbuf *refused,
                                    int *refusals, struct plim_error *err);

/* After the last override: floors that such a file gives as shares of the learning rate are shares of the one there is now. */
void deepspeed_settle_ratios(struct job *job);

/* Is it such a file? One of the keys that every one has. */
bool deepspeed_marks(const struct node *root);

/* Is this key of a job file one of DeepSpeed's, below training.deepspeed? See schema_listener.foreign. */
bool deepspeed_owns(const char *path, const struct node *node);

/* "ds.json:3, train_batch_size: auto is 512", one a line, for so many ranks. */
void deepspeed_auto_text(const struct job *job, int ranks, struct strbuf *out);

#endif
