/* classify.h - label scores as answers: what they mean, and how they are written.
 *
 *     struct classifier c;
 *     classifier_open(&c, "model/", &spec, tokenizer, &err);
 *     classifier_scores(&c, FUNCTION_DEFAULT, logits);                // labels of rows: logits become scores
 *     classifier_write_labels(&c, scores, 3, "labels", &w);           // "labels": [{"label": ..., "score": ...}, ...]
 *     classifier_close(&c);
 *
 * Scores and their order are those of transformers' TextClassificationPipeline; entities.h has those of tokens.
 */
#pragma once

#include "base/json.h"
#include "model/labels.h"
#include "model/model.h"
#include "serve/entities.h"

/* Turns logits into scores. The default is softmax; sigmoid for a single label or problem_type
 * multi_label_classification; none for regression. */
enum label_function { FUNCTION_DEFAULT, FUNCTION_SIGMOID, FUNCTION_SOFTMAX, FUNCTION_NONE, LABEL_FUNCTIONS };
extern const char *const label_function_names[LABEL_FUNCTIONS + 1]; /* NULL after the last */

struct classifier {
    const struct model_spec *spec; /* borrowed, as the tokenizer */
    const struct tokenizer *tok;
    struct label_names names; /* LABEL_0 and so on where the model has none */
};

/* PLIM_UNSUPPORTED: the model has no labels. */
enum plim_status classifier_open(struct classifier *c, const char *dir, const struct model_spec *spec,
                                 const struct tokenizer *tok, struct plim_error *err);
void classifier_close(struct classifier *c);

/* True if tokens have labels rather than whole texts. */
static inline bool classifier_of_tokens(const struct classifier *c) { return c->spec->task == TASK_LABELS; }

void classifier_scores(const struct classifier *c, enum label_function function, float *logits);
/* The label with the highest score; the first if several are equal. */
size_t classifier_best(const struct classifier *c, const float *scores);

/* Writes an array named `key`: the `top` best in descending order; 0: all. */
void classifier_write_labels(const struct classifier *c, const float *scores, int64_t top, const char *key,
                             struct json_writer *w);
/* Writes one entity as an object: "entity" and "index" for tokens, "entity_group" for joined ones. */
void classifier_write_entity(const struct entity_list *list, size_t i, enum aggregation aggregation,
                             struct json_writer *w);

/* For entities_of_row; `ignored` is NULL: {"O"}. */
struct entity_how classifier_how(const struct classifier *c, enum aggregation aggregation,
                                 const struct string_list *ignored);
