/* deepspeed_keys.h - DeepSpeed's keys as a table, for deepspeed.c. */
#ifndef PLIM_JOB_DEEPSPEED_KEYS_H
#define PLIM_JOB_DEEPSPEED_KEYS_H

#include <stdbool.h>
#include <stddef.h>

enum deepspeed_how {
    DS_SET,      /* the value goes to our key */
    DS_NEEDLESS, /* accepted; `text` says what replaces it */
    DS_OFF, /* nothing may be asked for: false, 0, null, {}, {"enabled": false}; `text` says what to write instead */
    DS_PARTS, /* the same of a number of parts: 1 is none, too */
    DS_FIXED, /* only the value `fallback`; `text` as above */
    DS_OWN,   /* a function of deepspeed.c, by its place in enum deepspeed_own */
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
    OWN_SWITCH,
    OWN_COUNT
};

struct deepspeed_row {
    const char *theirs; /* dotted; whatever lies below a row without rows of its own belongs to it */
    enum deepspeed_how how;
    const char *ours; /* our key */
    const char
        *text; /* DS_NEEDLESS, DS_OFF, DS_PARTS, DS_FIXED: what to know; OWN_SWITCH: value when it is on */
    const char *fallback; /* DS_SET: DeepSpeed's default, where its section is on and ours is another */
    enum deepspeed_own own;
    bool yields;    /* what the job says is stronger, without contradiction */
    const char *of; /* the type of optimizer or scheduler whose default `fallback` is; NULL: every one's */
};

/* In the order in which they act: a scheduler's rate is stronger than the optimizer's. */
extern const struct deepspeed_row deepspeed_rows[];
extern const size_t deepspeed_row_count;

#endif
