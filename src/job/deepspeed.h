/* deepspeed.h - reads DeepSpeed's JSON directly: every key sets one of ours, has no effect here, or is refused by name.
 *
 *     deepspeed_load(&job, "ds.json", &notes, &err);      // after the job file; a contradiction is an error
 *     deepspeed_auto_text(&job, ranks, &out);             // the values of "auto", once the device is known
 *
 * If the planner makes a key unnecessary, the listener hears what replaces it. A key that cannot be satisfied is
 * PLIM_UNSUPPORTED, with what to write instead. If a section is present, DeepSpeed's defaults apply where they differ from
 * ours. "auto" leaves a key to the job, the number of ranks or the planner.
 */
#pragma once

#include "base/node.h"
#include "base/schema.h"

struct job;

/* A key with the value "auto". */
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

/* deepspeed_load from a parsed tree. `name` is the file it came from, `prefix` precedes its keys there
 * ("training.deepspeed."). Skips keys below that prefix that are ours rather than DeepSpeed's. */
enum plim_status deepspeed_take(struct job *job, const struct node *root, const char *name,
                                const char *prefix, const struct schema_listener *notes,
                                struct plim_error *err);

/* deepspeed_take that reports every invalid or unsupported key: appends one line per key to `refused` and counts
 * them. */
enum plim_status deepspeed_take_all(struct job *job, const struct node *root, const char *name,
                                    const struct schema_listener *notes, struct strbuf *refused,
                                    int *refusals, struct plim_error *err);

/* After the last override: recomputes floors that the file gives as shares of the learning rate. */
void deepspeed_settle_ratios(struct job *job);

/* True if this is such a file: it has one of the keys that all of them have. */
bool deepspeed_marks(const struct node *root);

/* True if this key of a job file belongs to DeepSpeed, below training.deepspeed. See
 * schema_listener.foreign. */
bool deepspeed_owns(const char *path, const struct node *node);

/* "ds.json:3, train_batch_size: auto is 512", one per line, for that many ranks. */
void deepspeed_auto_text(const struct job *job, int ranks, struct strbuf *out);
