/* schedule.h - chooses the tokens of the next step and the blocks for their keys and values.
 *
 *     struct schedule s = {.blocks = &pool, .tokens = 256, .rows = 8, .share = true};
 *     schedule_add(&s, &sequence, &err);                // at the end of the queue
 *     int n = schedule_step(&s, rows);                  // rows[0..n): one step
 *     ... run it; append new tokens to the sequences that got one
 *     schedule_done(&s, rows, n);                       // the computed tokens count from now on
 *     schedule_remove(&s, &sequence);                   // frees its blocks
 *
 * A step takes one token of each decoding sequence, then as many prompt tokens as fit, oldest first. A waiting sequence
 * joins when a row and blocks for all its tokens are free, and when the pool is expected to hold all running sequences to
 * their ends (forecast.h). The expectation may be wrong. When blocks run out, the youngest running sequence is preempted:
 * it releases its blocks, waits at its old place in the queue, and is computed again later unless a keeper saved them.
 *
 * Invariants
 *  1. The oldest sequence takes part in every step if the pool is as large as the largest sequence: younger ones are
 *     preempted for it. It waits only for a seat.
 *  2. Position p of a sequence is in table[p / KV_BLOCK]; positions below `computed` are in the pool.
 *  3. Between schedule_step and schedule_done only tables change, so the same step may be taken again.
 *  4. A sequence writes only to blocks that it alone owns: shared ones are full and before `computed`.
 *  5. Waiting sequences join in the order of the queue.
 */
#pragma once

#include "serve/blocks.h"
#include "serve/forecast.h"

struct sequence {
    const int32_t *tokens;   /* the caller's: prompt, then answer */
    int64_t known, computed; /* all tokens; those with keys and values in the pool */
    int64_t prompt;          /* of known */
    int64_t most;            /* maximum of tokens with keys and values; 0: it is not expected to grow */
    bool whole;              /* only its length ends it: it will reach the maximum */
    int32_t *table;          /* the caller's: room for the largest number of blocks it may need */
    int64_t held;            /* blocks in table */
    int64_t named;           /* number of held blocks with a name */
    uint64_t hash;           /* of the last named block */
    uint64_t variant;        /* sequences of different variants share no blocks */
    int64_t shared;          /* tokens found in shared blocks when it last joined */
    bool every; /* needs logits of every token: shares nothing, and takes fewer tokens per step */
    bool running;
    uint64_t turn;           /* of the schedule, when it last took part in a step */
    void *saved;             /* the keeper's copy of its first blocks, while it waits; NULL: none */
    int64_t saved_positions; /* positions in it */
};

/* Saves the contents of blocks while a sequence waits, instead of computing them again; all NULL: no keeper. save
 * copies positions [0, computed) and sets both fields, or does nothing if there is no room. load restores blocks from
 * number `first` on. drop discards the copy. */
struct keeper {
    void (*save)(void *arg, struct sequence *q);
    bool (*load)(void *arg, struct sequence *q, int64_t first);
    void (*drop)(void *arg, struct sequence *q);
    void *arg;
};

/* Something scarce that a sequence holds while it runs, such as an adapter's slot; all NULL: nothing. If `take` fails, the
 * sequence and all behind it go on waiting. */
struct seats {
    bool (*take)(void *arg, struct sequence *q);
    void (*leave)(void *arg, struct sequence *q);
    void *arg;
};

struct step_row {
    struct sequence *sequence;
    int64_t first, count; /* tokens, from position `first` on */
    int64_t skipped;      /* tokens of the sequence before position 0, with a window */
    bool last;            /* includes the last known token: the next one can be drawn */
};

struct schedule {
    struct blocks *blocks;
    int64_t tokens; /* maximum per step */
    int64_t rows;   /* maximum per step; also of tokens with logits */
    int64_t chunk;  /* maximum tokens of one prompt per step; 0: no limit */
    /* Maximum number of tokens from which the next one is computed, each time again; 0: all, each computed once. */
    int64_t window;
    uint64_t seed; /* of names */
    bool share;
    struct sequence **queue; /* all of them, oldest first */
    int count, room;
    struct sequence **memory; /* queue is in it: removing an old sequence moves those before it */
    int running;              /* of the queue */
    /* The oldest waiting sequence was refused, and nothing has changed since that could admit it. */
    bool full;
    /* Expectations: the share of answers that reach their limit, and the mean length of the others. answer below 0: answers
     * are not expected to grow. */
    double to_limit, answer;
    bool foreseen; /* forecast describes the running sequences in this step */
    int64_t owned; /* blocks with an owner when forecast was made */
    struct forecast forecast;
    int64_t preemptions;
    uint64_t turn; /* number of the step */
    struct keeper keeper;
    struct seats seats;
};

enum plim_status schedule_add(struct schedule *s, struct sequence *sequence, struct plim_error *err);
void schedule_remove(struct schedule *s, struct sequence *sequence);
void schedule_release(struct schedule *s); /* the queue's memory */
/* The sequence has ended, at its limit or earlier: later ones are expected to be like it. One whose length was known (`whole`)
 * teaches nothing, and one that reached a low limit teaches little. */
void schedule_learn(struct schedule *s, const struct sequence *q, bool to_limit);

/* Returns the number of rows, at most s->rows. */
int schedule_step(struct schedule *s, struct step_row *rows);
/* Skips rows whose sequence has been removed. */
void schedule_done(struct schedule *s, const struct step_row *rows, int count);
/* Prepares the step after one that is not done: one more token of each of its sequences. Returns 0, with nothing
 * changed, if that step might differ: a sequence may not decode, a waiting one might join, or blocks are missing. */
int schedule_next(struct schedule *s, const struct step_row *rows, int count, struct step_row *next);

/* Preempts sequences until at most `most` blocks are owned. */
void schedule_shrink(struct schedule *s, int64_t most);
/* Makes every sequence wait and own nothing: the pool is gone. */
void schedule_restart(struct schedule *s);
/* After blocks_resize. */
void schedule_renumber(struct schedule *s, const int32_t *to);

static inline int64_t blocks_for(int64_t positions) { return (positions + KV_BLOCK - 1) / KV_BLOCK; }
