/* classify.h - labels as answers: what the scores of a text's labels mean, and how they are written.
 *
 *     struct classifier c;
 *     classifier_open(&c, "model/", &spec, tokenizer, &err);
 *     classifier_scores(&c, FUNCTION_DEFAULT, logits);                // labels of rows: logits become scores
 *     classifier_write_labels(&c, scores, 3, &w);                     // "labels": [{"label": ..., "score": ...}, ...]
 *     classifier_close(&c);
 *
 * Scores and their order are those of transformers' TextClassificationPipeline; entities.h has those of tokens.
 */
#ifndef PLIM_SERVE_CLASSIFY_H
#define PLIM_SERVE_CLASSIFY_H

#include "base/json.h"
#include "model/labels.h"
#include "model/model.h"
#include "serve/entities.h"

/* What makes scores of logits. By default softmax; sigmoid for one label and for problem_type multi_label_classification; nothing
 * for regression. */
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

/* Do tokens have labels, and not whole texts? */
static inline bool classifier_of_tokens(const struct classifier *c) { return c->spec->task == TASK_LABELS; }

void classifier_scores(const struct classifier *c, enum label_function function, float *logits);
/* The label with the highest score; of equal ones the first. */
size_t classifier_best(const struct classifier *c, const float *scores);

/* "labels": the `top` best, the best first; 0: all of them. */
void classifier_write_labels(const struct classifier *c, const float *scores, int64_t top,
                             struct json_writer *w);
/* One entity as an object: "entity" and "index" of tokens, "entity_group" of what was joined. */
void classifier_write_entity(const struct entity_list *list, size_t i, enum aggregation aggregation,
                             struct json_writer *w);

/* For entities_of_row; `ignored` is NULL: {"O"}. */
struct entity_how classifier_how(const struct classifier *c, enum aggregation aggregation,
                                 const struct string_list *ignored);

#endif
