/* steady.h - the rate of an engine whose requests are of all ages, as they are after hours of full load.
 *
 *     struct steady s = {.seconds = 20, .trace = "steps"};
 *     steady_begin(&s, engine, prompt, tokens);      // before requests are submitted
 *     struct steady_size size = steady_size(&s, number);
 *     while (steady_look(&s, engine, true)) engine_step(engine, &err);
 *     ... steady_rate(&s) ...
 *
 * All requests are there from the beginning, so those that run first would also end at the same time, and steps would be prompts alone,
 * then tokens alone. So the first ones are as if they had begun earlier: when all their prompts have been read, one is to have a single token
 * left to write, the last its whole answer, and all together hold as many positions as they do after hours. What they would have written
 * earlier is part of their prompt; who comes early in the queue writes for as many steps more as those behind him are still being read. From
 * then on requests end and begin at an even pace. What is written in the next `seconds` counts.
 */
#pragma once

#include "serve/engine.h"

enum { STEADY_FIRST = 4096 };

struct steady {
    double seconds;
    const char *
        trace; /* a folder: some steps behind the counted ones are written there (plimsoll trace); NULL: none */
    /* Set by steady_begin. */
    int64_t first;                /* requests that run at once */
    int64_t prompt, tokens, read; /* read: tokens of the first ones' prompts */
    int64_t answer[STEADY_FIRST]; /* tokens of theirs */
    /* Where it stands. */
    double from, to; /* 0: not yet */
    struct engine_stats before, after;
    int64_t traced; /* steps */
};

void steady_begin(struct steady *s, const struct engine *e, int64_t prompt, int64_t tokens);

/* Of request `number`, from 0. */
struct steady_size {
    int64_t prompt, tokens;
};
struct steady_size steady_size(const struct steady *s, int64_t number);

/* To be called often. full: requests still wait. Returns false when all is measured, or can no longer be because nobody waits. */
bool steady_look(struct steady *s, struct engine *e, bool full);

/* Tokens per second; 0: there were too few requests. */
double steady_rate(const struct steady *s);
/* Requests whose prompts were read over those whose answers were written, in parts of requests, too: near 1 if the state was steady. */
double steady_balance(const struct steady *s);
