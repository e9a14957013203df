/* steady.h - the rate of an engine whose requests are of all ages, as they are after hours of full load.
 *
 *     struct steady s = {.seconds = 20, .trace = "steps"};
 *     steady_begin(&s, engine, prompt, tokens);      // before requests are submitted
 *     ... steady_tokens(&s, number) of request `number` ...
 *     while (steady_look(&s, engine, true)) engine_step(engine, &err);
 *     ... steady_rate(&s) ...
 *
 * All requests are there from the beginning, so those that run first would also end at the same time, and steps would be prompts alone,
 * then tokens alone. So the answers of the first ones are cut: one ends at once, the last one has its whole length. From when all their
 * prompts have been read, requests end and begin at an even pace. What is written in the next `seconds` counts.
 */
#pragma once

#include "serve/engine.h"

struct steady {
    double seconds;
    const char *
        trace; /* a folder: some steps behind the counted ones are written there (plimsoll trace); NULL: none */
    /* Set by steady_begin. */
    int64_t first; /* requests that run at once */
    int64_t prompt, tokens;
    /* Where it stands. */
    double from, to; /* 0: not yet */
    struct engine_stats before, after;
    int64_t traced; /* steps */
};

void steady_begin(struct steady *s, const struct engine *e, int64_t prompt, int64_t tokens);

/* Tokens of the answer to request `number`, from 0. */
int64_t steady_tokens(const struct steady *s, int64_t number);

/* To be called often. full: requests still wait. Returns false when all is measured, or can no longer be because nobody waits. */
bool steady_look(struct steady *s, struct engine *e, bool full);

/* Tokens per second; 0: there were too few requests. */
double steady_rate(const struct steady *s);
