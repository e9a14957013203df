/* run_facts.h - the settings and data that determine a run's result, as keys with text values.
 *
 *     struct doc *facts;
 *     run_facts_make(&job, &length, &corpus, device, &facts, &err);
 *     node_get(&facts->root, "training.seed")                   // "7"
 *     doc_free(facts);
 *
 * The list contains: every field of the model's spec; every configuration key, except those known not to affect the result
 * (run_facts.c lists them, so a new key is included by default); and fingerprints of the data, the tokenizer and the chat
 * template instead of their paths. Keys with the same meaning appear once, as their combined value: batch_size times
 * gradient_accumulation_steps, the precision, the first moment's decay. A key without effect under the current ones is
 * "any". Budgets, tiers, threads, recompute and the like are not included: they change no bit, or (the micro-batch) are
 * stored with the plan's knobs.
 */
#pragma once

#include "base/node.h"
#include "device/device.h"
#include "train/corpus.h"

/* The root of *out is a map of texts. Reads data files for their fingerprints. */
enum plim_status run_facts_make(const struct job *job, const struct job_length *length,
                                const struct corpus *corpus, const struct device *device, struct doc **out,
                                struct plim_error *err);

/* The fact for a configuration key, an alias of one, or a fact's own name. */
const char *run_fact_name(const char *key);

/* True if a checkpoint's tensors depend on this key, so that it cannot be resumed with another value. */
bool run_fact_shapes(const char *key);
/* True if the order of rows depends on the key. */
bool run_fact_orders(const char *key);
