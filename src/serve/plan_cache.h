/* plan_cache.h - what an earlier start found out: sizes of a plan that stood, and the rung below those that were refused memory,
 * for the next start of the same model on the same device with the same options.
 *
 *     struct plan_key key;
 *     plan_key_make(&key, "llama-dir", device, &options);
 *     if (plan_cache_load(&key, &kept)) ...             // the search begins, and ends, with these sizes
 *     plan_cache_save(&key, &kept);                     // when they have stood
 *
 * Files are serve-KEY.json and rung-KEY.json in $XDG_CACHE_HOME/plimsoll (or ~/.cache/plimsoll). The key has everything that the sizes depend on: this
 * program's version, names, sizes and times of the model's files, the device and the options. A file that is not there, damaged or
 * for another key is no error: then sizes are looked for as at the first start. What is loaded is held against the line as
 * any other plan is.
 */
#ifndef PLIM_SERVE_PLAN_CACHE_H
#define PLIM_SERVE_PLAN_CACHE_H

#include "base/strbuf.h"
#include "serve/engine.h"

struct plan_key {
    const struct context *context; /* which says where the cache is */
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
/* Nobody is told when this fails: only the next start is slower. */
void plan_cache_save(const struct plan_key *key, const struct kept_plan *plan);

struct kept_rung {
    char name[16]; /* of the rung that stood (ladder.h) */
    int64_t free;  /* bytes that the device had for us when a rung above it was refused memory */
};

/* False: nothing is kept. A file that cannot be read or is for another key counts so, and *damaged is set. `file` gets its
 * name, where there is a place for one. */
bool rung_cache_load(const struct plan_key *key, struct kept_rung *out, struct strbuf *file, bool *damaged);
void rung_cache_save(const struct plan_key *key, const struct kept_rung *rung);
void rung_cache_forget(const struct plan_key *key);

#endif
