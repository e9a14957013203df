/* sentence.h - how a folder's model makes one vector of a text: what sentence-transformers keeps beside config.json.
 *
 *     struct sentence_config how;
 *     sentence_config_load("all-MiniLM-L6-v2/", &how, &err);
 *     ... how.pooling, how.normalize, how.max_length, how.path
 *     sentence_config_save("out/", &spec, 256, &err);
 *
 * Read are modules.json, the pooling module's config.json and sentence_bert_config.json. A folder without modules.json is a
 * plain model: the mean of its tokens, normalised, as long as its positions allow. What would be computed differently
 * (other modules, other poolings) is refused by name with PLIM_UNSUPPORTED.
 */
#ifndef PLIM_MODEL_SENTENCE_H
#define PLIM_MODEL_SENTENCE_H

#include "model/model.h"

struct sentence_config {
    bool found; /* there is a modules.json */
    enum pooling pooling;
    bool normalize;
    int64_t max_length; /* tokens, 0: not said */
    char path[512];     /* where weights and tokenizer are */
};

/* The names of the files that say so, below a model's folder; NULL after the last. */
const char *sentence_file_name(int i);
/* Writes them, for tokens up to max_length. */
enum plim_status sentence_config_save(const char *dir, const struct model_spec *spec, int64_t max_length,
                                      struct plim_error *err);

enum plim_status sentence_config_load(const char *dir, struct sentence_config *out, struct plim_error *err);

const char *pooling_name(enum pooling pooling); /* "mean", "cls" */

#endif
