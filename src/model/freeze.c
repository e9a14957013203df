/* freeze.c - see freeze.h. */
#include "model/freeze.h"
#include "model/weights.h"

#include <fnmatch.h>
#include <stdio.h>

/* ".name." holds ".pattern." */
bool model_name_matches(const char *pattern, const char *name)
{
    char text[256], glob[256];
    snprintf(text, sizeof text, ".%s.", name);
    int n = snprintf(glob, sizeof glob, "*.%s.*", pattern);
    return *pattern && n < (int)sizeof glob && !fnmatch(glob, text, FNM_NOESCAPE);
}

static bool is_weight(const struct tensor *t)
{
    return t->cls == CLASS_PARAM && t->view_of < 0 && t->owner < 0;
}

static enum plim_status refuse_part(const char *key, const char *pattern, const struct tape *tape, int param,
                                    struct plim_error *err)
{
    char name[192];
    return plim_fail(err, PLIM_BAD_INPUT,
                     "key '%s': '%.80s' matches only a part of %s, which is one tensor here; write patterns "
                     "for all of its parts",
                     key, pattern, tape_tensor_name(tape, param, name, sizeof name));
}

/* The first pattern of the list that matches a part of the parameter; NULL: none does. */
static const char *find_pattern(const struct string_list *list, const struct weights_part *part)
{
    for (size_t p = 0; p < list->count; p++)
        if (model_name_matches(list->items[p], part->name)) return list->items[p];
    return NULL;
}

/* Whether the list matches the parameter, all parts of it or none. */
static enum plim_status match(const struct model_spec *spec, const struct tape *tape, int param,
                              const char *key, const struct string_list *list, bool *out,
                              struct plim_error *err)
{
    int count = weights_part_count(tape, param), matched = 0;
    const char *by = NULL;
    for (int i = 0; i < count; i++) {
        const struct weights_part part = weights_part(spec, tape, param, i);
        const char *pattern = find_pattern(list, &part);
        if (pattern) by = pattern, matched++;
    }
    *out = matched > 0;
    return matched == 0 || matched == count ? PLIM_OK : refuse_part(key, by, tape, param, err);
}

static bool matches_any(const struct model_spec *spec, const struct tape *tape, const char *pattern)
{
    for (int i = 0; i < tape->ntensors; i++) {
        int count = is_weight(&tape->tensors[i]) ? weights_part_count(tape, i) : 0;
        for (int k = 0; k < count; k++)
            if (model_name_matches(pattern, weights_part(spec, tape, i, k).name)) return true;
    }
    return false;
}

static enum plim_status refuse_none(const struct tape *tape, const char *key, const char *pattern,
                                    struct plim_error *err)
{
    char name[192] = "";
    for (int i = 0; i < tape->ntensors && !*name; i++)
        if (is_weight(&tape->tensors[i]) && tape->tensors[i].layer >= 0)
            tape_tensor_name(tape, i, name, sizeof name);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "key '%s': '%.80s' matches no parameter of the model; their names are like %s", key,
                     pattern, name);
}

/* Sets or clears the flag of every parameter that a list matches. */
static enum plim_status apply(const struct model_spec *spec, struct tape *tape, const char *key,
                              const struct string_list *list, bool freeze, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (size_t p = 0; p < list->count; p++)
        if (!matches_any(spec, tape, list->items[p])) return refuse_none(tape, key, list->items[p], err);
    for (int i = 0; i < tape->ntensors && status == PLIM_OK && list->count; i++) {
        bool matches = false;
        if (is_weight(&tape->tensors[i])) status = match(spec, tape, i, key, list, &matches, err);
        if (matches && freeze) tape->tensors[i].flags |= TENSOR_FROZEN;
        if (matches && !freeze) tape->tensors[i].flags &= ~(unsigned)TENSOR_FROZEN;
    }
    return status;
}

enum plim_status model_freeze(const struct model_spec *spec, const struct model_freezing *freezing,
                              struct tape *tape, struct plim_error *err)
{
    bool only = freezing->train_only->count > 0;
    if (!only && !freezing->freeze->count) return PLIM_OK;
    for (int i = 0; i < tape->ntensors && only; i++)
        if (tape->tensors[i].cls == CLASS_PARAM) tape->tensors[i].flags |= TENSOR_FROZEN;
    enum plim_status status = apply(spec, tape, "training.train_only", freezing->train_only, false, err);
    if (status == PLIM_OK) status = apply(spec, tape, "training.freeze", freezing->freeze, true, err);
    bool trained = false;
    for (int i = 0; i < tape->ntensors && status == PLIM_OK; i++)
        trained |= is_weight(&tape->tensors[i]) && !(tape->tensors[i].flags & TENSOR_FROZEN);
    if (status == PLIM_OK && !trained)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "key 'training.freeze': every parameter is frozen; leave some to train");
    return status;
}
