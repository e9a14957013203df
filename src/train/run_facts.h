/* run_facts.h - what decides a run's result, as a list of keys with their values as text.
 *
 *     struct doc *facts;
 *     run_facts_make(&job, &length, &corpus, device, &facts, &err);
 *     node_get(&facts->root, "training.seed")                   // "7"
 *     doc_free(facts);
 *
 * In the list are: every field of the model's spec, every configuration key that is not known to decide nothing (a
 * new key is in it unless run_facts.c says otherwise), and fingerprints of the data, the tokenizer and the chat template
 * in place of their paths. Keys that say the same in other words appear once, as what they come to: batch_size times
 * gradient_accumulation_steps, the precision, the first moment's decay. A key that decides nothing under the present
 * ones is "any". Budgets, tiers, threads, recomputation and the like are not in it: they change no bit, or
 * (the micro-batch) are kept with the plan's knobs.
 */
#ifndef PLIM_TRAIN_RUN_FACTS_H
#define PLIM_TRAIN_RUN_FACTS_H

#include "base/node.h"
#include "device/device.h"
#include "train/corpus.h"

/* The root of *out is a map of texts. Reads data files for their fingerprints. */
enum plim_status run_facts_make(const struct job *job, const struct job_length *length,
                                const struct corpus *corpus, const struct device *device, struct doc **out,
                                struct plim_error *err);

/* The fact that a configuration key, an alias of one or a fact's own name is about. */
const char *run_fact_name(const char *key);

/* Tensors of a checkpoint have the shape or type that this key says: no other value can go on from it. */
bool run_fact_shapes(const char *key);
/* The order of rows depends on the key. */
bool run_fact_orders(const char *key);

#endif
