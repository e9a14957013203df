/* deepspeed_keys.h - DeepSpeed's keys as a table, for deepspeed.c. */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum deepspeed_how {
    DS_SET,      /* sets our key */
    DS_NEEDLESS, /* accepted; `text` says what replaces it */
    DS_OFF,      /* must be off: false, 0, null, {}, {"enabled": false}; `text` says what to write instead */
    DS_PARTS,    /* likewise for a number of parts: 1 counts as off too */
    DS_FIXED,    /* must equal `fallback`; `text` as above */
    DS_OWN,      /* handled by `own` */
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
    const char *theirs; /* dotted; keys below a row without own rows belong to it */
    enum deepspeed_how how;
    const char *ours;     /* our key */
    const char *text;     /* DS_NEEDLESS, DS_OFF, DS_PARTS, DS_FIXED: reason or advice */
    const char *fallback; /* DS_SET: DeepSpeed's default if its section is on and ours differs */
    deepspeed_key *own;   /* DS_OWN */
    const char *on;       /* deepspeed_switch: our value if it is on */
    bool yields;          /* the job's own setting overrides it without a contradiction */
    const char *of;       /* the optimizer or scheduler whose default `fallback` is; NULL: all */
};

/* In order of application: a scheduler's rate overrides the optimizer's. */
extern const struct deepspeed_row deepspeed_rows[];
extern const size_t deepspeed_row_count;
