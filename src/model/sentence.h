/* sentence.h - how a model turns a text into one vector: the files sentence-transformers adds to config.json.
 *
 *     struct sentence_config how;
 *     sentence_config_load("all-MiniLM-L6-v2/", &how, &err);
 *     ... how.pooling, how.normalize, how.max_length, how.path
 *     sentence_config_save("out/", &spec, 256, &err);
 *
 * Reads modules.json, the pooling module's config.json and sentence_bert_config.json. A folder without modules.json is a
 * plain model: its vector is the normalised mean of its tokens, up to the model's positions. Other modules and poolings
 * are refused by name with PLIM_UNSUPPORTED.
 */
#pragma once

#include "model/model.h"

struct sentence_config {
    bool found; /* there is a modules.json */
    enum pooling pooling;
    bool normalize;
    int64_t max_length; /* in tokens; 0: not given */
    char path[512];     /* folder of weights and tokenizer */
};

/* Names of these files relative to the model's folder; NULL after the last. */
const char *sentence_file_name(int i);
/* Writes these files, for texts of up to max_length tokens. */
enum plim_status sentence_config_save(const char *dir, const struct model_spec *spec, int64_t max_length,
                                      struct plim_error *err);

enum plim_status sentence_config_load(const char *dir, struct sentence_config *out, struct plim_error *err);

const char *pooling_name(enum pooling pooling); /* "mean", "cls" */
