/* convert_keys.h - configuration names of other trainers and their conversion; see convert.h.
 *
 * A name that ends with a star matches every name with that prefix; the first matching row counts. A name without a row is
 * refused. Only job/ includes this header. */
#pragma once

#include <stddef.h>

enum carry_how {
    CARRY_SET,      /* copy the value */
    CARRY_ASKED,    /* likewise, unless it is off: false, 0, none or empty */
    CARRY_POSITIVE, /* likewise, if the number is above 0 */
    CARRY_NEEDLESS, /* no influence on training; text says why */
    CARRY_OFF,      /* refused unless off; text says what to do */
    CARRY_FIXED,    /* refused unless it equals `ours`; text says what to do */
    CARRY_ADAPTER,  /* CARRY_OFF if the file asks for an adapter, else CARRY_NEEDLESS */
    CARRY_EPOCHS,
    CARRY_WARMUP,
    CARRY_RATIO,
    CARRY_CPU,
    CARRY_PRECISION,
    CARRY_MODEL,
    CARRY_WORDS,
    CARRY_ONCE_AN_EPOCH,
    CARRY_REPORT,
    CARRY_DEEPSPEED,
    CARRY_DATASETS,
    CARRY_FILES,
    CARRY_SCHEDULER,
    CARRY_KWARGS,
    CARRY_FLOOR,
    CARRY_EVAL_STRATEGY,
    CARRY_PROJECT,
    CARRY_TOKENS,
    CARRY_EAGER,
    CARRY_KINDS
};

struct carry {
    const char *theirs;
    enum carry_how how;
    const char *ours;     /* a key of job_schema; NULL: none */
    const char *text;     /* reason or advice */
    const char *fallback; /* their default, if it differs from ours */
};

enum { TRAINER_MARKS = 6, TRAINER_TABLES = 2 };
struct trainer_names {
    const char *title;
    const char *marks[TRAINER_MARKS]; /* every such file has one of them */
    struct {
        const struct carry *rows;
        size_t count;
    } tables[TRAINER_TABLES]; /* the first table with the name counts */
};

extern const struct trainer_names trainers[];
extern const size_t trainer_count;
