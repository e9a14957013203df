/* seen.h - the distinct tokens of a request in ascending order, with their counts in the answer; used by penalties.
 *
 *     struct seen seen;
 *     seen_init(&seen, room, prompt, count);       // false: out of memory
 *     seen_add(&seen, token);                      // one more of the answer
 *     sampling_penalise(&sampling, seen.token, seen.count, logits, vocab);
 *     seen_release(&seen);
 */
#pragma once

#include "tensor/sample.h"
#include <stdbool.h>

struct seen {
    struct seen_token *token;
    int64_t count;
};

/* Makes room for `room` distinct tokens. */
bool seen_init(struct seen *seen, int64_t room, const int32_t *prompt, int64_t count);
void seen_add(struct seen *seen, int32_t token);
void seen_release(struct seen *seen);
