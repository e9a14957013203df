/* nearest.h - "did you mean ...?"
 *
 * Distance counts inserted, missing, changed and transposed letters; case does not count. A word is near when at most a
 * third of its letters (at least one, at most four) are wrong.
 *
 *     struct nearest near = nearest_begin(word);
 *     for (...) nearest_offer(&near, rows[i].name);
 *     if (near.best) ...
 */
#pragma once

struct nearest {
    const char *word;
    const char *best; /* the first of the nearest so far; NULL: nothing is near */
    int distance;     /* of best; before one is found: one more than the cut-off */
};

struct nearest nearest_begin(const char *word);
void nearest_offer(struct nearest *near, const char *candidate);
