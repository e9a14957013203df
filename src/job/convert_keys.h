/* convert_keys.h - configuration names of other trainers and their conversion; see convert.h.
 *
 * A name that ends with a star matches every name with that prefix; the first matching row counts. A name without a row is
 * refused. Only job/ includes this header. */
#pragma once

#include <stddef.h>

struct carry;
struct converting;
struct node;

/* Actions on a value (convert.c). */
typedef void carry_function(struct converting *c, const struct carry *row, const struct node *value);
carry_function carry_set;      /* the value is ours as it is */
carry_function carry_asked;    /* the same, unless it is off: false, 0, none or empty */
carry_function carry_positive; /* the same, where the number is above 0 */
carry_function carry_needless; /* without influence on the training; text says why */
carry_function carry_off;      /* refused unless it is off; text says what to do */
carry_function carry_fixed;    /* refused unless it is the word in `ours`; text says what to do */
carry_function carry_adapter;  /* carry_off where the file asks for an adapter, else carry_needless */
carry_function carry_epochs, carry_warmup, carry_ratio, carry_cpu, carry_precision, carry_model, carry_words,
    carry_once_an_epoch, carry_report, carry_deepspeed, carry_datasets, carry_files, carry_scheduler,
    carry_kwargs, carry_floor, carry_eval_strategy, carry_project, carry_tokens, carry_eager;

struct carry {
    const char *theirs;
    carry_function *how;
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
