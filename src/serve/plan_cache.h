/* plan_cache.h - results of an earlier start, for the next start of the same model on the same device with the same
 * options: sizes of a plan that worked, and the rung below those that were refused memory.
 *
 *     struct plan_key key;
 *     plan_key_make(&key, "llama-dir", device, &options);
 *     if (plan_cache_load(&key, &kept)) ...             // the search begins, and ends, with these sizes
 *     plan_cache_save(&key, &kept);                     // once they have worked
 *
 * Files are serve-KEY.json and rung-KEY.json in $XDG_CACHE_HOME/plimsoll (or ~/.cache/plimsoll). The key covers
 * everything that the sizes depend on: this program's version, the names, sizes and times of the model's files, the
 * device and the options. A missing or damaged file, or one for another key, is no error: the sizes are then searched
 * as on the first start. Loaded sizes are checked against the budget like any other plan.
 */
#pragma once

#include "base/strbuf.h"
#include "serve/engine.h"

struct plan_key {
    const struct context *context; /* locates the cache */
    struct strbuf text;
};

struct kept_plan {
    int64_t overhead; /* host bytes of the process and its caller, as the plan counted them */
    struct offer offer;
    int64_t coded; /* offer.coded as a number */
};

void plan_key_make(struct plan_key *key, const char *model, const struct device *device,
                   const struct engine_options *options);
void plan_key_release(struct plan_key *key);

bool plan_cache_load(const struct plan_key *key, struct kept_plan *out);
/* Ignores failures: they only make the next start slower. */
void plan_cache_save(const struct plan_key *key, const struct kept_plan *plan);

struct kept_rung {
    char name[16]; /* of the rung that worked (ladder.h) */
    int64_t free;  /* free device bytes when a rung above was refused memory */
};

/* Returns false when nothing is stored. An unreadable file, or one for another key, also counts as nothing and sets
 * *damaged. `file`, if given, receives its name. */
bool rung_cache_load(const struct plan_key *key, struct kept_rung *out, struct strbuf *file, bool *damaged);
void rung_cache_save(const struct plan_key *key, const struct kept_rung *rung);
void rung_cache_forget(const struct plan_key *key);
