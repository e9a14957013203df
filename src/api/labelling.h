/* labelling.h - labels of texts, or of their tokens, a window of texts at a time.
 *
 *     struct labelling *l;
 *     labelling_open(&model, &l, &err);                          // model.labels, model.caller_bytes = labelling_bytes
 *     labelling_begin(l, &(struct labelling_how){.stride = -1, .scores = hear, .arg = me});
 *     labelling_add(l, &input, &err);                            // for each text; calls hear for texts that are done
 *     labelling_end(l, &err);                                    // and for the rest
 *     labelling_close(l);
 *
 * Texts are heard in the order in which they were added.
 */
#pragma once

#include "api/text_model.h"
#include "serve/classify.h"

struct labelling;

/* How texts are read, and who hears the results; each is called once per text. */
struct labelling_how {
    enum aggregation aggregation;
    enum label_function function;
    int64_t stride; /* tokens that two windows of a long text share; below 0: there are no windows */
    bool truncate;  /* long texts lose their end; else they are refused */
    const struct string_list *ignored; /* labels of tokens that are left out; NULL: "O" */
    enum plim_status (*entities)(void *arg, const struct entity_list *list, struct plim_error *err);
    enum plim_status (*scores)(void *arg, const float *scores, struct plim_error *err);
    void *arg;
};

/* The model is borrowed. PLIM_UNSUPPORTED: it has no labels. */
enum plim_status labelling_open(struct text_model *model, struct labelling **out, struct plim_error *err);
void labelling_close(struct labelling *l);
const struct classifier *labelling_classifier(const struct labelling *l);

/* Texts that are added from now on are read in this way. Texts of an earlier call that failed are forgotten. */
void labelling_begin(struct labelling *l, const struct labelling_how *how);
enum plim_status labelling_add(struct labelling *l, const struct label_input *in, struct plim_error *err);
enum plim_status labelling_end(struct labelling *l, struct plim_error *err);
int64_t labelling_cut(const struct labelling *l); /* texts that lost their end, in total */

/* A text_model.caller_bytes: tokens and logits of a window, and what one text takes while it is read. */
int64_t labelling_bytes(const struct text_model *m, const struct model_spec *spec, int64_t length);
