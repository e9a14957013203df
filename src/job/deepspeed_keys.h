/* deepspeed_keys.h - DeepSpeed's keys as a table, for deepspeed.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum deepspeed_how {
    DS_SET,      /* sets our key */
    DS_NEEDLESS, /* accepted; `text` says what replaces it */
    DS_OFF,      /* must be off: false, 0, null, {}, {"enabled": false}; `text` says what to write instead */
    DS_PARTS,    /* likewise for a number of parts: 1 counts as off too */
    DS_FIXED,    /* must equal `fallback`; `text` as above */
    DS_OWN,      /* handled by a function of deepspeed.c, see enum deepspeed_own */
};

enum deepspeed_own {
    OWN_OPTIMIZER,
    OWN_BETAS,
    OWN_SCHEDULER,
    OWN_WARMUP_MIN,
    OWN_MIN_RATIO,
    OWN_FLOOR_RATIO,
    OWN_LOSS_SCALE,
    OWN_SCALE_POWER,
    OWN_OFFLOAD,
    OWN_OLD_OFFLOAD,
    OWN_NVME_PATH,
    OWN_MONITOR,
    OWN_CPU_CHECKPOINTING,
    OWN_NARROW_MASTERS,
    OWN_STATES,
    OWN_COUNT
};

struct deepspeed_row {
    const char *theirs; /* dotted; keys below a row without own rows belong to it */
    enum deepspeed_how how;
    const char *ours;     /* our key */
    const char *text;     /* DS_NEEDLESS, DS_OFF, DS_PARTS, DS_FIXED: reason or advice */
    const char *fallback; /* DS_SET: DeepSpeed's default if its section is on and ours differs */
    enum deepspeed_own own;
    bool yields;    /* the job's own setting overrides it without a contradiction */
    const char *of; /* the optimizer or scheduler whose default `fallback` is; NULL: all */
};

/* In order of application: a scheduler's rate overrides the optimizer's. */
extern const struct deepspeed_row deepspeed_rows[];
extern const size_t deepspeed_row_count;
