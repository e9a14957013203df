/* schedule.h - which tokens of which requests the next step takes, and in which blocks their keys and values go.
 *
 *     struct schedule s = {.blocks = &pool, .tokens = 256, .rows = 8, .share = true};
 *     schedule_add(&s, &sequence, &err);                // behind all others
 *     int n = schedule_step(&s, rows);                  // rows[0..n): one step
 *     ... run it; sequences that got a new token: sequence_push
 *     schedule_done(&s, rows, n);                       // what was computed counts from now on
 *     schedule_remove(&s, &sequence);                   // its blocks are free
 *
 * A step takes one token of each sequence that decodes, then as much of prompts as it has left, the oldest first. Waiting
 * sequences join when there is a row for them and blocks for all that they have so far. When blocks run out, the youngest
 * running sequence gives its own back, waits in its old place of the queue and is read again later, unless a keeper has
 * what was in them.
 *
 * Invariants
 *  1. The oldest sequence takes part in every step, whatever the others need, as long as the pool is as large as the
 *     largest sequence: younger ones give way.
 *  2. Position p of a sequence is in table[p / KV_BLOCK]; positions below `computed` are in the pool.
 *  3. Between schedule_step and schedule_done nothing has changed but tables: the same step may be taken again.
 *  4. A sequence writes only blocks that it alone owns: shared ones are full and behind `computed`.
 */
#ifndef PLIM_SERVE_SCHEDULE_H
#define PLIM_SERVE_SCHEDULE_H

#include "serve/blocks.h"

struct sequence {
    const int32_t *tokens;   /* the caller's: prompt, then what was made */
    int64_t known, computed; /* tokens there are; those whose keys and values are in the pool */
    int64_t prompt;          /* of known */
    int32_t *table;          /* the caller's: as many as the sequence may ever need */
    int64_t held;            /* blocks in table */
    int64_t named;           /* of them, those with a name */
    uint64_t hash;           /* of the last one named */
    int64_t shared;          /* tokens found in blocks of others when it was last let in */
    bool every; /* logits of each token are wanted: nothing is shared, and fewer tokens go in one step */
    bool running;
    void *saved;             /* the keeper's copy of its first blocks, while it waits; NULL: none */
    int64_t saved_positions; /* that are in it */
};

/* Keeps what is in blocks while a sequence waits, instead of computing it again; all NULL: nobody does. save copies positions
 * [0, computed) and sets both fields, or does nothing where there is no room; load writes blocks from number `first` on back; drop
 * forgets the copy. */
struct keeper {
    void (*save)(void *arg, struct sequence *q);
    bool (*load)(void *arg, struct sequence *q, int64_t first);
    void (*drop)(void *arg, struct sequence *q);
    void *arg;
};

struct step_row {
    struct sequence *sequence;
    int64_t first, count; /* tokens, from position `first` on */
    int64_t skipped;      /* of the sequence's tokens, those before position 0: there is a window */
    bool last;            /* of all that are known: the next token can be drawn */
};

struct schedule {
    struct blocks *blocks;
    int64_t tokens; /* of a step, at most */
    int64_t rows;   /* of a step, at most; and tokens whose logits are wanted */
    int64_t chunk;  /* tokens of one prompt in one step, at most; 0: no such limit */
    int64_t
        window; /* tokens that the next one is computed from, at most, each time anew; 0: all, and each once */
    uint64_t seed; /* of names */
    bool share;
    struct sequence **queue; /* all of them, the oldest first */
    int count, room;
    int64_t preemptions;
    struct keeper keeper;
};

enum plim_status schedule_add(struct schedule *s, struct sequence *sequence, struct plim_error *err);
void schedule_remove(struct schedule *s, struct sequence *sequence);
void schedule_release(struct schedule *s); /* the queue's memory */

/* At most s->rows of them. */
int schedule_step(struct schedule *s, struct step_row *rows);
/* Rows without a sequence, which has gone since, are passed over. */
void schedule_done(struct schedule *s, const struct step_row *rows, int count);
/* The step behind one that is not done: one token more of each of its sequences, as many rows. 0: it may become another one, because
 * not all of them decode then, somebody who waits could join, or blocks are missing; nothing has changed then. */
int schedule_next(struct schedule *s, const struct step_row *rows, int count, struct step_row *next);

/* Gives way until no more than `most` blocks are owned. */
void schedule_shrink(struct schedule *s, int64_t most);
/* Every sequence waits in its place and owns nothing: the pool has gone. */
void schedule_restart(struct schedule *s);
/* After blocks_resize. */
void schedule_renumber(struct schedule *s, const int32_t *to);

static inline int64_t blocks_for(int64_t positions) { return (positions + KV_BLOCK - 1) / KV_BLOCK; }

#endif
