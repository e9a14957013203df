/* deepspeed_keys.h - DeepSpeed's keys as a table, for deepspeed.c. */
#ifndef PLIM_JOB_DEEPSPEED_KEYS_H
#define PLIM_JOB_DEEPSPEED_KEYS_H

#include "base/node.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum deepspeed_how {
    DS_SET,      /* the value goes to our key */
    DS_NEEDLESS, /* accepted; `text` says what replaces it */
    DS_OFF, /* nothing may be asked for: false, 0, null, {}, {"enabled": false}; `text` says what to write instead */
    DS_PARTS, /* the same of a number of parts: 1 is none, too */
    DS_FIXED, /* only the value `fallback`; `text` as above */
    DS_OWN,   /* what `own` does */
};

struct deepspeed_reading;
struct deepspeed_row;

/* Keys that are more than a value (deepspeed.c). */
typedef enum plim_status deepspeed_key(struct deepspeed_reading *r, const struct deepspeed_row *row,
                                       const struct node *value);
deepspeed_key deepspeed_optimizer, deepspeed_betas, deepspeed_scheduler, deepspeed_warmup_min,
    deepspeed_ratio, deepspeed_loss_scale, deepspeed_scale_power, deepspeed_offload, deepspeed_old_offload,
    deepspeed_nvme_path, deepspeed_monitor, deepspeed_switch;

struct deepspeed_row {
    const char *theirs; /* dotted; whatever lies below a row without rows of its own belongs to it */
    enum deepspeed_how how;
    const char *ours;     /* our key */
    const char *text;     /* DS_NEEDLESS, DS_OFF, DS_PARTS, DS_FIXED: what to know */
    const char *fallback; /* DS_SET: DeepSpeed's default, where its section is on and ours is another */
    deepspeed_key *own;   /* DS_OWN */
    const char *on;       /* deepspeed_switch: our value where it is on */
    bool yields;          /* what the job says is stronger, without contradiction */
    const char *of; /* the type of optimizer or scheduler whose default `fallback` is; NULL: every one's */
};

/* In the order in which they act: a scheduler's rate is stronger than the optimizer's. */
extern const struct deepspeed_row deepspeed_rows[];
extern const size_t deepspeed_row_count;

#endif
