/* objective.h - what is learned of a sample: which arrays its row has and what stands in them.
 *
 *     const struct objective_row *row = objective_row(OBJECTIVE_MASKED_TOKENS);
 *     objective_measure(&rules, &sample, &positions, &targets);     // what its row will have
 *     objective_put(&rules, &sample, rows, used);                   // into one row, or two of a pair
 *
 * A sample is a list of numbers, as records make them (record.h): tokens, or two parts, of which the first number says how
 * many the first has. What a row holds:
 *
 *     next_token       tokens; each position's target is the token after it. A prompt, or what others say, is no target
 *     masked_tokens    tokens; 15 of 100 positions are targets: of these 80 of 100 show the mask, 10 any token, 10 their own.
 *                      Special tokens are none, and a sample has at least one
 *     token_labels     tokens, and a label for the first piece of each word
 *     sentence_pairs   two rows of two texts: in a batch of B rows pair i has rows i and B/2 + i, and target i is i. A
 *                      sample's last number is its score, the bits of a float
 *     source_target    source.ids, and a decoder's ids: the start token, then the target but for its last token
 *
 * Which positions are masked, and with what, follows from seed, epoch, sample and position alone.
 */
#ifndef PLIM_DATA_OBJECTIVE_H
#define PLIM_DATA_OBJECTIVE_H

#include "data/rows.h"
#include "text/codec.h"
#include <stdbool.h>

enum objective {
    OBJECTIVE_NEXT_TOKEN,
    OBJECTIVE_MASKED_TOKENS,
    OBJECTIVE_TOKEN_LABELS,
    OBJECTIVE_SENTENCE_PAIRS,
    OBJECTIVE_SOURCE_TARGET,
    OBJECTIVES
};

struct objective_rules {
    enum objective objective;
    const struct codec *codec;
    int64_t time, source_time; /* T, S */
    int32_t mask;              /* masked_tokens: the token that hides others */
    int32_t start;             /* source_target: the decoder's first token */
};

struct sample {
    const int32_t *tokens;
    int64_t count;
    uint64_t seed, key; /* key: of the sample in its epoch */
};

struct objective_row {
    const char *name;
    unsigned feeds; /* arrays of its rows: bits 1 << enum feed_name */
    bool two_parts; /* of its samples; only records of JSON lines make such */
    int rows;       /* of a sample */
    void (*measure)(const struct objective_rules *, const struct sample *, int64_t *positions,
                    int64_t *targets);
    void (*put)(const struct objective_rules *, const struct sample *, const struct rows *rows, int64_t used);
};
const struct objective_row *objective_row(enum objective objective);

/* The most numbers of a sample. */
int64_t objective_sample_most(const struct objective_rules *rules);

/* Positions that a sample's row uses, of a pair the longer one's, and targets in it; 0 targets: there is no row. */
void objective_measure(const struct objective_rules *rules, const struct sample *sample, int64_t *positions,
                       int64_t *targets);

/* Tokens of the source that a sample's row has; 0: it has none. */
int64_t objective_source(const struct objective_rules *rules, const struct sample *sample);

/* Fills positions from `used` on of the arrays that are there; lengths and padding are the caller's, but for the source's. Rows
 * of a pair have no targets: they are the batch's. */
void objective_put(const struct objective_rules *rules, const struct sample *sample, const struct rows *rows,
                   int64_t used);

/* The token that hides others in this vocabulary: [MASK] or <mask>; -1: it has none. */
int32_t objective_mask_token(const struct codec *codec);

#endif
