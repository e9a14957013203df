/* freeze.h - marks the parameters of a forward tape that are not trained (TENSOR_FROZEN).
 *
 *     struct model_freezing f = {&job->training.freeze, &job->training.train_only};
 *     if (model_freeze(&spec, &f, &tape, &err) != PLIM_OK) ...
 *
 * Runs after model_emit and before the passes, which read the flag: a frozen parameter has no gradient, state or master.
 *
 * A pattern names a run of whole parts of a parameter's name: "lm_head", "layers.0", "self_attn.q_proj" or the whole
 * "model.embed_tokens.weight". In it, * stands for any text, ? for one character, and [..] for one of several.
 */
#pragma once

#include "base/bump.h"
#include "model/model.h"

struct model_freezing {
    const struct string_list *freeze;     /* these are frozen */
    const struct string_list *train_only; /* if not empty, all others are frozen, too */
};

/* PLIM_BAD_INPUT: a pattern matches no parameter, or only a part of one (queries, keys and values of a layer are one
 * tensor, and so are its experts), or nothing is left to train. */
enum plim_status model_freeze(const struct model_spec *spec, const struct model_freezing *freezing,
                              struct tape *tape, struct plim_error *err);

/* True if the pattern matches a name such as "model.layers.0.mlp.up_proj.weight". */
bool model_name_matches(const char *pattern, const char *name);
