/* regex.h - the regular expressions of tokenizer.json, in the dialect of the reference library.
 *
 *     struct regex *re;
 *     regex_compile("\\p{N}{1,3}| ?[^\\s\\p{N}]+", 25, &re, &err);
 *     struct regex_run run = {0};
 *     regex_begin(&run, text, len);                              // valid UTF-8
 *     for (size_t from = 0; regex_find(re, &run, from, &start, &end); from = end) ...
 *     regex_run_release(&run);
 *     regex_free(re);
 *
 * Supported: alternation; groups (...), (?:...), (?<name>...), (?>...); options (?i) and (?m), also (?i:...); look
 * ahead (?=...) (?!...); look behind (?<=...) (?<!...) of fixed length; * + ? {n} {n,} {,m} {n,m}, lazy with ?,
 * possessive * + ? with +; classes with ranges, negation, nesting and &&; . \s \d \w \h, \p{...}, [[:alpha:]] and
 * their opposites; ^ $ \A \z \Z \b \B; \xHH \x{H...} \uHHHH. Everything else is refused by name. (?i) covers the
 * ASCII letters and characters that fold to them.
 *
 * No pattern can hang. Once a text proves hard, failed states are remembered, so the time is linear in the text (a look
 * ahead counts at each place that evaluates it).
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct regex;

/* PLIM_BAD_INPUT: not a regular expression; PLIM_UNSUPPORTED: names the construct. */
enum plim_status regex_compile(const char *pattern, size_t len, struct regex **out, struct plim_error *err);
void regex_free(struct regex *re);
size_t regex_bytes(const struct regex *re);

/* One thread's scratch; {0} is empty. */
struct regex_run {
    const char *text;
    size_t len;
    struct regex_state *stack;
    size_t count, cap, barrier;
    uint64_t *seen; /* states known to fail, one bit each; used when `hard` */
    size_t seen_cap, steps;
    size_t most;       /* maximum memory, set by the owner; 0: no limit */
    bool hard, failed; /* failed: out of memory or beyond `most`; nothing is found any more */
    bool full;         /* failed because of `most` */
};
size_t regex_run_bytes(const struct regex_run *run);
void regex_run_release(struct regex_run *run);

/* Starts on a text, which is borrowed. Clears a failure. */
void regex_begin(struct regex_run *run, const char *text, size_t len);
/* The leftmost match at or after `from` (a character boundary). May be empty. */
bool regex_find(const struct regex *re, struct regex_run *run, size_t from, size_t *start, size_t *end);
