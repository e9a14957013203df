/* entities.h - turns token labels into results: each token with its label, or tokens joined into entities.
 *
 *     struct entity_list list = {0};
 *     entities_of_row(&list, &how, &text, row, logits, &err);              // for each row of the text
 *     entities_overlapping(&list);                                        // if there are several rows
 *     ... list.items[i], its word in list.words
 *     entity_list_release(&list);
 *
 * Results equal those of transformers' TokenClassificationPipeline with the same aggregation_strategy: word
 * boundaries, which tokens join, and how scores and words are combined.
 */
#pragma once

#include "serve/label_text.h"

enum aggregation {
    AGGREGATE_NONE,    /* tokens as they are */
    AGGREGATE_SIMPLE,  /* adjacent tokens with the same label */
    AGGREGATE_FIRST,   /* words have the label of their first token, then as simple */
    AGGREGATE_AVERAGE, /* ... the best of the mean scores of their tokens */
    AGGREGATE_MAX,     /* ... the label of their most certain token */
    AGGREGATIONS
};
extern const char *const aggregation_names[AGGREGATIONS + 1]; /* "none", ...; NULL after the last */

struct entity_how {
    const struct tokenizer *tok;
    enum aggregation aggregation;
    const char *const *labels; /* names, by number */
    size_t nlabels;
    const char *const *ignored; /* labels or entity names to leave out */
    size_t nignored;
};

struct entity {
    const char *name; /* of the label; for joined tokens without its "B-" or "I-" */
    float score;
    size_t index;             /* of the token in its row, including special tokens */
    uint32_t begin, end;      /* characters of the text */
    size_t word_at, word_len; /* in the list's words */
};

struct entity_list {
    struct entity *items;
    size_t count, cap;
    struct strbuf words;
};

/* Appends the entities of one row. logits [row->count][nlabels] are replaced by scores. */
enum plim_status entities_of_row(struct entity_list *list, const struct entity_how *how,
                                 const struct label_text *text, const struct label_row *row, float *logits,
                                 struct plim_error *err);
/* Resolves overlaps between windows: the longer entity stays; of two equally long ones, the more certain. */
void entities_overlapping(struct entity_list *list);
void entity_list_release(struct entity_list *list);

/* numbers[0..n) become exp(x) / sum. */
void scores_softmax(float *numbers, size_t n);
