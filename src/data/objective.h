/* objective.h - training objectives: the arrays a row has, and how a sample fills them.
 *
 *     const struct objective_row *row = objective_row(OBJECTIVE_MASKED_TOKENS);
 *     objective_measure(&rules, &sample, &positions, &targets);     // what its row will have
 *     objective_put(&rules, &sample, rows, used);                   // into one row, or two of a pair
 *
 * A sample is a list of numbers made by record.h: tokens, or two parts preceded by the length of the first. Rows hold:
 *
 *     next_token       tokens; the target of a position is the next token. Prompts and the words of others are not targets
 *     masked_tokens    tokens; 15 % of the positions are targets. 80 % of these show the mask, 10 % a random token, 10 %
 *                      their own. Special tokens are never targets; every sample has at least one target
 *     token_labels     tokens, and a label for the first piece of each word
 *     sentence_pairs   two rows for two texts: in a batch of B rows, pair i has rows i and B/2 + i, and target i is i. The
 *                      last number of a sample is its score, the bits of a float
 *     source_target    source.ids, and the decoder's ids: the start token, then the target without its last token
 *     dpo, orpo        two rows for a prompt with its chosen, and with its rejected completion: pair i has rows i and B/2 + i.
 *                      Completions are targets, of orpo's chosen rows prompts as well
 *     kto              two rows: the sample, and its prompt with another sample's completion, which is in the reference
 *                      (objective_mismatch)
 *
 * Which positions are masked, and with what, depends only on seed, epoch, sample and position.
 */
#pragma once

#include "data/reference.h"
#include "data/rows.h"
#include "text/codec.h"
#include <stdbool.h>

enum objective {
    OBJECTIVE_NEXT_TOKEN,
    OBJECTIVE_MASKED_TOKENS,
    OBJECTIVE_TOKEN_LABELS,
    OBJECTIVE_SENTENCE_PAIRS,
    OBJECTIVE_SOURCE_TARGET,
    OBJECTIVE_DPO,
    OBJECTIVE_KTO,
    OBJECTIVE_ORPO,
    OBJECTIVES
};

struct objective_rules {
    enum objective objective;
    const struct codec *codec;
    int64_t time, source_time; /* T, S */
    int64_t pair_time;         /* positions of a prompt and both completions, at most; 0: any number */
    int32_t mask;              /* masked_tokens: the mask token */
    int32_t start;             /* source_target: the decoder's first token */
    const struct reference *reference; /* dpo, kto: where data do not say it; NULL: unknown */
};

struct sample {
    const int32_t *tokens;
    int64_t count;
    uint64_t seed, key; /* key: identifies the sample in its epoch */
};

struct objective_row {
    const char *name;
    unsigned feeds; /* arrays of its rows: bits 1 << enum feed_name */
    bool two_parts; /* its samples have several parts; only JSON lines can make them */
    int rows;       /* per sample */
    bool compares;  /* all pairs of a batch are compared: target i of a batch is i */
    void (*measure)(const struct objective_rules *, const struct sample *, int64_t *positions,
                    int64_t *targets);
    void (*put)(const struct objective_rules *, const struct sample *, const struct rows *rows, int64_t used);
};
const struct objective_row *objective_row(enum objective objective);

/* Maximum numbers of a sample. */
int64_t objective_sample_most(const struct objective_rules *rules);

/* Positions used by a sample's row (for a pair, by the longer one), and targets in it. 0 targets: there is no
 * row. */
void objective_measure(const struct objective_rules *rules, const struct sample *sample, int64_t *positions,
                       int64_t *targets);

/* True for objectives that learn from preferences. */
static inline bool objective_prefers(enum objective o)
{
    return o == OBJECTIVE_DPO || o == OBJECTIVE_KTO || o == OBJECTIVE_ORPO;
}

/* The number by which a reference knows a sample: a hash of its rows, up to each one's length. One row for kto, else both. */
uint64_t objective_key(const struct rows *rows, const int64_t *lengths, int count);

/* Fills `to` with the prompt of row `from` and the completion of row `other`: what a good reward is measured against. Sets
 * its length. *tokens is the completion, inside other->targets, and *count its number of tokens. */
void objective_mismatch(const struct rows *from, const struct rows *other, const struct rows *to,
                        const int32_t **tokens, int32_t *count);

/* Source tokens of a sample's row; 0: none. */
int64_t objective_source(const struct objective_rules *rules, const struct sample *sample);

/* Fills positions from `used` on, in the arrays that are not NULL. The caller sets lengths and padding,
 * except the source's. Rows of a pair get no targets here; the batch sets them. */
void objective_put(const struct objective_rules *rules, const struct sample *sample, const struct rows *rows,
                   int64_t used);

/* The vocabulary's mask token, [MASK] or <mask>; -1: none. */
int32_t objective_mask_token(const struct codec *codec);
