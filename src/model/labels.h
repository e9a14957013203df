/* labels.h - the names of a model's labels (id2label in config.json).
 *
 *     struct label_names names;
 *     labels_load("ner-model/", &names, &err);
 *     spec.labels = names.list.items;          // borrowed: hf_config_write writes them again
 *     labels_release(&names);
 *
 * A spec without names is written with transformers' own, LABEL_0 and so on.
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"

struct label_names {
    struct string_list list; /* by number; empty if the file has none */
    struct bump store;
};

/* `path` is config.json or its folder. PLIM_BAD_INPUT when numbers are missing. Release *out on PLIM_OK. */
enum plim_status labels_load(const char *path, struct label_names *out, struct plim_error *err);
void labels_release(struct label_names *names);
