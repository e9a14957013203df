/* emit_attention.h - attention in programs: scores, mask and dropout of pairs of query and key.
 *
 *     struct attention a = attention_of(e, &slots);
 *     struct hlo_value s = attention_scores(&a, attention_products(&a), NULL);   // [B,K,T,G,S], F32
 *     struct hlo_value seen;
 *     if (attention_mask(&a, &seen)) ... seen is [B,T,S] ...
 *
 * Query heads are [K,G]: G heads share one of K key heads, so keys and values are never repeated.
 */
#pragma once

#include "device/pjrt/emit.h"

/* Input slots of attention or of its gradient. */
struct attention_slots {
    int q, k, v, pos, lengths, bias, scalars;
};

struct attention {
    struct emit *e;
    const struct attention_slots *slots;
    int64_t batch, time, keys, kv_heads, group, size;
    struct hlo_value own; /* [B,T] I32: the query's position among the keys */
    int64_t pairs[5];     /* [B,K,T,G,S] */
};

struct attention attention_of(struct emit *e, const struct attention_slots *slots);

/* An operand of heads: queries as [B,T,K,G,D], with its own type. */
struct hlo_value attention_queries(const struct attention *a, int slot);
/* scale q.k */
struct hlo_value attention_products(const struct attention *a);
/* Products behind the cap and with the bias. slope, if not NULL: d score / d product; its id is -1 where it is 1. */
struct hlo_value attention_scores(const struct attention *a, struct hlo_value products,
                                  struct hlo_value *slope);
/* [B,T,S] BOOL: which keys a query sees. False if it sees all. */
bool attention_mask(const struct attention *a, struct hlo_value *seen);
/* A value of [B,T,S] for each pair. */
struct hlo_value attention_over(const struct attention *a, struct hlo_value v);
/* key - query of each pair: [T,S], with a cache [B,T,S]; I32. */
struct hlo_value attention_offsets(const struct attention *a);
/* The buckets of offsets -reach, ..., reach; farther offsets have the first or last one's. I32. */
struct hlo_value attention_buckets(const struct attention *a, int64_t *reach);
/* Factors of the probabilities; only with attr.dropout. */
struct hlo_value attention_drop(const struct attention *a);
