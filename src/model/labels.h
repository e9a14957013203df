/* labels.h - the names of a model's labels, as config.json has them (id2label).
 *
 *     struct label_names names;
 *     labels_load("ner-model/", &names, &err);
 *     spec.labels = names.list.items;          // borrowed: hf_config_write writes them again
 *     labels_release(&names);
 *
 * A spec without names is written with transformers' own, LABEL_0 and so on.
 */
#ifndef PLIM_MODEL_LABELS_H
#define PLIM_MODEL_LABELS_H

#include "base/bump.h"
#include "base/status.h"

struct label_names {
    struct string_list list; /* by number; none when the file has none */
    struct bump store;
};

/* `path` is config.json or the folder that holds it. PLIM_BAD_INPUT when numbers are missing. To be released on PLIM_OK. */
enum plim_status labels_load(const char *path, struct label_names *out, struct plim_error *err);
void labels_release(struct label_names *names);

#endif
